"""Spanning trees of a given graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.topology import Topology, undirected_edges
from ..base.weights import WeightsLike, stored


@with_known_options
def spanning_tree(
    topology: Topology, root: int = 0, *, ties: str = "path", weights: WeightsLike = "metropolis"
) -> Topology:
    r"""Breadth-first spanning tree: every agent keeps the edge to a neighbour that is closer to the
    root.

    Parameters
    ----------
    topology : Topology
        Undirected and connected; its weights are not used.
    root : int
        The distances in the tree to this agent are those in the graph.
    ties : {"path", "number"}
        Which of several neighbours closer to the root.  "path": as a breadth-first search finds
        them that visits neighbours in ascending order, so that the path from the root to each agent
        is, of all shortest ones, the first in lexical order (the trees of RelaySGD's experiments).
        "number": the one with the smallest number, which an agent finds by itself.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected tree, doubly stochastic with metropolis weights; for `RelaySGD`, for example.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or the graph is directed or not
        connected.

    Notes
    -----
    `Network.spanning_tree` finds the tree with `ties="number"` and root 0 by messages between
    neighbours.

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
    ties = check.choice(ties, f"{where}: ties", ("path", "number"))
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, dijkstra

    child, parent = np.r_[i, j], np.r_[j, i]
    A = csr_array((np.ones(len(child)), (child, parent)), shape=(n, n))
    A.sort_indices()  # the order of the visits
    if ties == "path":
        parents = breadth_first_order(A, root)[1].astype(np.int64)
    else:
        distance = dijkstra(A, indices=root, unweighted=True)
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
