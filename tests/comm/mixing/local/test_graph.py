"""The topologies of local-view calls."""

import contextlib

import numpy as np
import pytest
from helpers.local import disagree, stack

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.most(2), pytest.mark.library]


@pytest.mark.parametrize(
    "make", [T.ring, T.exponential, T.star, T.complete, T.one_peer_exponential]
)
def test_a_topology_mixes_as_its_mixer_does(net, make):
    x = stack(net.n, (2, 3))[net.rank]
    net.set_topology(make(net.n))
    W = net.mixer(make(net.n))
    for _ in range(5):
        y = net.neighbor_allreduce(x)
        np.testing.assert_array_equal(y, W(x[None])[0])
        x = y


def test_pulling_along_a_schedule(net):
    net.set_topology(T.one_peer_exponential(net.n))
    for k in range(7):
        W = T.one_peer_exponential(net.n).at(k).W.toarray()
        X, i = stack(net.n, seed=k), net.rank
        y = net.neighbor_allreduce(
            X[i], 0.25, {j: 0.5 + k for j in range(net.n) if j != i and W[i, j] != 0}
        )
        expected = 0.25 * X[i] + sum(
            (0.5 + k) * X[j] for j in range(net.n) if j != i and W[i, j] != 0
        )
        np.testing.assert_allclose(y, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("start", [False, True])
def test_a_call_that_fails_takes_its_step_of_the_schedule(start):
    with mpidec.Network(transport="p2p") as net:
        W = [lazy * np.eye(net.n) + (1 - lazy) / net.n for lazy in (0.25, 0.5, 0.75)]
        net.set_topology(T.cycle([T.from_weights(one) for one in W]))
        X = stack(net.n)
        call = (
            (lambda x: net.start_neighbor_allreduce(x).wait()) if start else net.neighbor_allreduce
        )
        with pytest.raises(ValueError, match=r"rank \d+ has rows"):
            call(np.ones(3 + net.rank))
        np.testing.assert_allclose(call(X[net.rank]), (W[1] @ X)[net.rank])


@pytest.mark.mpi(min_size=2)
def test_different_topologies_and_roots(net):
    with pytest.raises(ValueError, match=r"set_topology: .* different topologies .*rank"):
        net.set_topology(T.ring(net.n) if net.rank else T.star(net.n))
    net.barrier()
    disagree(net, lambda: net.broadcast(1.0, int(net.rank == 1)), "rank ")


@pytest.mark.mpi(min_size=3)
def test_the_machine_disagrees(net, monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    count = -(-net.n // 2)
    net.set_machine_topology(T.ring(count))
    if net.rank < 2:
        with pytest.raises(ValueError, match="rank 1 and rank 0 of machine 0"):
            net.hierarchical_neighbor_allreduce(1.0, 1.0 + net.rank, {}, {})


@pytest.mark.parametrize("transport", ["auto", "p2p", "neighbor"])
def test_topologies_that_have_been_set(transport, monkeypatch):
    """They are kept, and begin at their first step; the oldest is forgotten."""
    with mpidec.Network(transport=transport) as net:
        n, i, x = net.n, net.rank, stack(net.n)
        some = [T.ring(n), T.one_peer_exponential(n), T.star(n), T.complete(n)]
        lazy = [T.from_weights(a * np.eye(n) + (1 - a) / n) for a in np.linspace(0.1, 0.9, 20)]

        def mixes(graph):
            net.set_topology(graph)
            assert net.topology == graph
            W = graph.at(0).W.toarray()
            np.testing.assert_allclose(net.neighbor_allreduce(x[i]), (W @ x)[i], atol=1e-13)
            net.set_topology(graph)
            src = {j: 2.0 + j for j in np.flatnonzero(W[i]).tolist() if j != i}
            y = net.neighbor_allreduce(x[i], 0.5, src)
            np.testing.assert_allclose(y, 0.5 * x[i] + sum(w * x[j] for j, w in src.items()))

        for graph in (*some, *lazy, *some):
            mixes(graph)
        with monkeypatch.context() as patch:
            patch.setattr(net.mixers, "make", None)  # which makes one with all ranks
            for graph in (*some[::-1], *some):
                mixes(graph)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("transport", ["auto", "p2p"])
def test_ranks_that_set_different_ones_of_them(transport, weights):
    net = mpidec.Network(transport=transport)
    W = np.full((net.n, net.n), 1 / net.n)
    graphs = [T.from_weights(W), T.from_weights((W + np.eye(net.n)) / 2)]
    for graph in graphs:
        net.set_topology(graph)
    net.set_topology(graphs[net.rank % 2])
    with pytest.raises(ValueError, match=r"rank [01]"):
        net.neighbor_allreduce(np.ones(2), *(1.0, {}) if weights else ())
    with contextlib.suppress(ValueError):
        net.close()
