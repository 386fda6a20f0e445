"""Asynchronous runs that go on without some of their agents; deaths are in `tests/driver/test_survivors.py`."""

from types import SimpleNamespace

import pytest

import mpidec
from mpidec.comm.runtime import MPI
from mpidec.driver.asynchronous import dropping


@pytest.mark.mpi(min_size=2)
@pytest.mark.filterwarnings("ignore:one")
def test_an_error_of_one_rank_after_a_death_is_raised_on_all(monkeypatch):
    def run(net, _):
        if net.rank == 1:
            raise KeyError("of rank 1")
        net.barrier()

    world = MPI.COMM_WORLD
    last = SimpleNamespace(mine=[world.rank], masses=[1.0], numbers=[*range(world.size + 1)])
    last.without = lambda numbers, mass: None
    lost = SimpleNamespace(comm=world, lost=["one"])
    monkeypatch.setattr(dropping, "surviving", lambda attempt, ranks, leaving: attempt(ranks))
    monkeypatch.setattr(dropping, "Survivors", lambda comm: lost)
    monkeypatch.setattr(dropping.Dropping, "_next", lambda self, former, net: net)
    before = mpidec.Network()
    parts = dropping.Dropping(SimpleNamespace(net=before, record=None), None)
    parts._last = last

    def whole():
        with before.raising_together():
            before.close()  # as at a death
            parts(run)

    with pytest.raises(KeyError, match="of rank 1"):
        whole()
