"""Lines and numbers of text files of data, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

COMPRESSED: dict[str, Callable[..., IO[str]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}

DAMAGED_TEXT = EOFError, zlib.error, lzma.LZMAError
MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", "--", ".", "missing", "#n/a", "<na>")
"""Words, in lower case, that stand for a value that is missing."""
FORMS = (
    (
        re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|[+-]?\d{1,3}(\.\d{3}){2,}(,\d+)?"),
        "a number with separated thousands, or one with a decimal comma: write 1234.5",
    ),
    (
        re.compile(r"[+-]?\d*,\d+"),
        "a decimal comma: write points (pandas.read_csv(FILE, sep=';', decimal=',') reads it)",
    ),
    (re.compile(r"[+-]?[\d.]+ ?%"), "a percentage: write it as a number"),
)
"""Forms of numbers that are not taken, since they can be read in two ways, and what to do."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Contents of a data file.

    Parameters
    ----------
    A : (N, d) array, or csr_array
    y : (N,) array
        Numbers, or strings if the labels are class names.
    label : str
        What the labels are called: the column, or the array of an .npz file; ``b`` marks regression
        targets.
    notes : tuple of str
        How the file was read where it can be read in another way.
    hint : str
        That another column looks like the label of classes, if the last one was taken without a
        name; otherwise empty.
    names : tuple of str
        Those of the features; empty if they have none.
    sparse : bool
        Whether features that are zero are left out, so that two files of one data set may have
        other numbers of features.
    """

    A: Any
    y: Any
    label: str = ""
    notes: tuple[str, ...] = ()
    hint: str = ""
    sparse: bool = False
    names: tuple[str, ...] = ()


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, compressed or not.

    Raises
    ------
    ValueError
        If it is no text.
    """
    opened: Callable[..., IO[str]] = COMPRESSED.get(path.suffix.lower(), open)
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file in UTF-8 (byte {error.object[error.start]:#04x}): save it as "
            "UTF-8"
        ) from None


def as_float(word: str) -> float | None:
    """Return the number that a word is, or None; 1_000, which Python accepts, is a typing error
    in a data file.

    Examples
    --------
    >>> as_float("1e3"), as_float("1_000"), as_float("x")
    (1000.0, None, None)
    """
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None


def number(word: str, line: str, place: str, hint: str = "") -> float:
    """Return a finite number.

    Raises
    ------
    ValueError
        It names the line and the place in it, and has the `hint` if the word looks like a name.
    """
    value = as_float(word)
    if value is not None and math.isfinite(value):
        return value
    if value is not None:
        raise ValueError(
            f"{line}, {place} is {value}, expected a finite number (drop or impute that sample)"
        )
    word = word.strip()
    missing = word.lower() in MISSING
    what = next(
        (f"{word!r} is {text}" for form, text in FORMS if form.fullmatch(word)),
        "is empty"
        if not word
        else f"{word!r} stands for a missing value"
        if missing
        else f"{word[:40]!r} is not a number",
    )
    named = word[:1].isalpha() and len(word) > 2 and not missing
    raise ValueError(f"{line}, {place}: {what}, expected a finite number{hint if named else ''}")
