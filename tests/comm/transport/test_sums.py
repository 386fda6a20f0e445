"""Weighted sums over messages and the memory of the node."""

import numpy as np
import pytest
from helpers.transports import TRANSPORTS, check, exchanges_of, in_star, out_star, rows
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.transport import sums
from mpidec.comm.transport.node_reader import NodeReader

pytestmark = [pytest.mark.wide, pytest.mark.library]


LARGE = 20_005  # numbers in a row that takes more than one packet


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("topology", [out_star, in_star])
def test_mixing_with_ranks_without_neighbours(topology, transport):
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(topology(net.n))
        for d in (3, LARGE):
            X, mine = rows(net, d)
            for _ in range(3):
                check(net, W(mine), W.topology.W, X)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "topology",
    [T.ring, T.complete, T.exponential, lambda n: T.star(n, weights="push"), out_star, in_star],
)
@pytest.mark.parametrize("per", [1, 2, 3])
def test_several_nodes_of_several_ranks(monkeypatch, comm, per, topology):
    """Rows of the node are read in place, all others come in messages, by persistent requests from the second time on."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
    with (
        mpidec.Network(2 * comm.size + 1, transport="shared") as net,
        mpidec.Network(net.n, MPI.COMM_SELF) as alone,
    ):
        W, alone_W = net.mixer(topology(net.n)), alone.mixer(topology(net.n))
        for d in (3, LARGE):
            Y, mine = rows(net, d)
            for k in range(6):
                Z = W(mine) if k % 3 else W.start(mine).wait()
                mine[...] = np.nan
                Y = alone_W(Y)
                np.testing.assert_array_equal(Z, Y[net.lo : net.hi])
                mine = Z
        near = net.node.near if net.node is not None else np.array([net.rank])
        assert len(near) <= per
        plan = W.at(0)._transport._plan if not isinstance(W.at(0)._transport, NodeReader) else None
        if plan is not None:
            assert not set(plan.partition.owner(plan.halo).tolist()) & set(near.tolist())
            assert not set(plan.halo_route.sources.tolist()) & set(near.tolist())
            assert not set(plan.halo_route.dests.tolist()) & set(near.tolist())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocking_and_started_mixings_take_turns(transport):
    """Persistent requests meet messages that are sent without them, on the same communicator and in the same order."""
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(T.ring(net.n))
        for k in range(20):
            X, mine = rows(net, 3, seed=k)
            begun = W.start(mine + 1)
            if (
                k + net.rank
            ) % 2:  # where this rank makes them of another kind, it is still the same one
                check(net, W(mine), W.topology.W, X)
            else:
                check(net, W.start(mine).wait(), W.topology.W, X)
            check(net, begun.wait(), W.topology.W, X + 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_shapes_and_dtypes(transport):
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(T.ring(net.n)).at(0)
        late = []
        for d in [*range(1, 15), 1, LARGE, 2, LARGE + 1, 14]:
            X, mine = rows(net, d, seed=d)
            for dtype in (np.float64, np.float32):
                Y = W.start(mine.astype(dtype))
                if d % 5 == 0:
                    late.append((Y, d))
                else:
                    check(net, Y.wait(), W.topology.W, X, 1e-5, 1e-6)
            check(net, W(mine), W.topology.W, X)
        for Y, d in late:
            check(net, Y.wait(), W.topology.W, rows(net, d, seed=d)[0], 1e-5, 1e-6)
        assert net.size == 1 or len(exchanges_of(W)) <= sums._KINDS


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("d", [3, LARGE])
def test_rows_may_be_changed_as_soon_as_a_mixing_returns(transport, d):
    with mpidec.Network(transport=transport) as net:
        W, mine, out = net.mixer(T.complete(net.n)), np.empty((net.m, d)), np.empty((net.m, d))
        for k in range(30):
            X = rows(net, d, seed=k)[0]
            mine[...] = X[net.lo : net.hi]
            Y = W(mine, out=out) if k % 2 else W(mine)
            mine[...] = np.nan
            check(net, Y, W.topology.W, X)
