"""Texts, figures and wrong flags need no MPI: in a rank's subprocess, and where variables of a launcher are left."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys

import pytest
from helpers import launch

from mpidec.__main__ import COMMANDS

pytestmark = pytest.mark.serial

# No MPI: whoever imports mpi4py.MPI is told so.  Prints status, first line of stdout and lines of stderr of each command line.
PROGRAM = """
import contextlib, io, sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            raise SystemExit("MPI was asked for")
sys.meta_path.insert(0, Refused())
from mpidec.__main__ import main
for words in LINES:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    print(words, status, err.getvalue().count(chr(10)), bool(out.getvalue()))
"""
LEFT = [
    {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_FD": "77"},
    {"PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "PMIX_SERVER_URI4": "a@0.0;tcp4://127.0.0.1:9"},
]
ASKED = {
    tuple(line.split()): (0, 0, True)
    for line in ("--help", "--version", "run --list", "run --version")
}
ASKED |= {(name, "--help"): (0, 0, True) for name in COMMANDS}
ASKED |= {(name, "--no-such-flag"): (2, 1, False) for name in COMMANDS}
ASKED |= {
    ("nothing",): (2, 1, False),
    ("plot", "missing.h5"): (2, 1, False),
    ("trace", "merge", "missing"): (2, 1, False),
}


def test_no_command_line_that_needs_no_mpi_asks_for_it(tmp_path):
    left = LEFT[0] | LEFT[1]
    lines = [list(line) for line in ASKED]
    command = [sys.executable, "-c", f"LINES = {lines}{PROGRAM}"]
    done = subprocess.run(
        command, env=launch.environment() | left, cwd=tmp_path, capture_output=True, text=True
    )
    expected = [f"{list(line)} {' '.join(map(str, said))}" for line, said in ASKED.items()]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize("left", LEFT, ids=["MPICH", "Open MPI"])
def test_a_run_where_no_launcher_answers_is_refused(left, tmp_path):
    command = [sys.executable, "-m", "mpidec.run", "--steps", "1"]
    done = subprocess.run(
        command, env=launch.environment() | left, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    # the latter if this process has MPI
    assert "launcher does not answer" in done.stderr or "is a child of rank" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("left", LEFT, ids=["MPICH", "Open MPI"])
def test_theory_needs_no_launcher(left, tmp_path):
    command = [sys.executable, "-m", "mpidec.theory", "ring", "--n=4", "--solver", "consensus"]
    done = subprocess.run(
        command,
        env=launch.environment() | left | {"PMIX_RANK": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "") and "Consensus" in done.stdout


CHILD = """
import subprocess, sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    theory = ["theory", "ring", "--n=4", "--solver", "consensus"]
    for words in (["run", "--list"], ["run", "--bad"], ["run", "--steps=1"], theory):
        done = subprocess.run([sys.executable, "-m", "mpidec", *words], capture_output=True, text=True)
        print(done.returncode, bool(done.stdout), done.stderr.strip(), flush=True)
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.launch
@pytest.mark.library
def test_a_program_that_a_rank_starts_is_no_rank(mpirun):
    done = mpirun(2, ["-c", CHILD], check=True)
    table, flag, run, theory = done.stdout.splitlines()
    assert table == "0 True " and flag.startswith(
        "2 False mpidec.run: error: command line: unknown flag"
    )
    assert run.startswith("2 False mpidec.run: error: process") and "is a child of rank 1" in run
    assert theory == "0 True "


@pytest.mark.launch
@pytest.mark.library
def test_ranks_end_together_without_mpi(mpirun):
    theory = ["theory", "ring", "--n=4", "--solver", "consensus"]
    for words, status, lines in (
        (["plot", "run.h5", "--bad"], 2, 0),
        (["run", "--help"], 0, 1),
        (theory, 0, 1),
    ):
        done = mpirun(3, ["-m", "mpidec", *words])
        assert done.returncode == status and done.stderr.count("unknown flag") == (status == 2)
        assert len(re.findall("usage:|topology  solver", done.stdout)) == lines, done.stdout


def test_a_communicator_that_is_given_is_used():
    from mpi4py import MPI

    from mpidec.experiment.command import RUN

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert RUN.main(["--help"], MPI.COMM_SELF) == 0
    assert out.getvalue().startswith("usage:")
