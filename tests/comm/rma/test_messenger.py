"""Messages of windows: their order, the end of a network, the helper thread."""

import threading

import numpy as np
import pytest
from mpi4py import MPI

from mpidec.comm.rma.messenger import _HEADER, Kind, Message, WindowMessenger
from mpidec.comm.runtime.waiting import ProgressEngine, wait_until

pytestmark = pytest.mark.library


class Synchronous:
    """A communicator that notes which messages return when they are received."""

    def __init__(self, comm):
        self._comm, self.dests = comm, []

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Issend(self, data, rank):
        self.dests.append(rank)
        return self._comm.Issend(data, rank)


def test_messages_that_nobody_waits_for_do_not_come_to_the_next_network(comm):
    """The next communicator may have the same number within MPI: each receiver has taken the last message before the end."""
    watched, others, left = (
        Synchronous(comm.Dup()),
        [rank for rank in range(comm.size) if rank != comm.rank],
        [],
    )
    post = WindowMessenger(watched, ProgressEngine())
    for rank in others:
        post.send(rank, Message(0, Kind.OTHER, 0, 0))

    def meet():
        left.append((list(watched.dests), len(post._sending)))
        wait_until(comm.Ibarrier().Test, "all ranks")
        left.append(watched.Iprobe())

    post.close(meet)
    assert left[2:] == [(others, 0), False]


def test_a_messenger_that_is_closed_is_not_polled_while_another_one_goes_on(comm):
    """A network has one for windows and one for asynchronous methods, and closes one after the other."""
    engine = ProgressEngine()
    first, second = (WindowMessenger(comm.Dup(), engine) for _ in range(2))
    engine.poll()
    for post in (first, second):
        post.close(comm.Barrier)
        engine.poll()


class Sent:
    """A message that is complete after some tests."""

    def __init__(self, tests):
        self._tests = tests

    def Test(self):
        self._tests -= 1
        return self._tests < 0


def test_messages_are_handed_out_in_order_also_before_their_window_is_made():
    post, got = WindowMessenger(MPI.COMM_SELF.Dup(), ProgressEngine()), []
    for tests, number in ((1, 1), (0, 2), (0, 3)):
        data = np.frombuffer(_HEADER.pack(1, Kind.OTHER, 0, 0, 0, 0, number, 0.0), np.uint8)
        post._receiving.append(
            (Sent(tests), number // 3, data)
        )  # two of rank 0, the first one large, and one of rank 1
    post.poll()
    assert post.register(lambda rank, message: got.append((rank, message.number))) == 1
    post.poll()
    assert sorted(got[:2]) == [(0, 1), (1, 3)] and got[2:] == [(0, 2)] and not post._early
    post.close(lambda: None)


def test_an_error_in_the_helper_is_told():
    """Its thread ends, and the next call of a window says so, instead of waiting for it."""
    post = WindowMessenger(MPI.COMM_SELF.Dup(), ProgressEngine())
    reports, before = [], threading.excepthook
    threading.excepthook = reports.append

    def poll():
        post.handling.begin()
        post.taking.begin()
        raise RuntimeError("a slot is locked")

    try:
        post.helper.add(poll)
        post.helper._thread.join()
    finally:
        threading.excepthook = before
    assert post.broken and len(reports) == 1
    assert not post.handling.begin() and not post.taking.begin(wait=True)
    post.helper.remove(poll)
    post.comm.Free()
