"""One timeline of the files of all ranks: clocks and arrows."""

from __future__ import annotations

import json

import pytest
from helpers.timelines import _call, _event

from mpidec.comm.timeline.merge import SHORT, aligned, arrows, files, merge, table
from mpidec.comm.timeline.waits import waits


def _clock(rank, offset):
    args = {"offset": offset}
    return json.dumps({"ph": "M", "name": "clock", "pid": rank, "tid": 0, "args": args}) + ",\n"


@pytest.mark.serial
def test_clocks_are_aligned_and_a_line_that_was_cut_is_left_out(tmp_path):
    (tmp_path / "t.0.json").write_text(
        "[\n" + _clock(0, 0.0) + _call(0, 1000.0, 300.0) + '{"ph": "X", "na'
    )
    (tmp_path / "t.1.json").write_text("[\n" + _clock(1, -7000.0) + _call(1, 8200.0, 110.0))
    (tmp_path / "t.x.json").write_text("")
    paths = files(str(tmp_path / "t."))
    assert [path[-8:] for path in paths] == ["t.0.json", "t.1.json"]
    waited = merge([open(path).read() for path in paths], tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert [(e["ph"], e["pid"], e["ts"]) for e in events] == [
        ("X", 0, 0.0),
        ("X", 1, 200.0),
        ("s", 1, 200.0),
        ("f", 0, 200.0),
    ]
    assert [row[:3] for row in table(waited)[1:]] == [
        ["0", "66.7%", "rank 1 (100%)"],
        ["1", "0.0%", ""],
    ]


@pytest.mark.serial
def test_arrows_begin_and_end_within_their_events():
    def ends(*texts):
        return [arrow["ts"] for arrow in arrows(aligned(texts))]

    late = _call(1, 100.0, 50.0, [])
    assert ends(_call(0, 0.0, 120.0, [1]), late) == [100.0, 100.0]
    assert ends(_call(0, 0.0, 99.0, [1]), late) == []  # backwards: the clocks are apart
    held = _event(0, "mutex", 0.0, 90.0, role="mutex", mutexes=[2])
    wait = _event(1, "mutex wait", 30.0, 60.0, role="mutex", mutexes=[2])
    assert ends(held, wait) == [89.999, 89.999]  # at 90 another event may begin


@pytest.mark.serial
def test_arrows_are_for_waits_that_can_be_seen():
    for waited, drawn in (SHORT / 2, 0), (SHORT, 0), (SHORT + 1, 2):
        events = aligned([_call(0, 0.0, 500.0), _call(1, waited, 500.0)])
        assert len(arrows(events)) == drawn and len(waits(events)) == 1
