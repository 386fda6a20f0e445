"""Launch: another MPI library, and exceptions that nobody catches."""

import pytest

pytestmark = [pytest.mark.wide, pytest.mark.library]


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
