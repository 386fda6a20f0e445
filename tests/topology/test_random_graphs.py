"""Random graphs: seeds, connectedness, statistics.  No MPI."""

import math

import numpy as np
import pytest
from helpers.graphs import RANDOM

import mpidec.topology as T

pytestmark = pytest.mark.serial


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


WRONG = [
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
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)
