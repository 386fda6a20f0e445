"""Gradients compared with differences of values: whether `grad` is the gradient of `value`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._validation import Array

Which = NDArray[np.bool_]
# Of the differences, relative to the distance from x0.
SIZES = np.array([8.0**-k for k in range(9)])
# Those that come first: where one agrees, no other is needed.
FIRST = (3, 6)
RADIUS, SHRINK, TRIALS = 0.5, 1e-3, 6
# Relative errors of a right gradient, and of a wrong one.
AGREE, LEAST = 1e-5, 2e-4
# Factor of both for values of float32.
COARSE = 100.0
# Seed of points and directions: fixed, so that an agent is checked alike on any rank.
SEED = 20_11

Function = Callable[[Array], Array]
T = TypeVar("T")


class Mismatch(NamedTuple):
    """An agent whose gradient does not match its value: the slope of `value` along a direction, and
    that of `grad`.
    """

    row: int
    value: float
    grad: float


def mismatch(value: Function, grad: Function, X: Array, agents: Sequence[int]) -> Mismatch | None:
    r"""Return the first agent whose `grad` is not the gradient of `value` at a random point near
    its row of X, or None.

    Compared are :math:`u^T \nabla f_i(p)` and :math:`(f_i(p + hu) - f_i(p - hu)) / 2h` for a random
    point p and direction u: one gradient and three values where they agree.  Otherwise further h
    decide: an agent is named if differences of several sizes agree with each other and not with the
    gradient, at two directions.  None is named whose values are constant, not finite, change from
    call to call, or whose one-sided differences differ as much (a kink).

    Points at which the functions raise an exception, each time, count as outside of the domain.

    Parameters
    ----------
    value, grad : callable
        (m, d) -> (m,) and (m, d) -> (m, d); they must leave their argument as it is.
    X : (m, d) array
    agents : sequence of int
        Numbers of the local agents among all agents, from which points and directions are drawn.

    Examples
    --------
    >>> X = np.zeros((2, 3))
    >>> mismatch(lambda X: (X**2).sum(axis=1) / 2, lambda X: X, X, range(2))
    >>> mismatch(lambda X: (X**2).sum(axis=1) / 2, lambda X: X * [[1.0], [2.0]], X, range(2)).row
    1
    """
    X = X.astype(np.float64)
    if not X.size:
        return None
    largest = abs(X).max(axis=1, keepdims=True)
    scale = np.where(X != 0, abs(X), np.where(largest > 0, largest, 1.0))
    draws = np.array([_drawn(agent, X.shape[1]) for agent in agents]) * scale[:, None]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _inside(lambda: _Points(value, grad, X, draws).mismatch())


def _inside(evaluate: Callable[[], T]) -> T | None:
    """Return what `evaluate()` returns, or None outside of the domain of f, where it raises an
    exception each time; one that it does not repeat has another reason, and is raised.
    """
    try:
        return evaluate()
    except Exception as error:
        try:
            evaluate()
        except Exception:
            return None
        raise error


def _drawn(agent: int, d: int) -> Array:
    """Return a point and two directions without small entries, so that errors of one entry show,
    (3, d).
    """
    draw = np.random.default_rng([SEED, agent])
    drawn: Array = draw.choice([-1.0, 1.0], (3, d)) * draw.uniform(0.5, 1.5, (3, d))
    return drawn


class _Points:
    """Values and gradients at one point per agent."""

    def __init__(self, value: Function, grad: Function, X: Array, draws: Array):
        self.value, self.grad = value, grad
        self.radius = np.full((len(X), 1), RADIUS)
        for _ in range(TRIALS):
            self.P = X + self.radius * draws[:, 0]
            found = _inside(self._finite)
            finite = np.zeros(len(X), bool) if found is None else found
            if finite.all():
                break
            self.radius[~finite] *= SHRINK
        self.known = finite
        self.U = draws[:, 1:] * self.radius[:, None]
        self.single = self.f == self.f.astype(np.float32)  # or an integer
        self.coarse = np.where(self.single, COARSE, 1.0)
        eps = [np.finfo(dtype).eps for dtype in (np.float64, np.float32)]
        self.noise = 100 * np.where(self.single, eps[1], eps[0]) * abs(self.f)

    def _finite(self) -> Which:
        """Evaluate the functions at the points; return whether what they say is finite."""
        self.f, self.G = self._at(self.P)
        return np.asarray(np.isfinite(self.f) & np.isfinite(self.G).all(axis=1))

    def _at(self, P: Array) -> tuple[Array, Array]:
        return np.array(self.value(P.copy()), np.float64), np.array(self.grad(P.copy()), np.float64)

    def mismatch(self) -> Mismatch | None:
        wrong = self.known.copy()
        for size in FIRST:
            if wrong.any():
                wrong &= ~self._agree(self.U[:, 0], SIZES[[size - self.single]])
        if wrong.any():
            wrong &= self._away(self.U[:, 0])[0]
        again: tuple[Array, Array] | None = None
        for row in np.flatnonzero(wrong):
            again = again or self._at(self.P)
            if not (np.allclose(again[0], self.f, 1e-7) and np.allclose(again[1], self.G, 1e-7)):
                return None  # random functions
            alone = np.zeros_like(self.P)
            alone[row] = self.U[row, 1]  # of this agent alone: the others' rows may play a part
            away, rate = self._away(alone)
            if away[row]:
                return Mismatch(int(row), float(rate[row]), float((self.G * alone).sum(1)[row]))
        return None

    def _rates(self, U: Array, sizes: Array) -> tuple[Array, Array, Which]:
        """Central differences per size, half the distance of the one-sided ones, and which of them
        are reliable.
        """
        up, down = (
            np.array([np.array(self.value(self.P + s * h[:, None] * U)) for h in sizes])
            for s in (1, -1)
        )
        seen = np.isfinite(up) & np.isfinite(down) & (up != down)
        return (
            (up - down) / (2 * sizes),
            abs(up - 2 * self.f + down) / (2 * sizes),
            seen & (abs((up - down) - 2 * sizes * (self.G * U).sum(1)) > self.noise),
        )

    def _agree(self, U: Array, sizes: Array) -> Which:
        """Return whether the gradient is the central difference of one of the sizes."""
        away, size = self._error(self._rates(U, sizes)[0], U)
        return np.asarray((away <= self.coarse * AGREE * size).any(axis=0))

    def _error(self, central: Array, U: Array) -> tuple[Array, Array]:
        """Return the distances of central differences from the slope that the gradient says, and
        the size of both.
        """
        parts = self.G * U
        slope = parts.sum(axis=1)
        size = np.maximum(np.maximum(abs(central), abs(slope)), np.linalg.norm(parts, axis=1))
        return abs(central - slope), size

    def _away(self, U: Array) -> tuple[Which, Array]:
        """Return whether differences of three sizes agree with each other, and none with the
        gradient; and their median.
        """
        central, half, seen = self._rates(U, SIZES[:, None])
        away, size = self._error(central, U)
        right = (away <= self.coarse * AGREE * size).any(axis=0)
        sure = seen & (away >= 4 * half) & (away >= self.coarse * LEAST * size)
        # A gradient is wrong where three neighbouring sizes agree on another slope: a kink or
        # rounding errors would make them differ.
        windows = np.lib.stride_tricks.sliding_window_view(central, 3, axis=0)
        spread = windows.max(axis=-1) - windows.min(axis=-1)
        least = np.lib.stride_tricks.sliding_window_view(np.where(sure, away, 0.0), 3, axis=0)
        limit = 0.1 * np.minimum(least.min(axis=-1), abs(windows).max(axis=-1))
        flat = (limit > 0) & (spread <= limit)
        at = flat.argmax(axis=0) + 1
        return flat.any(axis=0) & ~right, central[at, np.arange(len(at))]
