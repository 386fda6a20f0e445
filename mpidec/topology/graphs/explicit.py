"""Topologies from a given matrix or networkx graph."""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from ... import _validation as check
from ..._words import with_known_options
from ..base.optimized import with_weights
from ..base.source import TOLERANCE, Pair, Stored
from ..base.topology import Topology
from ..base.weights import NAMES, OPTIMIZED, WeightsLike, stored

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import csr_array

KIND = " (which sums are 1 follows from W)"


@runtime_checkable
class NetworkxGraph(Protocol):
    """A networkx graph."""

    @property
    def adj(self) -> Mapping[Any, Mapping[Any, Any]]:
        """The neighbours of each node."""

    def is_directed(self) -> bool:
        """Return whether its edges have a direction."""

    def number_of_nodes(self) -> int:
        """Return the number of agents."""


def is_networkx(thing: object) -> TypeGuard[NetworkxGraph]:
    """Return whether it is a networkx graph.

    Examples
    --------
    >>> is_networkx(3)
    False
    """
    return isinstance(thing, NetworkxGraph) and not isinstance(thing, type)


@with_known_options
def from_weights(
    W: ArrayLike | csr_array, *, signed: bool = False, connected: bool = True, kind: str = ""
) -> Topology:
    """Topology with a given mixing matrix: W[i, j] multiplies what agent i receives from agent j.

    With ``kind="any"`` it may be any matrix: a graph filter, such as a Laplacian.

    Parameters
    ----------
    W : (n, n) array_like or scipy.sparse matrix
        Real and finite; each row, or each column, sums to 1 within 1e-10.  Copied to float64
        without normalization; only weights of lower precision, whose sums are 1 within its
        rounding, are scaled to sums of 1 in float64.
    signed : bool
        Whether negative weights are accepted.
    connected : bool
        Whether a graph that is not connected (strongly, if it is directed) is refused.
    kind : {"", "any"}
        "any": no sums need be 1, and entries may be negative.  The mixer of such a matrix computes
        W X on any number of ranks, and only that: what averages (solvers, training, codecs, faults,
        spectral gaps) refuses it.

    Returns
    -------
    Topology
        `kind` (unless it is given) and `directed` are determined from W.

    Raises
    ------
    TypeError
        W is not a matrix of real numbers.
    ValueError
        W has the wrong shape, an invalid entry or sum, or a graph that is not connected.

    Examples
    --------
    >>> from_weights([[0.5, 0.5], [0.25, 0.75]])
    Topology('from_weights', n=2, kind='row', directed=False)

    Denoising of a signal on a graph: the low-pass filter :math:`h(L) = e^{-2 L}`, by which a signal
    diffuses, as a polynomial of degree 8 in the Laplacian L, by the recursion of Chebyshev:

    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> graph = mpidec.topology.ring(12, weights=0.5)                # W = I - L / 2
    >>> L = 2 * (np.eye(12) - graph.W.toarray())
    >>> c = np.polynomial.chebyshev.chebinterpolate(lambda t: np.exp(-4 * (t + 1)), 8)
    >>> with mpidec.Network(12, comm=MPI.COMM_SELF) as net:
    ...     M = net.mixer(from_weights(L / 2 - np.eye(12), kind="any"))    # spectrum in [-1, 1]
    ...     X = np.random.default_rng(0).standard_normal((12, 1))
    ...     before, T = X, M(X)
    ...     Y = c[0] * before + c[1] * T
    ...     for weight in c[2:]:
    ...         before, T = T, 2 * M(T) - before
    ...         Y += weight * T
    >>> from scipy.linalg import expm
    >>> float(abs(Y - expm(-2 * L) @ X).max()) < 1e-3
    True

    References
    ----------
    D. I. Shuman, P. Vandergheynst, D. Kressner, P. Frossard, "Distributed signal processing via
    Chebyshev polynomial approximation", IEEE Transactions on Signal and Information Processing over
    Networks 4 (2018).
    """
    matrix = matrix_of(W)
    if check.choice(kind, "from_weights: kind", ("", "any"), KIND):
        check_entries(matrix, signed=True)
        return _topology("from_weights", Stored(matrix, "any"), connected)
    if (given := getattr(W, "dtype", np.dtype(float))).kind == "f" and given.itemsize < 8:
        matrix = _completed(matrix, matrix.shape[0] * float(np.finfo(given).eps))
    check_entries(matrix, signed)
    check_sums(matrix)
    topology = _topology("from_weights", Stored(matrix), connected)
    if (turns := _period(matrix)) > 1:
        warnings.warn(
            f"from_weights: W is periodic (period {turns}: no agent has a weight of its own, and "
            "all cycles have lengths "
            f"divisible by {turns}): its powers do not converge, and agents never agree; use (I + "
            "W) / 2",
            RuntimeWarning,
            stacklevel=2,
        )
    return topology


@with_known_options
def from_networkx(
    G: networkx.Graph, weights: WeightsLike | None = None, *, connected: bool = True
) -> Topology:
    """Topology of a networkx graph; an edge u -> v of a DiGraph means that u sends to v.

    Parameters
    ----------
    G : networkx.Graph or networkx.DiGraph
        The nodes are the agents; if they are not 0, ..., n - 1, they are numbered in sorted order,
        numbers within names as numbers ("10" after "9").  A warning says so where agent i would be
        another node in the order in which they were added, or by its name.
        Self-loops are dropped, and parallel edges of a multigraph count as one edge.
    weights : str or float, optional
        Edge weights, see `mpidec.topology.base.weights`, by default "metropolis"; or "weight":
        W[v, u]
        is the attribute "weight" of the edge u -> v (the sum over parallel edges) and W[v, v] is
        the remainder to 1. Otherwise the attribute is ignored, without `weights` with a warning if
        it could be used.
    connected : bool
        Whether a graph that is not connected (strongly, if it is directed) is refused.

    Returns
    -------
    Topology
        Doubly stochastic with metropolis weights; these require a directed graph to be regular.

    Raises
    ------
    TypeError
        G is not a networkx graph, or its nodes cannot be sorted.
    ValueError
        G is empty or not connected, or the weights are not defined on it.

    Warns
    -----
    UserWarning
        If agent i may be taken for another node, or the weights of edges or loops may be meant.

    Examples
    --------
    >>> import networkx
    >>> from_networkx(networkx.petersen_graph())
    Topology('from_networkx', n=10, kind='doubly', directed=False)
    """
    import networkx

    where = "from_networkx"
    if not isinstance(G, networkx.Graph):
        raise TypeError(
            f"{where}: expected a networkx graph, got {type(G).__name__} (from_weights takes a "
            "matrix)"
        )
    nodes = sorted_nodes(G)
    if weights is None:
        weights = "metropolis"
        _warn_of_weights(G)
    by_attribute = isinstance(weights, str) and weights == "weight"
    _check_word(G, weights)
    if by_attribute:
        _check_attributes(G, where)
    from scipy.sparse import csr_array, diags_array

    A = csr_array(
        networkx.to_scipy_sparse_array(G, nodes, np.float64, "weight" if by_attribute else None)
    ).T.tocoo()
    # networkx has u -> v at [u, v]; rows of W are receivers, hence the transpose.  Self-loops are
    # dropped: an agent's own weight is the remainder of its row.
    off = A.row != A.col
    A = csr_array((A.data[off], (A.row[off], A.col[off])), shape=A.shape)
    A.sum_duplicates()
    if connected and G.is_directed() and not by_attribute:  # which other weights do not help
        _topology(where, stored(where, A, "uniform"), connected, nodes)
    if not by_attribute:
        return with_weights(
            weights, lambda weights: _topology(where, stored(where, A, weights), connected, nodes)
        )
    rest = 1 - A.sum(axis=1)
    rest[np.abs(rest) <= TOLERANCE] = 0
    if (rest < 0).any():
        i = int(rest.argmin())
        raise ValueError(
            f"{where}: the weights of the edges into node {nodes[i]!r} sum to {1 - rest[i]:.12g}, "
            "expected at most 1: are they distances or capacities? (weights='metropolis' ignores "
            "them)"
        )
    _warn_of_loops(G, dict(zip(nodes, rest)))
    matrix = csr_array(A + diags_array(rest))
    return _topology(where, Stored(matrix), connected, nodes)


def _check_word(G: networkx.Graph, weights: WeightsLike) -> None:
    """Refuse a word that names no weights, such as another attribute of the edges."""
    known = ("weight", *NAMES, *OPTIMIZED)
    if not isinstance(weights, str) or weights in known or weights.startswith("lazy"):
        return
    if any(weights in attributes for *_, attributes in G.edges(data=True)):
        raise ValueError(
            f"from_networkx: weights is {weights!r}, an attribute of the edges, expected one of "
            f"{', '.join(known)} or a number: the attribute 'weight' alone is read, and holds the "
            "entries of W; weights='metropolis' needs no attribute"
        )
    check.choice(weights, "from_networkx: weights", known, " or a number")


def matrix_of(W: Any, where: str = "from_weights") -> csr_array:
    """Return a user's matrix as a sparse one."""
    if is_networkx(W) or isinstance(W, Topology):
        remedy = (
            "it is a topology already" if isinstance(W, Topology) else "from_networkx takes a graph"
        )
        raise TypeError(f"{where}: expected a matrix, got {type(W).__name__} ({remedy})")
    from scipy.sparse import csr_array, issparse

    if not issparse(W):
        try:
            W = np.asarray(check.unmasked(W, f"{where}: W"))
        except ValueError:
            raise ValueError(f"{where}: W is ragged, expected n rows of n numbers") from None
    if W.dtype.kind not in "iuf":
        raise TypeError(f"{where}: W has entries of type {W.dtype}, expected real numbers")
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise ValueError(f"{where}: W has shape {W.shape}, expected (n, n) with n >= 1")
    matrix = csr_array(W, dtype=np.float64)
    matrix.sum_duplicates()
    return matrix


def _completed(matrix: csr_array, rounding: float) -> csr_array:
    """Return the matrix with sums of 1 where they are 1 within `rounding`: of rows, of columns, or
    of both, which are divided by their sums in turn.
    """
    from scipy.sparse import csr_array, diags_array

    axes = [axis for axis in (0, 1) if np.abs(matrix.sum(axis=axis) - 1).max() <= rounding]
    for _ in range(10_000 if len(axes) == 2 else len(axes)):
        for axis in axes:
            scale = diags_array(1 / matrix.sum(axis=axis))
            matrix = csr_array(matrix @ scale if axis == 0 else scale @ matrix)
        if all(np.abs(matrix.sum(axis=axis) - 1).max() <= TOLERANCE / 100 for axis in axes):
            break
    return matrix


def check_entries(matrix: csr_array, signed: bool, where: str = "from_weights") -> None:
    """Refuse entries that are not finite, or negative without `signed`."""
    for bad, expected in (
        (~np.isfinite(matrix.data), "a finite number"),
        (matrix.data < (-np.inf if signed else 0), ">= 0 (signed=True allows it)"),
    ):
        if np.any(bad):
            e = int(np.argmax(bad))
            i = int(np.searchsorted(matrix.indptr, e, "right")) - 1
            raise ValueError(
                f"{where}: agent {i}: W[{i}, {matrix.indices[e]}] = {matrix.data[e]:.12g}, "
                f"expected {expected}"
            )


def check_sums(matrix: csr_array, where: str = "from_weights", kind: str = "") -> None:
    """Refuse a matrix without the sums of its `kind`, or without any that are 1."""
    off = {
        word: np.abs(matrix.sum(axis=axis) - 1) > TOLERANCE
        for axis, word in ((1, "row"), (0, "column"))
    }
    wrong = {word for word in off if np.any(off[word])}
    if kind in off or (not kind and len(wrong) < 2):
        wrong &= {kind}
    if wrong:
        word = min(sorted(wrong, reverse=True), key=lambda word: off[word].sum())
        i = int(np.argmax(off[word]))
        total = matrix.sum(axis=1 if word == "row" else 0)[i]
        remedy = (
            f'kind="{"column" if word == "row" else "row"}" needs the other sums only'
            if kind
            else 'kind="any" makes a graph filter; metropolis weights of the same graph: '
            "topology.from_networkx(G)"
        )
        raise ValueError(
            f"{where}: agent {i}: {word} of W sums to {total:.12g}, expected 1 ({remedy})"
        )


def _period(matrix: csr_array) -> int:
    """Return the greatest common divisor of the lengths of all cycles, for a strongly connected
    graph; 1 if it is not connected.
    """
    from scipy.sparse.csgraph import breadth_first_order

    n = matrix.shape[0]
    if n == 1 or matrix.diagonal().any():
        return 1
    order, before = breadth_first_order(matrix, 0)
    if len(order) < n:
        return 1
    depth = np.zeros(n, np.int64)
    for i in order[1:]:
        depth[i] = depth[before[i]] + 1
    edges = matrix.tocoo()
    return int(np.gcd.reduce(depth[edges.row] + 1 - depth[edges.col]))


def _topology(
    name: str, source: Stored | Pair, connected: bool, nodes: Sequence[Hashable] = ()
) -> Topology:
    if connected and not source.connected:
        one = cast("Stored", source.R) if isinstance(source, Pair) else source
        parts, label = one.parts
        other = int(np.argmax(label != label[0]))
        how = "strongly connected" if source.directed else "connected"
        ends = f"nodes {nodes[0]!r} and {nodes[other]!r}" if nodes else f"agents 0 and {other}"
        raise ValueError(
            f"{name}: the graph is not {how}: it has {parts} components, {ends} are in different "
            "ones (connected=False allows it)"
        )
    source.explicit = True
    return Topology(name, source)


def sorted_nodes(G: networkx.Graph) -> list[Hashable]:
    """Return the nodes of a graph in the order of the agents, with a warning where it is another
    one than a reader may expect.
    """
    if len(G) == 0:
        raise ValueError("from_networkx: the graph has no nodes, expected at least one")
    try:
        nodes = sorted(G.nodes, key=_by_numbers)
        ordered = all(_by_numbers(u) <= _by_numbers(v) for u, v in pairwise(nodes))
    except TypeError:
        ordered = False
    if not ordered:  # also sets, which are compared by inclusion, and NaN
        raise TypeError(
            "from_networkx: the nodes cannot be sorted, expected 0, ..., n - 1 or nodes with an "
            "order "
            "(networkx.convert_node_labels_to_integers(G) numbers them)"
        )
    listed = list(G.nodes)
    if listed == nodes and all(isinstance(node, str) for node in nodes):  # capitals first
        listed = sorted(nodes, key=lambda name: _by_numbers(str(name).casefold()))
    if nodes != list(range(len(nodes))) and (nodes != listed or _other_numbers(nodes)):
        first = ", ".join(f"agent {i} is node {node!r}" for i, node in enumerate(nodes[:3]))
        warnings.warn(
            f"from_networkx: the nodes are numbered in sorted order: {first}"
            f"{', ...' * (len(nodes) > 3)} (networkx.convert_node_labels_to_integers(G) numbers "
            "them in the order in which they were added)",
            UserWarning,
            stacklevel=4,
        )
    return nodes


def _by_numbers(node: object) -> Any:
    """Sort key of a node, in whose name, or parts, runs of digits count as numbers."""
    if isinstance(node, bytes):
        node = node.decode("latin-1")
    if isinstance(node, tuple):
        return [_by_numbers(part) for part in node]
    if not isinstance(node, str):
        return node
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", node)]


def _other_numbers(nodes: Iterable[Hashable]) -> bool:
    """Return whether a node is a number, or has one in its name, that is not the agent's."""
    numbers: Iterable[list[Any]] = (
        re.findall(r"\d+", node)
        if isinstance(node, str)
        else [node]
        if isinstance(node, Real)
        else []
        for node in nodes
    )
    return any(found and float(found[-1]) != i for i, found in enumerate(numbers))


def _check_attributes(G: networkx.Graph, where: str) -> None:
    """Refuse edges whose attribute "weight" is no weight."""
    for u, v, weight in G.edges(data="weight"):
        if u != v and not check.is_number(weight):
            raise ValueError(
                f"{where}: edge ({u!r}, {v!r}) has weight {weight!r}, expected a number "
                "(weights='metropolis' needs none)"
            )
        if u != v and not 0 <= weight < np.inf:
            raise ValueError(
                f"{where}: edge ({u!r}, {v!r}) has weight {weight:.12g}, expected a finite "
                "number >= 0 (weights='metropolis' ignores them; from_weights(W, signed=True) "
                "takes a matrix with negative ones)"
            )


def _warn_of_weights(G: networkx.Graph) -> None:
    """Say that weights of edges are ignored, if they could be those of a mixing matrix."""
    given = [weight for *_, weight in G.edges(data="weight")]
    if not given or not all(check.is_number(weight) and 0 < weight < 1 for weight in given):
        return
    sums = G.in_degree(weight="weight") if G.is_directed() else G.degree(weight="weight")
    if max(total for _, total in sums) <= 1 + TOLERANCE:
        warnings.warn(
            "from_networkx: the edges have weights that sum to at most 1, which are ignored: "
            "weights='weight' uses them, weights='metropolis' says that they are not meant",
            UserWarning,
            stacklevel=4,
        )


def _warn_of_loops(G: networkx.Graph, rest: dict[Hashable, float]) -> None:
    """Say that weights of loops are ignored, at the first node that keeps another one."""
    for node, own in rest.items():
        if not G.has_edge(node, node):
            continue
        loops = [w for *ends, w in G.edges(node, data="weight") if ends == [node, node]]
        if all(map(check.is_number, loops)) and not abs(sum(loops) - own) <= TOLERANCE:
            warnings.warn(
                f"from_networkx: the loop at node {node!r} has weight {sum(loops):.12g}, which is "
                f"ignored: the node keeps the remainder to 1, {own:.12g}",
                UserWarning,
                stacklevel=4,
            )
            return
