"""Locks of ranks."""

import numpy as np
import pytest
from helpers.windows import OVER_ALL

from mpidec import topology as T

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
