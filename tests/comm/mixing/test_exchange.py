"""A different row over each edge."""

import numpy as np
import pytest
from helpers.mixing import TRANSPORTS, random_weights, stack

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [2, 5, 12])
def test_exchange_sends_a_different_row_over_each_edge(n, transport):
    W_dense = random_weights(n, seed=2)
    out = np.argwhere((W_dense != 0).T & ~np.eye(n, dtype=bool))  # (sender, receiver), sorted
    into = np.argwhere((W_dense != 0) & ~np.eye(n, dtype=bool))  # (receiver, sender), sorted
    row = lambda sender, receiver: np.array([100 * sender + receiver, -sender], float)
    with mpidec.Network(n, transport=transport) as net:
        W = net.mixer(T.from_weights(W_dense)).at(0)
        mine = [row(i, j) for i, j in out if net.lo <= i < net.hi]
        expected = [row(j, i) for i, j in into if net.lo <= i < net.hi]
        got = W.exchange(np.reshape(mine, (-1, 2)))
        np.testing.assert_array_equal(got, np.reshape(expected, (-1, 2)))
        X = stack(n)
        total = W.sum_edges(W.exchange(W.to_edges(X[net.lo : net.hi])))
        np.testing.assert_allclose(
            total, (((W_dense != 0) & ~np.eye(n, dtype=bool)) @ X)[net.lo : net.hi], atol=1e-14
        )
        assert W.in_edges == len(got)


def test_an_exchange_of_the_wrong_length_is_refused():
    with mpidec.Network(4) as net:
        W = net.mixer(T.ring(4)).at(0)
        with pytest.raises(ValueError, match="one row for each out-edge"):
            W.exchange(np.zeros((99, 2)))
