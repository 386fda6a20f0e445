"""Spanning trees of a given graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .matchings import undirected_edges
from .topology import Topology
from .weights import WeightsLike, stored


def spanning_tree(
    topology: Topology, root: int = 0, *, weights: WeightsLike = "metropolis"
) -> Topology:
    r"""Breadth-first spanning tree: every agent keeps the edge to a neighbour that is closer to the root.

    Of several such neighbours it is the one with the smallest number, so that the tree is unique.

    Parameters
    ----------
    topology : Topology
        Undirected and connected; its weights are not used.
    root : int
        The distances in the tree to this agent are those in the graph.
    weights : str or float
        Edge weights, see `mpidec.topology.weights`.

    Returns
    -------
    Topology
        Undirected tree, doubly stochastic with metropolis weights; for `RelaySGD`, for example.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or the graph is directed or not connected.

    Notes
    -----
    `Network.spanning_tree` finds the same tree, with root 0, by messages between neighbours.

    Examples
    --------
    >>> from mpidec.topology import torus
    >>> tree = spanning_tree(torus(9))
    >>> tree.is_tree, tree.neighbors(0), tree.neighbors(1)
    (True, array([1, 2, 3, 6]), array([0, 4, 7]))
    """
    where = "spanning_tree"
    i, j = undirected_edges(where, topology)
    n = topology.n
    root = check.integer(root, f"{where}: root", least=0, most=n - 1)
    if not topology.connected:
        raise ValueError(f"{where}: {topology.name} is not connected, expected a connected graph")
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    A = csr_array((np.ones(len(i)), (i, j)), shape=(n, n))
    distance = dijkstra(A, directed=False, indices=root, unweighted=True)
    child, parent = np.r_[i, j], np.r_[j, i]
    down = distance[child] == distance[parent] + 1
    parents = np.full(n, n)
    np.minimum.at(parents, child[down], parent[down])
    parents[root] = root
    return tree_of_parents(parents, weights)


def tree_of_parents(parents: NDArray[np.int64], weights: WeightsLike = "metropolis") -> Topology:
    """Return the tree in which each agent is joined to its parent; the root is its own parent."""
    from scipy.sparse import csr_array

    n = len(parents)
    child = np.flatnonzero(parents != np.arange(n))
    parent = parents[child]
    entries = np.ones(2 * len(child)), (np.r_[child, parent], np.r_[parent, child])
    A = csr_array(entries, shape=(n, n))
    A.sort_indices()
    return Topology("spanning_tree", stored("spanning_tree", A, weights))
