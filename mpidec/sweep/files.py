"""Files of a sweep: which runs are finished, which can be resumed, which belong to another experiment."""

from __future__ import annotations

import csv
import enum
import os
from collections.abc import Sequence

from .. import registry as catalogue
from ..driver.asynchronous.result import cannot_resume
from ..experiment.settings import ConfigError, Experiment
from ..plot.labels import CHOSEN, flat
from ..record import last_checkpoint, read
from ..record.origin import changed_file, file_hashes
from .cases import Case

ALWAYS = (
    "problem.partition",
    "solver.step_size",
)  # what a run may have chosen, if that line is missing
FREE = ("run.out", "run.progress", "run.checkpoint")  # these do not change a run
RUNS = "runs.csv"  # has the file of each run
FINISHED = ("completed", "stopped", "missed", "diverged")


class Status(enum.Enum):
    """What is to be done for a case."""

    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


def config_text(wanted: Experiment, made: Experiment) -> str:
    """Return the TOML text of `made`, headed by the settings that the run itself has chosen because `wanted` leaves them open."""
    asked, got = flat(wanted.to_toml()), flat(made.to_toml())
    return (
        f"{CHOSEN}{', '.join(key for key in got if asked.get(key) != got[key])}\n{made.to_toml()}"
    )


def status(case: Case) -> Status:
    """Return the status of a case according to its file.

    Raises
    ------
    ConfigError
        The file holds a run of another experiment.
    """
    if not os.path.lexists(case.file):
        return Status.NEW
    try:
        run = read(case.file)
    except ValueError as error:
        raise ConfigError(f"{error}: remove it, or choose another --out") from error
    other = _difference(case.experiment, run.config)
    if other:
        raise ConfigError(
            f"{case.file} holds another experiment ({other}): choose another --out, or remove the file"
        )
    changed = changed_file(run.attributes, file_hashes(case.experiment.sources()))
    if changed:
        raise ConfigError(
            f"{case.file}: {changed} has changed since the run began: choose another --out, or remove the file"
        )
    if run.outcome in FINISHED:
        return Status.FINISHED
    if case.experiment.run.simulate or cannot_resume(
        catalogue.SOLVERS[case.experiment.solver.name]
    ):
        return Status.NEW
    try:
        last_checkpoint(case.file)
    except ValueError:
        return Status.NEW
    return Status.UNFINISHED


def check_results(folder: str, names: Sequence[str], cases: Sequence[Case]) -> None:
    """Refuse a folder whose tables and figure (`names`, runs.csv among them) show runs that are not among `cases`.

    Raises
    ------
    ConfigError
        They would be replaced by those of another study, or nothing says whose they are.
    """
    existing = [name for name in names if os.path.lexists(os.path.join(folder, name))]
    if not existing:
        return
    try:
        with open(os.path.join(folder, RUNS), encoding="utf-8", newline="") as file:
            shown = [line["file"] for line in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, csv.Error):
        shown = []
    own = {os.path.basename(case.file) for case in cases}
    other = next((name for name in shown if name not in own), None)
    if shown and other is None:
        return
    whose = (
        f"{RUNS} has {other}, which is not among these runs"
        if other
        else f"no {RUNS} names their runs"
    )
    raise ConfigError(
        f"{', '.join(os.path.join(folder, name) for name in existing)} would be replaced, and may be of another "
        f"study ({whose}): choose another --out, or replace them with --force"
    )


def _difference(wanted: Experiment, text: str) -> str:
    """Return the first setting in which an experiment differs from that of a file, for a message; "" if they are equal."""
    asked = flat(wanted.to_toml())
    try:
        found = flat(text)
    except (ValueError, AttributeError):
        return "without settings"
    head = text.partition("\n")[0]
    chosen = (
        head.removeprefix(CHOSEN).split(", ")
        if head.startswith(CHOSEN)
        else [key for key in ALWAYS if key not in asked]
    )
    for key in dict.fromkeys([*asked, *found]):
        if key in FREE or (key in chosen and asked.get(key) in (None, "auto", "safe")):
            continue
        if asked.get(key) != found.get(key) or key in chosen:
            return f"{key} is {_shown(found.get(key), key in chosen)}, not {_shown(asked.get(key))}"
    return ""


def _shown(value: object, chosen: bool = False) -> str:
    return "chosen by the run" if chosen else "not set" if value is None else repr(value)
