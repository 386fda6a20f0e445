"""Command ``python -m mpidec.watch``."""

from __future__ import annotations

import argparse
import math

from ..cli import Command, Flag, progress
from ..exceptions import ConfigError
from .views import Screen, TextView, follow
from .watched import WatchedFile

EPILOG = """\
examples:
  python -m mpidec.watch run.h5                     the last records and curves of a run, until it ends
  python -m mpidec.watch study/*.h5 --every 10      several runs, read every 10 seconds
  python -m mpidec.watch train.h5 | tee log.txt     a line for each new record

The files may be of runs that have not begun, that run on other machines, or that have ended.  Ctrl-C ends the command,
not the runs.
"""

FLAGS = [
    Flag("runs", nargs="+", metavar="run.h5", help="files of runs or trainings"),
    Flag(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two looks at the files (default: 1)",
    ),
    Flag(
        "--records",
        type=int,
        default=5,
        metavar="N",
        help="last records of each run that are shown on a terminal (default: 5)",
    ),
]


def prepare(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Return the arguments, checked."""
    if not 0 < args.every < math.inf:
        raise ConfigError(f"--every is {args.every:g}, expected a number of seconds > 0")
    if args.records < 1:
        raise ConfigError(f"--records is {args.records}, expected at least 1")
    return args


def execute(args: argparse.Namespace) -> None:
    """Show the files until all runs have ended."""
    width = progress.terminal()
    view = TextView() if width is None else Screen(width, args.records)
    try:
        follow([WatchedFile(path) for path in args.runs], view, args.every)
    except KeyboardInterrupt:
        pass
    finally:
        view.close()


WATCH = Command(
    name="watch",
    description="Show the last records and the curves of runs while they are written.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    alone=execute,
)
main = WATCH.main
