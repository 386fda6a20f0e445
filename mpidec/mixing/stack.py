"""The stack on a node: rows in memory that the ranks of a node share, each block of it owned by one rank.

A rank allocates blocks when it needs them, without a word to the others; a neighbour maps a block when it first reads from it.
Blocks are anonymous memory (`memfd`) that the neighbours open through /proc: nothing is left behind by a killed job, and no
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

from .blocks import Blocks
from .plan import Plan
from .waiting import expire, timeout

try:
    _shared: Any = import_module("._shared", __package__)
except ImportError:                                 # no compiler where the package was installed
    _shared = None

_NOBODY = np.empty(0, np.int64)
_SMALL = 1 << 17                                    # bytes up to which a copy costs less than waiting for its readers
_SPARE = 16                                         # free blocks that are kept
_UNUSED = 2                                         # references to the bytes of a block that is in no array
_READY, _LATE_POST, _LATE_DONE, _OTHER_TAG, _UNMAPPED = range(5)
IN_FLIGHT = 60                                      # mixings under way at a time, less than the slots of a header


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
    whole : bool
        Whether all ranks are on one node.
    """

    def __init__(self, comm: MPI.Intracomm, ranks_per_node: int | None = None):
        node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
        if ranks_per_node:
            part = node.Split(node.rank // ranks_per_node, node.rank)
            node.Free()
            node = part
        self._files: list[int] = []
        self._memory: list[mmap.mmap] = []
        self._heads = np.zeros(node.size, np.int64)
        self._pids = np.zeros(node.size, np.int64)
        self._tables: list[np.ndarray] = []
        works = self._meet(node)
        self.near = np.array(node.allgather(comm.rank)) if works else np.array([comm.rank])
        self.me = node.rank if works else 0
        self.whole = bool(comm.allreduce(len(self.near) == comm.size, MPI.LAND))
        self._spins = 2000 if node.size <= len(os.sched_getaffinity(0)) else 0
        self._maps = np.zeros((len(self.near), _shared.BLOCKS if works else 0, 2), np.int64)
        self._mapped: dict[tuple[int, int], mmap.mmap] = {}
        self._own = np.zeros((_shared.BLOCKS if works else 0, 3), np.int64)
        self._blocks: list[np.ndarray | None] = []
        self._copies: list[list[Any]] = []
        self._timeout = timeout()
        self._head = int(self._heads[self.me])
        self._generation = 1
        self._seq = 0
        self.flying = 0
        node.Free()

    @property
    def shared(self) -> bool:
        """Whether there is another rank to share with."""
        return len(self.near) > 1

    def _meet(self, node: MPI.Comm) -> bool:
        """Make this rank's header and map the others'; whether that worked on all ranks of the node."""
        mine, works = -1, _shared is not None and node.size > 1 and hasattr(os, "memfd_create")
        size = 64 * _shared.SLOTS + 8 * _shared.BLOCKS if works else 0
        if works:
            mine = os.memfd_create("mpidec-header")
            os.ftruncate(mine, size)
            self._files.append(mine)
        places = node.allgather((os.getpid(), mine))
        if works:
            with contextlib.suppress(OSError):
                for rank, (pid, file) in enumerate(places):
                    memory = _open(pid, file, size)
                    self._memory.append(memory)
                    self._heads[rank], self._pids[rank] = np.frombuffer(memory, np.uint8).ctypes.data, pid
                    self._tables.append(np.frombuffer(memory, np.int64, offset=64 * _shared.SLOTS))
        return bool(node.allreduce(works and len(self._tables) == node.size, MPI.LAND))

    def links(self, topology: Any, blocks: Blocks, rank: int) -> Links:
        """What this rank reads on the node, and what it is sent from elsewhere, in one phase."""
        return Links(self, Plan(topology, blocks, rank, self.near[self.near != rank]), self.near, self.whole)

    def rows(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialized array in a block of this rank; of ordinary memory where no block can be had."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        for block in self._blocks:
            if block is not None and nbytes <= len(block) <= 4 * nbytes + mmap.PAGESIZE and sys.getrefcount(block) == _UNUSED + 1:
                return np.ndarray(shape, dtype, block)
        if not self.shared or (block := self._allocate(nbytes)) is None:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, block)

    def _allocate(self, nbytes: int) -> np.ndarray | None:
        free = [i for i, block in enumerate(self._blocks) if block is not None and sys.getrefcount(block) == _UNUSED + 1]
        for i in free[:len(free) - _SPARE] if len(free) > _SPARE else []:
            self._release(i)
        place = next((i for i, block in enumerate(self._blocks) if block is None), len(self._blocks))
        if place >= len(self._own):
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
        word = self._generation * _shared.BLOCKS + place
        self._own[place] = block.ctypes.data, block.ctypes.data + capacity, word
        self._tables[self.me][place] = file
        if place == len(self._blocks):
            self._blocks.append(block)
        else:
            self._blocks[place] = block
        return block

    def _release(self, place: int) -> None:
        os.close(int(self._tables[self.me][place]))
        self._blocks[place] = None
        self._own[place] = 0

    def post(self, X: np.ndarray, tag: int, links: Links) -> tuple[int, np.ndarray]:
        """Publish the rows `X`, or a copy of them; the number of the mixing, and the ranks that must have read `X` itself
        before it may change."""
        self._seq = seq = self._seq + 1
        self.flying += 1
        if X.nbytes > _SMALL and _shared.post(self._head, self._own, len(self._blocks), seq, tag, X, None):
            return seq, links.outs
        copy = self._copy(X.nbytes)
        copy[1:] = seq, links.outs
        _shared.post(self._head, self._own, len(self._blocks), seq, tag, X, copy[0])
        return seq, _NOBODY

    def _copy(self, nbytes: int) -> list[Any]:
        """A block to copy rows to, which nobody reads any more: `[block, mixing, ranks that read it]`."""
        for copy in self._copies:
            if nbytes <= len(copy[0]) and _shared.drained(self._heads, copy[2], copy[1], 0.0) < 0:
                return copy
        if len(self._copies) > self.flying + 3:
            oldest = min(self._copies, key=lambda copy: copy[1])
            late = _shared.drained(self._heads, oldest[2], oldest[1], timeout())
            if late >= 0:
                expire(f"rank {self.near[late]} to read the rows of this rank in mixing {oldest[1]}")
            self._copies = [copy for copy in self._copies if copy is not oldest]
        block = self._allocate(nbytes)
        if block is None:
            raise MemoryError(f"no shared memory for {nbytes} bytes of rows on rank {self.near[self.me]}: keep fewer results, "
                              "raise the limits (ulimit -n, ulimit -f), or set MPIDEC_TRANSPORT=neighbor")
        self._copies.insert(0, [block, 0, _NOBODY])
        return self._copies[0]

    def finish(self, seq: int, tag: int, links: Links, outs: np.ndarray, X: np.ndarray, halo: np.ndarray, out: np.ndarray,
               where: str) -> None:
        """Sum up the rows of mixing `seq`, and wait until the ranks `outs` have read this rank's."""
        self.flying -= 1
        w = links.weights if out.dtype == np.float64 else links.weights.astype(out.dtype)
        limit = self._timeout
        while True:
            answer = _shared.finish(self._heads, self._maps, self.me, links.ins, outs, seq, tag, self._spins, limit, w.indptr,
                                    links.source, links.row, w.w, w.v, X, halo, out)
            if answer == _READY:
                return
            what, rank = answer >> 32, answer & 0xFFFFFFFF
            if what == _UNMAPPED:
                self._map(rank, seq)
            elif what == _OTHER_TAG:
                raise ValueError(f"rank {self.near[self.me]} and rank {self.near[rank]} mix different things in mixing {seq} "
                                 f"({where} here): every rank must call the same operation with rows of one shape and dtype")
            else:
                doing = "to begin" if what == _LATE_POST else "to read the rows of this rank in"
                expire(f"rank {self.near[rank]} {doing} mixing {seq} ({where})")

    def _map(self, rank: int, seq: int) -> None:
        slots = np.frombuffer(self._memory[rank], np.uint64, 8 * _shared.SLOTS).reshape(-1, 8)
        word = int(slots[seq % _shared.SLOTS, 2])
        place = word % _shared.BLOCKS
        memory = _open(int(self._pids[rank]), int(self._tables[rank][place]))
        self._mapped[rank, place] = memory
        self._maps[rank, place] = word, np.frombuffer(memory, np.uint8).ctypes.data

    def close(self) -> None:
        """Give the memory back, as far as no array refers to it; idempotent."""
        for place, block in enumerate(self._blocks):
            if block is not None:
                self._release(place)
        self._blocks.clear()
        self._copies.clear()
        self._mapped.clear()
        for file in self._files:
            os.close(file)
        self._files.clear()


class Links:
    """What one rank reads on its node in one phase: the terms of its sums, by the rank that holds the row.

    `complete` says that there is nothing else to read, on any rank.
    """

    def __init__(self, stack: Stack, plan: Plan, near: np.ndarray, complete: bool):
        source, row = plan.sources()
        self.stack, self.plan, self.weights, self.complete = stack, plan, plan.terms, complete
        self.source, self.row = source.astype(np.int32), row.astype(np.int32)
        self.ins, self.outs = np.searchsorted(near, plan.ins), np.searchsorted(near, plan.outs)


def _open(pid: int, file: int, size: int = 0) -> mmap.mmap:
    """Map the file `file` of the process `pid`."""
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    try:
        return mmap.mmap(opened, size)
    finally:
        os.close(opened)
