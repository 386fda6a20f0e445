"""Offsets between the clocks of nodes."""

from __future__ import annotations

import numpy as np

from ..timeline import clock
from .communicator import Communicator
from .tree import tree

_PINGS, _TAG = 30, 16000


def offset(comm: Communicator) -> int:
    """Nanoseconds to be added to this rank's monotonic clock for that of rank 0; collective, along
    the tree of all ranks.

    The ping of the shortest way to the parent and back counts: the parent has read its clock in the
    middle of it, give or take half of it.
    """
    parent, children = tree(comm.rank, comm.size)
    told, best = np.zeros(1, np.int64), (1 << 62, 0)
    if parent is not None:
        for _ in range(_PINGS):
            begun = clock()
            comm.Send(told, parent, _TAG)
            comm.Recv(told, parent, _TAG)
            ended = clock()
            best = min(best, (ended - begun, int(told[0]) - (begun + ended) // 2))
    for child in reversed(children):  # that of the most ranks first
        for _ in range(_PINGS):
            comm.Recv(told, child, _TAG)
            told[0] = clock() + best[1]
            comm.Send(told, child, _TAG)
    return best[1]
