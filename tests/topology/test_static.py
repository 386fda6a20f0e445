"""Graphs of the catalogue: their parameters, matrices written out, and the reference data.  No MPI."""

import inspect
import itertools
import math

import networkx as nx
import numpy as np
import pytest
from helpers.graphs import EDGES, RANDOM, STATIC

import mpidec.topology as T

pytestmark = pytest.mark.serial


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
    }  # in files of their own
    assert all(inspect.getdoc(make).splitlines()[0] for make in T.CATALOGUE.values())
    assert all(
        inspect.unwrap(getattr(T, name)) is inspect.unwrap(make)
        for name, make in T.CATALOGUE.items()
    )


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


WRONG = [
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
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)
