"""Packing of several arrays into one row per agent, and unpacking of the result: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from ...runtime import empty

Empty = Callable[[tuple[int, ...], DTypeLike], np.ndarray]  # makes uninitialized rows
# Gives a result the kind and shape of what came.
Restore = Callable[[np.ndarray], Any]


Name = TypeVar("Name")
# An array of NumPy, PyTorch or CuPy, or a list, tuple or dict of arrays.
RowsT = TypeVar("RowsT")


class Pack(NamedTuple):
    """Rows of one dtype side by side.

    Attributes
    ----------
    places : tuple of int
        Places of the arrays among all that are mixed.
    rows : array (m, d)
    ends : tuple of int
        Where the columns of each array end.
    restores : tuple of callable
    """

    places: tuple[int, ...]
    rows: np.ndarray
    ends: tuple[int, ...]
    restores: tuple[Restore, ...]

    def unpack(self, mixed: np.ndarray) -> list[Any]:
        """Return the arrays, from mixed rows."""
        arrays, start = [], 0
        for restore, end in zip(self.restores, self.ends):
            arrays.append(restore(np.ascontiguousarray(mixed[:, start:end])))
            start = end
        return arrays

    def describe(self, names: Sequence[object] = ()) -> str:
        """Return the columns of each array, by name if the arrays have `names`, as text."""
        columns = np.diff((0, *self.ends)).tolist()
        return repr(
            dict(zip([names[place] for place in self.places], columns)) if names else columns
        )


def pack(arrays: Sequence[tuple[np.ndarray, Restore] | None]) -> list[Pack]:
    """Packs of the arrays (m, d) of each dtype, in the order in which the dtypes come; None
    leaves a place out.
    """
    groups: dict[np.dtype, list[int]] = {}
    for place, pair in enumerate(arrays):
        if pair is not None:
            groups.setdefault(pair[0].dtype, []).append(place)
    packs = []
    for dtype, places in groups.items():
        parts, restores, ends = [], [], [0]
        for place in places:
            part, restore = cast("tuple[np.ndarray, Restore]", arrays[place])
            parts.append(part)
            restores.append(restore)
            ends.append(ends[-1] + part.shape[1])
        rows = parts[0]
        if len(parts) > 1:
            rows = empty((len(rows), ends[-1]), dtype)
            np.concatenate(parts, axis=1, out=rows)
        packs.append(Pack(tuple(places), rows, tuple(ends[1:]), tuple(restores)))
    return packs


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays (m, d) of one dtype side by side; a single one itself."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def split(rows: np.ndarray, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the columns of rows side by side that belong to each array, in C order.

    Examples
    --------
    >>> [part.tolist() for part in split(np.array([[1, 2, 3]]), [np.ones((1, 2)), np.ones((1, 1))])]
    [[[1, 2]], [[3]]]
    """
    if len(like) == 1:
        return [rows]
    ends = np.cumsum([part.shape[1] for part in like])[:-1]
    return [np.ascontiguousarray(part) for part in np.split(rows, ends, axis=1)]


def by_name(arrays: Mapping[Name, object]) -> list[Name]:
    """Return the names of arrays in an order that does not depend on that of the mapping."""
    return sorted(arrays, key=lambda name: (type(name).__name__, repr(name)))
