"""``ibfrun start -np 4``: engines of ipyparallel, one a rank, for notebooks with BlueFog's
calls.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._version import __version__
from .._words import command_of_extras
from .launch import LaunchParser, add_ranks, find, in_front, mpi_flags, named_meaningless, reason

if TYPE_CHECKING:
    from ipyparallel import Cluster

# Seconds within which an engine that does not hang answers.
ANSWER = 1.0
# Seconds between two looks whether the engines still run.
POLL = 0.2


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line.

    Raises
    ------
    ValueError
        In one line, for wrong ones.
    """
    parser = LaunchParser(
        prog="ibfrun",
        description="Start or stop engines of ipyparallel, one a rank, with mpidec as BlueFog.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    parser.add_argument(
        "action",
        nargs="?",
        choices=["start", "stop"],
        help="start: until Ctrl-C, or `ibfrun stop`; stop: end those of this profile",
    )
    add_ranks(parser)
    parser.add_argument(
        "--ipython-profile",
        dest="profile",
        default="bluefog",
        metavar="NAME",
        help="profile of IPython, for ipyparallel.Client(profile=NAME); default: bluefog",
    )
    parser.add_argument(
        "--background", action="store_true", help="return once the engines are ready"
    )
    words = list(argv)
    args = parser.checked(words, ranks="start" in words)
    if args.action is None and not args.version:
        raise ValueError("expected start or stop: ibfrun start -np 4")
    return args


def cluster(args: argparse.Namespace) -> Cluster:
    """Return the cluster of a profile, not started; its `mpirun` is that of `bfrun`.

    Raises
    ------
    ValueError, OSError
        In one line, where ipyparallel, `mpirun` or the hosts are missing or wrong.
    """
    try:
        from ipyparallel import Cluster
        from traitlets.config import Config
    except ImportError:
        raise ValueError(f"ibfrun needs ipyparallel: {command_of_extras('notebook')}") from None

    in_front(os.environ)
    mpirun = find("mpirun", os.environ, ": pip install mpich")
    launcher = {"mpi_cmd": [mpirun], "mpi_args": mpi_flags(args, mpirun, os.environ)}
    log = logging.DEBUG if args.verbose else logging.ERROR
    return Cluster(
        config=Config({"MPIEngineSetLauncher": launcher}),
        profile=args.profile,
        cluster_id="",  # so that Client(profile=...) finds it
        engines="mpi",
        n=args.np,
        shutdown_atexit=False,
        log_level=log,
        **({"controller_ip": "*"} if args.hosts or args.hostfile else {}),
    )


def start(args: argparse.Namespace) -> int:
    """Start engines, wait until they are ready, and stay until they are stopped.

    Raises
    ------
    ValueError, OSError, TimeoutError
        In one line, if they cannot be started, or already run.
    """
    engines = cluster(args)
    if os.path.exists(engines.cluster_file):
        raise ValueError(
            f"engines of the profile {args.profile!r} already run: ibfrun stop "
            f"--ipython-profile {args.profile}"
        )
    try:
        engines.start_cluster_sync()
        client = engines.connect_client_sync()
        client.wait_for_engines(args.np, interactive=False, timeout=60)
        client.close()
        print(
            f"ibfrun: {args.np} engines are ready: ipyparallel.Client(profile={args.profile!r})",
            flush=True,
        )
        if args.background:
            return 0
        while os.path.exists(engines.cluster_file):  # `ibfrun stop` removes it
            if not engines.engines:
                raise ValueError("the engines have ended")
            time.sleep(POLL)
        return 0
    except BaseException:
        engines.stop_cluster_sync()
        raise


def stop(args: argparse.Namespace) -> int:
    """End the engines of a profile.

    Raises
    ------
    ValueError
        If there are none.
    """
    path = cluster(args).cluster_file
    if not os.path.exists(path):
        raise ValueError(f"no engines of the profile {args.profile!r} run")
    from ipyparallel import Cluster

    running = Cluster.from_file(path, log_level=logging.CRITICAL)
    running.stop_cluster_sync()
    running.remove_cluster_file()
    return 0


def interrupt_hanged_processes(profile: str = "bluefog") -> None:
    """Interrupt the engines of a profile that do not answer within `ANSWER` seconds, as after
    Ctrl-C; for notebooks.
    """
    from ipyparallel import Client

    with Client(profile=profile) as client:
        calls = {engine: client[engine].apply_async(os.getpid) for engine in client.ids}
        client.wait(list(calls.values()), timeout=ANSWER)
        hanging = [engine for engine, call in calls.items() if not call.ready()]
        if hanging:
            client.send_signal(signal.SIGINT, targets=hanging, block=True)
            print(f"interrupted the engines {', '.join(map(str, hanging))}")


def main(argv: Sequence[str] | None = None) -> int:
    """Start or stop; return the exit status: 2 after a line about what was wrong, 130 after
    Ctrl-C.
    """
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.default_int_handler)
    try:
        args = arguments(sys.argv[1:] if argv is None else argv)
        if args.version:
            print(f"mpidec {__version__}")
            return 0
        if line := named_meaningless(args):
            print(f"ibfrun: {line}", file=sys.stderr)
        return start(args) if args.action == "start" else stop(args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"ibfrun: error: {reason(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
