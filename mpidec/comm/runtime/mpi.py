"""MPI on first use: ``import mpidec`` alone neither loads nor initializes it.

Child processes of multiprocessing (workers of a DataLoader, pools) import the program, and with it
mpidec.  A child of a rank is no rank: if it initialized MPI, the library would end the whole job.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

RANKS = (
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
)
"""Variables by which a launcher of MPI tells a process its rank."""

_PROCESS = os.getpid()


class _Deferred(ModuleType):
    """The module mpi4py.MPI, imported when a name of it is needed; from then on a plain module
    with the same names.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what inspection of modules looks for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if "mpi4py.MPI" not in sys.modules:
            _refuse_children()
        with warnings.catch_warnings():  # check_launcher says it, with the remedy
            warnings.filterwarnings(
                "ignore", "suspicious MPI execution environment", RuntimeWarning
            )
            from mpi4py import MPI as loaded
        vars(self).update(vars(loaded))
        self.__class__ = ModuleType  # type: ignore[assignment]  # look-ups are as fast as in any module
        return getattr(loaded, name)


def _refuse_children() -> None:
    """Raise in a child process of a rank."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    child = os.getpid() != _PROCESS or (
        multiprocessing is not None and multiprocessing.parent_process() is not None
    )
    variable = next((name for name in RANKS if name in os.environ), None)
    if child and variable:
        raise RuntimeError(
            f"process {os.getpid()} is a child of rank {os.environ[variable]} and cannot use MPI: "
            "communicate in "
            "the rank itself, and give its child processes only work without communication"
        )


if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:
    MPI = _Deferred("mpi4py.MPI")
