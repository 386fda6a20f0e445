"""The catalogue of topologies: against dense formulas, networkx, BlueFog's numbers and the reference data.  No MPI."""

import contextlib
import dataclasses
import inspect
import itertools
import math
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import mpidec.topology as T
from mpidec.driver.arguments import as_topology
from mpidec.topology.drawing import positions
from mpidec.topology.given import as_graph

pytestmark = pytest.mark.serial

SIZES = range(1, 41)
POWERS = [1, 2, 4, 8, 16, 32]
STATIC = [name for name, make in T.CATALOGUE.items() if isinstance(make(2), T.Topology)]
RANDOM = ["erdos_renyi", "geometric", "small_world"]
RULES = [name for name in STATIC if name not in RANDOM]
REGULAR = ["ring", "complete", "torus", "hypercube", "exponential", "symmetric_exponential"]
TREES = ["chain", "star", "binary_tree", "regular_tree", "spanning_tree"]


def sizes(name):
    some = ("base_k", "inner_outer", "matcha", "periodic_average")  # with many phases
    return POWERS if name == "hypercube" else [*range(1, 13), 21, 40] if name in some else SIZES


# ---------------------------------------------------------------------------------------------------------------------
# The graphs, written down a second time: pairs (sender, receiver)


def nearer(n):
    """Of each agent but the root, the last neighbour on the shortest path from the root that is first in lexical order."""
    G = nx.DiGraph(sorted(EDGES["symmetric_exponential"](n))).to_undirected()
    return {(i, min(nx.all_shortest_paths(G, 0, i))[-2]) for i in range(1, n)}


def both(edges):
    return {pair for i, j in edges if i != j for pair in ((i, j), (j, i))}


def mesh(n, periodic):
    rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    columns = n // rows
    number = {node: node[0] * columns + node[1] for node in nx.grid_2d_graph(rows, columns)}
    return both(
        (number[u], number[v]) for u, v in nx.grid_2d_graph(rows, columns, periodic=periodic).edges
    )


def powers(base, most):
    return [base**t for t in range(64) if base**t <= most]


EDGES = {
    "ring": lambda n: both({(i, (i + 1) % n) for i in range(n)}),
    "chain": lambda n: both(nx.path_graph(n).edges),
    "star": lambda n: both(nx.star_graph(n - 1).edges),
    "complete": lambda n: both(nx.complete_graph(n).edges),
    "grid": lambda n: mesh(n, periodic=False),
    "torus": lambda n: mesh(n, periodic=True),
    "hypercube": lambda n: {(i, j) for i in range(n) for j in range(n) if (i ^ j).bit_count() == 1},
    "binary_tree": lambda n: both(
        {(0, 1)} | {(w // 2, w) for w in range(2, n)} if n > 1 else set()
    ),
    "regular_tree": lambda n: both(
        {
            ((w - 4) // 2 + 1 if w > 3 else 0, w) for w in range(1, n)
        }  # agents 1, 2, 3 below the root
    ),
    "spanning_tree": lambda n: both(nearer(n)),
    "exponential": lambda n: {(i, (i + h) % n) for i in range(n) for h in powers(2, n - 1)},
    "symmetric_exponential": lambda n: both(
        {(i, (i + h) % n) for i in range(n) for h in powers(4, n // 2)}
    ),
}


def adjacency(n, edges):
    A = np.zeros((n, n), bool)  # A[i, j]: i receives from j
    for sender, receiver in edges:
        A[receiver, sender] = True
    return A


def dense_weights(A, weights):
    """The definitions, one entry at a time."""
    n = len(A)
    incoming, outgoing = A.sum(axis=1), A.sum(axis=0)
    W = np.zeros((n, n))
    for i, j in zip(*np.nonzero(A)):
        degree = {
            "metropolis": max(incoming[i], outgoing[j]),
            "uniform": incoming[i],
            "push": outgoing[j],
        }
        W[i, j] = 1 / (1 + degree[weights]) if weights in degree else weights
    rest = 1 - W.sum(axis=0 if weights == "push" else 1)
    return W + np.diag(rest)


@pytest.mark.parametrize("name", RULES)
def test_graph_and_metropolis_weights_by_definition(name):
    for n in sizes(name):
        expected = dense_weights(adjacency(n, EDGES[name](n)), "metropolis")
        np.testing.assert_allclose(T.CATALOGUE[name](n).W.toarray(), expected, atol=3e-16)


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


def test_every_entry_of_the_catalogue_is_checked_here():
    assert set(STATIC) == {*EDGES, *RANDOM}
    assert set(T.CATALOGUE) - set(STATIC) == {
        "base_k",
        "ceca",
        "equitopo",
        "failing_links",
        "double_binary_trees",
        "hypercuboid",
        "inner_outer",
        "matcha",
        "periodic_average",
        "random_matchings",
        "one_peer_exponential",
        "one_peer_hypercube",
        "sampled_average",
        "sleeping_agents",
    }  # test_schedules.py, and tests/solvers/test_federated.py
    assert all(inspect.getdoc(make).splitlines()[0] for make in T.CATALOGUE.values())
    assert all(
        inspect.unwrap(getattr(T, name)) is inspect.unwrap(make)
        for name, make in T.CATALOGUE.items()
    )


# ---------------------------------------------------------------------------------------------------------------------
# Properties of every topology in the catalogue, n = 1, ..., 40


@pytest.mark.parametrize("name", RULES)
def test_runs_of_rows_make_up_W(name):
    for n in (1, 2, 8, 32):
        topology = T.CATALOGUE[name](n, weights=0.03)
        if (runs := topology.source.runs()) is None:
            assert name not in ("ring", "complete", "exponential", "symmetric_exponential")
            continue
        W, end = np.zeros((n, n)), 0
        for start, stop, shifts, weights in runs:
            assert start == end < stop and (np.diff(shifts) > 0).all()
            for i in range(start, end := stop):
                W[i, i + shifts] = weights
        assert end == n and (topology.W.toarray() == W).all()


def assert_canonical(W):
    """Columns ascend in each row, nothing off the diagonal is a stored zero, and the flags are true."""
    assert (
        W.has_sorted_indices
        and W.has_canonical_format
        and W.indptr[0] == 0
        and W.indptr[-1] == W.nnz == len(W.data)
    )
    rows = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    assert (np.diff(rows * W.shape[1] + W.indices.astype(np.int64)) > 0).all()
    W.check_format(full_check=True)


@pytest.mark.parametrize(
    ("make", "rho"),
    [
        (lambda: T.exponential(4), 1 / 3),
        (lambda: T.exponential(6), 1 / 2),
        (lambda: T.exponential(8), 1 / 2),
        (lambda: T.exponential(16), 0.6),
        (lambda: T.exponential(4, base=3), 1 / 3),
        (lambda: T.exponential(6, 3), 0.5773503),
        (lambda: T.symmetric_exponential(4), 1 / 3),
        (lambda: T.symmetric_exponential(6), 2 / 3),
        (lambda: T.symmetric_exponential(8), 1 / 2),
        (lambda: T.symmetric_exponential(4, base=2), 0),
        (lambda: T.symmetric_exponential(6, base=2), 0.2),
        (lambda: T.grid(4), 1 / 3),
        (lambda: T.grid(6), 0.75),
        (lambda: T.grid(8), 0.8535534),
        (lambda: T.grid(16), 0.8690343),
        (lambda: T.star(4), 3 / 4),
        (lambda: T.star(6), 5 / 6),
        (lambda: T.ring(4), 1 / 3),
        (lambda: T.ring(6), 2 / 3),
        (lambda: T.ring(8), 0.8047379),
        (lambda: T.ring(16), 0.9492530),
        (lambda: T.complete(7), 0),
    ],
)
def test_spectral_radii_that_bluefog_has(make, rho):
    assert 1 - make().spectral_gap() == pytest.approx(rho, abs=5e-4)


def test_matrices_written_out():
    third, quarter = 1 / 3, 1 / 4
    np.testing.assert_allclose(
        T.exponential(4).W.toarray() * 3, [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1]]
    )
    corner, middle = 5 / 12, 1 / 4
    np.testing.assert_allclose(
        T.grid(6).W.toarray(),
        [
            [corner, quarter, 0, third, 0, 0],
            [quarter, middle, quarter, 0, quarter, 0],
            [0, quarter, corner, 0, 0, third],
            [third, 0, 0, corner, quarter, 0],
            [0, quarter, 0, quarter, middle, quarter],
            [0, 0, third, 0, quarter, corner],
        ],
    )
    assert (T.ring(2).W.toarray() == 0.5).all()
    for name in T.CATALOGUE:
        assert T.CATALOGUE[name](1).at(0).W.toarray().tolist() == [[1.0]]
    star = T.star(5, center=3).W.toarray()
    assert star[3].tolist() == pytest.approx([0.2] * 5) and star[0].tolist() == pytest.approx(
        [0.8, 0, 0, 0.2, 0]
    )


# ---------------------------------------------------------------------------------------------------------------------
# Parameters


def test_shapes_of_grid_and_torus():
    assert T.grid(12).neighbors(0).tolist() == [1, 4]  # 3 x 4
    assert T.grid(12, shape=(2, 6)).neighbors(0).tolist() == [1, 6]
    assert T.grid(7) == T.grid(7, shape=[1, 7]) and (T.grid(7).W != T.chain(7).W).nnz == 0
    assert (T.torus(10, shape=(1, 10)).W != T.ring(10).W).nnz == 0
    assert (T.ring(4).W[[0, 1, 3, 2]][:, [0, 1, 3, 2]] != T.torus(4).W).nnz == 0
    cube = T.torus(27, shape=np.array([3, 3, 3]))
    assert len(cube.neighbors(13)) == 6 and cube.spectral_gap() == pytest.approx(3 / 7)
    for shape, periodic in itertools.product([(2, 3, 4), (5, 1, 3), (2, 2, 2)], (False, True)):
        G = nx.relabel_nodes(
            H := nx.grid_graph(shape[::-1], periodic=periodic),
            dict(zip(sorted(H), itertools.count())),
        )
        made = (T.torus if periodic else T.grid)(math.prod(shape), shape)
        assert {tuple(sorted(e)) for e in made.to_networkx().edges} == {
            tuple(sorted(e)) for e in G.edges if e[0] != e[1]
        }
        assert made.spectral_gap() == pytest.approx(1 - np.linalg.svd(made.W.toarray())[1][1])


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


@pytest.mark.parametrize("name", RANDOM)
def test_random_graphs_belong_to_their_seed(name):
    make = T.CATALOGUE[name]
    graphs = [make(30, seed=seed) for seed in range(5)]
    assert len({graph.fingerprint() for graph in graphs}) == 5
    assert graphs[3] == make(30, seed=3) and graphs[3] == make(30, seed=np.int64(3))
    assert make(30, seed=3, weights="uniform").kind == "row"
    assert make(30, seed=3, weights="push").kind == "column"


def test_draws_are_repeated_until_a_graph_is_connected():
    degrees = [T.erdos_renyi(20, p=0.12, seed=seed).source.arcs for seed in range(20)]
    assert np.mean(degrees) > 1.1 * 0.12 * 20 * 19  # the sparse ones are not connected
    assert all(T.geometric(20, radius=0.3, seed=seed).connected for seed in range(20))


def test_random_graphs_have_the_statistics_of_their_models():
    n, p = 60, 0.2
    edges = [T.erdos_renyi(n, p, seed=s).source.arcs // 2 for s in range(60)]
    pairs = n * (n - 1) // 2
    assert abs(np.mean(edges) - p * pairs) < 4 * math.sqrt(p * (1 - p) * pairs / 60)
    assert T.erdos_renyi(20, 1.0).W.nnz == 400
    times = sum((T.erdos_renyi(n, p, seed=s).W.toarray() > 0) for s in range(60))[
        np.triu_indices(n, 1)
    ]
    assert times.max() < 32 and times.mean() == pytest.approx(
        12, rel=0.05
    )  # each pair as likely as the others

    ring = T.small_world(20, k=6, p=0)
    assert (ring.neighbors(0) == [1, 2, 3, 17, 18, 19]).all()
    rewired = T.small_world(200, k=6, p=0.25, seed=1)
    assert rewired.source.arcs == 200 * 6
    kept = sum(
        min((i - j) % 200, (j - i) % 200) <= 3 for i in range(200) for j in rewired.neighbors(i)
    ) / (200 * 6)
    assert kept == pytest.approx(0.75, abs=0.06)
    assert T.small_world(3, k=4).W.nnz == 9

    unit = T.geometric(400, radius=0.15, seed=2)
    assert unit.source.arcs / 2 == pytest.approx(math.pi * 0.15**2 * 400 * 399 / 2, rel=0.25)
    assert T.geometric(10, radius=2).W.nnz == 100


def test_large_graphs_by_block():
    n = 10**6
    for name in set(RULES) - {"spanning_tree"}:  # computed from a stored graph
        topology = T.CATALOGUE[name](2**20 if name == "hypercube" else n)
        for block in (topology.rows(777_777, 777_779), topology.columns(777_777, 777_779)):
            assert_canonical(block)
            np.testing.assert_allclose(block.sum(axis=1), 1, rtol=1e-12)
            assert (block.indices.dtype == np.int32) and block.nnz <= 2 * (
                n if name == "complete" else 21
            )
    assert T.exponential(n).in_neighbors(5).tolist() == sorted((5 - 2**t) % n for t in range(20))
    assert T.exponential(n).spectral_gap() == pytest.approx(2 / 21)
    assert T.ring(n).spectral_gap() == pytest.approx(4 / 3 * math.sin(math.pi / n) ** 2, rel=1e-3)
    assert T.hypercube(2**12).spectral_gap() == pytest.approx(2 / 13)
    big = T.ring(3 * 10**9).rows(5, 7)
    assert big.indices.dtype == np.int64 and big.indices.tolist() == [4, 5, 6, 5, 6, 7]
    assert T.grid(3 * 10**9).rows(0, 1).nnz == 3


def test_blocks_computed_in_pieces_are_the_rows_of_W():
    for topology in (
        T.grid(40_000),
        T.binary_tree(40_000, weights="uniform"),
        T.star(40_000, center=20_000),
    ):
        whole = topology.rows(0, 40_000)
        assert_canonical(whole)
        for block, expected in (
            (topology.rows(19_990, 20_010), whole),
            (topology.columns(19_990, 20_010), whole.T.tocsr()),
        ):
            assert (block != expected[19_990:20_010]).nnz == 0


@threadpool_limits.wrap(limits=1)  # threads of BLAS that spin are slow where others use the cores
def test_large_spectra_without_dense_matrices():
    for topology in (
        T.chain(601),
        T.grid(625),
        T.star(700),
        T.erdos_renyi(700),
        T.from_weights(T.exponential(700).W),
    ):
        sigma = np.linalg.svd(topology.W.toarray(), compute_uv=False)
        assert topology.spectral_gap() == pytest.approx(1 - sigma[1], rel=1e-7)
    row = T.erdos_renyi(700, weights="uniform")
    values = np.sort(np.abs(np.linalg.eigvals(row.W.toarray())))
    assert row.spectral_gap() == pytest.approx(1 - values[-2], rel=1e-7)
    small = T.star(9, weights="uniform")
    assert small.spectral_gap() == pytest.approx(
        1 - np.sort(np.abs(np.linalg.eigvals(small.W.toarray())))[-2]
    )
    best = T.grid(625, weights="best_constant").W.toarray()
    values = np.linalg.eigvalsh(nx.laplacian_matrix(nx.grid_2d_graph(25, 25)).toarray())
    assert -best[0, 1] * (values[-1] + values[1]) == pytest.approx(-2, rel=1e-8)


# ---------------------------------------------------------------------------------------------------------------------
# From the user's matrix or graph


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


@pytest.mark.parametrize("name", RULES)
def test_to_networkx_and_back(name):
    topology = T.CATALOGUE[name](16)
    G = topology.to_networkx()
    assert G.is_directed() == topology.directed and list(G) == list(range(16))
    np.testing.assert_allclose(
        T.from_networkx(G, "weight").W.toarray(), topology.W.toarray(), atol=3e-16
    )
    assert G.nodes[3]["self_weight"] == topology.W[3, 3]
    assert not T.star(4, weights="uniform").to_networkx().is_directed()


# ---------------------------------------------------------------------------------------------------------------------
# Frozen, equal, picklable; the same everywhere


def distinct():
    for name in T.CATALOGUE:
        yield from (T.CATALOGUE[name](n) for n in (4, 8, 16))
    yield from (
        T.star(8, center=1),
        T.grid(8, shape=(1, 8)),
        T.chain(8, weights="uniform"),
        T.chain(8, weights=0.2),
        T.chain(8, weights=0.25),
        T.exponential(8, base=3),
        T.symmetric_exponential(8, base=2),
        T.ceca(8, ports=1),
        T.ceca(8, ports=1, parity="repository"),
        T.cycle([T.ring(8)]),
        T.cycle([T.ring(8), T.chain(8)]),
        T.base_k(8, 3),
        T.random_matchings(T.ring(8)),
        T.random_matchings(T.ring(8), seed=1),
        T.matcha(T.ring(8)),
        T.matcha(T.ring(8), 0.3),
        T.matcha(T.ring(8), seed=1),
        T.spanning_tree(T.torus(8)),
        T.spanning_tree(T.torus(8), root=3),
        T.hypercuboid(8, [4, 2]),
        T.hypercuboid(8, [2, 4]),
        T.inner_outer(8, kind="ring"),
        T.inner_outer(8, 8),
        T.regular_tree(8, 4),
        T.equitopo(8, "OU"),
        T.equitopo(8, eta=0.4),
        T.equitopo(8, seed=1),
        T.equitopo(8, M=3),
        T.equitopo(8, "D-static"),
        T.cycle([T.chain(8), T.ring(8)]),
        T.from_weights(T.ring(8).W),
        T.from_networkx(nx.cycle_graph(8)),
    )


OTHER = {  # values of the parameters of graphs, beside the default
    "weights": ["uniform", "push", "lazy", "max_degree", "best_constant", 0.11, 0.12],
    "seed": [3],
    "base": [3],
    "k": [2, 3],
    "ports": [1],
    "parity": ["repository"],
    "kind": ["OU", "D-static", "U-static", "ring"],
    "M": [3],
    "eta": [0.3],
    "p": [0.3, 0.8],
    "radius": [0.6],
    "shape": [(1, 8), (2, 4), (4, 2)],
    "factors": [[4, 2], [2, 4]],
    "machine_size": [2, 4],
    "fraction": [0.3],
    "degree": [4],
    "center": [2],
    "reverse": [True],
    "budget": [0.3, 0.9],
    "H": [2, 3],
    "root": [3],
}


def varied():
    """Graphs of 8 agents with each value of each parameter; schedules over a graph also with several of these."""
    for make in T.CATALOGUE.values():
        names = [*inspect.signature(make).parameters][1:]
        for graph in ["ring", "chain", "exponential"] if "graph" in names else [None]:
            over = {} if graph is None else {"graph": graph}
            for options in (
                {},
                *({name: value} for name in names for value in OTHER.get(name, ())),
            ):
                with contextlib.suppress(ValueError):
                    yield make(8, **over, **options)
    yield T.random_matchings(T.star(8, center=7))  # whose edges begin where those of a chain do
    for graph in (T.star(8), T.exponential(8)):
        yield T.cycle([graph, T.ring(8)])
        yield T.push_pull(graph, T.chain(8, weights="push"))
        yield T.push_pull(T.chain(8, weights="uniform"), graph)


def test_no_two_matrices_share_a_fingerprint():
    """Of graphs, of schedules, and of the graphs of their steps."""
    known, steps = {}, {}
    for graph in varied():
        matrices = []
        for k in range(min(graph.period or 12, 12)):
            phase = graph.at(k)
            parts = (phase.R, phase.C) if phase.kind == "pair" else (phase,)
            matrices += [b"".join(part.W.toarray().tobytes() for part in parts)]
            assert steps.setdefault(phase.fingerprint(), matrices[-1]) == matrices[-1], graph
        assert known.setdefault(graph.fingerprint(), matrices) == matrices, graph
    assert len(steps) > 300 and {*OTHER} | {"graph", "ties"} == {
        name for make in T.CATALOGUE.values() for name in [*inspect.signature(make).parameters][1:]
    }


def test_fingerprints_tell_topologies_apart_and_are_the_same_in_every_process():
    prints = [topology.fingerprint() for topology in distinct()]
    assert len(set(prints)) == len(prints) and all(0 <= number < 2**63 for number in prints)
    code = "import sys, test_topology; print([t.fingerprint() for t in test_topology.distinct()])"
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=__file__.rsplit("/", 1)[0],
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "PYTHONHASHSEED": "12", "PYTHONPATH": ":".join(sys.path)},
    )
    assert out.stdout.strip() == str(prints), out.stderr


def test_pickles_are_equal_small_and_read_only():
    for topology in distinct():
        if isinstance(topology, T.Topology):
            _ = topology.W, topology.fingerprint()
        copy = pickle.loads(pickle.dumps(topology))
        assert copy == topology and hash(copy) == hash(topology) and repr(copy) == repr(topology)
        assert not copy.at(0).W.data.flags.writeable
    assert len(pickle.dumps(T.exponential(10**6))) < 2000


def test_topologies_are_frozen():
    for topology in (T.ring(4), T.grid(4), T.from_weights(np.eye(1)), T.erdos_renyi(5)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            topology.name = "other"
        with pytest.raises(AttributeError):
            topology.n = 5
        with pytest.raises(ValueError, match="read-only"):
            topology.W.data[0] = 0
        topology.rows(0, 1).data[:] = 0  # fresh
        topology.columns(0, 1).data[:] = 0
        topology.in_neighbors(0)[:] = 0
        assert topology.rows(0, 1).sum() == pytest.approx(1)
    assert repr(T.ring(4)) == "Topology('ring', n=4, kind='doubly', directed=False)"
    assert T.ring(4) != "ring" and T.ring(4) != T.ring(5) and T.ring(4) == T.ring(np.int32(4))


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 8, 30])
def test_double_binary_trees(n):
    one, two = T.double_binary_trees(n)
    assert one == T.binary_tree(n) and two.is_tree and two == T.binary_tree(n, reverse=True)
    assert (two.W.toarray() == one.W.toarray()[::-1, ::-1]).all() and (two.name, two.n) == (
        "binary_tree",
        n,
    )
    degrees = [len(one.neighbors(i)) + len(two.neighbors(i)) for i in range(n)]
    assert degrees[1:-1] == [4] * (n - 2) and {degrees[0], degrees[-1]} == {2 * (n > 1)}
    weighted = T.double_binary_trees(n, weights="uniform")
    assert (
        weighted[1].W.toarray() == T.binary_tree(n, weights="uniform").W.toarray()[::-1, ::-1]
    ).all()
    with pytest.raises(TypeError, match="reverse is 1, expected True or False"):
        T.binary_tree(n, reverse=1)


# ---------------------------------------------------------------------------------------------------------------------
# Reference data


def test_reference_matrices_of_relaysgd(reference):
    data = reference("static_topologies")
    names = {
        "ring": T.ring,
        "chain": T.chain,
        "star": T.star,
        "full": T.complete,
        "bintree": T.binary_tree,
        "hypercube": T.hypercube,
    }
    checked = 0
    for name, n in itertools.product(names, (4, 6, 8, 16)):
        if (key := f"relaysgd__{name}__n{n}__W") in data:
            np.testing.assert_allclose(names[name](n).W.toarray(), data[key], atol=3e-16)
            checked += 1
        if (key := f"relaysgd__{name}__n{n}__edges") in data:
            edges = {tuple(sorted(edge)) for edge in names[name](n).to_networkx().edges}
            assert edges == {tuple(sorted(edge)) for edge in data[key].tolist()}
    assert checked == 23
    mirrored = T.binary_tree(8, reverse=True).W.toarray()
    np.testing.assert_allclose(
        mirrored, reference("relaysgd_sim")["topo__bintree_rev__W"], atol=3e-16
    )
    social = nx.davis_southern_women_graph()
    names_ = {node: k for k, node in enumerate(social)}
    made = T.from_networkx(nx.relabel_nodes(social, names_))
    np.testing.assert_allclose(made.W.toarray(), data["relaysgd__social__W"], atol=5e-16)
    roots = [int(key.split("root")[1].split("__")[0]) for key in data if "social_tree" in key]
    assert len(roots) == 5
    for root in roots:
        edges = {tuple(sorted(edge)) for edge in T.spanning_tree(made, root).to_networkx().edges}
        wanted = data[f"relaysgd__social_tree_root{root}__edges"].tolist()
        assert edges == {tuple(sorted(edge)) for edge in wanted}


def test_reference_matrices_of_ceca(reference):
    data = reference("static_topologies")  # rows are senders there
    for key, W in data.items():
        if not key.startswith("ceca__"):
            continue
        _, name, size, _ = key.split("__")
        n = int(size[1:])
        if name == "onepeer_exp":
            schedule = T.one_peer_exponential(n)
            assert schedule.period == len(W)
            assert all((schedule.at(k).W.toarray() == W[k].T).all() for k in range(len(W)))
        elif name == "ring" or name == "static_exp":
            made = {"ring": T.ring, "static_exp": T.exponential}[name](n)
            np.testing.assert_allclose(made.W.toarray(), W.T, atol=3e-16)
        elif n in (4, 16):  # the grid is only meaningful on squares,
            pattern = W > 0  # and has other weights
            assert ((T.grid(n).W.toarray() > 0) == pattern).all()


# ---------------------------------------------------------------------------------------------------------------------
# Wrong calls

ROW = [[0.5, 0.75], [0.5, 0.5]]
WRONG = [
    (lambda: T.ring(0), ValueError, "ring: n is 0, expected an integer >= 1"),
    (lambda: T.ring(-3), ValueError, "n is -3"),
    (lambda: T.ring(4.0), TypeError, "n is 4.0"),
    (lambda: T.ring(True), TypeError, "n is True"),
    (lambda: T.ring("8"), TypeError, "n is '8'"),
    (lambda: T.ring(None), TypeError, "n is None"),
    (lambda: T.ring([4]), TypeError, "n is [4]"),
    (lambda: T.ring(np.array([4, 5])), TypeError, "n is array([4, 5])"),
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
    (
        lambda: T.star(5, center=5),
        ValueError,
        "star: center is 5, expected an integer from 0 to 4",
    ),
    (lambda: T.star(5, center=-1), ValueError, "center is -1, expected an integer from 0 to 4"),
    (lambda: T.star(5, center=1.5), TypeError, "center is 1.5, expected an integer"),
    (lambda: T.grid(6, shape=(2, 2)), ValueError, "shape (2, 2) has product 4, expected n = 6"),
    (
        lambda: T.grid(6, shape="2x3"),
        TypeError,
        "shape is '2x3', expected a sequence of integers with product n = 6, e.g. (2, 3)",
    ),
    (lambda: T.grid(6, shape=6), TypeError, "shape is 6, expected a sequence"),
    (
        lambda: T.torus(6, shape=(-2, -3)),
        ValueError,
        "torus: shape is -2, expected an integer >= 1",
    ),
    (lambda: T.torus(6, shape=()), ValueError, "shape () has product 1"),
    (lambda: T.hypercube(12), ValueError, "n = 12 is not a power of two, the nearest are 8 and 16"),
    (lambda: T.exponential(8, base=1), ValueError, "base is 1, expected an integer >= 2"),
    (lambda: T.exponential(8, base=2.5), TypeError, "base is 2.5, expected an integer"),
    (lambda: T.exponential(8, weights="best_constant"), ValueError, "need an undirected graph"),
    (lambda: T.symmetric_exponential(8, base=0), ValueError, "base"),
    (
        lambda: T.erdos_renyi(8, p=1.5),
        ValueError,
        "p is 1.5, expected a finite number > 0 and <= 1",
    ),
    (
        lambda: T.erdos_renyi(8, p="half"),
        TypeError,
        "p is 'half', expected a finite number > 0 and <= 1",
    ),
    (
        lambda: T.erdos_renyi(50, p=0.01),
        ValueError,
        "was connected (raise p; the default is 0.1565)",
    ),
    (lambda: T.erdos_renyi(8, seed=-1), ValueError, "seed is -1, expected an integer >= 0"),
    (lambda: T.erdos_renyi(8, seed=None), TypeError, "seed is None, expected an integer"),
    (lambda: T.geometric(50, radius=0.01), ValueError, "raise radius; the default is 0.3956"),
    (lambda: T.geometric(50, radius=0), ValueError, "radius is 0, expected a finite number > 0"),
    (lambda: T.small_world(20, k=3), ValueError, "k is 3, expected an even number"),
    (lambda: T.small_world(20, k=0), ValueError, "k is 0, expected an integer >= 2"),
    (
        lambda: T.small_world(20, p=-0.1),
        ValueError,
        "p is -0.1, expected a finite number >= 0 and <= 1",
    ),
    (
        lambda: T.from_weights(ROW),
        ValueError,
        "agent 0: row of W sums to 1.25, expected 1 (metropolis weights of the "
        "same graph: topology.from_networkx(G))",
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
    (
        lambda: T.ring(4).in_neighbors(4),
        ValueError,
        "ring.in_neighbors: agent is 4, expected an integer from 0 to 3",
    ),
    (
        lambda: T.ring(4).out_neighbors(-1),
        ValueError,
        "agent is -1, expected an integer from 0 to 3",
    ),
    (
        lambda: T.ring(4).rows(2, 5),
        ValueError,
        "ring.rows: hi is 5, expected an integer from 0 to 4",
    ),
    (lambda: T.ring(4).rows(3, 2), ValueError, "lo is 3, expected an integer from 0 to 2"),
    (lambda: T.ring(4).columns(0, 2.0), TypeError, "hi is 2.0, expected an integer"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_networkx_is_imported_only_where_it_is_used():
    code = "import sys, mpidec.topology as T; T.erdos_renyi(9), T.ceca(9); sys.exit('networkx' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**__import__("os").environ, "PYTHONPATH": ":".join(sys.path)},
        ).returncode
        == 0
    )


def test_graphs_of_a_users_function_have_its_name():
    def mine(n):
        return nx.cycle_graph(n)

    def weighted(n):
        return T.from_weights(np.full((n, n), 1 / n))

    assert (as_graph(mine, 5).name, as_graph(weighted, 5).name) == ("mine", "weighted")
    assert as_graph(T.ring, 5) == T.ring(5) == as_graph("ring", 5)
    assert as_graph(nx.cycle_graph(5), 5).name == "from_networkx"
    assert as_topology(mine, 5).name == "mine"
    np.testing.assert_allclose(  # drawn by distance, as without the name
        positions(as_graph(mine, 5)), positions(as_graph(nx.cycle_graph(5), 5))
    )


def test_a_graph_of_a_file_has_the_name_of_its_function(tmp_path):
    (tmp_path / "graphs.py").write_text("def mine(n):\n    return [[1 / n] * n] * n\n")
    assert as_graph(f"{tmp_path}/graphs.py:mine", 4).name == "mine"
