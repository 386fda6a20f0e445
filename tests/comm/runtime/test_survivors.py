"""Jobs whose ranks may die, and processes of this host that end."""

import os
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from mpidec.comm.runtime import survivors
from mpidec.comm.runtime.survivors import _ended

HOLDING = (
    "import os, time; pipes = [os.pipe() for _ in range(400)]; print(flush=True); time.sleep(60)"
)


@pytest.mark.serial
@pytest.mark.parametrize("given, used", [({}, "^hcoll,portals4,han"), ({"coll": "self"}, "self")])
def test_collectives_that_know_nothing_of_deaths_are_left_out(given, used):
    env = {**os.environ, **{f"OMPI_MCA_{name}": value for name, value in given.items()}}
    program = "import os, mpidec._process; print(os.environ['OMPI_MCA_coll'])"
    env["OMPI_MCA_mpi_ft_enable"] = "1"  # as by mpirun --with-ft ulfm
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=env, text=True).strip() == used


@pytest.mark.parametrize("checksum", [zlib.crc32, lambda name: 7])
def test_where_ranks_may_die_nodes_are_told_by_their_names(monkeypatch, checksum):
    world = survivors.MPI.COMM_WORLD
    rank, size = world.rank, world.size
    monkeypatch.setattr(survivors, "tolerant", lambda: True)
    monkeypatch.setattr(survivors.zlib, "crc32", checksum)
    monkeypatch.setattr(survivors.MPI, "Get_processor_name", lambda: f"node {rank % 2}")
    node = survivors.node_of(world)
    assert node.allgather(rank) == [*range(rank % 2, size, 2)]
    node.Free()


def test_it_is_quiet_when_no_further_death_has_been_found(monkeypatch):
    clock, found = [0.0], {0.01: 1, 0.15: 2, 0.3: 3, 0.9: 4}  # the last one is another death
    failed = SimpleNamespace(
        Get_failed=lambda: SimpleNamespace(size=sum(t <= clock[0] for t in found))
    )
    ranks = SimpleNamespace(COMM_WORLD=failed, COMM_SELF=MPI.COMM_SELF)
    passed = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda s: clock.__setitem__(0, clock[0] + s)
    )
    monkeypatch.setattr(survivors, "MPI", ranks)
    monkeypatch.setattr(survivors, "time", passed)
    survivors._quiet()
    assert 0.5 <= clock[0] < 0.52


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_process_counts_as_dead_once_its_connections_are_closed():
    for _ in range(20):
        command = [sys.executable, "-S", "-c", HOLDING]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            assert not _ended(process.pid, ending=True)
            process.kill()
            assert process.stdout.read() == b""  # closed, as others see it
            assert _ended(process.pid, ending=True)
        assert _ended(process.pid)
