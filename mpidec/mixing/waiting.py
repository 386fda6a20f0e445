"""Waiting with an end: who waits for whom since when, and then the job is ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, NoReturn

from mpi4py import MPI


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
    """The end of a wait that is taken in short turns."""

    def __init__(self) -> None:
        self._began, self._limit = time.monotonic(), timeout()

    def look(self, what: str) -> None:
        """End the job if this rank has waited for `what` too long."""
        if time.monotonic() - self._began > self._limit:
            expire(what)


class Exchange:
    """Messages under way, and what MPI reads until they have arrived."""

    def __init__(self, requests: list[MPI.Request], where: str, sent: Any = None):
        self._requests, self._where, self._sent = requests, where, sent

    def test(self) -> bool:
        """Whether all have arrived; gives MPI the chance to make progress."""
        return MPI.Request.Testall(self._requests)

    def wait(self) -> None:
        """Wait until all have arrived, or end the job when the time is over."""
        with _WATCHDOG(f"messages of its neighbours in {self._where}"):
            MPI.Request.Waitall(self._requests)


class Watchdog:
    """Ends the job when one wait inside MPI, where no clock is read, lasts too long; a thread that looks once in a while."""

    def __init__(self) -> None:
        self._waiting: tuple[float, str] | None = None
        self._what = ""
        self._thread: threading.Thread | None = None

    def __call__(self, what: str) -> Watchdog:
        self._what = what
        return self

    def __enter__(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="mpidec-watchdog", daemon=True)
            self._thread.start()
        self._waiting = time.monotonic(), self._what

    def __exit__(self, *_: object) -> None:
        self._waiting = None

    def _look(self) -> None:
        while True:
            limit = timeout()
            time.sleep(min(max(limit / 10, 0.05), 5.0))
            waiting = self._waiting
            if waiting is not None and time.monotonic() - waiting[0] > limit:
                expire(waiting[1])


_WATCHDOG = Watchdog()


def expire(what: str) -> NoReturn:
    """Say what this rank has waited for, and end the job."""
    sys.stderr.write(f"[rank {MPI.COMM_WORLD.rank}] mpidec: waited {timeout():g} s for {what}, and ends the job "
                     "(MPIDEC_TIMEOUT=SECONDS allows more)\n")
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
    raise SystemExit(1)
