"""Sharing of work: groups of ranks that ask for the next number when they are free."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ..comm.runtime import MPI, ranks, timeout

R = TypeVar("R")  # what a group reports of a number
ASK, ANSWER = 1, 2
PAUSE, LONGEST_PAUSE = 0.0005, 0.02


class WorkQueue(Generic[R]):
    """Division of a job into groups of `size` ranks, and the numbers 0, 1, ..., count - 1, each
    handed out once.

    Rank 0 answers whenever it calls `poll`, which it does at every record of its own runs, and
    until all groups have finished. Ranks that wait sleep, and leave their core to the others.  A
    number may take any time, and a group that works gives no sign, so rank 0 cannot tell a long run
    from a lost host: it waits without a limit, and says for whom.  A context manager, collective.

    Parameters
    ----------
    comm : communicator
    size : int
        Ranks of a group; ranks that are left over stay idle.
    on_report : callable
        Called on rank 0 with what each group reports of a finished number.
    """

    def __init__(self, comm: MPI.Intracomm, size: int, on_report: Callable[[R], None]):
        self.count = comm.size // size
        self._on_report, self._size = on_report, size
        self._numbers: Sequence[int] = ()
        # When the groups that have not been sent the end were heard of, by their first ranks.
        self._heard = dict.fromkeys(range(size, self.count * size, size), time.monotonic())
        self._interrupted = False
        self._comm = comm.Dup()
        group = comm.rank // size
        color = group if group < self.count else MPI.UNDEFINED
        self.own = MPI.Intracomm(comm.Split(color, comm.rank))

    def __enter__(self) -> WorkQueue[R]:
        return self

    def __exit__(self, *error: object) -> None:
        # Collective, therefore not after an error on this rank only.
        if error[0] is None:
            if self.own != MPI.COMM_NULL:
                self.own.Free()
            self._comm.Free()

    def map(
        self, numbers: Sequence[int], act: Callable[[int], R], ended: Callable[[R], bool]
    ) -> None:
        """Call `act(number)` on the ranks of one group for each of `numbers`; collective over the
        whole job.

        A report for which `ended` is true, and Ctrl-C while a rank waits, end the sharing: no more
        numbers are handed out.
        """
        self._numbers = list(numbers)
        report: R | None = None
        # The first rank of each group asks rank 0 for the next number; rank 0, which works on a
        # group of its own, answers between the records of its runs (`poll`).
        while self.own != MPI.COMM_NULL:
            end = self._interrupted or (report is not None and ended(report))
            number = self._next(report, end) if self.own.rank == 0 else None
            number = self._shared(number)
            if number is None:
                break
            report = act(number)
        # Rank 0 answers until every group has been told that nothing is left.
        self._wait(lambda: self._comm.rank > 0 or not (self.poll() or self._late()))
        self._wait(self._comm.Ibarrier().Test)

    def poll(self) -> bool:
        """Answer the groups that ask; on rank 0, no effect elsewhere; return whether one did."""
        served = False
        state = MPI.Status()
        while self._comm.rank == 0 and self._comm.Iprobe(MPI.ANY_SOURCE, ASK, state):
            report, end = self._comm.recv(source=state.source, tag=ASK)
            number = self._taken(report, end)
            self._heard[state.source] = time.monotonic()
            if number is None:
                del self._heard[state.source]
            self._comm.send(number, dest=state.source, tag=ANSWER)
            served = True
        return served

    def _late(self) -> bool:
        """Return whether rank 0 waits for groups; name once those it has not heard of for long."""
        now = time.monotonic()
        if late := [rank for rank, heard in self._heard.items() if now - heard > timeout()]:
            longest = now - min(self._heard[rank] for rank in late)
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - longest))
            sys.stderr.write(
                f"[rank 0] mpidec: waits for {ranks(late)}, not heard of since {since}: either they "
                "are still at work, or their hosts are lost; then end the job, and repeat the same "
                "command, which continues (mpidec restart does both)\n"
            )
            self._heard |= dict.fromkeys(late, math.inf)
        return bool(self._heard)

    def _next(self, report: R | None, end: bool) -> int | None:
        if self._comm.rank == 0:
            number = self._taken(report, end)
            self.poll()
            return number
        self._comm.send((report, end), dest=0, tag=ASK)
        self._wait(lambda: self._comm.Iprobe(0, ANSWER))
        answer: int | None = self._comm.recv(source=0, tag=ANSWER)
        return answer

    def _taken(self, report: R | None, end: bool) -> int | None:
        if report is not None:
            self._on_report(report)
        if end:
            self._numbers = ()
        number, self._numbers = (
            (self._numbers[0], self._numbers[1:]) if self._numbers else (None, ())
        )
        return number

    def _shared(self, number: int | None) -> int | None:
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
