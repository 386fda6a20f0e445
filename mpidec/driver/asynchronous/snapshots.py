"""Rows of the local agents at moments of a run, from which its metrics are computed when it has ended."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable

import numpy as np

_MOST, _BYTES = 400, 1 << 26  # snapshots that are kept, and their size
_FIRST = 1e-3  # seconds between two snapshots at first


class Snapshots:
    """Copies of rows, at distances in time that grow with the run.

    Parameters
    ----------
    copy : callable () -> array
        The rows now.
    size : int
        Their size in bytes.
    """

    def __init__(self, copy: Callable[[], np.ndarray], size: int):
        self._copy, self._most = copy, max(4, min(_MOST, _BYTES // max(size, 1)))
        self._every, self._next = _FIRST, 0.0
        self.times: list[float] = []
        self._rows: list[np.ndarray] = []
        self._counts: list[tuple[int, int]] = []

    def look(self, now: float, events: int, messages: int, due: bool = False) -> None:
        """Take one if it is time to, or `due`."""
        if now < self._next and not due:
            return
        if len(self.times) >= self._most:
            self.times, self._rows, self._counts = (
                self.times[::2],
                self._rows[::2],
                self._counts[::2],
            )
            self._every *= 2
        self.times.append(now)
        self._rows.append(self._copy())
        self._counts.append((events, messages))
        self._next = now + self._every

    def at(self, time: float) -> tuple[np.ndarray, int, int]:
        """The last rows that were taken up to a time, with the numbers of events and messages."""
        k = max(bisect(self.times, time) - 1, 0)
        return self._rows[k], *self._counts[k]
