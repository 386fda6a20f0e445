"""What can go wrong around an MPI program: a launcher of another library, and an exception that one rank alone sees."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from functools import cache
from types import TracebackType

from mpi4py import MPI

_SIZES = {"PMI_SIZE": "MPICH's or Intel's mpiexec (PMI)", "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
          "MV2_COMM_WORLD_SIZE": "MVAPICH's mpirun", "SLURM_STEP_NUM_TASKS": "srun", "PALS_SIZE": "PALS' mpiexec"}


def library() -> str:
    """The MPI library that mpi4py has loaded, in a line."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


def check_launcher(comm: MPI.Intracomm) -> None:
    """Refuse to run when the launcher started several processes and each of them believes to be alone.

    That happens when `mpirun` belongs to another MPI library than the one mpi4py loads.  A process that is meant to be
    alone (started from within an MPI job, say) says so with `MPIDEC_ALONE=1`.

    Raises
    ------
    RuntimeError
        Naming the launcher, the library and the remedy.
    """
    if MPI.COMM_WORLD.size > 1 or os.environ.get("MPIDEC_ALONE") == "1":
        return
    for variable, launcher in _SIZES.items():
        count = os.environ.get(variable, "")
        if count.isdigit() and int(count) > 1:
            raise RuntimeError(
                f"{launcher} started {count} processes ({variable}={count}), but each of them is alone: mpi4py uses another MPI "
                f"library ({library()}); start the program with the mpirun of that library (in the environment's bin folder, "
                f"beside {sys.executable}), or set MPIDEC_ALONE=1 if one process is meant")


def abort_when_uncaught() -> None:
    """From now on an uncaught exception on one rank ends the whole job with that rank's traceback.

    Without this the other ranks would wait for ever for a rank that is gone.  Called by `Network` under several ranks;
    an exception that is caught is nobody's business.
    """
    if getattr(sys.excepthook, "mpidec", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        world = MPI.COMM_WORLD
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        sys.stderr.write("".join(f"[rank {world.rank}] {line}" for line in text.splitlines(keepends=True)))
        sys.stderr.flush()
        world.Abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    hook.mpidec = True  # type: ignore[attr-defined]
    sys.excepthook = hook


@cache                                              # once per process
def warn_if_not_compiled(compiled: bool) -> None:
    """Warn, on rank 0 and once per process, that mixing is slow without the compiled modules."""
    if not compiled and MPI.COMM_WORLD.rank == 0:
        warnings.warn("the compiled modules of mpidec are missing: the results are the same, but mixing is 10 to 100 times slower; "
                      "install a C compiler and the headers of Python, then mpidec again (python -m mpidec.doctor has the details)",
                      RuntimeWarning, stacklevel=3)
