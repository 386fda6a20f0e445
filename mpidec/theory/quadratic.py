"""The quadratic model of a problem at its minimizer: the agents' curvatures and gradients there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._complex import doubled, is_complex
from ..problems import Problem
from ..problems.internals import dtype_of, is_sampled, targets_of, term_of, x_star_of
from .linear import Array

# Steps of Newton's method, and the relative size of a gradient that vanishes.
NEWTON, VANISHES = 50, 1e-9
# The part of the largest commutator, relative to the curvatures, that is rounding.
COMMUTES = 1e-9


@dataclasses.dataclass(frozen=True)
class Quadratic:
    r"""Costs :math:`f_i(x^\star + e) = \tfrac12 e^* H_i e + \mathrm{Re}\, g_i^* e`, with
    :math:`\sum_i g_i = 0`; or about a point of each agent's own, :math:`f_i(x_i^\star + e)`.

    Attributes
    ----------
    x_star : array (d,) or (n, d)
        From which deviations are measured.
    H : array (n, d, d)
    g : array (n, d)

    Examples
    --------
    >>> import mpidec
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]])
    >>> model = Quadratic.of(problem)
    >>> model.x_star.round(9), model.H.ravel().round(6), model.g.ravel().round(6)
    (array([2.]), array([1., 1.]), array([ 1., -1.]))
    """

    x_star: Array
    H: Array
    g: Array

    def __post_init__(self) -> None:
        n, d = self.g.shape if self.g.ndim == 2 else (0, 0)
        if self.H.shape != (n, d, d) or self.x_star.shape not in ((d,), (n, d)):
            raise ValueError(
                f"Quadratic: x_star, H and g have the shapes {self.x_star.shape}, {self.H.shape}, "
                f"{self.g.shape}, expected (d,) or (n, d), (n, d, d) and (n, d)"
            )
        if self.x_star.ndim == 1 and not np.abs(self.g.sum(axis=0)).max() <= 1e-6 * (
            np.abs(self.g).sum() or 1.0
        ):
            raise ValueError(
                "Quadratic: the g_i of all agents sum to a vector other than zero, expected zero"
            )

    @classmethod
    def of(cls, problem: Problem) -> Quadratic:
        """Return the model of a problem with all agents in this process.

        Curvatures are central differences of the gradients, which are exact for quadratics.  Where
        each agent has a minimizer of its own (`Stream(..., x_star=)` of shape (n, d)), the model is
        about these, and the gradients vanish there.

        Raises
        ------
        ValueError
            If the problem has a term, or no minimizer with a gradient that vanishes is found.
        """
        if (term := term_of(problem)) is not None:
            raise ValueError(
                f"theory: {type(problem).__name__} has the term {term}, expected a smooth "
                "problem: near a term, steps are not linear"
            )
        if (targets := targets_of(problem)) is not None:
            H = _curvatures(problem, targets)
            return cls(targets, H, np.zeros(targets.shape, H.dtype))
        known = x_star_of(problem)
        x = np.zeros(problem.d) if known is None else known
        x = x.astype(np.result_type(x.dtype, _dtype(problem)))
        for _ in range(NEWTON if known is None else 1):
            H, G = _curvatures(problem, x), problem.grad(np.tile(x, (problem.m, 1)))
            size = np.abs(G).mean() + np.abs(H).mean() * (np.abs(x).max() + 1e-3)
            if known is not None or np.abs(G.mean(axis=0)).max() <= VANISHES * size:
                break
            x = x - np.linalg.lstsq(H.mean(axis=0), G.mean(axis=0), rcond=None)[0]
        sampled = known is not None and is_sampled(problem)
        if not (sampled or np.abs(G.mean(axis=0)).max() <= 1e-4 * size):
            raise ValueError(
                f"theory: the mean gradient of {type(problem).__name__} is "
                f"{np.abs(G.mean(axis=0)).max():.2g} at "
                + ("x_star" if known is not None else "the end of Newton's method")
                + ", expected zero: give the problem its x_star"
            )
        if is_complex(x):
            _check_linear(problem, x, H)
        return cls(x, H, G - G.mean(axis=0))

    @property
    def scale(self) -> float:
        """The norm of `x_star`; the root mean square of those of the agents' own."""
        return float(np.linalg.norm(self.x_star) / np.sqrt(self.x_star.size / self.g.shape[1]))

    @property
    def points(self) -> Array:
        """The point of each agent, (n, d)."""
        return np.broadcast_to(self.x_star, self.g.shape)

    @property
    def b(self) -> Array:
        """The gradients at zero, times -1, (n, d, 1)."""
        return self.H @ self.points[:, :, None] - self.g[:, :, None]

    def about(self, target: ArrayLike) -> Quadratic:
        """Return the same costs, with deviations from a `target` of each agent, (n, d).

        Raises
        ------
        ValueError
        """
        x = np.asarray(target)
        if x.shape != self.g.shape or x.dtype.kind not in "biufc" or not np.isfinite(x).all():
            raise ValueError(
                f"theory: target is {x.dtype} of shape {x.shape}, expected finite numbers of shape "
                f"{self.g.shape}: the point from which the deviation of each agent is measured"
            )
        g = self.g + (self.H @ (x - self.points)[:, :, None])[:, :, 0]
        return Quadratic(x.astype(np.result_type(x, self.x_star)), self.H, g)

    def parts(self) -> list[tuple[Array, Quadratic]]:
        """Return bases (d, q) of the coordinates that depend on each other, with the model in each:
        one for each eigenvector where all curvatures have the same ones, else one for all.
        """
        d = self.g.shape[1]
        mixed = np.tensordot(np.random.default_rng(0).uniform(1, 2, len(self.H)), self.H, 1)
        V = np.linalg.eigh(mixed)[1] if np.abs(mixed - np.diag(np.diag(mixed))).max() else np.eye(d)
        inside = V.conj().T @ self.H @ V
        coupled = np.abs(inside * (1 - np.eye(d))).max() > COMMUTES * np.abs(inside).max()
        bases = [np.eye(d)] if coupled else [V[:, j : j + 1] for j in range(d)]
        return [(Q, self._within(Q)) for Q in bases]

    def _within(self, Q: Array) -> Quadratic:
        return Quadratic(self.x_star @ Q.conj(), Q.conj().T @ self.H @ Q, self.g @ Q.conj())


def _dtype(problem: Problem) -> np.dtype[Any]:
    """That of the unknowns: real, or complex as the problem states, or its gradients are."""
    known = doubled(dtype_of(problem, None))
    return np.asarray(problem.grad(np.zeros((problem.m, problem.d), known))).dtype


def _check_linear(problem: Problem, x: Array, H: Array) -> None:
    """Refuse complex costs whose gradients also depend on the conjugate of x.

    Raises
    ------
    ValueError
    """
    h, at = _distance(x), np.tile(x, (problem.m, 1))
    e: Array = np.ones_like(x) * 1j
    ahead: Array = at + h * e
    behind: Array = at - h * e
    found = (problem.grad(ahead) - problem.grad(behind)) / (2 * h)
    if not np.abs(found - H @ e).max() <= 1e-5 * np.abs(H).sum(axis=2).max():
        raise ValueError(
            f"theory: the gradients of {type(problem).__name__} depend on x and on its conjugate, "
            "expected x alone, as for least squares: take mpidec.problems.RealView(problem)"
        )


def _distance(x: Array) -> float:
    """Return the size of differences for derivatives at x."""
    return float(np.cbrt(np.finfo(float).eps)) * max(float(np.abs(x).max(initial=0.0)), 1.0)


def _curvatures(problem: Problem, x: Array) -> Array:
    """Return the Hessians of all agents at x, (d,) or (n, d), as (n, d, d)."""
    h = _distance(x)
    at = np.tile(x, (problem.m, 1)) if x.ndim == 1 else x
    columns = [
        (problem.grad(at + h * e) - problem.grad(at - h * e)) / (2 * h)
        for e in np.eye(x.shape[-1], dtype=at.dtype)
    ]
    H = np.stack(columns, axis=2)
    return np.asarray((H + H.conj().transpose(0, 2, 1)) / 2)
