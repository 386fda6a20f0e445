"""Lazy, fastest and balanced weights of a graph."""

import numpy as np
import pytest

from mpidec import topology as T

pytestmark = pytest.mark.serial


def sigma(topology):
    """The second largest singular value of W, dense."""
    n = topology.n
    return np.linalg.norm(topology.W.toarray() - np.full((n, n), 1 / n), 2)


def support(topology):
    return (topology.W.toarray() != 0) | np.eye(topology.n, dtype=bool)


@pytest.mark.parametrize("graph", [T.ring(9), T.star(7), T.hypercube(8), T.complete(5)], ids=repr)
def test_the_fastest_weights_of_an_edge_transitive_graph_are_the_best_constant(graph):
    fast = T.fastest_mixing(graph)
    best = getattr(T, graph.name)(graph.n, weights="best_constant")
    assert sigma(fast) < sigma(best) + 1e-4


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(
    "graph",
    [T.erdos_renyi(20, seed=1), T.binary_tree(11), T.grid(12), T.chain(2), T.ring(1)],
    ids=repr,
)
def test_fastest_mixing(graph, nonnegative):
    fast = T.fastest_mixing(graph, nonnegative=nonnegative)
    W = fast.W.toarray()
    assert fast.kind == "doubly" and np.array_equal(W, W.T) and not (W != 0)[~support(graph)].any()
    assert sigma(fast) <= sigma(graph) + 1e-12
    if nonnegative:
        assert W.min() >= 0
    if graph.name == "erdos_renyi":
        assert sigma(graph) > 0.77 and sigma(fast) < (0.61 if nonnegative else 0.594)


def test_fastest_mixing_needs_an_undirected_graph():
    with pytest.raises(ValueError, match="undirected"):
        T.fastest_mixing(T.exponential(8))


def test_balanced_weights_of_a_directed_graph():
    rng = np.random.default_rng(0)
    A = np.eye(9) + np.roll(np.eye(9), 1, axis=0) + (rng.random((9, 9)) < 0.2)
    graph = T.from_weights(A / A.sum(axis=1, keepdims=True))
    balanced = T.sinkhorn(graph)
    W = balanced.W.toarray()
    assert graph.kind == "row" and balanced.kind == "doubly"
    np.testing.assert_allclose([W.sum(axis=0), W.sum(axis=1)], 1, atol=1e-12)
    assert np.array_equal(W > 0, A > 0)
    ratio = W[A > 0] / graph.W.toarray()[A > 0]  # D1 A D2: of rank one
    logs = np.full((9, 9), np.nan)
    logs[A > 0] = np.log(ratio)
    r, c = np.nonzero(A > 0)
    design = np.eye(9)[r], np.eye(9)[c]
    residual = np.linalg.lstsq(np.hstack(design), np.log(ratio), rcond=None)[1]
    assert residual.sum() < 1e-16


@pytest.mark.parametrize(
    "make",
    [T.ring, T.grid, T.erdos_renyi, "networkx"],
    ids=["ring", "grid", "erdos_renyi", "networkx"],
)
def test_weights_of_the_whole_graph_by_name(make):
    import networkx as nx

    def graph(weights="metropolis"):
        return (
            T.from_networkx(nx.petersen_graph(), weights=weights)
            if make == "networkx"
            else make(12, weights=weights)
        )

    for name, made in [
        ("fdla", T.fastest_mixing(graph())),
        ("fmmc", T.fastest_mixing(graph(), nonnegative=True)),
        ("sinkhorn", T.sinkhorn(graph("uniform"))),
    ]:
        assert graph(name) == made and made.name == graph().name and made.kind == "doubly"
    auto = graph("auto")
    assert np.array_equal(auto.W.toarray(), graph().W.toarray()) and auto != graph()
    for name, choice in auto.choices:
        assert choice == graph(name), name


def test_sinkhorn_by_name_balances_a_directed_graph():
    import networkx as nx

    graph = T.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), weights="sinkhorn")
    assert graph.directed and graph.kind == "doubly"
    with pytest.raises(ValueError, match="sinkhorn balances directed ones"):
        T.exponential(9, weights="fdla")


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("n, seed", [(8, 3), (12, 0), (15, 4)])
def test_no_change_of_single_or_random_weights_is_faster(n, seed, nonnegative):
    graph, rng = T.erdos_renyi(n, seed=seed), np.random.default_rng(seed)
    W = T.fastest_mixing(graph, nonnegative=nonnegative).W.toarray()
    i, j = np.nonzero(np.triu(support(graph), 1))
    least = np.linalg.norm(W - 1 / n, 2)
    directions = [*np.eye(len(i)), *rng.standard_normal((40, len(i)))]
    for direction in directions:
        for step in (0.01, 0.03, -0.01, -0.03):
            V = W.copy()
            V[i, j] = V[j, i] = V[i, j] + step * direction
            np.fill_diagonal(V, 0)
            np.fill_diagonal(V, 1 - V.sum(axis=1))
            if not nonnegative or V.min() >= 0:
                assert np.linalg.norm(V - 1 / n, 2) > least - 2e-4
