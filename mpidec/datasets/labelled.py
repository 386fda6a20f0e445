"""Images, and user-defined samples for training: the arrays of a file, a folder of images, or the
arrays that a function FILE.py:NAME returns.
"""

from __future__ import annotations

import inspect
import math
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import plugins
from . import readers
from .built_in import class_numbers, load
from .folder import Size, folder

Targets: TypeAlias = Literal["classes", "real", "any"]
TABLES = (".csv", ".tsv")
FILES = (".npz", *TABLES)
# Ratio of the largest entries of two columns, from which on the smaller one has no say.
UNLIKE = 1e3


@dataclass(frozen=True)
class Reading:
    """How data of the user's own are read.

    Parameters
    ----------
    targets : {"classes", "real", "any"}
        Whether targets are classes 0, 1, ..., or real numbers, or as they are given.
    size : int or (int, int), optional
        Height and width of the images of a folder, which are scaled and cropped to it.
    label : str or int, optional
        Column of a table that has the targets; by default that called label, or the last one.
    standardize : bool
        Whether each entry of a sample gets mean 0 and variance 1 over the training samples.

    Examples
    --------
    >>> Reading(targets="real")
    Reading(targets='real', size=None, label=None, standardize=False)
    """

    targets: Targets = "classes"
    size: Size | None = None
    label: str | int | None = None
    standardize: bool = False

    def check(self, name: str) -> None:
        """Raise ValueError for an option that has no effect on this data set."""
        suited = {
            "size": (is_folder(name), "folders of images"),
            "label": (name.endswith(TABLES), "tables"),
            "standardize": (is_labelled(name) and not is_folder(name), "files and functions"),
        }
        for option, (fits, what) in suited.items():
            if vars(self)[option] and not fits:
                raise ValueError(
                    f"{option}={vars(self)[option]} is for {what}, which "
                    f"{os.path.basename(name)} is not: omit it"
                )


NAMES = ("x_train", "y_train", "x_test", "y_test")
SHAPES = "(N, d), (N, height, width) or (N, channels, height, width)"


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images of a data set with their labels.

    Parameters
    ----------
    train_x, test_x : (N, channels, height, width) arrays of float32
        Images, scaled to [0, 1] and normalised by the constants of the data set; own ones as they
        are, which can be vectors (N, d).
    train_y, test_y : (N,) arrays of int64, or (N, ...) arrays
        Classes 0, 1, ..., or other targets.
    name : str
    note : str
        How training and test samples were chosen, if they were not given separately.

    Examples
    --------
    >>> from mpidec.datasets.images import images
    >>> data = images("digits")
    >>> data.shape, data.classes
    ((1, 8, 8), 10)
    """

    train_x: NDArray[np.float32]
    train_y: NDArray[Any]
    test_x: NDArray[np.float32]
    test_y: NDArray[Any]
    name: str
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample: channels, height and width, or the length of a vector."""
        return self.train_x.shape[1:]

    @property
    def labels(self) -> bool:
        """Whether each target is one class."""
        y = (self.train_y, self.test_y)
        return all(each.ndim == 1 and each.dtype.kind == "i" and each.min() >= 0 for each in y)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.train_y.max(), self.test_y.max())) + 1

    @property
    def outputs(self) -> int:
        """Numbers that a model returns for a sample: one for each class, or for each entry of a
        target.
        """
        if self.train_y.dtype.kind == "i" and min(self.train_y.min(), self.test_y.min()) >= 0:
            return self.classes
        return math.prod(self.train_y.shape[1:])


def is_folder(name: str) -> bool:
    """Return whether `name` is the path of a folder of images: it has a separator, and no extension
    of a file.
    """
    return os.sep in name and not name.endswith(FILES) and not plugins.is_plugin(name)


def is_labelled(name: str) -> bool:
    """Return whether `name` is that of a data set of the user's own: a file, a folder, FILE.py:NAME
    or MODULE:NAME.

    Examples
    --------
    >>> is_labelled("mine.npz"), is_labelled("mine.py:samples"), is_labelled("digits")
    (True, True, False)
    """
    return name.endswith(FILES) or plugins.is_plugin(name) or is_folder(name)


CLASSES = Reading()


def labelled(name: str, seed: int = 0, how: Reading = CLASSES) -> Images:
    """Return a data set of the user's own by its name.

    Parameters
    ----------
    name : str
        ``FILE.npz`` with arrays `x_train`, `y_train`, `x_test`, `y_test`, or ``FILE.py:NAME``, a
        function without arguments that returns a dict or a tuple of these. x: numbers of the shape
        (N, d), (N, height, width) or (N, channels, height, width), which are taken as they are; y:
        the classes 0, 1, ..., of the shape (N,), or other targets (N, ...). Without `x_test` and
        `y_test`, a fifth of the samples is drawn for testing. ``FILE.csv`` and other tables: the
        last column, or that called ``label``, is y. A folder: see `mpidec.datasets.folder`.
    seed : int
        Of this draw.
    how : Reading

    Raises
    ------
    ValueError
        If the arrays cannot be read or are malformed.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "mine.npz")
    >>> np.savez(path, x_train=np.ones((10, 3)), y_train=np.arange(10) % 2)
    >>> data = labelled(path)
    >>> data.train_x.shape, data.test_y.shape, data.note
    ((8, 3), (2,), '2 of 10 samples held out for testing')
    """
    how.check(name)
    given: Mapping[Any, Any]
    if is_folder(name):
        given = folder(Path(name), how.size)
    elif name.endswith(".npz"):
        given = dict(readers.arrays(Path(name), NAMES, "file, x_train=..., y_train=..."))
    else:
        given = _table(name, how) if name.endswith(TABLES) else _returned(name)
    where = os.path.basename(name)
    missing = [
        key
        for key in (NAMES if {"x_test", "y_test"} & set(given) else NAMES[:2])
        if key not in given
    ]
    if missing:
        raise ValueError(
            f"{where} has no {missing[0]}, expected {', '.join(NAMES)} (without x_test and y_test "
            "a fifth of the "
            f"samples is held out), found {', '.join(map(str, given)) or 'nothing'}"
        )
    train_x = _samples(where, "x_train", given["x_train"])
    N = len(train_x)
    train_y = _targets(
        where, "y_train", given["y_train"], "x_train", N, most=N, targets=how.targets
    )
    if "x_test" not in given:
        return _scaled(_held_out(name, train_x, train_y, seed), how)
    test_x = _samples(where, "x_test", given["x_test"])
    if test_x.shape[1:] != train_x.shape[1:]:
        raise ValueError(
            f"{where}: x_test has samples of the shape {test_x.shape[1:]}, expected "
            f"{train_x.shape[1:]} as in x_train"
        )
    test_y = _targets(
        where, "y_test", given["y_test"], "x_test", len(test_x), most=N, targets=how.targets
    )
    if test_y.shape[1:] != train_y.shape[1:]:
        raise ValueError(
            f"{where}: y_test has targets of the shape {test_y.shape[1:]}, expected "
            f"{train_y.shape[1:]} as in y_train"
        )
    return _scaled(Images(train_x, train_y, test_x, test_y, name), how)


def _scaled(images: Images, how: Reading) -> Images:
    """Return samples with mean 0 and variance 1 of each channel of a folder, or of each entry."""
    if not (how.standardize or is_folder(images.name)):
        notes = filter(None, (images.note, _unlike(images.train_x)))
        return replace(images, note=", ".join(notes)) if is_labelled(images.name) else images
    axes = (0, 2, 3) if is_folder(images.name) else 0
    scaling = (
        images.train_x.mean(axes, np.float64, keepdims=True),
        images.train_x.std(axes, np.float64, keepdims=True),
    )
    mean, deviation = (each.astype(np.float32) for each in scaling)
    deviation[deviation == 0] = 1
    train_x, test_x = ((x - mean) / deviation for x in (images.train_x, images.test_x))
    return replace(images, train_x=train_x, test_x=test_x)


def _unlike(x: NDArray[np.float32]) -> str:
    """Return a note on columns (N, d) that differ much in size, more than pixels do, or ""."""
    if x.ndim != 2:
        return ""
    largest = np.abs(x).max(axis=0)
    used = largest[largest > 0]
    if not len(used) or not (ratio := float(used.max()) / float(used.min())) > UNLIKE:
        return ""
    return f"columns differ in size by a factor of {ratio:.2g}: set data.standardize=true"


def raised(error: BaseException, thing: object) -> str:
    """Return what the call of `thing`, a user's function or class, has raised, as one line with the
    place.

    Examples
    --------
    >>> raised(KeyError("x"), dict)
    "KeyError: 'x'"
    """
    module = inspect.getmodule(thing)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if module is not None and frame.filename == module.__file__
    ]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def _callable(thing: object) -> str | None:
    return (
        None
        if callable(thing)
        else f"of type {type(thing).__name__}, expected a function that returns {', '.join(NAMES)}"
    )


TABLE: plugins.Components[Callable[[], Any]] = plugins.Components(
    "data set", "mpidec.images", {}, _callable
)


def _returned(name: str) -> Mapping[Any, Any]:
    """Return the arrays that a user's function returns, by name."""
    make = TABLE.find(name)
    try:
        given = make()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{plugins.short(name)}: {raised(error, make)}") from error
    if isinstance(given, Mapping):
        return given
    if isinstance(given, (tuple, list)) and len(given) in (2, 4):
        return dict(zip(NAMES, given))
    raise ValueError(
        f"{plugins.short(name)} returns {_kind(given)}, expected a dict or a tuple of "
        f"{', '.join(NAMES)}"
    )


def _kind(given: object) -> str:
    kind = type(given).__name__
    return (
        f"a {kind} of {len(given)}"
        if isinstance(given, (tuple, list))
        else "nothing"
        if given is None
        else f"a {kind}"
    )


def _samples(where: str, key: str, value: ArrayLike) -> NDArray[np.float32]:
    x = _array(where, key, value)
    if x.ndim not in (2, 3, 4) or not x.size:
        raise ValueError(f"{where}: {key} has the shape {x.shape}, expected {SHAPES}")
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(x, dtype=np.float32)
    finite = np.isfinite(result).reshape(len(x), -1)
    if not finite.all():
        s = int((~finite.all(axis=1)).argmax())
        bad = x[s].ravel()[int((~finite[s]).argmax())]
        raise ValueError(
            f"{where}: {key} has the entry {bad} in sample {s}, expected finite numbers of "
            "float32: replace it, or "
            "leave the sample out"
        )
    return result[:, None] if x.ndim == 3 else result


def _targets(
    where: str, key: str, value: ArrayLike, of: str, count: int, most: int, targets: Targets
) -> NDArray[Any]:
    """Return targets: integers as int64, others as float32; bools as they are if any will do."""
    y = _array(where, key, value, ": number them by numpy.unique(y, return_inverse=True)[1]")
    of_one_class = targets == "classes" and y.ndim == 2 and y.dtype.kind != "f"
    if y.shape[:1] != (count,) or 0 in y.shape or of_one_class:
        raise ValueError(
            f"{where}: {key} has the shape {y.shape}, expected ({count},): one label for each "
            f"sample of {of}"
        )
    if targets == "classes" and y.ndim == 1:
        good = (y >= 0) & (y < most) & (y == np.floor(y))
        if not good.all():
            s = int((~good).argmax())
            raise ValueError(
                f"{where}: {key} has the label {y[s]} for sample {s}, expected the classes 0, 1, "
                "2, ... (fewer than there are samples); real targets need another criterion, such "
                "as criterion=mse_loss"
            )
        return y.astype(np.int64)
    if not np.isfinite(y).all():
        s = int((~np.isfinite(y).reshape(count, -1).all(axis=1)).argmax())
        raise ValueError(f"{where}: {key} is not finite for sample {s}: leave the sample out")
    if y.dtype.kind == "b" and targets == "any":
        return y
    return y.astype(np.float32 if targets == "real" or y.dtype.kind == "f" else np.int64)


def _table(name: str, how: Reading) -> dict[str, NDArray[Any]]:
    """Return the samples of a table, and its classes or real targets."""
    data = load(name, label=how.label)
    classes = how.targets != "real" and data.kind == "classification"
    return {"x_train": data.A, "y_train": class_numbers(data.y) if classes else data.y}


def _array(where: str, key: str, value: ArrayLike, remedy: str = "") -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{where}: {key} is no array of numbers: {' '.join(str(error).split())}"
        ) from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{where}: {key} is an array of {array.dtype}, expected numbers{remedy}")
    return array


def _held_out(name: str, x: NDArray[np.float32], y: NDArray[Any], seed: int) -> Images:
    if len(x) < 2:
        raise ValueError(
            f"{os.path.basename(name)}: 1 sample, expected at least 2: one for training and one "
            "for testing"
        )
    order = np.random.default_rng(seed).permutation(len(x))
    count = max(1, len(x) // 5)
    test, train = np.sort(order[:count]), np.sort(order[count:])
    note = f"{count} of {len(x)} samples held out for testing"
    return Images(x[train], y[train], x[test], y[test], name, note)
