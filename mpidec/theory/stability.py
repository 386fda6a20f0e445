"""The step sizes with which a solver is stable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from ..driver.internals import TopologyLike
from ..problems import OracleLike
from ..solvers import Solver
from ..solvers.internals import with_step_size
from .linear import LinearSteps
from .moments import growth
from .noise import Noise
from .quadratic import Quadratic
from .steady import factor, mixer, modelled

# Relative accuracy of the ends of an interval; factor between the step sizes tried first.
ACCURACY, FACTOR = 1e-4, 2.0
# Step sizes in units of 1 / curvature: small, with which most solvers are stable; the least and
# the largest that are tried; and up to which intervals are looked for that small ones are not in.
SMALL, LEAST, MOST, LATE = 1e-3, 3e-5, 1e6, 1e2
# Rates from which on nothing converges, and from which on something grows.
STILL, GROWS = 1 - 1e-13, 1 + 1e-6


class _Interval(NamedTuple):
    low: float
    high: float


class StableSteps(_Interval):
    """The interval of the step sizes with which a solver is stable, `(low, high)`.

    Attributes
    ----------
    low : float
        Mostly 0; more for a solver that is unstable with small step sizes.
    high : float
        Infinite if no step size is too large; 0, as `low`, if none is stable.
    mean_square : float
        The largest step size with which the mean square is bounded, too: `high`, unless the
        curvatures of the samples vary, as those of a `Stream`.

    Examples
    --------
    >>> steps = StableSteps(0.0, 0.25)
    >>> print(steps, "or", 8 * steps, "in units of 1 / 8")
    0 to 0.25 or 0 to 2 in units of 1 / 8
    >>> print(StableSteps(0.0, 0.25, mean_square=0.125))
    0 to 0.25 (mean square: 0.125)
    """

    mean_square: float

    def __new__(cls, low: float, high: float, mean_square: float | None = None) -> StableSteps:
        made = super().__new__(cls, low, high)
        made.mean_square = high if mean_square is None else mean_square
        return made

    # Products with numbers of NumPy are those below.
    __array_ufunc__ = None

    def __mul__(self, unit: SupportsFloat) -> StableSteps:  # type: ignore[override]
        by = float(unit)
        return StableSteps(self.low * by, self.high * by, self.mean_square * by)

    __rmul__ = __mul__  # type: ignore[assignment]

    def __format__(self, spec: str) -> str:
        low, high, mean_square = (format(a, spec or ".4g") for a in (*self, self.mean_square))
        if not self.high > 0:
            return "none"
        return f"{low} to {high}" + (
            f" (mean square: {mean_square})" if self.mean_square < self.high else ""
        )

    def __str__(self) -> str:
        return format(self)

    def __repr__(self) -> str:
        return f"StableSteps({self.low!r}, {self.high!r}, mean_square={self.mean_square!r})"

    def __getnewargs__(self) -> Any:
        return (self.low, self.high, self.mean_square)


def largest_step(
    problem: OracleLike | Quadratic, solver: Solver, topology: TopologyLike
) -> StableSteps:
    """Return the interval of the step sizes with which a solver is stable, `(low, high)`, to four
    digits.

    Most solvers are stable up to the largest one, `high`, and `low` is 0; some, such as exact
    diffusion on directed graphs, are unstable with small step sizes.  A solver is stable if it
    comes to rest, on a graph that is not connected somewhere else than at the minimizer.

    Parameters
    ----------
    problem, solver, topology : see `rate`
        The solver's own step size, a number, has no influence.

    Returns
    -------
    StableSteps
        A tuple `(low, high)`, and `mean_square`, the limit in the mean square, which is less than
        that in the mean where the curvatures of samples vary, as those of a `Stream`.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]])
    >>> steps = largest_step(problem, mpidec.solvers.Diffusion(1.0), mpidec.topology.ring(2))
    >>> print(steps, "with the largest", round(steps.high, 3))
    0 to 2 with the largest 2.0
    >>> graph = mpidec.topology.exponential(16)
    >>> problem = mpidec.problems.LeastSquares(np.ones((16, 1, 1)), np.zeros((16, 1)))
    >>> print(largest_step(problem, mpidec.solvers.EXTRA(1.0), graph).low > 0)
    True
    """
    model, oracle, solver, graph = modelled(problem, solver, topology)
    L = float(np.abs(np.linalg.eigvalsh(model.H)).max()) or 1.0
    with mixer(graph) as W:

        def rate(step: float) -> float:
            return factor(with_step_size(solver, step / L), W, model, own_limit=True)

        def stable(step: float) -> bool:
            return rate(step) <= STILL

        low, high = _interval(rate, stable)
        most = high
        if high > 0 and oracle is not None and oracle.random:
            noise = Noise.of(oracle, model)

            def bounded(step: float) -> bool:
                steps = LinearSteps(with_step_size(solver, step / L), W, model.H)
                return growth(steps, noise) < 1

            if noise.change is not None:
                first, last = max(low, SMALL * min(high, 1.0)), min(high, MOST)
                first *= 1 + 2 * ACCURACY
                inside = bounded(first)
                most = _edge(bounded, first, last) if inside else 0.0
    return StableSteps(low / L, high / L, min(most, high) / L)


def _interval(rate: Callable[[float], float], stable: Callable[[float], bool]) -> _Interval:
    """Return the ends of the first interval of stable step sizes, in units of 1 / curvature."""
    # Most methods are stable with small steps; some need still smaller ones; exact diffusion and
    # EXTRA on directed graphs are stable only in an interval away from 0, which a grid of larger
    # steps looks for.
    low, inside = 0.0, SMALL
    if stable(SMALL):
        if rate(LEAST) > GROWS:
            low = _edge(stable, SMALL, LEAST)
    elif (small := _first(stable, SMALL, LEAST, 1 / FACTOR)) and rate(LEAST) <= GROWS:
        return _Interval(0.0, _edge(stable, small, small * FACTOR))
    elif late := _first(stable, SMALL, LATE, FACTOR) or _first(stable, SMALL, LATE, FACTOR**0.25):
        inside = late
        low = _edge(stable, late, late / FACTOR)
    else:
        return _Interval(0.0, 0.0)
    outside = FACTOR * inside
    while stable(outside):
        inside, outside = outside, FACTOR * outside
        if outside > MOST:
            return _Interval(low, math.inf)
    return _Interval(low, _edge(stable, inside, outside))


def _first(stable: Callable[[float], bool], begin: float, end: float, by: float) -> float | None:
    """Return the first stable step size of `begin`, times `by`, and so on up to `end`; None for
    none.
    """
    count = int(math.log(end / begin) / math.log(by))
    return next((a for a in begin * by ** np.arange(count + 1.0) if stable(a)), None)


def _edge(stable: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the limit of stability between a stable and an unstable step size."""
    while abs(math.log(outside / inside)) > math.log1p(ACCURACY):
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if stable(middle) else (inside, middle)
    return math.sqrt(inside * outside)
