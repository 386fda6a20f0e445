"""Networks over process groups of PyTorch: the bits of MPI, without MPI."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers import launch

pytest.importorskip("torch")
pytestmark = pytest.mark.serial
PROGRAMS = launch.ROOT / "tests" / "programs"
CARRIED = str(PROGRAMS / "carried.py")
QUICK = ("mixing", "solve")


def torchrun(ranks, arguments, seconds=60):
    """Return what ranks print that torchrun has started."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", *arguments]
    env = launch.environment({"MPIDEC_TIMEOUT": str(launch.patient(seconds) / 2)})
    done = subprocess.run(
        command,
        env=env,
        capture_output=True,
        text=True,
        timeout=launch.patient(seconds),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Lines of all programs of this file, in one start of torchrun: that of PyTorch takes most of it."""
    program = tmp_path_factory.mktemp("groups") / "all.py"
    program.write_text(
        "import runpy, sys\n"
        f"sys.argv = ['carried.py', 'group', *{QUICK}]\n"
        f"runpy.run_path({CARRIED!r}, run_name='__main__')\n"
        f"runpy.run_path({str(PROGRAMS / 'group_devices.py')!r}, run_name='__main__')\n{MISUSE}"
    )
    return torchrun(3, [str(program)], 120).splitlines()


def bits_of_mpi(mpirun, parts):
    """Of agents as many as ranks, and twice as many; messages between the ranks in both cases."""
    expected = json.loads(
        mpirun(3, [CARRIED, *parts], check=True, timeout=120).stdout.splitlines()[-1]
    )
    assert len(expected) > 20
    return expected


def test_the_bits_of_mpi(mpirun, said):
    (line,) = [line for line in said if line.startswith("{")]
    assert json.loads(line) == bits_of_mpi(mpirun, QUICK)


@pytest.mark.slow
def test_the_bits_of_mpi_in_a_training(mpirun):
    line = torchrun(3, [CARRIED, "group", "training"], 120).splitlines()[-1]
    assert json.loads(line) == bits_of_mpi(mpirun, ["training"])


MISUSE = """
import os
import numpy as np, torch.distributed as dist
import mpidec

world, rank = dist.group.WORLD, dist.get_rank()

def told(part, words, call):
    try:
        call()
    except Exception as error:
        assert words in str(error), (part, error)
    else:
        raise AssertionError(part)

def differ():
    with mpidec.Network(process_group=world) as net:
        net.mean(np.ones((1, 2))) if rank else net.gather(np.ones((1, 2)))

def end():
    with mpidec.Network(process_group=world) as net:
        W = net.mixer("ring")
        for k in range(50):
            if rank == 2 and k == 20:
                os._exit(0)
            W(np.ones((1, 3)))

with mpidec.Network(process_group=world) as net:
    told("window", "no one-sided transfers; start the program with mpirun", lambda: net.window(np.ones(3), "ring"))
told("other calls", "rank 0 is in net.gather call 1, rank 1 in net.mean call 1 (rows of 2 float64): every rank must make", differ)
told("no group", "make Network(process_group=", lambda: mpidec.Network())
part = dist.new_group([0, 2])
if rank == 1:
    told("no member", "no member of the process group", lambda: mpidec.Network(process_group=part))
else:
    with mpidec.Network(4, process_group=part) as net:
        assert net.mean(np.ones((2, 1))) == 1
told("end", "rank 2 has ended", end)
os.write(1, f"{rank} said so\\n".encode())  # at once: the others write, too
os._exit(0)
"""


def test_what_is_refused_and_who_has_ended(said):
    assert sorted(line for line in said if "said so" in line) == ["0 said so", "1 said so"]


def test_rows_on_devices_travel_in_messages_of_the_backend(said):
    """gloo stands in for NCCL, tensors of the host for those of a device: the same bits as through the host."""
    assert "batches True" in said
