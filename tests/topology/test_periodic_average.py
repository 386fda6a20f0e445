"""Exact averages in every H-th step.  No MPI."""

import math

import numpy as np
import pytest
from helpers.graphs import product

import mpidec.topology as T

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("H", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    "make", [T.ring, T.one_peer_exponential, lambda n: T.star(n, weights="push")]
)
def test_periodic_averages(make, H):
    base, n = make(6), 6
    schedule = T.periodic_average(base, H)
    assert (schedule.name, schedule.n, schedule.period) == (
        "periodic_average",
        n,
        math.lcm(H, base.period),
    )
    for k in range(2 * schedule.period):
        expected = np.full((n, n), 1 / n) if (k + 1) % H == 0 else base.at(k).W.toarray()
        np.testing.assert_allclose(schedule.at(k).W.toarray(), expected, atol=1e-16)
    if base.kind == "doubly":
        assert np.abs(product(schedule) - 1 / n).max() < 1e-15 and schedule.spectral_gap() == 1


WRONG = [
    (lambda: T.periodic_average(T.double_binary_trees(5)), ValueError, "several graphs at once"),
    (
        lambda: T.periodic_average(T.ring(4), 0),
        ValueError,
        "periodic_average: H is 0, expected an integer >= 1",
    ),
    (
        lambda: T.periodic_average(T.ring, 4),
        TypeError,
        "periodic_average: expected a topology or a schedule",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
