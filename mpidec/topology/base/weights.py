r"""Edge weights of a graph, and the mixing matrices that they define.

Let d_i be the degree of agent i (in a directed graph, its in-degree or out-degree).  The available
weights are

=================  ==============================================
============================================ name               W[i, j], j a neighbour of i
W is =================  ==============================================
============================================ "metropolis"       1 / (1 + max(d_i, d_j))
symmetric, doubly stochastic; graph undirected "uniform"          1 / (1 + d_i), d_i the in-degree
row stochastic; doubly on regular graphs "push"             1 / (1 + d_j), d_j the out-degree
column stochastic; doubly on regular graphs "push-pull"        both of these, W.R and W.C
a pair, see `push_pull`; doubly on regular graphs "lazy(g)"          g / (1 + max(d_i, d_j)), 0 < g
<= 1             (1 - g) I + g W of metropolis; "lazy" is g = 1/2 "fdla", "fmmc"     see
`fastest_mixing`                            symmetric; fastest of all, or of all >= 0 "sinkhorn"
see `sinkhorn`                                  doubly stochastic, of a directed graph "auto"
metropolis, lazy or best_constant               chosen together with the step size "best_constant"
2 / (lambda_1 + lambda_{n-1}) of the Laplacian  symmetric; fastest of all constant weights a number
w         w                                               row stochastic; doubly on balanced graphs
`hastings(v)`      of a number v_i of each agent                   row stochastic; its average has
weights 1 / v_i relative_variance  1 / v_j over the sum in the neighbourhood       row stochastic;
see `relative_variance` =================  ==============================================
============================================

and W[i, i] is the remainder to 1 of the row sum, or for "push" of the column sum.  On a regular
graph (all in-degrees and out-degrees equal d) the first four coincide: 1 / (1 + d) everywhere, and
"metropolis" is then allowed for directed graphs too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ... import _validation as check
from ..._words import with_known_options
from .rules import Rule
from .source import EdgeBlock, Pair, Source, Stored, index_type
from .spectra import laplacian

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Agents whose rows are computed at a time, so that temporaries stay in the cache.
PIECE = 1 << 14
NAMES = ("metropolis", "lazy", "uniform", "push", "push-pull", "best_constant")
OPTIMIZED = ("fdla", "fmmc", "sinkhorn", "auto")  # made of the whole graph
PARTS = ("uniform", "push")  # of "push-pull"
FOR_DIGRAPHS = (
    "weights='sinkhorn' makes W doubly stochastic, 'push-pull' a pair for push_pull, 'push' column "
    "stochastic for push "
    "methods, 'uniform' row stochastic for frost"
)
Floats = NDArray[np.float64]
Indices = NDArray[Any]


@dataclass(frozen=True, eq=False)
class AgentWeights:
    """Weights made of a positive number of each agent; see `hastings` and `relative_variance`."""

    name: str
    variances: Floats

    def __repr__(self) -> str:
        return f"{self.name}({len(self.variances)} agents)"

    def of(self, where: str, edges: EdgeBlock, directed: bool) -> EdgeBlock:
        """Return the mixing matrix of a graph whose row i holds the in-neighbours of agent i."""
        n, indptr, indices, v = edges.n, edges.indptr, edges.indices, self.variances
        if len(v) != n:
            raise ValueError(
                f"{where}: weights={self.name}(variances) of {len(v)} agents, expected {n}"
            )
        degree = np.diff(indptr)
        receiver = np.repeat(np.arange(n), degree)
        if self.name == "relative_variance":
            total = 1 / v + sums(1 / v[indices], indptr)
            return with_diagonal(
                0, n, indptr, indices, 1 / (v[indices] * total[receiver]), 1 / (v * total)
            )
        if directed:
            raise ValueError(
                f"{where}: hastings weights need an undirected graph, but this one is directed: "
                "use topology.relative_variance(variances)"
            )
        load = (1 + degree) * v
        data = v[receiver] / np.maximum(load[receiver], load[indices])
        return with_diagonal(0, n, indptr, indices, data, 1 - sums(data, indptr))


WeightsLike = str | float | AgentWeights


@with_known_options
def hastings(variances: ArrayLike) -> AgentWeights:
    r"""Weights by which the agents agree on an average with given weights, those that suit their
    noise: the rule of Hastings.

    .. math:: W_{ij} = \frac{\theta_i}{\max(n_i \theta_i, \, n_j \theta_j)}, \qquad
              W_{ii} = 1 - \sum_{j \ne i} W_{ij}, \qquad \pi_i \propto 1 / \theta_i

    with :math:`n_i = 1 + d_i`, and the stationary vector :math:`\pi^T W = \pi^T`: repeated mixings
    lead to :math:`\sum_i \pi_i x_i`.  Equal numbers give metropolis weights.

    Parameters
    ----------
    variances : (n,) array_like
        :math:`\theta_i > 0`, such as the variances of the agents' noise :math:`\sigma_i^2`.

    Returns
    -------
    AgentWeights
        For the parameter `weights` of a graph.  W is row stochastic, and doubly stochastic if all
        numbers are equal; graph undirected.

    Raises
    ------
    TypeError, ValueError
        The argument is no list of positive numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.topology import star
    >>> W = star(3, weights=hastings([1.0, 2.0, 4.0]))
    >>> W.kind, np.linalg.matrix_power(W.W.toarray(), 200)[0].round(4).tolist()      # 4 : 2 : 1
    ('row', [0.5714, 0.2857, 0.1429])

    References
    ----------
    X. Zhao, A. H. Sayed, "Performance limits for distributed estimation over LMS adaptive
    networks", IEEE Transactions on Signal Processing 60 (2012).
    """
    return _of_agents("hastings", variances)


@with_known_options
def relative_variance(variances: ArrayLike) -> AgentWeights:
    r"""Weights inversely proportional to the neighbours' variances: accurate neighbours count more.

    .. math:: W_{ij} = \frac{\sigma_j^{-2}}{\sum_{l \in N_i \cup \{i\}} \sigma_l^{-2}},
              \qquad j \in N_i \cup \{i\}

    They minimize :math:`\sum_j W_{ij}^2 \sigma_j^2`, the variance of an average of the
    neighbourhood.

    Parameters
    ----------
    variances : (n,) array_like
        :math:`\sigma_i^2 > 0`.

    Returns
    -------
    AgentWeights
        For the parameter `weights` of a graph, which may be directed.  W is row stochastic.

    Raises
    ------
    TypeError, ValueError
        The argument is no list of positive numbers.

    Examples
    --------
    >>> from mpidec.topology import chain
    >>> chain(3, weights=relative_variance([1.0, 1.0, 0.5])).W.toarray().tolist()
    [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.3333333333333333, 0.6666666666666666]]

    References
    ----------
    S.-Y. Tu, A. H. Sayed, "Optimal combination rules for adaptation and learning over networks",
    CAMSAP 2011; A. H. Sayed, "Adaptation, learning, and optimization over networks", Foundations
    and Trends in Machine Learning 7 (2014).
    """
    return _of_agents("relative_variance", variances)


def _of_agents(name: str, variances: ArrayLike) -> AgentWeights:
    v = np.asarray(check.unmasked(variances, f"{name}: variances"))
    if v.ndim != 1 or v.dtype.kind not in "iuf" or not len(v):
        raise TypeError(f"{name}: variances are {v!r:.60}, expected a number for each agent")
    bad = ~(np.isfinite(v) & (v > 0))
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(f"{name}: agent {i}: variance {v[i]:.6g}, expected > 0 and finite")
    return AgentWeights(name, v.astype(np.float64))


@dataclass(frozen=True)
class EdgeWeights:
    """Rule of the table above, or "constant" (every edge has `value`), or "regular" (W[i, i]
    equals `value` too).
    """

    rule: str
    value: float = 0.0

    def edges(self, receiver: Indices, sender: Indices) -> Floats:
        """Return W[i, j] for edges given by the in-degree of i and the out-degree of j."""
        if self.rule == "metropolis":
            return 1.0 / (1 + np.maximum(receiver, sender))
        if self.rule == "lazy":
            return self.value / (1 + np.maximum(receiver, sender))
        if self.rule in ("uniform", "push"):
            return 1.0 / (1 + (receiver if self.rule == "uniform" else sender))
        return np.full(len(receiver), self.value)

    def own(
        self, incoming: Indices, outgoing: Indices, off_diagonal: Callable[[], Floats]
    ) -> Floats:
        """Return W[i, i] for agents given by their degrees; `off_diagonal()` is the sum of each
        row's other entries.
        """
        if self.rule in ("metropolis", "lazy"):
            return 1.0 - off_diagonal()
        if self.rule in ("uniform", "push"):
            return 1.0 / (1 + (incoming if self.rule == "uniform" else outgoing))
        if self.rule == "regular":
            return np.full(len(incoming), self.value)
        rest = 1.0 - self.value * incoming
        return np.where(np.abs(rest) < 1e-15, 0.0, rest)


def resolve(
    where: str,
    weights: WeightsLike,
    regular: bool,
    degree: int,
    directed: bool,
    eigenvalues: Callable[[], tuple[float, float]],
) -> EdgeWeights:
    """Return the rule that the argument `weights` selects on a graph.

    Parameters
    ----------
    where : str
        Name of the topology, for messages.
    weights : str or float
        See above.
    regular : bool
        Whether all in-degrees and out-degrees are equal.
    degree : int
        Largest in-degree.
    directed : bool
    eigenvalues : callable
        Returns the largest and the second smallest eigenvalue of the Laplacian.

    Raises
    ------
    TypeError, ValueError
        The argument is neither a known name nor a number, or its weights are not defined on this
        graph.
    """
    if isinstance(weights, str):
        gamma = _laziness(weights, where)
        word = "lazy" if gamma is not None else weights
        name = check.choice(word, f"{where}: weights", (*NAMES, *OPTIMIZED), " or a number")
        if directed and not regular and name in ("metropolis", "lazy"):
            raise ValueError(
                f"{where}: {name} weights need an undirected or a regular graph, but this one is "
                f"directed with unequal degrees ({FOR_DIGRAPHS})"
            )
        if gamma is not None:
            return (
                EdgeWeights("constant", gamma / (1 + degree))
                if regular
                else EdgeWeights(name, gamma)
            )
        if name != "best_constant":
            return EdgeWeights("regular", 1 / (1 + degree)) if regular else EdgeWeights(name)
        if directed:
            raise ValueError(
                f"{where}: best_constant weights need an undirected graph, but this one is "
                f"directed ({FOR_DIGRAPHS})"
            )
        if degree == 0:
            return EdgeWeights("regular", 1.0)
        largest, smallest = eigenvalues()
        return EdgeWeights("constant", 2 / (largest + smallest))
    value = check.number(weights, f"{where}: weights (an edge's weight)", above=0)
    if value * degree > 1 + 1e-12:
        raise ValueError(
            f"{where}: the edge weight {value:g} leaves {1 - value * degree:.3g} for the own "
            "weight of an "
            f"agent with {degree} in-neighbours, expected >= 0 (at most {1 / degree:.6g} on this "
            "graph)"
        )
    return EdgeWeights("constant", value)


def weighted(graph: Rule, rule: EdgeWeights) -> Source:
    """Return the mixing matrix of an undirected graph defined by a rule, or the pair of matrices
    of "push-pull".
    """
    if rule.rule == "push-pull":
        return Pair(*(Weighted(graph, EdgeWeights(part)) for part in PARTS))
    return Weighted(graph, rule)


def _laziness(weights: str, where: str) -> float | None:
    """Return the g of "lazy(g)", 1/2 of "lazy"; None for other weights."""
    if not weights.startswith("lazy"):
        return None
    try:
        gamma = 0.5 if weights == "lazy" else float(weights.removeprefix("lazy(").removesuffix(")"))
    except ValueError:
        gamma = 0.0
    if not 0 < gamma <= 1:
        raise ValueError(
            f"{where}: weights is {weights!r}, expected lazy or lazy(gamma) with 0 < gamma <= 1, "
            "such as lazy(0.8)"
        )
    return gamma


class Weighted(Source):
    """Mixing matrix of an undirected graph defined by a rule; blocks of W are computed on
    request.
    """

    directed = False

    def __init__(self, graph: Rule, weights: EdgeWeights) -> None:
        self.graph, self.weights = graph, weights
        self.n, self.connected = graph.n, graph.connected
        low, high = graph.degrees
        self.symmetric = low == high or weights.rule not in ("uniform", "push")
        self.kind = "doubly" if self.symmetric else "row" if weights.rule == "uniform" else "column"
        self.group = graph.group

    @property
    def arcs(self) -> int:
        return self.graph.arcs

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self._block(lo, hi, transpose=False)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return self._block(lo, hi, transpose=not self.symmetric)

    def token(self) -> bytes:
        return f"{self.graph} {self.weights.rule} {self.weights.value.hex()}".encode()

    def _block(self, lo: int, hi: int, transpose: bool) -> EdgeBlock:
        parts = [self._piece(a, min(a + PIECE, hi), transpose) for a in range(lo, hi, PIECE)]
        if len(parts) == 1:
            return parts[0]
        kind = index_type(self.n, sum(len(part.data) for part in parts))
        counts = np.concatenate([[0], *(np.diff(part.indptr) for part in parts)])
        return EdgeBlock(
            np.concatenate([np.empty(0), *(part.data for part in parts)]),
            np.concatenate([np.empty(0, kind), *(part.indices for part in parts)], dtype=kind),
            np.cumsum(counts, dtype=kind),
            self.n,
        )

    def _piece(self, lo: int, hi: int, transpose: bool) -> EdgeBlock:
        indptr, indices = self.graph.neighbors(lo, hi)
        own = np.diff(indptr)
        mine = np.repeat(own, own)
        theirs = (
            mine if self.weights.rule in ("regular", "constant") else self.graph.degree(indices)
        )
        data = self.weights.edges(theirs, mine) if transpose else self.weights.edges(mine, theirs)
        return with_diagonal(
            lo,
            self.n,
            indptr,
            indices,
            data,
            self.weights.own(own, own, lambda: sums(data, indptr)),
        )


def stored(where: str, adjacency: csr_array, weights: WeightsLike) -> Stored | Pair:
    """Return the mixing matrix of a stored graph; row i of `adjacency` holds the in-neighbours
    of agent i.
    """
    edges = EdgeBlock(adjacency.data, adjacency.indices, adjacency.indptr, adjacency.shape[0])
    made = entries(where, edges, (adjacency != adjacency.T).nnz > 0, weights)
    if made is None:
        return Pair(*(stored(where, adjacency, part) for part in PARTS))
    return Stored(made.csr)


def entries(where: str, edges: EdgeBlock, directed: bool, weights: WeightsLike) -> EdgeBlock | None:
    """Return the mixing matrix of a graph whose row i holds the in-neighbours of agent i; None for
    the two of "push-pull".
    """
    indptr, indices = edges.indptr, edges.indices
    incoming, outgoing = np.diff(indptr), np.bincount(indices, minlength=edges.n)
    degree = int(incoming.max())
    regular = bool((incoming == degree).all() and (outgoing == degree).all())
    rule = resolve(where, weights, regular, degree, directed, lambda: laplacian(edges.csr))
    if rule.rule == "push-pull":
        return None
    data = rule.edges(np.repeat(incoming, incoming), outgoing[indices])
    own = rule.own(incoming, outgoing, lambda: sums(data, indptr))
    return with_diagonal(0, edges.n, indptr, indices, data, own)


def sums(data: Floats, indptr: Indices) -> Floats:
    """Return the sum of each row's entries, 0 for an empty row."""
    total = np.zeros(len(indptr) - 1)
    filled = np.diff(indptr) > 0
    if np.any(filled):
        total[filled] = np.add.reduceat(data, indptr[:-1][filled])
    return total


def with_diagonal(
    lo: int, n: int, indptr: Indices, indices: Indices, data: Floats, own: Floats
) -> EdgeBlock:
    """Return the rows lo, lo + 1, ... of a matrix from its off-diagonal entries (columns sorted)
    and its diagonal.
    """
    m = len(own)
    kind = index_type(n, len(data) + m)
    row = np.repeat(np.arange(m, dtype=kind), np.diff(indptr))
    after = indices > row + lo
    place = np.arange(len(data), dtype=kind) + row + after
    heads = (indptr + np.arange(m + 1)).astype(kind)
    below = np.bincount(row[~after], minlength=m)
    here = heads[:-1] + below
    columns, values = np.empty(len(data) + m, kind), np.empty(len(data) + m)
    columns[place], columns[here] = indices, np.arange(lo, lo + m)
    values[place], values[here] = data, own
    return EdgeBlock(values, columns, heads, n)
