"""Whether a job whose launcher has not ended still goes on."""

from __future__ import annotations

import time
from collections.abc import Set

from .jobs import Restartable


class Watch:
    """A start of a job, from now on.

    Parameters
    ----------
    job : Restartable
    silent : float
        Seconds without a change of its files after which it counts as hanging.
    """

    def __init__(self, job: Restartable, silent: float):
        self._job, self._silent = job, silent
        self._files, self._written = job.touched(), False
        self._seen = set[bytes]()
        self._changed = self._whole = time.monotonic()

    def hangs(self, ranks: Set[bytes]) -> str:
        """Return why the job does not go on, such as "it has written nothing"; "" if it does.

        Parameters
        ----------
        ranks : set of bytes
            Those that live on this machine.
        """
        now = time.monotonic()
        if (files := self._job.touched()) != self._files:
            self._files, self._written, self._changed = files, True, now
        self._seen |= ranks
        if self._seen <= ranks or not ranks:
            self._whole = now
        if now - self._changed > self._silent:
            return f"it has written nothing for {self._silent:g} s"
        patience = self._job.patience
        if now - max(self._whole, self._changed) < patience:
            return ""
        if self._written and self._job.ending(0) is None:
            return ""
        return f"a rank has ended, for which the others have waited for {patience:g} s"
