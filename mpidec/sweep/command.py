"""Command ``python -m mpidec.sweep``."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from .._words import command_of_extras
from ..cli import (
    EXPERIMENT,
    STYLE,
    Command,
    Flag,
    Interrupts,
    Status,
    part_of,
    plural,
    quiet,
    say,
)
from ..comm.runtime import MPI, on_root
from ..exceptions import ConfigError
from ..experiment import flag_settings, flags, settings as config
from ..plot.internals import FLAGS as LOOKS, View, X, check_name, check_names, find, look, own_names
from .cases import RUNS, check_results, parse_vary
from .parts import put
from .study import Study, Swept, plan, run_plan
from .tables import COLUMNS, named, runs_csv

TABLES = ("table.csv", "table.tex", RUNS)
EPILOG = """\
examples:
  python -m mpidec.sweep --vary solver.name=extra,gradient_tracking,dgd --vary topology.name=ring,grid --steps 1000
  mpirun -n 4 python -m mpidec.sweep experiment.toml --vary solver.step_size=0.01,0.02,0.05 --seeds 5
  python -m mpidec.sweep --vary problem.partition=iid,sorted --vary problem.batch_size=8,32 --seeds 3 --steps 500 --x steps bytes
  python -m mpidec.sweep --vary 'solver.name=dgd,lead{mixing.codec=top_k}' --vary topology.name=ring,grid --across topology

The folder then contains one run file per run, table.csv, table.tex (needs booktabs), runs.csv (one
line per run) and figure.png (--figure names another format).
--part I/N, or an array of Slurm (sbatch --array=1-4), shares the runs among processes that do not
know of each other; each leaves part-I-of-N.csv, and the last one the tables. A run that another
process is writing is left to it.
The same command, repeated after it was killed or interrupted, keeps finished runs and resumes
unfinished ones from their last checkpoint (run.checkpoint, every 5 s in a sweep); with more values
or seeds it extends the study. Another study needs another folder.  Iterates are not stored
(run.trajectory) unless --set run.trajectory=true.

Each run takes place in one process, which simulates its agents: several ranks make several runs at
once, and their seconds are measured while they share the machine.  --ranks-per-run R gives each run
R ranks. The number of agents is 16 unless it is set.

exit status: 0 all runs have ended (also diverged ones); 1 some run failed; 2 error in the input; 130 interrupted."""

SCHEMA = [entry for entry in config.FLAGS if entry.flag != "--out"]
HELP = {  # where a sweep differs from a run
    "--agents": f"number of agents (default: {config.AGENTS_ALONE}, on any number of ranks)",
    "--seed": "first seed (default: 0)",
}


FLAGS = [
    EXPERIMENT,
    Flag(
        "--vary",
        metavar="table.key=value,value",
        action="append",
        default=[],
        help="take each of these values, such as solver.name=extra,dgd; settings of one value "
        "alone are in braces after it: solver.name='dgd,lead{mixing.codec=top_k}'; may be "
        "repeated: all combinations are run, "
        "the first one gives the lines of the figure, the others its panels",
    ),
    Flag(
        "--seeds",
        metavar="N",
        type=int,
        help="number of seeds for each combination, counted from --seed (default: 1)",
    ),
    Flag(
        "-o",
        "--out",
        metavar="FOLDER",
        default="sweep",
        help="folder of the results (default: sweep)",
    ),
    Flag(
        "--target",
        metavar="[METRIC=]VALUE",
        help="steps, bytes and seconds until METRIC <= VALUE (>= VALUE of an accuracy) are shown "
        "(default: error <= the stop error of the runs, or 1e-6)",
    ),
    Flag(
        "--ranks-per-run",
        metavar="R",
        type=int,
        default=1,
        help="ranks that share one run (default: 1)",
    ),
    Flag(
        "--x",
        nargs="+",
        choices=list(X),
        metavar="AXIS",
        help=f"axes of the figure: {', '.join(X)} (default: steps)",
    ),
    Flag(
        "--y",
        nargs="+",
        metavar="METRIC",
        help="quantities of the figure (default: the metric of --target)",
    ),
    Flag(
        "--figure",
        metavar="NAME",
        default="figure.png",
        help="file of the figure in the folder, .png, .pdf, .svg, ... (default: figure.png)",
    ),
    *LOOKS,
    Flag(
        "--columns",
        nargs="+",
        choices=list(COLUMNS),
        metavar="COLUMN",
        help=f"columns of the table: {', '.join(COLUMNS)} (default: all; with --across, steps)",
    ),
    Flag(
        "--rows",
        metavar="SETTING",
        help="varied setting whose values the rows compare, such as solver (default: the first "
        "one)",
    ),
    Flag(
        "--across",
        metavar="SETTING",
        help="varied setting whose values stand side by side in the table, such as topology",
    ),
    Flag(
        "--label",
        nargs="+",
        metavar="VALUE=TEXT",
        help="names of solvers, graphs and other values in the figure and in table.tex, such as "
        "dgd=DSGD (default: those of papers)",
    ),
    Flag(
        "--part",
        metavar="I/N",
        help="make every N-th run, beginning with the I-th; the part that ends last writes the "
        "tables (default: the task of an array of Slurm; 1/1 makes all)",
    ),
    STYLE,
    *flags(SCHEMA, HELP),
    Flag(
        "--force",
        action="store_true",
        help="replace the tables and the figure of another study in the folder",
    ),
    quiet("print the table only, no line per run"),
]


def prepare(args: argparse.Namespace, ranks: int) -> tuple[Study, argparse.Namespace]:
    """Return the plan of the sweep in a job of `ranks` ranks, and the arguments.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    _check_figure(args.figure)
    settings = [
        *(config.read_toml(args.experiment) if args.experiment else []),
        *flag_settings(args, SCHEMA),
        *map(config.parse_set, args.set),
    ]
    wanted = plan(
        settings,
        [parse_vary(text) for text in args.vary],
        args.seeds,
        folder=args.out,
        target=_target(args.target),
        ranks_per_run=args.ranks_per_run,
        ranks=ranks,
    )
    _check_layout(args, wanted)
    if not args.force:
        check_results(args.out, (*TABLES, args.figure), wanted.cases)
    return replace(wanted, theory=args.theory, part=part_of(args.part)), args


def execute(request: tuple[Study, argparse.Namespace], comm: MPI.Intracomm) -> int:
    """Run a sweep on all ranks of `comm`, write its table and its figure, and return the exit
    status.
    """
    (wanted, args), on_line = request, None
    if comm.rank == 0 and not args.quiet:
        on_line = partial(print, flush=True)
        part = wanted.part
        own = [number for number in range(len(wanted.cases)) if part.takes(number)]
        kept = (
            len(own) - len(wanted.open()) - sum(wanted.cases[k].file in wanted.spoilt for k in own)
        )
        which = f", part {part.number} of {part.parts} ({part.origin})" if part.parts > 1 else ""
        on_line(
            f"{plural(len(own), 'run')}{which}, {kept} of them finished before; "
            f"{comm.size // wanted.ranks_per_run} at a time; folder {args.out}"
        )
    swept = run_plan(wanted, comm, on_line)
    on_root(comm, _write, wanted, args, swept)
    return Status.FAILED if swept.failures else Status.OK


def _write(wanted: Study, args: argparse.Namespace, swept: Swept) -> None:
    if swept.elsewhere:
        print(
            f"{plural(len(swept.elsewhere), 'run')} elsewhere, such as {swept.elsewhere[0]}: who "
            "ends last writes the tables, or the same command, repeated",
            flush=True,
        )
        return
    table, names, layout = (
        swept.table,
        own_names(args.label),
        (args.columns, args.rows, args.across),
    )
    print(table.text(*layout, bold=sys.stdout.isatty()), flush=True)
    texts = (table.csv(), table.latex(*layout, names), runs_csv(wanted.cases, swept.failures))
    written = [*TABLES]
    paths = [os.path.join(args.out, name) for name in TABLES]
    # RUNS, which says whose the others are, before them, and table.csv last: the sweep has ended.
    for path, text in [*zip(paths, texts)][:0:-1]:
        put(path, text)
    try:
        made = table.figure(args.x, args.y, args.style, label=names, **look(args))
        made.savefig(Path(args.out, args.figure), dpi=200)
        written.append(args.figure)
    except ImportError as error:
        say("sweep", f"no figure: {error}: {command_of_extras('plot')}")
    except ValueError as error:
        say("sweep", f"no figure: {error}")
    put(paths[0], texts[0])
    print(f"{args.out}: {', '.join(written)}", flush=True)


def _check_layout(args: argparse.Namespace, wanted: Study) -> None:
    """Refuse, before the runs, settings and names that the figure and the table do not have."""
    given = [named(case.varied) for case in wanted.cases]
    chosen = {"panels": args.panels or (), "colour": [args.colour], "dash": [args.dash]}
    chosen |= {"rows": [args.rows], "across": [args.across]}
    try:
        check_names(own_names(args.label), given, [])
        View(args.log_x, args.xlim, args.ylim)
        for flag, keys in chosen.items():
            for key in filter(None, keys):
                find(key, given, f"--{flag}")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_figure(name: str) -> None:
    if os.path.basename(name) != name:
        raise ConfigError(
            f"--figure {name}: expected a name without a folder: the figure is written into that "
            "of --out"
        )
    # Without matplotlib there is no figure.
    with contextlib.suppress(ImportError):
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


SWEEP = Command(
    name="sweep",
    description="Run an experiment with all combinations of varied settings and seeds; write a "
    "table and a figure.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    execute=execute,
    interrupts=Interrupts.TOGETHER,
    interrupted="interrupted: the same command continues the sweep",
)
main = SWEEP.main
