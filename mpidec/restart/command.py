"""Command ``python -m mpidec.restart``."""

from __future__ import annotations

import argparse
import math
import os

from .._process import launched
from ..cli import Command, Flag, say
from ..exceptions import ConfigError
from .hosts import HostProbe, Launcher
from .jobs import job_of
from .supervisor import Supervisor

EPILOG = """\
examples:
  python -m mpidec.restart -- mpirun -n 16 python -m mpidec.run --out run.h5
  python -m mpidec.restart --times 20 -- mpirun -hosts a:8,b:8 -n 16 python -m mpidec.train --epochs 100
  python -m mpidec.restart -- srun --mpi=pmi2 python -m mpidec.sweep --vary solver.name=extra,dgd --seeds 8
  python -m mpidec.restart --file progress.txt -- mpirun -n 4 python own.py

The command is started, and started again when ranks or hosts have died, until its file says how it
has ended (of a sweep, table.csv; of reproduce, index.md), whatever the status of the launcher is:
mpirun may return 0 after a rank or a host is lost.  A run continues with --resume from its last
checkpoint, with the bits of an undisturbed one; a sweep and reproduce continue by themselves.
A command that got no further in two starts in a row, or whose program raised an exception before it
got further, is not started again; nor is one that ended with status 0 or 1 three times before it
wrote a file.

Hosts that do not answer are left out: those of -hosts, --host, a host file, or of the allocation of
Slurm or PBS.  Runs, sweeps and reproduce continue on fewer ranks, trainings on as many as before.
A job is ended and started again if a host has not answered twice, 30 s apart, while no file has
changed, or if ranks of this machine wait for one that has ended, before the job has written anything
or after its end.  With --silent so is any job whose files have not changed for so long: choose more
than the longest time between two records or checkpoints, and than the job takes to start.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 interrupt the job, to whose launcher each is passed on as SIGUSR1
(those of a program of your own as they are); it is not started again.  A second Ctrl-C ends it.

exit status: that of the run or the training; of a job that did not end, that of its launcher, or 1."""

FLAGS = [
    Flag("--times", metavar="N", type=int, default=5, help="restarts at most (default: 5)"),
    Flag(
        "--probe",
        metavar="CMD",
        default="",
        help="ends with status 0 if the host that stands in place of {}, or behind it, answers "
        "(default: ssh {} true, or scontrol show node {} in an allocation of Slurm)",
    ),
    Flag(
        "--silent",
        metavar="SECONDS",
        type=float,
        default=math.inf,
        help="end a job that has written nothing for so long (default: never)",
    ),
    Flag(
        "--file",
        metavar="FILE",
        help="of a program of your own: a text with two numbers, how far it is and its end, or a "
        "run file; the same command continues it",
    ),
    Flag("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the job"),
]


def prepare(args: argparse.Namespace, ranks: int) -> Supervisor:
    """Return the supervisor of the command, whose hosts have been asked whether they answer.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise ConfigError(
            "expected the command of a job after --, such as -- mpirun -n 4 mpidec run"
        )
    if args.times < 0:
        raise ConfigError(f"--times is {args.times}, expected at least 0")
    if not args.silent > 0:
        raise ConfigError(f"--silent is {args.silent:g}, expected a number of seconds > 0")
    if launched():
        raise ConfigError(
            "restart is a rank of a job and would end with it: put the launcher into its command, "
            "mpidec restart -- mpirun -n 4 mpidec run"
        )
    job, place = job_of(words, args.file)
    launcher = Launcher.of(words[:place], os.environ)
    probe = HostProbe(args.probe, [*launcher.slots], os.environ)
    if probe.unknown:
        say(
            "restart",
            f"{probe.command} does not reach {', '.join(probe.unknown)} although nothing has "
            "failed: they are used whether they answer or not (--probe CMD)",
        )
    return Supervisor(job, launcher, probe, args.times, args.silent)


RESTART = Command(
    name="restart",
    description="Start a job again when ranks or hosts have died, until its file says that it has "
    "ended.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    alone=Supervisor.run,
    needs_mpi=False,
)
main = RESTART.main
