"""Gradients that end a run when they are not finite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class FiniteGradient:
    """A gradient of local agents that takes note of the first one that is not finite.

    Parameters
    ----------
    gradient : callable
        `gradient(i, x, k)`: the gradient of local agent i at `x` for its own step k.
    lo : int
        The first local agent.

    Attributes
    ----------
    found : tuple (spread, agent, k, entry) or None
        `spread` says whether the point was not finite, either: others may have sent that.

    Examples
    --------
    >>> gradient = FiniteGradient(lambda i, x, k: x / k, lo=4)
    >>> _, _ = gradient(0, np.ones(2), 1), gradient(1, np.full(2, np.nan), 2)
    >>> gradient.found
    (True, 5, 2, nan)
    """

    def __init__(self, gradient: Callable[[int, np.ndarray, int], np.ndarray], lo: int):
        self._gradient, self._lo = gradient, lo
        self.found: tuple[bool, int, int, float] | None = None

    def __call__(self, i: int, x: np.ndarray, k: int) -> np.ndarray:
        g = self._gradient(i, x, k)
        if self.found is None:
            finite = np.isfinite(g)
            if not finite.all():
                self.found = not np.isfinite(x).all(), self._lo + i, k, float(g[~finite][0])
        return g
