"""Command ``python -m mpidec.jobscript``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..cli import Command, Flag, show

EPILOG = """\
examples:
  python -m mpidec.jobscript slurm > job.sh
  sbatch job.sh
  ARGS="--solver extra --steps 5000" sbatch job.sh

The script asks for nodes and time in its first lines; change them.  It saves a run before the time
limit, continues it in another allocation, and starts it again when ranks or hosts die."""


def prepare(args: argparse.Namespace, ranks: int) -> Path:
    """Return the path of the script of a batch system."""
    return Path(__file__).with_name(f"{args.system}.sh")


def show_script(path: Path) -> None:
    """Print a script."""
    show(path.read_text(encoding="utf-8").rstrip("\n"))


JOBSCRIPT = Command(
    name="jobscript",
    description="Print a job script for a batch system.",
    epilog=EPILOG,
    flags=[Flag("system", metavar="SYSTEM", choices=["slurm", "pbs"], help="slurm or pbs")],
    prepare=prepare,
    alone=show_script,
    needs_mpi=False,
)
main = JOBSCRIPT.main
