"""Layout of arrays of any kind in the rows of a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..arrays import BFLOAT16, flat_dtype, narrow, to_host, widen

# Or what PyTorch and CuPy have in their place.
Arrays = np.ndarray | Sequence[np.ndarray]
# Dtypes, and those in which they are added up.
_SLOTS = {
    "e": "f",
    "f": "f",
    "d": "d",
    "F": "f",
    "D": "d",
}


class RowLayout:
    """How an array, or a list of arrays, lies in a row of float32 or float64 numbers.

    Parameters
    ----------
    x : array, or list of arrays of one dtype
        float16 to float64, bfloat16, complex; NumPy, PyTorch or CuPy.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the row: 16-bit numbers are kept and added up in float32.
    count : int
    words : str
        What ranks compare.
    """

    def __init__(self, x: Arrays):
        self._several = isinstance(x, (list, tuple)) and all(hasattr(one, "dtype") for one in x)
        arrays = self._list(x)
        if not arrays:
            raise ValueError("the list has no arrays, expected at least one")
        hosts, formats, self._restore = zip(*map(to_host, arrays))
        self._shapes = [host.shape for host in hosts]
        self._formats = [_native(format) for format in formats]
        self._format = _common(arrays, self._formats)
        stored = flat_dtype(self._format)
        self.dtype = np.dtype("f" if self._format == BFLOAT16 else _SLOTS[stored.char])
        self._entry = 2 if stored.kind == "c" else 1
        self._plain = self._shapes[0] if not self._several and self._entry == 1 else None
        sizes = [math.prod(shape) for shape in self._shapes]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]) * self._entry
        self.count = int(self._starts[-1])
        here = all(map(_is_here, arrays))
        #: whether arrays can lie in the row itself: what is written to them is the value at once
        self.live = here and self.dtype.itemsize * self._entry == stored.itemsize
        #: the format of 16-bit arrays that can lie beside the row
        self.half = self._format if here and stored.itemsize == 2 else ""
        self.words = ", ".join(f"{shape} {_name(self._format)}" for shape in self._shapes)

    def _list(self, x: Arrays) -> list[np.ndarray]:
        return list(x) if self._several and isinstance(x, (list, tuple)) else [cast(np.ndarray, x)]

    def arrays(self, row: np.ndarray) -> Any:
        """Arrays like those of the window that show a row, or numbers of the format `half`;
        copies, unless there or `live`.
        """
        made = []
        for start, stop, shape, restore in zip(
            self._starts[:-1], self._starts[1:], self._shapes, self._restore
        ):
            part = row[start:stop]
            if self._entry == 2:
                part = part.view(self._format)
            elif not self.live and row.dtype == self.dtype:
                part = narrow(part, self._format)
            made.append(restore(part.reshape(shape), self._format))
        return made if self._several else made[0]

    def copy(self, row: np.ndarray, arrays: Arrays) -> None:
        """Write a row to arrays that `arrays` has made."""
        for array, new in zip(self._list(arrays), self._list(self.arrays(row))):
            array[...] = new

    def row(self, x: Arrays) -> np.ndarray:
        """Return the numbers of arrays like those of the window; the memory of `x` where
        possible.
        """
        if (
            type(x) is np.ndarray
            and x.dtype == self.dtype
            and x.shape == self._plain
            and x.flags.c_contiguous
        ):
            return x
        arrays = self._list(x)
        if len(arrays) != len(self._shapes):
            raise ValueError(
                f"{len(arrays)} arrays, expected a list of {len(self._shapes)} as in the window"
            )
        rows = []
        for array, shape in zip(arrays, self._shapes):
            if isinstance(array, np.ma.MaskedArray):
                raise TypeError(
                    "the array is masked, and windows carry no masks: fill it, x.filled(0)"
                )
            host, format, _ = to_host(array)
            kind = "f" if format == BFLOAT16 else np.dtype(format).kind
            if host.shape != shape or kind not in ("biuf" if self._entry == 1 else "biufc"):
                raise ValueError(
                    f"the array is {host.shape} {_name(format)}, expected {shape} "
                    f"{_name(self._format)} as in the window"
                )
            if format == BFLOAT16:
                host = widen(host, format)
            wanted = np.dtype(self._format) if self._entry == 2 else self.dtype
            rows.append(np.ascontiguousarray(host, wanted).reshape(-1).view(self.dtype))
        return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _name(format: str) -> str:
    return format if format == BFLOAT16 else np.dtype(format).name


def _native(format: str) -> str:
    """A format in the byte order of this machine."""
    return format if format == BFLOAT16 else np.dtype(format).newbyteorder("=").str


def _common(arrays: Sequence[np.ndarray], formats: Sequence[str]) -> str:
    """The one format of all arrays."""
    for array, format in zip(arrays, formats):
        if isinstance(array, np.ma.MaskedArray) or (
            format != BFLOAT16 and np.dtype(format).char not in _SLOTS
        ):
            raise TypeError(
                f"the array is {type(array).__name__} of {format}, expected float16 to float64, "
                "bfloat16, complex: x.astype(float), or x.double() of a tensor"
            )
    if len(set(formats)) > 1:
        raise TypeError(
            f"the arrays of a window have dtypes {', '.join(formats)}, expected one: make a "
            "window for each"
        )
    return formats[0]


def _is_here(array: np.ndarray) -> bool:
    """Whether an array, or a tensor, lies in the memory of the host."""
    if isinstance(array, np.ndarray):
        return True
    return type(array).__module__ == "torch" and array.device.type == "cpu"
