"""Persistent requests: started again and again, made once, freed."""

import gc

import numpy as np
import pytest
from helpers.transports import TRANSPORTS, make
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.transport import persistent as persistent_module, sums
from mpidec.comm.transport.messages import PointToPoint
from mpidec.comm.transport.persistent import PersistentExchange

pytestmark = [pytest.mark.wide, pytest.mark.library]


WORLD = MPI.COMM_WORLD


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
