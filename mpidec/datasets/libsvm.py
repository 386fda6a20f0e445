"""Files in LIBSVM's format: `label index:value index:value ...`."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import _validation as check
from .._sparse import assembled
from .text import Samples, lines, number

MEMORY = 2**30
"""Largest vector of unknowns, in bytes, that a file may need."""
DENSITY = 0.1
"""Part of the entries from which on a dense matrix is multiplied faster than a sparse one."""
FROM_0 = "index 0 occurs, so that indices count from 0"
_BLANKS = re.compile(r":\s+")


def libsvm(path: Path, label: str | int | None = None, features: int | None = None) -> Samples:
    """Read a LIBSVM file, as a sparse matrix if less than a tenth of its entries are not zero;
    indices count from 1, or from 0 if 0 occurs.

    Raises
    ------
    ValueError
    """
    if label is not None:
        raise ValueError(
            f"{path}: label = {label!r}, but every line of a LIBSVM file begins with its label: "
            "omit label"
        )
    y: list[float] = []
    queries = False
    ends, index, values = array("q", [0]), array("q"), array("d")
    for line, text in enumerate(lines(path), start=1):
        words = _BLANKS.sub(":", text.partition("#")[0]).split()
        if not words:
            continue
        place = f"{path}, line {line}"
        y.append(_label(words[0], place))
        entries = [word for word in words[1:] if word.partition(":")[0] != "qid"]
        queries = queries or len(entries) < len(words) - 1
        found = _numbers(entries, place)
        index.extend(found.keys())
        values.extend(found.values())
        ends.append(len(values))
    if not y:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if not index:
        raise ValueError(
            f"{path}: {len(y)} labels but no features, expected 'label index:value ...' (for "
            "values separated by commas, name the file .csv)"
        )
    # A file that uses the index 0 counts from 0.
    first = min(min(index), 1)
    width = max(index) + 1 - first
    if features is not None:
        width = check.integer(features, f"{path}: features", least=width)
    if (size := 8 * width) > MEMORY:
        raise ValueError(
            f"{path}: {width} features, whose weights need {size / 1e9:.3g} GB for each agent, "
            "expected at most 1 GB (number the features that occur, or select some)"
        )
    A = assembled(np.array(values), np.array(index) - first, np.array(ends), width)
    if len(values) >= DENSITY * len(y) * width:
        A = A.toarray()
    notes = (
        "" if first else f"{FROM_0}: {width} features",
        "qid, the query of a sample, is ignored" if queries else "",
    )
    return Samples(A, np.array(y), notes=tuple(filter(None, notes)), sparse=True)


def _label(word: str, place: str) -> float:
    """The label, with which a line begins."""
    if ":" in word:
        raise ValueError(f"{place}: starts with {word[:40]!r}, expected 'label index:value ...'")
    if "," in word:
        raise ValueError(
            f"{place}: the label {word[:40]!r} is several labels, expected one of each sample"
        )
    return number(word, place, "label")


def _numbers(words: Sequence[str], place: str) -> dict[int, float]:
    """The values of a line by their indices, which ascend."""
    found: dict[int, float] = {}
    last = -1
    for word in words:
        at, colon, value = word.partition(":")
        if not colon or not (at.isascii() and at.isdigit()):
            raise ValueError(f"{place}: {word[:40]!r}, expected index:value")
        if not last < int(at):
            raise ValueError(
                f"{place}: index {at} after {last}, expected ascending indices from 1, or from "
                "0 in the whole file"
            )
        last = int(at)
        found[last] = number(value, place, f"index {at}")
    return found
