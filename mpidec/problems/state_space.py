"""A target that moves by a linear model, and the agents' measurements of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._complex import is_complex, squares
from .._random import Streams
from ..protocols import Motion, Sample
from .oracles import Gradient, Measured, Oracle, hosted
from .products import adjoint, times

Array = NDArray[Any]  # real or complex


class StateSpace(Oracle):
    r"""Linear state-space model: a target that moves, and noisy measurements of it by each agent.

    .. math::
        x^{k+1} = F x^k + w^k, \quad w^k \sim N(0, Q), \qquad
        y_i^k = H_i x^{k+1} + v_i^k, \quad v_i^k \sim N(0, R_i)

    The sample of step k is a measurement of :math:`x^{k+1}`, so that the iterates after k steps
    have seen a measurement of :math:`x^k`, from which their errors are counted.  For solvers of
    gradients,

    .. math::
        f_i(x) = \mathbb{E}\, \tfrac12 (y_i - H_i x)^* R_i^{-1} (y_i - H_i x), \qquad
        g_i^k = H_i^* R_i^{-1} (H_i x_i - y_i^k)

    Parameters
    ----------
    F, Q : (d, d) array
        Q is Hermitian and positive semidefinite.
    H : (m, p, d) array
        Of the local agents; p measurements each.
    R : float, (p, p) or (m, p, p) array
        Covariance of their noise, positive definite; a number times I.  Noise of complex models is
        circular.
    x0 : (d,) array, optional
        The target at step 0; zero by default.
    lo : int
        Number of the first local agent among all: `net.lo`.
    seed : int
        Seed of the motion and, beside that of the run, of the measurements.

    Raises
    ------
    ValueError, TypeError
        If shapes do not match, or a covariance is none.

    Notes
    -----
    It is an oracle, and its own problem.  `value` and `grad` are expectations at step 0.
    ``x_star(k)`` is the target at step k, the same on all ranks.  Nothing is communicated.

    Examples
    --------
    Two agents, each of which sees one coordinate of a point that turns:

    >>> F = np.array([[0.0, -1.0], [1.0, 0.0]])
    >>> target = StateSpace(F, np.zeros((2, 2)), np.eye(2)[:, None], R=0.01, x0=[1.0, 0.0])
    >>> target.x_star(1).tolist(), target.samples(range(2), seed=0)(0).y.shape
    ([0.0, 1.0], (2, 1))

    References
    ----------
    B. Anderson, J. Moore, *Optimal Filtering*, Prentice-Hall 1979, chapter 3.
    """

    term, sampled = None, True
    motion: Motion

    def __init__(
        self,
        F: ArrayLike,
        Q: ArrayLike,
        H: ArrayLike,
        R: ArrayLike,
        *,
        x0: ArrayLike | None = None,
        lo: int = 0,
        seed: int = 0,
    ) -> None:
        H = check.real(H, "StateSpace: H", complex_too=True)
        if H.ndim != 3:
            raise ValueError(f"StateSpace: H has shape {H.shape}, expected (m, p, d)")
        self.problem, (self.m, p, self.d) = self, H.shape
        self.lo = check.integer(lo, "StateSpace: lo", least=0)
        self.seed = check.integer(seed, "StateSpace: seed", least=0)
        given = {
            "F": (F, (self.d, self.d)),
            "Q": (Q, (self.d, self.d)),
            "R": (R if np.ndim(R) else np.asarray(R) * np.eye(p), (self.m, p, p)),
            "x0": (np.zeros(self.d) if x0 is None else x0, (self.d,)),
        }
        arrays = {name: _shaped(name, *pair) for name, pair in given.items()}
        self.dtype = np.result_type(H, np.float64, *arrays.values())
        F, Q, R, x = (array.astype(self.dtype) for array in arrays.values())
        self.motion = Motion(F, Q)
        self._H, self._R, self._path = H.astype(self.dtype), R, [x]
        self._moves, self._noise = _root("Q", Q), _root("R", R, definite=True)
        self._Z = np.linalg.solve(self._noise, self._H)

    def _extent(self) -> dict[str, object]:
        return {"m": self.m, "d": self.d}

    def x_star(self, k: int) -> Array:
        """Return the target at step k, (d,)."""
        streams = Streams(self.seed, "target")
        while len(self._path) <= k:
            w = self._moves @ self._normal(streams.at(0, len(self._path)), self.d)
            self._path.append(self.motion.F @ self._path[-1] + w)
        return self._path[k]

    def samples(self, agents: Sequence[int], seed: int) -> Measured:
        """Return ``sample(k)``: what the local `agents` measure in step k."""
        call = "(F, Q, H[net.lo:net.hi], R, lo=net.lo)"
        mine, p = hosted(self.lo, self.m, agents, "StateSpace", call), self._H.shape[1]
        streams = Streams.of_run(self.seed, check.integer(seed, "seed", least=0), "stream")

        def sample(k: int) -> Sample:
            y = (self._H * self.x_star(k + 1)).sum(axis=2)
            for i, row in zip(mine, y):
                row += self._noise[i - self.lo] @ self._normal(streams.at(i, k), p)
            return Sample(self._H, y, self._R)

        return sample

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        samples = self.samples(agents, seed)

        def gradient(X: Array, k: int) -> Array:
            y = np.linalg.solve(self._noise, samples(k).y[:, :, None])
            return adjoint(self._Z, times(self._Z, X[:, :, None]) - y)[:, :, 0]

        return gradient

    def information(self) -> Array:
        r"""Return what the measurements of each agent tell, :math:`H_i^* R_i^{-1} H_i`, (m, d,
        d).
        """
        return adjoint(self._Z, self._Z)

    @property
    def smoothness(self) -> Array:
        """Largest curvatures, (m,)."""
        return np.linalg.eigvalsh(self.information())[:, -1]

    def grad(self, X: Array) -> Array:
        """Return the gradient of f_i at row i, at step 0, (m, d) -> (m, d)."""
        G: Array = adjoint(self._Z, times(self._Z, (X - self._path[0])[:, :, None]))[:, :, 0]
        return G

    @property
    def metrics(self) -> dict[str, Callable[[Array, range, int], Array]]:
        """The squared deviation of each agent from the target, by name."""
        return {"msd": lambda X, agents, k: squares(X - self.x_star(k)).sum(axis=1)}

    def value(self, X: Array) -> Array:
        """Return f_i at row i, at step 0, (m, d) -> (m,)."""
        e = times(self._Z, (X - self._path[0])[:, :, None])[:, :, 0]
        f: Array = (squares(e).sum(axis=1) + self._H.shape[1]) / 2
        return f

    def _normal(self, rng: np.random.Generator, size: int) -> Array:
        """Standard normal numbers, circular ones of complex models."""
        if not is_complex(self.dtype):
            return rng.standard_normal(size)
        circular: Array = rng.standard_normal((2, size)).T @ np.array([1, 1j]) / np.sqrt(2)
        return circular


def _shaped(name: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return an argument of `StateSpace` as an array of finite numbers; R may be that of all
    agents.
    """
    array = check.real(given, f"StateSpace: {name}", complex_too=True)
    if array.shape not in (shape, shape[1:] if len(shape) == 3 else shape):
        raise ValueError(f"StateSpace: {name} has shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"StateSpace: {name} is not finite")
    return np.broadcast_to(array, shape)


def _root(name: str, C: Array, definite: bool = False) -> Array:
    """Return L with L L^* = C, of a covariance."""
    values, vectors = np.linalg.eigh(C)
    small = 1e-12 * max(float(abs(values).max(initial=0)), 1e-300)
    if abs(C - C.conj().swapaxes(-1, -2)).max(initial=0) > small or (values < -small).any():
        raise ValueError(f"StateSpace: {name} is no covariance, expected it Hermitian and >= 0")
    if definite and not (values > small).all():
        raise ValueError(f"StateSpace: {name} is singular, expected a positive definite covariance")
    root: Array = vectors * np.sqrt(values.clip(min=0))[..., None, :]
    return root
