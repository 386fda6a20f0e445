"""Input checks: each error states what is wrong, where, what was expected, and a remedy."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def number(value: Any, name: str, *, positive: bool = False) -> float:
    """Return `value` as a finite float >= 0 (> 0 if `positive`).

    Examples
    --------
    >>> number(2, "l2")
    2.0
    """
    bound = "> 0" if positive else ">= 0"
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise TypeError(
            f"{name} = {value!r} is a {type(value).__name__}, expected a number {bound}"
        )
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name} = {value}, expected a finite number {bound}")
    return float(value)


def integer(value: Any, name: str, *, least: int = 1) -> int:
    """Return `value` as an int >= `least`.

    Examples
    --------
    >>> integer(2, "agents")
    2
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} = {value!r} is a {type(value).__name__}, expected an integer >= {least}"
        ) from None
    if result < least:
        raise ValueError(f"{name} = {result}, expected an integer >= {least}")
    return result


def choice(name: Any, names: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `names`; otherwise the error suggests the closest matches.

    Examples
    --------
    >>> choice("iid", ("iid", "sorted"), "partition")
    'iid'
    """
    names = list(names)
    if name in names:
        return str(name)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown {what} {name!r}: {hint}expected one of {', '.join(names)}")


def real(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return `values` as an array of real numbers (integers and booleans included)."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} is ragged: its rows differ in length; pad them and give a mask "
            "(problems.stack does both)"
        ) from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}, expected real numbers")
    return array


def data(A: ArrayLike) -> Array:
    """Return the local agents' samples as a C-contiguous float64 array (m, p, d)."""
    array = real(A, "A")
    if array.ndim != 3:
        raise ValueError(
            f"A has shape {array.shape}, expected (m, p, d): m local agents, p samples each, d features "
            "(problems.stack(A, y, parts, lo, hi) builds it from (N, d))"
        )
    if 0 in array.shape[1:]:
        raise ValueError(
            f"A has shape {array.shape}, expected at least one sample and one feature per agent "
            "(use no more agents than there are samples)"
        )
    return np.ascontiguousarray(array, dtype=np.float64)


def targets(y: ArrayLike, name: str, A: Array) -> Array:
    """Return one target per sample, (m, p) float64, matching `A`."""
    array = real(y, name)
    if array.shape != A.shape[:2]:
        raise ValueError(
            f"{name} has shape {array.shape}, expected {A.shape[:2]}: one target per sample of A"
        )
    return np.ascontiguousarray(array, dtype=np.float64)


def valid(mask: ArrayLike | None, A: Array) -> NDArray[np.bool_] | None:
    """Return the mask (m, p), True for samples, or None if there is no padding."""
    if mask is None:
        return None
    array = np.asarray(mask)
    if array.shape != A.shape[:2]:
        raise ValueError(
            f"mask has shape {array.shape}, expected {A.shape[:2]}: one entry per sample of A {A.shape}"
        )
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError(
            "mask holds values other than 0 and 1, expected 1 (a sample) or 0 (padding)"
        )
    array = array.astype(bool)
    if (empty := ~array.any(axis=1)).any():
        raise ValueError(
            f"local agent {int(empty.argmax())} has no samples, expected at least one "
            "(use no more agents than there are samples)"
        )
    return array


def finite(array: Array, name: str) -> None:
    """Raise an error that names agent, row and column if `array` holds a NaN or an infinity."""
    if np.isfinite(array).all():
        return
    place = np.argwhere(~np.isfinite(array))[0]
    where = ", ".join(f"{word} {i}" for word, i in zip(("local agent", "row", "column"), place))
    raise ValueError(
        f"{name} is {array[tuple(place)]} at {where}, expected finite numbers "
        "(drop or impute that sample)"
    )


def some(values: NDArray[Any], most: int = 5) -> str:
    """Return the first few of `values` as text for a message."""
    words = [f"{value:g}" for value in values[:most]]
    return ", ".join(words) + (f", ... ({len(values)} in all)" if len(values) > most else "")
