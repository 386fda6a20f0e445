"""Argument checks with uniform error messages."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np


def integer(where: str, name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int >= `least`; errors name the caller `where` and the argument `name`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{where}: {name} must be an integer >= {least}, got {value!r} ({type(value).__name__})"
        ) from None
    if number < least:
        raise ValueError(f"{where}: {name} must be an integer >= {least}, got {number}")
    return number


def real(
    where: str,
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    closed: bool = False,
) -> float:
    """Return `value` as a finite float in (low, high], or in [low, high] if `closed`."""
    bounds = f"> {low:g}" if high == math.inf else f"in {'[' if closed else '('}{low:g}, {high:g}]"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(
            f"{where}: {name} must be a number {bounds}, got {value!r} ({type(value).__name__})"
        )
    number = float(value)
    if not (low < number <= high or (closed and number == low)) or math.isinf(number):
        raise ValueError(f"{where}: {name} must be a number {bounds}, got {number:g}")
    return number


def block(where: str, lo: Any, hi: Any, n: int) -> tuple[int, int]:
    """Return the bounds of the block of agents lo, ..., hi - 1 as two ints with 0 <= lo <= hi <= n."""
    lo, hi = integer(where, "lo", lo, 0), integer(where, "hi", hi, 0)
    if not lo <= hi <= n:
        raise ValueError(
            f"{where}: agents {lo}:{hi} are out of range, expected 0 <= lo <= hi <= n = {n}"
        )
    return lo, hi


def agent(where: str, value: Any, n: int, name: str = "agent") -> int:
    """Return `value` as an agent number in 0, ..., n - 1."""
    number = integer(where, name, value, 0)
    if number >= n:
        raise ValueError(f"{where}: {name} {number} does not exist, expected 0 <= {name} < n = {n}")
    return number


def choice(where: str, name: str, value: Any, known: Iterable[Any], more: str = "") -> Any:
    """Return `value` if it is one of `known`; otherwise the error lists them and suggests the closest match."""
    known = tuple(known)
    if not isinstance(value, (bool, np.bool_)) and any(
        type(value) is type(k) and value == k for k in known
    ):
        return value
    near = difflib.get_close_matches(str(value), map(str, known), 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"{where}: {name}={value!r} is unknown, expected one of "
        f"{', '.join(map(repr, known))}{more}{hint}"
    )
