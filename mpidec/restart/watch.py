"""Whether a job whose launcher has not ended still goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set

from .jobs import Restartable

# Seconds without a change of the files after which the hosts are asked whether they answer, and
# between two such questions: ssh is refused now and then, but not for so long.
ASKED = 30.0


class Watch:
    """A start of a job, from now on.

    Parameters
    ----------
    job : Restartable
    silent : float
        Seconds without a change of its files after which it counts as hanging.
    lost : callable ()
        Returns the hosts of the job that do not answer.  A launcher need not notice that a host has
        no power, and ranks of a sweep wait for each other without a limit.
    """

    def __init__(
        self, job: Restartable, silent: float, lost: Callable[[], Sequence[str]] = lambda: ()
    ):
        self._job, self._silent, self._lost = job, silent, lost
        self._missed: Sequence[str] = ()  # when asked last
        self._files, self._written = job.touched(), False
        self._seen = set[bytes]()
        self._changed = self._whole = self._asked = time.monotonic()

    def hangs(self, ranks: Set[bytes], started: int = 0) -> str:
        """Return why the job does not go on, such as "it has written nothing"; "" if it does.

        Parameters
        ----------
        ranks : set of bytes
            Those that live on this machine.
        started : int
            How many the launcher has started on it; 0 if that is unknown: then those that have been
            seen once.
        """
        now = time.monotonic()
        if (files := self._job.touched()) != self._files:
            self._files, self._written, self._changed = files, True, now
            self._missed = ()
        self._seen |= ranks
        if (self._seen <= ranks and started <= len(ranks)) or not ranks:
            self._whole = now
        if now - self._changed > self._silent:
            return f"it has written nothing for {self._silent:g} s"
        if twice := self._lost_hosts(now):
            return f"no answer from {', '.join(twice)}, and it has written nothing meanwhile"
        patience = self._job.patience
        if now - max(self._whole, self._changed) < patience:
            return ""
        if self._written and self._job.ending(0) is None:
            return ""
        return f"a rank has ended, for which the others have waited for {patience:g} s"

    def _lost_hosts(self, now: float) -> list[str]:
        """Return the hosts that have not answered twice, since the files changed."""
        if now - max(self._asked, self._changed) < ASKED:
            return []
        before, self._missed = self._missed, self._lost()
        self._asked = time.monotonic()
        return [host for host in self._missed if host in before]
