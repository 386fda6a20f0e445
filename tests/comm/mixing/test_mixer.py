"""Mixers against dense products, on any number of ranks: run alone, or under mpirun."""

import os
from typing import ClassVar

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.kernels import weighted as kernel
from mpidec.comm.transport import plan

pytestmark = [pytest.mark.wide, pytest.mark.library]

TRANSPORTS = ["auto", "neighbor", "p2p"]


def random_weights(n, seed, density=0.3):
    """A strongly connected, directed, row-stochastic matrix (a cycle and some more edges)."""
    rng = np.random.default_rng([seed, n])
    W = (
        (rng.random((n, n)) < density) * rng.random((n, n))
        + np.eye(n)
        + np.roll(np.eye(n), 1, axis=1)
    )
    return W / W.sum(axis=1, keepdims=True)


def stack(n, shape=(3,), dtype=float, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, *shape))
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(dtype).kind == "c" else X).astype(
        dtype
    )


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


def test_many_arrays_travel_as_one():
    n, X, p = 7, stack(7, (3, 2)), stack(7, ())
    with mpidec.Network(n) as net:
        W = net.mixer(T.exponential(n))
        x, w = X[net.lo : net.hi], p[net.lo : net.hi]
        together, rounds = W([x, w]), W.rounds
        np.testing.assert_array_equal(together[0], W(x))
        np.testing.assert_array_equal(together[1], W(w))
        assert rounds == 1
        mixed = W([x, w.astype(np.float32)])
        assert [Y.dtype for Y in mixed] == [np.float64, np.float32]
        assert W([]) == []


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize(
    "make",
    [
        T.ring,
        T.star,
        T.exponential,
        lambda n: T.star(n, weights="push"),
        lambda n: T.from_weights(random_weights(n, 3).T),
        lambda n: T.from_weights(random_weights(n, 3)),
    ],
)
def test_the_compiled_kernel_and_numpy_have_the_same_bits(make, dtype, monkeypatch):
    n, X = 150, stack(150, (600,), dtype)
    with mpidec.Network(n) as net:
        W, x = net.mixer(make(n)), X[net.lo : net.hi]
        compiled = W(x)
        monkeypatch.setattr(kernel, "_kernel", None)
        np.testing.assert_array_equal(W(x).view(np.uint8), compiled.view(np.uint8))


@pytest.mark.serial
@pytest.mark.parametrize(
    "make", [T.ring, T.exponential, T.one_peer_exponential, T.symmetric_exponential]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_runs_of_rows_have_the_bits_of_single_rows(make, dtype, monkeypatch):
    n, X = 2500, stack(2500, (3,), dtype)
    with mpidec.Network(n) as net:
        runs = net.mixer(make(n)).at(1)(X)
        with monkeypatch.context() as context:
            context.setattr(kernel, "_kernel", None)
            np.testing.assert_array_equal(net.mixer(make(n)).at(1)(X), runs)
        monkeypatch.setattr(plan, "_MANY", n + 1)
        np.testing.assert_array_equal(net.mixer(make(n)).at(1)(X), runs)


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


def test_mean_and_gather():
    n = 10
    X = stack(n, (3, 2))
    with mpidec.Network(n) as net:
        np.testing.assert_allclose(net.mean(X[net.lo : net.hi]), X.mean(axis=0), atol=1e-15)
        whole = net.gather(X[net.lo : net.hi])
        assert (whole is None) == (net.rank > 0)
        if net.rank == 0:
            np.testing.assert_array_equal(whole, X)
        np.testing.assert_array_equal(net.scatter(whole), X[net.lo : net.hi])


def test_the_mean_of_half_precision_is_rounded_once():
    """The sum, 91,000, is larger than any float16, and 1001.0 / 10 is not the rounded sum divided by 10."""
    n = 10
    X = np.array([[9100.0, 100.1]] * n, np.float16)
    X[0] += np.array([0.0, 1.0], np.float16)
    with mpidec.Network(n) as net:
        mine = X[net.lo : net.hi]
        for mean in (net.mean(mine), net.mean(mine.astype(">f2")), net.mean(list(mine))):
            assert mean.dtype == np.float16
            np.testing.assert_array_equal(mean, X.astype(float).mean(axis=0).astype(np.float16))


@pytest.mark.parametrize("columns", [1, 2, 3, 30])
def test_sums_have_the_same_bits_on_any_number_of_ranks(columns):
    n = 1000
    X = stack(n, (columns,))
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        np.testing.assert_array_equal(net.sum(X[net.lo : net.hi]), alone.sum(X))


def test_more_ranks_than_agents(comm):
    with mpidec.Network(1) as net:
        W = net.mixer(T.complete(1))
        np.testing.assert_array_equal(W(np.full((net.m, 2), 7.0)), np.full((net.m, 2), 7.0))
        assert net.m == (comm.rank == 0)
        assert net.mean(np.full((net.m, 2), 7.0)).tolist() == [7.0, 7.0]


def test_what_is_no_intracommunicator_is_refused(comm):
    wrong = {"5, expected an intracommunicator": 5, "MPI.COMM_NULL, expected": MPI.COMM_NULL}
    local = comm.Split(comm.rank % 2, comm.rank)
    if comm.size > 1:
        wrong["an intercommunicator, expected"] = local.Create_intercomm(0, comm, 1 - comm.rank % 2)
    for words, given in wrong.items():
        with pytest.raises(TypeError, match=words):
            mpidec.Network(comm=given)
    local.Free()


def test_a_communicator_of_the_callers(comm):
    half = comm.Split(comm.rank % 2, comm.rank)
    with mpidec.Network(5, comm=half) as net:
        assert net.size == half.size
        np.testing.assert_allclose(
            net.mixer(T.complete(5))(np.arange(5.0)[net.lo : net.hi]), np.full(net.m, 2.0)
        )
    half.Free()


class Watched(MPI.Intracomm):
    """A communicator that remembers those that are made of it."""

    made: ClassVar = []

    def Dup(self, *args):
        return self._noted(super().Dup(*args))

    def Split_type(self, *args):
        return self._noted(super().Split_type(*args))

    def Create_dist_graph_adjacent(self, *args, **options):
        return self._noted(super().Create_dist_graph_adjacent(*args, **options))

    def _noted(self, comm):
        self.made.append(comm)
        return comm


@pytest.mark.parametrize("transport", ["auto", "p2p", "neighbor"])
def test_closing_frees_everything_and_may_be_repeated(comm, transport):
    """MPICH has some 2,000 communicators in all."""
    Watched.made.clear()
    net = mpidec.Network(16, Watched(comm), transport=transport)
    W = net.mixer(T.one_peer_exponential(16))
    for k in range(4):
        W.at(k)(np.zeros((net.m, 1)))
    net.slots(T.ring(16), np.zeros((net.m, 1))).close()
    net.close()
    net.close()
    assert len(Watched.made) >= 1 + (comm.size > 1) and all(
        made == MPI.COMM_NULL for made in Watched.made
    )
    with pytest.raises(RuntimeError, match="closed"):
        W.at(0)


@pytest.mark.parametrize("n", [0, -1, 2.5, "four", True])
def test_a_wrong_number_of_agents(n):
    with pytest.raises(ValueError, match="expected a whole number >= 1"):
        mpidec.Network(n)


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
def test_ranks_with_different_topologies_are_told(comm):
    with (
        mpidec.Network(6) as net,
        pytest.raises(ValueError, match="the ranks hand in different topologies"),
    ):
        net.mixer(T.ring(6) if comm.rank else T.chain(6))


@pytest.mark.mpi(min_size=2)
def test_agree_raises_the_error_of_the_lowest_rank(comm):
    with mpidec.Network(4) as net:
        net.agree(None)
        with pytest.raises(KeyError, match="from rank 1"):
            net.agree(KeyError(f"from rank {comm.rank}") if comm.rank else None)


def test_an_unknown_transport(monkeypatch):
    with pytest.raises(ValueError, match="transport is 'pigeon'"):
        mpidec.Network(2, transport="pigeon")
    monkeypatch.setitem(os.environ, "MPIDEC_TRANSPORT", "p2p")
    with mpidec.Network(2) as net:
        assert net.transport == "p2p"


@pytest.mark.launch
def test_a_launcher_of_another_library_is_named(mpirun):
    done = mpirun(0, ["-c", "import mpidec; mpidec.Network(2)"], env={"OMPI_COMM_WORLD_SIZE": "4"})
    assert done.returncode != 0
    assert "Open MPI's mpirun started 4 processes" in done.stderr
    assert "each of them is alone" in done.stderr
    mpirun(
        0,
        ["-c", "import mpidec; mpidec.Network(2)"],
        env={"OMPI_COMM_WORLD_SIZE": "4", "MPIDEC_ALONE": "1"},
        check=True,
    )


@pytest.mark.launch
def test_an_uncaught_exception_on_one_rank_ends_the_job(mpirun):
    program = (
        "import mpidec, numpy as np\n"
        "with mpidec.Network() as net:\n"
        "    W = net.mixer(mpidec.topology.ring(net.n))\n"
        "    if net.rank == 2: raise KeyError('lost')\n"
        "    W(np.zeros((1, 3)))\n"
    )
    done = mpirun(3, ["-c", program], timeout=30)
    assert done.returncode != 0
    assert "[rank 2] KeyError: 'lost'" in done.stderr


@pytest.mark.serial
@pytest.mark.parametrize(
    "topology",
    [
        T.from_weights(np.eye(3), connected=False),
        T.from_weights(np.eye(1500), connected=False),
        T.from_weights([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], connected=False),
    ],
)
def test_agents_without_neighbours_keep_the_sign_of_zeros(monkeypatch, topology):
    """With the compiled kernel and without it."""
    for compiled in (kernel._kernel, None):
        monkeypatch.setattr(kernel, "_kernel", compiled)
        with mpidec.Network(topology.n, comm=MPI.COMM_SELF) as net:
            Y = net.mixer(topology)(np.full((topology.n, 2), -0.0))
            assert np.signbit(Y[-1]).all()


@pytest.mark.mpi(min_size=2)
def test_a_refusal_that_is_heard_late_keeps_the_ranks_in_step():
    """Rank 0 only sends to rank 1, and hears in its next mixing that the rows before were refused."""
    with mpidec.Network(transport="shared") as net:
        if net.node is None:
            pytest.skip("memory cannot be shared here")
        weights = np.eye(net.n)
        weights[1, :2] = 0.5
        W, raised = net.mixer(T.from_weights(weights, connected=False)), []
        for k in range(8):
            try:
                Y = W(np.full((1, 3 + (k == 2 and net.rank == 1)), float(k)))
                np.testing.assert_array_equal(Y, np.full((1, 3), float(k)))
            except ValueError as error:
                raised.append((k, str(error)))
            net.barrier()
        assert len(raised) == (1 if net.rank < 2 else 0)
        assert all(
            "rank 0" in text and "rank 1" in text and "mixing 3" in text for _, text in raised
        )
