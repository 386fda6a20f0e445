"""Graphs of the catalogue: their parameters, and matrices written out.  No MPI."""

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
