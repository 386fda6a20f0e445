"""User data files: .npz, tables of text and LIBSVM, read completely and checked, never
unpickled.
"""

from __future__ import annotations

import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .libsvm import libsvm
from .tables import table, words_of
from .text import COMPRESSED, DAMAGED_TEXT, Samples, as_float, lines

INDEXED = re.compile(r"^\s*\S+(\s+qid:\d+)?\s+\d+\s*:")
"""The beginning of a line of a LIBSVM file with a feature."""


def read(path: Path, label: str | int | None = None, features: int | None = None) -> Samples:
    """Read a data file in the format given by its extension, or else by its content; `.gz`, `.bz2`
    and `.xz` are decompressed.

    Parameters
    ----------
    path : Path
    label : str or int, optional
        The label: the name or the number (from 0; negative ones count from the end) of a column of
        a table, or the name of an array of an .npz file.
    features : int, optional
        Number of features of a LIBSVM file, by default its largest index.

    Returns
    -------
    Samples

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
    ...     data = read(path, label="kind")
    >>> data.A.tolist(), data.y.tolist(), data.label
    ([[1.0, 3.0], [2.0, 4.0]], ['ill', 'well'], 'kind')
    """
    with reading(path):
        reader = READERS.get(_suffix(path)) or _by_content(path)
        if features is not None and reader is not libsvm:
            raise ValueError(
                f"{path}: features = {features}, but only LIBSVM files leave out features: omit it"
            )
        return libsvm(path, label, features) if reader is libsvm else reader(path, label)


def _suffix(path: Path) -> str:
    """Return the extension before that of the compression."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in COMPRESSED else suffix


def _by_content(path: Path) -> Callable[[Path, str | int | None], Samples]:
    """Return the reader of a file whose extension says nothing."""
    if zipfile.is_zipfile(path):
        return _npz
    try:
        first = list(islice((line for line in lines(path) if line.strip("\r\n\t #")), 20))
    except ValueError:
        first = []  # no text
    if any(map(INDEXED.match, first)):
        return libsvm
    if first and any(as_float(word) is not None for word in words_of(first[-1])[1:]):
        return table
    raise ValueError(
        f"{path}: its extension {_suffix(path) or '(none)'!r} does not say what it is, and its "
        "lines are neither values in columns nor label index:value ..., expected one of "
        f"{' '.join(READERS)} (and .gz, .bz2, .xz of these): save arrays by "
        "numpy.savez(file, A=A, y=y)"
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuse a path that is not a file, or an empty file; system errors within the context become a
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
    except DAMAGED_TEXT as error:
        raise ValueError(f"{path}: is damaged ({' '.join(str(error).split())})") from None


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


def _npz(path: Path, label: str | int | None) -> Samples:
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
            f"{path} holds both y and b, expected one of them (label=... or --set "
            "problem.label=... chooses)"
        )
    return Samples(found["A"], found[labels[0]], labels[0])


READERS: dict[str, Callable[[Path, str | int | None], Samples]] = {
    ".npz": _npz,
    ".csv": table,
    ".tsv": table,
    ".svm": libsvm,
    ".libsvm": libsvm,
}
"""By extension; the content decides about all others."""
