"""MPI datatypes for rows."""

from __future__ import annotations

from typing import Any

from .communicator import Communicator
from .group import GroupComm
from .mpi import MPI


class RowTypes:
    """MPI datatypes of one row of so many bytes each: counts are counts of rows, and stay below
    2**31.
    """

    def __init__(self, comm: Communicator) -> None:
        self._of_bytes = isinstance(comm, GroupComm)
        self._types: dict[int, MPI.Datatype] = {}

    def __call__(self, nbytes: int) -> Any:
        """The datatype of a row of `nbytes` bytes; their number over a process group."""
        if self._of_bytes:
            return nbytes
        if nbytes not in self._types:
            self._types[nbytes] = MPI.BYTE.Create_contiguous(nbytes).Commit()
        return self._types[nbytes]

    def free(self) -> None:
        """Free all datatypes."""
        while self._types:
            self._types.popitem()[1].Free()
