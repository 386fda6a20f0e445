"""Mutexes in memory and by messages: one holder, the order, time-outs, requests that are withdrawn."""

import contextlib
import time

import numpy as np
import pytest
from helpers.windows import OVER_ALL, aligned

from mpidec import topology as T
from mpidec.comm.rma import records, records_in_python
from mpidec.comm.rma.carriers.mutex import HeldMutexes, Mutex
from mpidec.comm.rma.messenger import Kind, Message

pytestmark = pytest.mark.library


@OVER_ALL
def test_mutex(net):
    with net.window(np.zeros(1), T.complete(net.n)) as win:
        with (
            win.mutex([net.rank]),
            pytest.raises(RuntimeError, match="not re-entrant"),
            win.mutex([net.rank]),
        ):
            pass

        class Broken(Exception):
            pass

        with pytest.raises(Broken), win.mutex():
            raise Broken
        net.barrier()
        with win.mutex(np.int64(net.rank), timeout=0):
            pass  # released where the body raised
        with net.window(np.zeros(1), T.complete(net.n)) as other, other.mutex([net.rank]):
            other.close()
        net.barrier()
        if net.n > 1:
            if net.rank == 0:
                with win.mutex([0]):
                    net.barrier()
                    net.barrier()
            else:
                net.barrier()
                if net.rank == 1:
                    with (
                        pytest.raises(
                            TimeoutError,
                            match=r"mutex of rank 0, (held by rank 0|which this rank shares no)",
                        ),
                        win.mutex([0], timeout=0.05),
                    ):
                        pass
                net.barrier()
        with win.mutex([0]):
            pass
        net.barrier()


@OVER_ALL
def test_a_contended_mutex_has_one_holder(net):
    """Counted in the mutex itself: at no time are two ranks inside."""
    inside = net.window(np.zeros(net.n), T.complete(net.n))
    with inside as win:
        for _ in range(10):
            with win.mutex([0]):
                win.get()  # nobody else has marked its value
                assert not any(win.update(0.0, [j])[j] for j in win.in_neighbors)
                mark = np.zeros(net.n)
                mark[net.rank] = 1
                win.value = mark
                time.sleep(0.0002)
                win.value = np.zeros(net.n)
        net.barrier()


@pytest.mark.parametrize("native", [records_in_python, records.native])
def test_a_mutex_is_handed_on_in_the_order_of_the_ranks(native):
    try_, await_ = native.try_mutex, native.await_mutex
    leave, release, memory = native.leave_mutex, native.release_mutex, aligned(64 + 64)
    assert try_(memory, 2) == -1 and try_(memory, 1) == 2
    for rank in (0, 1, 4, 5):
        await_(memory, rank)
    assert leave(memory, 5) and not leave(memory, 5) and not release(memory, 1)
    holders = [2]
    while holders[-1] >= 0:
        assert release(memory, holders[-1])
        holders.append(int(memory.view(np.uint64)[0]) - 1)
        if len(holders) == 3:
            await_(memory, 2)
    assert holders == [2, 4, 0, 1, 2, -1]


def queue(memory, asked):
    """The mutex of rank 0, whose own memory it is; what it asks or answers goes to `asked`."""
    return Mutex(
        {0: memory},
        0,
        lambda rank, kind, number: asked.append((rank, kind, number)),
        contextlib.nullcontext(),
    )


@pytest.mark.parametrize("again", [False, True])
def test_a_request_that_is_withdrawn_while_the_mutex_is_handed_over(again):
    """Rank 1 of this node hands it to rank 2 of another one, which withdraws between the two steps of that, and may ask anew."""
    memory, asked = aligned(64 + 64), []
    mutex = queue(memory, asked)
    assert records.native.try_mutex(memory, 1) == -1
    mutex.receive(2, Message(1, Kind.LOCK, 2, 0, number=1))
    assert records.native.leave_mutex(memory, 2)  # the first step: rank 2 waits no longer
    mutex.receive(2, Message(1, Kind.CANCEL, 2, 0, number=1))
    if again:
        mutex.receive(2, Message(1, Kind.LOCK, 2, 0, number=2))
    memory.view(np.uint64)[0] = 2 + 1  # the second one: it has it
    mutex.serve()
    assert asked == [(2, Kind.GRANTED, 2)] * again
    if again:
        assert records.native.try_mutex(memory, 1) == 2
        mutex.receive(2, Message(1, Kind.CANCEL, 2, 0, number=2))  # which crosses the answer
    assert records.native.try_mutex(memory, 1) == -1


def test_a_rank_that_stops_while_it_hands_a_mutex_over(monkeypatch):
    monkeypatch.setenv("MPIDEC_TIMEOUT", "0.05")
    memory = aligned(64 + 64)
    records.native.try_mutex(memory, 1)
    with (
        pytest.raises(TimeoutError, match="held by rank 1"),
        queue(memory, []).held(
            [0], 0.0, lambda: records.native.leave_mutex(memory, 0), lambda: None
        ),
    ):  # the first step, never the second
        pass


class Noted(HeldMutexes):
    """Mutexes of which only the order is noted in which they are taken and released."""

    def __init__(self):
        super().__init__(contextlib.nullcontext())
        self.taken, self.released = [], []

    def _take(self, rank, patience, poll):
        self.taken.append(rank)

    def _release(self, rank):
        self.released.append(rank)


@pytest.mark.serial
def test_all_ranks_take_mutexes_in_one_order_and_once():
    """However a caller names them: otherwise two ranks wait for each other for ever."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        ranks, mutexes = rng.integers(6, size=5).tolist(), Noted()
        with mutexes.held(ranks, None, lambda: None, lambda: None):
            assert mutexes.taken == sorted(set(ranks)) and not mutexes.released
        assert mutexes.released == mutexes.taken[::-1]
