"""Start of a program: MPI at its first use, child processes, launchers that mpi4py does not know, systems without affinity."""
from __future__ import annotations

import pytest

pytestmark = pytest.mark.launch

CHILDREN = """
import multiprocessing
import sys

import mpidec

def work(number):
    return number + ("mpi4py.MPI" in sys.modules)

def communicate(number):
    try:
        with mpidec.Network(1) as net:
            return net.size
    except RuntimeError as error:
        return str(error)

if __name__ == "__main__":
    with mpidec.Network() as net, multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(work, (41,)), pool.apply(communicate, (0,))
        found = net.comm.gather(found)
        if net.rank == 0:
            print(*found, sep="\\n")
"""


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_child_process_imports_mpidec_without_mpi(ranks, mpirun, tmp_path):
    """As the workers of a DataLoader do; alone it may communicate with itself, while a child of a rank says that it cannot."""
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = mpirun(ranks, [program], timeout=30, check=True)
    assert done.stderr == "" and done.stdout.count("(41, ") == max(ranks, 1)
    for rank in range(ranks):
        assert f"is a child of rank {rank} and cannot use MPI" in done.stdout
    assert ranks or "(41, 1)" in done.stdout
