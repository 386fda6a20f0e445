"""Console command: ``mpidec run ...`` is ``python -m mpidec.run ...``, and so on for the other commands."""

from __future__ import annotations

import difflib
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from ._version import __version__
from .comm.runtime.mpi import MPI, RANKS

COMMANDS = {
    "run": "run an experiment and write it to a file",
    "plot": "plot runs: f - f*, consensus and error against steps, bytes and seconds",
    "sweep": "run an experiment with all combinations of varied settings and seeds; a table and a figure",
    "tune": "try step sizes and show which one is best",
    "train": "train a neural network with decentralized optimizers",
    "bench": "measure mixing against MPI's own operations and the memory's limit",
    "reproduce": "repeat published experiments",
    "doctor": "check MPI, compiled modules and devices of this machine",
}


def available() -> dict[str, str]:
    """Return the commands of this version with a line each."""
    return {
        name: line for name, line in COMMANDS.items() if find_spec(f"mpidec.{name}") is not None
    }


def usage() -> str:
    """Return the text of ``mpidec --help``."""
    commands = available()
    width = max(map(len, commands))
    return "\n".join(
        [
            "usage: mpidec COMMAND [ARGUMENTS]      (under MPI: mpirun -n 4 mpidec COMMAND ...)",
            "",
            "commands:",
            *(f"  {name:<{width}}  {line}" for name, line in commands.items()),
            "",
            "mpidec COMMAND --help describes a command; python -m mpidec.COMMAND is the same command.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; return its exit status."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in available():
        sys.argv = [f"mpidec {name}", *rest]
        try:
            runpy.run_module(f"mpidec.{name}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if isinstance(end.code, str):
                raise
            return int(end.code or 0)
        return 0
    if name in ("-h", "--help", "help"):
        return _told(usage(), 0)
    if name == "--version":
        return _told(f"mpidec {__version__}", 0)
    near = difflib.get_close_matches(name, available(), n=2, cutoff=0.5)
    remedy = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"expected one of {', '.join(available())}"
    )
    return _told(f"mpidec: error: unknown command {name!r}: {remedy}", 2)


def _told(text: str, status: int) -> int:
    """Print a text once in a job of several ranks, before any rank exits; return the exit status."""
    launched = any(name in os.environ for name in RANKS)
    if not launched or MPI.COMM_WORLD.rank == 0:
        print(text, file=sys.stderr if status else sys.stdout, flush=True)
    if launched:
        MPI.COMM_WORLD.Barrier()
    return status


if __name__ == "__main__":
    sys.exit(main())
