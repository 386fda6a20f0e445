"""Topologies of matrices and of networkx graphs.  No MPI."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.graphs import assert_canonical, dense_weights

import mpidec.topology as T

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    "wrap", [np.asarray, sp.csr_array, sp.coo_array, sp.csc_matrix, np.ndarray.tolist]
)
def test_from_weights_takes_any_matrix_and_keeps_its_numbers(wrap):
    W = T.grid(6).W.toarray()
    topology = T.from_weights(wrap(W))
    assert (topology.W.toarray() == W).all() and topology.kind == "doubly" and topology.symmetric
    assert_canonical(topology.W)


def test_from_weights_finds_out_kind_and_direction():
    row = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.25, 0, 0.75]])
    made = T.from_weights(row)
    assert (made.kind, made.directed, made.symmetric, made.in_neighbors(0).tolist()) == (
        "row",
        True,
        False,
        [1],
    )
    assert T.from_weights(row.T).kind == "column" and T.from_weights(row.T).out_neighbors(
        0
    ).tolist() == [1]
    assert T.from_weights([[0, 1], [1, 0]]).W.nnz == 2
    assert T.from_weights(np.eye(3), connected=False).spectral_gap() == 0
    assert T.from_weights([[1.5, -0.5], [-0.5, 1.5]], signed=True).kind == "doubly"
    csr = sp.csr_array(row)
    made = T.from_weights(csr)
    csr.data[:] = 7
    assert (made.W.toarray() == row).all()  # a copy
    noisy = T.ring(5).W.toarray() + 1e-13
    assert T.from_weights(noisy / noisy.sum(axis=1)).kind == "doubly"


def test_from_networkx_numbers_nodes_and_drops_what_it_must():
    G = nx.MultiGraph([("c", "a"), ("a", "c"), ("a", "b"), ("b", "b")])
    topology = T.from_networkx(G)
    assert (topology.W != T.from_networkx(nx.Graph([(2, 0), (0, 1)])).W).nnz == 0
    assert topology.neighbors(0).tolist() == [1, 2] and topology.is_tree
    for seed in range(3):
        G = nx.gnp_random_graph(25, 0.3, seed=seed)
        G = G.subgraph(max(nx.connected_components(G), key=len))
        A = nx.to_numpy_array(G, nodelist=sorted(G)) > 0
        for weights in ("metropolis", "uniform", "push", 0.03):
            np.testing.assert_allclose(
                T.from_networkx(G, weights).W.toarray(), dense_weights(A, weights), atol=3e-16
            )


def test_from_networkx_of_directed_graphs():
    G = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])  # u -> v: u sends to v
    A = nx.to_numpy_array(G, nodelist=range(3)).T > 0
    for weights, kind in (("uniform", "row"), ("push", "column"), (0.3, "row")):
        topology = T.from_networkx(G, weights)
        assert (
            topology.directed
            and topology.kind == kind
            and topology.out_neighbors(0).tolist() == [1, 2]
        )
        np.testing.assert_allclose(topology.W.toarray(), dense_weights(A, weights), atol=3e-16)
    cycle = T.from_networkx(nx.cycle_graph(5, nx.DiGraph))  # regular: legal
    assert cycle.kind == "doubly" and cycle.W.data.tolist() == [0.5] * 10
    G = nx.DiGraph([(0, 1, {"weight": 0.5}), (1, 0, {"weight": 0.25})])
    assert T.from_networkx(G, "weight").W.toarray().tolist() == [[0.75, 0.25], [0.5, 0.5]]


ROW = [[0.5, 0.75], [0.5, 0.5]]
WRONG = [
    (
        lambda: T.from_weights(np.eye(2), kind="doubly"),
        ValueError,
        "from_weights: kind is 'doubly', expected one of '', any (which sums are 1 follows from W)",
    ),
    (
        lambda: T.from_weights(ROW),
        ValueError,
        'agent 0: row of W sums to 1.25, expected 1 (kind="any" makes a graph filter; '
        "metropolis weights of the same graph: topology.from_networkx(G))",
    ),
    (
        lambda: T.from_weights([[0.5, 0.2, 0], [0.5, 0.6, 0.3], [0, 0.3, 0.7]]),
        ValueError,
        "agent 1: column of W sums to 1.1",
    ),
    (
        lambda: T.from_weights([[1.5, -0.5], [-0.5, 1.5]]),
        ValueError,
        "agent 0: W[0, 1] = -0.5, expected >= 0",
    ),
    (
        lambda: T.from_weights([[1, 0], [0, np.nan]]),
        ValueError,
        "agent 1: W[1, 1] = nan, expected a finite number",
    ),
    (lambda: T.from_weights([[np.inf, 0], [0, 1]]), ValueError, "= inf, expected a finite number"),
    (lambda: T.from_weights(np.eye(2) * 1j), TypeError, "complex128, expected real numbers"),
    (lambda: T.from_weights([["a"]]), TypeError, "expected real numbers"),
    (lambda: T.from_weights(np.eye(2, dtype=bool)), TypeError, "bool, expected real numbers"),
    (lambda: T.from_weights(np.ones((2, 3)) / 3), ValueError, "shape (2, 3), expected (n, n)"),
    (lambda: T.from_weights([[1], [0, 1]]), ValueError, "ragged"),
    (lambda: T.from_weights([]), ValueError, "shape (0,)"),
    (lambda: T.from_weights(np.eye(0)), ValueError, "expected (n, n) with n >= 1"),
    (lambda: T.from_weights(1.0), ValueError, "shape ()"),
    (
        lambda: T.from_weights(np.eye(3)),
        ValueError,
        "is not connected: it has 3 components, agents 0 and 1",
    ),
    (lambda: T.from_weights([[1, 0], [0.5, 0.5]]), ValueError, "not strongly connected"),
    (lambda: T.from_weights(nx.path_graph(3)), TypeError, "from_networkx takes a graph"),
    (lambda: T.from_weights(T.ring(3)), TypeError, "it is a topology already"),
    (lambda: T.from_networkx(np.eye(2)), TypeError, "from_weights takes a matrix"),
    (lambda: T.from_networkx(nx.Graph()), ValueError, "no nodes"),
    (lambda: T.from_networkx(nx.Graph([(0, "a")])), TypeError, "convert_node_labels_to_integers"),
    (
        lambda: T.from_networkx(nx.Graph([(0, 1), (2, 3)])),
        ValueError,
        "2 components, agents 0 and 2",
    ),
    (
        lambda: T.from_networkx(nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 0)])),
        ValueError,
        "'uniform' row stochastic",
    ),
    (
        lambda: T.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0)]), "best_constant"),
        ValueError,
        "undirected",
    ),
    (
        lambda: T.from_networkx(nx.path_graph(3), "weight"),
        ValueError,
        "has weight None, expected a number",
    ),
    (
        lambda: T.from_networkx(nx.Graph([(0, 1, {"weight": 2.0})]), "weight"),
        ValueError,
        "W[0, 0] = -1, expected >= 0",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)
