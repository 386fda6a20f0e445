"""The stack on a node: rows in memory that the ranks of a node share, each block of it owned by one rank.

A rank allocates blocks when it needs them, without a word to the others; a neighbour maps a block when it first reads from it.
Partition are anonymous memory (`memfd`) that the neighbours open through /proc: nothing is left behind by a killed job, and no
file system limits them.  A block is free again when no array refers to it any more.  Who reads what and when is settled by the
hand-shake in `_shared.c`.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

from .waiting import Patience

try:
    shared: Any = import_module("._shared", __package__)
except ImportError:                                 # no compiler where the package was installed
    shared = None

_ALL = 0xFFFFFFFFFFFFFFFF
_SPARE = 4                                          # free blocks that are kept
_probe = [np.empty(0)]
_UNUSED = sys.getrefcount(_probe[0])                # references to a block of a list that is in no array


class _Counts:
    """What was sent, where there is no compiled one."""

    def __init__(self) -> None:
        self.rounds = self.messages = self.bytes = 0


Counts: Any = _Counts if shared is None else shared.Counts


class Stack:
    """The memory that the ranks of a node share, seen from one of them.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    ranks_per_node : int, optional
        Pretend that a node has so many ranks.

    Attributes
    ----------
    near : array of int
        The ranks of `comm` on this node, this one included; only this one where memory cannot be shared.
    whole, useful : bool
        Whether all ranks are on one node; whether any two are.
    """

    def __init__(self, comm: MPI.Intracomm, ranks_per_node: int | None = None):
        node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
        if ranks_per_node:
            part = node.Split(node.rank // ranks_per_node, node.rank)
            node.Free()
            node = part
        self._files: list[int] = []
        self._memory: list[mmap.mmap] = []
        self.readings: list[Any] = []               # mixings that have begun and not ended
        places = self._meet(node, comm)
        self.near = np.array(node.allgather(comm.rank)) if places is not None else np.array([comm.rank])
        self.me = node.rank if places is not None else 0
        self.whole = bool(comm.allreduce(len(self.near) == comm.size, MPI.LAND))
        self.useful = bool(comm.allreduce(len(self.near) > 1, MPI.LOR))
        self._blocks: list[np.ndarray | None] = []
        self._sizes: list[int] = []                 # of the blocks, in bytes
        self._files_of: dict[int, int] = {}
        self._generation = 0
        if places is not None:
            spins = 2000 if node.size <= len(os.sched_getaffinity(0)) else 0
            self.node = shared.Node(*places, self.me, spins, np.ndarray, np.empty_like, self._rows_like, self._grow)
        node.Free()

    @property
    def shared(self) -> bool:
        """Whether there is another rank to share with."""
        return len(self.near) > 1

    def _meet(self, node: MPI.Comm, comm: MPI.Intracomm) -> tuple[np.ndarray, np.ndarray] | None:
        """Make this rank's header and map the others': their addresses and processes; None if that failed on any rank."""
        mine, works = -1, shared is not None and hasattr(os, "memfd_create")
        size = 64 * shared.SLOTS if works else 0
        heads, pids = np.zeros((2, node.size), np.int64)
        if works:
            mine = os.memfd_create("mpidec-header")
            os.ftruncate(mine, size)
            self._files.append(mine)
        places = node.allgather((os.getpid(), mine))
        if works:
            with contextlib.suppress(OSError):
                for rank, (pid, file) in enumerate(places):
                    self._memory.append(_open(pid, file, size))
                    heads[rank], pids[rank] = np.frombuffer(self._memory[rank], np.uint8).ctypes.data, pid
        return (heads, pids) if comm.allreduce(works and len(self._memory) == node.size, MPI.LAND) else None

    def rows(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialized array in a block of this rank; of ordinary memory where no block can be had."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        block = self._block(nbytes) if self.shared else None
        return np.empty(shape, dtype) if block is None else np.ndarray(shape, dtype, block)

    def _block(self, nbytes: int) -> np.ndarray | None:
        """A block that no array refers to."""
        for i, size in enumerate(self._sizes):
            if nbytes <= size <= 4 * nbytes + mmap.PAGESIZE and self._unused(i):
                return self._blocks[i]
        return self._allocate(nbytes)

    def _unused(self, place: int) -> bool:
        """Whether no array refers to a block any more."""
        return sys.getrefcount(self._blocks[place]) <= _UNUSED

    def _allocate(self, nbytes: int) -> np.ndarray | None:
        free = [i for i, size in enumerate(self._sizes) if size >= 0 and self._unused(i)]
        for i in free[:len(free) - _SPARE] if len(free) > _SPARE else []:
            self._release(i)
        place = next((i for i, size in enumerate(self._sizes) if size < 0), len(self._sizes))
        if place >= shared.BLOCKS:
            return None
        capacity = (nbytes // mmap.PAGESIZE + 1) * mmap.PAGESIZE
        file = -1
        try:
            file = os.memfd_create("mpidec-rows")
            os.ftruncate(file, capacity)
            memory = mmap.mmap(file, capacity)
        except OSError:                             # no descriptor, no memory, or a limit on the size of files
            if file >= 0:
                os.close(file)
            return None
        block = np.frombuffer(memory, np.uint8)
        self._generation += 1
        self.node.own(place, self._generation * shared.BLOCKS + place, file, block)
        self._files_of[place] = file
        if place == len(self._blocks):
            self._blocks.append(None)
            self._sizes.append(0)
        self._blocks[place], self._sizes[place] = block, capacity
        return block

    def _release(self, place: int) -> None:
        os.close(self._files_of.pop(place))
        self._blocks[place], self._sizes[place] = None, -1
        self.node.own(place, 0, 0, None)

    def _rows_like(self, X: np.ndarray) -> np.ndarray:
        return self.rows(X.shape, X.dtype)

    def _grow(self, nbytes: int) -> None:
        """Have a block to copy rows to."""
        patience = None
        while (answer := self.node.room(nbytes)) >= 0:
            late = int(self.near[answer & 0xFFFFFFFF])
            patience = patience or Patience(f"rank {late} to read earlier rows of this rank")
            patience.look()
        if answer == -2:
            return
        block = self._block(nbytes)
        if block is None:
            raise MemoryError(f"no shared memory for {nbytes} bytes of rows on rank {self.near[self.me]}: keep fewer results, "
                              "raise the limits (ulimit -n, ulimit -f), or set MPIDEC_TRANSPORT=neighbor")
        self.node.copy_to(block)

    def quarrel(self, rank: int, seq: int, mark: int, where: str, floats: bool) -> str:
        """What is to be said when this rank and another one mix different things."""
        mine, theirs = (self._slot(some, seq)[4] ^ np.uint64(mark & _ALL) for some in (self.me, rank))
        if theirs == shared.GAVE_UP:
            return (f"rank {self.near[rank]} gave up mixing {seq}, {where} on rank {self.near[self.me]}: what it was given was "
                    "wrong, or it is in another step")
        here, there = ("other rows, or another step or topology" if some >> np.uint64(40) else
                       f"rows of {some >> np.uint64(1)} " + (f"float{64 if some & np.uint64(1) else 32}" if floats else "bytes")
                       for some in (mine, theirs))
        return (f"rank {self.near[self.me]} and rank {self.near[rank]} mix different things in mixing {seq}: {here} in {where} on "
                f"rank {self.near[self.me]}, {there} on rank {self.near[rank]}; every rank must call the same operation with rows "
                "of one shape and dtype")

    def _slot(self, rank: int, seq: int) -> np.ndarray:
        return np.frombuffer(self._memory[rank], np.uint64).reshape(-1, 8)[seq % shared.SLOTS]

    def close(self) -> None:
        """Give the memory back, as far as no array refers to it; idempotent."""
        if self._blocks or self._files:
            self.node.forget()
        for place, block in enumerate(self._blocks):
            if block is not None:
                self._release(place)
        self._blocks.clear()
        self._sizes.clear()
        for file in self._files:
            os.close(file)
        self._files.clear()


def _open(pid: int, file: int, size: int = 0) -> mmap.mmap:
    """Map the file `file` of the process `pid`."""
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    try:
        return mmap.mmap(opened, size)
    finally:
        os.close(opened)
