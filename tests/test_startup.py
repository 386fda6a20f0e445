"""Start of a program: MPI at its first use, child processes, launchers that mpi4py does not know, systems without affinity."""

from __future__ import annotations

import ast
import sys

import pytest

from mpidec import solvers, topology
from mpidec._words import command_of_extras
from mpidec.comm.runtime.launch import check_launcher

pytestmark = pytest.mark.launch

LAUNCHERS = (
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "PALS_SIZE",
    "FLUX_JOB_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
)

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
    hidden = "hide" in sys.argv
    with mpidec.Network(hide_launcher=hidden) as net, multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(work, (41,)), pool.apply(communicate, (0,))
        found = net.comm.gather(found)
        if net.rank == 0:
            print(*found, sep="\\n")
"""


@pytest.mark.parametrize("ranks, words", [(0, []), (2, []), (2, ["hide"])])
def test_a_child_process_imports_mpidec_without_mpi(ranks, words, mpirun, tmp_path):
    """As the workers of a DataLoader do; alone it may communicate with itself, while a child of a rank says that it cannot."""
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = mpirun(ranks, [program, *words], timeout=30, check=True)
    assert done.stderr == "" and done.stdout.count("(41, ") == max(ranks, 1)
    for rank in range(ranks):
        assert f"is a child of rank {rank} and cannot use MPI" in done.stdout
    assert ranks or "(41, 1)" in done.stdout


HIDDEN = """
import os, subprocess, sys
import mpidec
from mpidec._process import rank
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "here", "SLURM_PROCID": "1", "RANK_OF_MINE": "1"}
with mpidec.Network(hide_launcher=True) as net:
    marks = ("PMI", "OMPI_COMM_", "MPI_LOCAL", "WORLD", "MASTER", "SLURM", "RANK")
    left = sorted(name for name in os.environ if name.startswith(marks))
    child = "import mpidec; mpidec.Network()"
    told = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stderr
    with mpidec.Network(hide_launcher=True) as second:
        all_ranks = net.comm.gather((left, rank() == second.rank, told.splitlines()[-1]))
        if net.rank == 0:
            print(all_ranks)
"""


def test_a_hidden_launcher(mpirun):
    """Libraries see no job in the environment; the package does, and refuses MPI to programs that a rank starts."""
    done = mpirun(2, ["-c", HIDDEN], check=True)
    ranks = ast.literal_eval(done.stdout)
    for rank, (left, known, told) in enumerate(ranks):
        assert left == ["RANK_OF_MINE"] and known
        assert f"is a child of rank {rank} and cannot use MPI" in told


@pytest.mark.parametrize(
    "launcher, variables",
    [
        ("Open MPI's mpirun", {"OMPI_COMM_WORLD_SIZE": "4"}),
        ("MPICH's or Intel's mpiexec (PMI)", {"PMI_SIZE": "4"}),
        ("PALS' mpiexec", {"PALS_SIZE": "4"}),
        ("flux run", {"FLUX_JOB_SIZE": "4"}),
        ("srun", {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}),
        ("torchrun", {"WORLD_SIZE": "4", "LOCAL_RANK": "0"}),
        ("torchrun", {"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}),
        ("torchrun", {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"}),
    ],
)
def test_a_launcher_that_mpi4py_does_not_see_is_refused(launcher, variables, monkeypatch):
    for name in (*LAUNCHERS, "MPIDEC_ALONE"):
        monkeypatch.delenv(name, raising=False)
    check_launcher()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "train.py", "--lr", "0.1"])
    with pytest.raises(
        RuntimeError,
        match=r"each of them is alone.* (mpirun|srun --mpi=pmi\w+) -n 4 python -u train.py --lr 0.1",
    ) as error:
        check_launcher()
    assert str(error.value).startswith(f"{launcher} started 4 processes") and "\n" not in str(
        error.value
    )
    monkeypatch.setenv("MPIDEC_ALONE", "1")
    check_launcher()


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"WORLD_SIZE": "4"},
        {"WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    ],
)
def test_the_shell_of_a_batch_script_is_no_launcher(variables, monkeypatch):
    for name in (*LAUNCHERS, "MPIDEC_ALONE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check_launcher()


def test_a_wrong_launcher_takes_one_line(mpirun):
    """mpi4py's own warning of a launcher of another library says the same."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        done = mpirun(0, ["-m", "mpidec.run"], env={name: "4"})
        assert (
            done.returncode == 2
            and done.stderr.count("\n") == 1
            and "started 4 processes" in done.stderr
        )


def test_a_system_without_affinity(mpirun, tmp_path):
    """As macOS, where the system says only how many cores there are."""
    program = (
        "import os, sys; del os.sched_getaffinity; from mpidec import run; sys.exit(run.main(['--problem=least_squares', "
        "'--data=synthetic_least_squares', '--steps=3', '--quiet']))"
    )
    done = mpirun(2, ["-c", program], cwd=tmp_path, check=True)
    assert done.stderr == "" and (tmp_path / "run.h5").exists()


def test_help_without_pytorch(mpirun):
    """Nothing that dir() names is missing, so that help, completion and inspection work; PyTorch is asked for where it is used."""
    program = """
import importlib.machinery, inspect, pydoc, sys
class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else importlib.machinery.PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Hidden if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
import mpidec
assert "decentralized optimization" in pydoc.render_doc(mpidec)
print(*dict(inspect.getmembers(mpidec)))
try:
    mpidec.nn
except ImportError as error:
    print(error)
"""
    names, remedy = mpirun(0, ["-c", program], check=True).stdout.splitlines()
    assert (
        remedy == f"mpidec.nn needs PyTorch, which is not installed: {command_of_extras('torch')}"
    )
    assert names == (
        "ConfigError InputError Interrupted Mixer Network Outcome Pending Queue RankMismatchError RanksLost Record Result "
        "ResumeError RunsError Unstable __version__ iterate plot problems read simulate solve solvers sweep testing "
        "theory topology tune"
    )


@pytest.mark.parametrize("module", [topology, solvers], ids=lambda module: module.__name__)
def test_dir_shows_the_public_names(module):
    for name in dir(module):
        assert name == "CATALOGUE" or getattr(module, name).__module__.startswith(
            module.__name__
        ), name
    assert {thing.__name__ for thing in module.CATALOGUE.values()} <= set(dir(module))
