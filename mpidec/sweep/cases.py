"""Cases of a sweep: the product of varied settings and seeds, each an experiment with a file of its
own.

Files of a sweep: which runs are finished, which can be resumed, which belong to another experiment.
"""

from __future__ import annotations

import csv
import enum
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .. import registry as catalogue
from ..driver.internals import cannot_resume
from ..exceptions import ConfigError, ResumeError
from ..experiment import (
    Experiment,
    Setting,
    abbreviate,
    accepted,
    check_name,
    seeded,
    settings as config,
)
from ..plot.internals import CHOSEN, MISSING, flat, split, together, worded
from ..plugins import short
from ..record import last_checkpoint, read
from ..record.internals import Fingerprint, file_hashes

# Settings that belong to the sweep itself.
OWN = {"run.out": "--out", "run.progress": "--quiet"}
DEFAULTS = [
    Setting("run.trajectory", False, "default of sweeps", text=False, level=-1),
    Setting("run.checkpoint", 5.0, "default of sweeps", text=False, level=-1),
]
# What makes the runs of several seeds different, for messages.
RANDOM = "partition, mini-batch, graph, codec, fault or data set"
GRAPHS = ("symmetric_exponential", "ring", "binary_tree")  # beside the defaults of solvers
LONGEST = 120  # characters of a file name
# What a run may have chosen, if that line is missing.
ALWAYS = (
    "problem.partition",
    "solver.step_size",
)
FREE = ("run.out", "run.progress", "run.checkpoint")  # these do not change a run
RUNS = "runs.csv"  # has the file of each run
FINISHED = ("completed", "stopped", "missed", "diverged")


class CaseStatus(enum.Enum):
    """What is to be done for a case."""

    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"
    # Its file cannot be read, and stays as it is.
    SPOILT = "spoilt"


class Variation(NamedTuple):
    """Setting and the values it takes, as text of a command line or as Python values.

    A value may have settings of its own in braces: ``lead{mixing.codec=top_k}``.
    """

    key: str
    values: tuple[Any, ...]
    origin: str
    text: bool = True

    def settings(self, value: object) -> list[Setting]:
        """Return the setting of a value, and those that come with it."""
        base, more = together(value) if isinstance(value, str) else (value, {})
        own = [Setting(key, text, f"{self.origin} {value}", level=2) for key, text in more.items()]
        for each in own:
            check_table(each.key, each.origin)
            if each.key in OWN or each.key in ("run.seed", self.key):
                raise ConfigError(f"{each.origin}: {each.key} cannot come with a value")
        return [Setting(self.key, base, self.origin, text=self.text), *own]


@dataclass(frozen=True)
class Case:
    """One run of a sweep: the varied settings by key, the seed, and the whole experiment, whose
    `run.out` is its file.
    """

    varied: Mapping[str, Any]
    seed: int
    experiment: Experiment

    @property
    def file(self) -> str:
        """Name of the run file."""
        return self.experiment.run.out

    def __str__(self) -> str:
        return ", ".join(
            [*(shown(key, value) for key, value in self.varied.items()), f"seed {self.seed}"]
        )


def parse_vary(argument: str) -> Variation:
    """Return the variation of an option ``--vary table.key=value,value,...``.

    Commas within brackets and quotes belong to the value, and so do settings in braces after it.

    Examples
    --------
    >>> parse_vary("topology.name=ring,grid").values
    ('ring', 'grid')
    >>> parse_vary("solver.name=dgd,lead{mixing.codec=top_k,mixing.fraction=0.1}").values
    ('dgd', 'lead{mixing.codec=top_k,mixing.fraction=0.1}')
    """
    key, equals, text = (part.strip() for part in argument.partition("="))
    parts = split(text)
    if not (equals and key and parts and all(parts)) or text.count("{") != text.count("}"):
        raise ConfigError(
            f"--vary {abbreviate(argument)}: expected table.key=value,value, such as "
            "solver.name=extra,dgd"
        )
    check_table(key, f"--vary {key}")
    made = Variation(key, tuple(parts), f"--vary {key}")
    for part in parts:
        braces = re.search(r"[{}]", re.sub(r"""\[[^\]]*\]|"[^"]*"|'[^']*'""", "", part))
        own = together(part)[1]
        if braces and not (own and all(map(all, own.items()))):
            raise ConfigError(
                f"--vary {key}: {abbreviate(part)}: expected settings in braces after the value, "
                "such as lead{mixing.codec=top_k}"
            )
    return made


def check_table(key: str, origin: str) -> None:
    """Raise ConfigError if `key` is not ``table.key`` with a known table."""
    table, dot, name = key.partition(".")
    check_name("table", table, config.TABLES, origin)
    if not (dot and name):
        raise ConfigError(f"{origin}: expected table.key, such as solver.name")


def cases(
    settings: Sequence[Setting], variations: Sequence[Variation], seeds: int | None, folder: str
) -> list[Case]:
    """Return the cases of a sweep, the seeds of one combination side by side; one seed where
    nothing is random.

    The number of agents does not depend on the number of ranks.

    Raises
    ------
    ConfigError
        A key or a value is unknown, or a setting is given twice.
    """
    _check(settings, variations, seeds)
    settings = [*DEFAULTS, *settings]
    found = []
    for combination in itertools.product(*(variation.values for variation in variations)):
        chosen = [
            setting
            for variation, value in zip(variations, combination)
            for setting in variation.settings(value)
        ]
        _check_once(chosen)
        for experiment in _at_seeds([*settings, *chosen], seeds):
            seed = experiment.run.seed
            varied = {
                variation.key: _with(_value(experiment, variation.key), value)
                for variation, value in zip(variations, combination)
            }
            name = _file_name({**varied, **({} if seeds is None else {"run.seed": seed})})
            found.append(
                Case(
                    varied,
                    seed,
                    replace(
                        experiment,
                        run=replace(
                            experiment.run, out=os.path.join(folder, name), progress="none"
                        ),
                    ),
                )
            )
    _check_files(found)
    return found


def _at_seeds(settings: Sequence[Setting], seeds: int | None) -> list[Experiment]:
    """Return an experiment at its seeds; at the first one where nothing is random."""
    first = config.load(settings)
    if seeds is None:
        return [first]
    if (first.run.runs or 1) > 1:
        raise ConfigError(
            f"--seeds {seeds}: each run has the draws of {first.run.runs} seeds already "
            "(run.runs): omit one of the two"
        )
    drawn = [
        config.load([*settings, Setting("run.seed", seed, "--seeds", text=False)])
        for seed in range(first.run.seed, first.run.seed + seeds)
    ]
    return drawn[:1] if len(drawn) > 1 and not seeded(*drawn[:2]) else drawn


def _check_files(found: Sequence[Case]) -> None:
    """Refuse two cases with the same file."""
    names: dict[str, Case] = {}
    for case in found:
        other = names.setdefault(case.file, case)
        if other is not case:
            raise ConfigError(
                f"two runs of the sweep have the same file {case.file}: {other} and {case}"
            )


def _check_once(chosen: Sequence[Setting]) -> None:
    """Refuse a setting that two varied ones state."""
    known: dict[str, Setting] = {}
    for setting in chosen:
        other = known.setdefault(setting.key, setting)
        if other is not setting:
            raise ConfigError(
                f"{max(setting.origin, other.origin, key=len)}: {setting.key} is varied by "
                f"{min(setting.origin, other.origin, key=len)}: omit one of the two"
            )


def _with(value: object, given: object) -> object:
    """Return a value with the settings that were given with it."""
    more = together(given)[1] if isinstance(given, str) else {}
    return f"{value}{{{','.join(map('='.join, more.items()))}}}" if more else value


def common_graph(settings: Sequence[Setting], variations: Sequence[Variation]) -> Sequence[Setting]:
    """Return the graph of a sweep over solvers that names none: one that all of them can use, so
    that the table compares solvers.

    None if they have the same default, or no graph for all.
    """
    solvers = [variation for variation in variations if variation.key == "solver.name"]
    if not solvers:
        return ()
    options = [solvers[0].settings(value) for value in solvers[0].values]
    stated = {each.key.partition(".")[0] for each in itertools.chain(settings, *options)}
    if "topology" in stated | {variation.key.partition(".")[0] for variation in variations}:
        return ()
    kept = [each for each in settings if not each.key.startswith(("solver.", "mixing."))]
    usual = dict.fromkeys(config.load([*kept, *option]).topology.name for option in options)
    if len(usual) < 2:
        return ()
    for name in dict.fromkeys([*usual, *GRAPHS]):
        graph = Setting("topology.name", name, "graph of all solvers", text=False, level=-1)
        if all(accepted(config.load([*kept, *option, graph])) for option in options):
            return (graph,)
    return ()


def shown(key: str, value: object) -> str:
    """Return a varied setting for a message, a table or a label; None stands for a default."""
    return worded(key, MISSING if value is None else value)


def _check(settings: Iterable[Setting], variations: Sequence[Variation], seeds: int | None) -> None:
    if twice := _twice(variation.key for variation in variations):
        raise ConfigError(
            f"--vary {twice} is given twice: write all values into one, --vary {twice}=value,value"
        )
    for variation in variations:
        _check_values(variation)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds: expected a positive integer, got {seeds}")
    given = {setting.key: setting.origin for setting in settings if setting.level > 0}
    for key, _, origin, _ in variations:
        if key in OWN:
            raise ConfigError(
                f"{origin}: cannot be varied: every run has its own file, and {OWN[key]} belongs "
                "to the sweep"
            )
        if key == "run.seed" and seeds is not None:
            raise ConfigError(f"{origin}: the seeds come from --seeds: omit one of the two")
        if key in given:
            raise ConfigError(f"{given[key]}: varied by {origin}: omit one of the two")
    for key, option in OWN.items():
        if key in given:
            raise ConfigError(f"{given[key]}: has no effect in a sweep: use {option}")


def _check_values(variation: Variation) -> None:
    if again := _twice(map(str, variation.values)):
        raise ConfigError(f"{variation.origin}: the value {again} is given twice")
    if not variation.values:
        raise ConfigError(f"{variation.origin}: no value is given")


def _twice(words: Iterable[str]) -> str | None:
    """Return the first word that occurs twice."""
    return next((word for word, count in Counter(words).items() if count > 1), None)


def _value(experiment: Experiment, key: str) -> object:
    table, _, name = key.partition(".")
    part = vars(vars(experiment)[table])
    return {**part, **part.get("options", {})}.get(name)


def _file_name(varied: Mapping[str, Any]) -> str:
    """Return ``extra-ring-l2=0.1-seed=0.h5``; letters that a shell or a file system treats
    specially become underscores.
    """
    parts = [
        short(str(value))
        if key.endswith(".name")
        else f"{key.partition('.')[2]}={short(str(value))}"
        for key, value in varied.items()
    ]
    name = re.sub(r"[^\w.=+-]+", "_", "-".join(parts).replace("}", "")).lstrip(".-_") or "run"
    return name[:LONGEST] + ".h5"


def config_text(wanted: Experiment, made: Experiment) -> str:
    """Return the TOML text of `made`, headed by the settings that the run itself has chosen
    because `wanted` leaves them open.
    """
    asked, got = flat(wanted.to_toml()), flat(made.to_toml())
    return (
        f"{CHOSEN}{', '.join(key for key in got if asked.get(key) != got[key])}\n{made.to_toml()}"
    )


def status(case: Case) -> CaseStatus:
    """Return the status of a case according to its file.

    Raises
    ------
    ConfigError
        The file holds a run of another experiment.
    ValueError
        The file cannot be read.
    """
    if not os.path.lexists(case.file):
        return CaseStatus.NEW
    run = read(case.file)
    if changes := _changes(case.experiment, run.config, run.attributes):
        raise ConfigError(
            f"{case.file} holds another experiment ({changes[0]}): choose another --out, or remove "
            "the file"
        )
    if run.outcome in FINISHED:
        return CaseStatus.FINISHED
    obstacle = cannot_resume(catalogue.SOLVERS[case.experiment.solver.name])
    if obstacle and not case.experiment.run.simulate:
        return CaseStatus.NEW
    try:
        last_checkpoint(case.file)
    except ResumeError:
        return CaseStatus.NEW
    return CaseStatus.UNFINISHED


def check_results(folder: str, names: Sequence[str], cases: Sequence[Case]) -> None:
    """Refuse a folder whose tables and figure (`names`, runs.csv among them) show runs that are not
    among `cases`.

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
        f"{', '.join(os.path.join(folder, name) for name in existing)} would be replaced, and may "
        "be of another "
        f"study ({whose}): choose another --out, or replace them with --force"
    )


def _changes(wanted: Experiment, text: str, attributes: Mapping[str, Any]) -> list[str]:
    """Return the settings and files in which an experiment differs from that of a file, by its
    settings and root attributes.
    """
    asked = flat(wanted.to_toml())
    try:
        found = dict(flat(text))
    except (ValueError, AttributeError):
        return ["without settings"]
    head = text.partition("\n")[0]
    chosen = (
        head.removeprefix(CHOSEN).split(", ")
        if head.startswith(CHOSEN)
        else [key for key in ALWAYS if key not in asked]
    )
    left = {*FREE, *(key for key in chosen if asked.get(key) in (None, "auto", "safe"))}
    found |= dict.fromkeys(chosen, "chosen by the run")
    then, now = (
        {key: value for key, value in each.items() if key not in left} for each in (found, asked)
    )
    sources = wanted.sources()
    fingerprint = Fingerprint(now, sources, file_hashes(sources))
    return fingerprint.changes(Fingerprint.stored(attributes, then), absent="not set")
