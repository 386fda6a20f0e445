"""Pilots: first steps with the problem itself and several step sizes, for gradients that are bounded far from the minimizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...solvers.base import at_step
from .linear import Gradient
from .race import HORIZON

PART, FEWEST = 32, 16  # a pilot takes this part of the steps of a run, and at least so many
LARGER, SMALLER = 5, 4  # step sizes around the choice, in factors of sqrt(2)
NEAR = 1.1  # ratio of two predictions that agree


def length(steps: int) -> int:
    """Steps of a pilot for a run of `steps` steps."""
    return min(steps, HORIZON) // PART


def first_steps(solver: Any, W: Any, grad: Gradient, X: np.ndarray, steps: int) -> np.ndarray:
    """The iterates after the first `steps` steps from `X`."""
    s = at_step(solver, 0).init(X, W.at(0))
    for k in range(steps):
        now = at_step(solver, k)
        s = now.step(s, grad(now.point(s)), W.at(k))
    return np.asarray(s.X)


def around(size: float, most: int) -> np.ndarray:
    """At most `most` step sizes around `size`, which is one of them, from the largest to the smallest."""
    j = np.arange(LARGER, -SMALLER - 1, -1)
    nearest = np.sort(np.argsort(np.abs(j - 0.5), kind="stable")[: max(most, 1)])
    return np.asarray(size * 2.0 ** (j[nearest] / 2))


def steadiest(errors: np.ndarray) -> int:
    """Index of the step size with the least geometric mean of its own error and that of the next larger one.

    The error of one step size alone may be small by chance.
    """
    means = np.append(np.inf, np.sqrt(errors[:-1] * errors[1:]))
    return int(np.argmin(np.where(np.isfinite(means), means, np.inf)))
