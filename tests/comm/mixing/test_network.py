"""Networks: agents on ranks, communicators, transports, the end."""

import os
from typing import ClassVar

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]


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


def test_an_unknown_transport(monkeypatch):
    with pytest.raises(ValueError, match="transport is 'pigeon'"):
        mpidec.Network(2, transport="pigeon")
    monkeypatch.setitem(os.environ, "MPIDEC_TRANSPORT", "p2p")
    with mpidec.Network(2) as net:
        assert net.transport == "p2p"
