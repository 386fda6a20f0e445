"""Plans of all ranks fit together."""

import numpy as np
import pytest

from mpidec import topology as T
from mpidec.comm.runtime.partition import Partition
from mpidec.comm.transport.plan import Routes

pytestmark = [pytest.mark.wide, pytest.mark.library]


def test_a_route_leaves_out_the_ranks_of_the_node():
    """The rows for four ranks with two agents each, of which 0 and 1 share a node."""
    plan = Routes(T.complete(8), Partition(8, 4), 0, np.array([1]))
    assert plan.halo_route.dests.tolist() == plan.halo_route.sources.tolist() == [2, 3]
    assert plan.halo.tolist() == [4, 5, 6, 7] and plan.ins.tolist() == plan.outs.tolist() == [1]
    assert plan.halo_route.send_counts.tolist() == plan.halo_route.recv_counts.tolist() == [2, 2]


def leaving(route, held, rank):
    """What a route sends to a rank, of the rows held."""
    return {
        dest: (held if route.send is None else held[route.send])[a:b]
        for dest, a, b in route.leaving
    }.get(rank, held[:0])


@pytest.mark.serial
def test_plans_of_all_ranks_fit_together_and_make_the_dense_product():
    """Random graphs, agents on ranks, and ranks on nodes; this process plays all ranks."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        size = int(rng.integers(2, 6))
        n, node = int(rng.integers(size, 17)), rng.integers(0, 3, size)
        A = (rng.random((n, n)) < rng.choice([0.1, 0.4])) * rng.random((n, n)) + np.eye(n)
        topology = T.from_weights(A / A.sum(axis=1, keepdims=True), connected=False)
        W, parts = topology.W.toarray(), Partition(n, size)
        near = [np.flatnonzero((node == node[r]) & (np.arange(size) != r)) for r in range(size)]
        plans = [Routes(topology, parts, r, near[r]) for r in range(size)]
        agents = [np.arange(*parts.bounds(r)) for r in range(size)]
        out = [np.argwhere((W - np.diag(np.diag(W))).T[plan.lo : plan.hi]) for plan in plans]
        for r, plan in enumerate(plans):
            halo = np.full(len(plan.halo), -1)
            for source, a, b in plan.halo_route.arriving:
                halo[a:b] = leaving(plans[source].halo_route, agents[source], r)
            np.testing.assert_array_equal(halo, plan.halo)
            held = [agents[r], *(agents[other] for other in plan.ins), halo]
            assert all(r in plans[other].outs for other in plan.ins)
            columns = np.array([held[a][b] for a, b in zip(*plan.sources())], int)
            V = np.zeros((plan.m, n))
            np.add.at(
                V,
                (np.repeat(np.arange(plan.m), np.diff(plan.terms.indptr)), columns),
                plan.terms.w,
            )
            np.testing.assert_array_equal(V, (W - np.diag(np.diag(W)))[plan.lo : plan.hi])

            route, arrival = plan.edge_route
            edges = [[(j + plans[s].lo) * n + i for j, i in out[s]] for s in range(size)]
            come = np.full((len(arrival),), -1)
            for source, a, b in route.arriving:
                come[a:b] = leaving(plans[source].edge_route[0], np.array(edges[source]), r)
            if route.own is not None:
                come[route.own[1]] = np.array(edges[r])[route.send][route.own[0]]
            mine = [j * n + i for i in agents[r] for j in np.flatnonzero(W[i]) if i != j]
            np.testing.assert_array_equal(come, np.array(mine, int)[arrival])
            others = np.setdiff1d(np.arange(size), r)
            places = zip(*plan.edge_places(others))
            ranks = [r, *others]
            assert [edges[ranks[source]][row] for source, row in places] == mine
