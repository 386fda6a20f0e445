"""Messages between ranks: exchanges of a halo, persistent ones, ranks without neighbours, many under way, and what is freed."""

import gc

import numpy as np
import pytest
from helpers.draws import Draws
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.mixing import mixer
from mpidec.comm.runtime import memory
from mpidec.comm.runtime.partition import Partition
from mpidec.comm.runtime.row_types import RowTypes
from mpidec.comm.transport import persistent as persistent_module, sums
from mpidec.comm.transport.messages import MessageRequest, NeighborCollective, PointToPoint
from mpidec.comm.transport.node_reader import NodeReader
from mpidec.comm.transport.persistent import PersistentExchange
from mpidec.comm.transport.plan import Plan
from mpidec.comm.transport.sums import LocalSum, MessageSum, MixedSum

pytestmark = [pytest.mark.wide, pytest.mark.library]

WORLD = MPI.COMM_WORLD
TRANSPORTS = ["neighbor", "p2p"]
LARGE = 20_005  # numbers in a row that takes more than one packet
LIBRARY = MPI.Get_library_version()


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


# ---------------------------------------------------------------------------------------------------------------------
# One exchange


def make(kind, comm, topology):
    """Messages of this kind, whether or not they would be chosen, their plan, and the datatypes."""
    plan, row_type = Plan(topology, Partition(comm.size, comm.size), comm.rank), RowTypes()
    if kind is NeighborCollective:
        return kind(comm, row_type, plan.halo_route), plan, row_type
    return kind(comm, row_type, plan), plan, row_type


@pytest.mark.parametrize("d", [1, LARGE])
@pytest.mark.parametrize("topology", [out_star, in_star, T.ring, T.complete])
@pytest.mark.parametrize("kind", [NeighborCollective, PointToPoint])
def test_messages_bring_the_halo(comm, kind, topology, d):
    messages, plan, row_type = make(kind, comm, topology(comm.size))
    for k in range(5):
        x, halo = np.full((1, d), comm.rank + 10.0 * k), np.full((len(plan.halo), d), np.nan)
        sent = x if plan.halo_route.send is None else x[plan.halo_route.send]
        request = MessageRequest(messages.post(plan.halo_route, sent, halo, 8 * d), sent, halo)
        request.wait()
        assert request.done and request.test()
        np.testing.assert_array_equal(halo, np.repeat(plan.halo[:, None] + 10.0 * k, d, axis=1))
    messages.free()
    row_type.free()


@pytest.mark.mpi(min_size=2)
def test_rows_of_one_kind_do_not_meet_those_of_another(comm):
    """Even ranks send them in the other order."""
    messages, plan, row_type = make(PointToPoint, comm, T.complete(comm.size))
    halos, requests = {kind: np.full((len(plan.halo), 3), np.nan) for kind in (1, 2)}, []
    for kind in (1, 2)[:: -1 if comm.rank % 2 else 1]:
        requests += messages.post(
            plan.halo_route, np.full((1, 3), float(kind)), halos[kind], 24, kind
        )
    MPI.Request.Waitall(requests)
    assert all(np.all(halo == kind) for kind, halo in halos.items())
    row_type.free()


@pytest.mark.parametrize("topology", [T.ring, T.complete, T.exponential])
def test_a_persistent_exchange_is_started_again_and_again(comm, topology):
    messages, plan, row_type = make(PointToPoint, comm, topology(comm.size))
    exchange = PersistentExchange(messages, plan.halo_route, 3, len(plan.halo), np.dtype(float))
    places = [np.empty((1, 3)) for _ in range(persistent_module._PLACES + 3)]  # more than are kept
    for k in range(5 * len(places)):
        X = places[k % len(places)]
        X[...] = comm.rank + 10.0 * k
        MPI.Request.Waitall(exchange.start(X))
        np.testing.assert_array_equal(
            exchange.halo, np.repeat(plan.halo[:, None] + 10.0 * k, 3, axis=1)
        )
        X[...] = np.nan
        comm.Barrier()  # the next rows of a fast rank wait for a receive of this one
    assert len(exchange._sends) <= persistent_module._PLACES
    requests = [
        request for some in (exchange._receives, *exchange._sends.values()) for request in some
    ]
    exchange.free()
    assert all(request == MPI.REQUEST_NULL for request in requests)
    messages.free()
    row_type.free()


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
def test_where_collectives_are_known_to_be_broken_messages_are_chosen():
    with mpidec.Network(transport="neighbor") as net:
        whole, star = net.mixer(T.ring(net.n)).at(0), net.mixer(out_star(net.n)).at(0)
        assert [type(one) for one in messages_of(whole)] == [NeighborCollective]
        assert [type(one) for one in messages_of(star)] == [
            PointToPoint if "Open MPI" in LIBRARY else NeighborCollective
        ]


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


# ---------------------------------------------------------------------------------------------------------------------
# Which transport a phase has


@pytest.mark.parametrize(
    "transport, per, one, some, whole",
    [
        ("auto", 0, LocalSum, NodeReader, NodeReader),
        ("shared", 0, LocalSum, NodeReader, NodeReader),
        ("auto", 1, LocalSum, MessageSum, MessageSum),
        ("auto", 2, LocalSum, MixedSum, NodeReader),
        ("neighbor", 0, LocalSum, MessageSum, MessageSum),
        ("p2p", 0, LocalSum, MessageSum, MessageSum),
    ],
)
def test_the_transport_of_a_phase(monkeypatch, comm, transport, per, one, some, whole):
    """`some` ranks of several nodes, or the `whole` of a node of two."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", str(per))
    if memory.shared is None:
        pytest.skip("the kernel is not compiled")
    with mpidec.Network(transport=transport) as net:
        kind = type(net.mixer(T.ring(net.n)).at(0)._transport)
        assert kind is (one if comm.size == 1 else whole if comm.size == 2 else some)


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


def test_a_route_leaves_out_the_ranks_of_the_node():
    """The rows for four ranks with two agents each, of which 0 and 1 share a node."""
    plan = Plan(T.complete(8), Partition(8, 4), 0, np.array([1]))
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
        plans = [Plan(topology, parts, r, near[r]) for r in range(size)]
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


# ---------------------------------------------------------------------------------------------------------------------
# Many under way


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


# ---------------------------------------------------------------------------------------------------------------------
# Requests, memory


@pytest.mark.mpi(min_size=2)
def test_requests_are_made_once_and_freed(monkeypatch):
    made = []

    def recorded(name, kind):
        original = getattr(kind, name)

        def bind(self, *args):
            requests = original(self, *args)
            made.extend(requests)
            return requests

        monkeypatch.setattr(kind, name, bind)

    recorded("bind_receives", PointToPoint), recorded("bind_sends", PointToPoint)
    with mpidec.Network(transport="p2p") as net:
        W = net.mixer(T.one_peer_exponential(net.n))
        mine, counts = np.ones((1, 3)), []
        for k in range(20 * W.topology.period):
            W.at(k)(mine)
            counts.append(len(made))
        assert counts[-1] == counts[3 * W.topology.period - 1] > 0
        assert all(request != MPI.REQUEST_NULL for request in made)
        for d in range(4, 30):  # more lengths of rows than are kept
            W.at(0)(np.ones((1, d)))
        assert sum(request != MPI.REQUEST_NULL for request in made) <= counts[-1] + 2 * sums._KINDS
    assert all(request == MPI.REQUEST_NULL for request in made)


@pytest.mark.mpi(min_size=2)
def test_requests_of_a_mixer_that_is_dropped_are_freed(monkeypatch):
    made, original = [], PointToPoint.bind_sends
    monkeypatch.setattr(
        PointToPoint,
        "bind_sends",
        lambda self, *args: made.extend(some := original(self, *args)) or some,
    )
    messages, plan, row_type = make(PointToPoint, WORLD, T.complete(WORLD.size))
    exchange = PersistentExchange(messages, plan.halo_route, 3, len(plan.halo), np.dtype(float))
    X = np.ones((1, 3))
    MPI.Request.Waitall(exchange.start(X))
    WORLD.Barrier()
    assert made and all(request != MPI.REQUEST_NULL for request in made)
    del exchange
    gc.collect()
    assert all(request == MPI.REQUEST_NULL for request in made)
    row_type.free()


@pytest.mark.mpi(min_size=2)
def test_receives_that_are_under_way_are_not_freed():
    """An exchange that an exception has left is kept: MPI may still write to its halo."""
    messages, plan, row_type = make(PointToPoint, WORLD, T.complete(WORLD.size))
    exchange = PersistentExchange(messages, plan.halo_route, 3, len(plan.halo), np.dtype(float))
    receives, X = list(exchange._receives), np.ones((1, 3))
    requests = exchange.start(X)
    exchange.abandon()
    halo = exchange.halo
    del exchange
    gc.collect()
    assert all(request != MPI.REQUEST_NULL for request in receives)
    MPI.Request.Waitall(requests)
    np.testing.assert_array_equal(halo, np.ones_like(halo))
    WORLD.Barrier()
    for request in requests:
        request.Free()
    row_type.free()


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


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_mixing_that_one_rank_alone_has_made_does_not_come_to_the_next_network(transport):
    """Rank 0 receives nothing here, and so it does not find out; the communicators may have the same number within MPI."""
    for k in range(4):
        with mpidec.Network(transport=transport) as net:
            W = net.mixer(out_star(net.n))
            X = np.full((net.n, 3), float(k))
            for _ in range(1 + (net.rank == 0)):
                check(net, W(X[net.lo : net.hi]), W.topology.W, X)


FORGOTTEN = (
    "import mpidec, numpy as np\n"
    "net = mpidec.Network(transport={transport!r})\n"
    "W = net.mixer(mpidec.topology.ring(net.n))\n"
    "for _ in range(3): W(np.zeros((1, 3)))\n"
    "{more}\n"
    "other = mpidec.Network(transport={transport!r}); W = other.mixer(mpidec.topology.ring(net.n))\n"
    "W(np.zeros((1, 3))); del W, other\n"
    "net.comm.Barrier(); print('end of rank', net.rank)\n"
)


@pytest.mark.launch
@pytest.mark.parametrize("more", ["", "pending = W.start(np.zeros((1, 3)))"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_network_that_is_never_closed_leaves_no_requests(mpirun, transport, more):
    """MPICH complains of persistent requests that were not freed when MPI ends."""
    done = mpirun(
        2, ["-c", FORGOTTEN.format(transport=transport, more=more)], timeout=40, check=True
    )
    assert done.stdout.count("end of rank") == 2
    assert "persistent request" not in done.stdout + done.stderr
