"""Output files of commands: their names, the errors of the disk, the command that continues a
run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Container, Mapping

from ..exceptions import ConfigError, InputError
from ..plugins import is_plugin
from .program import DISK, Status, say


def free_name(command: str, out: str, given: bool, quiet: bool) -> str:
    """Return the name of the output file: one that exists is refused if it was `given` by a flag,
    else a number is added.

    If the command is `quiet`, which prints no summary with the name, a line states the number.
    """
    if not os.path.isfile(out):
        return out
    if given:
        raise ConfigError(
            f"--out {out} exists: choose another name, replace it with --force, or continue its "
            "run with "
            f"--resume {shlex.quote(out)}"
        )
    stem, suffix = os.path.splitext(out)
    stem, number = re.sub(r"-\d+$", "", stem), 2
    while os.path.isfile(f"{stem}-{number}{suffix}"):
        number += 1
    name = f"{stem}-{number}{suffix}"
    if quiet:
        say(command, f"{out} exists, the file is {name}")
    return name


def announce_code(command: str, path: str, names: Mapping[str, str]) -> None:
    """Print which code a run file names under keys, before that code is loaded: the file may
    come from somebody else.
    """
    code = [
        f"{name} ({key})"
        for key, name in names.items()
        if is_plugin(name) and (os.path.isfile(name.rpartition(":")[0]) or ".py:" not in name)
    ]
    if code:
        say(command, f"{path} names code that is run now: {', '.join(code)}")


def file_error(
    error: OSError, remedy: str = "", failures: Container[int | None] = DISK
) -> InputError:
    """Return an error of the output file, which all ranks raise, with its exit status; `remedy`
    holds for `failures`.
    """
    text = error.strerror or str(error)
    if error.errno in failures:
        return InputError(text + remedy, Status.FAILED)
    return InputError(text, Status.INPUT)


def resume_command(name: str, out: str, ranks: int) -> str:
    """Return the command that continues the run or the training in a file."""
    launcher = f"mpirun -n {ranks} " if ranks > 1 else ""
    return f"{launcher}python -m mpidec.{name} --resume {shlex.quote(out)}"
