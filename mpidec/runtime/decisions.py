"""Decisions that all ranks take together, at little cost: one small reduction every so often."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

_NEVER = np.iinfo(np.int64).max
_MOST_STEPS, _SECONDS = 128, 0.5


class Verdict(NamedTuple):
    """What the ranks have settled: the first step with an iterate that is not finite, and whether to do something else."""

    diverged: int | None
    interrupted: bool
    checkpoint: bool
    failed: bool


class Control:
    """Watches one rank's iterates, and settles with the other ranks how to go on.

    The reduction is due every 128 steps, or every half second if that comes first by rank 0's clock.
    """

    def __init__(self, net: Any, checkpoint_seconds: float | None):
        self._net, self._period = net, checkpoint_seconds
        self._diverged = _NEVER
        self._due = 0
        self._last = (0, time.monotonic())
        self._saved = time.monotonic()

    def watch(self, k: int, X: np.ndarray) -> None:
        """Note the first step after which a local iterate is not finite (or too large to be summed)."""
        if self._diverged == _NEVER and not np.isfinite(X.sum()):
            self._diverged = k

    def due(self, k: int) -> bool:
        """Whether the ranks settle after step `k`; the same answer on all of them."""
        return k >= self._due

    def settle(self, k: int, interrupted: bool, error: Exception | None) -> Verdict:
        """Agree on how to go on after step `k`; collective."""
        now = time.monotonic()
        save = self._period is not None and now - self._saved >= self._period
        root = self._net.rank == 0
        mine = np.array([self._diverged, -int(interrupted), -int(root and save), -int(error is not None),
                         self._interval(k, now) if root else _NEVER], np.int64)
        ours = mine
        if self._net.size > 1:
            ours = self._net._together.minimum(mine, "the end of a step")
        self._due = k + int(ours[4])
        if ours[2]:
            self._saved = now
        return Verdict(int(ours[0]) if ours[0] < _NEVER else None, bool(ours[1]), bool(ours[2]), bool(ours[3]))

    def _interval(self, k: int, now: float) -> int:
        steps, seconds = k - self._last[0], now - self._last[1]
        self._last = (k, now)
        return int(np.clip(steps * _SECONDS / max(seconds, 1e-9), 1, _MOST_STEPS))
