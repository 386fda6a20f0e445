"""Rows by MPI's one-sided calls."""

import contextlib
import threading

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.rma.carriers import one_sided

pytestmark = pytest.mark.library


@pytest.mark.serial
def test_a_value_that_others_read_changes_under_its_guard_only():
    """A reader repeats where the counter is odd or has changed: each change begins and ends with one."""
    words, seen = np.zeros(8, np.int64), {}

    class Noted:
        """Records of which each call says whether the counter was odd."""

        def __getattr__(self, name):
            return lambda *_: seen.update({name: bool(words[one_sided.COUNTER] % 2)})

        def __setattr__(self, name, value):
            seen[name] = bool(words[one_sided.COUNTER] % 2)

    guarded = one_sided.GuardedRecords(Noted(), words, lambda: None)
    x, none = np.ones(3), {}
    changes = {
        "send": lambda: guarded.send(x, none, 0.5, False),
        "update": lambda: guarded.update(0.5, none, False),
        "set": lambda: guarded.set(x),
        "shown": lambda: guarded.shown(),
        "p": lambda: setattr(guarded, "p", 2.0),
    }
    for k, change in enumerate(changes.values()):
        change()
        assert words[one_sided.COUNTER] == 2 * (k + 1)
    assert seen == dict.fromkeys(changes, True)
    guarded.send(x, none, None, False)  # to others only
    assert not seen["send"]


def test_one_flush_for_all_neighbours(comm, monkeypatch):
    """On a node; MPICH gives the core to another process in each."""
    flushed = []
    with mpidec.Network(windows="rma") as net, net.window(np.ones(3), T.complete(net.n)) as win:
        if net.n > 1:
            memory = win._slots.carrier.memory
            flush_all = memory.flush_all
            monkeypatch.setattr(memory, "flush_all", lambda: flushed.append(flush_all()))
            win.put(win.value)
            assert len(flushed) == 1 and win._slots.empty
            del memory, flush_all
            monkeypatch.undo()
        net.barrier()
        assert win.collect()[0] == (net.n if net.n > 1 else 1)
        net.barrier()


@pytest.mark.mpi(min_size=2)
def test_a_row_is_published_after_a_flush_also_when_one_flush_has_failed(comm, monkeypatch):
    calls = []
    with mpidec.Network(windows="rma") as net, net.window(np.ones(3), T.complete(net.n)) as win:
        memory = win._slots.carrier.memory
        flush, swap = memory.flush_all, memory.swap

        def failing():
            calls.append("flush")
            if len(calls) == 1:
                raise MemoryError
            flush()

        def publish(new, old, rank, at):
            calls.extend(["publish"] * (rank != net.rank))  # else it takes what has come
            return swap(new, old, rank, at)

        with monkeypatch.context() as patch:
            patch.setattr(memory, "flush_all", failing)
            patch.setattr(memory, "swap", publish)
            with pytest.raises(MemoryError):
                win.put(np.full(3, 2.0))
            win._messenger.handling.end()
            win.flush()
        assert calls == ["flush", "flush", *["publish"] * (net.n - 1)]
        net.barrier()
        assert [win.slot(rank).tolist() for rank in win.in_neighbors] == [[2.0] * 3] * (net.n - 1)
        net.barrier()


def test_readings_of_one_value_stay_in_their_order(comm, monkeypatch):
    """The first one takes the most tries."""
    order, begun = [], []

    def read(self, source, deliver):
        number = len(begun)
        begun.append(source)
        yield from [one_sided.Turn.NEXT] * (0 if number else 9)
        order.append(number)
        deliver(np.full(1, float(number)), 1.0)

    monkeypatch.setattr(one_sided.OneSided, "_read", read)
    with mpidec.Network(windows="rma") as net, net.window(np.zeros(1), T.ring(net.n)) as win:
        for each in [win.start_get(win.in_neighbors[:1]) for _ in range(4)]:
            each.wait()
        assert order == list(range(4 if net.n > 1 else 0))
        assert not order or win.slot(win.in_neighbors[0]).tolist() == [3.0]


class Held:
    """The lock of a section that another thread has whenever this one tries to take it, and that it lets go, possibly because of
    an exception, when this one waits."""

    def __init__(self, section, fails=False):
        self._section, self._lock, self._fails = section, section.lock, fails
        self.release = self._lock.release

    def acquire(self, blocking=True):
        self._section._begun |= blocking and self._fails
        return (blocking or self._section._begun) and self._lock.acquire()


@contextlib.contextmanager
def held_by_a_thread(lock):
    """As the helper's, while a rank that has to help it does not answer."""
    begun, end = threading.Event(), threading.Event()

    def hold():
        with lock:
            begun.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


READS = {
    "collect": lambda win: win.collect() - 2.0 * len(win.in_neighbors),
    "update": lambda win: (
        win.update(1.0, dict.fromkeys(win.in_neighbors, 0.5)) - len(win.in_neighbors)
    ),
    "slot": lambda win: sum(win.slot(rank) - 2 for rank in win.in_neighbors),
    "versions": lambda win: [count - 1 for count in win.versions.values()],
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("sent", ["barrier", "flush"])
def test_all_that_was_sent_is_read_while_a_helper_is_at_work(comm, sent, read, monkeypatch):
    with (
        mpidec.Network(comm=comm, windows="rma") as net,
        net.window(np.zeros(3), T.exponential(net.n), progress=False) as win,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(win._slots.carrier, "take", lambda: None)  # rows stay in the mailboxes
            win.accumulate(np.full(3, 2.0))
            net.barrier() if sent == "barrier" else (win.flush(), comm.Barrier())
        post = win._messenger
        with held_by_a_thread(post.handling.lock), monkeypatch.context() as patch:
            patch.setattr(post.taking, "lock", Held(post.taking))
            assert not np.any(READS[read](win))
            patch.setattr(post.taking, "lock", Held(post.taking, fails=True))
            with pytest.raises(RuntimeError, match="rows may be lost"):
                READS[read](win)
        post.taking._begun = False
        comm.Barrier()
