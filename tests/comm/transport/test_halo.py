"""The halo exchange: many under way, dropped, fetched."""

import numpy as np
import pytest
from helpers.transports import TRANSPORTS, check, out_star, rows

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]


LARGE = 20_005  # numbers in a row that takes more than one packet


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [None, 11])
def test_many_under_way_completed_in_any_order(n, transport):
    with mpidec.Network(n, transport=transport) as net:
        W = net.mixer(T.one_peer_exponential(net.n))
        expected, pending = [], []
        for k in range(12):
            d = (3, LARGE, 3, 5)[k % 4]
            X, mine = rows(net, d, seed=k)
            pending.append((mine, W.at(k // 3).start(mine)))
            expected.append((W.topology.at(k // 3).W @ X)[net.lo : net.hi])
        for k in np.random.default_rng(net.rank).permutation(12):
            np.testing.assert_allclose(pending[k][1].wait(), expected[k], rtol=1e-12, atol=1e-14)
            assert pending[k][1].test()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("d", [3, LARGE])
def test_a_mixing_that_is_dropped_does_not_spoil_the_next_ones(transport, d):
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(T.ring(net.n))
        for k in range(30):
            X, mine = rows(net, d, seed=k)
            pending = W.start(mine)
            if k % 3 == 0:
                check(net, pending.wait(), W.topology.W, X)
            del pending, mine
        assert len(W.at(0)._exchange._under_way) <= 40


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("d", [3, LARGE])
def test_fetched_rows_stay_as_they_are(transport, d):
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(T.ring(net.n)).at(0)
        X, mine = rows(net, d)
        fetched = W.fetch(mine).wait()
        part = fetched[:, 1:2]
        for k in range(5):
            W.fetch(mine + k).wait()
        np.testing.assert_array_equal(fetched, X[W.halo])
        del fetched
        W.fetch(mine + 1).wait()
        np.testing.assert_array_equal(part, X[W.halo, 1:2])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_mixing_that_one_rank_alone_has_made_does_not_come_to_the_next_network(transport):
    """Rank 0 receives nothing here, and so it does not find out; the communicators may have the same number within MPI."""
    for k in range(4):
        with mpidec.Network(transport=transport) as net:
            W = net.mixer(out_star(net.n))
            X = np.full((net.n, 3), float(k))
            for _ in range(1 + (net.rank == 0)):
                check(net, W(X[net.lo : net.hi]), W.topology.W, X)
