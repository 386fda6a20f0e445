"""Sharing of work: groups of ranks that ask for the next number when they are free."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..comm.runtime.mpi import MPI

ASK, ANSWER = 1, 2
PAUSE, LONGEST_PAUSE = 0.0005, 0.02


class Groups:
    """Division of a job into groups of `size` ranks, and the numbers 0, 1, ..., count - 1, each handed out once.

    Rank 0 answers whenever it calls `serve`, which it does at every record of its own runs, and until all groups have finished.
    Ranks that wait sleep, and leave their core to the others.  A context manager, collective.

    Parameters
    ----------
    comm : communicator
    size : int
        Ranks of a group; ranks that are left over stay idle.
    heard : callable
        Called on rank 0 with what each group reports of a finished number.
    """

    def __init__(self, comm: Any, size: int, heard: Callable[[Any], None]):
        self.count = comm.size // size
        self._heard, self._size = heard, size
        self._numbers: Sequence[int] = ()
        self._waiting = self.count - 1  # groups that have not been told to end
        self._interrupted = False
        self._comm = comm.Dup()
        group = comm.rank // size
        self.own = comm.Split(group if group < self.count else MPI.UNDEFINED, comm.rank)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:  # collective, therefore not after an error on this rank only
            if self.own != MPI.COMM_NULL:
                self.own.Free()
            self._comm.Free()

    def each(
        self, numbers: Sequence[int], act: Callable[[int], Any], ended: Callable[[Any], bool]
    ) -> None:
        """Call `act(number)` on the ranks of one group for each of `numbers`; collective over the whole job.

        A report for which `ended` is true, and Ctrl-C while a rank waits, end the sharing: no more numbers are handed out.
        """
        self._numbers = list(numbers)
        report = None
        while self.own != MPI.COMM_NULL:
            end = self._interrupted or (report is not None and ended(report))
            number = self._next(report, end) if self.own.rank == 0 else None
            number = self._told(number)
            if number is None:
                break
            report = act(number)
        self._wait(lambda: not (self.serve() or self._waiting) or self._comm.rank > 0)
        self._wait(self._comm.Ibarrier().Test)

    def serve(self) -> bool:
        """Answer the groups that ask; on rank 0, no effect elsewhere; return whether one did."""
        served = False
        state = MPI.Status()
        while self._comm.rank == 0 and self._comm.Iprobe(MPI.ANY_SOURCE, ASK, state):
            report, end = self._comm.recv(source=state.source, tag=ASK)
            number = self._taken(report, end)
            self._waiting -= number is None
            self._comm.send(number, dest=state.source, tag=ANSWER)
            served = True
        return served

    def _next(self, report: Any, end: bool) -> int | None:
        if self._comm.rank == 0:
            number = self._taken(report, end)
            self.serve()
            return number
        self._comm.send((report, end), dest=0, tag=ASK)
        self._wait(lambda: self._comm.Iprobe(0, ANSWER))
        answer: int | None = self._comm.recv(source=0, tag=ANSWER)
        return answer

    def _taken(self, report: Any, end: bool) -> int | None:
        if report is not None:
            self._heard(report)
        if end:
            self._numbers = ()
        number, self._numbers = (
            (self._numbers[0], self._numbers[1:]) if self._numbers else (None, ())
        )
        return number

    def _told(self, number: int | None) -> int | None:
        if self.own.size > 1:
            self._wait(self.own.Ibarrier().Test)
            number = self.own.bcast(number)
        return number

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Sleep until `ready()`; the first Ctrl-C is noted, and the second one raises."""
        pause = PAUSE
        while True:
            try:
                if ready():
                    return
                time.sleep(pause)
            except KeyboardInterrupt:
                if self._interrupted:
                    raise
                self._interrupted = True
            pause = min(1.2 * pause, LONGEST_PAUSE)
