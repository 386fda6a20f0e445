"""The noise of stochastic gradients: its covariance at the minimizer, and how it grows with the
distance from it.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..problems import Oracle
from ..problems.internals import moves, x_star_of
from .linear import Array
from .quadratic import Quadratic

# Draws of the noise at the minimizer, and of the curvatures, of each agent at least and of all
# together; a seed that no run has.
DRAWS, TOGETHER, CURVATURES, CURVED, SEED = 1000, 20_000, 200, 4000, 2**63
# Numbers of the second moments of the curvatures that are kept, at most.
TENSOR = 2**20
# The size of a change of the noise with the point, relative to the curvatures, that is rounding.
CONSTANT = 1e-6


def covariance(S: Array, name: str) -> Array:
    """Return the matrices S, checked: Hermitian, without negative eigenvalues.

    Raises
    ------
    ValueError
    """
    size = np.abs(S).max(initial=0.0)
    hermitian = np.isfinite(size) and np.abs(S - S.conj().swapaxes(-1, -2)).max() <= 1e-9 * size
    if not hermitian or np.linalg.eigvalsh(S).min() < -1e-9 * size:
        raise ValueError(
            f"theory: {name} holds no covariance, expected finite Hermitian matrices without "
            "negative eigenvalues"
        )
    return S


def block_diagonal(sigma: Array) -> Array:
    """Return the block-diagonal covariance (n d, n d) of independent agents with the covariances
    sigma.
    """
    n, d = sigma.shape[:2]
    S = np.zeros((n, d, n, d), sigma.dtype)
    S[np.arange(n), :, np.arange(n), :] = sigma
    return S.reshape(n * d, n * d)


@dataclasses.dataclass(frozen=True)
class Noise:
    r"""Noise :math:`v_i + \Delta_i e_i` of the gradient of agent i at :math:`x^\star + e_i`.

    Attributes
    ----------
    sigma : array (n, d, d)
        Covariances of the v_i.
    change : array (S, n, d, d) or None
        Draws of :math:`\Delta_i`, the curvature of a sample beyond its mean; None for none.
    at_rest : array (S, n, d) or None
        The v_i of the same draws.
    draws : int
        Draws that sigma is the covariance of; 0 if it is known.
    """

    sigma: Array
    change: Array | None = None
    at_rest: Array | None = None
    draws: int = 0

    @classmethod
    def given(cls, noise: ArrayLike, n: int, d: int) -> Noise:
        """Return the noise with given standard deviations, or covariances.

        Raises
        ------
        ValueError
        """
        s = np.asarray(noise)
        if not np.isfinite(s).all() or (s.ndim < 3 and (np.iscomplexobj(s) or (s < 0).any())):
            raise ValueError(
                "theory: noise has entries that are no standard deviations, expected finite "
                "numbers >= 0"
            )
        if s.shape not in ((), (n,), (n, d), (n, d, d)):
            raise ValueError(
                f"theory: noise has the shape {s.shape}, expected ({n},), ({n}, {d}) or "
                f"({n}, {d}, {d}): one standard deviation per agent (and coordinate), or "
                "covariances"
            )
        if s.ndim == 3:
            return cls(covariance(s, "noise"))
        s = np.broadcast_to(s[:, None] if s.ndim == 1 else s, (n, d))
        return cls(s[:, :, None] ** 2 * np.eye(d))

    @classmethod
    def of(cls, oracle: Oracle, model: Quadratic) -> Noise:
        """Return the noise of an oracle, from draws of its gradients."""
        n, d = model.g.shape
        if not oracle.random:
            return cls(np.zeros((n, d, d)))
        gradient = oracle.gradients(range(n), SEED)
        at, moving = np.array(model.points), moves(oracle.problem)

        def minimizer(k: int) -> Array:
            return np.tile(np.asarray(x_star_of(oracle.problem, k)), (n, 1)) if moving else at

        draws = max(DRAWS, TOGETHER // n)
        # The same draws at x* and at x* + h e, so that the difference is the curvature of a draw,
        # not noise.
        v = np.array([gradient(minimizer(k), k) for k in range(draws)])
        mean = v.mean(axis=0)
        h = max(float(np.abs(model.x_star).max(initial=0.0)), 1.0) * 1e-4
        some = max(CURVATURES, CURVED // n)
        slopes = np.array(
            [
                [(gradient(minimizer(k) + h * e, k) - v[k]) / h for e in np.eye(d, dtype=at.dtype)]
                for k in range(some)
            ]
        ).transpose(0, 2, 3, 1)
        change = slopes - slopes.mean(axis=0)
        v = v - mean
        sigma = np.einsum("sni,snj->nij", v, v.conj()) / draws
        varies = np.abs(change).max() > CONSTANT * np.abs(model.H).max()
        found = cls(sigma, draws=draws)
        return dataclasses.replace(found, change=change, at_rest=v[:some]) if varies else found

    def at(self, e: Array, V: Array) -> Array:
        """Return the covariance (n d, n d) of all agents' noise at points with the mean deviations
        `e`, (n, d), and the covariances `V`, (n, d, d).
        """
        sigma = self.sigma
        if self.change is not None:
            D, v = self.change, self.at_rest
            more = len(D) * self.gained(V)
            w = np.einsum("snij,nj->sni", D, e)  # at the mean, where it goes with v
            more = more + np.einsum("sni,snj->nij", w, w.conj())
            if v is not None:
                both = np.einsum("sni,snj->nij", w, v.conj())
                more = more + both + both.conj().transpose(0, 2, 1)
            sigma = sigma + more / len(D)
        return block_diagonal(sigma)

    def gained(self, V: Array) -> Array:
        r"""Return the covariances (n, d, d) of :math:`\Delta_i e_i` for independent :math:`e_i`
        with the covariances V, (n, d, d).
        """
        D = self.change
        if D is None:
            return 0 * V
        n, d = V.shape[:2]
        if n * d**4 > TENSOR:
            return np.asarray(
                np.einsum("snij,njk,snlk->nil", D, V, D.conj(), optimize=True) / len(D)
            )
        return np.asarray((self._squares @ V.reshape(n, d * d, 1)).reshape(n, d, d))

    @cached_property
    def _squares(self) -> Array:
        """The mean of the Kronecker squares of the changes, (n, d d, d d)."""
        D, (n, d) = self.change, self.sigma.shape[:2]
        if D is None:
            return np.zeros((n, d * d, d * d))
        rows = D.transpose(1, 0, 2, 3).reshape(n, len(D), d * d)
        squares = rows.transpose(0, 2, 1) @ rows.conj() / len(D)  # (i j, l k)
        return np.asarray(
            squares.reshape(n, d, d, d, d).transpose(0, 1, 3, 2, 4).reshape(n, d * d, d * d)
        )

    def within(self, Q: Array) -> Noise:
        """Return the noise in the coordinates with the basis Q, (d, q)."""
        return Noise(
            Q.conj().T @ self.sigma @ Q,
            None if self.change is None else Q.conj().T @ self.change @ Q,
            None if self.at_rest is None else self.at_rest @ Q.conj(),
            self.draws,
        )
