"""Memory of ranks that others read and write by MPI's one-sided calls, in one passive epoch, and
the end of it.
"""

from __future__ import annotations

import atexit
import os
import re
import weakref

import numpy as np

from ...runtime import MPI, Collectives, Communicator, GroupComm, abandon
from ..records import native

WORD = 8  # bytes of a word
_LINE = 64  # bytes of a cache line, to which blocks are aligned
_REFUSED = (
    (
        r"Open MPI v4\.",
        "Open MPI 4 crashes in MPI_Compare_and_swap: install a later version, or leave out "
        "transport='rma'",
    ),
)


class MPIMemory:
    """A block of each rank, which all ranks reach by MPI's one-sided calls until it is freed.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    together : Collectives
    size : int
        Bytes of this rank's block, a multiple of 64.

    Attributes
    ----------
    block : array of uint8
    group : mpi4py.MPI.Group
        Of the ranks.

    Notes
    -----
    Collective.  Offsets are in bytes.  Requests of `get`, `swap` and `add` are complete when this
    has been done; that of `put` when its row may be changed, and the row is there after `flush`.
    """

    def __init__(self, comm: MPI.Intracomm, together: Collectives, size: int):
        self._win, self.group = MPI.Win.Allocate(size + _LINE, 1, comm=comm), comm.group
        whole = np.asarray(self._win.tomemory())
        start = -whole.ctypes.data % _LINE
        block = _seen(whole[start : start + size])
        block[:] = 0
        self.unified = self._win.model == MPI.WIN_UNIFIED
        self.block = block
        self._seen = weakref.ref(block)
        starts = together.gather_all(np.array([start]), "the memory of a window")
        self._starts: list[int] = starts.ravel().tolist()  # of the blocks within what MPI has made
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self.sync = self._win.Sync
        self.flush, self.flush_all = self._win.Flush, self._win.Flush_all
        self._word = MPI.INT64_T
        self._none, self._scratch = np.zeros(1, np.int64), np.zeros(1, np.int64)

    def get(self, into: np.ndarray, rank: int, at: int) -> MPI.Request:
        """Read words of a rank."""
        words = into.size * into.itemsize // WORD
        place = [self._starts[rank] + at, words, self._word]
        return self._win.Rget([into, words, self._word], rank, place)

    def put(self, row: np.ndarray, rank: int, at: int) -> MPI.Request:
        """Write words of a rank."""
        words = row.size * row.itemsize // WORD
        place = [self._starts[rank] + at, words, self._word]
        return self._win.Rput([row, words, self._word], rank, place)

    def swap(self, new: np.ndarray, old: np.ndarray, rank: int, at: int) -> MPI.Request:
        """Replace a word, and read what it was."""
        return self._fetch(new, old, rank, at, MPI.REPLACE)

    def add(self, new: np.ndarray, old: np.ndarray, rank: int, at: int) -> MPI.Request:
        """Add to a word, and read what it was."""
        return self._fetch(new, old, rank, at, MPI.SUM)

    def _fetch(
        self, new: np.ndarray, old: np.ndarray, rank: int, at: int, op: MPI.Op
    ) -> MPI.Request:
        word, place = self._word, [self._starts[rank] + at, 1, self._word]
        return self._win.Rget_accumulate([new, 1, word], [old, 1, word], rank, place, op)

    def fetch(self, rank: int, at: int) -> int:
        """Return a word of a rank; waits for it."""
        old = np.empty(1, np.int64)
        self._fetch(self._none, old, rank, at, MPI.NO_OP).Wait()
        return int(old[0])

    def exchange(self, rank: int, at: int, new: int) -> int:
        """Replace a word of a rank; what it was."""
        old = np.empty(1, np.int64)
        self.swap(np.array([new], np.int64), old, rank, at).Wait()
        return int(old[0])

    def compare(self, rank: int, at: int, before: int, after: int) -> int:
        """Set a word of a rank to `after` if it is `before`; what it was."""
        old, word = np.empty(1, np.int64), self._word
        self._win.Compare_and_swap(
            [np.array([after], np.int64), word],
            [np.array([before], np.int64), word],
            [old, word],
            rank,
            self._starts[rank] + at,
        )
        self._win.Flush(rank)
        return int(old[0])

    def end(self) -> None:
        """End the calls of this rank; its block stays, as long as `unused` is false."""
        self._win.Unlock_all()
        del self.block, self.sync, self.flush, self.flush_all

    @property
    def unused(self) -> bool:
        """Whether no array of this rank lies in the block any more."""
        return self._seen() is None

    def free(self) -> None:
        """Give the block back; collective."""
        self._win.Free()


_KEPT: list[MPIMemory] = []  # of closed networks, in the same order on all ranks
os.register_at_fork(after_in_child=_KEPT.clear)


class Ended:
    """Blocks whose windows are closed: freed when no rank has an array in them, which users may
    keep.
    """

    def __init__(self) -> None:
        self._blocks: list[MPIMemory] = []

    def add(self, block: MPIMemory) -> None:
        """Free it some time."""
        self._blocks.append(block)

    def free(self, together: Collectives) -> None:
        """Free those that no rank uses; collective."""
        if self._blocks:
            mine = np.array([block.unused for block in self._blocks], np.int8)
            left = []
            for block, unused in zip(self._blocks, together.minimum(mine, "the end of windows")):
                block.free() if unused else left.append(block)
            self._blocks = left

    def free_kept(self, comm: Communicator, together: Collectives) -> None:
        """Free those of closed networks over the same processes that no rank uses any more;
        collective.
        """
        if not _KEPT or isinstance(comm, GroupComm):
            return
        same = (MPI.IDENT, MPI.SIMILAR)
        self._blocks = [
            block for block in _KEPT if MPI.Group.Compare(block.group, comm.group) in same
        ]
        _KEPT[:] = [block for block in _KEPT if block not in self._blocks]
        self.free(together)
        self.keep()

    def keep(self) -> None:
        """Free the rest with the next network, or when the process ends, as all ranks do."""
        _KEPT.extend(self._blocks)
        self._blocks = []

    def abandon(self) -> None:
        """Never free the rest: other ranks may be gone."""
        abandon(self._blocks)
        self._blocks = []


@atexit.register
def _free_kept() -> None:
    while _KEPT and not MPI.Is_finalized():
        _KEPT.pop(0).free()


def refusal() -> str:
    """Return why this MPI library is not used for one-sided calls; empty if it is."""
    library = MPI.Get_library_version()
    return next((why for pattern, why in _REFUSED if re.search(pattern, library)), "")


def _seen(memory: np.ndarray) -> np.ndarray:
    """Return the same memory, of which a forked child gets a private copy."""
    if not hasattr(native, "Block"):
        return memory
    return np.frombuffer(
        memoryview(native.Block(-1, memory.nbytes, True, memory.ctypes.data)), np.uint8
    )
