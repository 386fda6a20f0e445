"""The processes that were started together, over MPI or over PyTorch's process groups, and how they
end.
"""

from __future__ import annotations

import os
import sys
from typing import Protocol

from .mpi import MPI, available


class LaunchedJob(Protocol):
    """The ranks of a job, as far as reports and ends of all ranks need them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def Abort(self, errorcode: int = 0) -> object:
        """End all ranks at once."""


class Launched:
    """The ranks that a launcher of PyTorch has started, or a process that is alone.

    Its launcher ends the others when one has ended with an error; without one they find its
    connections closed.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def Abort(self, errorcode: int = 0) -> None:
        """End this process at once."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(errorcode)


_LAUNCHED: list[Launched] = []


def launched_as(rank: int, size: int) -> None:
    """Make the ranks that PyTorch's launcher has started those of the job."""
    if not _LAUNCHED:
        _LAUNCHED.append(Launched(rank, size))


def job() -> LaunchedJob:
    """Return the processes that were started together: those of PyTorch's launcher where a network
    works over a process group, otherwise those of MPI, or this one alone where there is no MPI.
    """
    if _LAUNCHED:
        return _LAUNCHED[0]
    return MPI.COMM_WORLD if available() else Launched(0, 1)
