"""Parts of a command that the tasks of a job array share."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..exceptions import ConfigError

_SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT")


@dataclass(frozen=True)
class ArrayPart:
    """Part `number`, from 1, of `parts`: every `parts`-th piece of work; `origin` says who has
    chosen it.
    """

    number: int = 1
    parts: int = 1
    origin: str = "--part"

    def takes(self, piece: int) -> bool:
        """Return whether the piece 0, 1, ... belongs to the part."""
        return piece % self.parts == self.number - 1

    def file(self, number: int) -> str:
        """Return the file in which a part notes how its runs have ended."""
        return f"part-{number}-of-{self.parts}.csv"


WHOLE = ArrayPart()


def part_of(text: str | None, environ: Mapping[str, str] = os.environ) -> ArrayPart:
    """Return the part that a flag ``--part I/N`` names, or the task of an array of Slurm; without
    both, the whole.

    Examples
    --------
    >>> part_of("2/4", {}).takes(1), part_of(None, {}).parts
    (True, 1)
    """
    if text is None and all(name in environ for name in _SLURM):
        task, first, count = (int(environ[name]) for name in _SLURM)
        step = int(environ.get("SLURM_ARRAY_TASK_STEP", "1"))
        if (task - first) // step < count:  # not so if the numbers of the tasks have gaps
            return ArrayPart((task - first) // step + 1, count, f"{_SLURM[0]}={task}")
    if text is None:
        return WHOLE
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(f"--part {text}: expected I/N with I from 1 to N, such as 2/8")
    return ArrayPart(number, count)


def failed_runs(path: str) -> list[str]:
    """Return the files of the runs that failed, from the table of a sweep with a line for each."""
    with open(path, encoding="utf-8", newline="") as file:
        return [line["file"] for line in csv.DictReader(file) if line["outcome"] == "failed"]
