"""How far a job is, and whether one that its time limit has stopped continues in another
allocation: ``python -m mpidec.restart.progress``.

For job scripts: with a file, print how far it is; with also how far it was when the allocation
began and the number of restarts that are left, print a line, and end with status 0 if the job is to
go on.
"""

from __future__ import annotations

import glob
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cli import Status, say
from ..exceptions import ConfigError
from ..record import read
from ..record.internals import open_checked

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def progress(path: str) -> tuple[float, float]:
    """Return how far a job is, and its end: steps of a run, epochs of a training, the two numbers
    in a text file, or what is in the files of a folder.

    The end of a run that stops at a limit is unknown: infinite.  A file that does not exist is at
    0, and so is an empty one, whose writer was killed.
    """
    if os.path.isdir(path):
        return sum(map(_size, files_of(path))), math.inf
    if not started(path):
        return 0.0, math.inf
    if not path.endswith(".h5"):
        text = Path(path).read_text(encoding="utf-8")
        try:
            done, end = map(float, text.split())
            if not math.isfinite(done) or math.isnan(end):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"{path}: expected two numbers, done and end, got {text!r}: write them into another "
                "file and rename it (os.replace), which a death does not interrupt"
            ) from None
        return done, end
    run = read(path)
    said = tomllib.loads(run.config)
    if "train" in said:
        epochs = run.metrics["epoch"]
        return float(epochs[-1]) if len(epochs) else 0.0, float(said["train"]["epochs"])
    given = said.get("run", {})
    fixed = "steps" in given and not {"stop_error", "stop"} & given.keys()
    return float(run.steps), float(given["steps"]) if fixed else math.inf


def started(path: str) -> bool:
    """Return whether something has been written into a file, or a file into a folder."""
    if os.path.isdir(path):
        return bool(files_of(path))
    return os.path.exists(path) and os.path.getsize(path) > 0


def files_of(folder: str) -> list[str]:
    """Return the files of a sweep, or of reproduce."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*.h5")))


def _size(path: str) -> float:
    """Return the step from which a run of a sweep resumes, and 1 for the file; of reproduce the
    number of cells.
    """
    try:
        with open_checked(path) as file:
            step = file["checkpoint"].attrs["step"] if "checkpoint" in file else 0
            return 1 + int(step) if "metrics" in file else len(file)
    except ValueError:  # damaged: the command tells of it
        return 0


def verdict(path: str, before: float, restarts: int, allowed: int) -> tuple[bool, str]:
    """Return whether the job goes on, and why.

    Parameters
    ----------
    path : str
    before : float
        How far it was when the allocation began.
    restarts : int
        How often it has gone on before, by which the pace of all allocations is known: one of
        them may be slow.
    allowed : int
        How often it may.
    """
    done, end = progress(path)
    gained, left = done - before, allowed - restarts
    at = f"{path} is at {done:g}" + (f" of {end:g}" if end < math.inf else "")
    if not os.path.exists(path):
        return False, f"there is no {path}: mend what is reported above, or allow more time"
    if gained <= 0:
        return False, (
            f"{at}, no more than when this allocation began: mend what is reported above, or allow "
            "more time"
        )
    if left <= 0:
        return False, f"{at}, and no restart is left: allow more RESTARTS"
    each = max(gained, done / (restarts + 1))
    if each * left < end - done < math.inf:
        return False, (
            f"{at}, {gained:g} more than when this allocation began: {left} more of {each:g} reach "
            f"{done + each * left:g}; allow more time, or more RESTARTS"
        )
    return True, f"{at}, {gained:g} more than when this allocation began"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the module with FILE or FILE BEFORE RESTARTS ALLOWED, and return the exit status."""
    path, *more = sys.argv[1:] if argv is None else argv
    try:
        if not more:
            print(progress(path)[0])
            return 0
        goes_on, why = verdict(path, float(more[0]), *map(int, more[1:]))
    except (OSError, ValueError) as error:
        say("restart", f"error: {error}")
        return Status.INPUT
    print(f"time limit: {why}; " + ("the job goes on" if goes_on else "the job ends"), flush=True)
    return 0 if goes_on else 1


if __name__ == "__main__":
    raise SystemExit(main())
