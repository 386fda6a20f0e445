"""Launch: another MPI library, and exceptions that nobody catches."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from mpidec import Interrupted
from mpidec.comm.runtime import launch

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


@pytest.mark.serial
def test_an_uncaught_interrupt_of_a_run_ends_a_program_with_the_status_130(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: shown.append(kind))
    launch.end_as_interrupted.__wrapped__()  # as in a process that has not called it
    sys.excepthook(ValueError, ValueError(), None)
    with pytest.raises(SystemExit) as end:
        sys.excepthook(Interrupted, Interrupted(SimpleNamespace(steps=3)), None)
    assert end.value.code == 130 and shown == [ValueError, Interrupted]
