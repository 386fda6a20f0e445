r"""Edge weights of a graph, and the mixing matrices that they define.

Let d_i be the degree of agent i (in a directed graph, its in-degree or out-degree).  The available
weights are

=================  ==============================================  ============================================
name               W[i, j], j a neighbour of i                     W is
=================  ==============================================  ============================================
"metropolis"       1 / (1 + max(d_i, d_j))                         symmetric, doubly stochastic; graph undirected
"uniform"          1 / (1 + d_i), d_i the in-degree                row stochastic; doubly on regular graphs
"push"             1 / (1 + d_j), d_j the out-degree               column stochastic; doubly on regular graphs
"push-pull"        both of these, W.R and W.C                      a pair, see `push_pull`; doubly on regular graphs
"lazy(g)"          g / (1 + max(d_i, d_j)), 0 < g <= 1             (1 - g) I + g W of metropolis; "lazy" is g = 1/2
"fdla", "fmmc"     see `fastest_mixing`                            symmetric; fastest of all, or of all >= 0
"sinkhorn"         see `sinkhorn`                                  doubly stochastic, of a directed graph
"auto"             metropolis, lazy or best_constant               chosen together with the step size
"best_constant"    2 / (lambda_1 + lambda_{n-1}) of the Laplacian  symmetric; fastest of all constant weights
a number w         w                                               row stochastic; doubly on balanced graphs
=================  ==============================================  ============================================

and W[i, i] is the remainder to 1 of the row sum, or for "push" of the column sum.  On a regular
graph (all in-degrees and out-degrees equal d) the first four coincide: 1 / (1 + d) everywhere, and
"metropolis" is then allowed for directed graphs too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .rules import Rule
from .source import Block, Pair, Source, Stored, index_type
from .spectra import laplacian

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PIECE = 1 << 14  # agents whose rows are computed at a time, so that temporaries stay in the cache
NAMES = ("metropolis", "lazy", "uniform", "push", "push-pull", "best_constant")
OPTIMIZED = ("fdla", "fmmc", "sinkhorn", "auto")  # made of the whole graph
PARTS = ("uniform", "push")  # of "push-pull"
FOR_DIGRAPHS = (
    "weights='sinkhorn' makes W doubly stochastic, 'push-pull' a pair for push_pull, 'push' column "
    "stochastic for push "
    "methods, 'uniform' row stochastic for frost"
)
WeightsLike = str | float
Floats = NDArray[np.float64]
Indices = NDArray[Any]


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
    """The g of "lazy(g)", 1/2 of "lazy"; None for other weights."""
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

    def rows(self, lo: int, hi: int) -> Block:
        return self._block(lo, hi, transpose=False)

    def columns(self, lo: int, hi: int) -> Block:
        return self._block(lo, hi, transpose=not self.symmetric)

    def token(self) -> bytes:
        return f"{self.graph} {self.weights.rule} {self.weights.value.hex()}".encode()

    def _block(self, lo: int, hi: int, transpose: bool) -> Block:
        parts = [self._piece(a, min(a + PIECE, hi), transpose) for a in range(lo, hi, PIECE)]
        if len(parts) == 1:
            return parts[0]
        kind = index_type(self.n, sum(len(part.data) for part in parts))
        counts = np.concatenate([[0], *(np.diff(part.indptr) for part in parts)])
        return Block(
            np.concatenate([np.empty(0), *(part.data for part in parts)]),
            np.concatenate([np.empty(0, kind), *(part.indices for part in parts)], dtype=kind),
            np.cumsum(counts, dtype=kind),
            self.n,
        )

    def _piece(self, lo: int, hi: int, transpose: bool) -> Block:
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
    indptr, indices = adjacency.indptr, adjacency.indices
    incoming, outgoing = np.diff(indptr), np.bincount(indices, minlength=adjacency.shape[0])
    degree = int(incoming.max())
    rule = resolve(
        where,
        weights,
        bool(np.all(incoming == degree) and np.all(outgoing == degree)),
        degree,
        (adjacency != adjacency.T).nnz > 0,
        lambda: laplacian(adjacency),
    )
    if rule.rule == "push-pull":
        return Pair(*(stored(where, adjacency, part) for part in PARTS))
    data = rule.edges(np.repeat(incoming, incoming), outgoing[indices])
    own = rule.own(incoming, outgoing, lambda: sums(data, indptr))
    return Stored(with_diagonal(0, adjacency.shape[0], indptr, indices, data, own).csr)


def sums(data: Floats, indptr: Indices) -> Floats:
    """Return the sum of each row's entries, 0 for an empty row."""
    total = np.zeros(len(indptr) - 1)
    filled = np.diff(indptr) > 0
    if np.any(filled):
        total[filled] = np.add.reduceat(data, indptr[:-1][filled])
    return total


def with_diagonal(
    lo: int, n: int, indptr: Indices, indices: Indices, data: Floats, own: Floats
) -> Block:
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
    return Block(values, columns, heads, n)
