"""Locks of ranks."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.windows import OVER_ALL

from mpidec import topology as T
from mpidec.comm.rma.claims import RankLocks
from mpidec.comm.rma.messenger import Kind, Message
from mpidec.comm.runtime.partition import Partition

pytestmark = pytest.mark.library


@OVER_ALL
def test_a_lock_is_one_rank_s_until_its_owner_lets_go(net, comm):
    with net.window(np.zeros(2), T.complete(net.size)) as win:
        assert win.locks.owner is None
        net.barrier()
        if net.size == 1:
            assert win.locks.try_lock(0) and not win.locks.try_lock(0) and win.locks.owner == 0
            win.locks.unlock()
            assert win.locks.try_lock(0)
            return
        claimed = win.locks.try_lock(0)
        net.barrier()
        owners = comm.allgather(claimed)
        assert sum(owners) == 1
        if net.rank == 0:
            assert win.locks.owner == owners.index(True) and not win.locks.try_lock(0)
            win.locks.unlock(hand_over=True)
            assert win.locks.owner == 0
        net.barrier()
        assert not win.locks.try_lock(0)
        net.barrier()
        if net.rank == 0:
            win.locks.unlock()
            assert win.locks.owner is None and win.locks.try_lock(0) and not win.locks.try_lock(0)
        with pytest.raises(
            ValueError, match=r"lock of rank 99, expected this rank or one of its neighbours"
        ):
            win.locks.try_lock(99)


@pytest.mark.serial
@pytest.mark.parametrize("granted", [False, True])
def test_a_lock_that_is_granted_after_the_wait_has_ended_is_given_back(granted):
    """Otherwise no rank could take it any more: rank 1 asks rank 0, on another node, and is interrupted."""
    told = []

    def interrupted():
        raise KeyboardInterrupt

    slots = SimpleNamespace(
        senders=[[0]],
        receivers=[[0]],
        words=SimpleNamespace(reaches=lambda rank: False),
        poll=interrupted,
        tell=lambda *message: told.append(message),
    )
    context = SimpleNamespace(engine=nullcontext(), rank=1, partition=Partition(2, 2))
    locks = RankLocks(context, slots, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        locks.try_lock(0)
    locks.receive(0, Message(1, Kind.TAKEN, 0, 1, number=int(granted)))
    assert told == [(0, Kind.TAKE, 1, 0), (0, Kind.FREE, 1, 0)][: 1 + granted]
