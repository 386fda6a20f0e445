"""Launch checks: a launcher of another MPI library, uncaught exceptions, missing compiled
modules.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import time
import traceback
import warnings
from functools import cache
from types import TracebackType

from ...exceptions import Interrupted, RanksLost, from_another_rank
from .installed import remedy
from .job import LaunchedJob, job
from .mpi import MPI, available

_SIZES = {
    "PMI_SIZE": "MPICH's or Intel's mpiexec (PMI)",
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "MV2_COMM_WORLD_SIZE": "MVAPICH's mpirun",
    "PALS_SIZE": "PALS' mpiexec",
    "WORLD_SIZE": "torchrun",
    "SLURM_STEP_NUM_TASKS": "srun",
    "FLUX_JOB_SIZE": "flux run",
}

_VERSION = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""
# Seconds that a rank waits before it ends the job after an error.  Rank 0 does not wait, so that
# its report of an error of all ranks is the only one; a rank that has received the error from
# another one waits longest, since that one reports it.
_SHARED, _OTHERS = 0.5, 5.0
# Seconds in which a launcher reads what a rank has written.
_PASSED_ON = 0.2


def library() -> str:
    """Name and version of the MPI library that mpi4py loads, in one line; MPI is not initialized
    for it.
    """
    if "mpi4py.MPI" in sys.modules and available():
        found = MPI.Get_library_version()
    else:
        found = subprocess.run(
            [sys.executable, "-c", _VERSION], capture_output=True, text=True, check=False
        ).stdout
    return (found.splitlines() or ["no MPI library"])[0].strip("\0 ")


def one_on_each(nodes: int) -> str:
    """Return the command that starts a rank on each of so many nodes."""
    flag = "--map-by ppr:1:node" if "Open MPI" in library() else "-ppn 1"
    return f"mpirun -n {nodes} {flag}"


def check_launcher() -> None:
    """Raise if the launcher started several processes and each of them believes it is alone.

    This happens if `mpirun` does not belong to the MPI library that mpi4py loads, and under
    torchrun.  `MPIDEC_ALONE=1` skips the check, for a single process that is started within a job.

    Raises
    ------
    RuntimeError
        Naming the launcher, the library and the remedy.
    """
    alone = not available() or MPI.COMM_WORLD.size == 1  # also when others have died
    if not alone or os.environ.get("MPIDEC_ALONE") == "1":
        return
    pytorch = "LOCAL_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    for variable, launcher in _SIZES.items():
        count = os.environ.get(variable, "")
        if not count.isdigit() or int(count) < 2 or (launcher == "torchrun" and not pytorch):
            continue
        why, remedy = (
            f"mpi4py uses another MPI library ({library()})",
            "start the program with the mpirun of that library (in the environment's bin folder, next to "
            f"{sys.executable})",
        )
        if launcher == "torchrun":
            why, remedy = (
                "it does not start MPI",
                "make Network(process_group=torch.distributed.group.WORLD) after "
                "torch.distributed.init_process_group(), or leave both out and start the program "
                "with mpirun",
            )
        again = f"mpirun -n {count}"
        if launcher == "srun":
            plugin = "pmix" if "Open MPI" in library() else "pmi2"
            why = f"srun has given them no PMI, by which the ranks of {library()} find each other"
            remedy, again = "name it (srun --mpi=list shows all)", f"srun --mpi={plugin} -n {count}"
        raise RuntimeError(
            f"{launcher} started {count} processes ({variable}={count}), but each of them is "
            f"alone: {why}; {remedy}: {again} {_command()}, or set MPIDEC_ALONE=1 to run a single "
            "process"
        )


def _command() -> str:
    """Return the command line of this process, without the code of ``python -c``."""
    words = sys.orig_argv[1:]
    return shlex.join(
        ["python", *words[: words.index("-c") + 1], "..."] if "-c" in words else ["python", *words]
    )


def end_job(comm: LaunchedJob, status: int) -> None:
    """End all ranks of the job; what this one has written is passed on before, which a launcher
    that kills at once may lose.
    """
    time.sleep(_PASSED_ON)
    comm.Abort(status)


def _report(text: str) -> None:
    """Write to standard error, also where an outer hook, such as torch.distributed's, collects
    in memory what is written there.
    """
    stream = sys.stderr
    if stream is None or isinstance(stream, io.StringIO):
        stream = sys.__stderr__ or open(2, "w", closefd=False)
    stream.write(text)
    stream.flush()


def abort_when_uncaught() -> None:
    """Install an exception hook that aborts the job, with the traceback, when one rank has an
    uncaught exception.

    Otherwise the other ranks would wait forever for a rank that has ended.  `Network` calls this if
    there are several ranks.
    """
    if getattr(sys.excepthook, "mpidec", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        ranks = job()
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        # One traceback for an error of all ranks, or of another rank.
        if not issubclass(kind, KeyboardInterrupt):
            time.sleep(_OTHERS if from_another_rank(error) else _SHARED if ranks.rank > 0 else 0)
        lines = text.splitlines(keepends=True)
        try:
            _report("".join(f"[rank {ranks.rank}] {line}" for line in lines))
        finally:
            if issubclass(kind, RanksLost):  # without those that go on
                os._exit(1)
            end_job(ranks, 130 if issubclass(kind, KeyboardInterrupt) else 1)

    hook.mpidec = True  # type: ignore[attr-defined]
    sys.excepthook = hook


@cache  # once per process
def end_as_interrupted() -> None:
    """Let a program that an uncaught `Interrupted` ends have the exit status 130: Python gives it
    to `KeyboardInterrupt` itself, but not to classes derived from it.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if issubclass(kind, Interrupted):
            raise SystemExit(130)

    sys.excepthook = hook


@cache  # once per process
def warn_if_not_compiled(compiled: bool) -> None:
    """Warn, on rank 0 and once per process, if mixing is slow because the compiled modules are
    missing.
    """
    if not compiled and job().rank == 0:
        warnings.warn(
            "the compiled modules of mpidec are missing: the results are the same, but mixing is "
            "10 to 100 times slower; "
            f"{remedy()} (details: mpidec doctor)",
            RuntimeWarning,
            stacklevel=3,
        )
