"""One program for all commands: parsing, agreement of the ranks, signals, warnings, errors and exit
status.

A command is declared in the ``command.py`` of its room; ``python -m mpidec.NAME`` and ``mpidec
NAME`` run it.
"""

from __future__ import annotations

import argparse
import enum
import errno
import itertools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from .._process import startup, tolerant
from .._style import STYLES
from .._version import __version__
from ..comm.runtime import (
    MPI,
    REFUSALS,
    abort_when_uncaught,
    cannot_survive,
    check_launcher,
    end_job,
    interrupt,
    interrupts,
    library,
    living,
    message,
    on_root,
    on_those_left,
)
from ..exceptions import ConfigError, InputError, RanksLost
from ..plugins import nearest
from .endings import CommandRanks, printed, show

T = TypeVar("T")
V = TypeVar("V")
# Flags that ask for a text, for which no rank needs MPI.
TEXTS = ("list", "version")
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
PYTHON = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
UNSHOWN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
OPEN_FILES = (errno.EMFILE, errno.ENFILE)
# Of the machine, not of the input.
DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    *OPEN_FILES,
)


class Status(enum.IntEnum):
    """Exit status of the commands."""

    OK = 0
    FAILED = 1
    INPUT = 2
    DIVERGED = 3
    MISSED = 4
    INTERRUPTED = 130

    @classmethod
    def of(cls, outcome: str) -> Status:
        """Return the exit status of a run or a training that ended with this outcome."""
        return cls.OK if outcome in ("completed", "stopped") else cls[outcome.upper()]


class Interrupts(enum.Enum):
    """How Ctrl-C ends a command."""

    AT_ONCE = enum.auto()  # and the job with it
    # At the next step, also of SIGTERM, SIGUSR1, SIGHUP: the file can be resumed.
    DEFERRED = enum.auto()
    # Likewise, and the command raises KeyboardInterrupt on every rank.
    TOGETHER = enum.auto()


class Flag:
    """A flag of a command, or an argument without a name, as
    `argparse.ArgumentParser.add_argument` takes it.
    """

    def __init__(self, *names: str, **options: Any):
        self.names, self.options = names, options


EXPERIMENT = Flag("experiment", nargs="?", metavar="EXPERIMENT.toml", help="experiment file")
STYLE = Flag(
    "--style",
    choices=list(STYLES),
    default="screen",
    help="screen (default), or paper: the width of a column or a page, serif letters, no title",
)


def file_flags(noun: str, file: str, limit: str, names: str) -> list[Flag]:
    """Return the flags of commands that write a run to one file: --resume, --force, --quiet and
    --list.

    Parameters
    ----------
    noun, file : str
        What is written, and a name of its file.
    limit : str
        What may be raised when it is continued.
    names : str
        What --list shows.
    """
    return [
        Flag(
            "--resume",
            metavar=file,
            help=f"continue the {noun} in this file; --{limit} may raise the number of {limit}",
        ),
        Flag("--force", action="store_true", help="replace the output file if it exists"),
        quiet("print warnings and errors only, no progress and no summary"),
        Flag("--list", action="store_true", help=f"list all {names}"),
    ]


def quiet(help: str) -> Flag:
    """Return the flag --quiet."""
    return Flag("--quiet", action="store_true", help=help)


class Parser(argparse.ArgumentParser):
    """Argument parser that raises an exception instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def known(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments; an unknown one is an error that suggests a flag."""
        args, extra = self.parse_known_args(list(argv))
        if extra:
            flag = extra[0].partition("=")[0]
            if not flag.startswith("-"):
                expected = " and ".join(
                    [*(str(one.metavar) for one in self._get_positional_actions()), "flags"]
                )
                raise ConfigError(f"unexpected argument {flag!r}: expected {expected}")
            options = [option for action in self._actions for option in action.option_strings]
            raise ConfigError(f"command line: unknown flag {flag!r}: {nearest(flag, options)}")
        return args


@dataclass(frozen=True)
class Command(Generic[T]):
    """Declaration of a command.

    Attributes
    ----------
    name : str
        ``python -m mpidec.NAME``.
    description, epilog : str
        Texts of its help.
    flags : list of Flag, or callable ()
        The arguments, or what returns them.
    prepare : callable (arguments, ranks)
        Returns what is to be done in a job of `ranks` ranks, or a text to print; called on rank 0.
        Its ValueError, TypeError, OSError, ... is an error in the input.
    execute : callable (prepared, comm)
        Does it on all ranks of `comm`, and returns the exit status.
    interrupts : Interrupts
    interrupted : str
        What is printed after Ctrl-C.
    needs_mpi : bool
        False: the command works although the launcher of MPI is defective; `prepare` is called on
        each rank.
    alone : callable (prepared)
        In place of `execute`: does it on rank 0, without MPI, and returns the exit status, by
        default 0; `prepare` is called on each rank.
    started_as : str
        How the user has started the command, for its usage.
    worded : callable (message)
        Returns an error or a warning of the package in the words of the command line.
    before_mpi : callable (arguments)
        Called on each rank before MPI starts.
    survives : callable (arguments)
        Whether the command goes on, where MPI can, when ranks die: `prepare` does it here, on the
        ranks that are left, and `execute` by itself.
    """

    name: str
    description: str
    epilog: str
    flags: Iterable[Flag] | Callable[[], Iterable[Flag]]
    prepare: Callable[[argparse.Namespace, int], T | str]
    execute: Callable[[T, MPI.Intracomm], int] | None = None
    alone: Callable[[T], int | None] | None = None
    interrupts: Interrupts = Interrupts.AT_ONCE
    interrupted: str = "interrupted"
    needs_mpi: bool = True
    started_as: str = ""
    worded: Callable[[str], str] = str
    before_mpi: Callable[[argparse.Namespace], None] = lambda args: None
    survives: Callable[[argparse.Namespace], bool] = lambda args: False

    def parse(self, argv: Sequence[str]) -> argparse.Namespace | str:
        """Return the arguments of the command line, or the help that it asks for."""
        module = f"python -m mpidec.{self.name}"
        parser = Parser(
            prog=self.started_as or module,
            description=self.description,
            epilog=self.epilog.replace(module, self.started_as or module),
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        flags = self.flags() if callable(self.flags) else self.flags
        for flag in [*flags, Flag("-h", "--help", action="store_true", help="print this help")]:
            parser.add_argument(*flag.names, **flag.options)
        if {"-h", "--help"} & {*itertools.takewhile(lambda word: word != "--", argv)}:
            return parser.format_help().rstrip()
        return parser.known(argv)

    def main(self, argv: Sequence[str] | None = None, comm: MPI.Intracomm | None = None) -> int:
        """Run the command line `argv` on all ranks of `comm`, and return the exit status.

        Without `comm`, these are the ranks of the job; MPI is used only after the arguments have
        been read, and by commands that need it.

        Raises
        ------
        Exception
            An error of the program; errors of its input are printed and returned as an exit status.
        """
        argv = sys.argv[1:] if argv is None else argv
        startup.loaded()
        job = CommandRanks(comm)
        try:
            asked = self._asked(argv, job)
            if isinstance(asked, str):
                return printed(asked, job=job)
            if self.alone is not None:
                return self._alone(asked, self.alone, job)
            self._refusing(self.before_mpi, asked)
            return self._interruptible(asked, job.start())
        except InputError as error:
            text = self.worded(" ".join(str(error).split()))
            return self._end(job, f"error: {text}", error.status)
        except RanksLost as error:
            say(self.name, f"error: {error}")
            return Status.FAILED
        except (OSError, ImportError) as error:
            if not _lacks_files(error):
                raise
            text = " ".join(str(error).split())
            say(self.name, f"error: {text}: raise the limit of open files (ulimit -n 1024)")
            if job.comm is not None and job.comm.size > 1:
                end_job(job.comm, Status.FAILED)
            return Status.FAILED
        except KeyboardInterrupt:
            if self.interrupts is Interrupts.TOGETHER:
                return self._end(job, self.interrupted, Status.INTERRUPTED)
            if job.comm is not None and job.comm.size > 1:
                job.comm.Abort(Status.INTERRUPTED)
            say(self.name, self.interrupted)
            return Status.INTERRUPTED

    def _interruptible(self, asked: argparse.Namespace, comm: MPI.Intracomm) -> int:
        """Run the command, and let signals interrupt it as `interrupts` says."""
        with ExitStack() as stack:
            if self.interrupts is not Interrupts.AT_ONCE:
                stack.enter_context(_signals_interrupt())
                if comm.size > 1:  # before the first step they cannot end together
                    stack.enter_context(interrupts())
            return self._run(asked, comm)

    def _asked(self, argv: Sequence[str], job: CommandRanks) -> argparse.Namespace | str:
        """Return the arguments, or the text that they ask for, on each rank."""
        args = self._refusing(self.parse, argv)
        if isinstance(args, str) or not any(vars(args).get(name) for name in TEXTS):
            return args
        text = self._refusing(self.prepare, args, 1) if job.rank == 0 else ""
        return text if isinstance(text, str) else args

    def _refusing(self, act: Callable[..., V], *args: object) -> V:
        try:
            return act(*args)
        except REFUSALS as error:
            raise InputError(message(error)) from error

    def _alone(
        self, args: argparse.Namespace, act: Callable[[T], int | None], job: CommandRanks
    ) -> int:
        prepared = self._refusing(self.prepare, args, 1)
        if isinstance(prepared, str):
            return printed(prepared, job=job)
        if job.rank:
            return Status.OK
        with warnings_from_rank_0(0, self.name, self.worded):
            return self._refusing(act, prepared) or Status.OK

    def _run(self, args: argparse.Namespace, comm: MPI.Intracomm) -> int:
        if self.execute is None:
            raise TypeError(f"the command {self.name} has neither execute nor alone")
        if self.needs_mpi:
            try:
                check_launcher()
            except RuntimeError as error:
                raise InputError(str(error)) from error
        if comm.size > 1:
            abort_when_uncaught()
        asked, comm = self._prepared(args, comm)
        if isinstance(asked, str):
            if comm.rank == 0:
                show(asked)
            return Status.OK
        with warnings_from_rank_0(comm.rank, self.name, self.worded):
            return self.execute(asked, comm)

    def _prepared(
        self, args: argparse.Namespace, comm: MPI.Intracomm
    ) -> tuple[T | str, MPI.Intracomm]:
        """Return on each rank what `prepare` returns for all ranks of `comm`, and those of them
        that are left.
        """
        size = comm.size
        if not self.needs_mpi:
            return self._refusing(self.prepare, args, size), comm
        survive = self.survives(args) and not cannot_survive()

        def prepared(left: MPI.Intracomm, lost: object) -> T | str:
            return on_root(left, self.prepare, args, size)

        return on_those_left(prepared, comm, survive)

    def _end(self, job: CommandRanks, text: str, status: int) -> int:
        """Print a text on rank 0, before any rank exits, and return the exit status."""
        if job.rank == 0:
            say(self.name, text)
        job.end()
        return status


def _lacks_files(error: OSError | ImportError) -> bool:
    """Return whether the process has no more open files: imports name the reason in their text."""
    known = isinstance(error, OSError) and error.errno in OPEN_FILES
    return known or os.strerror(errno.EMFILE) in " ".join(str(error).split())


def say(name: str, text: str) -> None:
    """Print a line of a command to stderr; other commands in it are written as the user has
    written this one.
    """
    if os.path.basename(sys.argv[0]) == "mpidec":
        text = text.replace("python -m mpidec.", "mpidec ")
    # the newline in the same write: mpirun merges stdout and stderr, which PYTHONUNBUFFERED divides
    # into writes
    print(f"mpidec.{name}: {text}\n", end="", file=sys.stderr, flush=True)


def version() -> str:
    """Return the versions of mpidec and of the MPI library."""
    return f"mpidec {__version__}, {library()}"


def let_warnings_pass() -> None:
    """Show all warnings except those for developers about calls between packages."""
    warnings.simplefilter("default")
    for category in (DeprecationWarning, PendingDeprecationWarning):
        warnings.simplefilter("ignore", category)


@contextmanager
def warnings_from_rank_0(
    rank: int, name: str, worded: Callable[[str], str] = str
) -> Iterator[None]:
    """Context in which each warning is printed once, on one line, by rank 0 only, as `worded`
    returns it; those of other packages as Python does.
    """
    shown, python = set(), warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, *place: Any, **more: Any
    ) -> None:
        if is_foreign(filename):
            if not issubclass(category, UNSHOWN):
                python(message, category, filename, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            say(name, f"warning: {worded(str(message))}")

    def show_as_first(message: Warning | str, *more: Any, **place: Any) -> None:
        if living().rank == 0:  # ranks before this one may have died
            show(message, *more, **place)

    with warnings.catch_warnings():
        if rank and not tolerant():
            warnings.simplefilter("ignore")
        elif rank or not sys.warnoptions:
            let_warnings_pass()
        warnings.showwarning = show_as_first if rank else show
        yield


def is_foreign(filename: str) -> bool:
    """Return whether a file is of Python or of an installed package, neither of mpidec nor of the
    user.

    Examples
    --------
    >>> [is_foreign(name) for name in (os.__file__, argparse.__file__, __file__, "mine.py")]
    [True, True, False, False]
    """
    path = os.path.abspath(filename)
    if path.startswith(PACKAGE):
        return False
    parts = path.split(os.sep)
    installed = "site-packages" in parts or "dist-packages" in parts
    return installed or filename.startswith("<frozen") or path.startswith(PYTHON)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Context that treats SIGTERM and SIGUSR1 (sent by batch systems), and SIGHUP (of a terminal
    that is closed, unless nohup ignores it), like Ctrl-C: the file is complete and can be resumed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
