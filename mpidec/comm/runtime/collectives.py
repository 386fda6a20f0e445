"""Small collective operations that make progress while they wait, and end the job if a rank
never arrives.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from ...exceptions import mark, on_all_ranks
from .communicator import CommRequest, Communicator, start_minimum
from .waiting import OWN_ERRORS, abandon, wait_until

T = TypeVar("T")
Ask = Callable[[], None]
Waiting = Callable[[str, str, Ask | None], tuple[Callable[[], str], Ask]]


class Collectives:
    """Decisions of all ranks of a communicator, by nonblocking collectives.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or GroupComm

    Attributes
    ----------
    interrupted : bool
        Whether an exception has ended a wait or a call: other ranks may be one collective ahead of
        or behind this one.
    ask : callable, optional
        Called from time to time in waits that have no `ask` of their own; raises what other ranks
        report.
    waiting : callable, optional
        Makes of a call, of what its ranks do and of its `ask` what a wait says and asks.
    on_interrupt : callable, optional
        Called with the name of an exception from outside (Ctrl-C, a signal handler) that has ended
        a call.

    Notes
    -----
    `with collectives:` is around each call of several collectives: an exception from outside may
    also come between them.
    """

    def __init__(self, comm: Communicator):
        self._comm, self.interrupted = comm, False
        self.ask: Callable[[], None] | None = None
        self.waiting: Waiting | None = None
        self.on_interrupt: Callable[[str], None] | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None or isinstance(error, OWN_ERRORS) or on_all_ranks(error):
            return
        self.interrupted = True
        if self.on_interrupt is not None:
            self.on_interrupt(type(error).__name__)

    def wait(
        self, begin: Callable[[], CommRequest], what: str, ask: Callable[[], None] | None = None
    ) -> None:
        """Complete the request of all ranks that `begin()` makes."""
        try:
            self.complete(begin().Test, what, ask)
        except BaseException:
            # And with it the arrays that MPI may still read or write.
            abandon(begin)
            raise

    def complete(
        self, test: Callable[[], bool], what: str, ask: Callable[[], None] | None = None
    ) -> None:
        """Return when `test()` is true, which all ranks make so."""
        words: str | Callable[[], str] = f"all ranks to come to {what}"
        asking = ask or self.ask
        if self.waiting is not None:
            words, asking = self.waiting(what, f"to come to {what}", asking)
        try:
            wait_until(test, words, asking)
        except BaseException:
            self.interrupted = True
            raise

    def minimum(
        self, mine: np.ndarray, what: str, ask: Callable[[], None] | None = None
    ) -> np.ndarray:
        """Return the least of the arrays of all ranks, entry by entry."""
        if self._comm.size == 1:
            return mine
        least = np.empty_like(mine)
        self.wait(partial(start_minimum, self._comm, mine, least), what, ask)
        return least

    def gather_all(self, mine: np.ndarray, what: str) -> np.ndarray:
        """Return the arrays of all ranks, shape `(size, ...)`."""
        all_ = np.empty((self._comm.size, *mine.shape), mine.dtype)
        mine = np.ascontiguousarray(mine)
        self.wait(lambda: self._comm.Iallgather(mine, all_), what)
        return all_

    def distinct(self, mine: np.ndarray, what: str) -> np.ndarray:
        """Return the whole numbers of all ranks, shape `(size, ...)`; `(1, ...)`, without a gather,
        if they are the same on all.
        """
        least = self.minimum(np.stack([mine, ~mine]), what)
        same = np.array_equal(least[0], ~least[1])
        return mine[None] if same else self.gather_all(mine, what)

    def broadcast(self, thing: T, root: int, what: str) -> T:
        """Return an object of rank `root`, on all ranks."""
        if self._comm.size == 1:
            return thing
        data = (
            np.frombuffer(pickle.dumps(thing), np.uint8)
            if self._comm.rank == root
            else np.empty(0, np.uint8)
        )
        length = np.array([len(data)])
        self.wait(lambda: self._comm.Ibcast(length, root), what)
        if self._comm.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self.wait(lambda: self._comm.Ibcast(data, root), what)
        received: T = pickle.loads(data.tobytes())
        return received

    def agree(
        self, error: Exception | None, what: str, ask: Callable[[], None] | None = None
    ) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank.

        Notes
        -----
        One small reduction when no rank has an error.
        """
        size, rank = self._comm.size, self._comm.rank
        first = int(self.minimum(np.array([size if error is None else rank]), what, ask)[0])
        self.raise_from(first, error, what)

    def raise_from(self, first: int, error: Exception | None, what: str) -> None:
        """Raise the error of rank `first` on every rank, if there is such a rank."""
        size, rank = self._comm.size, self._comm.rank
        if size == 1 and error is not None:
            raise error
        if first < size:
            mine = portable(error or RuntimeError("unreachable"))  # that of rank `first` is sent
            theirs = self.broadcast(mine, first, what)
            if rank == first and error is not None:
                mark(error, on_all_ranks=True)
                raise error
            mark(theirs, on_all_ranks=True, from_another_rank=True)
            raise theirs


def checksum(data: bytes) -> int:
    """Return a hash of 63 bits."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def portable(error: Exception) -> Exception:
    """Return a copy of an exception that can be sent to another rank; a `RuntimeError` if its own
    type cannot.
    """
    try:
        copied: Exception = pickle.loads(pickle.dumps(error))
        return copied
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
