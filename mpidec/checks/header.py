"""What goes before or around every array that the local-view calls send: a letter that says what it is."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

DATA, REFUSED, FAILED, ASKS, MIXES, LAST = range(6)   # kinds of letters
ACROSS, UP, DOWN, OK, IN, BACK = range(6)           # stages of a call

Script = Generator[bool, None, Any]


class Letter(NamedTuple):
    """What goes before, or around, an array; or what a rank that waits wants to know.

    `before` is how many mixings in shared memory the sender had begun before call `number`; if the letter asks about such a
    mixing, how many calls it had begun before mixing `number`.
    """

    kind: int
    pair: bool
    number: int
    op: str
    mode: str
    mark: str = ""
    stage: int = ACROSS
    want: bool = False
    weight: float = 1.0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    text: str = ""
    before: int = 0


class Disagreement(ValueError):
    """The ranks do not agree on a call."""


def describe(op: str, mode: str, number: int) -> str:
    """A call in words."""
    return f"{op} ({mode}) call {number}" if mode else f"{op} call {number}"


def tree(rank: int, size: int, root: int = 0) -> tuple[int | None, list[int]]:
    """The parent and the children of a rank in the binomial tree; subtrees hold consecutive ranks (from the root on)."""
    place = (rank - root) % size
    low = place & -place or size
    children = []
    step = 1
    while step < low and place + step < size:
        children.append((place + step + root) % size)
        step *= 2
    return (None if place == 0 else ((place & (place - 1)) + root) % size), children


def name(dtype: str) -> str:
    """A dtype in words."""
    return dtype if dtype in ("", "bfloat16") else str(np.dtype(dtype))
