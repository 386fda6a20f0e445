"""MPI datatypes for rows."""

from __future__ import annotations

from .mpi import MPI


class RowTypes:
    """MPI datatypes of one row of so many bytes each: counts are counts of rows, and stay below
    2**31.
    """

    def __init__(self) -> None:
        self._types: dict[int, MPI.Datatype] = {}

    def __call__(self, nbytes: int) -> MPI.Datatype:
        """The datatype of a row of `nbytes` bytes."""
        if nbytes not in self._types:
            self._types[nbytes] = MPI.BYTE.Create_contiguous(nbytes).Commit()
        return self._types[nbytes]

    def free(self) -> None:
        """Free all datatypes."""
        while self._types:
            self._types.popitem()[1].Free()
