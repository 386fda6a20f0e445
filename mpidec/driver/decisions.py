"""Collective decisions of a run (diverged, interrupted, checkpoint), by one small reduction from
time to time.
"""

from __future__ import annotations

import time
from cmath import isfinite
from typing import NamedTuple

import numpy as np

from ..protocols import Reductions

_NEVER = np.iinfo(np.int64).max
# Limits of the interval between two decisions, each of which is a reduction over all ranks.  Longer
# ones: Ctrl-C and checkpoints come late, and iterates that are not finite are carried on; shorter
# ones: their reductions are a part of the duration of short steps.
_MOST_STEPS, _SECONDS = 128, 0.5


class Decision(NamedTuple):
    """Common decision of all ranks.

    Attributes
    ----------
    diverged : (int, int) or None
        The first step after which an iterate was not finite, if there is one, and the first agent
        concerned.
    interrupted : bool
        Whether a rank was interrupted.
    checkpoint : bool
        Whether a checkpoint is due.
    copy : bool
        Whether a copy in memory is due.
    failed : bool
        Whether a rank has an error.
    """

    diverged: tuple[int, int] | None
    interrupted: bool
    checkpoint: bool
    copy: bool
    failed: bool


class Control:
    """Monitor of one rank's iterates, which decides together with the other ranks how the run
    continues.

    A decision is due every 128 steps, or every half second by the clock of rank 0, whichever comes
    first.

    Parameters
    ----------
    net : Network
    checkpoint_seconds : float, optional
        Time between two checkpoints; None: no checkpoints.
    """

    def __init__(self, net: Reductions, checkpoint_seconds: float | None):
        self._net, self._period = net, checkpoint_seconds
        self._diverged = _NEVER
        # The step after which a decision is due; the same on all ranks.
        self.next = 0
        self._last = (0, time.monotonic())
        self._saved = time.monotonic()

    def watch(self, k: int, X: np.ndarray) -> None:
        """Record step `k` and the agent if it is the first one after which a local iterate is
        not finite.
        """
        if self._diverged == _NEVER and not isfinite(np.add.reduce(X, axis=None)):
            wrong = ~np.isfinite(X).reshape(len(X), -1).all(axis=1)
            # A sum of large finite numbers may overflow, too.
            if wrong.any():
                self._diverged = k * self._net.n + self._net.lo + int(np.argmax(wrong))

    def decide(
        self, k: int, interrupted: bool, error: Exception | None, copy: bool = False
    ) -> Decision:
        """Return the common decision after step `k`, at which rank 0 may find that a copy is due;
        collective.
        """
        now = time.monotonic()
        save = self._period is not None and now - self._saved >= self._period
        root = self._net.rank == 0
        mine = np.array(
            [
                self._diverged,
                -int(interrupted),
                -int(root and save),
                -int(error is not None),
                self._interval(k, now) if root else _NEVER,
                -int(root and copy),
            ],
            np.int64,
        )
        ours = mine
        if self._net.size > 1:
            ours = self._net.collectives.minimum(mine, "the end of a step")
        self.next = k + int(ours[4])
        if ours[2]:
            self._saved = now
        diverged = divmod(int(ours[0]), self._net.n) if ours[0] < _NEVER else None
        return Decision(diverged, bool(ours[1]), bool(ours[2]), bool(ours[5]), bool(ours[3]))

    def _interval(self, k: int, now: float) -> int:
        steps, seconds = k - self._last[0], now - self._last[1]
        self._last = (k, now)
        return int(np.clip(steps * _SECONDS / max(seconds, 1e-9), 1, _MOST_STEPS))
