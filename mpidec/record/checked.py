"""Reading of HDF5 files of the package: corrupted content is refused, in one line that names the
file.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .atomic import ATTEMPTS, lock
from .sums import BLOCK, Sums, wrong

# Seconds between two attempts to open a file that is locked.
PAUSE = 0.01


class CheckedFile(io.RawIOBase):
    """A file that h5py reads through this object, which compares each block with its check sum.

    Parameters
    ----------
    path : name of the file

    Attributes
    ----------
    failure : str
        What is wrong with the blocks read so far; HDF5 has got zeros for them, since its own way
        with exceptions is not to be relied on.

    Raises
    ------
    OSError, ValueError
        If it cannot be opened, if another program has locked it, or if its check sums are damaged.
    """

    def __init__(self, path: str):
        super().__init__()
        self.failure, self._position = "", 0
        self._file = _opened(path)
        try:
            self._sums = Sums.of(self._file)
            self._length = os.fstat(self._file).st_size if self._sums is None else self._sums.length
        except BaseException:
            self.close()
            raise
        self._known = np.zeros(0 if self._sums is None else len(self._sums.table), bool)

    def close(self) -> None:
        """Close the file.  May be called again."""
        if not self.closed:
            super().close()
            os.close(self._file)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}
        self._position = offset + base[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._length)
        data = self._read(self._position, end) if end > self._position else b""
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read(self, start: int, end: int) -> bytes:
        first, last = start // BLOCK, -(-end // BLOCK)
        if self._sums is None or self._known[first:last].all():
            return os.pread(self._file, end - start, start)
        data = os.pread(self._file, min(last * BLOCK, self._length) - first * BLOCK, first * BLOCK)
        bad = self._sums.spoilt(data, first)
        if bad is not None:
            self.failure = self.failure or wrong(bad)
            return bytes(end - start)
        self._known[first:last] = True
        return data[start - first * BLOCK : end - first * BLOCK]


@contextmanager
def open_checked(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an HDF5 file for reading with h5py.

    Raises
    ------
    OSError
        If there is no such file, or it may not be read.
    ValueError
        If its content is not as it was written or not as expected: whatever exception that leads to
        in the block of the context, it is one line that begins with the name of the file.
    """
    # Imported on use: it is slow to load, and most ranks have no file.
    import h5py

    path = os.fspath(path)
    try:
        source = CheckedFile(path)
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error}") from error
    with source:
        try:
            with h5py.File(source, "r") as file:
                yield file
        except Exception as error:
            told = " ".join(str(error).split())
            if not source.failure and told.startswith(f"{path}:"):
                raise
            what = f"damaged: {source.failure}" if source.failure else _said(error, told)
            raise ValueError(f"{path}: {what}") from error
        if source.failure:
            raise ValueError(f"{path}: damaged: {source.failure}")


def _said(error: Exception, told: str) -> str:
    """Translate an exception into an error about the file that was read."""
    if isinstance(error, SystemError) and isinstance(error.__cause__, Exception):
        return _said(error.__cause__, " ".join(str(error.__cause__).split()))  # what h5py has met
    if isinstance(error, MemoryError):
        return f"not enough memory: {told}"
    if isinstance(error, ValueError):
        return f"damaged: {told}"
    if isinstance(error, OSError):
        return f"damaged, or on a defective disk: {told}"
    return f"damaged: {told or type(error).__name__}"


def _opened(path: str) -> int:
    """Return a descriptor of the file, with a shared lock as HDF5 takes it: a writer then leaves
    its content alone.
    """
    for _ in range(ATTEMPTS):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if lock(descriptor, fcntl.LOCK_SH):
            return descriptor
        # It has been replaced between open and lock, or another program writes.
        os.close(descriptor)
        time.sleep(PAUSE)
    raise ValueError("locked by another program, which is writing it")
