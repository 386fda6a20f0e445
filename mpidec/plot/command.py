"""Command ``python -m mpidec.plot``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._words import command_of_extras
from ..cli import STYLE, Command, Flag
from ..exceptions import ConfigError
from ..record import read
from .agents import agents
from .drawing import check_name
from .labels import given_of, of_seeds
from .options import FLAGS as LOOKS, look, own_names
from .quantities import X
from .runs import figure

EPILOG = """\
examples:
  python -m mpidec.plot run.h5                                          f - f*, consensus and error against steps, bytes and seconds
  python -m mpidec.plot extra.h5 dgd.h5 --x bytes --y error             one panel: the error against the data sent
  python -m mpidec.plot a2cid2.h5 --kind agents                         steps per agent, averagings per edge, idle time per rank
  python -m mpidec.plot a.h5 b.h5 --label ring exponential --style paper -o comparison.pdf
  python -m mpidec.plot study/*.h5 --y error --panels topology --log-x --label dgd=DSGD --style paper -o study.pdf
"""


FLAGS = [
    Flag("runs", nargs="+", metavar="run.h5", help="run files, finished or not"),
    Flag(
        "-o",
        "--out",
        metavar="FIGURE",
        help="output file, .png, .pdf, .svg, ... (default: FIRST_RUN.png)",
    ),
    Flag(
        "--x",
        nargs="+",
        choices=list(X),
        metavar="AXIS",
        help=f"{', '.join(X)} (default: steps, bytes and seconds; seconds if a run is "
        "asynchronous, time if all "
        "are simulated)",
    ),
    Flag(
        "--y",
        nargs="+",
        metavar="METRIC",
        help="objective (drawn as f - f*), error, consensus, gradient_norm, or another metric of "
        "the files "
        "(default: objective, consensus and error; of trainings accuracies, consensus and loss)",
    ),
    Flag(
        "--label",
        nargs="+",
        metavar="NAME",
        help="one label per run, which then has a line of its own, or per line; or name=TEXT for "
        "solvers, graphs, other values and labels, such as dgd=DSGD (default: the settings that "
        "differ, as papers name them; runs that differ in the seed alone make one line, the "
        "median, with a band)",
    ),
    *LOOKS,
    STYLE,
    Flag(
        "--kind",
        choices=["curves", "agents"],
        default="curves",
        help="curves (default), or agents, of asynchronous runs: steps per agent, averagings per "
        "edge or histogram "
        "of the staleness, idle time per rank",
    ),
]


def prepare(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Return the arguments, checked."""
    names = ("x", "y", *look(args))
    idle = next((name for name in names if getattr(args, name)), None)
    if args.kind == "agents" and idle:
        flag = idle.replace("_", "-")
        raise ConfigError(f"--{flag} has no effect with --kind agents: omit it")
    return args


def _labels(args: argparse.Namespace) -> Sequence[str] | Mapping[str, str] | None:
    """Return own names of values, if all labels are name=TEXT and not one for each run."""
    given: list[str] | None = args.label
    every = [read(run) for run in args.runs] if given and all("=" in one for one in given) else []
    values = [{str(value) for value in one.values()} for one in given_of(every)]
    if every and given and all(one.partition("=")[0] in set().union(*values) for one in given):
        return own_names(given)
    if every and given and len(given) not in (len(every), len(of_seeds(every))):
        return own_names(given)
    return given


def execute(args: argparse.Namespace) -> None:
    """Draw the figure."""
    out = args.out or str(Path(args.runs[0]).with_suffix(".png"))
    for run in args.runs:
        if Path(run).is_dir():
            raise IsADirectoryError(f"{run} is a folder: give its run files, {Path(run) / '*.h5'}")
    try:
        check_name(out)
        made = (
            agents(args.runs, args.label, args.style)
            if args.kind == "agents"
            else figure(args.runs, args.x, args.y, _labels(args), args.style, **look(args))
        )
        made.savefig(out, dpi=200)
    except ImportError as error:
        raise ImportError(f"{error}: {command_of_extras('plot')}") from None
    print(out, flush=True)


PLOT = Command(
    name="plot",
    description="Plot f - f*, consensus and error of runs.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    alone=execute,
)
main = PLOT.main
