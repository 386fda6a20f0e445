"""Reference solution of problems that know only their values and gradients."""

from __future__ import annotations

import numpy as np

from .._complex import from_reals, is_complex
from .._validation import Array
from . import newton
from .base import Problem
from .members import dtype_of
from .real_view import RealView

# Unknowns, as the Hessian takes two gradients for each.
LARGEST = 200


def minimizer(problem: Problem) -> Array:
    r"""Return a minimizer of the average of the f_i of all agents, from their values and gradients.

    Newton's method of scipy with a Hessian from central differences of the gradient, whose last
    steps converge to rounding accuracy. For functions that are not convex it is a local minimizer,
    and may differ from the one a solver finds.

    Parameters
    ----------
    problem : Problem
        All agents, in this process; at most 200 unknowns.

    Returns
    -------
    (d,) array

    Raises
    ------
    ValueError
        If there are too many unknowns, or no point with a vanishing gradient is found.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Custom, minimizer
    >>> C = np.array([[1.0], [3.0]])
    >>> half = lambda X: ((X - C) ** 2).sum(axis=1) / 2
    >>> minimizer(Custom(half, lambda X: X - C, m=2, d=1)).round(9)
    array([2.])
    """
    if is_complex(dtype_of(problem, None)):
        return from_reals(minimizer(RealView(problem)))
    if problem.d > LARGEST:
        raise ValueError(
            f"{problem.d} unknowns, expected at most {LARGEST} for a solution from gradients: give "
            "x_star, or a "
            "method solution()"
        )

    def rows(x: Array) -> Array:
        return np.tile(x, (problem.m, 1))

    def grad(x: Array) -> Array:
        return np.asarray(problem.grad(rows(x)).mean(axis=0))

    def hess(x: Array) -> Array:
        steps = np.cbrt(np.finfo(float).eps) * np.maximum(np.abs(x), 1.0)
        H = np.array([(grad(x + e) - grad(x - e)) / (2 * e.max()) for e in np.diag(steps)])
        return np.asarray((H + H.T) / 2)

    def scale(x: Array) -> float:
        return float(np.linalg.norm(np.abs(problem.grad(rows(x))).mean(axis=0))) + float(
            np.linalg.norm(hess(x) @ x)
        )

    return newton.minimize(
        lambda x: float(np.mean(problem.value(rows(x)))), grad, hess, scale, np.zeros(problem.d)
    )
