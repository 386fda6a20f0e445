"""Mutexes by MPI's one-sided calls."""

import contextlib
import time

import numpy as np
import pytest

import mpidec
from mpidec import topology as T

pytestmark = pytest.mark.library


@pytest.mark.parametrize("withdraws", [False, True])
def test_a_queue_of_ranks_for_a_mutex(comm, shared_tmp, withdraws):
    """A rank that has given up is passed over, or waits at its old place again; nobody is forgotten, and no two are inside."""
    if comm.rank == 0:
        np.zeros(1, np.int64).tofile(shared_tmp / "count")
    comm.Barrier()
    count, entered = np.memmap(shared_tmp / "count", np.int64, "r+"), 0
    with mpidec.Network(windows="rma") as net, net.window(np.zeros(1), T.complete(net.n)) as win:
        rng = np.random.default_rng(net.rank)
        for _ in range(40):
            limit = float(rng.choice([0.0, 0.0005])) if withdraws and rng.random() < 0.5 else None
            with contextlib.suppress(TimeoutError), win.mutex([0], timeout=limit):
                before = int(count[0])
                time.sleep(1e-4 * rng.random())
                count[0] = before + 1
                entered += 1
        net.barrier()
        assert net.comm.allreduce(entered) == count[0]
        assert withdraws or entered == 40
