"""Messages between ranks: persistent and large ones, ranks without neighbours, many under way, and memory that is used again."""

import gc

import numpy as np
import pytest
from draws import Draws
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.transport import messages as wires
from mpidec.transport.messages import SMALL, Buffers, Neighbor, PointToPoint, RowTypes
from mpidec.transport.plan import Plan

WORLD = MPI.COMM_WORLD
TRANSPORTS = ["neighbor", "p2p"]
LARGE = SMALL // 8 + 5                                      # numbers in a row that does not go through a slot
LIBRARY = MPI.Get_library_version()


def rows(net, d, seed=0):
    """A row for each agent, on all ranks, and the local ones."""
    X = np.random.default_rng(seed).standard_normal((net.n, d))
    return X, np.ascontiguousarray(X[net.lo:net.hi])


def out_star(n):
    """Agent 0 sends to all others but the last one, which has no neighbour at all."""
    W = np.eye(n)
    W[1:n - 1, 0] = W[range(1, n - 1), range(1, n - 1)] = 0.5
    return T.from_weights(W, connected=False)


def in_star(n):
    """All but the last one send to agent 0."""
    W = np.eye(n)
    W[0, :max(n - 1, 1)] = 1 / max(n - 1, 1)
    return T.from_weights(W, connected=False)


def wires_of(W):
    return list(W.courier.wires.values())


@pytest.mark.parametrize("d", [1, LARGE])
@pytest.mark.parametrize("make", [out_star, in_star])
@pytest.mark.parametrize("kind", [Neighbor, PointToPoint])
def test_ranks_without_neighbours_on_a_side(comm, kind, make, d):
    """The very collectives, on every library, whether or not they would be chosen."""
    row_type, n = RowTypes(), comm.size
    topology = make(n)
    plan = Plan(topology, mpidec.Network(n).blocks, comm.rank)
    route = plan.halo_route
    wire = kind(comm, route if kind is Neighbor else plan, row_type, Buffers(), SMALL)
    for k in range(5):
        x, halo = np.full((1, d), comm.rank + 10.0 * k), np.full((len(plan.halo), d), np.nan)
        assert wire.start(route, x, halo).poll(10**9)
        np.testing.assert_array_equal(halo, np.repeat(plan.halo[:, None] + 10.0 * k, d, axis=1))
    wire.free()
    row_type.free()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("make", [out_star, in_star])
def test_mixing_with_ranks_without_neighbours(make, transport):
    with mpidec.Network(transport=transport) as net:
        topology = make(net.n)
        W = net.mixer(topology)
        for d in (3, LARGE):
            X, mine = rows(net, d)
            for _ in range(3):
                np.testing.assert_allclose(W(mine), (topology.W @ X)[net.lo:net.hi], rtol=1e-12, atol=1e-14)


@pytest.mark.mpi(min_size=2)
def test_where_collectives_are_known_to_be_broken_messages_are_chosen():
    with mpidec.Network(transport="neighbor") as net:
        whole, star = net.mixer(T.ring(net.n)).at(0), net.mixer(out_star(net.n)).at(0)
        X = np.ones((1, 2))
        whole(X), star(X)
        assert [type(wire) for wire in wires_of(whole)] == [Neighbor]
        assert [type(wire) for wire in wires_of(star)] == [PointToPoint if "Open MPI" in LIBRARY else Neighbor]


@pytest.mark.mpi(min_size=2)
def test_a_library_without_persistent_collectives(monkeypatch):
    monkeypatch.setattr(wires, "persistent_collectives", lambda: False)
    with mpidec.Network(transport="neighbor") as net:
        X, mine = rows(net, 4)
        W = net.mixer(T.ring(net.n)).at(0)
        for _ in range(3):
            np.testing.assert_allclose(W(mine), (W.topology.W @ X)[net.lo:net.hi], rtol=1e-12, atol=1e-14)
        assert not wires_of(W)[0]._slots


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
            expected.append((W.topology.at(k // 3).W @ X)[net.lo:net.hi])
        for k in np.random.default_rng(net.rank).permutation(12):
            np.testing.assert_allclose(pending[k][1].wait(), expected[k], rtol=1e-12, atol=1e-14)
            assert pending[k][1].test()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("d", [3, LARGE])
def test_what_nobody_waits_for_does_not_spoil_what_follows(transport, d):
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(T.ring(net.n))
        for k in range(30):
            X, mine = rows(net, d, seed=k)
            pending = W.start(mine)
            if k % 3 == 0:
                np.testing.assert_allclose(pending.wait(), (W.topology.W @ X)[net.lo:net.hi], rtol=1e-12, atol=1e-14)
            del pending
        assert all(len(wire.flying) <= 20 for wire in wires_of(W.at(0)))


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
                    np.testing.assert_allclose(Y.wait(), (W.topology.W @ X)[net.lo:net.hi], rtol=1e-5, atol=1e-6)
        for Y, d in late:
            np.testing.assert_allclose(Y.wait(), (W.topology.W @ rows(net, d, seed=d)[0])[net.lo:net.hi], rtol=1e-5, atol=1e-6)
        assert all(len(wire._slots) <= 8 for wire in wires_of(W))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_requests_are_made_once_and_freed(transport, monkeypatch):
    kind, made = {"neighbor": Neighbor, "p2p": PointToPoint}[transport], []

    def bind(self, *args, original=kind._bind):
        made.extend(original(self, *args))
        return made[-1:] if transport == "neighbor" else made[before:]
    monkeypatch.setattr(kind, "_bind", bind)
    with mpidec.Network(transport=transport) as net:
        W = net.mixer(T.one_peer_exponential(net.n))
        mine, counts = np.ones((1, 3)), []
        for k in range(20 * W.topology.period):
            before = len(made)
            W.at(k)(mine)
            counts.append(len(made))
        assert counts[-1] == counts[2 * W.topology.period - 1] > 0          # two slots for each phase, and then no more
        assert all(request != MPI.REQUEST_NULL for request in made)
    assert all(request == MPI.REQUEST_NULL for request in made)


@pytest.mark.mpi(min_size=2)
def test_a_random_schedule_keeps_no_requests_and_no_communicators():
    with mpidec.Network(transport="neighbor") as net:
        W = net.mixer(Draws(net.n, 1, "doubly"))
        X, mine = rows(net, 3)
        for k in range(5):
            np.testing.assert_allclose(W.at(k)(mine), (W.topology.at(k).W @ X)[net.lo:net.hi], rtol=1e-12, atol=1e-14)
            assert all(type(wire) is PointToPoint and not wire._slots for wire in wires_of(W.at(k)))


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
def test_large_rows_take_no_new_memory_after_a_while(transport, monkeypatch):
    fresh, original = [], Buffers._fresh
    monkeypatch.setattr(Buffers, "_fresh", lambda self, nbytes: fresh.append(nbytes) or original(self, nbytes))
    with mpidec.Network(2 * WORLD.size + 1, transport=transport) as net:
        W = net.mixer(T.ring(net.n))
        _, Y = rows(net, LARGE)
        for _ in range(5):
            Y = W(Y)
        assert len(fresh) <= 6
        fresh.clear()
        for _ in range(50):
            Y = W(Y)
        assert not fresh


def test_buffers_are_used_again_when_no_view_is_left():
    buffers, shape = Buffers(), (2, LARGE)
    a = buffers.empty(shape, np.dtype(float))
    assert a.ctypes.data % 4096 == 0 and a.flags.c_contiguous and a.flags.writeable
    place, view = a.ctypes.data, a.view(np.uint8)[1:, 3:]
    del a
    b = buffers.empty(shape, np.dtype(float))
    assert b.ctypes.data != place
    del view
    c = buffers.empty(shape, np.dtype(np.complex64))
    assert c.ctypes.data == place
    assert not np.may_share_memory(b, c)


def test_buffers_do_not_hoard():
    buffers = Buffers()
    held = [buffers.empty((LARGE + 10_000 * k,), np.dtype(float)) for k in range(20)]
    assert len(buffers._blocks) == 20
    del held
    gc.collect()
    for _ in range(80):
        buffers.empty((LARGE,), np.dtype(float))
    assert len(buffers._blocks) <= 2
    assert buffers.empty((4,), np.dtype(float)).shape == (4,) and len(buffers._blocks) <= 2     # small arrays are ordinary


FORGOTTEN = ("import mpidec, numpy as np\n"
             "net = mpidec.Network(transport={transport!r})\n"
             "W = net.mixer(mpidec.topology.ring(net.n))\n"
             "for _ in range(3): W(np.zeros((1, 3)))\n"
             "{more}\n"
             "other = mpidec.Network(transport={transport!r}); W = other.mixer(mpidec.topology.ring(net.n))\n"
             "W(np.zeros((1, 3))); del W, other\n"
             "net.comm.Barrier(); print('end of rank', net.rank)\n")


@pytest.mark.launch
@pytest.mark.parametrize("more", ["", "pending = W.start(np.zeros((1, 3)))"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_network_that_is_never_closed_leaves_no_requests(mpirun, transport, more):
    """MPICH complains of persistent requests that were not freed when MPI ends."""
    done = mpirun(2, ["-c", FORGOTTEN.format(transport=transport, more=more)], timeout=40, check=True)
    assert done.stdout.count("end of rank") == 2
    assert "persistent request" not in done.stdout + done.stderr
