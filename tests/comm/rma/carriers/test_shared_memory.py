"""Memory that the ranks of a node map: limits, forked children, what is left at the end."""

import contextlib
import gc
import os
import resource

import numpy as np
import pytest
from helpers import launch
from helpers.windows import OVER_ALL

from mpidec import topology as T
from mpidec.comm.rma import records

pytestmark = pytest.mark.library


def test_a_rank_without_files_for_memory(net):
    """It cannot open the memory of others, which can open its own: they write to it, and it sends messages."""
    with spare_files(1 if net.rank % 2 else 3):
        win = net.window(np.full(50, 1.0 + net.rank), T.complete(net.n))
    with win:
        win.put(win.value, dst_weights=dict.fromkeys(win.out_neighbors, 0.0))
        all_came = lambda: all(count == 1 for count in win.versions.values())
        assert launch.until(all_came, 20), win.versions  # seen without any wait
        net.barrier()
        for _ in range(50):
            win.accumulate(win.value, 1 / net.n, dict.fromkeys(win.out_neighbors, 1 / net.n))
            with win.mutex([0]):
                win.collect()
        net.barrier()
        win.collect()
        assert net.allreduce(win.value, average=False) == pytest.approx(
            [net.n * (net.n + 1) / 2] * 50
        )
        win.get()
        net.barrier()


@contextlib.contextmanager
def spare_files(count):
    """At most so many files more than are open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in os.listdir("/proc/self/fd"))
    plugs = [
        os.open(os.devnull, os.O_RDONLY) for _ in range(top - len(os.listdir("/proc/self/fd")) + 3)
    ]
    top = max(int(name) for name in os.listdir("/proc/self/fd")[:-1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(top + 1 + count, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for plug in plugs:
            os.close(plug)


def test_no_memory_on_one_rank(net):
    if net.n > 1:
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        x = np.broadcast_to(0.0, 40_000_000)
        if net.rank == 1:
            resource.setrlimit(resource.RLIMIT_AS, (used + 600 * 2**20, before[1]))
        try:
            with pytest.raises(MemoryError, match="rank 1"):
                net.window(x, T.ring(net.n))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    with net.window(np.ones(2), T.ring(net.n)) as win:
        win.put(win.value)


@OVER_ALL
def test_a_forked_child_has_a_copy_and_is_refused(net):
    with net.window(np.ones(2), T.complete(net.n)) as win:
        net.barrier()
        child = os.fork()
        if not child:
            try:
                win.value[:] += 6
                win._slots.values[:] *= 2
                for block in win._slots._connections._blocks.values():
                    block[-64:] = 255  # of other ranks, too
                win.put(win.value)
            except RuntimeError as error:
                os._exit(
                    7 if "forked child" in str(error) and win.value.tolist() == [14, 14] else 1
                )
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        net.barrier()
        win.get()
        assert win.value.tolist() == [1, 1] and all(
            win.slot(j).tolist() == [1, 1] for j in win.in_neighbors
        )
        assert not any(
            np.any(block[-64:] == 255) for block in win._slots._connections._blocks.values()
        )
        net.barrier()
        win.put(win.value)


@OVER_ALL
def test_a_closed_window_keeps_neither_memory_nor_files(net):
    def maps():
        return len(os.listdir("/proc/self/fd")), sum(
            "mpidec-window" in line for line in open("/proc/self/maps")
        )

    gc.collect()
    before = maps()
    with (
        net.window(np.ones(10_000), T.complete(net.n)) as one,
        net.window(np.ones(3), T.complete(net.n)) as two,
    ):
        one.put(one.value)
        two.put(two.value)
        shared = net.transport == net.windows == "auto" and records.COMPILED and net.n > 1
        assert maps() == (before[0], before[1] + 2 * net.n * shared)
    assert maps() == before and one.value[-1] == 1  # at once, without the garbage collector
    assert not net.ended._blocks  # MPI's, too
