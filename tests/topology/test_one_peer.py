"""One-peer exponential graphs.  No MPI."""

import numpy as np
import pytest
from helpers.graphs import product, rounds

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_one_peer_exponential_by_definition():
    for n in range(1, 41):
        schedule = T.one_peer_exponential(n)
        assert (schedule.n, schedule.period, schedule.kind) == (n, rounds(n), "doubly")
        assert schedule.directed == (n > 2)
        for k in range(2 * schedule.period):
            W = np.eye(n) / 2
            for i in range(n):
                W[i, (i - 2 ** (k % schedule.period)) % n] += 0.5
            assert (schedule.at(k).W.toarray() == W).all()
            assert schedule.at(k) is schedule.at(k + schedule.period)


def test_one_peer_exponential_averages_exactly_for_powers_of_two_alone():
    for n in range(1, 70):
        schedule = T.one_peer_exponential(n)
        exact = np.abs(product(schedule) - 1 / n).max() < 1e-15
        assert exact == (n & (n - 1) == 0)
        assert (schedule.spectral_gap() == 1) == exact
    assert np.abs(product(T.one_peer_exponential(6)) - 1 / 6).max() == pytest.approx(1 / 12)
    assert T.one_peer_exponential(2**14).spectral_gap() == 1


WRONG = [
    (
        lambda: T.one_peer_exponential(0),
        ValueError,
        "one_peer_exponential: n is 0, expected an integer >= 1",
    ),
    (lambda: T.one_peer_exponential(2.0), TypeError, "n is 2.0"),
    (lambda: T.one_peer_exponential(4).at(-1), ValueError, "k is -1, expected an integer >= 0"),
    (
        lambda: T.one_peer_exponential(4).at(1.0),
        TypeError,
        "k is 1.0, expected an integer >= 0",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
