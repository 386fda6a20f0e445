"""Rows, graphs and messages for tests of transports."""

import numpy as np

from mpidec import topology as T
from mpidec.comm.runtime.partition import Partition
from mpidec.comm.runtime.row_types import RowTypes
from mpidec.comm.transport.messages import NeighborCollective
from mpidec.comm.transport.plan import Routes

TRANSPORTS = ["neighbor", "p2p"]


def rows(net, d, seed=0):
    """A row for each agent, on all ranks, and the local ones."""
    X = np.random.default_rng(seed).standard_normal((net.n, d))
    return X, X[net.lo : net.hi].copy()


def out_star(n):
    """Agent 0 sends to all others but the last one, which has no neighbour at all."""
    W = np.eye(n)
    W[1 : n - 1, 0] = W[range(1, n - 1), range(1, n - 1)] = 0.5
    return T.from_weights(W, connected=False)


def in_star(n):
    """All but the last one send to agent 0."""
    W = np.eye(n)
    W[0, : max(n - 1, 1)] = 1 / max(n - 1, 1)
    return T.from_weights(W, connected=False)


def messages_of(phase):
    return list(phase._exchange._messages.values())


def exchanges_of(phase):
    return [kept[0] for kept in phase._transport._kept.values()]


def check(net, Y, W, X, rtol=1e-12, atol=1e-14):
    np.testing.assert_allclose(Y, (W @ X)[net.lo : net.hi], rtol=rtol, atol=atol)


def make(kind, comm, topology):
    """Messages of this kind, whether or not they would be chosen, their plan, and the datatypes."""
    plan, row_type = Routes(topology, Partition(comm.size, comm.size), comm.rank), RowTypes(comm)
    if kind is NeighborCollective:
        return kind(comm, row_type, plan.halo_route), plan, row_type
    return kind(comm, row_type, plan), plan, row_type
