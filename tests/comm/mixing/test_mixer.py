"""Mixers against dense products, on any number of ranks: run alone, or under mpirun."""

import numpy as np
import pytest
from helpers.draws import Draws
from helpers.mixing import TRANSPORTS, random_weights, stack
from helpers.transports import check, exchanges_of, messages_of, out_star, rows
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing.mixers import mixer
from mpidec.comm.transport.messages import NeighborCollective, PointToPoint

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 40])
def test_the_dense_product_is_the_oracle(n, transport):
    W_dense, X = random_weights(n, seed=1), stack(n, (2, 3))
    with mpidec.Network(n, transport=transport) as net:
        Y = net.mixer(T.from_weights(W_dense))(X[net.lo : net.hi])
        assert Y.shape == (net.m, 2, 3)
        np.testing.assert_allclose(
            Y, np.tensordot(W_dense, X, 1)[net.lo : net.hi], rtol=1e-13, atol=1e-14
        )


@pytest.mark.parametrize("n", [4, 13])
@pytest.mark.parametrize(
    "make", [T.ring, T.exponential, T.star, T.complete, T.one_peer_exponential]
)
def test_bits_do_not_depend_on_the_ranks(make, n):
    X = stack(n, (7,))
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        W, W_alone = net.mixer(make(n)), alone.mixer(make(n))
        Y, Y_alone = X[net.lo : net.hi], X
        for k in range(20):
            Y, Y_alone = W.at(k)(Y), W_alone.at(k)(Y_alone)
        np.testing.assert_array_equal(Y, Y_alone[net.lo : net.hi])


@pytest.mark.parametrize(
    "dtype, rtol",
    [(np.float32, 1e-6), (np.float64, 1e-14), (np.complex64, 1e-6), (np.complex128, 1e-14)],
)
def test_the_dtype_is_kept(dtype, rtol):
    n, X = 6, stack(6, (4,), dtype)
    with mpidec.Network(n) as net:
        Y = net.mixer(T.exponential(n))(X[net.lo : net.hi])
        assert Y.dtype == dtype
        np.testing.assert_allclose(
            Y, (T.exponential(n).W.toarray() @ X)[net.lo : net.hi], rtol=rtol, atol=rtol
        )


def test_scalars_per_agent_and_rows_without_columns():
    with mpidec.Network(5) as net:
        W = net.mixer(T.ring(5))
        np.testing.assert_allclose(W(np.ones(net.m)), np.ones(net.m))
        assert W(np.ones((net.m, 0))).shape == (net.m, 0)


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_out_is_filled_and_input_is_left_alone(shape):
    with mpidec.Network(6) as net:
        W, X = net.mixer(T.ring(6)), stack(6, shape)[net.lo : net.hi].copy()
        before, out = X.copy(), net.empty(shape)
        assert W(X, out=out) is out
        np.testing.assert_array_equal(X, before)
        np.testing.assert_array_equal(out, W(X))
        if net.m:
            with pytest.raises(ValueError, match="overlaps"):
                W(X, out=X)
        with pytest.raises(ValueError, match="C-contiguous"):
            W(X, out=np.empty((net.m, 4)))


def test_nothing_is_written_behind_large_rows():
    """Rows of 4 MB and more bypass the caches in pieces of 512 columns, of which the last one is not full."""
    with mpidec.Network(max(2, MPI.COMM_WORLD.size)) as net:
        d, X = 600_002, stack(net.n, (1,))
        memory = np.full(net.m * d + 1024, 7.0)
        W, out = net.mixer(T.complete(net.n)), memory[: net.m * d].reshape(net.m, d)
        W(np.tile(X[net.lo : net.hi], d), out=out)
        np.testing.assert_allclose(out[:, [0, -1]], X.mean(), rtol=1e-13)
        assert np.all(memory[net.m * d :] == 7)


def test_pending_mixings_complete_in_any_order():
    n, stacks = 9, [stack(9, (k + 1,), seed=k) for k in range(6)]
    with mpidec.Network(n) as net:
        W = net.mixer(T.exponential(n))
        pending = [W.start(X[net.lo : net.hi]) for X in stacks]
        for k in (3, 0, 5, 1, 4, 2):
            np.testing.assert_array_equal(pending[k].wait(), W(stacks[k][net.lo : net.hi]))
            assert pending[k].wait() is pending[k].wait()


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_any_memory_layout(order):
    n, X = 6, stack(6, (4, 3))
    given = {"C": X, "F": np.asfortranarray(X), "strided": np.repeat(X, 2, axis=1)[:, ::2]}[order]
    with mpidec.Network(n) as net:
        W = net.mixer(T.ring(n))
        np.testing.assert_array_equal(W(given[net.lo : net.hi]), W(X[net.lo : net.hi]))


def test_counters_count_edges_between_agents_whatever_the_ranks():
    n, X = 8, stack(8, (5,))
    with mpidec.Network(n) as net:
        W = net.mixer(T.exponential(n))
        for _ in range(3):
            W(X[net.lo : net.hi])
        assert W.rounds == 3
        assert net.comm.allreduce(W.messages) == 3 * 8 * 3
        assert net.comm.allreduce(W.bytes) == 3 * 8 * 3 * 40


DOUBLY = [
    T.ring,
    T.chain,
    T.star,
    T.complete,
    T.grid,
    T.torus,
    T.binary_tree,
    T.exponential,
    T.symmetric_exponential,
    T.erdos_renyi,
    T.geometric,
    T.small_world,
    T.one_peer_exponential,
    T.ceca,
]


@pytest.mark.serial
@pytest.mark.parametrize("make", DOUBLY)
def test_the_average_survives_a_thousand_mixings(make):
    n = 11
    X = stack(n, (4,)) + 3
    with mpidec.Network(n) as net:
        W, Y = net.mixer(make(n)), X[net.lo : net.hi]
        for k in range(1000):
            Y = W.at(k)(Y)
        drift = abs(net.mean(Y) - X.mean(axis=0)) / abs(X.mean(axis=0))
        assert drift.max() <= 1e-14


def test_a_schedule_moves_on_by_itself():
    n, X = 8, stack(8)
    with mpidec.Network(n) as net:
        W = net.mixer(T.one_peer_exponential(n))
        Y = X[net.lo : net.hi]
        for _ in range(3):
            Y = W(Y)
        np.testing.assert_allclose(Y, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-14)
        assert W.at(0) is W.at(3) is W.at(2).next
        assert W.at(1).at(2) is W.at(2)


def test_rows_that_do_not_fit():
    with mpidec.Network(4) as net:
        W = net.mixer(T.ring(4))
        with pytest.raises(ValueError, match="one row for each agent"):
            W(np.zeros((net.m + 1, 3)))
        with pytest.raises(ValueError, match="one row for each agent"):
            W(np.float64(3))
        with pytest.raises(TypeError, match="expected floating-point numbers"):
            W(np.zeros((net.m, 3), int))


def test_a_topology_of_another_size_is_refused():
    with (
        mpidec.Network(4) as net,
        pytest.raises(ValueError, match="has 5 agents, the network has 4"),
    ):
        net.mixer(T.ring(5))


def test_graphs_are_given_by_name_as_to_solve(comm):
    x = np.arange(3.0) + comm.rank
    with mpidec.Network() as net:
        ring = T.ring(net.n)
        for given in ("ring", T.ring, ring.W, ring):
            W = net.mixer(given)
            np.testing.assert_array_equal(W(x[None]), net.mixer(ring)(x[None]))
        assert (
            net.mixer("one_peer_exponential").topology == T.one_peer_exponential(net.n).at(0)
            or net.n > 2
        )
        with net.window(x, "ring") as window:
            assert window.in_neighbors == ring.in_neighbors(net.rank).tolist()
        net.set_topology("star")
        assert net.topology == T.star(net.n)
        net.set_topology("ring")
        np.testing.assert_array_equal(net.neighbor_allreduce(x), net.mixer(ring)(x[None])[0])
        net.set_machine_topology("complete")
        assert net.machine_topology == T.complete(len(net.machines()))
        assert net.spanning_tree("ring") == net.spanning_tree(ring)


def test_an_unknown_name_of_a_graph_is_refused_on_all_ranks(comm):
    with mpidec.Network() as net:
        name = "ring" if comm.rank else "rign"  # wrong on one rank
        for call in (
            net.mixer,
            net.set_topology,
            net.set_machine_topology,
            net.spanning_tree,
            lambda name: net.window(np.ones(2), name),
        ):
            with pytest.raises(ValueError, match=r"unknown topology 'rign': did you mean ring"):
                call(name)
        with pytest.raises(TypeError, match="topology is the class EXTRA"):
            net.mixer(mpidec.solvers.EXTRA)
        net.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("period", [3, mixer._PHASES, mixer._PHASES + 1])
def test_a_mixer_makes_all_communicators_of_its_schedule(comm, period):
    """So that no mixing waits for ranks that it exchanges nothing with; a long period uses point-to-point messages."""
    with mpidec.Network(transport="neighbor") as net:
        n = net.n
        W = net.mixer(T.cycle([T.ring(n), *[out_star(n)] * (period - 1)]))
        made = [messages_of(phase) for phase in W._phases.values()]
        assert len(made) == (period if period <= mixer._PHASES else 0) and all(made)
        if net.rank == n - 1:
            comm.Barrier()  # this rank has no neighbour in step 1, and comes to it later
        X, mine = rows(net, 3)
        check(net, W.at(1)(mine), W.topology.at(1).W, X)
        if net.rank != n - 1:
            comm.Barrier()
        check(net, W.at(0)(mine), W.topology.at(0).W, X)
        assert type(messages_of(W.at(0))[0]) is (
            NeighborCollective if period <= mixer._PHASES else PointToPoint
        )


@pytest.mark.mpi(min_size=2)
def test_a_random_schedule_keeps_no_requests_and_no_communicators():
    with mpidec.Network(transport="neighbor") as net:
        W = net.mixer(Draws(net.n, 1, "doubly"))
        X, mine = rows(net, 3)
        for k in range(5):
            check(net, W.at(k)(mine), W.topology.at(k).W, X)
            assert all(
                type(one) is PointToPoint for one in messages_of(W.at(k))
            ) and not exchanges_of(W.at(k))
