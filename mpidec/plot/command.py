"""Command ``python -m mpidec.plot``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .._style import STYLES
from .agents import agents
from .quantities import X
from .runs import figure

EPILOG = """\
examples:
  python -m mpidec.plot run.h5                                          f - f*, consensus and error against steps, bytes and seconds
  python -m mpidec.plot extra.h5 dgd.h5 --x bytes --y error             one panel: the error against the data sent
  python -m mpidec.plot a2cid2.h5 --kind agents                         steps per agent, averagings per edge, idle time per rank
  python -m mpidec.plot a.h5 b.h5 --label ring exponential --style paper -o comparison.pdf
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mpidec.plot: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m mpidec.plot``, on rank 0 if there are several; return its exit status."""
    from ..comm.runtime.mpi import MPI

    status: int | str | None = 1
    if MPI.COMM_WORLD.rank == 0:
        try:
            status = _plotted(arguments)
        except SystemExit as end:
            status = end.code
            raise
        finally:
            MPI.COMM_WORLD.bcast(status)
    else:
        status = MPI.COMM_WORLD.bcast(None)
    return int(status or 0)


def _plotted(arguments: Sequence[str] | None) -> int:
    parser = _Parser(
        prog="python -m mpidec.plot",
        description="Plot f - f*, consensus and error of runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="run.h5", help="run files, finished or not")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FIGURE",
        help="output file, .png, .pdf, .svg, ... (default: FIRST_RUN.png)",
    )
    parser.add_argument(
        "--x",
        nargs="+",
        choices=list(X),
        metavar="AXIS",
        help=f"{', '.join(X)} (default: steps, bytes and seconds; seconds if a run is asynchronous, time if all "
        "are simulated)",
    )
    parser.add_argument(
        "--y",
        nargs="+",
        metavar="METRIC",
        help="objective (drawn as f - f*), error, consensus, gradient_norm, or another metric of the files "
        "(default: objective, consensus and error; of trainings accuracies, consensus and loss)",
    )
    parser.add_argument(
        "--label",
        nargs="+",
        metavar="NAME",
        help="one label per run, which then has a line of its own, or per line (default: the settings that differ; "
        "runs that differ in the seed alone make one line, the median, with a band)",
    )
    parser.add_argument(
        "--style",
        choices=list(STYLES),
        default="screen",
        help="screen (default), or paper: the width of a column or a page, serif letters, no title",
    )
    parser.add_argument(
        "--kind",
        choices=["curves", "agents"],
        default="curves",
        help="curves (default), or agents, of asynchronous runs: steps per agent, averagings per edge or histogram "
        "of the staleness, idle time per rank",
    )
    options = parser.parse_args(arguments)
    if options.kind == "agents" and (options.x or options.y):
        parser.error(f"{'--x' if options.x else '--y'} has no effect with --kind agents: omit it")
    out = options.out or str(Path(options.runs[0]).with_suffix(".png"))
    try:
        for run in options.runs:
            if Path(run).is_dir():
                raise IsADirectoryError(
                    f"{run} is a folder: give its run files, {Path(run) / '*.h5'}"
                )
        check_name(out)
        made = (
            agents(options.runs, options.label, options.style)
            if options.kind == "agents"
            else figure(options.runs, options.x, options.y, options.label, options.style)
        )
        made.savefig(out, dpi=200)
    except ImportError as error:
        parser.error(f"{error}: pip install 'mpidec[plot]'")
    except (OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    print(out)
    return 0


def check_name(out: str, flag: str = "-o", folder: bool = True) -> None:
    """Raise ValueError if matplotlib cannot write a file of this name, or (if `folder`) its folder does not exist."""
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(out).suffix.lower()[1:] not in suffixes:
        raise ValueError(
            f"{flag} {out}: expected a name that ends in one of .{', .'.join(suffixes)}"
        )
    if folder and not Path(out).parent.is_dir():
        raise ValueError(f"{flag} {out}: the folder {Path(out).parent} does not exist")
