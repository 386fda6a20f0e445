"""What messages need: datatypes for rows, and memory that has been used before."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from typing import Any

import numpy as np
from mpi4py import MPI

_HUGE = 1 << 22                                     # bytes from which on huge pages are asked for
_AGE = 32                                           # arrays handed out since, after which free memory is given back
_SMALL = 1 << 14                                    # bytes up to which fresh memory costs nothing


class RowTypes:
    """MPI datatypes 'one row of so many bytes': counts are then counts of rows, and stay below 2**31."""

    def __init__(self) -> None:
        self._types: dict[int, MPI.Datatype] = {}

    def __call__(self, nbytes: int) -> MPI.Datatype:
        if nbytes not in self._types:
            self._types[nbytes] = MPI.BYTE.Create_contiguous(nbytes).Commit()
        return self._types[nbytes]

    def free(self) -> None:
        while self._types:
            self._types.popitem()[1].Free()


class Buffers:
    """Arrays in memory that is used again when no array refers to it any more: fresh memory costs a page fault per page.

    As much is kept as was in use at a time lately.

    Examples
    --------
    >>> buffers = Buffers()
    >>> X = buffers.empty((2, 50_000), np.dtype(float))
    >>> place = X.ctypes.data
    >>> del X
    >>> buffers.empty((2, 50_000), np.dtype(float)).ctypes.data == place
    True
    """

    def __init__(self) -> None:
        self._blocks: list[list[Any]] = []          # [memory, the array handed out (weakly), when, bytes]
        self._time = 0

    @staticmethod
    def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialized array that begins where a page begins: to copy between places a few bytes apart in their pages takes
        the processor several times as long."""
        nbytes = math.prod(shape) * dtype.itemsize
        raw = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
        start = -raw.ctypes.data % mmap.PAGESIZE
        return np.ndarray(shape, dtype, raw[start:start + nbytes].data)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialized array that begins where a page begins; an ordinary one if it is small."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes <= _SMALL:
            return np.empty(shape, dtype)
        self._time += 1
        for block in self._blocks:
            if block[1]() is None and nbytes <= block[3] <= nbytes + nbytes // 4:
                break
        else:
            block = self._fresh(nbytes)
        array = np.ndarray(shape, dtype, block[0])  # views of it refer to it: the array itself ends with its last view
        block[1], block[2] = weakref.ref(array), self._time
        if self._time % _AGE == 0:
            self._blocks = [some for some in self._blocks if self._time - some[2] < _AGE or some[1]() is not None]
        return array

    def _fresh(self, nbytes: int) -> list[Any]:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._blocks.append([memory, None, 0, nbytes])
        return self._blocks[-1]

    def clear(self) -> None:
        """Give back what no array refers to."""
        self._blocks = [block for block in self._blocks if block[1]() is not None]


POOL = Buffers()                                    # of messages that belong to no topology
