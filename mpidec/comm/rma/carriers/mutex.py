"""Mutexes: one on each rank, in its memory, or asked for by messages."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from ...runtime import progress, timeout
from ..messenger import Kind, Message
from ..records import native

# Seconds of waiting after which a rank sleeps between two tries.
_BRIEFLY = 0.02


class HeldMutexes:
    """The mutexes that this rank holds, of those of all ranks.

    Parameters
    ----------
    lock : context manager
        Re-entrant lock of those who handle messages.
    """

    def __init__(self, lock: AbstractContextManager[object]):
        self._lock, self._open = lock, True
        self._held: set[int] = set()

    @contextlib.contextmanager
    def held(
        self,
        ranks: Sequence[int],
        patience: float | None,
        poll: Callable[[], None],
        check: Callable[[], None],
    ) -> Iterator[None]:
        """Hold the mutexes of some ranks.

        Raises
        ------
        RuntimeError
            One of them is held already by this rank; what `check` raises.
        TimeoutError
            After `patience` seconds.
        """
        # The window may have been closed since the context was made.
        check()
        taken: list[int] = []
        for rank in ranks:
            if rank in self._held:
                raise RuntimeError(
                    f"the mutex of rank {rank} is held by this rank already: a mutex is not "
                    "re-entrant"
                )
        try:
            with self._lock:
                # In one order everywhere: no two ranks wait for each other.
                for rank in sorted(set(ranks)):
                    self._take(rank, patience, poll)
                    taken.append(rank)
                    self._held.add(rank)
            yield
        finally:
            with self._lock:
                for rank in reversed(taken) if self._open else ():  # else the window is closed
                    self._held.discard(rank)
                    self._release(rank)
                poll()

    def _take(self, rank: int, patience: float | None, poll: Callable[[], None]) -> None:
        raise NotImplementedError

    def _release(self, rank: int) -> None:
        raise NotImplementedError


class Mutex(HeldMutexes):
    """Mutual exclusion on all ranks, each of which has one mutex.

    Who releases a mutex hands it to the next rank that waits for it, in the order of the ranks.
    Ranks that share memory with its owner take it there; others ask the owner, who answers when it
    makes a call of this package.

    Parameters
    ----------
    memory : dict of int to array of uint8
        The mutexes of the ranks that this one shares memory with.
    me : int
    ask : callable (rank, kind, number) -> None
        Sends a message.
    lock : context manager
        Re-entrant lock of those who handle messages.
    """

    def __init__(
        self,
        memory: dict[int, np.ndarray],
        me: int,
        ask: Callable[[int, Kind, int], None],
        lock: AbstractContextManager[object],
    ):
        super().__init__(lock)
        self._memory, self._me, self._ask = memory, me, ask
        # Ranks that ask for this one's by messages, and the numbers of their requests; None: they
        # have withdrawn, and it may be on its way to them nevertheless.
        self._queue: dict[int, int | None] = {}
        # Own requests, and those of them that were granted.
        self._expected: set[tuple[int, int]] = set()
        self._granted: set[tuple[int, int]] = set()
        self._number = 0

    def close(self) -> None:
        """Forget the memory."""
        self._open = False
        self._memory.clear()

    def _take(self, rank: int, patience: float | None, poll: Callable[[], None]) -> None:
        if rank in self._memory and native.try_mutex(self._memory[rank], self._me) < 0:
            return
        # The fast path has failed: stand in the queue in shared memory, or ask the owner by a
        # message.
        limit = timeout() if patience is None else patience
        self._number += 1
        request, owner, began = (rank, self._number), -1, time.monotonic()
        if rank in self._memory:
            native.await_mutex(self._memory[rank], self._me)
        else:
            self._expected.add(request)
            self._ask(rank, Kind.LOCK, self._number)
        try:
            while True:
                poll()
                if rank in self._memory:
                    owner = native.try_mutex(self._memory[rank], self._me)
                if owner < 0 if rank in self._memory else request in self._granted:
                    break
                waited = time.monotonic() - began
                if waited > limit:
                    holder = (
                        f"held by rank {owner} for "
                        f"{native.held_mutex(self._memory[rank], owner):.3g} s"
                        if owner >= 0
                        else "which this rank shares no memory with"
                    )
                    raise TimeoutError(
                        f"the mutex of rank {rank}, {holder}, could not be taken in {limit:g} s"
                    )
                progress()
                if rank in self._memory:
                    native.doze_mutex(self._memory[rank], self._me)
                elif waited < _BRIEFLY:
                    os.sched_yield()
                else:
                    time.sleep(1e-3)
        # Also after Ctrl-C: a mutex that is granted to a rank that no longer waits would stay
        # locked.
        except BaseException:
            if not self._withdrawn(*request):
                self._release(rank)
            raise
        self._expected.discard(request)
        self._granted.discard(request)

    def _withdrawn(self, rank: int, number: int) -> bool:
        """Withdraw a request for a mutex; return False if it has been granted in the meantime."""
        if rank in self._memory:
            if native.leave_mutex(self._memory[rank], self._me):
                return True
            until = time.monotonic() + timeout()
            # Who hands it over has not written that yet.
            while native.try_mutex(self._memory[rank], self._me) >= 0:
                if time.monotonic() > until:  # and is stopped
                    return True
                os.sched_yield()
            return False
        self._expected.discard((rank, number))
        if (rank, number) in self._granted:
            self._granted.discard((rank, number))
            return False
        self._ask(rank, Kind.CANCEL, number)
        return True

    def _release(self, rank: int) -> None:
        if rank in self._memory:
            native.release_mutex(self._memory[rank], self._me)
            self.serve()
        else:
            self._ask(rank, Kind.UNLOCK, 0)

    def receive(self, rank: int, message: Message) -> None:
        """Handle a request or an answer of another rank."""
        mine = self._memory[self._me]
        if message.kind == Kind.LOCK:
            self._queue[rank] = message.number
            native.await_mutex(mine, rank)
        elif message.kind == Kind.GRANTED:
            self._granted |= {(rank, message.number)} & self._expected
        elif message.kind == Kind.UNLOCK:
            native.release_mutex(mine, rank)
        elif message.kind == Kind.CANCEL:
            if rank in self._queue:
                self._queue[rank] = None  # released when it comes
                native.leave_mutex(mine, rank)
            else:  # the answer is on its way
                native.release_mutex(mine, rank)
        self.serve()

    def serve(self) -> None:
        """Grant the mutex to the rank whose turn it is."""
        for rank, number in list(self._queue.items()):
            if native.try_mutex(self._memory[self._me], rank) < 0:
                del self._queue[rank]
                if number is None:
                    native.release_mutex(self._memory[self._me], rank)
                else:
                    self._ask(rank, Kind.GRANTED, number)
