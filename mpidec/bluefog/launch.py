"""``bfrun -np 4 python program.py``: `mpirun`, in whose processes ``import bluefog`` finds
`mpidec.bluefog`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

from .._version import __version__
from ..plugins import did_you_mean
from .variables import make_importable

# As BlueFog starts its ranks: more of them than cores, bound to none, also by root.  Each is read
# by one version of one library.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# BlueFog's flags that mean nothing here, and whether they take a value.
MEANINGLESS = {
    "-p": True,
    "--ssh-port": True,
    "--network-interface": True,
    "--use-infiniband": False,
    "--enable-heartbeat": False,
}
HOST = re.compile(r"[\w.-]+(:0*[1-9][0-9]*)?", re.ASCII)
# Variables that `mpirun` of Open MPI sets or passes on by itself, and those of the shell.
OF_THE_HOST = re.compile(r"(OMPI|PMIX|PRTE)_.*|OLDPWD|PWD|SHLVL|_|HOSTNAME", re.ASCII)
REMEDY = "--extra-mpi-flags passes settings of ssh and of networks to mpirun"


class LaunchParser(argparse.ArgumentParser):
    """Parser whose errors are one line, and raise ValueError."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def checked(self, argv: Sequence[str], ranks: bool = True) -> argparse.Namespace:
        """Return the arguments; an unknown flag, or no number of ranks, is an error.

        Raises
        ------
        ValueError
        """
        words = list(argv)
        if "--extra-mpi-flags" in words[:-1]:  # whose value begins with a dash
            at = words.index("--extra-mpi-flags")
            words[at : at + 2] = ["=".join(words[at : at + 2])]
        args, unknown = self.parse_known_args(words)
        known = [name for action in self._actions for name in action.option_strings]
        command: list[str] = getattr(args, "command", [])
        if command[:1] == ["--"]:
            command.pop(0)
        wrong = [*unknown, *(word for word in command[:1] if word.startswith("-"))]
        if wrong:
            guess = did_you_mean(wrong[0], known, 0.6) or "see --help"
            raise ValueError(
                f"unknown flag {wrong[0]!r}: {guess}; flags of mpirun go to --extra-mpi-flags"
            )
        if ranks and not args.version:
            if args.np is None:
                raise ValueError("the number of ranks is missing: -np 4")
            if args.np < 1:
                raise ValueError(f"-np is {args.np}, expected a positive integer")
        return args


class Meaningless(argparse.Action):
    """Collects the names of flags, and drops their values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), option_string])


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where ranks are started."""
    parser.add_argument(
        "-np", "--num-proc", dest="np", type=int, metavar="N", help="number of ranks"
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOSTS", help="host1:2,host2:4 (ranks on each)")
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="file with lines 'host slots=4'"
    )
    parser.add_argument("--extra-mpi-flags", metavar="FLAGS", help="further flags of mpirun")
    parser.add_argument(
        "--verbose", action="store_true", help="print the command, and messages for debugging"
    )
    for flag, takes_value in MEANINGLESS.items():
        parser.add_argument(
            flag,
            nargs=1 if takes_value else 0,
            action=Meaningless,
            dest="meaningless",
            default=[],
            help=argparse.SUPPRESS,
        )


def named_meaningless(args: argparse.Namespace) -> str:
    """One line with the given flags that mean nothing here; empty if there are none."""
    given = ", ".join(args.meaningless)
    return f"no effect: {given} ({REMEDY})" if given else ""


def in_front(environment: MutableMapping[str, str]) -> None:
    """Let `python`, `pytest` and `mpirun` be those beside this Python, and `bluefog` be
    importable.
    """
    own = str(Path(sys.executable).parent)
    paths = environment.get("PATH", os.defpath).split(os.pathsep)
    environment["PATH"] = os.pathsep.join([own, *(path for path in paths if path != own)])
    make_importable(environment)
    for name, value in SETTINGS.items():
        environment.setdefault(name, value)


def find(name: str, environment: MutableMapping[str, str], remedy: str) -> str:
    """Return the path of a program on PATH.

    Raises
    ------
    ValueError
        With the remedy, if it is not there.
    """
    path = shutil.which(name, path=environment["PATH"])
    if path is None:
        raise ValueError(f"{name!r} was not found, or is not executable{remedy}")
    return path


def host_list(args: argparse.Namespace) -> list[str]:
    """Return the hosts as ``name`` or ``name:slots``, from -H or a file with lines ``name
    slots=4``.

    Raises
    ------
    ValueError, OSError
        For a host, or a line, that is neither; for a file that cannot be read, or names none.
    """
    if args.hosts is not None:
        hosts = [host.strip() for host in args.hosts.split(",")]
        for host in hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"-H {args.hosts}: {host!r}, expected 'host' or 'host:N'")
        return hosts
    hosts = []
    lines = Path(args.hostfile).read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            key, _, slots = words[1].partition("=") if words[1:] else ("slots", "", "1")
            host = f"{words[0]}:{slots}"
            if len(words) > 2 or key != "slots" or not HOST.fullmatch(host):
                raise ValueError(
                    f"{args.hostfile}, line {number}: {line.strip()!r}, expected 'host slots=N'"
                )
            hosts.append(host)
    if not hosts:
        raise ValueError(f"{args.hostfile} names no host, expected lines 'host slots=N'")
    return hosts


def mpi_flags(
    args: argparse.Namespace, mpirun: str, environment: MutableMapping[str, str]
) -> list[str]:
    """Return the flags of `mpirun` for the given hosts, and further ones.

    Raises
    ------
    ValueError, OSError
        For hosts, a file of them, or flags that cannot be read.
    """
    flags: list[str] = []
    if (args.hosts, args.hostfile) != (None, None):
        hosts = ",".join(host_list(args))
        about = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, env={**environment}
        )
        # Passes no variables on by itself.
        if "Open MPI" in about.stdout or "PRRTE" in about.stdout:
            flags += ["--host", hosts]
            for name in environment:
                if name.isidentifier() and not OF_THE_HOST.fullmatch(name):
                    flags += ["-x", name]
        else:
            flags += ["-hosts", hosts]
    try:
        return [*flags, *shlex.split(args.extra_mpi_flags or "")]
    except ValueError as error:
        raise ValueError(f"--extra-mpi-flags {args.extra_mpi_flags}: {error}") from None


def found_before(command: Sequence[str]) -> str:
    """One line where Python would find another `bluefog` than this: beside the program, or here
    with ``-m``; or nothing.
    """
    words = command[1:]
    if "-m" in words:
        folder = os.curdir if "mpidec.bluefog" not in words else ""
    else:
        folder = next((os.path.dirname(w) or os.curdir for w in words if w.endswith(".py")), "")
    for path in (
        os.path.join(folder, "bluefog", "__init__.py"),
        os.path.join(folder, "bluefog.py"),
    ):
        if folder and os.path.exists(path):
            return (
                f"import bluefog finds {path}, not mpidec: move it away, or put `python -m "
                "mpidec.bluefog` "
                "in place of `python`"
            )
    return ""


def reason(error: Exception) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def command_line(argv: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Return the `mpirun` that a command line of `bfrun` asks for; the environment is that of its
    processes, in place.

    Raises
    ------
    ValueError, OSError
        In one line, for wrong arguments.
    """
    parser = LaunchParser(
        prog="bfrun",
        description="Run a BlueFog program on several ranks, with mpidec.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    add_ranks(parser)
    parser.add_argument("--timeline-filename", metavar="FILE", help="prefix of the timeline")
    parser.add_argument("--prefix", default="", metavar="PATH", help="folder of mpirun")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    args = parser.checked(argv)
    if args.version:
        print(f"mpidec {__version__}")
        return []
    if not args.command:
        raise ValueError("the command is missing: bfrun -np 4 python program.py")
    in_front(environment)
    if args.timeline_filename:
        folder = os.path.dirname(args.timeline_filename) or os.curdir
        if not (args.hosts or args.hostfile or os.path.isdir(folder)):
            raise ValueError(
                f"--timeline-filename {args.timeline_filename}: expected a prefix in a folder that "
                "exists"
            )
        environment["BLUEFOG_TIMELINE"] = args.timeline_filename
    if args.verbose:
        environment["BLUEFOG_LOG_LEVEL"] = "debug"
    remedy = ", in the folder that --prefix names" if args.prefix else ": pip install mpich"
    mpirun = find(os.path.join(args.prefix, "mpirun"), environment, remedy)
    program = args.command[0]
    if (args.hosts, args.hostfile) == (None, None):
        find(
            program, environment, f": bfrun ... python {program}" if program.endswith(".py") else ""
        )
    command = [mpirun, "-n", str(args.np), *mpi_flags(args, mpirun, environment), *args.command]
    told = named_meaningless(args), found_before(args.command), args.verbose and shlex.join(command)
    for line in filter(None, told):
        print(f"bfrun: {line}", file=sys.stderr, flush=True)
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Become `mpirun`, whose exit status is that of the program; or return 2 after a line about
    wrong arguments.
    """
    environment = dict(os.environ)
    try:
        command = command_line(sys.argv[1:] if argv is None else argv, environment)
    except (ValueError, OSError) as error:
        print(f"bfrun: error: {reason(error)}", file=sys.stderr)
        return 2
    if command:
        os.execve(command[0], command, environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
