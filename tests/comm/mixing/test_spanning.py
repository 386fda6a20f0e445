"""Spanning trees by messages between neighbours."""

import pytest

import mpidec
import mpidec.topology as T


def test_agents_find_the_spanning_tree_by_messages():
    for graph in (T.erdos_renyi(11, 0.3, seed=4), T.torus(12), T.chain(5), T.star(6, center=5)):
        with mpidec.Network(graph.n) as net:
            tree = net.spanning_tree(graph)
            assert tree == T.spanning_tree(graph, ties="number") and tree.is_tree
    with mpidec.Network(8) as net:
        assert net.spanning_tree(T.ring(8), rounds=4) == T.spanning_tree(T.ring(8))
        with pytest.raises(ValueError, match="agent 4 has not heard of agent 0 after 3 rounds"):
            net.spanning_tree(T.ring(8), rounds=3)
        with pytest.raises(ValueError, match="exponential is directed"):
            net.spanning_tree(T.exponential(8))
        with pytest.raises(ValueError, match="rounds is 0"):
            net.spanning_tree(T.ring(8), rounds=0)
