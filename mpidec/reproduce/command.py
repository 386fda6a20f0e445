"""Command line of ``python -m mpidec.reproduce``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from importlib.util import find_spec
from typing import Any, NamedTuple

from .._words import command_of_extras
from ..cli import Command, Flag, Interrupts, Status, plural, quiet
from ..comm.runtime import MPI, on_root
from ..exceptions import ConfigError
from ..experiment import Setting, check_name, entries
from .catalogue import EXPERIMENTS
from .experiment import Experiment
from .measuring import measure, publish
from .page import write_page

RECIPES = sorted(glob(os.path.join(os.path.dirname(__file__), "recipes", "*.toml")))
EPILOG = """\
examples:
  python -m mpidec.reproduce --list
  python -m mpidec.reproduce ceca-fig5 relaysgd-fig6          two figures, in seconds
  mpirun -n 4 python -m mpidec.reproduce --all                everything, four cells at a time
  python -m mpidec.reproduce relaysgd-fig2b --seeds 3,4 --set sizes=10,20

Each experiment leaves NAME.h5 (what was measured), NAME.png, NAME.txt, NAME.csv and NAME.md in the
folder --out, and index.md has all that are there on one page.  A command that was killed continues
where it stopped. The exit status is 1 if a line that
should agree with the paper does not."""

FLAGS = [
    Flag("experiment", nargs="*", metavar="EXPERIMENT", help="names, see --list"),
    Flag("--all", action="store_true", help="all experiments"),
    Flag("--list", action="store_true", help="list the experiments: paper, minutes, differences"),
    Flag("--seeds", metavar="S,S,...", help="seeds of the runs, other than the default ones"),
    Flag(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a field of the experiment",
    ),
    Flag(
        "--quick", action="store_true", help="short runs, which show the form of the report alone"
    ),
    Flag(
        "-o",
        "--out",
        metavar="FOLDER",
        help="folder of the results (default: reproduced, or with --quick reproduced-quick)",
    ),
    Flag("--force", action="store_true", help="replace results that are there"),
    quiet("no line that tells which cells are done"),
]


class Asked(NamedTuple):
    """Parsed arguments of the command line."""

    experiments: Sequence[Experiment[Any]]
    folder: str
    quick: bool
    force: bool
    quiet: bool


def prepare(args: argparse.Namespace, ranks: int) -> Asked | str:
    """Return what the arguments ask for, checked, or the list."""
    if args.list:
        return listing()
    if args.all == bool(args.experiment):
        raise ConfigError("expected names of experiments, or --all: --list has them")
    if find_spec("matplotlib") is None:
        raise ConfigError(f"reproduce draws figures with matplotlib: {command_of_extras('plot')}")
    for name in args.experiment:
        _check_experiment(name)
    names = list(EXPERIMENTS) if args.all else list(dict.fromkeys(args.experiment))
    given = [f"seeds={args.seeds}"] * (args.seeds is not None) + args.set
    chosen = [configured(EXPERIMENTS[name](), given, args.quick, args.all) for name in names]
    folder = args.out or ("reproduced-quick" if args.quick else "reproduced")
    os.makedirs(folder, exist_ok=True)
    return Asked(chosen, folder, args.quick, args.force, args.quiet)


def _check_experiment(name: str) -> None:
    try:
        check_name("experiment", name, EXPERIMENTS, "command line")
    except ConfigError as error:
        raise ConfigError(f"{error}; mpidec reproduce --list has all") from None


def configured(
    experiment: Experiment[Any], given: Sequence[str], quick: bool = False, some: bool = False
) -> Experiment[Any]:
    """Return an experiment with ``name=value`` settings; with `some`, it takes those that it has.

    Raises
    ------
    ConfigError
        For a name or a value that it does not have.
    """
    values: dict[str, Any] = dict(experiment.about.quick) if quick else {}
    known = {entry.name: entry for entry in entries(type(experiment)).values()}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if some and name not in known:
            continue
        origin = f"{experiment.about.name}: {name}"
        check_name("setting", name, known, experiment.about.name)
        if not equals:
            raise ConfigError(f"--set {text}: expected NAME=VALUE")
        if isinstance(getattr(experiment, name), tuple):
            value = f"{value.strip('[]')},"  # a list of one number has no comma
        values[name] = chosen = known[name].convert(Setting(name, value, origin))
        if isinstance(chosen, tuple) and len(set(chosen)) < len(chosen):
            raise ConfigError(f"{origin}: a value is given twice, expected each once")
    return replace(experiment, **values)  # type: ignore[type-var]


def listing() -> str:
    """Return the list of the experiments."""
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lines.append(f"{name}  ({experiment.about.source}; {experiment.about.minutes:g} min)")
        lines.append(f"    {experiment.about.shows}")
        if experiment.about.differs:
            lines.append(f"    here: {experiment.about.differs}")
    lines.append("\nexperiment files of the originals, not run here: mpidec train FILE")
    for path in RECIPES:
        with open(path, encoding="utf-8") as file:
            what = file.readline().strip("# \n")
        lines.append(f"{path}  ({what})")
    return "\n".join(lines)


def execute(asked: Asked, comm: MPI.Intracomm) -> int:
    """Measure on all ranks of `comm`, print the reports, and return the exit status."""
    failed = []
    for experiment in asked.experiments:
        path = os.path.join(asked.folder, f"{experiment.about.name}.h5")
        cells = Cells(comm.rank == 0 and not asked.quiet)
        try:
            measure(
                experiment,
                path,
                comm=comm,
                force=asked.force,
                on_cell=cells,
                on_begin=cells.begin,
            )
        finally:
            cells.close()
        if on_root(comm, _told, experiment, path):
            failed.append(experiment.about.name)
    on_root(comm, write_page, asked.folder)
    if failed and comm.rank == 0 and not asked.quick:
        print(f"{plural(len(failed), 'experiment')} differ: {', '.join(failed)}", flush=True)
    comm.Barrier()
    return Status.FAILED if failed and not asked.quick else Status.OK


class Cells:
    """Progress over the cells: one moving line on a terminal, else about `LINES` lines."""

    LINES = 10

    def __init__(self, shown: bool):
        self.shown, self.done, self.todo = shown, 0, 0
        self.moving = shown and sys.stderr.isatty()

    def begin(self, todo: int) -> None:
        """Take the number of cells that are to be measured."""
        self.todo = todo

    def __call__(self, text: str) -> None:
        """Tell that a cell is done."""
        self.done += 1
        before, now = (self.LINES * k // max(self.todo, 1) for k in (self.done - 1, self.done))
        text = f"{text}, {self.done} of {self.todo}"
        if self.moving:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:{width}}", end="", file=sys.stderr, flush=True)
        elif self.shown and now > before:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the moving line."""
        if self.moving and self.done:
            print(f"\r{'':{shutil.get_terminal_size().columns - 1}}\r", end="", file=sys.stderr)


def _told(experiment: Experiment[Any], path: str) -> bool:
    """Publish and print a report; return whether a line differs that should agree."""
    report = publish(experiment, path)
    stem = os.path.splitext(path)[0]
    files = f"figure {stem}.png; table {stem}.txt, .csv, .md; measured {path}"
    print(report, files, sep="\n", end="\n\n", flush=True)
    return report.failed


REPRODUCE = Command(
    name="reproduce",
    description="Repeat published experiments, and say line by line whether they agree.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    execute=execute,
    interrupts=Interrupts.TOGETHER,
    interrupted="interrupted: the same command continues",
)
main = REPRODUCE.main
