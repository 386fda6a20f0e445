"""The weights of the edges, by their definitions.  No MPI."""

import networkx as nx
import numpy as np
import pytest
from helpers.graphs import EDGES, RANDOM, RULES, adjacency, dense_weights, sizes

import mpidec.topology as T

pytestmark = pytest.mark.serial


REGULAR = ["ring", "complete", "torus", "hypercube", "exponential", "symmetric_exponential"]


@pytest.mark.parametrize("weights", ["uniform", "push", 0.04])
@pytest.mark.parametrize("name", RULES)
def test_other_weights_by_definition(name, weights):
    for n in sizes(name):
        if isinstance(weights, float) and name in ("complete", "star") and n > 25:
            continue
        topology = T.CATALOGUE[name](n, weights=weights)
        expected = dense_weights(adjacency(n, EDGES[name](n)), weights)
        np.testing.assert_allclose(topology.W.toarray(), expected, atol=3e-16)
        doubly = np.allclose(expected.sum(axis=0), 1) and np.allclose(expected.sum(axis=1), 1)
        assert topology.kind == (
            "doubly" if doubly else {"uniform": "row", "push": "column"}[weights]
        )
        assert (topology.columns(0, n).toarray() == topology.W.toarray().T).all()


@pytest.mark.parametrize("name", RULES)
def test_the_largest_edge_weight_is_one_over_the_largest_degree(name):
    for n in (2, 4, 8, 16, 32):
        most = adjacency(n, EDGES[name](n)).sum(axis=1).max()
        W = T.CATALOGUE[name](n, weights=1 / most).W
        assert W.diagonal().min() == 0 and W.data.min() >= 0
        with pytest.raises(ValueError, match=r"at most .* on this graph"):
            T.CATALOGUE[name](n, weights=1.01 / most)


@pytest.mark.parametrize("name", REGULAR)
def test_on_a_regular_graph_three_weights_are_one(name):
    first, *others = (
        T.CATALOGUE[name](16, weights=weights) for weights in ("metropolis", "uniform", "push")
    )
    assert all(other == first and other.kind == "doubly" for other in others)


@pytest.mark.parametrize(
    "name",
    [
        "chain",
        "star",
        "grid",
        "binary_tree",
        "ring",
        "torus",
        "hypercube",
        "complete",
        "symmetric_exponential",
        *RANDOM,
    ],
)
def test_best_constant_is_the_best_constant(name):
    for n in (2, 8, 16):
        best = T.CATALOGUE[name](n, weights="best_constant")
        G = T.CATALOGUE[name](n).to_networkx()
        L = nx.laplacian_matrix(G, nodelist=range(n), weight=None).toarray()
        values = np.linalg.eigvalsh(L)
        np.testing.assert_allclose(
            best.W.toarray(), np.eye(n) - 2 / (values[-1] + values[1]) * L, atol=1e-12
        )
        assert best.symmetric and best.kind == "doubly"
        for factor in (0.9, 1.1):
            W = np.eye(n) - factor * 2 / (values[-1] + values[1]) * L
            assert np.linalg.svd(W)[1][1] > 1 - best.spectral_gap() - 1e-12 or n == 2


WRONG = [
    (lambda: T.ring(4, weights="metropoliss"), ValueError, "did you mean metropolis?"),
    (lambda: T.ring(4, weights="foo"), ValueError, "auto or a number"),
    (lambda: T.ring(4, weights=True), TypeError, "is True"),
    (
        lambda: T.ring(4, weights=None),
        TypeError,
        "weights (an edge's weight) is None, expected a finite number > 0",
    ),
    (lambda: T.ring(4, weights=0), ValueError, "is 0, expected a finite number > 0"),
    (lambda: T.ring(4, weights=-0.1), ValueError, "is -0.1"),
    (lambda: T.ring(4, weights=float("nan")), ValueError, "is nan"),
    (lambda: T.ring(4, weights=float("inf")), ValueError, "is inf"),
    (lambda: T.ring(4, weights=0.51), ValueError, "(at most 0.5 on this graph)"),
    (lambda: T.star(5, weights=0.3), ValueError, "(at most 0.25 on this graph)"),
    (lambda: T.exponential(8, weights="best_constant"), ValueError, "need an undirected graph"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make", [T.grid, T.symmetric_exponential, T.exponential, T.star, T.erdos_renyi]
)
@pytest.mark.parametrize("weights, gamma", [("lazy", 0.5), ("lazy(0.8)", 0.8)])
def test_lazy_weights(make, weights, gamma):
    n = 7
    want = (1 - gamma) * np.eye(n) + gamma * make(n).W.toarray()
    np.testing.assert_allclose(make(n, weights=weights).W.toarray(), want, atol=1e-15)


@pytest.mark.parametrize("weights", ["lazy()", "lazy(0)", "lazy(1.5)", "lazy(a)", "lazy(nan)"])
def test_wrong_lazy_weights(weights):
    with pytest.raises(ValueError, match=r"lazy\(gamma\)"):
        T.ring(5, weights=weights)


def variances(n):
    return np.random.default_rng(n).uniform(0.1, 3, n)


@pytest.mark.parametrize("graph", [T.chain, T.star, T.ring, T.grid, T.geometric, T.erdos_renyi])
def test_weights_of_variances_by_definition(graph):
    for n in (2, 7, 12):
        v, A = variances(n), graph(n).W.toarray() > 0
        np.fill_diagonal(A, False)
        degree = 1 + A.sum(axis=1)
        expected = np.zeros((n, n))
        for i, j in np.argwhere(A):
            expected[i, j] = v[i] / max(degree[i] * v[i], degree[j] * v[j])
        expected += np.diag(1 - expected.sum(axis=1))
        W = graph(n, weights=T.hastings(v))
        np.testing.assert_allclose(W.W.toarray(), expected, atol=3e-16)
        assert (W.name, W.kind) == (graph(n).name, "row")
        np.testing.assert_allclose(1 / v @ expected, 1 / v, rtol=1e-12)  # the stationary vector
        near = A | np.eye(n, dtype=bool)
        expected = near / v / (near / v).sum(axis=1, keepdims=True)
        W = graph(n, weights=T.relative_variance(v))
        np.testing.assert_allclose(W.W.toarray(), expected, atol=3e-16)
        np.testing.assert_allclose(
            graph(n, weights=T.hastings(np.full(n, 2.0))).W.toarray(),
            graph(n).W.toarray(),
            atol=3e-16,
        )


def test_weights_of_variances_of_directed_graphs():
    v = variances(6)
    W = T.from_networkx(nx.DiGraph([(i, (i + 1) % 6) for i in range(6)]), T.relative_variance(v))
    np.testing.assert_allclose(W.W.toarray()[3, 2:4], (1 / v / (1 / v[2:4]).sum())[2:4])
    with pytest.raises(ValueError, match=r"directed: use topology.relative_variance"):
        T.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0)]), T.hastings(v[:3]))
    with pytest.raises(ValueError, match=r"ring: weights=hastings\(variances\) of 6 agents, expe"):
        T.ring(5, weights=T.hastings(v))
    with pytest.raises(ValueError, match="hastings: agent 1: variance 0, expected > 0"):
        T.hastings([1.0, 0.0])
    with pytest.raises(TypeError, match="expected a number for each agent"):
        T.relative_variance("metropolis")
    edges = T.star(6).W.toarray() > 0
    schedule = T.from_function(6, lambda k: edges, kind="row", weights=T.hastings(v))
    assert (schedule.at(1).W != T.star(6, weights=T.hastings(v)).W).nnz == 0
