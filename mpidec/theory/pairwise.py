"""Mean and covariance of pairwise methods, whose gradients and averagings come at random times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..solvers import A2CiD2
from ..solvers.internals import PairwiseSolver, name_of
from ..topology import Topology, edge_rates, mixing_constants
from .linear import Array
from .noise import Noise
from .quadratic import Quadratic

if TYPE_CHECKING:
    from scipy.sparse import csc_array

# Numbers of all agents that depend on each other, at most: the moments are their square; moments
# whose eigenvalues are all computed.
LARGEST, SMALL = 48, 400
# The time in which a flow shows: short, so that nothing vanishes in it.
WAIT = 2.0**-8
# What of an eigenvalue, relative to the rates of all events, is rounding.
ROUNDING = 1e-9


class PairwiseMoments:
    r"""Mean and second moment of all agents, with a gradient of each per unit of time in the mean.

    Gradients of agent i, at the rate 1, and averagings of i and j, at the rate
    :math:`\lambda_{ij}`, are linear maps :math:`z \gets M_e z` of the states of all agents, with a
    1 below them; between events, some methods flow, :math:`\dot z = F z`.  So

    .. math:: \dot S = F S + S F^* + \sum_e \lambda_e (\mathbb{E} M_e S M_e^* - S), \qquad
              S = \mathbb{E} z z^*

    which is linear in the entries of S.  The maps are found by probing the solver's own events.

    Parameters
    ----------
    solver : PairwiseSolver
    graph : Topology
    part : Quadratic
    noise : Noise, optional
        None: there are no gradients, and the agents average.
    X : array (n, d), optional
        Initial points, zero by default.

    Raises
    ------
    ValueError
    """

    def __init__(
        self,
        solver: PairwiseSolver,
        graph: Topology,
        part: Quadratic,
        noise: Noise | None = None,
        X: ArrayLike = 0.0,
    ):
        from scipy.linalg import logm

        if isinstance(solver, A2CiD2) and solver.order != "sde":
            raise ValueError(
                f"theory: the order of {name_of(solver)} is {solver.order!r}, expected 'sde', "
                "whose agents move between their events"
            )
        self._solver = solver.prepared(partial(mixing_constants, graph))
        self._part, self.noise, (self.n, self.d) = part, noise, part.g.shape
        self._starts = np.broadcast_to(X - part.x_star, part.g.shape)
        self._rates = edge_rates(graph, solver.rate)
        self._fresh: Any = self._solver.init(np.zeros(self.d, part.H.dtype))
        fields = dataclasses.asdict(self._fresh)
        self._names = [name for name, value in fields.items() if np.ndim(value)]
        size = len(self._packed(self._fresh))
        self._pair = self._probed(self._average, 2)
        self._flow = np.asarray(logm(self._probed(self._wait, 1))) / WAIT
        self._gain = np.zeros((size, self.d))
        if noise is not None:
            self._gain = np.stack([self._response(e) for e in np.eye(self.d)], axis=1)
        # what no event moves, such as a momentum of 0, is left out
        moves = [self._pair[:size] - np.eye(size, 2 * size), self._flow, self._gain]
        self._kept = np.flatnonzero(np.abs(np.hstack(moves)).max(axis=1))
        self.size = self.n * len(self._kept)
        if self.size > LARGEST:
            raise ValueError(
                f"{name_of(solver)} keeps {self.size} numbers for {self.n} agents with {self.d} "
                f"coordinates that depend on each other, expected at most {LARGEST}: take fewer "
                "agents, or curvatures with common eigenvectors"
            )

    # -- the maps of the events --------------------------------------------------------------------

    def _packed(self, s: Any) -> Array:
        fields = dataclasses.asdict(s)
        return np.concatenate([fields[name] for name in self._names])

    def _state(self, y: Array) -> Any:
        rows = dict(zip(self._names, y.reshape(len(self._names), -1).copy()))
        return dataclasses.replace(self._fresh, **rows)

    def _probed(self, event: Callable[..., None], agents: int) -> Array:
        """Return the matrix of an event of some agents."""
        columns = []
        for y in np.eye(agents * len(self._packed(self._fresh)), dtype=self._part.H.dtype):
            states = [self._state(part) for part in np.split(y, agents)]
            event(*states)
            columns.append(np.concatenate([self._packed(s) for s in states]))
        return np.stack(columns, axis=1)

    def _average(self, a: Any, b: Any) -> None:
        solver = self._solver
        mine, theirs = solver.offer(a, 0.0), solver.offer(b, 0.0)
        solver.average(a, mine, theirs, 0.0)
        solver.average(b, theirs, mine, 0.0)

    def _wait(self, s: Any) -> None:
        self._solver.offer(s, WAIT)

    def _response(self, g: Array) -> Array:
        """Return where an agent gets from zero by a gradient."""
        s = deepcopy(self._fresh)
        self._solver.descend(s, g.astype(self._part.H.dtype), 0.0)
        return self._packed(s)

    def _descend(self, H: Array, s: Any) -> None:
        self._solver.descend(s, H @ self._solver.gradient_point(s, 0.0), 0.0)

    def _events(self) -> Iterator[tuple[float, Array]]:
        """Rates and maps of all events, (size + 1, size + 1)."""
        q, kept = len(self._kept), self._kept
        whole = np.arange(self.n * q).reshape(self.n, q)
        two = np.concatenate([kept, len(self._gain) + kept])
        pair = self._pair[np.ix_(two, two)]
        edges = self._rates.tocoo()
        for i, j, rate in zip(edges.row, edges.col, edges.data):
            if i < j:
                M, at = np.eye(self.size + 1, dtype=pair.dtype), np.r_[whole[i], whole[j]]
                M[np.ix_(at, at)] = pair
                yield float(rate), M
        for i in range(self.n if self.noise is not None else 0):
            M = np.eye(self.size + 1, dtype=pair.dtype)
            own = self._probed(partial(self._descend, self._part.H[i]), 1)
            M[np.ix_(whole[i], whole[i])] = own[np.ix_(kept, kept)]
            M[whole[i], -1] = self._gain[kept] @ self._part.g[i]
            yield 1.0, M

    # -- the moments -------------------------------------------------------------------------------

    def _generator(self, Q: Array) -> csc_array:
        """Return the matrix of the linear system of the entries of S, in the basis Q."""
        from scipy.linalg import block_diag
        from scipy.sparse import csc_array, eye_array, kron

        F = block_diag(*[self._flow[np.ix_(self._kept, self._kept)]] * self.n, 0)
        F, one = Q.T @ F @ Q, eye_array(Q.shape[1])
        T = kron(F, one) + kron(one, F.conj())
        for rate, M in self._events():
            A = csc_array(Q.T @ M @ Q)
            T = T + rate * (kron(A, A.conj()) - kron(one, one))
        return csc_array(T)

    @cached_property
    def _moments(self) -> csc_array:
        """The matrix of the system, with the noise of the gradients."""
        from scipy.sparse import csc_array

        T, q, N = self._generator(np.eye(self.size + 1)), len(self._kept), self.size + 1
        if self.noise is None:
            return T
        E, noise = self._gain[self._kept], self.noise
        for i in range(self.n):
            at = np.r_[i * q : (i + 1) * q, N - 1]
            K = np.zeros((q * q, (q + 1) ** 2), T.dtype)
            if noise.change is not None and noise.at_rest is not None:
                point = np.eye(self.d, q)
                B = np.concatenate([noise.change[:, i] @ point, noise.at_rest[:, i, :, None]], 2)
                B = E @ B
                K = np.einsum("sab,scd->acbd", B, B.conj()).reshape(K.shape) / len(B)
            K[:, -1] = np.kron(E, E.conj()) @ noise.sigma[i].ravel()
            rows = (at[:-1, None] * N + at[:-1]).ravel()
            columns = (at[:, None] * N + at).ravel()
            places = np.meshgrid(rows, columns, indexing="ij")
            T = T + csc_array(
                (K.ravel(), (places[0].ravel(), places[1].ravel())), shape=T.shape, dtype=K.dtype
            )
        return csc_array(T)

    def rate(self) -> float:
        """Return the factor per unit of time by which the root mean square of the error falls in
        the end, without the noise at the minimizer; of the disagreement, if there are no gradients.
        """
        n, q, N = self.n, len(self._kept), self.size + 1
        if self.noise is None:
            # the states without their average, which nothing changes
            apart = np.linalg.svd(np.ones((1, n)))[2][1:].T
            T = self._generator(np.vstack([np.kron(apart, np.eye(q)), np.zeros((1, (n - 1) * q))]))
        else:
            inner = np.arange(N * N).reshape(N, N)[:-1, :-1].ravel()
            T = self._moments[inner][:, inner]
        return math.exp(self._abscissa(T) / 2)

    def _abscissa(self, T: csc_array) -> float:
        """Return the largest real part of an eigenvalue, which is an eigenvalue, as covariances
        stay covariances: it is the one that is nearest to any larger number.
        """
        if T.shape[0] <= SMALL:
            return float(np.linalg.eigvals(T.toarray()).real.max(initial=-math.inf))
        from scipy.sparse.linalg import eigs

        flow = np.linalg.eigvalsh(self._flow + self._flow.conj().T).max()
        events = sum(rate * (np.linalg.norm(M[:-1, :-1], 2) ** 2 - 1) for rate, M in self._events())
        above = float(flow + events) + ROUNDING
        return float(eigs(T, k=1, sigma=above, return_eigenvectors=False).real.max())

    def limit(self) -> Array:
        """Return bias and noise of each agent in the end, (2, n); infinite if they grow."""
        from scipy.sparse.linalg import splu

        inner, T, N = np.arange((self.size + 1) ** 2 - 1), self._moments, self.size + 1
        if not self.rate() < 1 - ROUNDING:
            return np.full((2, self.n), math.inf)
        found = splu(T[inner][:, inner]).solve(-T[inner][:, [-1]].toarray().ravel())
        return np.asarray(self._sizes(np.append(found, 1.0).reshape(1, N, N))[0])

    def course(self, count: int) -> Array:
        """Return bias and noise of each agent after 0, 1, ... `count` units of time, (count + 1, 2,
        n).
        """
        from scipy.sparse.linalg import expm_multiply

        starts = [self._packed(self._solver.init(x))[self._kept] for x in self._starts]
        z, N = np.append(np.concatenate(starts), 1.0), self.size + 1
        S = np.outer(z, z.conj()).ravel()
        found = expm_multiply(
            self._moments, S, start=0.0, stop=float(max(count, 1)), num=max(count, 1) + 1
        )
        return self._sizes(found[: count + 1].reshape(-1, N, N))

    def _sizes(self, S: Array) -> Array:
        """Return bias and noise of each agent from the second moments, (K, 2, n)."""
        K, q = len(S), len(self._kept)
        mean = np.abs(S[:, :-1, -1].reshape(K, self.n, q)[:, :, : self.d]) ** 2
        squares = np.diagonal(S, axis1=1, axis2=2)[:, :-1].real.reshape(K, self.n, q)
        bias, msd = mean.sum(axis=2), squares[:, :, : self.d].sum(axis=2)
        return np.stack([bias, np.maximum(msd - bias, 0)], axis=1)
