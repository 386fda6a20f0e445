"""Checksums of a file, in its last bytes, by which corrupted blocks are detected when they are
read.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 14  # bytes that have one sum
# The last eight bytes of a file that has sums.
MAGIC = b"mpidecCS"
NOTHING: Mapping[int, int] = {}
# Length of the content, BLOCK, sum of all that, MAGIC.
_END = struct.Struct("<QII8s")
# HDF5's signature, its version, and where the file ends.
_SUPERBLOCK = struct.Struct("<8sB19xQ")
_SIGNATURE, _VERSIONS = b"\x89HDF\r\n\x1a\n", (2, 3)


@dataclass(frozen=True)
class Sums:
    """CRC-32 of each block of 16 KiB of the first `length` bytes of a file.

    Notes
    -----
    They lie behind the end of the content, which HDF5 ignores; a program that changes the file with
    h5py cuts them off, and the file is then one without sums, as those that h5py alone writes.
    They cover all of the content: numbers, names, shapes, attributes, and HDF5's own tables.
    """

    length: int = 0
    table: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))

    @classmethod
    def of(cls, descriptor: int) -> Sums | None:
        """Read the sums of an open file; None if it has none.

        Raises
        ------
        ValueError
            If they are damaged.
        """
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, _END.size, max(size - _END.size, 0))
        if end[-len(MAGIC) :] == MAGIC and len(end) == _END.size:
            length, block, total, _ = _END.unpack(end)
            there = size - _END.size - length
            if block == BLOCK and there == 4 * _count(length):
                table = os.pread(descriptor, there, length)
                if zlib.crc32(table, _seed(length)) == total:
                    return cls(length, np.frombuffer(table, "<u4").astype(np.uint32))
        elif not _longer(descriptor, size):
            return None
        raise ValueError("its check sums are damaged")

    def trailer(self) -> bytes:
        """Return the bytes that follow the content."""
        table = self.table.astype("<u4").tobytes()
        total = zlib.crc32(table, _seed(self.length))
        return table + _END.pack(self.length, BLOCK, total, MAGIC)

    def updated(
        self,
        descriptor: int,
        length: int,
        ranges: Iterable[tuple[int, int]],
        known: Mapping[int, int] = NOTHING,
    ) -> Sums:
        """Return the sums of a file of which `ranges`, (offset, length), were written since these;
        those of whole blocks may be `known`, by number.
        """
        dirty = np.ones(_count(length), bool)
        dirty[: min(self.length, length) // BLOCK] = False
        for offset, size in ranges:
            dirty[offset // BLOCK : _count(offset + size)] = True
        table = np.zeros(len(dirty), np.uint32)
        table[~dirty] = self.table[: len(dirty)][~dirty[: len(self.table)]]
        for block in np.flatnonzero(dirty).tolist():
            total = known.get(block)
            if total is None:
                total = zlib.crc32(os.pread(descriptor, _size(length, block), block * BLOCK))
            table[block] = total
        return Sums(length, table)

    def spoilt(self, data: bytes, first: int) -> int | None:
        """Return the first block that `data`, which begins with the block `first`, does not hold as
        it was written.
        """
        view = memoryview(data)
        for block in range(first, first + _count(len(data))):
            start = (block - first) * BLOCK
            if zlib.crc32(view[start : start + BLOCK]) != self.table[block]:
                return block
        return None

    def check(self, descriptor: int) -> None:
        """Read the whole file.

        Raises
        ------
        ValueError
            If a block is not as it was written.
        """
        for block in range(len(self.table)):
            data = os.pread(descriptor, _size(self.length, block), block * BLOCK)
            if self.spoilt(data, block) is not None:
                raise ValueError(wrong(block))


def note(known: dict[int, int], view: memoryview, offset: int) -> None:
    """Enter the sums of the blocks that `view`, written at `offset`, holds completely, while it is
    in the cache of the processor; those that it holds in part are known no longer.
    """
    for block in range(offset // BLOCK, _count(offset + len(view))):
        start = block * BLOCK - offset
        if start >= 0 and start + BLOCK <= len(view):
            known[block] = zlib.crc32(view[start : start + BLOCK])
        else:
            known.pop(block, None)


def wrong(block: int) -> str:
    """Return the message about a corrupted block."""
    return f"the bytes from {block * BLOCK:,} on are not those that were written (check sum)"


def _count(length: int) -> int:
    return -(-length // BLOCK)


def _size(length: int, block: int) -> int:
    return min(BLOCK, length - block * BLOCK)


def _seed(length: int) -> int:
    return zlib.crc32(struct.pack("<QI", length, BLOCK))


def _longer(descriptor: int, size: int) -> bool:
    """Return whether the file continues after the end of its HDF5 content, where checksums are."""
    head = os.pread(descriptor, _SUPERBLOCK.size, 0)
    if len(head) < _SUPERBLOCK.size:
        return False
    signature, version, end = _SUPERBLOCK.unpack(head)
    return signature == _SIGNATURE and version in _VERSIONS and end < size
