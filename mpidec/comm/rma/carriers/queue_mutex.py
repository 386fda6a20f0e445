"""Mutexes by MPI's one-sided calls (MCS queue locks): waiting ranks form a queue, and each polls
its own memory only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from ...runtime import progress, timeout
from ..messenger import Message
from .mpi_memory import WORD, MPIMemory
from .mutex import HeldMutexes
from .one_sided import FIRST, HOLDER, TAIL

# Seconds of waiting after which a rank sleeps between two looks.
_BRIEFLY = 0.02
# States of a rank in the queue of a mutex.
FREE, WAITING, GRANTED, LEFT, PASSED = range(5)


class QueueMutex(HeldMutexes):
    """Mutual exclusion on all ranks, each of which has one mutex; handed on in the order in which
    ranks have asked for it.

    The end of the queue of a mutex is a word of its rank.  Each rank has two words for each mutex:
    who follows it in the queue, and its state.  A rank that waits no longer stays in the queue as
    `LEFT`, is passed over, or waits at its old place again.

    Parameters
    ----------
    memory : MPIMemory
    me : int
    lock : context manager

    References
    ----------
    Mellor-Crummey, Scott: Algorithms for scalable synchronization on shared-memory multiprocessors,
    ACM TOCS 9, 1991, Algorithm 5.
    """

    def __init__(self, memory: MPIMemory, me: int, lock: AbstractContextManager[object]):
        super().__init__(lock)
        self._memory, self._me = memory, me
        self._words: np.ndarray = memory.block[: len(memory.block) // WORD * WORD].view(np.int64)

    def _take(self, rank: int, patience: float | None, poll: Callable[[], None]) -> None:
        memory, me, state = self._memory, self._me, _state(rank)
        limit = timeout() if patience is None else patience
        began = time.monotonic()
        # A place in the queue that an earlier wait has left, and nobody has passed over yet, is
        # taken up again; otherwise append this rank: exchange the tail, then link from the one
        # before.
        if memory.compare(me, state, LEFT, WAITING) != LEFT:
            _spin(lambda: memory.fetch(me, state) == FREE, rank)
            memory.exchange(me, _next(rank), 0)
            memory.exchange(me, state, WAITING)
            before = memory.exchange(rank, WORD * TAIL, me + 1)
            if before:
                memory.exchange(before - 1, _next(rank), me + 1)
            else:
                memory.exchange(me, state, GRANTED)
        try:
            while True:
                memory.sync()
                if self._words[state // WORD] == GRANTED:
                    break
                poll()
                waited = time.monotonic() - began
                if waited > limit:
                    holder = memory.fetch(rank, WORD * HOLDER) - 1
                    raise TimeoutError(
                        f"the mutex of rank {rank}, held by rank {holder}, could not be taken in "
                        f"{limit:g} s"
                    )
                progress()
                os.sched_yield() if waited < _BRIEFLY else time.sleep(1e-3)
        except BaseException:
            if memory.compare(me, state, WAITING, LEFT) == GRANTED:
                self._release(rank)
            raise
        memory.exchange(rank, WORD * HOLDER, me + 1)

    def _release(self, rank: int) -> None:
        memory, me = self._memory, self._me
        while True:
            follower = memory.fetch(me, _next(rank))
            if not follower:
                # No follower is linked.  If this rank is still the tail, the queue becomes empty;
                # else another one has exchanged the tail and is about to link itself: wait for
                # that.
                if memory.compare(rank, WORD * TAIL, me + 1, 0) == me + 1:
                    memory.exchange(me, _state(rank), FREE)
                    return
                at = me
                _spin(lambda at=at: memory.fetch(at, _next(rank)) != 0, rank)  # type: ignore[misc]
                continue
            memory.exchange(me, _state(rank), FREE)
            me = follower - 1
            # Grant it to the follower; one that has left its place is passed over, and its own
            # follower is next.
            while (found := memory.compare(me, _state(rank), WAITING, GRANTED)) != WAITING:
                if found == LEFT and memory.compare(me, _state(rank), LEFT, PASSED) == LEFT:
                    break  # pass it over
            if found == WAITING:
                return

    def receive(self, rank: int, message: Message) -> None:
        """Do nothing: this mutex sends no messages."""
        raise RuntimeError(f"an unexpected message of rank {rank}: {message}")

    def serve(self) -> None:
        """Do nothing: no rank sends requests for a mutex."""

    def close(self) -> None:
        """Forget the memory."""
        self._open = False
        del self._words


def _next(rank: int) -> int:
    """Return the offset of the word that says who follows in the queue of a rank's mutex."""
    return WORD * (FIRST + 2 * rank)


def _state(rank: int) -> int:
    return WORD * (FIRST + 2 * rank + 1)


def _spin(test: Callable[[], bool], rank: int) -> None:
    """Wait for the next step of another rank in the queue of a mutex."""
    until = time.monotonic() + timeout()
    while not test():
        if time.monotonic() > until:
            raise TimeoutError(
                f"the mutex of rank {rank}: a rank in its queue has stopped for {timeout():g} s"
            )
        progress()
        os.sched_yield()
