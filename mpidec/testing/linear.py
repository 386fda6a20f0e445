"""A solver's steps on quadratics as one matrix: its limit and its rate, without running to the
end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..comm.mixing.mixer import Mixer
from ..solvers.base import Solver, at_step

LONGEST = 64  # steps of a period, at most
RANK = 1e-6  # singular values below this part of the largest count as zero


class Quadratics:
    r"""Costs :math:`f_i(x) = \tfrac{h_i}{2} \|x - c_i\|^2`, as solvers ask them.

    Parameters
    ----------
    h : array (n, 1)
    c : array (n, d)

    Examples
    --------
    >>> Quadratics(np.array([[1.0], [3.0]]), np.array([[4.0], [0.0]])).minimizer
    array([1.])
    """

    def __init__(self, h: np.ndarray, c: np.ndarray):
        self.h, self.c = h, c

    @property
    def minimizer(self) -> np.ndarray:
        """The minimizer of the sum, shape `(d,)`."""
        x: np.ndarray = (self.h * self.c).sum(axis=0) / self.h.sum()
        return x

    def grad(self, X: np.ndarray) -> np.ndarray:
        """The gradients at the rows of X."""
        G: np.ndarray = self.h * (X - self.c)
        return G

    def value(self, X: np.ndarray) -> np.ndarray:
        """The values at the rows of X."""
        f: np.ndarray = (self.h / 2 * (X - self.c) ** 2).sum(axis=1)
        return f

    def prox(self, V: np.ndarray, t: object) -> np.ndarray:
        """V, since there is no term."""
        return V

    def argmin(self, V: np.ndarray, t: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """The proximal points of the functions, with a parameter for each agent."""
        P: np.ndarray = (V + t * self.h * self.c) / (1 + t * self.h)
        return P


class Gradients(Quadratics):
    """Functions whose gradients are the rows of `G`, everywhere."""

    def __init__(self, G: np.ndarray):
        super().__init__(0 * G[:, :1], G)

    def grad(self, X: np.ndarray) -> np.ndarray:
        """The rows of G."""
        return +self.c


def run(solver: Solver, W: Mixer, costs: Quadratics, s: Any, steps: int, first: int = 0) -> Any:
    """The state after `steps` steps from the state `s` of step `first`."""
    for k in range(first, first + steps):
        method = at_step(solver, k)
        s = method.step(s, method.ask(costs, s), W.at(k))
    return s


def cycle_length(solver: Solver, W: Mixer) -> int | None:
    """Steps after which a solver does the same again; None if never, or after too many."""
    period = W.topology.period if getattr(solver, "probability", 1) == 1 else None
    length = None if period is None else period * solver.period
    return length if length is not None and length <= LONGEST else None


class LinearMap:
    """The steps of a cycle as the matrix `J` on the state: the arrays of the state, one below the
    other.

    Numbers, weights and counts in the state, which gradients do not change, have the values that
    they reach.

    Parameters
    ----------
    solver : Solver
        With a number as step size.
    W : Mixer
        Of all n agents, in this process.
    h : array (n, 1)
        Curvatures of the agents' quadratics.

    Attributes
    ----------
    linear : bool
        Whether the steps are linear.

    Examples
    --------
    >>> import mpidec
    >>> with mpidec.Network(2) as net:
    ...     W = net.mixer(mpidec.topology.ring(2))
    ...     round(LinearMap(mpidec.solvers.Diffusion(0.4), W, np.ones((2, 1))).radius(), 9)
    0.6
    """

    def __init__(self, solver: Solver, W: Mixer, h: np.ndarray):
        self.solver, self.W, self.h = solver, W, h
        self.length = cycle_length(solver, W) or 1
        self.first = self.length * math.ceil(4 * W.n / self.length)
        n = W.n
        narrow, wide = (self._start(np.zeros((n, d)), None) for d in (1, 2))
        self._extra = {
            name: a.shape[1] - 1
            for name, a, b in zip(narrow._fields, narrow, wide)
            if getattr(a, "ndim", 0) == 2 and b.shape[1] == a.shape[1] + 1
        }
        N = len(self._pack(narrow, 1))
        R = np.random.default_rng(0).standard_normal((N, N))
        ends = self._cycle(np.hstack([np.eye(N), R]))
        self.J = ends[:, :N]
        self.linear = bool(
            np.allclose(self.J @ R, ends[:, N:], rtol=1e-9, atol=1e-9 * abs(ends).max())
        )

    def _start(self, X: np.ndarray, c: np.ndarray | None, steps: int | None = None) -> Any:
        costs = Quadratics(self.h, np.zeros_like(X) if c is None else c)
        s = self.solver.init(X, self.W.at(0))
        return run(self.solver, self.W, costs, s, self.first if steps is None else steps)

    def _pack(self, s: Any, d: int) -> np.ndarray:
        return np.vstack([getattr(s, name)[:, :d] for name in self._extra])

    def _cycle(self, Z: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
        """The packed state one cycle after `Z`, of which each column is a problem of its own."""
        d, at = Z.shape[1], 0
        s = self._start(np.zeros((self.W.n, d)), None)
        for name in self._extra:
            rows = np.array(getattr(s, name))
            rows[:, :d] = Z[at : at + len(rows)]
            at += len(rows)
            s = s._replace(**{name: rows})
        costs = Quadratics(self.h, np.zeros((self.W.n, d)) if c is None else c)
        return self._pack(run(self.solver, self.W, costs, s, self.length, self.first), d)

    def _X(self) -> np.ndarray:
        """The rows of the packed state that hold `X`."""
        at = 0
        for name in self._extra:
            if name == "X":
                break
            at += len(getattr(self._start(np.zeros((self.W.n, 1)), None, 0), name))
        return np.arange(at, at + self.W.n)

    def limit(self, c: np.ndarray, X: np.ndarray) -> np.ndarray:
        """The iterates that the steps lead to from `X`, shape `(n, d)`, for quadratics with the
        minimizers `c`.
        """
        d = X.shape[1]
        Z = self._pack(self._start(X, c), d)
        J, g = self.J, self._cycle(np.zeros_like(Z), c)
        for _ in range(math.ceil(math.log2(40 / max(1 - self.radius(), 1e-4)))):
            J, g = J @ J, J @ g + g
        end: np.ndarray = (J @ Z + g)[self._X()]
        return end

    def radius(self) -> float:
        """Spectral radius of a step, of the part of the state that the iterates depend on and
        that the initial points reach.
        """
        n = self.W.n
        eye, zero = np.eye(n), np.zeros((n, n))
        V = []
        for X, c in (
            (eye, zero),
            (zero, eye),
        ):  # changes of a cycle: what is conserved is not in them
            early, late = (self._pack(self._start(X, c, k), n) for k in (0, self.length))
            V.append(late - early)
        C = np.zeros((n, len(self.J)))
        C[np.arange(n), self._X()] = 1
        Q = _krylov(self.J, np.hstack(V))  # reached
        J, C = Q.T @ self.J @ Q, C @ Q
        Q = _krylov(J.T, C.T)  # observed
        J = Q.T @ J @ Q
        return float(max(abs(np.linalg.eigvals(J)), default=0.0) ** (1 / self.length))


def _span(V: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns."""
    U, sizes, _ = np.linalg.svd(V, full_matrices=False)
    basis: np.ndarray = U[:, sizes > RANK * max(sizes.max(initial=0.0), 1e-300)]
    return basis


def _krylov(J: np.ndarray, V: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns of V, J V, J J V, ..."""
    Q = _span(V)
    while True:
        larger = _span(np.hstack([Q, J @ Q]))
        if larger.shape[1] <= Q.shape[1]:
            return Q
        Q = larger
