"""Lattices and trees: graphs defined by a rule; rows of W are computed on request, in O(degree)
memory each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ... import _validation as check
from ..._words import with_known_options
from ..base.optimized import with_weights
from ..base.rules import BinaryTree, Lattice, RegularTree, ReversedBinaryTree, Rule, Star
from ..base.source import EdgeBlock
from ..base.spectra import laplacian, laplacian_of_group
from ..base.topology import Topology
from ..base.weights import WeightsLike, resolve, weighted
from ..derived.striped import Striped


@with_known_options
def chain(n: int, *, weights: WeightsLike = "metropolis") -> Topology:
    """Chain: a ring without the edge between the last agent and the first.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected tree, doubly stochastic with metropolis weights, degree at most 2, spectral gap
        O(1/n^2).

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> print(chain(3).W.toarray().round(2))
    [[0.67 0.33 0.  ]
     [0.33 0.33 0.33]
     [0.   0.33 0.67]]
    """
    return _weighted("chain", Lattice((check.integer(n, "chain: n"),)), weights)


@with_known_options
def star(n: int, *, center: int = 0, weights: WeightsLike = "metropolis") -> Topology:
    """Star: one agent in the centre, joined to all others.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    center : int
        The agent in the centre.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`; metropolis weights are 1/n on every edge.

    Returns
    -------
    Topology
        Undirected tree, doubly stochastic with metropolis weights, spectral gap 1/n for n >= 3.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> star(6).neighbors(0)
    array([1, 2, 3, 4, 5])
    """
    n = check.integer(n, "star: n")
    return _weighted(
        "star", Star(n, check.integer(center, "star: center", least=0, most=n - 1)), weights
    )


@with_known_options
def grid(
    n: int, shape: Sequence[int] | None = None, *, weights: WeightsLike = "metropolis"
) -> Topology:
    """Grid: agents in a row-major array, joined to the adjacent ones along each axis.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    shape : sequence of int, optional
        Lengths of the axes, with product n; usually (rows, columns).  By default, the number of
        rows is the largest divisor of n that is at most sqrt(n) (one row if n is prime).
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, doubly stochastic with metropolis weights, spectral gap O(1/n) on a square.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> grid(6).neighbors(1)                # 0 1 2
    array([0, 2, 4])
    """
    return _weighted("grid", Lattice(_shape("grid", n, shape)), weights)


@with_known_options
def torus(
    n: int, shape: Sequence[int] | None = None, *, weights: WeightsLike = "metropolis"
) -> Topology:
    """Torus: a grid whose axes are closed into rings.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    shape : sequence of int, optional
        Lengths of the axes, with product n, as for `grid`.  An axis of length 2 has one edge, not
        two.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, regular, doubly stochastic, spectral gap O(1/n) on a square.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> torus(12, shape=(3, 4)).neighbors(0)
    array([1, 3, 4, 8])
    """
    return _weighted("torus", Lattice(_shape("torus", n, shape), wrap=True), weights)


@with_known_options
def hypercube(n: int, *, weights: WeightsLike = "metropolis") -> Topology:
    """Hypercube: agents whose numbers differ in one binary digit are neighbours.

    Parameters
    ----------
    n : int
        Number of agents, a power of two.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, regular of degree log2 n, doubly stochastic, spectral gap 2 / (1 + log2 n) for
        n >= 2.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or n is not a power of two.

    Examples
    --------
    >>> hypercube(8).neighbors(5)
    array([1, 4, 7])
    """
    n = check.integer(n, "hypercube: n")
    if n & (n - 1):
        low = 1 << (n.bit_length() - 1)
        raise ValueError(
            f"hypercube: n = {n} is not a power of two, the nearest are {low} and {2 * low} "
            f"(exponential({n}) has a similar degree and takes any n)"
        )
    return _weighted("hypercube", Lattice((2,) * (n.bit_length() - 1) or (1,)), weights)


@with_known_options
def binary_tree(n: int, *, reverse: bool = False, weights: WeightsLike = "metropolis") -> Topology:
    """Binary tree of RelaySGD: a heap with root 1, and agent 0 attached to the root.

    Agent w >= 1 has the parent w // 2 and the children 2 w and 2 w + 1, if these are less than n.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    reverse : bool
        Whether agent i takes the place of agent n - 1 - i, so that leaves become inner agents.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected tree of degree at most 3, doubly stochastic with metropolis weights.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> binary_tree(8).neighbors(3)
    array([1, 6, 7])

    References
    ----------
    Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi: RelaySum for decentralized deep learning
    on heterogeneous data, NeurIPS 2021.
    """
    if not isinstance(reverse, (bool, np.bool_)):
        raise TypeError(f"binary_tree: reverse is {reverse!r}, expected True or False")
    tree = ReversedBinaryTree if reverse else BinaryTree
    return _weighted("binary_tree", tree(check.integer(n, "binary_tree: n")), weights)


@with_known_options
def regular_tree(n: int, degree: int = 3, *, weights: WeightsLike = "metropolis") -> Topology:
    """Regular tree: every inner agent has the same number of neighbours; agent 0 is the root.

    The tree is filled level by level: the root has `degree` children, every other agent degree - 1,
    until there are n agents.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    degree : int
        Number of neighbours, at least 2; of the last inner agent perhaps fewer.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected tree of the smallest diameter for this degree, doubly stochastic with metropolis
        weights.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> regular_tree(10).neighbors(0), regular_tree(10).neighbors(1)
    (array([1, 2, 3]), array([0, 4, 5]))
    """
    name = "regular_tree"
    n, degree = check.integer(n, f"{name}: n"), check.integer(degree, f"{name}: degree", least=2)
    return _weighted(name, RegularTree(n, degree), weights)


@with_known_options
def double_binary_trees(n: int, *, weights: WeightsLike = "metropolis") -> Striped:
    """Two binary trees at once, of which each agent is a leaf, or nearly so, in at least one.

    The even columns of a row travel over one tree and the odd ones over the other, so that all
    agents send about the same amount: the degrees in the two trees add up to at most 4, while an
    inner agent of a single tree has 3 neighbours and a leaf one.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Striped
        Of `binary_tree(n)` and `binary_tree(n, reverse=True)`; iterating over it gives both.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> trees = double_binary_trees(8)
    >>> [[len(tree.neighbors(i)) for i in range(8)] for tree in trees]
    [[1, 3, 3, 3, 1, 1, 1, 1], [1, 1, 1, 1, 3, 3, 3, 1]]

    References
    ----------
    Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi: RelaySum for decentralized deep learning
    on heterogeneous data, NeurIPS 2021.
    """
    trees = (binary_tree(n, weights=weights), binary_tree(n, reverse=True, weights=weights))
    return Striped("double_binary_trees", trees)


def _weighted(name: str, graph: Rule, weights: WeightsLike) -> Topology:
    return with_weights(weights, lambda weights: _with_rule(name, graph, weights))


def _with_rule(name: str, graph: Rule, weights: WeightsLike) -> Topology:
    def eigenvalues() -> tuple[float, float]:
        if graph.group is not None:
            return laplacian_of_group(graph.group, graph.neighbors(0, 1)[1])
        indptr, indices = graph.neighbors(0, graph.n)
        data = np.ones(len(indices))
        return laplacian(EdgeBlock(data, indices, indptr.astype(indices.dtype), graph.n).csr)

    low, degree = graph.degrees
    rule = resolve(name, weights, low == degree, degree, False, eigenvalues)
    return Topology(name, weighted(graph, rule))


def _shape(where: str, n: int, shape: Sequence[int] | None) -> tuple[int, ...]:
    n = check.integer(n, f"{where}: n")
    if shape is None:
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        return rows, n // rows
    if isinstance(shape, (str, bytes)) or not isinstance(shape, (Sequence, np.ndarray)):
        raise TypeError(
            f"{where}: shape is {shape!r}, expected a sequence of integers with product n = {n}, "
            "e.g. "
            f"{_shape(where, n, None)}, got {shape!r} ({type(shape).__name__})"
        )
    sizes = tuple(check.integer(size, f"{where}: shape") for size in shape)
    if not sizes or math.prod(sizes) != n:
        raise ValueError(
            f"{where}: shape {sizes} has product {math.prod(sizes)}, expected n = {n} "
            f"(e.g. {_shape(where, n, None)})"
        )
    return sizes
