"""What a command writes, how that says that it has ended, and how the command goes on."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..cli import Status, failed_runs, free_name, part_of, plural
from ..exceptions import ConfigError
from ..plugins import nearest
from ..record import read
from ..record.internals import checkpoint_step, is_written, stamp
from .progress import files_of, progress, started

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Ranks meet when MPI starts and when it ends: before a job has written anything, and after its end,
# none of them ends long before the others.
PATIENCE = 30.0
# Those that are left by --survive may have to load data again before they write.
SURVIVAL = 120.0
# MPICH's mpirun ends at SIGHUP, and Open MPI's ends ranks 1 s after SIGTERM, SIGHUP or SIGINT.
INTERRUPT = signal.SIGUSR1
# How the file of a run ends if it need not go on; "running" and "failed" are no end.
ENDS = ("completed", "stopped", "missed", "diverged", "interrupted")


class Ending(NamedTuple):
    """How a job has ended according to its files: the exit status, and a text."""

    status: int
    text: str


class Restartable(Protocol):
    """A command and its files.

    Attributes
    ----------
    path : str
        What messages name.
    any_ranks : bool
        Whether it may go on on another number of ranks.
    patience : float
        Seconds for which others may wait for a rank of this machine that has ended, before the job
        has written anything, and after its end.
    interrupt : Signals or None
        Signal at which its ranks store a checkpoint and end, and which launchers pass on to them
        without ending them or themselves; None if that is unknown.
    """

    path: str
    any_ranks: bool
    patience: float
    interrupt: signal.Signals | None

    def begin(self, ranks: int | None, fewer: bool) -> list[str]:
        """Return the words after the launcher that start the job, or continue it; `ranks` are those
        of the first start, and `fewer` whether there are fewer now.
        """

    def reached(self) -> float | None:
        """Return from where it would go on; None if it would begin anew."""

    def shown(self, reached: float) -> str:
        """Return a text that says how far it is, such as "is at step 400"."""

    def ending(self, status: int) -> Ending | None:
        """Return how it has ended since `begin`; None if it has to go on.  `status` is that of the
        launcher.
        """

    def why(self) -> str:
        """Return why it has not ended, as far as the files say; "" if they do not."""

    def touched(self) -> object:
        """Return what differs when something has been written."""

    def busy(self) -> bool:
        """Return whether a process is writing its file."""


def outcome(path: str, mark: object) -> Ending | None:
    """Return how the run in a file has ended, if the file has another stamp than `mark`; None if it
    has to go on.
    """
    if stamp(path) in (None, mark):
        return None
    run = read(path)
    if run.outcome not in ENDS:
        return None
    return Ending(Status.of(run.outcome), f"{run.outcome} after {run.steps} steps")


def parsed(arguments: Sequence[str], *flags: tuple[str, ...]) -> argparse.Namespace:
    """Return some flags of a command, and `names`: its other words that are no flags."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("-o", "--out")
    parser.add_argument("--set", action="append", default=[])
    for names in flags:
        parser.add_argument(*names, action="store_true" if names[0] in SWITCHES else "store")
    args, others = parser.parse_known_args(list(arguments))
    args.names = [word for word in others if not word.startswith("-")]
    return args


SWITCHES = ("--force", "--quiet", "--quick", "--all", "--survive")
RESUMED = ("run", "train", "sweep", "reproduce")  # commands that continue what was interrupted
TEXTS = ("-h", "--help", "--list", "--version")  # flags of commands that print a text and end


class OneFile:
    """A file that a job writes."""

    path: str
    interrupt: signal.Signals | None = INTERRUPT

    def touched(self) -> object:
        """Return the state of the file."""
        return stamp(self.path)

    def busy(self) -> bool:
        """Return whether a process of this machine is writing the file."""
        return bool(is_written(self.path))


class RunJob(OneFile):
    """`mpidec run` or `mpidec train`: one file, which says how the run has ended."""

    def __init__(self, name: str, program: Sequence[str], arguments: Sequence[str]):
        flags = ("--resume", "--force", "--quiet", "--trace", "--agents", "--survive", "--evict")
        args = parsed(arguments, *((flag,) for flag in flags))
        self._program, self._arguments = [*program], [*arguments]
        self.any_ranks = name == "run"
        self.patience = SURVIVAL if args.survive else PATIENCE
        given = _settings(name, args)
        self._sized = args.agents is not None or "agents" in given
        self._continues = args.resume is not None
        path = args.resume or given.get("out") or f"{name}.h5"
        if args.out is None and not (self._continues or args.force or "out" in _set(name, args)):
            path = free_name("restart", path, given=False, quiet=True)
            self._arguments += ["--out", path]
        self.path = path
        kept = ["--quiet"] * args.quiet + ["--survive"] * args.survive
        for flag, value in (("--trace", args.trace), ("--evict", args.evict)):
            kept += [flag, value] if value else []
        self._again = self._arguments if self._continues else ["--resume", self.path, *kept]
        self._first = self._mark = stamp(self.path)

    def begin(self, ranks: int | None, fewer: bool) -> list[str]:
        """Return the words that start or continue the run; without a file, of as many agents as at
        first.
        """
        self._mark = stamp(self.path)
        if self.reached() is not None:
            return [*self._program, *self._again]
        words = [*self._program, *self._arguments]
        words += ["--force"] if self._begun(self._mark) and "--force" not in words else []
        return [*words, "--agents", str(ranks)] if fewer and not self._sized else words

    def reached(self) -> int | None:
        """Return the step of the last checkpoint; None without one."""
        return (
            checkpoint_step(self.path) if self._continues or self._begun(stamp(self.path)) else None
        )

    def shown(self, reached: float) -> str:
        """Return the step of the last checkpoint as a text."""
        return f"is at step {reached:g}"

    def ending(self, status: int) -> Ending | None:
        """Return the outcome in the file, if it was written since `begin`, and not by another job
        because of which the first start was refused.
        """
        if status == Status.INPUT and not self._begun(self._mark):
            self._first = self._mark = stamp(self.path)
        return outcome(self.path, self._mark)

    def why(self) -> str:
        """Return the reason of a run that an exception has ended."""
        return read(self.path).reason if stamp(self.path) != self._mark else ""

    def _begun(self, mark: object) -> bool:
        """Return whether there was a file of this job when the file had this stamp."""
        return mark not in (None, self._first)


def _set(name: str, args: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the table `name` that --set gives."""
    pairs = (text.partition("=") for text in args.set)
    prefix = f"{name}."
    return {
        key.strip().removeprefix(prefix): value.strip()
        for key, _, value in pairs
        if key.strip().startswith(prefix)
    }


def _settings(name: str, args: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the table `name`: of an experiment file, of --out and of --set."""
    file = next((word for word in args.names if word.endswith(".toml")), None)
    found: dict[str, str] = {}
    if file is not None and os.path.exists(file):
        try:
            with open(file, "rb") as opened:
                found = tomllib.load(opened).get(name, {})
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return {**found, **({"out": args.out} if args.out else {}), **_set(name, args)}


class FolderJob:
    """`mpidec sweep` or `mpidec reproduce`: a folder in which the same command goes on.

    Parameters
    ----------
    words : sequence of str
        The program and its arguments.
    folder : str
    last : str
        File that the command writes when it has ended.
    failed : callable (status)
        Whether a command that has ended has failed, from the status of its launcher.
    """

    any_ranks, patience = True, PATIENCE
    interrupt: signal.Signals | None = INTERRUPT

    def __init__(
        self,
        words: Sequence[str],
        folder: str,
        last: str,
        failed: Callable[[int], bool],
    ):
        self._words, self.path = [*words], folder
        self._last, self._failed = os.path.join(folder, last), failed
        self._mark = stamp(self._last)

    def begin(self, ranks: int | None, fewer: bool) -> list[str]:
        """Return the words of the command."""
        self._mark = stamp(self._last)
        return self._words

    def reached(self) -> float | None:
        """Return how far all files of the folder are; None without one."""
        return progress(self.path)[0] if started(self.path) else None

    def shown(self, reached: float) -> str:
        """Return the number of files, which do not say how many there will be."""
        return f"has {plural(len(self._files()), 'file')}"

    def ending(self, status: int) -> Ending | None:
        """Return whether the last file was written since `begin`."""
        if stamp(self._last) in (None, self._mark):
            return None
        failed = self._failed(status)
        return Ending(Status.FAILED if failed else Status.OK, f"{self._last} is written")

    def why(self) -> str:
        """Return nothing: the command has reported what failed."""
        return ""

    def touched(self) -> object:
        """Return the state of all files."""
        return [stamp(path) for path in self._files()]

    def busy(self) -> bool:
        """Return whether a process of this machine is writing a file of the folder."""
        return any(map(is_written, self._files()))

    def _files(self) -> list[str]:
        return files_of(self.path)


def sweep_job(program: Sequence[str], arguments: Sequence[str]) -> FolderJob:
    """Return the job of `mpidec sweep`, or of a part of it: a file with a line for each run says
    which have failed.
    """
    args = parsed(arguments, ("--part",))
    folder, part = args.out or "sweep", part_of(args.part)
    whole = part.parts == 1
    runs = "runs.csv" if whole else part.file(part.number)

    def failed(status: int) -> bool:
        return bool(failed_runs(os.path.join(folder, runs)))

    words = [*program, *arguments]
    return FolderJob(words, folder, "table.csv" if whole else runs, failed)


def reproduce_job(program: Sequence[str], arguments: Sequence[str]) -> FolderJob:
    """Return the job of `mpidec reproduce`."""
    args = parsed(arguments, ("--force",), ("--quick",))
    folder = args.out or ("reproduced-quick" if args.quick else "reproduced")
    if args.force:
        raise ConfigError(
            f"--force replaces the results in {folder} at each start: remove them, or choose "
            "another --out"
        )
    words = [*program, *arguments]
    return FolderJob(words, folder, "index.md", lambda status: status == Status.FAILED)


class OwnJob(OneFile):
    """A program of the user's, which the same command continues; its file says how far it is: two
    numbers, done and end, or a run file.
    """

    any_ranks, patience = False, math.inf
    interrupt: signal.Signals | None = None

    def __init__(self, words: Sequence[str], path: str):
        self._words, self.path = [*words], path
        self._mark = stamp(path)

    def begin(self, ranks: int | None, fewer: bool) -> list[str]:
        """Return the words of the program."""
        self._mark = stamp(self.path)
        return self._words

    def reached(self) -> float | None:
        """Return the first number in the file, or the step of its last checkpoint."""
        if not started(self.path):
            return None
        if self.path.endswith(".h5"):
            return checkpoint_step(self.path) or 0
        return progress(self.path)[0]

    def shown(self, reached: float) -> str:
        """Return the first number in the file as a text."""
        return f"is at {reached:g}"

    def ending(self, status: int) -> Ending | None:
        """Return how the program has ended: as the run file says; or done, and as the launcher
        says, unless it failed without a word in its file.
        """
        if status == Status.INTERRUPTED:
            return Ending(status, "interrupted")
        if self.path.endswith(".h5"):
            return outcome(self.path, self._mark)
        if status != Status.OK and stamp(self.path) == self._mark:
            return None
        done, end = progress(self.path)
        unknown = end == math.inf and started(self.path) and status == Status.OK
        return Ending(status, f"is at {done:g} of {end:g}") if done >= end or unknown else None

    def why(self) -> str:
        """Return nothing: the program has reported what failed."""
        return ""


def job_of(words: Sequence[str], file: str | None) -> tuple[Restartable, int]:
    """Return the job of a command line, and the number of its words that belong to the launcher.

    Parameters
    ----------
    words : sequence of str
        ``mpirun -n 4 mpidec run ...``.
    file : str, optional
        That of a program of the user's.

    Raises
    ------
    ConfigError
        If no file says how far the command is.

    Examples
    --------
    >>> job, launcher = job_of("mpirun -n 4 python -m mpidec.run --out new.h5".split(), None)
    >>> job.path, job.begin(4, fewer=False)
    ('new.h5', ['python', '-m', 'mpidec.run', '--out', 'new.h5'])
    """
    name, begin, rest = _command(words)
    if name not in RESUMED:
        if file is None:
            raise ConfigError(_refusal(name))
        begin = next((place for place, word in enumerate(words) if _is_python(word)), len(words))
        return OwnJob(words[begin:], file), begin
    if file is not None:
        raise ConfigError(
            f"--file is for programs of your own, mpidec {name} says itself how far it is: omit it"
        )
    program, arguments = words[begin:rest], words[rest:]
    if texts := [word for word in arguments if word in TEXTS]:
        raise ConfigError(f"mpidec {name} {texts[0]} prints a text and ends: omit mpidec restart")
    if name in ("run", "train"):
        return RunJob(name, program, arguments), begin
    return (sweep_job if name == "sweep" else reproduce_job)(program, arguments), begin


def _command(words: Sequence[str]) -> tuple[str, int, int]:
    """Return the command of mpidec in a command line, preferably one that resumes, and where its
    program and its arguments begin; "" without one.
    """
    found = []
    for place, word in enumerate(words):
        module = word.startswith("mpidec.") and words[place - 1] == "-m"
        if not module and os.path.basename(word) != "mpidec":
            continue
        rest = place + 1 if module else place + 2
        begin = place
        while begin and (words[begin - 1] == "-m" or _is_python(words[begin - 1])):
            begin -= 1
        name = word.partition(".")[2] if module else "".join(words[place + 1 : rest])
        found.append((name, begin, rest))
    resumed = (each for each in found if each[0] in RESUMED)
    return next(resumed, found[0] if found else ("", 0, 0))


def _refusal(name: str) -> str:
    if name and not name.startswith("-"):
        return f"mpidec {name} does not resume: {nearest(name, RESUMED)}"
    return (
        "expected a command of mpidec that resumes (run, train, sweep, reproduce), as in "
        "mpirun -n 4 mpidec run; or with --file a program of your own that says in a file how "
        "far it is"
    )


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")
