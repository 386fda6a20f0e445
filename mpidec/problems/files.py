"""User data files: .npz, .csv and LIBSVM, read completely and checked, never unpickled."""

from __future__ import annotations

import csv
import difflib
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidec.problems.checks import Array

LABELS = ("y", "b", "label", "target")
MEMORY = 2**33                                           # largest dense matrix, in bytes, that a LIBSVM file may need


def read(path: Path) -> tuple[Array, Array, bool]:
    """Read a data file in the format given by its extension.

    Returns
    -------
    A : (N, d) array
    y : (N,) array
    named_b : bool
        Whether the targets are named ``b``, which marks regression targets.

    Raises
    ------
    ValueError
        If the file is missing, empty or malformed; the message names the file and the line or row.
    """
    readers = {".npz": _npz, ".csv": _csv, ".svm": _libsvm, ".libsvm": _libsvm, ".txt": _libsvm}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: unknown file extension {path.suffix or '(none)'!r}, expected one of {' '.join(readers)}")
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a directory, expected a file")
        if not path.exists():
            raise ValueError(f"{path}: no such file{_near(path)}")
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty, expected samples")
        return readers[path.suffix.lower()](path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None


def _near(path: Path) -> str:
    names = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=3)
    return f" (similar names in {path.parent}: {', '.join(near)})" if near else f" (looked in {path.parent.resolve()})"


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file (byte {error.object[error.start]:#04x} is not UTF-8)") from None


def _number(word: str, where: str) -> float:
    try:
        if "_" in word:                                  # Python accepts 1_000; in a data file it is a typing error
            raise ValueError
        value = float(word)
    except ValueError:
        what = "is empty" if not word.strip() else f"{word.strip()[:40]!r} is not a number"
        raise ValueError(f"{where}: {what}, expected a finite number") from None
    if not math.isfinite(value):
        raise ValueError(f"{where} is {value}, expected a finite number (drop or impute that sample)")
    return value


# -- .npz --------------------------------------------------------------------------------------------------------

def _npz(path: Path) -> tuple[Array, Array, bool]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: not an .npz archive, or truncated; expected one made by numpy.savez(file, A=A, y=y)")
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            label = [name for name in ("y", "b") if name in names]
            if "A" not in names or not label:
                raise ValueError(f"{path} holds {', '.join(names) or 'no arrays'}, expected A (N, d) and y or b (N,)")
            if len(label) > 1:
                raise ValueError(f"{path} holds both y and b, expected one of them")
            A, y = (_member(archive, name, path) for name in ("A", label[0]))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged archive ({error})") from None
    if A.ndim != 2:
        raise ValueError(f"{path}: A has shape {A.shape}, expected (N, d)")
    if y.shape != A.shape[:1]:
        raise ValueError(f"{path}: {label[0]} has shape {y.shape}, expected {A.shape[:1]}: one per row of A {A.shape}")
    if 0 in A.shape:
        raise ValueError(f"{path}: A has shape {A.shape}, expected at least one sample and one feature")
    for name, array in (("A", A), (label[0], y)):
        if not np.isfinite(array).all():
            place = np.argwhere(~np.isfinite(array))[0]
            column = f", column {place[1]}" if len(place) == 2 else ""
            raise ValueError(f"{path}: {name} is {array[tuple(place)]} at row {place[0]}{column} (from 0), expected "
                             "finite numbers (drop or impute that sample)")
    return A, y, label[0] == "b"


def _member(archive: Any, name: str, path: Path) -> Array:
    try:
        array: NDArray[Any] = archive[name]
    except ValueError as error:
        why = "Python objects (a pickle), which are never loaded" if "bject" in str(error) else f"no array ({error})"
        raise ValueError(f"{path}: {name} holds {why}, expected an array of numbers") from None
    if not isinstance(array, np.ndarray):                # a member that is not in .npy format
        raise ValueError(f"{path}: {name} holds raw bytes, expected an array of numbers")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {name} has dtype {array.dtype}, expected real numbers")
    return np.ascontiguousarray(array, dtype=np.float64)


# -- .csv --------------------------------------------------------------------------------------------------------

def _csv(path: Path) -> tuple[Array, Array, bool]:
    rows = _csv_rows(path)
    first_line, first = next(rows, (0, []))
    if not first:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if len(first) < 2:
        raise ValueError(f"{path}, line {first_line}: one column, expected features and a label, separated by commas")
    column, named_b, header = len(first) - 1, False, _is_header(first)
    if header:
        names = [word.strip().lower() for word in first]
        if "" in names:
            raise ValueError(f"{path}, line {first_line}: column {names.index('') + 1} has no name (if it is a "
                             "pandas index, write the file with index=False)")
        labels = [i for i, name in enumerate(names) if name in LABELS]
        if len(labels) > 1:
            raise ValueError(f"{path}, line {first_line}: {len(labels)} label columns "
                             f"({', '.join(first[i].strip() for i in labels)}), expected one of {', '.join(LABELS)}")
        column = labels[0] if labels else column
        named_b = names[column] == "b"
    samples = []
    for line, words in rows if header else _chain(first_line, first, rows):
        if len(words) != len(first):
            raise ValueError(f"{path}, line {line}: {len(words)} values, expected {len(first)} as in line {first_line}")
        try:
            sample = [float(word) for word in words]
        except ValueError:
            sample = [math.nan]
        if not all(map(math.isfinite, sample)) or any("_" in word for word in words):
            sample = [_number(word, f"{path}, line {line}, column {c}") for c, word in enumerate(words, start=1)]
        samples.append(sample)
    if not samples:
        raise ValueError(f"{path}: a header but no samples, expected lines of numbers after line {first_line}")
    table = np.array(samples)
    return np.delete(table, column, axis=1), table[:, column].copy(), named_b


def _chain(line: int, first: list[str], rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield line, first
    yield from rows


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, words) of each line that is not blank and not a # comment."""
    delimiter = ","
    seen = False
    for line, text in enumerate(_lines(path), start=1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        if not seen:                                     # spreadsheets write ; and tabs, too
            seen, delimiter = True, max(",;\t", key=text.count)
        try:
            yield line, next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path}, line {line}: malformed ({error}), expected numbers and commas") from None


def _is_header(words: list[str]) -> bool:
    def numeric(word: str) -> bool:
        try:
            float(word)
        except ValueError:
            return False
        return True

    if any(word.strip().lower() in LABELS for word in words):
        return True
    return not any(numeric(word) for word in words) and any(word.strip() for word in words)


# -- LIBSVM ------------------------------------------------------------------------------------------------------

def _libsvm(path: Path) -> tuple[Array, Array, bool]:
    y: list[float] = []
    where: list[int] = []
    index: list[int] = []
    values: list[float] = []
    for line, text in enumerate(_lines(path), start=1):
        words = text.partition("#")[0].split()
        if not words:
            continue
        place = f"{path}, line {line}"
        if ":" in words[0]:
            raise ValueError(f"{place}: starts with {words[0][:40]!r}, expected 'label index:value ...'")
        y.append(_number(words[0], f"{place}, label"))
        last = 0
        for word in words[1:]:
            number, colon, value = word.partition(":")
            if number == "qid":
                continue
            if not colon or not (number.isascii() and number.isdigit()):
                raise ValueError(f"{place}: {word[:40]!r}, expected index:value")
            if not last < int(number):
                raise ValueError(f"{place}: index {number} after {last}, expected ascending indices from 1")
            last = int(number)
            where.append(len(y) - 1)
            index.append(last - 1)
            values.append(_number(value, f"{place}, index {number}"))
    if not y:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if not index:
        raise ValueError(f"{path}: {len(y)} labels but no features, expected 'label index:value ...' (for values "
                         "separated by commas, name the file .csv)")
    width = max(index) + 1
    if (size := 8 * len(y) * width) > MEMORY:
        raise ValueError(f"{path}: {len(y)} samples of {width} features need {size / 1e9:.3g} GB as a dense matrix, "
                         "expected at most 8 GB (select features)")
    A = np.zeros((len(y), width))
    A[where, index] = values
    return A, np.array(y), False
