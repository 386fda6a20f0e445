"""Sparsifiers: which entries they keep."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.codecs import rows, through

from mpidec.comm.mixing.codecs import RandK, TopK, codec

pytestmark = pytest.mark.serial


def test_rand_k_loses_what_it_says_and_every_place_as_often():
    c, X, times = RandK(k=5, seed=7), rows(2, 20), 1500
    Y = np.array([through(c, X, step) for step in range(times)])
    hits = (Y[:, 0] != 0).mean(axis=0)
    assert (abs(hits - 0.25) < 5 * np.sqrt(0.25 * 0.75 / times)).all()
    np.testing.assert_array_equal(Y[:, 0] != 0, Y[:, 1] != 0)  # the same places for all agents
    np.testing.assert_allclose(
        np.square(Y - X).sum(axis=2).mean(axis=0),
        (1 - c.delta(20)) * np.square(X).sum(axis=1),
        rtol=0.05,
    )
    chosen = [set(np.flatnonzero(y)) for y in Y[:, 0]]
    assert np.mean([len(a & b) for a, b in pairwise(chosen)]) == pytest.approx(
        5 * 0.25, rel=0.1
    )  # no overlap of streams


@pytest.mark.parametrize("d", [3, 1024, 1025, 70000, 200_001])
def test_top_k_keeps_the_largest(d):
    c, X = TopK(fraction=0.1), rows(2, d)
    Y, k = through(c, X), TopK(fraction=0.1).kept(d)
    assert ((Y != 0).sum(axis=1) == k).all()
    np.testing.assert_array_equal(Y[Y != 0], X[Y != 0])
    for x, y in zip(abs(X), abs(Y)):
        assert np.sort(x)[-k] == y[y != 0].min()


@pytest.mark.parametrize("d", [1000, 3000])
def test_top_k_of_equals_takes_the_first(d):
    X = np.tile([1.0, -1.0, 2.0, 0.0], (2, d // 4))
    k = d // 4 + 10
    np.testing.assert_array_equal(
        np.flatnonzero(through(TopK(k=k), X)[0]),
        np.sort(np.r_[np.flatnonzero(X[0] == 2), np.flatnonzero(abs(X[0]) == 1)[:10]]),
    )


@pytest.mark.parametrize(
    "c", [TopK(k=9), RandK(k=9), TopK(fraction=1), RandK(fraction=1.0)], ids=repr
)
def test_all_entries_are_the_row(c):
    for d in (1, 5, 9):
        X = rows(3, d)
        np.testing.assert_array_equal(through(c, X), X)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: codec("top_k", fration=0.1), "did you mean fraction"),
        (lambda: codec(TopK(), k=3), "already has its parameters"),
        (lambda: TopK(fraction=0), "fraction is 0"),
        (lambda: TopK(k=0), "k is 0, expected an integer from 1"),
        (lambda: RandK(fraction=1.5), "fraction is 1.5"),
        (lambda: TopK(fraction="a"), "fraction is 'a'"),
        (lambda: RandK(seed=-1), "seed is -1"),
    ],
)
def test_wrong_parameters_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
