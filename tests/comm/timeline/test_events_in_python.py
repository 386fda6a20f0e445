"""The log of events, in C and without a compiler."""

from __future__ import annotations

import itertools
import json
import os

import pytest

from mpidec.comm.timeline import events_in_python, file as files_of_ranks


def _note(native, path, events=3):
    """What a log writes of calls of one function."""
    log = native.Log(os.open(path, os.O_WRONLY | os.O_CREAT), 7)
    results = iter([None, *[1] * events, ZeroDivisionError])

    def function():
        result = next(results)
        if result is ZeroDivisionError:
            raise result
        return result

    busy = bytearray(1)
    timed = log.timed(function, b', "start": {"n": ', b', "kind": {"n": ', itertools.count(5), busy)
    assert timed() is None and timed() == 1  # the first one has done nothing
    busy[0] = 1
    assert timed() == 1  # a part of another call
    busy[0] = 0
    for _ in range(events - 2):
        timed()
    with pytest.raises(ZeroDivisionError):
        timed()
    log.add(b', "long": {"' + b"x" * 40000 + b'": 1', 1_999, 4_001, -1)
    log.write(b"end\n")
    log.stop()
    log.add(b"late", 0, 0, 0)
    log.write(b"late")
    return [line.rstrip(",") for line in path.read_text().splitlines()]


@pytest.mark.serial
def test_a_log_in_c_and_without_a_compiler(tmp_path):
    for native in (files_of_ranks.native, events_in_python):
        path = tmp_path / native.__name__
        *calls, alone, end = _note(native, path, events=5000)  # more than a ring holds
        calls = [json.loads(line) for line in calls]
        assert len(calls) == 2 * 4999 and end == "end"
        assert [call["start"]["n"] for call in calls[::2]] == list(range(5, 5 + 4999))
        assert [call["kind"]["n"] for call in calls[1::2]] == list(range(5, 5 + 4999))
        assert all(a["ts"] == b["ts"] and a["dur"] == 0 for a, b in zip(calls[::2], calls[1::2]))
        alone = json.loads(alone)
        assert (alone["tid"], alone["ts"], alone["dur"], len(alone["long"])) == (0, 1, 3, 1)
