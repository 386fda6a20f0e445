"""Window messages between ranks without shared memory, and the thread that handles them while a
rank computes.

Messages are progressed in every window call and every wait; only requests with a reply block.
"""

from __future__ import annotations

import atexit
import contextlib
import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ...exceptions import RanksLost
from ..runtime import MPI, ProgressEngine, abandon, died, wait_until, without_the_dead

_HEADER = struct.Struct("<7qd")
# Messages are counted in units of 64 bytes: MPI counts to 2**31.
_UNIT = _HEADER.size
_FILLING = np.zeros(_UNIT, np.uint8)
# Seconds between two looks of the helper.
_INTERVAL = 5e-4


class Kind(IntEnum):
    """Kinds of messages."""

    ROW = 0  # from an outbox, for a slot
    RECEIVED = 1  # that row is in its slot
    GET = 2  # asks for a value
    VALUE = 3
    LOCK = 4  # asks for a mutex
    GRANTED = 5
    CANCEL = 6
    UNLOCK = 7
    TAKE = 8  # asks for a claim
    TAKEN = 9
    FREE = 10
    OTHER = 11  # from here on: of what is built on slots


NO_ROW = np.empty(0, np.uint8)


class Message(NamedTuple):
    """A message: what kind, between which agents (or ranks), and a row (bytes, filled up to a
    unit) with its push-sum weight.
    """

    window: int
    kind: int
    source: int
    dest: int
    transfers: int = 0
    replaced: int = 0
    number: int = 0
    p: float = 0.0
    row: np.ndarray = NO_ROW


class Section:
    """Critical section of one thread at a time, which records whether an exception has ended it."""

    def __init__(self) -> None:
        self.lock, self._begun = threading.RLock(), False

    def begin(self, wait: bool = False) -> bool:
        """Begin; False if an exception has ended it before `end`, if this thread is in it, or,
        unless `wait`, if another one is.
        """
        if not self.lock.acquire(blocking=wait):
            return False
        if self._begun:
            self.lock.release()
            return False
        self._begun = True
        return True

    def end(self) -> None:
        """Release the lock taken by `begin`."""
        self._begun = False
        self.lock.release()

    def release(self) -> None:
        """Release the lock after an exception has ended the section in this thread."""
        with contextlib.suppress(RuntimeError):  # it was not in one
            self.lock.release()

    @property
    def broken(self) -> bool:
        """Whether an exception (Ctrl-C, an error in the helper) has ended it."""
        # Another thread is about to end it.
        if not self._begun or not self.lock.acquire(blocking=False):
            return False
        broken = self._begun
        self.lock.release()
        return broken


class WindowMessenger:
    """Messages of all windows of a network.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        For these messages only.
    engine : ProgressEngine

    Attributes
    ----------
    engine : ProgressEngine
    handling, taking : Section
        The thread that handles messages and sends rows, the main one or the helper's, is in the
        first; in the second, which never waits for another rank, the one that takes rows that
        others have written here.
    lock : threading.RLock
        That of `handling`.
    helper : Helper
        A thread that looks after messages while the rank computes, as long as it is given something
        to call.
    """

    def __init__(self, comm: MPI.Intracomm, engine: ProgressEngine):
        self.comm, self.handling, self.taking = comm, Section(), Section()
        self.lock = self.handling.lock
        self.engine = engine
        self._unit = MPI.BYTE.Create_contiguous(_UNIT).Commit()
        self._receivers: dict[int, Callable[[int, Message], None]] = {}
        self._sending: list[tuple[MPI.Request, np.ndarray]] = []
        self._receiving: list[tuple[MPI.Request, int, np.ndarray]] = []
        self._early: dict[int, list[tuple[int, Message]]] = {}
        self._peers: set[int] = set()  # ranks that got a message
        self._count, self._lost = 0, False
        self.helper = Helper(self._fail)
        engine.add(self.poll)

    def register(self, receive: Callable[[int, Message], None]) -> int:
        """Hand messages to `receive(rank, message)`; the number of the window, the same on all
        ranks.
        """
        with self.lock:
            self._count += 1
            self._receivers[self._count] = receive
            return self._count

    def forget(self, window: int) -> None:
        """Hand on no more messages of a window."""
        with self.lock:
            self._receivers.pop(window, None)

    def send(self, rank: int, message: Message, synchronous: bool = False) -> None:
        """Send a message, unless its window is closed; its row may be changed at once.

        A synchronous one has been sent when it is being received.
        """
        if message.window and message.window not in self._receivers:
            return
        parts = [np.frombuffer(_HEADER.pack(*message[:-1]), np.uint8)]
        if len(message.row):
            row = message.row.view(np.uint8)
            parts += [row, _FILLING[: -len(row) % _UNIT]]
        data = np.concatenate(parts)
        send = self.comm.Issend if synchronous else self.comm.Isend
        with self.lock:
            self._peers.add(rank)
            self._sending.append((send([data, len(data) // _UNIT, self._unit], rank), data))

    @property
    def broken(self) -> bool:
        """Whether an exception has ended a handling of messages or rows: some may be lost."""
        return self.handling.broken or self.taking.broken

    def _fail(self) -> None:
        self.handling.release()
        self.taking.release()

    def poll(self) -> None:
        """Hand out what has arrived.

        Raises
        ------
        RanksLost
            No messages are exchanged any more.
        """
        if self._lost:
            raise without_the_dead("messages of windows")
        if not self.handling.begin():
            return
        try:
            self._hand_out_all()
        except Exception as error:
            if not died(error):
                raise
            self._lost = True
            self.handling.end()
            raise without_the_dead("messages of windows") from error
        self.handling.end()

    def _hand_out_all(self) -> None:
        if self._sending:
            self._sending = [item for item in self._sending if not item[0].Test()]
        status = MPI.Status()
        while (found := self.comm.Improbe(status=status)) is not None:
            units = status.Get_count(self._unit)
            data = np.empty(units * _UNIT, np.uint8)
            self._receiving.append((found.Irecv([data, units, self._unit]), status.source, data))
        for window in self._early.keys() & self._receivers.keys():
            for rank, message in self._early.pop(window):
                self._receivers[window](rank, message)
        blocked, left = set(), []
        # Those of one rank in the order in which they were sent.
        for item in self._receiving:
            request, rank, data = item
            if rank in blocked or not request.Test():
                blocked.add(rank)
                left.append(item)
            else:
                self._hand_out(rank, data)
        self._receiving = left

    def _hand_out(self, rank: int, data: np.ndarray) -> None:
        message = Message._make(
            (*_HEADER.unpack(data[: _HEADER.size].tobytes()), data[_HEADER.size :])
        )
        receive = self._receivers.get(message.window)
        if receive is not None:
            receive(rank, message)
        elif message.window > self._count:
            # A rank that has left the construction of the window earlier than this one.
            self._early.setdefault(message.window, []).append((rank, message))

    @property
    def idle(self) -> bool:
        """Whether all messages of this rank have been sent; makes progress."""
        self.poll()
        return not self._sending and not self._receiving

    def close(self, meet: Callable[[], object]) -> None:
        """Receive all messages in transit, so that none of them can reach another network, and free
        the communicator.

        Parameters
        ----------
        meet : callable
            Returns when all ranks have called it.

        Notes
        -----
        Collective.  Some answers are not waited for, such as that to a `get` whose handle is
        dropped: they may be on their way when all calls have ended, and a later communicator may
        have the same number within MPI.
        """
        self._receivers.clear()  # from here on this rank answers nothing
        meet()  # and now no rank does
        # Taken after all that was sent there before.
        for rank in self._peers:
            self.send(rank, Message(0, Kind.OTHER, 0, 0), synchronous=True)
        wait_until(lambda: self.idle, "the last messages of windows")
        meet()
        self.engine.remove(self.poll)
        self._unit.Free()
        self.comm.Free()

    def abandon(self) -> None:
        """Keep the communicator unfreed, since the ranks may be in different calls."""
        self._receivers.clear()
        abandon((self.comm, self._sending, self._receiving))


class Helper:
    """Thread that calls some functions every half a millisecond, while there are any.

    Parameters
    ----------
    failed : callable
        Called in that thread after an exception of one of them, which ends it.

    Notes
    -----
    Needs `MPI_THREAD_MULTIPLE`.  While the main thread is in a loop of Python code, it gets its
    turn every 5 ms (`sys.setswitchinterval`).
    """

    def __init__(self, failed: Callable[[], None]):
        self._failed, self._lock, self._end = failed, threading.Lock(), threading.Event()
        self._polls: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None

    def add(self, poll: Callable[[], None]) -> None:
        """Call `poll`, which returns at once."""
        with self._lock:
            self._polls.append(poll)
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="mpidec-window", daemon=True)
            self._thread.start()
            atexit.register(self.stop)  # before MPI is finalized

    def remove(self, poll: Callable[[], None]) -> None:
        """Call `poll` no longer: it has returned."""
        with self._lock:
            self._polls.remove(poll)
        if not self._polls:
            self.stop()

    def _run(self) -> None:
        while not self._end.wait(_INTERVAL):
            with self._lock:
                for poll in self._polls:
                    try:
                        poll()
                    except RanksLost:
                        self._failed()
                        return  # the main thread finds out, too
                    except BaseException:
                        self._failed()
                        raise

    def stop(self) -> None:
        """Return when the thread has ended; safe to repeat, and in a forked child."""
        self._end.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None
        atexit.unregister(self.stop)
