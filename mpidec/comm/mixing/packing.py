"""Packing of several arrays into one row per agent, and unpacking of the result: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..runtime.memory import empty

Restore = Callable[[np.ndarray], Any]  # gives a result the kind and shape of what came


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
        """The arrays, from mixed rows."""
        starts = (0, *self.ends)
        return [
            restore(np.ascontiguousarray(mixed[:, start:end]))
            for restore, start, end in zip(self.restores, starts, self.ends)
        ]

    def describe(self, names: Sequence[Any]) -> str:
        """The columns of each array, by name if the arrays have `names`, in words."""
        columns = np.diff((0, *self.ends)).tolist()
        return repr(
            columns
            if not names
            else {names[place]: count for place, count in zip(self.places, columns)}
        )


def pack(arrays: Sequence[tuple[np.ndarray, Restore] | None]) -> list[Pack]:
    """Packs of the arrays (m, d) of each dtype, in the order in which the dtypes come; None leaves a place out."""
    groups: dict[np.dtype, list[int]] = {}
    for place, pair in enumerate(arrays):
        if pair is not None:
            groups.setdefault(pair[0].dtype, []).append(place)
    packs = []
    for dtype, places in groups.items():
        pairs = [pair for pair in (arrays[place] for place in places) if pair is not None]
        ends = np.cumsum([rows.shape[1] for rows, _ in pairs]).tolist()
        rows = pairs[0][0]
        if len(pairs) > 1:
            rows = empty((len(rows), ends[-1]), dtype)
            np.concatenate([part for part, _ in pairs], axis=1, out=rows)
        packs.append(Pack(tuple(places), rows, tuple(ends), tuple(restore for _, restore in pairs)))
    return packs


def by_name(arrays: Mapping[Any, Any]) -> list[Any]:
    """The names of arrays in an order that does not depend on that of the mapping."""
    return sorted(arrays, key=lambda name: (type(name).__name__, repr(name)))
