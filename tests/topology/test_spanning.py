"""Spanning trees of graphs.  No MPI."""

import networkx as nx
import numpy as np
import pytest
from helpers.graphs import UNDIRECTED, edges_of

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_spanning_trees_keep_the_distances_to_the_root():
    for graph in UNDIRECTED:
        for root in {0, graph.n // 2, graph.n - 1}:
            tree, G = T.spanning_tree(graph, root), graph.to_networkx()
            assert tree.is_tree and edges_of(tree) <= edges_of(graph)
            far = nx.single_source_shortest_path_length(G, root)
            assert nx.single_source_shortest_path_length(tree.to_networkx(), root) == far
            for i in set(G) - {root}:
                parent = [int(j) for j in tree.neighbors(i) if far[j] < far[i]]
                assert parent == [min(nx.all_shortest_paths(G, root, i))[-2]]
            tree = T.spanning_tree(graph, root, ties="number")
            least = {(i, min(j for j in G[i] if far[j] < far[i])) for i in set(G) - {root}}
            assert edges_of(tree) == {tuple(sorted(edge)) for edge in least}
    weighted = T.spanning_tree(T.torus(9), weights=0.1)
    assert weighted.W[0, 1] == 0.1 and weighted.W[1, 1] == 1 - 0.1 * len(weighted.neighbors(1))


WRONG = [
    (
        lambda: T.spanning_tree(T.from_weights(np.eye(3), connected=False)),
        "from_weights is not connected",
    ),
    (
        lambda: T.spanning_tree(T.ring(6), root=6),
        "spanning_tree: root is 6, expected an integer from 0 to 5",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[-24:] for _, words in WRONG])
def test_wrong_calls_say_what_is_wrong(call, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert words in str(caught.value)
