"""Messages along a route: point to point and by neighbourhood collectives."""

import numpy as np
import pytest
from helpers.transports import in_star, make, messages_of, out_star
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.transport.messages import MessageRequest, NeighborCollective, PointToPoint
from mpidec.exceptions import RankMismatchError

pytestmark = [pytest.mark.wide, pytest.mark.library]


LARGE = 20_005  # numbers in a row that takes more than one packet
LIBRARY = MPI.Get_library_version()


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


class Breaks:
    """A request of which the first look fails, and that completes all the same."""

    def __init__(self, error):
        self.errors = [error]

    def Test(self):
        if self.errors:
            raise self.errors.pop()
        return True


@pytest.mark.serial
def test_a_wait_that_has_failed_fails_again():
    """What has arrived since is not taken for the result."""
    request = MessageRequest([Breaks(RankMismatchError("elsewhere"))], None, None)
    for _ in range(3):
        with pytest.raises(RankMismatchError, match="elsewhere"):
            request.wait()


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


@pytest.mark.mpi(min_size=2)
def test_where_collectives_are_known_to_be_broken_messages_are_chosen():
    with mpidec.Network(transport="neighbor") as net:
        whole, star = net.mixer(T.ring(net.n)).at(0), net.mixer(out_star(net.n)).at(0)
        assert [type(one) for one in messages_of(whole)] == [NeighborCollective]
        assert [type(one) for one in messages_of(star)] == [
            PointToPoint if "Open MPI" in LIBRARY else NeighborCollective
        ]
