"""Which rank of a job this process is, from its launcher's environment variables, without MPI.

A process that has the launcher's variables need not be a rank: programs that a rank starts inherit
them, and so does the shell of a job step.  If such a process initialized MPI, it would hang, or the
library would end the whole job.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import sys

RANKS = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "MPIDEC_HIDDEN_RANK",
)
"""Variables by which a launcher of MPI, or `hide`, tells a process its rank."""

LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables by which a launcher of MPI tells a rank how many there are on its machine."""

_OF_LAUNCHERS = (
    "PMI_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "MV2_COMM_WORLD_",
    "PALS_",
    "FLUX_TASK_",
    "MPIDEC_HIDDEN_RANK",
)
# From which trainers conclude that there is, or will be, a process group of torch.distributed.
_OF_TRAINERS = {
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    "JSM_NAMESPACE_LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
}
_LAUNCHERS = re.compile(
    r"mpirun|mpiexec|hydra|orte|prte|prun|srun|slurmstepd|flux|pals|aprun|jsrun|bfrun"
)
_SERVER = re.compile(r"tcp[46]?://\[?([^\];]+?)\]?:(\d+)")
_PROCESS = os.getpid()


def rank() -> int:
    """Return the rank of this process; 0 if it is no rank of a job."""
    variable = _variable()
    value = os.environ[variable] if variable and not outside() else "0"
    return int(value) if value.isdigit() else 0


def launched() -> bool:
    """Return whether this process is a rank of a job."""
    return _variable() is not None and not outside()


def outside() -> str | None:
    """Return why this process is no rank, although it has the variables of a launcher; None if it
    may be one, or has none.
    """
    variable = _variable()
    if variable is None or os.environ.get("MPIDEC_ALONE") == "1":
        return None
    if not _unanswered():
        return child()
    return (
        f"{variable}={os.environ[variable]} says that this process is a rank of a job, but the "
        f"launcher does not answer: start the program with mpirun, or without the variable (env -u "
        f"{variable}), or set MPIDEC_ALONE=1 to run a single process"
    )


def detach() -> None:
    """Let MPI, if it is not in use, start for this process alone: without its launcher, which may
    not answer, or whose other ranks do not start MPI.
    """
    if "mpi4py.MPI" not in sys.modules:
        for name in [name for name in os.environ if name.startswith(_OF_LAUNCHERS)]:
            del os.environ[name]
        os.environ["MPIDEC_ALONE"] = "1"


def hide() -> None:
    """Remove the variables of launchers from the environment, once MPI has started: programs
    that look for torch.distributed there find a single process.  What the package itself
    asks, such as whether a process is a child of a rank, has the same answers as before.
    """
    variable = _variable()
    kept = None if variable is None else os.environ[variable]
    for name in list(os.environ):
        if name in _OF_TRAINERS or name.startswith(_OF_LAUNCHERS):
            del os.environ[name]
    if kept is not None:
        os.environ["MPIDEC_HIDDEN_RANK"] = kept


def child() -> str | None:
    """Return why this process cannot use MPI, if it is a child of a rank: of multiprocessing,
    forked, or started as a program of its own.
    """
    variable = _variable()
    multiprocessing = sys.modules.get("multiprocessing.process")
    below = os.getpid() != _PROCESS or (
        multiprocessing is not None and multiprocessing.parent_process() is not None
    )
    if variable is None or not (below or _started_by_rank()):
        return None
    return (
        f"process {os.getpid()} is a child of rank {os.environ[variable]} and cannot use MPI: "
        "communicate in the rank itself, and give its child processes only work without "
        "communication"
    )


def _variable() -> str | None:
    return next((name for name in RANKS if name in os.environ), None)


def _started_by_rank() -> bool:
    """Return whether a process between the launcher and this one has loaded MPI; False on a system
    that does not tell.
    """
    if os.environ.get("MPIDEC_ALONE") == "1":
        return False
    try:
        above = os.getppid()
        while above > 1:
            with open(f"/proc/{above}/comm", encoding="utf-8", errors="replace") as file:
                if _LAUNCHERS.search(file.read()):
                    return False
            with open(f"/proc/{above}/maps", encoding="utf-8", errors="replace") as file:
                if "/libmpi" in file.read():
                    return True
            with open(f"/proc/{above}/stat", encoding="utf-8", errors="replace") as file:
                above = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):  # no /proc, or a process of another user
        pass
    return False


def _unanswered() -> bool:
    """Return whether the launcher has left a connection that is closed."""
    given = os.environ.get("PMI_FD", "")
    if given.isdigit():
        try:
            return not stat.S_ISSOCK(os.fstat(int(given)).st_mode)
        except OSError:
            # A rank's subprocess does not inherit it.
            return not _started_by_rank()
    servers = [value for name, value in os.environ.items() if name.startswith("PMIX_SERVER_URI")]
    found = next(filter(None, map(_SERVER.search, servers)), None)
    if found is None:
        return False
    try:
        socket.create_connection((found[1], int(found[2])), timeout=2).close()
    except OSError:
        return True
    return False
