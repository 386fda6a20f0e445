"""Estimate of the minimizer of the average of all agents' functions, at which the gradients are
linearized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...comm.runtime import on_all_ranks
from ...protocols import Reductions
from .tuning import TUNING

if TYPE_CHECKING:
    from ...problems import Problem, Term


class _Enough(Exception):
    """The gradient is small enough, or there were enough evaluations."""


def together(net: Reductions, evaluate: Callable[[], np.ndarray], like: np.ndarray) -> np.ndarray:
    """Return the result of `evaluate()`, an array of the shape of `like`; an exception on one rank
    is raised on all; collective.

    Raises
    ------
    Exception
        That of the lowest rank that has one.
    """
    with on_all_ranks(net):
        result = evaluate()
        if np.shape(result) != np.shape(like):
            raise ValueError(
                f"grad(X) has shape {np.shape(result)} for X of shape {np.shape(like)}, expected "
                "the same"
            )
    return result


def minimizer(
    net: Reductions,
    problem: Problem,
    x0: np.ndarray,
    quadratic: bool = False,
    most: int = TUNING.most_evaluations,
) -> tuple[np.ndarray | None, int]:
    """Return the minimizer of the average of all f_i, as far as L-BFGS comes from `x0`, and the
    number of gradients; collective.

    Rank 0 runs scipy's L-BFGS, and all ranks evaluate together, at most `most` times.  With
    `quadratic`, it ends without a point after two evaluations if the functions look quadratic
    between these.
    """
    failed = False  # on all ranks

    def evaluate(x: np.ndarray) -> np.ndarray:
        nonlocal failed
        at = np.tile(x, (net.m, 1))
        rows = np.empty((net.m, len(x) + 1))

        def both() -> np.ndarray:
            rows[:, 0], rows[:, 1:] = problem.value(at), problem.grad(at)
            return rows

        failed = True
        together(net, both, rows)
        failed = False
        return np.asarray(net.mean(rows))

    def shared(x: np.ndarray | None) -> np.ndarray | None:
        return net.collectives.broadcast(x, 0, "the next point of L-BFGS")

    best: np.ndarray | None = x0
    least, first, count = np.inf, 0.0, 0
    # Value, gradient and point of the first evaluation.
    before = (0.0, x0, x0)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, least, first, count, before
        x = np.array(x)
        shared(x)
        total = evaluate(x)
        count += 1
        size = float(np.linalg.norm(total[1:]))
        first = size if count == 1 else first
        if size < least:
            best, least = x, size
        if size <= TUNING.vanished * first or count >= most:
            raise _Enough
        if count == 1:
            before = (float(total[0]), total[1:], x)
        elif count == 2 and quadratic:
            f, g, y = before
            # of a quadratic function: the difference of the values
            slope = float((g + total[1:]) @ (x - y)) / 2
            if abs(total[0] - f - slope) <= TUNING.rounding * (abs(f) + abs(total[0]) + abs(slope)):
                best = None
                raise _Enough
        return float(total[0]), total[1:]

    if net.rank > 0:
        while (x := shared(None)) is not None:
            evaluate(x)
    else:
        from scipy.optimize import minimize  # imported on use: it takes 0.3 s

        options = {"maxcor": 10, "maxfun": most, "maxiter": most, "ftol": 0, "gtol": 0}
        try:
            minimize(objective, x0, jac=True, method="L-BFGS-B", options=options)
        except _Enough:
            pass
        except Exception:
            if failed:
                raise
        shared(None)
    return net.collectives.broadcast((best, count), 0, "the next point of L-BFGS")


def residual(term: Term | None, x: np.ndarray, gradient: np.ndarray, t: float) -> float:
    """Return the norm of the gradient, or of that of a proximal gradient step of the size `t`: 0 at
    the minimizer.
    """
    if term is None:
        return float(np.linalg.norm(gradient))
    return float(np.linalg.norm(x - term.prox((x - t * gradient)[None], t)[0])) / t


def composite_minimizer(
    net: Reductions,
    problem: Problem,
    term: Term,
    x0: np.ndarray,
    most: int = TUNING.most_evaluations,
) -> tuple[np.ndarray, int]:
    """Return the minimizer of the average of all f_i with a term, as far as accelerated proximal
    gradient steps come; collective.

    As `minimizer`: the point, and the number of gradients.  Every rank takes the same steps.
    """

    def gradient(x: np.ndarray) -> np.ndarray:
        at = np.tile(x, (net.m, 1))
        return np.asarray(net.mean(together(net, lambda: problem.grad(at), at)))

    x = y = np.asarray(term.prox(x0[None], 0.0)[0])
    G = gradient(x)
    h = TUNING.width * max(float(np.linalg.norm(x)), TUNING.least_point)
    v = G if G.any() else np.ones_like(x)
    largest = 0.0
    for _ in range(TUNING.power):
        v = (gradient(x + h * v / np.linalg.norm(v)) - G) / h
        largest = max(largest, float(np.linalg.norm(v)))
        if not largest > 0 or not np.isfinite(largest):
            return x, TUNING.power + 1
    momentum, first, count = 1.0, residual(term, x, G, 1 / largest), TUNING.power + 1
    while count < most:
        following = np.asarray(term.prox((y - G / largest)[None], 1 / largest)[0])
        if (y - following) @ (following - x) > 0:
            momentum = 1.0
        grown = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = following + (momentum - 1) / grown * (following - x)
        momentum, x, before, last = grown, following, y, G
        y, G, count = ahead, gradient(ahead), count + 1
        moved = float(np.linalg.norm(y - before))
        # A larger curvature than any before.
        if moved > 0:
            largest = max(largest, float(np.linalg.norm(G - last)) / moved)
        if not moved > 0 or residual(term, y, G, 1 / largest) <= TUNING.vanished * first:
            break
    return np.asarray(term.prox((y - G / largest)[None], 1 / largest)[0]), count
