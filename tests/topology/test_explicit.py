"""Topologies of matrices and of networkx graphs.  No MPI."""

import contextlib
import warnings

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
    G = nx.MultiGraph()
    G.add_nodes_from("abc")
    G.add_edges_from([("c", "a"), ("a", "c"), ("a", "b"), ("b", "b")])
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
        "2 components, nodes 0 and 2",
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
        "sum to 2, expected at most 1",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def relabelled(name, order=range(12)):
    """A ring whose agent i is the node name(i), added in an order."""
    G = nx.Graph()
    G.add_nodes_from(name(i) for i in order)
    G.add_edges_from((name(i), name((i + 1) % 12)) for i in order)
    return G


MIXED = np.random.default_rng(0).permutation(12).tolist()


@pytest.mark.parametrize(
    ("name", "order", "said"),
    [
        (int, range(12), ""),
        (int, MIXED, ""),
        (str, range(12), ""),
        ("agent{}".format, range(12), ""),
        ("{:03}".format, range(12), ""),
        ("abcdefghijkl".__getitem__, range(12), ""),
        (lambda i: (i // 4, i % 4), range(12), ""),
        (str, MIXED, "agent 2 is node '2'"),
        ("agent{}".format, MIXED, "agent 1 is node 'agent1'"),
        (lambda i: i + 1, range(12), "agent 0 is node 1"),
        (lambda i: str(10 * i), range(12), "agent 1 is node '10'"),
        ("abcdefghijkl".__getitem__, MIXED, "agent 0 is node 'a'"),
        (lambda i: (i // 4, i % 4), MIXED, r"agent 1 is node \(0, 1\)"),
    ],
)
def test_nodes_are_numbered_as_numbers_and_what_may_be_read_otherwise_is_said(name, order, said):
    G = relabelled(name, order)
    with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
        graph = T.from_networkx(G)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        changing = T.from_function(12, lambda k: G).at(0)
    for made in (graph, changing):
        assert (made.W != T.ring(12).W).nnz == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "exact",
    [
        T.erdos_renyi(30, seed=1),
        T.sinkhorn(T.from_weights(T.exponential(9).W)),
        T.star(30, weights="uniform"),
        T.from_weights(T.star(30, weights="uniform").W.T),
    ],
    ids=["symmetric", "doubly", "row", "column"],
)
def test_weights_of_lower_precision(exact, dtype):
    W = exact.W.toarray()
    made = T.from_weights(W.astype(dtype))
    assert made.kind == exact.kind
    np.testing.assert_allclose(made.W.toarray(), W, rtol=30 * np.finfo(dtype).eps)
    with pytest.raises(ValueError, match="sums to"):
        T.from_weights((W * (1 + 100 * np.finfo(dtype).eps)).astype(dtype))


def test_remedies_of_wrong_weights_are_remedies():
    G = nx.cycle_graph(["x", "y", "z"])
    for weight, words in [
        (0.6, "edges into node 'x' sum to 1.2.*distances or capacities"),
        (3, "edges into node 'x' sum to 6"),
        (-0.1, r"edge \('x', 'y'\) has weight -0.1"),
        (np.nan, "expected a finite number"),
    ]:
        nx.set_edge_attributes(G, weight, "weight")
        with pytest.raises(ValueError, match=words) as error:
            T.from_networkx(G, weights="weight")
        assert "weights='metropolis' ignores them" in str(error.value)
        assert T.from_networkx(G, weights="metropolis").kind == "doubly"
    negative = [[1.2, -0.2], [-0.2, 1.2]]
    with pytest.raises(ValueError, match="signed=True allows it"):
        T.from_weights(negative)
    assert T.from_weights(negative, signed=True).kind == "doubly"
    for matrix in (nx.to_numpy_array(G, weight=None), nx.laplacian_matrix(G, weight=None)):
        with pytest.raises(ValueError, match=r'kind="any" makes a graph filter|signed=True'):
            T.from_weights(matrix)
        assert T.from_weights(matrix, kind="any").kind == "any"
    apart = nx.Graph([("u", "v"), ("x", "y")])
    with pytest.raises(ValueError, match=r"nodes 'u' and 'x' .*connected=False allows it"):
        T.from_networkx(apart)
    assert T.from_networkx(apart, connected=False).n == 4


@pytest.mark.parametrize("weights", [None, "sinkhorn", "push", "fdla", 0.5])
def test_that_a_directed_graph_is_not_connected_is_said_before_its_weights(weights):
    path = nx.DiGraph([(0, 1), (1, 2), (2, 3)])
    with pytest.raises(ValueError, match="is not strongly connected: it has 4 components"):
        T.from_networkx(path, weights)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (
            "distance",
            "'distance', an attribute of the edges, expected one of weight, .*'metropolis'",
        ),
        ("weights", r"'weights', expected one of .* or a number \(did you mean weight\?\)"),
        ("metropolos", r"did you mean metropolis\?"),
    ],
)
def test_a_word_that_names_no_weights_is_refused_with_a_suggestion(weights, says):
    graph = nx.cycle_graph(4)
    nx.set_edge_attributes(graph, 2.0, "distance")
    with pytest.raises(ValueError, match=says):
        T.from_networkx(graph, weights)
