"""Waiting with an end: who waits for whom since when, and then the job is ended."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from mpi4py import MPI


def timeout() -> float:
    """Seconds that a rank waits for another one: `MPIDEC_TIMEOUT`, 60 by default, 0 for no end."""
    return float(os.environ.get("MPIDEC_TIMEOUT") or 60) or 1e9


class Exchange:
    """Messages under way, and what MPI reads until they have arrived."""

    def __init__(self, comm: MPI.Intracomm, requests: list[MPI.Request], where: str, sent: Any = None):
        self._comm, self._requests, self._where, self._sent = comm, requests, where, sent
        self._since = time.monotonic()

    def test(self) -> bool:
        """Whether all have arrived; gives MPI the chance to make progress."""
        return MPI.Request.Testall(self._requests)

    def wait(self) -> None:
        """Wait until all have arrived, or end the job when the time is over."""
        end = self._since + timeout()
        while not self.test():
            os.sched_yield()
            if time.monotonic() > end:
                expire(f"messages of its neighbours in {self._where}")


def expire(what: str) -> NoReturn:
    """Say what this rank has waited for, and end the job."""
    sys.stderr.write(f"[rank {MPI.COMM_WORLD.rank}] mpidec: waited {timeout():g} s for {what}, and ends the job "
                     "(MPIDEC_TIMEOUT=SECONDS allows more, 0 any time)\n")
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
    raise SystemExit(1)
