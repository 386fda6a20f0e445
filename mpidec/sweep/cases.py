"""Cases of a sweep: the product of varied settings and seeds, each an experiment with a file of its own."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..experiment import settings as config
from ..experiment.settings import ConfigError, Experiment, Setting
from ..experiment.values import abbreviate
from ..plot.labels import MISSING, worded
from ..plugins import short

OWN = {"run.out": "--out", "run.progress": "--quiet"}  # settings that belong to the sweep itself
DEFAULTS = [
    Setting("run.trajectory", False, "default of sweeps", text=False, level=-1),
    Setting("run.checkpoint", 5.0, "default of sweeps", text=False, level=-1),
]
LONGEST = 120  # characters of a file name


class Variation(NamedTuple):
    """Setting and the values it takes, as text of a command line or as Python values."""

    key: str
    values: tuple[Any, ...]
    origin: str
    text: bool = True


@dataclass(frozen=True)
class Case:
    """One run of a sweep: the varied settings by key, the seed, and the whole experiment, whose `run.out` is its file."""

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

    Commas within brackets and quotes belong to the value.

    Examples
    --------
    >>> parse_vary("topology.name=ring,grid").values
    ('ring', 'grid')
    """
    key, equals, text = (part.strip() for part in argument.partition("="))
    parts = [
        part.strip()
        for part in re.findall(r"""((?:\[[^\]]*\]|"[^"]*"|'[^']*'|[^,\[\]"'])*)(?:,|$)""", text)
    ]
    parts = parts[:-1] if parts and not parts[-1] and not text.endswith(",") else parts
    if not (equals and key and parts and all(parts)):
        raise ConfigError(
            f"--vary {abbreviate(argument)}: expected table.key=value,value, such as solver.name=extra,dgd"
        )
    check_table(key, f"--vary {key}")
    return Variation(key, tuple(parts), f"--vary {key}")


def check_table(key: str, origin: str) -> None:
    """Raise ConfigError if `key` is not ``table.key`` with a known table."""
    table, dot, name = key.partition(".")
    if table not in config.TABLES:
        raise ConfigError(config.unknown("table", table, config.TABLES, origin))
    if not (dot and name):
        raise ConfigError(f"{origin}: expected table.key, such as solver.name")


def cases(
    settings: Sequence[Setting], variations: Sequence[Variation], seeds: int | None, folder: str
) -> list[Case]:
    """Return the cases of a sweep, the seeds of one combination side by side.

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
            Setting(variation.key, value, variation.origin, text=variation.text)
            for variation, value in zip(variations, combination)
        ]
        first = config.load([*settings, *chosen])
        for seed in range(first.run.seed, first.run.seed + (seeds or 1)):
            seeded = [
                *settings,
                *chosen,
                *([] if seeds is None else [Setting("run.seed", seed, "--seeds", text=False)]),
            ]
            experiment = config.load(seeded)
            varied = {variation.key: _value(experiment, variation.key) for variation in variations}
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


def shown(key: str, value: object) -> str:
    """Return a varied setting for a message, a table or a label; None stands for a default."""
    return worded(key, MISSING if value is None else value)


def _check(settings: Iterable[Setting], variations: Sequence[Variation], seeds: int | None) -> None:
    given = {setting.key: setting for setting in settings}
    twice = [
        key
        for key, count in Counter(variation.key for variation in variations).items()
        if count > 1
    ]
    if twice:
        raise ConfigError(
            f"--vary {twice[0]} is given twice: write all values into one, --vary {twice[0]}=value,value"
        )
    for variation in variations:
        again = [value for value, count in Counter(map(str, variation.values)).items() if count > 1]
        if again or not variation.values:
            fault = f"the value {again[0]} is given twice" if again else "no value is given"
            raise ConfigError(f"{variation.origin}: {fault}")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds: expected a positive integer, got {seeds}")
    for key, _, origin, _ in variations:
        if key in OWN:
            raise ConfigError(
                f"{origin}: cannot be varied: every run has its own file, and {OWN[key]} belongs to the sweep"
            )
        if key == "run.seed" and seeds is not None:
            raise ConfigError(f"{origin}: the seeds come from --seeds: omit one of the two")
        if key in given and given[key].level > 0:
            raise ConfigError(f"{given[key].origin}: varied by {origin}: omit one of the two")
    for key, option in OWN.items():
        if key in given and given[key].level > 0:
            raise ConfigError(f"{given[key].origin}: has no effect in a sweep: use {option}")


def _check_files(found: Sequence[Case]) -> None:
    names: dict[str, Case] = {}
    for case in found:
        if case.file in names:
            raise ConfigError(
                f"two runs of the sweep have the same file {case.file}: {names[case.file]} and {case}"
            )
        names[case.file] = case


def _value(experiment: Experiment, key: str) -> object:
    table, _, name = key.partition(".")
    part = getattr(experiment, table)
    options = getattr(part, "options", {})
    return options[name] if name in options else getattr(part, name, None)


def _file_name(varied: Mapping[str, Any]) -> str:
    """Return ``extra-ring-l2=0.1-seed=0.h5``; letters that a shell or a file system treats specially become underscores."""
    parts = [
        short(str(value))
        if key.endswith(".name")
        else f"{key.partition('.')[2]}={short(str(value))}"
        for key, value in varied.items()
    ]
    name = re.sub(r"[^\w.=+-]+", "_", "-".join(parts)).lstrip(".-_") or "run"
    return name[:LONGEST] + ".h5"
