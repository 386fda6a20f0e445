"""Memory of a window: one block on each rank, which the other ranks of its node map and write
to.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable

import numpy as np

from ...runtime import Collectives, Context
from ..records import COMPILED, native

# Memory that no other process maps: a forked child gets a copy.
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class SharedMemory:
    """Zeroed memory of this rank, and of the ranks of its node.

    Parameters
    ----------
    context : Context
    together : Collectives
    size : int
        Bytes of this rank's block.
    prepare : callable (block) -> None
        Writes to the block what others may read there from the first moment.
    what : str
        The call, for messages.
    alone : bool
        Whether no other rank maps this one's block.
    allocate : callable (size) -> array of uint8, optional
        Makes the block, together with the other ranks; with `alone`.

    Attributes
    ----------
    block : array of uint8
        Of this rank.
    blocks : dict of int to array of uint8
        Of each rank whose memory this one can write to, itself included.  The others are reached by
        messages.
    complete : bool
        Whether every rank can write to the memory of every other one.

    Raises
    ------
    MemoryError
        On every rank, if one of them gets no memory.

    Notes
    -----
    Collective: a gathering of four numbers and two reductions of one.  A block is an unnamed file
    (memfd) that exists while a process maps it: nothing is left behind by a job that is killed.  A
    forked child gets a private copy of this rank's block, and zeros for those of other ranks.
    """

    def __init__(
        self,
        context: Context,
        together: Collectives,
        size: int,
        prepare: Callable[[np.ndarray], None],
        what: str,
        alone: bool = False,
        allocate: Callable[[int], np.ndarray] | None = None,
    ):
        near = (
            []
            if alone or context.memory is None or not COMPILED
            else [int(rank) for rank in context.memory.near]
        )
        file, error = -1, None
        try:
            if len(near) > 1:
                # Ulimit -n: the others send messages.
                with contextlib.suppress(OSError):
                    file = os.memfd_create("mpidec-window", os.MFD_CLOEXEC)
                    os.ftruncate(file, size)
            try:
                self.block = np.frombuffer(
                    mmap.mmap(-1, size, _PRIVATE)
                    if file < 0
                    else memoryview(native.Block(file, size, True)),
                    np.uint8,
                )
            except (OSError, OverflowError, ValueError) as caught:
                error = MemoryError(
                    f"{what}: rank {context.rank} gets no memory for {size / 2**20:.3g} MB "
                    f"({caught}): make a "
                    "smaller window, or raise the limits (ulimit -v)"
                )
            together.agree(error, what)
            if allocate is not None:
                del self.block  # it would have been there
                self.block = allocate(size)
            prepare(self.block)
            self.blocks = {context.rank: self.block}
            if context.size > 1:
                inode = os.fstat(file).st_ino if file >= 0 else 0
                places = together.gather_all(np.array([os.getpid(), file, inode, size]), what)
                for rank in near:
                    if rank != context.rank and places[rank, 1] >= 0:
                        # Another pid namespace or user: it is reached by messages.
                        with contextlib.suppress(OSError):
                            self.blocks[rank] = _mapped(*map(int, places[rank]))
            self.complete = bool(
                together.minimum(np.array([len(self.blocks) == context.size], np.int8), what)[0]
            )
        finally:
            if file >= 0:
                os.close(file)


class SharedWords:
    """Words of the ranks whose memory this one maps; see `Words`.  `boards`: those of each rank,
    shape (1 + agents, 8).
    """

    def __init__(self, boards: dict[int, np.ndarray]):
        self._boards = boards

    def reaches(self, rank: int) -> bool:
        """Return whether this rank maps the memory of a rank."""
        return rank in self._boards

    def swap(self, rank: int, k: int, before: int, after: int) -> bool:
        """Set the k-th one to `after` if it is `before`; whether it was."""
        return bool(native.swap(self._boards[rank], k, before, after))

    def read(self, rank: int, k: int) -> int:
        """Return the k-th one."""
        return int(self._boards[rank][k // 8, k % 8])


def _mapped(pid: int, file: int, inode: int, size: int) -> np.ndarray:
    """Return the block of another process."""
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        about = os.fstat(opened)
        if about.st_ino != inode or about.st_size != size:
            raise OSError("the ranks have process numbers of their own (pid namespaces)")
        return np.frombuffer(memoryview(native.Block(opened, size, False)), np.uint8)
    finally:
        os.close(opened)
