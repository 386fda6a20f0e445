"""Tables of text: values separated by commas, semicolons, tabs or blanks, with or without names of
the columns.

Ambiguities of a table are resolved by the rules of this module; `Samples.notes` reports each case
in which another reading is possible.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._validation import Array
from .text import MISSING, Samples, as_float, lines, number

LABELS = ("label", "labels", "target", "targets", "class", "outcome", "y", "b")
"""Names of the column of the label; those of one letter only of the first or the last column,
since they are those of coordinates, too."""
LIKELY = re.compile(
    r"(label|target|class|outcome)_?\w+|y_?\d+|species|diagnosis|survived|quality|price|response"
)
"""Names of columns that are taken for the label by many, and not here."""
INDEX = ("id", "index", "idx", "nr", "no", "row", "unnamed: 0")
SENTINELS = (-99.0, -999.0, -999.25, -9999.0, -99999.0, -32768.0, 999.0, 9999.0, 99999.0)
FILL = 1e19
"""Values from here on stand for missing ones in many formats."""
_DOTTED = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")


class TextLine(NamedTuple):
    """A line of a table: the file and its number, and its words."""

    place: str
    words: list[str]
    quoted: bool
    delimiter: str


def table(path: Path, label: str | int | None = None) -> Samples:
    """Read a table; the label is the column `label`, or that with a usual name, or the last one.

    Raises
    ------
    ValueError
    """
    rows = _rows(path)
    first, second = _first(path, next(rows, None)), next(rows, None)
    width = len(first.words)
    named, header, why = _header(path, first, second, label)
    column, note = _label_column(header, width, label, first.place)
    notes = [why * (named or column != width - 1), note]  # without the names it is the last one
    data = _Table(first.place.removeprefix(f"{path}, "), width, column, label is not None)
    for line in chain([first] * (not named), filter(None, [second]), rows):
        data.add(line)
    A, classes = data.finished()
    # Whether a first line of numbers has names can only be decided from the columns below it.
    if not header and len(A) > 1:
        header, said = _names_among_numbers(first.words, np.delete(A, column, axis=1))
        notes.append(said)
        A, classes = (A[1:], classes[1:]) if header else (A, classes)
    if not len(A):
        raise ValueError(
            f"{first.place}: a header but no samples, expected lines of numbers below it"
        )
    y = np.array(classes) if classes else A[:, column].copy()
    name = header[column] if header else f"column {column}"
    known = label is not None or note or classes or name.lower() in LABELS
    hint = "" if known else _other_label(A, header)
    notes += _doubtful(A, header, column) + _doubtful_classes(classes) + data.notes
    return Samples(
        np.delete(A, column, axis=1),
        y,
        name,
        tuple(filter(None, notes)),
        hint,
        names=tuple(header[:column] + header[column + 1 :]),
    )


def _first(path: Path, line: TextLine | None) -> TextLine:
    """Return the first line of a table, which has at least two columns."""
    if line is None or not line.words:
        raise ValueError(f"{path}: no lines with data, expected samples")
    if len(line.words) < 2:
        raise ValueError(
            f"{line.place}: one column, expected features and a label, separated by commas"
        )
    return line


def words_of(text: str, delimiter: str = "") -> list[str]:
    """Return the words of a line; by default separated by what it has most of."""
    delimiter = delimiter or max(",;\t ", key=text.strip().count)
    if delimiter == " ":
        return text.split()
    return next(csv.reader([text], delimiter=delimiter, strict=True), [])


def _rows(path: Path) -> Iterator[TextLine]:
    """Yield each line that is not blank and not a # comment."""
    delimiter = ""
    for at, text in enumerate(lines(path), start=1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        # Spreadsheets write ; and tabs, numpy.savetxt blanks.
        if not delimiter:
            delimiter = next((sign for sign in ("\t", ";", ",") if sign in text), " ")
            delimiter = max(",;\t", key=text.count) if delimiter != " " else " "
        try:
            yield TextLine(f"{path}, line {at}", words_of(text, delimiter), '"' in text, delimiter)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {at}: malformed ({error}), expected numbers and commas"
            ) from None


# -- names of the columns --------------------------------------------------------------------------


def _header(
    path: Path, first: TextLine, second: TextLine | None, label: str | int | None
) -> tuple[bool, list[str], str]:
    """Return whether the first line has the names of the columns, these or those of a comment, if
    there are any, and a note.
    """
    named, why = _has_names(first, second, label)
    if named:
        return True, [word.strip() for word in first.words], why
    return False, *_names_in_comment(path, first)


def _has_names(
    first: TextLine, second: TextLine | None, label: str | int | None
) -> tuple[bool, str]:
    """Return whether the first line has the names of the columns, and a note if it has numbers,
    too.
    """
    words = [word.strip() for word in first.words]
    numeric = [as_float(word) is not None for word in words]
    shown = f"{', '.join(words[:4])}{', ...' * (len(words) > 4)}"
    said = f"line 1 ({shown}) is taken as the names of the columns"
    if not any(numeric):
        return any(words), ""
    if label is not None and str(label) in words and isinstance(label, str):
        return True, said
    if all(numeric) and second is not None:
        named = _has_texts(second) or (first.quoted and not second.quoted)
        return named, said * named
    named = any(word.lower() in LABELS for word in words)
    index = words[0] == "" and all(numeric[1:])  # that pandas writes without a name
    return named or index, said * named


def _has_texts(line: TextLine) -> bool:
    """Whether a line has words that are neither numbers nor stand for missing ones."""
    words = [word for word in line.words if as_float(word) is None]
    return any(word.strip().lower() not in MISSING for word in words)


def _names_among_numbers(first: Sequence[str], A: Array) -> tuple[list[str], str]:
    """Return the names of the columns, if the first line, of numbers, has them, and a note if it
    may be read in another way; A are the features, with it.

    Names are 0, 1, 2, ..., as pandas writes them for arrays, and numbers that increase, or
    decrease, and lie far from the values of each of their columns, by more than these differ:
    years, wavelengths.
    """
    words = [word.strip() for word in first]
    shown = f"line 1 ({', '.join(words[:4])}{', ...' * (len(words) > 4)})"
    top, rest = A[0], A[1:]
    low, high = rest.min(axis=0), rest.max(axis=0)
    outside = np.maximum(low - top, top - high) > high - low
    several = len(words) > 2 or not (rest == np.floor(rest)).all()
    counted = words == [str(i) for i in range(len(words))]
    numbers = [number for word in words if (number := as_float(word)) is not None]
    if (counted and several) or (_is_monotone(numbers) and outside.all() and len(rest) > 2):
        return words, f"{shown} is taken as the names of the columns, not as a sample"
    if counted or _may_be_names(numbers, len(words), rest, outside):
        return [], (
            f"{shown} is taken as a sample: if it has the names of the columns, or their number, "
            "put # before it, or names that are no numbers"
        )
    return [], ""


def _is_monotone(numbers: Sequence[float]) -> bool:
    steps = np.diff(numbers)
    return len(steps) > 0 and bool((steps > 0).all() or (steps < 0).all())


def _may_be_names(
    numbers: Sequence[float], width: int, rest: Array, outside: NDArray[np.bool_]
) -> bool:
    """Whether the numbers of a first line count the columns, state how many samples and columns
    (or features) follow, or increase and lie for the most part far from the values below.
    """
    if _is_monotone(numbers) and width > 2 and outside.mean() >= 0.5:
        return True
    if numbers in ([len(rest), width], [len(rest), width - 1]):
        return True
    counting = len(numbers) == width > 2 and bool((np.diff(numbers) == 1).all())
    return counting and not bool((rest == np.floor(rest)).all())


def _label_column(
    header: list[str], width: int, label: str | int | None, line: str
) -> tuple[int, str]:
    """Return the number of the label's column, and a note if another one may be meant."""
    if "" in header:
        raise ValueError(
            f"{line}: column {header.index('') + 1} has no name (if it is a pandas index, write "
            "the file with index=False)"
        )
    if label is not None:
        return _chosen(header, width, label, line), ""
    named, middle = _usual(header)
    if len(named) > 1:
        raise ValueError(
            f"{line}: {len(named)} label columns ({', '.join(header[i] for i in named)}), "
            "expected one of "
            f"{', '.join(LABELS)} (label=... or --set problem.label=... chooses)"
        )
    column = named[0] if named else width - 1
    others = middle or ([] if named else _likely(header))
    if not others:
        return column, ""
    names = [header[i] for i in others]
    return column, (
        f"the label is column {column} ({header[column]}), not {' or '.join(names)}: if that is "
        f"the label, choose it with label={names[0]!r} (--set problem.label={names[0]})"
    )


def _usual(header: Sequence[str]) -> tuple[list[int], list[int]]:
    """The columns with usual names of labels, and those that may be coordinates: a single letter
    such as y between other columns is no label without being chosen.
    """
    usual = [i for i, name in enumerate(header) if name.lower() in LABELS]
    middle = [i for i in usual if len(header[i]) == 1 and 0 < i < len(header) - 1]
    return [i for i in usual if i not in middle], middle


def _likely(header: Sequence[str]) -> list[int]:
    """The columns before the last one whose names are often those of labels."""
    return [i for i, name in enumerate(header[:-1]) if LIKELY.fullmatch(name.lower())]


def _chosen(header: list[str], width: int, label: str | int, line: str) -> int:
    """Return the number of the column that a name, or else a number, chooses."""
    count = header.count(str(label))
    by_number = isinstance(label, int) and -width <= label < width
    if count > 1 or (count and by_number and header.index(str(label)) != int(label) % width):
        meant = f"{count} columns" if count > 1 else "the name of one column, the number of another"
        raise ValueError(
            f"{line}: label {label!r} is {meant}, expected one column: give columns other names"
        )
    if count:
        return header.index(str(label))
    if by_number:
        return int(label) % width
    if header:
        some = f"expected one of {', '.join(header[:8])}{', ...' if header[8:] else ''}"
        expected = check.did_you_mean(str(label), header) or some
    else:
        expected = f"without a header, expected a number 0 .. {width - 1}"
    raise ValueError(f"{line}: no column {label!r} for the label: {expected}")


# -- values ----------------------------------------------------------------------------------------


class _Table:
    """The numbers of all lines, and the names of classes in the column of the label."""

    def __init__(self, top: str, width: int, column: int, chosen: bool) -> None:
        self._top, self._width, self._column = top, width, column
        self._places = [f"column {c + 1}" for c in range(width)]
        self._hints = [
            ""
            if chosen
            else f"; if it is the label, choose it with label={c} (--set problem.label={c})"
            for c in range(width)
        ]
        self._samples: list[list[float]] = []
        self._classes: list[tuple[str, str]] = []
        # Columns with three digits after each point, in files as they are written where a point
        # separates thousands.
        self._dotted = np.ones(width, bool)
        self._spreadsheet = False

    def add(self, line: TextLine) -> None:
        """Read a line."""
        words = line.words
        if len(words) != self._width:
            raise ValueError(
                f"{line.place}: {len(words)} values, expected {self._width} as in {self._top}"
            )
        word = words[self._column].strip()
        if word and as_float(word) is None and word.lower() not in ("na", "n/a", "?", "null"):
            self._classes.append((line.place, word))
            words = [*words[: self._column], "0", *words[self._column + 1 :]]
        self._samples.append(
            [
                number(word, line.place, place, hint)
                for word, place, hint in zip(words, self._places, self._hints)
            ]
        )
        for c in np.flatnonzero(self._dotted & (line.delimiter in ";\t")):
            self._dotted[c] = _DOTTED.fullmatch(words[c].strip()) is not None
        self._hints, self._spreadsheet = [""] * self._width, line.delimiter in ";\t"

    def finished(self) -> tuple[Array, list[str]]:
        """Return the numbers, and the classes or none."""
        # One wrong word is an error, no class.
        if 0 < len(self._classes) < len(self._samples):
            line, word = self._classes[0]
            raise ValueError(
                f"{line}, {self._places[self._column]}: {word[:40]!r} is not a number, expected a "
                "finite number, or class names in all lines"
            )
        return np.array(self._samples), [word for _, word in self._classes]

    @property
    def notes(self) -> list[str]:
        """Return a note if points may separate thousands."""
        columns = np.flatnonzero(self._dotted & self._spreadsheet)
        if not len(columns):
            return []
        return [
            f"column {columns[0] + 1}: each value has three digits after its point, which is taken "
            "as a decimal point, not as that of thousands"
        ]


def _are_numbers_of_lines(values: Array) -> bool:
    """Whether values are whole, and another one in each line."""
    return len(np.unique(values)) == len(values) > 2 and bool((values == np.floor(values)).all())


def _doubtful(A: Array, header: list[str], column: int) -> list[str]:
    """Notes of values that often stand for missing ones, and of a column that counts the lines."""
    notes = []
    for c, values in enumerate(A.T):
        name = f"column {c + 1}{f' ({header[c]})' if header else ''}"
        for value in np.unique(values[np.isin(values, SENTINELS) | (np.abs(values) >= FILL)]):
            count, others = int((values == value).sum()), values[values != value]
            gap = max(others.min() - value, value - others.max()) if len(others) else np.inf
            if gap > (np.ptp(others) / 4 if len(others) else 0):
                notes.append(
                    f"{name} has {check.plural(count, 'value')} {value:g}, taken as a number: if "
                    "it stands for a missing one, drop or impute these samples"
                )
        counts = len(A) > 4 and bool((np.diff(values) == 1).all())
        numbers = bool(header) and header[c].lower() in INDEX and _are_numbers_of_lines(values)
        if numbers or (counts and c != column):
            notes.append(
                f"{name} {'counts the lines' if counts else 'has another number in each line'}, "
                f"and is taken as {'the label' if c == column else 'a feature'}: if it numbers the "
                "samples, leave it out"
            )
    return notes


def _doubtful_classes(classes: Sequence[str]) -> list[str]:
    """Notes of classes that may be one, and of names that often stand for missing labels."""
    names: dict[str, str] = {}
    notes = []
    for name in dict.fromkeys(classes):
        same = names.setdefault(" ".join(name.casefold().split()), name)
        if same != name:
            notes.append(f"the labels {same!r} and {name!r} are taken as two classes")
        if name.lower() in MISSING:
            notes.append(f"the label {name!r} is taken as a class, not as a missing value")
    return notes


def _names_in_comment(path: Path, line: TextLine) -> tuple[list[str], str]:
    """The names of the columns, if the first line is a comment of as many words as `line` has
    values, as numpy.savetxt writes it, and a note.
    """
    comment = next(iter(lines(path)), "").strip()
    if not comment.startswith("#"):
        return [], ""
    text = comment.lstrip("# ")
    words = [word.strip() for word in words_of(text, line.delimiter)]
    if len(words) != len(line.words):  # separated in another way than the values
        others = words_of(text)
        usual = any(word.strip().lower() in LABELS for word in others)
        words = [word.strip() for word in others] if usual or line.delimiter == " " else []
    different = len({*words} - {""}) == len(words) == len(line.words)
    if not different or any(as_float(word) is not None for word in words):
        return [], ""
    shown = f"{', '.join(words[:4])}{', ...' * (len(words) > 4)}"
    return words, f"the comment in line 1 ({shown}) is taken as the names of the columns"


def _other_label(A: Array, names: list[str]) -> str:
    """Return a hint if the last column has many values, and one other column (or the first) has
    few whole ones, as labels have.
    """

    def values(column: int) -> int:
        whole = (A[:, column] == np.floor(A[:, column])).all()
        count = len(np.unique(A[:, column]))
        return count if whole and 2 <= count <= min(20, len(A) // 3) else 0

    last = A.shape[1] - 1
    few = [column for column in range(last) if values(column)]
    if values(last) or not few or (len(few) > 1 and few[0] != 0):
        return ""
    name = f" ({names[few[0]]})" if names else ""
    return (
        f"the last column, taken as the label, has {len(np.unique(A[:, last]))} values in "
        f"{len(A)} lines, column "
        f"{few[0]}{name} has {values(few[0])}: if that is the label, choose it with label={few[0]} "
        f"(--set problem.label={few[0]})"
    )
