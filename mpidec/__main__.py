"""Console command: ``mpidec run ...`` is ``python -m mpidec.run ...``, and so on for the other
commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from ._version import __version__
from .cli import printed
from .plugins import nearest

if TYPE_CHECKING:
    from .cli import Command

# Where each command is declared, under its name in capitals, and what it does.
COMMANDS = {
    "run": ("experiment.command", "run an experiment and write it to a file"),
    "plot": (
        "plot.command",
        "plot runs: f - f*, consensus and error against steps, bytes and seconds",
    ),
    "sweep": (
        "sweep.command",
        "run an experiment with all combinations of varied settings and seeds; a table and a "
        "figure",
    ),
    "tune": ("experiment.command", "try step sizes and show which one is best"),
    "train": ("train.command", "train a neural network with decentralized optimizers"),
    "restart": (
        "restart.command",
        "start a job again when ranks or hosts have died, until its file says that it has ended",
    ),
    "jobscript": ("jobscript.command", "print a job script for Slurm or PBS"),
    "watch": ("watch.command", "show the records and curves of runs while they are written"),
    "bench": (
        "bench.command",
        "measure mixing against MPI's own operations and the memory's limit",
    ),
    "predict": ("predict.command", "predict the time of a mixing on a cluster, by part and graph"),
    "reproduce": ("reproduce.command", "repeat published experiments"),
    "theory": ("theory.command", "rates, limits and steady states of solvers, without a run"),
    "trace": ("trace.command", "merge the timelines of all ranks, and show who waited for whom"),
    "doctor": ("diagnostics.doctor", "check MPI, compiled modules and devices of this machine"),
}


def usage() -> str:
    """Return the text of ``mpidec --help``."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: mpidec COMMAND [ARGUMENTS]      (under MPI: mpirun -n 4 mpidec COMMAND ...)",
            "",
            "commands:",
            *(f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items()),
            "",
            "mpidec COMMAND --help describes a command; python -m mpidec.COMMAND is the same "
            "command.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; return its exit status."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        module = import_module(f"mpidec.{COMMANDS[name][0]}")
        command: Command[object] = getattr(module, name.upper())
        return replace(command, started_as=f"mpidec {name}").main(rest)
    if name in ("-h", "--help", "help"):
        return printed(usage())
    if name == "--version":
        return printed(f"mpidec {__version__}")
    return printed(f"mpidec: error: unknown command {name!r}: {nearest(name, COMMANDS)}", 2)


if __name__ == "__main__":
    sys.exit(main())
