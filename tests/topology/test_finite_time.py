"""Exact averaging of any number of agents by symmetric matrices.  No MPI."""

import math
import pickle

import numpy as np
import pytest
from helpers.graphs import product, rounds

import mpidec.topology as T
from mpidec.solvers import GradientTracking

pytestmark = pytest.mark.serial


def assert_exact(schedule, degree):
    n = schedule.n
    assert (schedule.kind, schedule.directed, schedule.spectral_gap()) == ("doubly", False, 1)
    for k in range(schedule.period):
        W = schedule.at(k).W.toarray()
        assert (W == W.T).all() and (W >= 0).all() and abs(W.sum(axis=0) - 1).max() < 1e-15
        assert np.count_nonzero(W - np.diag(np.diag(W)), axis=1).max() <= degree
    assert abs(product(schedule) - 1 / n).max() < 1e-14


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_base_k_averages_exactly(k):
    for n in range(1, 49):
        assert_exact(T.base_k(n, k), k)


def test_lengths_of_base_k():
    lengths = {(6, 1): 4, (7, 1): 5, (12, 1): 5, (13, 1): 7, (24, 1): 6}
    lengths |= {(47, 1): 11, (47, 2): 7, (47, 4): 5, (25, 4): 2, (1, 1): 1, (2, 1): 1, (5, 4): 1}
    assert {key: T.base_k(*key).period for key in lengths} == lengths
    for n, k in [(29, 1), (37, 2), (48, 4)]:  # also where the period begins elsewhere
        schedule = T.base_k(n, k)
        W = np.eye(n)
        for step in range(2 * schedule.period - 1):
            W = schedule.at(3 + step).W.toarray() @ W
        assert abs(W - 1 / n).max() < 1e-14


def test_hypercuboid_averages_within_groups_that_differ_in_one_digit():
    for n in range(1, 49):
        schedule = T.hypercuboid(n)
        assert_exact(schedule, max(n - 1, 0))
        assert n == math.prod(int(1 / schedule.at(k).W[0, 0] + 0.5) for k in range(schedule.period))
    schedule = T.hypercuboid(24, [2, 4, 3])
    for r, p in enumerate([2, 4, 3]):
        digit = [[i // s % q for q, s in ((2, 1), (4, 2), (3, 8))] for i in range(24)]
        for i, j in np.ndindex(24, 24):
            same = all(digit[i][s] == digit[j][s] for s in range(3) if s != r)
            assert schedule.at(r).W[i, j] == (1 / p if same else 0)
    assert schedule.spectral_gap() == 1 and T.hypercuboid(24, (24,)).period == 1


def test_one_peer_hypercube_is_exact_with_one_peer():
    for n in range(1, 65):
        schedule = T.one_peer_hypercube(n)
        assert_exact(schedule, 1)
        if n & (n - 1) == 0:
            assert schedule.period == rounds(n)
            for k, i in np.ndindex(rounds(n), n):
                assert schedule.at(k).neighbors(i).tolist() == [i ^ 2**k] * (n > 1)
        else:
            assert schedule.period <= 2 * math.floor(math.log2(n)) + 1


def test_exact_schedules_of_a_million_agents_are_computed_by_block():
    for schedule in (T.base_k(10**6 + 1, 3), T.hypercuboid(10**6), T.one_peer_hypercube(10**6 - 1)):
        ones = np.ones(schedule.n)
        for k in range(schedule.period):
            lo = 123_456 + 37 * k
            block = schedule.at(k).rows(lo, lo + 500)
            assert abs(block @ ones - 1).max() < 1e-14
            assert (block != schedule.at(k).columns(lo, lo + 500)).nnz == 0
        assert len(pickle.dumps(schedule)) < 20_000


@pytest.mark.parametrize("make", [T.base_k, T.hypercuboid, T.one_peer_hypercube])
def test_gradient_tracking_on_exact_schedules(make):
    """Linear objectives: a period makes all trackers the mean gradient, the next one makes the iterates agree."""
    n, schedule, rng = 7, make(7), np.random.default_rng(0)
    B, solver = rng.standard_normal((n, 3)), GradientTracking(0.1, "semi-atc")
    state = solver.init(rng.standard_normal((n, 3)))
    for k in range(2 * schedule.period):
        W = schedule.at(k).W
        state = solver.step(state, B, lambda parts: [W @ part for part in parts])  # noqa: B023
        exact = abs(state.WY - B.mean(axis=0)).max() < 1e-14
        assert exact or k < schedule.period - 1
    assert np.ptp(state.X, axis=0).max() < 1e-14


WRONG = [
    (lambda: T.base_k(6, 0), ValueError, "base_k: k is 0, expected an integer >= 1"),
    (
        lambda: T.hypercuboid(12, [3, 3]),
        ValueError,
        "hypercuboid: factors [3, 3] have product 9, expected n = 12, e.g. [2, 2, 3]",
    ),
    (lambda: T.hypercuboid(12, 3), TypeError, "factors is 3, expected a sequence of integers"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
