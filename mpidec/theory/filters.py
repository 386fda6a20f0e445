"""Steady state of solvers of samples: diffusion RLS with slow forgetting, Kalman filters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..driver.internals import TopologyLike, as_topology
from ..problems import Oracle, StateSpace, Stream
from ..problems.internals import moves
from ..solvers import DiffusionKalman, DiffusionRLS, InformationKalman, Solver
from ..solvers.internals import name_of
from .linear import Array

# Doublings after which a recursion that has not converged never does.
DOUBLINGS = 64
# Riccati steps: without noise of the motion, P falls like 1 / k, and is small after them.
STEPS = 20_000
SMALL = 1e-13


def msd(oracle: Oracle | None, solver: Solver, topology: TopologyLike) -> Array:
    r"""Return the mean-square deviation of each agent in the steady state, (n,).

    The error :math:`e = x^\star - x` of all agents follows

    .. math::
        e^{k+1} = M (\mathcal F e^k + 1 \otimes w^k) - L v^k, \qquad
        V = M (\mathcal F V \mathcal F^* + 1 1^T \otimes Q) M^* + L N L^*

    with the gains of the steady state: of RLS, :math:`P_i = (1 - \lambda) (\mathbb{E}
    S_i)^{-1}`, :math:`M = \lambda \mathcal W`, to first order in :math:`1 - \lambda`; of Kalman
    filters, those of each agent's Riccati equation, :math:`M = \mathcal W (I - \mathcal P
    \mathcal S)`, exactly.  N is the covariance of what the agents' samples add, :math:`N_{ij} =
    \sum_{l \in \mathcal N_i \cap \mathcal N_j} H_l^* R_l^{-1} H_l`: agents that share samples share
    their noise.

    Raises
    ------
    ValueError
    """
    from scipy.linalg import block_diag

    problem = None if oracle is None else oracle.problem
    if not (
        isinstance(solver, (DiffusionRLS, DiffusionKalman))
        and isinstance(problem, (Stream, StateSpace))
        and isinstance(solver, DiffusionKalman) == isinstance(problem, StateSpace)
        and (isinstance(problem, StateSpace) or not moves(problem))
    ):
        raise ValueError(
            f"theory: no steady state of {name_of(solver)} on {name_of(problem)} is known, "
            "expected DiffusionRLS on a Stream whose minimizer stays, or a Kalman filter on a "
            "StateSpace"
        )
    graph = as_topology(topology, problem.m)
    if graph.period != 1:
        raise ValueError(f"theory: the {graph.name} schedule changes, expected a constant graph")
    solver.check(graph)
    A, S = graph.at(0).W.toarray(), problem.information()
    n, d = S.shape[:2]
    B = (A != 0) | np.eye(n, dtype=bool) if solver.exchange else np.eye(n, dtype=bool)
    J, N = np.einsum("il,lab->iab", B, S), np.einsum("il,jl,lab->iajb", B, B, S)
    W, N = np.kron(A, np.eye(d)), N.reshape(n * d, n * d)
    F, Q = problem.motion or (np.eye(d), np.zeros((d, d)))
    if isinstance(solver, DiffusionRLS):
        L = W @ block_diag(*((1 - solver.forgetting) * np.linalg.inv(J)))
        M = solver.forgetting * W
    elif isinstance(solver, InformationKalman):
        P = fixed_point(lambda P: _information(A, F @ P @ F.conj().T + Q, J), J)
        L = block_diag(*P) @ W
        M = L @ block_diag(*np.linalg.inv(F @ P @ F.conj().T + Q))
    else:
        P = fixed_point(lambda P: _updated(F @ P @ F.conj().T + Q, J), J)
        L = W @ block_diag(*P)
        M = W - L @ block_diag(*J)
    walk = M @ np.kron(np.ones((n, n)), Q) @ M.conj().T
    V = stationary(M @ np.kron(np.eye(n), F), walk + L @ N @ L.conj().T)
    found: Array = np.diagonal(V).real.reshape(n, d).sum(axis=1)
    return found


def _updated(P: Array, J: Array) -> Array:
    return np.linalg.solve(np.eye(P.shape[1]) + P @ J, P)


def _information(A: Array, P: Array, J: Array) -> Array:
    return np.linalg.inv(np.einsum("ij,jab->iab", A, np.linalg.inv(P) + J))


def fixed_point(step: Callable[[Array], Array], J: Array) -> Array:
    """Return the limit of `step` from the identity on, (n, d, d); not finite if there is none."""
    P = np.tile(np.eye(J.shape[1], dtype=J.dtype), (len(J), 1, 1))
    for _ in range(STEPS):
        before, P = P, step(P)
        if not abs(P - before).max() > SMALL * abs(P).max():
            break
    return P


def stationary(M: Array, C: Array) -> Array:
    r"""Return the limit V = M V M^* + C, by doubling; infinite where M is not stable.

    Examples
    --------
    >>> stationary(np.array([[0.5]]), np.array([[3.0]])), stationary(np.eye(1), np.eye(1))
    (array([[4.]]), array([[inf]]))
    """
    V = C
    for _ in range(DOUBLINGS):
        V, M = V + M @ V @ M.conj().T, M @ M
    return np.where(np.isfinite(M).all() and abs(M).max() < 0.5, V, np.inf)
