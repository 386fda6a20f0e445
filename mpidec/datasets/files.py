"""User data files: .npz, .csv and LIBSVM, read completely and checked, never unpickled."""

from __future__ import annotations

import csv
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._validation import Array

MISSING = ("nan", "null", "none", "missing", "inf", "infinity")
LABELS = ("y", "b", "label", "target")
Labels = NDArray[Any]  # numbers, or class names as strings
MEMORY = 2**33  # largest dense matrix, in bytes, that a LIBSVM file may need


def read(path: Path, label: str | int | None = None) -> tuple[Array, Labels, str, str]:
    """Read a data file in the format given by its extension.

    Parameters
    ----------
    path : Path
    label : str or int, optional
        The label: the name or the number (from 0; negative ones count from the end) of a column of a CSV file, or the name
        of an array of an .npz file.

    Returns
    -------
    A : (N, d) array
    y : (N,) array
        Numbers, or strings if the labels are class names.
    name : str
        What the labels are called: the column, or the array of an .npz file; ``b`` marks regression targets.
    hint : str
        That another column looks like the label, if the last one was taken without a name; otherwise empty.

    Raises
    ------
    ValueError
        If the file is missing, empty or malformed; the message names the file and the line or row.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.csv")
    ...     _ = path.write_text("u,kind,v\\n1,ill,3\\n2,well,4\\n")
    ...     read(path, label="kind")
    (array([[1., 3.],
           [2., 4.]]), array(['ill', 'well'], dtype='<U4'), 'kind', '')
    """
    readers: dict[str, Callable[[Path, str | int | None], tuple[Array, Labels, str, str]]] = {
        ".npz": _npz,
        ".csv": _csv,
        ".svm": _libsvm,
        ".libsvm": _libsvm,
        ".txt": _libsvm,
    }
    if path.suffix.lower() not in readers:
        raise ValueError(
            f"{path}: unknown file extension {path.suffix or '(none)'!r}, expected one of {' '.join(readers)}"
        )
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a directory, expected a file")
        if not path.exists():
            raise ValueError(f"{path}: no such file{_near(path)}")
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty, expected samples")
        return readers[path.suffix.lower()](path, label)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None


def _near(path: Path) -> str:
    names = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
    return f" ({check.did_you_mean(path.name, names) or f'looked in {path.parent.resolve()}'})"


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file (byte {error.object[error.start]:#04x} is not UTF-8)"
        ) from None


def _number(word: str, where: str, hint: str = "") -> float:
    try:
        if "_" in word:  # Python accepts 1_000; in a data file it is a typing error
            raise ValueError
        value = float(word)
    except ValueError:
        what = "is empty" if not word.strip() else f"{word.strip()[:40]!r} is not a number"
        hint = (
            hint
            if re.fullmatch(r"[^\W\d_][\w -]{2,}", word.strip())
            and word.strip().lower() not in MISSING
            else ""
        )
        raise ValueError(f"{where}: {what}, expected a finite number{hint}") from None
    if not math.isfinite(value):
        raise ValueError(
            f"{where} is {value}, expected a finite number (drop or impute that sample)"
        )
    return value


# -- .npz --------------------------------------------------------------------------------------------------------


def _npz(path: Path, label: str | int | None) -> tuple[Array, Labels, str, str]:
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path}: not an .npz archive, or truncated; expected one made by numpy.savez(file, A=A, y=y)"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            labels = [name for name in (("y", "b") if label is None else (label,)) if name in names]
            if "A" not in names or not labels:
                wanted = "y or b" if label is None else label
                raise ValueError(
                    f"{path} holds {', '.join(names) or 'no arrays'}, expected A (N, d) and {wanted} (N,)"
                )
            if len(labels) > 1:
                raise ValueError(
                    f"{path} holds both y and b, expected one of them (label=... chooses)"
                )
            A, y = _member(archive, "A", path), _member(archive, str(labels[0]), path, names=True)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged archive ({error})") from None
    if A.ndim != 2:
        raise ValueError(f"{path}: A has shape {A.shape}, expected (N, d)")
    if y.shape != A.shape[:1]:
        raise ValueError(
            f"{path}: {labels[0]} has shape {y.shape}, expected {A.shape[:1]}: one per row of A {A.shape}"
        )
    if 0 in A.shape:
        raise ValueError(
            f"{path}: A has shape {A.shape}, expected at least one sample and one feature"
        )
    for name, array in (("A", A), (labels[0], y)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            place = np.argwhere(~np.isfinite(array))[0]
            column = f", column {place[1]}" if len(place) == 2 else ""
            raise ValueError(
                f"{path}: {name} is {array[tuple(place)]} at row {place[0]}{column} (from 0), expected "
                "finite numbers (drop or impute that sample)"
            )
    return A, y, str(labels[0]), ""


def _member(archive: Any, name: str, path: Path, names: bool = False) -> Labels:
    try:
        array: NDArray[Any] = archive[name]
    except ValueError as error:
        why = (
            "Python objects (a pickle), which are never loaded"
            if "bject" in str(error)
            else f"no array ({error})"
        )
        raise ValueError(f"{path}: {name} holds {why}, expected an array of numbers") from None
    if not isinstance(array, np.ndarray):  # a member that is not in .npy format
        raise ValueError(f"{path}: {name} holds raw bytes, expected an array of numbers")
    if names and array.dtype.kind == "U":
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{path}: {name} has dtype {array.dtype}, expected real numbers{' or class names' if names else ''}"
        )
    return np.ascontiguousarray(array, dtype=np.float64)


# -- .csv --------------------------------------------------------------------------------------------------------


def _csv(path: Path, label: str | int | None) -> tuple[Array, Labels, str, str]:
    rows = _csv_rows(path)
    first_line, first = next(rows, (0, []))
    if not first:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if len(first) < 2:
        raise ValueError(
            f"{path}, line {first_line}: one column, expected features and a label, separated by commas"
        )
    column, header = len(first) - 1, _is_header(first)
    if header:
        names = [word.strip().lower() for word in first]
        if "" in names:
            raise ValueError(
                f"{path}, line {first_line}: column {names.index('') + 1} has no name (if it is a "
                "pandas index, write the file with index=False)"
            )
        labels = [i for i, name in enumerate(names) if name in LABELS]
        if len(labels) > 1 and label is None:
            raise ValueError(
                f"{path}, line {first_line}: {len(labels)} label columns "
                f"({', '.join(first[i].strip() for i in labels)}), expected one of {', '.join(LABELS)} "
                "(label=... chooses)"
            )
        column = labels[0] if labels else column
    if label is not None:
        column = _column(first, label, header, f"{path}, line {first_line}")
    name = first[column].strip() if header else f"column {column}"
    samples: list[list[float]] = []
    classes: list[tuple[int, str]] = []
    guessing = label is None and not (header and first[column].strip().lower() in LABELS)
    for line, words in rows if header else _chain(first_line, first, rows):
        if len(words) != len(first):
            raise ValueError(
                f"{path}, line {line}: {len(words)} values, expected {len(first)} as in line {first_line}"
            )
        classes.append((line, words[column].strip()))
        try:
            sample = [float(word) for word in words]
        except ValueError:
            sample = [math.nan]
            if not _numeric(words[column]) and words[column].strip():
                words[column] = "0"  # a class name
        if not all(map(math.isfinite, sample)) or any("_" in word for word in words):
            hint = (
                "; if it is the label, choose it with label={0} (--set problem.label={0})"
                if guessing and not samples
                else ""
            )
            sample = [
                _number(word, f"{path}, line {line}, column {c + 1}", hint.format(c))
                for c, word in enumerate(words)
            ]
        samples.append(sample)
    if not samples:
        raise ValueError(
            f"{path}: a header but no samples, expected lines of numbers after line {first_line}"
        )
    table = np.array(samples)
    words_of = [(line, word) for line, word in classes if not _numeric(word)]
    if not words_of:
        hint = _other_label(table, first if header else []) if guessing else ""
        return np.delete(table, column, axis=1), table[:, column].copy(), name, hint
    if len(words_of) < len(classes):  # one wrong word among numbers is an error, not a class
        line, word = words_of[0]
        raise ValueError(
            f"{path}, line {line}, column {column + 1}: {word[:40]!r} is not a number, expected a finite number, or "
            "class names in all lines"
        )
    return np.delete(table, column, axis=1), np.array([word for _, word in words_of]), name, ""


def _other_label(table: Array, names: list[str]) -> str:
    """Return a hint if the last column has many values, and one other column (or the first) has few whole ones, as labels have."""

    def values(column: int) -> int:
        whole = (table[:, column] == np.floor(table[:, column])).all()
        count = len(np.unique(table[:, column]))
        return count if whole and 2 <= count <= min(20, len(table) // 3) else 0

    last = table.shape[1] - 1
    few = [column for column in range(last) if values(column)]
    if values(last) or not few or (len(few) > 1 and few[0] != 0):
        return ""
    name = f" ({names[few[0]].strip()})" if names else ""
    return (
        f"the last column, taken as the label, has {len(np.unique(table[:, last]))} values in {len(table)} lines, column "
        f"{few[0]}{name} has {values(few[0])}: if that is the label, choose it with label={few[0]} "
        f"(--set problem.label={few[0]})"
    )


def _column(first: list[str], label: str | int, header: bool, where: str) -> int:
    """Return the number of the label's column."""
    names = [word.strip() for word in first]
    if header and str(label) in names:
        return names.index(str(label))
    if isinstance(label, int) and -len(names) <= label < len(names):
        return label % len(names)
    if header:
        some = f"expected one of {', '.join(names[:8])}{', ...' if names[8:] else ''}"
        hint = check.did_you_mean(str(label), names) or some
        raise ValueError(f"{where}: no column {label!r} for the label: {hint}")
    raise ValueError(
        f"{where}: no column {label!r} for the label: without a header, expected a number 0 .. {len(names) - 1}"
    )


def _chain(
    line: int, first: list[str], rows: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    yield line, first
    yield from rows


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, words) of each line that is not blank and not a # comment."""
    delimiter = ","
    seen = False
    for line, text in enumerate(_lines(path), start=1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        if not seen:  # spreadsheets write ; and tabs, too
            seen, delimiter = True, max(",;\t", key=text.count)
        try:
            yield line, next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {line}: malformed ({error}), expected numbers and commas"
            ) from None


def _numeric(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_header(words: list[str]) -> bool:
    if any(word.strip().lower() in LABELS for word in words):
        return True
    return not any(map(_numeric, words)) and any(word.strip() for word in words)


# -- LIBSVM ------------------------------------------------------------------------------------------------------


def _libsvm(path: Path, label: str | int | None) -> tuple[Array, Labels, str, str]:
    if label is not None:
        raise ValueError(
            f"{path}: label = {label!r}, but every line of a LIBSVM file begins with its label: omit label"
        )
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
            raise ValueError(
                f"{place}: starts with {words[0][:40]!r}, expected 'label index:value ...'"
            )
        y.append(_number(words[0], f"{place}, label"))
        last = -1
        for word in words[1:]:
            number, colon, value = word.partition(":")
            if number == "qid":
                continue
            if not colon or not (number.isascii() and number.isdigit()):
                raise ValueError(f"{place}: {word[:40]!r}, expected index:value")
            if not last < int(number):
                raise ValueError(
                    f"{place}: index {number} after {last}, expected ascending indices from 1, or from 0 in the whole "
                    "file"
                )
            last = int(number)
            where.append(len(y) - 1)
            index.append(last)
            values.append(_number(value, f"{place}, index {number}"))
    if not y:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if not index:
        raise ValueError(
            f"{path}: {len(y)} labels but no features, expected 'label index:value ...' (for values "
            "separated by commas, name the file .csv)"
        )
    first = min(min(index), 1)  # a file that uses the index 0 counts from 0
    width = max(index) + 1 - first
    if (size := 8 * len(y) * width) > MEMORY:
        raise ValueError(
            f"{path}: {len(y)} samples of {width} features need {size / 1e9:.3g} GB as a dense matrix, "
            "expected at most 8 GB (select features)"
        )
    A = np.zeros((len(y), width))
    A[where, np.array(index) - first] = values
    return A, np.array(y), "", ""
