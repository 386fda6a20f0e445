"""Parts of a sweep: what each has done, and which runs are left to others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..cli import ArrayPart, failed_runs
from .cases import Case, CaseStatus, status
from .tables import runs_csv


def put(path: str, text: str) -> None:
    """Write a text into a file, which other processes find complete or not at all."""
    new = f"{path}.{os.getpid()}.new"
    with open(new, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace(new, path)


def note(part: ArrayPart, cases: Sequence[Case], failures: Mapping[str, str]) -> None:
    """Write how the runs of a part have ended."""
    own = [case for number, case in enumerate(cases) if part.takes(number)]
    put(_path(part, cases, part.number), runs_csv(own, failures))


def failed(part: ArrayPart, cases: Sequence[Case]) -> dict[str, str]:
    """Return a message for each run that failed in another part, by file."""
    folder, found = os.path.dirname(cases[0].file), {}
    for number in {*range(1, part.parts + 1)} - {part.number}:
        path = _path(part, cases, number)
        if os.path.exists(path):
            for name in failed_runs(path):
                found[os.path.join(folder, name)] = f"failed in part {number} of {part.parts}"
    return found


def elsewhere(cases: Sequence[Case], failures: Mapping[str, str]) -> list[str]:
    """Return the files of the runs that are neither finished nor failed."""

    def ended(case: Case) -> bool:
        return case.file in failures or status(case) is CaseStatus.FINISHED

    return [case.file for case in cases if not ended(case)]


def _path(part: ArrayPart, cases: Sequence[Case], number: int) -> str:
    return os.path.join(os.path.dirname(cases[0].file), part.file(number))
