"""Memory of MPI's one-sided calls: which libraries are refused, and when it is freed."""

import gc
import re

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.comm.rma.carriers import mpi_memory

pytestmark = pytest.mark.library


@pytest.mark.serial
@pytest.mark.parametrize(
    "library, why", [("Open MPI v4.1.4", "crashes in MPI_Compare_and_swap"), ("Open MPI v5.0", "")]
)
def test_libraries_whose_one_sided_calls_are_refused(monkeypatch, library, why):
    monkeypatch.setattr(mpi_memory.MPI, "Get_library_version", lambda: library)
    assert why in mpi_memory.refusal() and bool(mpi_memory.refusal()) == bool(why)


@pytest.mark.mpi(min_size=2)
def test_the_next_network_frees_the_memory_of_values_that_outlived_theirs():
    if mpi_memory.refusal():
        pytest.skip(mpi_memory.refusal())
    with mpidec.Network() as net:
        window = net.window(np.ones(3), T.ring(net.n), transport="rma")
        value = window.value
    kept = len(mpi_memory._KEPT)
    with mpidec.Network():
        assert len(mpi_memory._KEPT) == kept > 0 and value.tolist() == [1.0, 1.0, 1.0]
    del window, value
    gc.collect()
    with mpidec.Network():
        assert len(mpi_memory._KEPT) < kept


def test_arrays_outlive_the_memory_of_one_sided_calls(comm):
    """Rank 0 keeps an array that lies in it: it stays until that one is gone, on all ranks."""
    with mpidec.Network(windows="rma") as net:
        with net.window(np.full(3000, 1.0 + net.rank), T.ring(net.n)) as win:
            kept = win.value if net.rank == 0 else None
        assert len(net.ended._blocks) == (net.n > 1)
        assert kept is None or kept.tolist() == [1.0] * 3000
        del kept
        with net.window(np.ones(3), T.ring(net.n)) as win:
            pass
        assert not net.ended._blocks
        with net.window(np.full(3, 1.0 + net.rank), T.ring(net.n)) as win:
            kept = win.value
    assert kept.tolist() == [1.0 + net.rank] * 3  # of a network that is closed


KEPT = """
import numpy as np, mpidec
with mpidec.Network(windows="rma") as net:
    for rows in 10, 10_000:
        with net.window(np.ones(rows), mpidec.topology.ring(net.n)) as win:
            row = win.update()
            net.barrier()
    left = net.window(np.ones(10), mpidec.topology.ring(net.n))  # never closed
    left.put(left.value)
print("sum", row.sum() + left.value.sum(), flush=True)
"""


@pytest.mark.serial
@pytest.mark.launch
def test_libraries_find_nothing_left_at_the_end(mpirun):
    done = mpirun(2, ["-c", KEPT], timeout=60)
    assert done.returncode == 0 and done.stdout.count("sum") == 2
    assert not re.search("WARN|ERROR|leak", done.stdout + done.stderr)
