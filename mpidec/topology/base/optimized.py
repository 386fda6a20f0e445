"""Weights made for a given graph: the fastest mixing, doubly stochastic ones of a directed
graph, and a choice of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from .source import EdgeBlock, Stored, canonical
from .topology import Topology
from .weights import AgentWeights, WeightsLike

# Agents of a dense eigenvalue decomposition in every step.
LARGEST = 1024
Floats = NDArray[np.float64]
CHOICES = ("metropolis", "lazy(0.9)", "lazy(0.8)", "lazy(0.65)", "lazy(0.5)", "best_constant")
"""Weights among which the search for a step size chooses with `weights="auto"`."""


@dataclass(frozen=True, eq=False, repr=False)
class Adaptive(Topology):
    """Graph with `weights="auto"`: Metropolis weights, until the search for a step size chooses
    among `choices`.

    Parameters
    ----------
    weighted : tuple of (str, Topology)
        Names of weights, and the graph with each of them; the first one is this topology.
    """

    weighted: tuple[tuple[str, Topology], ...]

    @property
    def choices(self) -> tuple[tuple[str, Topology], ...]:
        """The graph with each of several weights."""
        return self.weighted


def with_weights(weights: WeightsLike, build: Callable[[WeightsLike], Topology]) -> Topology:
    """Return `build(weights)`, or, for weights such as "fdla" and "auto" that depend on the
    whole graph, the result of their optimization.
    """
    if isinstance(weights, AgentWeights):
        graph = build("uniform")
        A = graph.W.tolil()
        A.setdiag(0)
        edges = canonical(A)
        block = EdgeBlock(edges.data, edges.indices, edges.indptr, graph.n)
        return Topology(graph.name, Stored(weights.of(graph.name, block, graph.directed).csr))
    if weights == "sinkhorn":
        return sinkhorn(build("uniform"))
    if weights in ("fdla", "fmmc"):
        return fastest_mixing(build("metropolis"), nonnegative=weights == "fmmc")
    if weights == "auto":
        graph = build("metropolis")
        names = CHOICES[: -1 if graph.directed or graph.n > LARGEST else None]
        made = (graph, *(build(name) for name in names[1:]))
        return Adaptive(graph.name, graph.source, tuple(zip(names, made)))
    return build(weights)


@with_known_options
def fastest_mixing(topology: Topology, *, nonnegative: bool = False) -> Topology:
    r"""Return the graph of a topology with the symmetric weights of fastest averaging (FDLA), or
    the fastest reversible chain (FMMC).

    .. math:: \min_w \; \| W - \tfrac1n 1 1^T \|_2, \qquad W = I - \sum_{e = \{i, j\}} w_e (e_i - e_j)(e_i - e_j)^T

    with :math:`W \ge 0` for FMMC.  The convex norm is smoothed, :math:`\tfrac1t \log \sum_k (e^{t
    \lambda_k} + e^{-t \lambda_k})`, with t up to :math:`10^4`, and minimized by L-BFGS.

    Parameters
    ----------
    topology : Topology
        Undirected and connected, of at most 1024 agents.  Its own weights are not used.
    nonnegative : bool
        FMMC: for methods that need :math:`W \ge 0`.  FDLA weights are faster and may be negative.

    Returns
    -------
    Topology
        Symmetric, doubly stochastic.

    Raises
    ------
    TypeError, ValueError
        If it is no undirected topology, or too large.

    Examples
    --------
    >>> from mpidec.topology import erdos_renyi
    >>> graph = erdos_renyi(20, seed=1)
    >>> [round(1 - W.spectral_gap(), 2) for W in (graph, fastest_mixing(graph))]
    [0.78, 0.59]

    References
    ----------
    L. Xiao, S. Boyd, "Fast linear iterations for distributed averaging", Systems & Control Letters
    53 (2004); S. Boyd, P. Diaconis, L. Xiao, "Fastest mixing Markov chain on a graph", SIAM Review
    46 (2004).
    """
    from scipy.optimize import minimize

    W0 = _dense("fastest_mixing", topology)
    n = topology.n
    if topology.directed or not topology.connected:
        raise ValueError(
            f"fastest_mixing: {topology.name} is directed or not connected, expected a connected "
            "undirected graph: "
            "topology.sinkhorn balances directed ones"
        )
    i, j = np.nonzero(np.triu(W0 != 0, 1))
    if len(i) == 0:
        return topology
    degree = np.bincount(np.concatenate([i, j]), minlength=n)
    w: Floats = 1.0 / (1 + np.maximum(degree[i], degree[j]))

    # The norm is the largest |eigenvalue| of W - J: log-sum-exp over both signs, shifted by the
    # largest one against overflow, and its gradient.
    def smoothed(w: Floats, t: float) -> tuple[float, Floats]:
        M = _weighted(n, i, j, w) - 1 / n
        lam, V = np.linalg.eigh(M)
        top = np.abs(lam).max()
        up, down = np.exp(t * (lam - top)), np.exp(t * (-lam - top))
        total = (up + down).sum()
        S = (V * ((up - down) / total)) @ V.T  # the gradient with respect to M
        slope = 2 * S[i, j] - S[i, i] - S[j, j]
        value = top + np.log(total) / t
        if nonnegative:  # of the entries W[i, i], which are no variables
            diagonal = 1 - _sums(n, i, j, w)
            value += np.logaddexp(0, -t * diagonal).sum() / t
            pull = 1 / (1 + np.exp(np.clip(t * diagonal, -500, 500)))
            slope += pull[i] + pull[j]
        return float(value), slope

    bounds = [(0, None)] * len(w) if nonnegative else None
    best, least = w, np.linalg.norm(_weighted(n, i, j, w) - 1 / n, 2)
    # Continuation: a sharp approximation converges slowly from afar, so each one starts where the
    # smoother one has ended.
    for t in (10.0, 100.0, 1e3, 1e4):
        w = minimize(
            smoothed,
            w,
            (t,),
            "L-BFGS-B",
            jac=True,
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-14},
        ).x
        if nonnegative:
            w = w / max(1.0, _sums(n, i, j, w).max() + 1e-15)
        reached = np.linalg.norm(_weighted(n, i, j, w) - 1 / n, 2)
        if reached < least:
            best, least = w, reached
    # The same on machines that round otherwise.
    W = _weighted(n, i, j, np.round(best * 2**30) / 2**30)
    if nonnegative:
        W = np.maximum(W, 0)
    return _stored(topology.name, W)


@with_known_options
def sinkhorn(topology: Topology) -> Topology:
    r"""Return the doubly stochastic weights :math:`D_1 A D_2` of a graph, with A its weights and D
    diagonal: for directed graphs.

    Rows and columns are divided by their sums in turn.  The limit exists where every edge lies on a
    cycle, that is, on every strongly connected graph, since all own weights are positive.
    Computing it takes all of W: no agent can do so alone.

    Parameters
    ----------
    topology : Topology
        Strongly connected, of at most 1024 agents.  Agents without an own weight get one, the mean
        of their other ones.

    Returns
    -------
    Topology
        Doubly stochastic.

    Raises
    ------
    TypeError, ValueError
        If it is no strongly connected topology, too large, has negative weights, or the sums do not
        converge.

    Examples
    --------
    >>> from mpidec.topology import from_weights
    >>> W = from_weights([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.25, 0.25, 0.5]])
    >>> W.kind, sinkhorn(W).kind
    ('row', 'doubly')

    References
    ----------
    R. Sinkhorn, P. Knopp, "Concerning nonnegative matrices and doubly stochastic matrices", Pacific
    J. Math. 21 (1967).
    """
    A = _dense("sinkhorn", topology)
    if not topology.connected or A.min() < 0:
        raise ValueError(
            f"sinkhorn: {topology.name} is not strongly connected or has negative weights, "
            "expected neither"
        )
    own = np.diag(A) == 0
    A[own, own] = 1.0
    A[own, own] = ((A.sum(axis=1) - 1) / np.maximum((A != 0).sum(axis=1) - 1, 1))[own]
    for _ in range(100_000):
        A /= A.sum(axis=0)
        rows = A.sum(axis=1)
        A /= rows[:, None]
        if np.abs(rows - 1).max() < 1e-14:
            return _stored(topology.name, A)
    raise ValueError(
        f"sinkhorn: the sums of {topology.name} are still {np.abs(rows - 1).max():.1g} away from 1 "
        "after 100000 iterations, "
        "expected 1e-14: its weights differ too much, use weights='uniform'"
    )


def _dense(where: str, topology: Topology) -> Floats:
    if not isinstance(topology, Topology):
        raise TypeError(
            f"{where}: expected a topology, got {topology!r} ({type(topology).__name__})"
        )
    check.integer(topology.n, f"{where}: n", most=LARGEST)
    W: Floats = topology.W.toarray()
    return W


def _stored(name: str, W: Floats) -> Topology:
    from scipy.sparse import csr_array

    return Topology(name, Stored(csr_array(W)))


def _sums(n: int, i: NDArray[np.intp], j: NDArray[np.intp], w: Floats) -> Floats:
    """Return the sum of the weights of the edges at each agent."""
    sums = np.zeros(n)
    np.add.at(sums, i, w)
    np.add.at(sums, j, w)
    return sums


def _weighted(n: int, i: NDArray[np.intp], j: NDArray[np.intp], w: Floats) -> Floats:
    """W of the edges (i, j) with the weights w."""
    W = np.zeros((n, n))
    W[i, j] = W[j, i] = w
    np.fill_diagonal(W, 1 - _sums(n, i, j, w))
    return W
