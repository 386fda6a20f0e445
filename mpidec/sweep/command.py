"""Command ``python -m mpidec.sweep``."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._style import STYLES
from ..comm.runtime.launch import abort_when_uncaught, check_launcher
from ..comm.runtime.mpi import MPI
from ..experiment import settings as config
from ..experiment.build import InputError, on_root
from ..experiment.command import Parser, add_flags, settings_of, signals_interrupt
from ..experiment.settings import ConfigError
from ..plot.command import check_name
from ..plot.quantities import X
from .cases import parse_vary
from .files import RUNS, check_results
from .study import Plan, conduct, plan
from .tables import Table, runs_csv

TABLES = ("table.csv", "table.tex", RUNS)
EPILOG = """\
examples:
  python -m mpidec.sweep --vary solver.name=extra,gradient_tracking,dgd --vary topology.name=ring,grid --steps 1000
  mpirun -n 4 python -m mpidec.sweep experiment.toml --vary solver.step_size=0.01,0.02,0.05 --seeds 5
  python -m mpidec.sweep --vary problem.partition=iid,sorted --vary problem.batch_size=8,32 --seeds 3 --steps 500 --x steps bytes

The folder then contains one run file per run, table.csv, table.tex (needs booktabs), runs.csv (one line per run) and
figure.png (--figure names another format).
The same command, repeated after it was killed or interrupted, keeps finished runs and resumes unfinished ones from their last
checkpoint (run.checkpoint, every 5 s in a sweep); with more values or seeds it extends the study.  Another study needs another
folder.  Iterates are not stored (run.trajectory) unless --set run.trajectory=true.

Each run takes place in one process, which simulates its agents: several ranks make several runs at once, and their seconds are
measured while they share the machine.  --ranks-per-run R gives each run R ranks.  The number of agents is 16 unless it is set.

exit status: 0 all runs have ended (also diverged ones); 1 some run failed; 2 error in the input; 130 interrupted."""

# Where a sweep differs from a run.
HELP = {
    "agents": f"number of agents (default: {config.AGENTS_ALONE}, on any number of ranks)",
    "seed": "first seed (default: 0)",
}


class Command(NamedTuple):
    """Parsed command line: a sweep, or a text to print."""

    plan: Plan | None = None
    folder: str = ""
    x: Sequence[str] | None = None
    y: Sequence[str] | None = None
    style: str = "screen"
    figure: str = "figure.png"
    quiet: bool = False
    text: str = ""


def parser() -> Parser:
    """The parser of the command line."""
    result = Parser(
        prog="python -m mpidec.sweep",
        allow_abbrev=False,
        add_help=False,
        epilog=EPILOG,
        description="Run an experiment with all combinations of varied settings and seeds; write a table and a figure.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "experiment",
        nargs="?",
        metavar="EXPERIMENT.toml",
        help="experiment file, as for mpidec.run",
    )
    result.add_argument(
        "--vary",
        metavar="table.key=value,value",
        action="append",
        default=[],
        help="take each of these values, such as solver.name=extra,dgd; may be repeated: all combinations are run, "
        "the first one gives the lines of the figure, the others its panels",
    )
    result.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        help="number of seeds for each combination, counted from --seed (default: 1)",
    )
    result.add_argument(
        "--out", metavar="FOLDER", default="sweep", help="folder of the results (default: sweep)"
    )
    result.add_argument(
        "--target",
        metavar="[METRIC=]VALUE",
        help="steps, bytes and seconds until METRIC <= VALUE are shown "
        "(default: error <= the stop error of the runs, or 1e-6)",
    )
    result.add_argument(
        "--ranks-per-run",
        metavar="R",
        type=int,
        default=1,
        help="ranks that share one run (default: 1)",
    )
    result.add_argument(
        "--x",
        nargs="+",
        choices=list(X),
        metavar="AXIS",
        help=f"axes of the figure: {', '.join(X)} (default: steps)",
    )
    result.add_argument(
        "--y",
        nargs="+",
        metavar="METRIC",
        help="quantities of the figure (default: the metric of --target)",
    )
    result.add_argument(
        "--figure",
        metavar="NAME",
        default="figure.png",
        help="file of the figure in the folder, .png, .pdf, .svg, ... (default: figure.png)",
    )
    result.add_argument(
        "--style",
        choices=list(STYLES),
        default="screen",
        help="style of the figure, see mpidec.plot",
    )
    add_flags(result, HELP, but=["out"])
    result.add_argument(
        "--force",
        action="store_true",
        help="replace the tables and the figure of another study in the folder",
    )
    result.add_argument(
        "--quiet", action="store_true", help="print the table only, no line per run"
    )
    result.add_argument("-h", "--help", action="store_true", help="print this help")
    return result


def command_of(argv: Sequence[str], ranks: int) -> Command:
    """The command that `argv` describes, for a job of `ranks` ranks; called on rank 0.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    parse = parser()
    args = parse.known(argv)
    if args.help:
        return Command(text=parse.format_help().rstrip())
    _check_figure(args.figure)
    settings = [*(config.read_toml(args.experiment) if args.experiment else []), *settings_of(args)]
    wanted = plan(
        settings,
        [parse_vary(text) for text in args.vary],
        args.seeds,
        args.out,
        _target(args.target),
        args.ranks_per_run,
        ranks,
    )
    if not args.force:
        check_results(args.out, (*TABLES, args.figure), wanted.cases)
    return Command(wanted, args.out, args.x, args.y, args.style, args.figure, args.quiet)


def main(argv: Sequence[str] | None = None, comm: MPI.Intracomm | None = None) -> int:
    """Run the command line `argv` on all ranks of `comm`, and return the exit status."""
    comm = MPI.COMM_WORLD if comm is None else comm
    argv = sys.argv[1:] if argv is None else argv
    try:
        check_launcher(comm)
        if comm.size > 1:
            abort_when_uncaught()
        command = on_root(comm, command_of, argv, comm.size)
        if command.plan is None:
            if comm.rank == 0:
                print(command.text, flush=True)
            return 0
        with signals_interrupt():
            return run(command, command.plan, comm)
    except InputError as error:
        return _told(comm, f"error: {' '.join(str(error).split())}", error.status)
    except RuntimeError as error:
        if comm.size > 1:
            raise
        return _told(comm, f"error: {' '.join(str(error).split())}", 2)
    except KeyboardInterrupt:
        return _told(comm, "interrupted: the same command continues the sweep", 130)


def run(command: Command, wanted: Plan, comm: MPI.Intracomm) -> int:
    """Run a sweep on all ranks of `comm`, write its table and its figure, and return the exit status."""
    shown = comm.rank == 0 and not command.quiet
    if shown:
        count, kept, groups = (
            len(wanted.cases),
            len(wanted.cases) - len(wanted.open()),
            comm.size // wanted.ranks_per_run,
        )
        print(
            f"{count} run{'s' * (count > 1)}, {kept} of them finished before; {groups} at a time; folder {command.folder}",
            flush=True,
        )
    table, failures = conduct(
        wanted, comm, (lambda line: print(line, flush=True)) if shown else None
    )
    on_root(comm, _write, command, wanted, table, failures)
    return 1 if failures else 0


def _write(command: Command, wanted: Plan, table: Table, failures: dict[str, str]) -> None:
    print(table, flush=True)
    written = []
    for name, text in zip(TABLES, (table.csv(), table.latex(), runs_csv(wanted.cases, failures))):
        with open(os.path.join(command.folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        written.append(name)
    try:
        table.figure(command.x, command.y, command.style).savefig(
            os.path.join(command.folder, command.figure), dpi=200
        )
        written.append(command.figure)
    except ImportError as error:
        print(
            f"mpidec.sweep: no figure: {error}: pip install 'mpidec[plot]'",
            file=sys.stderr,
            flush=True,
        )
    except ValueError as error:
        print(f"mpidec.sweep: no figure: {error}", file=sys.stderr, flush=True)
    print(f"{command.folder}: {', '.join(written)}", flush=True)


def _check_figure(name: str) -> None:
    if os.path.basename(name) != name:
        raise ConfigError(
            f"--figure {name}: expected a name without a folder: the figure is written into that of --out"
        )
    with contextlib.suppress(ImportError):  # without matplotlib there is no figure
        check_name(name, "--figure", folder=False)


def _target(text: str | None) -> tuple[str, float | None]:
    if text is None:
        return "error", None
    metric, _, value = text.rpartition("=")
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise ConfigError(
            f"--target {text}: expected a number, or metric=number such as gradient_norm=1e-6"
        )
    return metric.strip() or "error", limit


def _told(comm: Any, message: str, status: int) -> int:
    """Print a message on rank 0, before any rank exits, and return the exit status."""
    if comm.rank == 0:
        print(f"mpidec.sweep: {message}", file=sys.stderr, flush=True)
    comm.Barrier()
    return status
