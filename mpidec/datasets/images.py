"""Labelled images for training: digits, MNIST, Fashion-MNIST, CIFAR-10 and own arrays; their
split over workers; augmentation.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._validation import Array
from .built_in import from_sklearn
from .labelled import CLASSES, Images as Images, Reading as Reading, is_labelled, labelled
from .partition import Index, partition

Pixels = NDArray[np.float32]
Labels = NDArray[np.int64]
Bytes = NDArray[np.uint8]
IDX = (
    ("train-images-idx3-ubyte", 3),
    ("train-labels-idx1-ubyte", 1),
    ("t10k-images-idx3-ubyte", 3),
    ("t10k-labels-idx1-ubyte", 1),
)
# Bytes of an image, after the byte of its label.
CIFAR10 = 3 * 32 * 32
# Mean and standard deviation of each channel over the training images, on the scale [0, 1].
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.3053,), (0.3760,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}


def images(
    name: str,
    path: str | os.PathLike[str] | None = None,
    seed: int = 0,
    how: Reading = CLASSES,
) -> Images:
    """Return a data set of images by its name.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion_mnist", "cifar10"}, a file, a folder or ``FILE.py:NAME``
        ``digits`` comes with scikit-learn (1437 training and 360 test images of 8 x 8 pixels, all
        classes in the same proportions). The others are read from files; for data of your own see
        `mpidec.datasets.labelled.labelled`.
    path : path, optional
        Folder of the files. ``mnist`` and ``fashion_mnist``: the four IDX files
        ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
        ``t10k-labels-idx1-ubyte``, plain or ``.gz``. ``cifar10``: the binary version,
        ``data_batch_1.bin`` to ``data_batch_5.bin`` (those that are there) and ``test_batch.bin``.
    seed : int
        Of the draw of the test samples of own data without any.
    how : Reading
        Of data of the user's own, and the kind of targets.

    Raises
    ------
    ValueError
        If the name is unknown, or a file is missing, too short or malformed; the message names the
        file.

    Notes
    -----
    Nothing is downloaded or communicated: the calling process reads the whole data set.

    Examples
    --------
    >>> data = images("digits")
    >>> data.train_x.shape, data.train_x.dtype, data.test_y.shape
    ((1437, 1, 8, 8), dtype('float32'), (360,))
    """
    if is_labelled(name):
        if path is not None:
            raise ValueError(
                f"data set {os.path.basename(name)} is a file itself, but path = "
                f"{os.fspath(path)!r} was given (leave "
                "it out)"
            )
        data = labelled(name, seed, how)
        if data.labels and data.outputs < 2:
            raise ValueError(
                f"{os.path.basename(name)}: all labels are 0, expected at least 2 classes"
            )
        return data
    name = check.component(name, READERS, "data set of images")
    how.check(name)
    read = READERS[name]
    train_x, train_y, test_x, test_y = read(name, path)
    kind = np.float32 if how.targets == "real" else np.int64
    return Images(
        _normalised(train_x, name),
        train_y.astype(kind),
        _normalised(test_x, name),
        test_y.astype(kind),
        name,
    )


def image_sets() -> dict[str, str]:
    """Return a line about each data set of images, by name.

    Examples
    --------
    >>> list(image_sets())
    ['digits', 'mnist', 'fashion_mnist', 'cifar10']
    """
    return {
        "digits": "handwritten digits of scikit-learn, 8 x 8 pixels, built in",
        "mnist": "handwritten digits, 28 x 28 pixels, from IDX files",
        "fashion_mnist": "articles of clothing, 28 x 28 pixels, from IDX files",
        "cifar10": "photographs of 10 classes, 32 x 32 pixels in colour, from the binary version",
    }


def split(images: Images, n: int, alpha: float | None = None, seed: int = 0) -> list[Index]:
    r"""Return the training samples of each of n workers: numbers of rows of `train_x`.

    Parameters
    ----------
    images : Images
    n : int
        Number of workers.
    alpha : float, optional
        Concentration :math:`\alpha` of RelaySGD's Dirichlet split: the smaller, the fewer classes
        has a worker. By default the samples are shuffled.
    seed : int
        Seed; RelaySGD's own splits have theirs plus 100.

    Examples
    --------
    >>> parts = split(images("digits"), 16, alpha=0.01)
    >>> len(parts), sum(map(len, parts))
    (16, 1437)
    """
    if alpha is None:
        return partition(np.arange(len(images.train_y)), n, "iid", seed=seed)
    if not images.labels:
        raise ValueError(
            f"alpha={alpha:g} gives workers different classes, and the targets are not classes: "
            "use alpha=iid"
        )
    return partition(images.train_y, n, "dirichlet", alpha=alpha, seed=seed)


def augment(x: Pixels, random: np.random.Generator, *, pad: int = 4, flip: bool = True) -> Pixels:
    """Return a batch of images, each cropped at random from itself with a border of zeros, and
    mirrored with probability 1/2.

    Parameters
    ----------
    x : (B, channels, height, width) array
    random : numpy.random.Generator
    pad : int
        Width of the border.
    flip : bool
        Whether images are mirrored left to right.

    Examples
    --------
    >>> augment(np.ones((2, 3, 8, 8), np.float32), np.random.default_rng(0), pad=1).shape
    (2, 3, 8, 8)
    """
    B, channels, height, width = x.shape
    down, right = random.integers(0, 2 * pad + 1, (2, B, 1))
    mirrored = random.random(B) < 0.5 if flip else np.zeros(B, dtype=bool)
    rows, columns = down + np.arange(height), right + np.arange(width)
    columns[mirrored] = columns[mirrored, ::-1]
    bordered = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    result: Pixels = bordered[
        np.arange(B)[:, None, None, None],
        np.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return result


# --------------------------------------------------------------------------------------------------
# Files


def _normalised(x: NDArray[Any], name: str) -> Pixels:
    mean, deviation = (
        np.array(values, dtype=np.float32)[:, None, None] for values in CONSTANTS[name]
    )
    scale = np.float32(16 if name == "digits" else 255)
    result: Pixels = (x.astype(np.float32) / scale - mean) / deviation
    return result


def _digits(name: str, path: str | os.PathLike[str] | None) -> tuple[NDArray[Any], ...]:
    if path is not None:
        raise ValueError(
            f"data set {name} comes with scikit-learn and is not read from files, but path = "
            f"{os.fspath(path)!r} was "
            "given (leave it out)"
        )
    x, y = from_sklearn("digits")
    train, test = _stratified(y, 360)
    x = x.reshape(-1, 1, 8, 8)
    return x[train], y[train], x[test], y[test]


def _stratified(y: Array, held_out: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers of the training and of the test samples of
    ``train_test_split(..., test_size=held_out, stratify=y, random_state=0)`` of scikit-learn.

    A class gets a number of training samples in proportion to its size. What rounding down leaves
    over goes to the classes with the largest remainders, drawn where several have the same.
    """
    draw = np.random.RandomState(0)
    classes, sizes = np.unique(y, return_counts=True)

    def shares(available: NDArray[np.intp], total: int) -> NDArray[np.intp]:
        exact = available / available.sum() * total
        numbers: NDArray[np.intp] = np.floor(exact).astype(np.intp)
        remainders = exact - numbers
        for largest in np.unique(remainders)[::-1]:
            missing = total - numbers.sum()
            if missing:  # a draw of no class would move all later draws
                equal = np.flatnonzero(remainders == largest)
                numbers[draw.choice(equal, min(len(equal), missing), replace=False)] += 1
        return numbers

    training = shares(sizes, len(y) - held_out)
    test = shares(sizes - training, held_out)
    drawn = [draw.permutation(np.flatnonzero(y == each)) for each in classes]
    return (
        draw.permutation(np.concatenate([d[:n] for d, n in zip(drawn, training)])),
        draw.permutation(np.concatenate([d[n : n + m] for d, n, m in zip(drawn, training, test)])),
    )


def _mnist(name: str, path: str | os.PathLike[str] | None) -> tuple[NDArray[Any], ...]:
    folder = _folder(name, path, "the four IDX files train-images-idx3-ubyte(.gz), ...")
    files = [_one_of(name, folder, (f"{stem}.gz", stem)) for stem, _ in IDX]
    train_x, train_y, test_x, test_y = (
        _idx(name, file, dimensions) for file, (_, dimensions) in zip(files, IDX)
    )
    for x, y, file in ((train_x, train_y, files[1]), (test_x, test_y, files[3])):
        if len(x) != len(y):
            raise ValueError(
                f"{file}: {len(y)} labels, expected {len(x)}, one for each image ({_again(name)})"
            )
        _classes(name, file, y)
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ValueError(
            f"{files[2]}: images of {test_x.shape[1]} x {test_x.shape[2]} pixels, expected "
            f"{train_x.shape[1]} x {train_x.shape[2]} as in {files[0].name} ({_again(name)})"
        )
    return train_x[:, None], train_y, test_x[:, None], test_y


def _cifar10(name: str, path: str | os.PathLike[str] | None) -> tuple[NDArray[Any], ...]:
    folder = _folder(name, path, "the binary version: data_batch_1.bin, ..., test_batch.bin")
    test = _one_of(name, folder, ("test_batch.bin",))
    batches = sorted(folder.glob("data_batch_*.bin")) or [
        _one_of(name, folder, ("data_batch_1.bin",))
    ]
    parts = []
    for file in (*batches, test):
        content = _content(name, file)
        if not len(content) or len(content) % (CIFAR10 + 1):
            raise ValueError(
                f"{file}: {len(content)} bytes, expected a positive multiple of {CIFAR10 + 1}, the "
                "bytes of a label "
                f"and an image ({_again(name)})"
            )
        records = content.reshape(-1, CIFAR10 + 1)
        _classes(name, file, records[:, 0])
        parts.append(records)
    train = np.concatenate(parts[:-1])
    return (
        train[:, 1:].reshape(-1, 3, 32, 32),
        train[:, 0],
        parts[-1][:, 1:].reshape(-1, 3, 32, 32),
        parts[-1][:, 0],
    )


READERS: dict[str, Callable[[str, str | os.PathLike[str] | None], tuple[NDArray[Any], ...]]] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion_mnist": _mnist,
    "cifar10": _cifar10,
}
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def _again(name: str) -> str:
    return f"get the files of {TITLES[name]} again"


def _folder(name: str, path: str | os.PathLike[str] | None, what: str) -> Path:
    if path is None:
        raise ValueError(
            f"data set {name} is read from files, but `path=` is not given, expected the folder with "
            f"{what}"
        )
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is {'no folder' if folder.exists() else 'missing'}, expected the folder "
            f"with {what} of "
            f"{TITLES[name]}"
        )
    return folder


def _one_of(name: str, folder: Path, names: tuple[str, ...]) -> Path:
    for file in names:
        if (folder / file).is_file():
            return folder / file
    raise ValueError(
        f"{folder} has no file {names[-1]}{' (nor .gz)' if len(names) > 1 else ''}, expected the "
        f"files of {TITLES[name]}"
    )


def _content(name: str, file: Path) -> Bytes:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} cannot be read: {error} ({_again(name)})") from None
    return np.frombuffer(content, dtype=np.uint8)


def _idx(name: str, file: Path, dimensions: int) -> Bytes:
    """Return the array of an IDX file: the bytes 0, 0, 8 (unsigned bytes), the number of
    dimensions, their big-endian sizes.
    """
    content = _content(name, file)
    head = 4 + 4 * dimensions
    if len(content) < head or tuple(content[:4]) != (0, 0, 8, dimensions):
        raise ValueError(
            f"{file} begins with the bytes {content[:4].tolist()}, expected "
            f"{[0, 0, 8, dimensions]}: an IDX file of "
            f"unsigned bytes with {dimensions} dimension{'s' * (dimensions > 1)} ({_again(name)})"
        )
    shape = tuple(int(size) for size in content[4:head].view(">u4"))
    if len(content) - head != int(np.prod(shape, dtype=object)) or 0 in shape:
        raise ValueError(
            f"{file}: {len(content) - head} bytes of data, expected {' x '.join(map(str, shape))} "
            f"({_again(name)})"
        )
    return content[head:].reshape(shape)


def _classes(name: str, file: Path, y: Bytes) -> None:
    if y.max() > 9:
        s = int((y > 9).argmax())
        raise ValueError(f"{file}: label {y[s]} of sample {s}, expected 0 .. 9 ({_again(name)})")
