"""User data files: .npz, .csv and LIBSVM, read completely and checked, never unpickled."""

from __future__ import annotations

import csv
import math
import tokenize
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._validation import Array

MISSING = ("nan", "null", "none", "missing", "inf", "infinity")
LABELS = ("y", "b", "label", "target")
Table = tuple[Any, Any, str, str]  # A, y, what y is called, a hint
MEMORY = 2**33  # largest dense matrix, in bytes, that a LIBSVM file may need


def read(path: Path, label: str | int | None = None) -> Table:
    """Read a data file in the format given by its extension.

    Parameters
    ----------
    path : Path
    label : str or int, optional
        The label: the name or the number (from 0; negative ones count from the end) of a column of
        a CSV file, or the name of an array of an .npz file.

    Returns
    -------
    A : (N, d) array
    y : (N,) array
        Numbers, or strings if the labels are class names.
    name : str
        What the labels are called: the column, or the array of an .npz file; ``b`` marks regression
        targets.
    hint : str
        That another column looks like the label, if the last one was taken without a name;
        otherwise empty.

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
    if path.suffix.lower() not in READERS:
        raise ValueError(
            f"{path}: unknown file extension {path.suffix or '(none)'!r}, expected one of "
            f"{' '.join(READERS)}"
        )
    with reading(path):
        return READERS[path.suffix.lower()](path, label)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuse what is no file or empty; errors of the system within the context become a
    ValueError that names the file.
    """
    try:
        if path.is_dir():
            raise ValueError(f"{path} is a directory, expected a file")
        if not path.exists():
            names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            looked = f"looked in {path.parent.resolve()}"
            raise ValueError(
                f"{path}: no such file ({check.did_you_mean(path.name, sorted(names)) or looked})"
            )
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty, expected samples")
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file (byte {error.object[error.start]:#04x} is not UTF-8)"
        ) from None


def _float(word: str) -> float | None:
    """Return the number that a word is, or None; 1_000, which Python accepts, is a typing error
    in a data file.
    """
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None


def _number(word: str, line: str, place: str, hint: str = "") -> float:
    """Return a finite number; the error names the line and the place in it, and has a hint if
    the word looks like a name.
    """
    value = _float(word)
    if value is not None and math.isfinite(value):
        return value
    if value is not None:
        raise ValueError(
            f"{line}, {place} is {value}, expected a finite number (drop or impute that sample)"
        )
    word = word.strip()
    what = f"{word[:40]!r} is not a number" if word else "is empty"
    named = word[:1].isalpha() and len(word) > 2 and word.lower() not in MISSING
    raise ValueError(f"{line}, {place}: {what}, expected a finite number{hint if named else ''}")


# -- .npz ------------------------------------------------------------------------------------------


DAMAGED = (
    *(ValueError, TypeError, SyntaxError, OverflowError, MemoryError),  # by a header of an array
    *(zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, tokenize.TokenError),
)


def arrays(path: Path, names: Container[str], example: str) -> dict[str, NDArray[Any] | None]:
    """Return the arrays of an .npz file by name, None for those that are not in `names`; `example`
    shows what is expected.

    Raises
    ------
    ValueError
        If there is no such file, or it is no archive, damaged, or holds Python objects.
    """
    found: dict[str, NDArray[Any] | None] = {}
    name = "the archive"
    with reading(path):
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"{path}: not an .npz archive, or truncated; expected one made by "
                f"numpy.savez({example})"
            )
        try:
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    found[name] = np.asarray(archive[name]) if name in names else None
        except DAMAGED as error:
            why = (
                "holds Python objects (a pickle), which are never loaded"
                if "bject" in str(error)
                else f"is damaged ({' '.join(str(error).split())})"
            )
            raise ValueError(f"{path}: {name} {why}, expected an array of numbers") from None
    return found


def _npz(path: Path, label: str | int | None) -> Table:
    choice = ("y", "b") if label is None else (str(label),)
    found = arrays(path, ("A", *choice), "file, A=A, y=y")
    labels = [name for name in choice if name in found]
    if "A" not in found or not labels:
        raise ValueError(
            f"{path} holds {', '.join(found) or 'no arrays'}, expected A (N, d) and "
            f"{' or '.join(choice)} (N,)"
        )
    if len(labels) > 1:
        raise ValueError(
            f"{path} holds both y and b, expected one of them (label=... or --set problem.label=... chooses)"
        )
    return found["A"], found[labels[0]], labels[0], ""


# -- .csv ------------------------------------------------------------------------------------------


def _csv(path: Path, label: str | int | None) -> Table:
    rows = _csv_rows(path)
    top, first = next(rows, ("", []))
    if not first:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if len(first) < 2:
        raise ValueError(f"{top}: one column, expected features and a label, separated by commas")
    header = [word.strip() for word in first] if _is_header(first) else []
    column, chosen = _label_column(header, len(first), label, top)
    lines = rows if header else chain([(top, first)], rows)
    table, classes = _csv_samples(lines, len(first), top.removeprefix(f"{path}, "), column, chosen)
    if not len(table):
        raise ValueError(f"{top}: a header but no samples, expected lines of numbers below it")
    y = np.array(classes) if classes else table[:, column].copy()
    hint = "" if chosen or classes else _other_label(table, header)
    name = header[column] if header else f"column {column}"
    return np.delete(table, column, axis=1), y, name, hint


def _csv_samples(
    lines: Iterable[tuple[str, list[str]]], width: int, top: str, column: int, chosen: bool
) -> tuple[Array, list[str]]:
    """Return the numbers of all lines, and the names of classes in the column of the label, or
    none.
    """
    samples: list[list[float]] = []
    classes: list[tuple[str, str]] = []
    places = [f"column {c + 1}" for c in range(width)]
    hints = [
        ""
        if chosen
        else f"; if it is the label, choose it with label={c} (--set problem.label={c})"
        for c in range(width)
    ]
    for line, words in lines:
        if len(words) != width:
            raise ValueError(f"{line}: {len(words)} values, expected {width} as in {top}")
        word = words[column].strip()
        if word and _float(word) is None:
            classes.append((line, word))
            words[column] = "0"
        samples.append(
            [_number(word, line, place, hint) for word, place, hint in zip(words, places, hints)]
        )
        hints = [""] * width
    if 0 < len(classes) < len(samples):  # one wrong word among numbers is an error, not a class
        line, word = classes[0]
        raise ValueError(
            f"{line}, {places[column]}: {word[:40]!r} is not a number, expected a finite number, "
            "or class names in all lines"
        )
    return np.array(samples), [word for _, word in classes]


def _other_label(table: Array, names: list[str]) -> str:
    """Return a hint if the last column has many values, and one other column (or the first) has
    few whole ones, as labels have.
    """

    def values(column: int) -> int:
        whole = (table[:, column] == np.floor(table[:, column])).all()
        count = len(np.unique(table[:, column]))
        return count if whole and 2 <= count <= min(20, len(table) // 3) else 0

    last = table.shape[1] - 1
    few = [column for column in range(last) if values(column)]
    if values(last) or not few or (len(few) > 1 and few[0] != 0):
        return ""
    name = f" ({names[few[0]]})" if names else ""
    return (
        f"the last column, taken as the label, has {len(np.unique(table[:, last]))} values in "
        f"{len(table)} lines, column "
        f"{few[0]}{name} has {values(few[0])}: if that is the label, choose it with label={few[0]} "
        f"(--set problem.label={few[0]})"
    )


def _label_column(
    header: list[str], width: int, label: str | int | None, line: str
) -> tuple[int, bool]:
    """Return the number of the label's column, and whether the user or its name has chosen it;
    it is the last one otherwise.
    """
    if "" in header:
        raise ValueError(
            f"{line}: column {header.index('') + 1} has no name (if it is a pandas index, write "
            "the file with index=False)"
        )
    if label is None:
        named = [i for i, name in enumerate(header) if name.lower() in LABELS]
        if len(named) > 1:
            raise ValueError(
                f"{line}: {len(named)} label columns ({', '.join(header[i] for i in named)}), "
                "expected one of "
                f"{', '.join(LABELS)} (label=... or --set problem.label=... chooses)"
            )
        return (named[0], True) if named else (width - 1, False)
    if str(label) in header:
        return header.index(str(label)), True
    if isinstance(label, int) and -width <= label < width:
        return label % width, True
    if header:
        some = f"expected one of {', '.join(header[:8])}{', ...' if header[8:] else ''}"
        expected = check.did_you_mean(str(label), header) or some
    else:
        expected = f"without a header, expected a number 0 .. {width - 1}"
    raise ValueError(f"{line}: no column {label!r} for the label: {expected}")


def _csv_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, words) of each line that is not blank and not a # comment; the place is the
    file and the line's number.
    """
    delimiter = ""
    for line, text in enumerate(_lines(path), start=1):
        if text.strip() and not text.lstrip().startswith("#"):
            delimiter = delimiter or max(
                ",;\t", key=text.count
            )  # spreadsheets write ; and tabs, too
            try:
                yield (
                    f"{path}, line {line}",
                    next(csv.reader([text], delimiter=delimiter, strict=True)),
                )
            except csv.Error as error:
                raise ValueError(
                    f"{path}, line {line}: malformed ({error}), expected numbers and commas"
                ) from None


def _is_header(words: list[str]) -> bool:
    named = any(word.strip().lower() in LABELS for word in words)
    return named or (any(map(str.strip, words)) and all(_float(word) is None for word in words))


# -- LIBSVM ----------------------------------------------------------------------------------------


def _libsvm(path: Path, label: str | int | None) -> Table:
    if label is not None:
        raise ValueError(
            f"{path}: label = {label!r}, but every line of a LIBSVM file begins with its label: "
            "omit label"
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
        y.append(_number(words[0], place, "label"))
        last = -1
        for word in words[1:]:
            number, colon, value = word.partition(":")
            if number == "qid":
                continue
            if not colon or not (number.isascii() and number.isdigit()):
                raise ValueError(f"{place}: {word[:40]!r}, expected index:value")
            if not last < int(number):
                raise ValueError(
                    f"{place}: index {number} after {last}, expected ascending indices from 1, or "
                    "from 0 in the whole "
                    "file"
                )
            last = int(number)
            where.append(len(y) - 1)
            index.append(last)
            values.append(_number(value, place, f"index {number}"))
    if not y:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if not index:
        raise ValueError(
            f"{path}: {len(y)} labels but no features, expected 'label index:value ...' (for "
            "values "
            "separated by commas, name the file .csv)"
        )
    first = min(min(index), 1)  # a file that uses the index 0 counts from 0
    width = max(index) + 1 - first
    if (size := 8 * len(y) * width) > MEMORY:
        raise ValueError(
            f"{path}: {len(y)} samples of {width} features need {size / 1e9:.3g} GB as a dense "
            "matrix, "
            "expected at most 8 GB (select features)"
        )
    A = np.zeros((len(y), width))
    A[where, np.array(index) - first] = values
    return A, np.array(y), "", ""


READERS = {".npz": _npz, ".csv": _csv, ".svm": _libsvm, ".libsvm": _libsvm, ".txt": _libsvm}
