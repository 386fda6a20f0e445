"""MPI on first use: ``import mpidec`` alone neither loads nor initializes it, and networks over
process groups of PyTorch never do.

Child processes of multiprocessing (workers of a DataLoader, pools) import the program, and with it
mpidec; a child of a rank is refused MPI (`_process`).
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..._process import child


class _Deferred(ModuleType):
    """The module mpi4py.MPI, imported when a name of it is needed; from then on a plain module
    with the same names.
    """

    def __getattr__(self, name: str) -> Any:
        # What inspection of modules looks for.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if "mpi4py.MPI" not in sys.modules:
            _refuse_children()
        # check_launcher says it, with the remedy.
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "suspicious MPI execution environment", RuntimeWarning
            )
            from mpi4py import MPI as loaded
        vars(self).update(vars(loaded))
        self.__class__ = ModuleType  # type: ignore[assignment]  # look-ups are as fast as in any module
        return getattr(loaded, name)


def _refuse_children() -> None:
    """Raise in a child process of a rank."""
    if (why := child()) is not None:
        raise RuntimeError(why)


if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:
    MPI = _Deferred("mpi4py.MPI")


@cache
def available() -> bool:
    """Return whether mpi4py is installed, and finds an MPI library; loads them."""
    try:
        return MPI.COMM_WORLD.size > 0
    except ImportError:
        return False
    except RuntimeError as error:
        # mpi4py raises it where there is no library.
        if "cannot load MPI library" in str(error):
            return False
        raise


def finalized() -> bool:
    """Return whether MPI has been in use and is no more."""
    return "mpi4py.MPI" in sys.modules and MPI.Is_finalized()
