"""Waiting with an end: who waits for whom since when, and then the job is ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

if TYPE_CHECKING:
    from ..transport.messages import Flight


_TURNS = 100                                        # looks before a clock is read
_ABANDONED: list[object] = []
_FIRST, _RARELY = 0.1, 10.0                         # seconds after which others are asked, and at most between two times


def _crowded() -> bool:
    """Whether there are more ranks than cores on this host, as far as the launcher tells."""
    for variable in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable]) > len(os.sched_getaffinity(0))
    return True


CROWDED = _crowded()


def timeout() -> float:
    """Seconds that a rank waits for another one: `MPIDEC_TIMEOUT`, 60 by default, `inf` for ever."""
    text = os.environ.get("MPIDEC_TIMEOUT") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"MPIDEC_TIMEOUT is {text!r}, expected a number of seconds > 0 (inf: no limit)")
    return seconds


class Patience:
    """A wait that is taken in short turns: asks now and then, ever more rarely, and has an end.

    Parameters
    ----------
    what : str or callable
        What this rank waits for, or what returns the text.
    ask : callable, optional
        Asks the others where they are, and raises what they have to say.
    """

    def __init__(self, what: str | Callable[[], str], ask: Callable[[], None] | None = None):
        self._what, self._ask, self._limit = what, ask, timeout()
        self._began = time.monotonic()
        self._next = _FIRST

    def look(self) -> None:
        """To be called in every turn."""
        waited = time.monotonic() - self._began
        if waited < self._next:
            return
        if waited > self._limit:
            expire(self._what if isinstance(self._what, str) else self._what(), waited)
        self._next = min(1.5 * waited + _FIRST, waited + _RARELY, self._limit)
        if self._ask is not None:
            self._ask()


def wait_until(test: Callable[[], bool], what: str | Callable[[], str], ask: Callable[[], None] | None = None) -> None:
    """Return when `test()` is true; between two looks other processes may run."""
    for _ in range(_TURNS):
        if test():
            return
        os.sched_yield()
    patience = Patience(what, ask)
    try:
        while not test():
            os.sched_yield()
            patience.look()
    except BaseException:
        abandon(test)
        raise


def abandon(anything: object) -> None:
    """Keep what MPI may still read or write, although nobody will wait for it."""
    _ABANDONED.append(anything)


class Exchange:
    """Messages under way, and who waits for them."""

    def __init__(self, flight: Flight, where: str, sent: Any = None, ask: Callable[[], None] | None = None,
                 who: Sequence[int] | None = None):
        self._flight, self._where, self.sent, self._ask, self._who = flight, where, sent, ask, who

    def test(self) -> bool:
        """Whether all have arrived; gives MPI the chance to make progress."""
        return self._flight.test()

    def wait(self) -> None:
        """Wait until all have arrived, or end the job when the time is over."""
        if not self._flight.poll(_TURNS):
            who = "its neighbours" if self._who is None else ranks(self._who)
            wait_until(self._flight.test, f"messages of {who} in {self._where}", self._ask)


def ranks(some: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank{'s' * (len(some) != 1)} {', '.join(map(str, some))}"


def expire(what: str, waited: float) -> NoReturn:
    """Say what this rank has waited for, and end the job."""
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
    sys.stderr.write(f"[rank {MPI.COMM_WORLD.rank}] mpidec: waited {timeout():g} s, since {since}, for {what}, and ends the job "
                     "(MPIDEC_TIMEOUT=SECONDS allows more)\n")
    sys.stderr.flush()
    time.sleep(0.5)                                 # let the others say what they wait for
    MPI.COMM_WORLD.Abort(1)
    raise SystemExit(1)
