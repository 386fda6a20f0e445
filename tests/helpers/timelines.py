"""Events of timelines, as text."""

from __future__ import annotations

import json


def texts(net, folder):
    """The texts of all ranks, when all of them have come here."""
    net.barrier()
    net.comm.Barrier()  # each has written its events at the first one
    return [(folder / f"t.{rank}.json").read_text() for rank in range(net.size)]


def _event(rank, name, begin, length, **args):
    about = {"ph": "X", "name": name, "cat": "c", "pid": rank, "tid": 0, "ts": begin, "dur": length}
    return json.dumps({**about, "args": {"net": 1, **args}}) + ",\n"


def _call(rank, begin, length, waits=None):
    return _event(rank, "sum", begin, length, number=1, role="call", key="sum", waits=waits)
