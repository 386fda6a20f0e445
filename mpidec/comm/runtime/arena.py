"""The arena: memory of this process for large arrays, which the other ranks of its node can read;
see `_arena.c`.

Arrays that are allocated there are mixed without being copied, in memory that has been used before,
so that it costs no page faults.  Without the compiled extension arrays are ordinary ones.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

try:
    shared: Any = import_module("._shared", __package__)
except ImportError:  # no compiler where the package was installed
    shared = None

# Bytes: the least array that lies in the arena.
GRAIN = 1 << 14
# Bounds of the addresses that the arena reserves, in bytes; the size between them is four times the
# memory of the host, so that the arena is never full.  Pages take memory only once they are used.
_MOST, _LEAST = 1 << 38, 1 << 26


@cache
def arena() -> tuple[int, int] | None:
    """Return the arena's file descriptor and size in bytes, made at the first call; None where it
    cannot be made.
    """
    if shared is None or not hasattr(os, "memfd_create"):
        return None
    size = max(_LEAST, min(_MOST, 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    while size >= _LEAST:
        try:
            file = shared.open_arena(size)
            return file, os.fstat(file).st_size
        except OSError:  # ulimit -v, -f or -n
            size //= 4
    return None


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialized array; in the arena if it is large and there is one."""
    if arena() is None:
        return np.empty(shape, dtype)
    before = shared.use_arena()
    try:
        return np.empty(shape, dtype)
    finally:
        shared.restore_handler(before)


class memory:
    """A context in which NumPy allocates large arrays in the arena."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = shared.use_arena() if arena() is not None else None

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            shared.restore_handler(self._before)
            self._before = None
