"""Data sets of images from files of their formats, splits, augmentation; the workers' batches."""

from __future__ import annotations

import gzip
import struct
from functools import partial

import numpy as np
import pytest

from mpidec import plugins
from mpidec.datasets.images import augment, images, split
from mpidec.problems import Batches

pytestmark = pytest.mark.serial
IDX = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
rng = np.random.default_rng(0)


def idx(array) -> bytes:
    return (
        struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def mnist(tmp_path):
    """A folder with 6 training and 4 test images of 3 x 5 pixels, half of the files compressed."""
    arrays = [
        rng.integers(0, 256, (6, 3, 5)),
        np.arange(6),
        rng.integers(0, 256, (4, 3, 5)),
        np.array([9, 8, 7, 6]),
    ]
    for k, (name, array) in enumerate(zip(IDX, arrays)):
        if k % 2:
            (tmp_path / name).write_bytes(idx(array))
        else:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return tmp_path, arrays


@pytest.fixture
def cifar10(tmp_path):
    """A folder with two batches of 3 training images, and 2 test images."""
    arrays = [rng.integers(0, 256, (p, 3073), dtype=np.uint8) for p in (3, 3, 2)]
    for array in arrays:
        array[:, 0] = np.arange(len(array)) + 1
    for name, array in zip(("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"), arrays):
        (tmp_path / name).write_bytes(array.tobytes())
    return tmp_path, arrays


# ---------------------------------------------------------------------------------------------------------------------
# Data sets


def test_digits_are_built_in():
    pytest.importorskip("sklearn")
    data = images("digits")
    assert (data.train_x.shape, data.test_x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert data.train_x.dtype == np.float32 and data.train_y.dtype == data.test_y.dtype == np.int64
    assert abs(np.bincount(data.train_y) / 1437 - np.bincount(data.test_y) / 360).max() < 0.002
    assert abs(data.train_x.mean()) < 0.01 and abs(data.train_x.std() - 1) < 0.01
    assert np.array_equal(data.train_x, images("digits").train_x)


@pytest.mark.parametrize(
    "name, mean, deviation", [("mnist", 0.1307, 0.3081), ("fashion_mnist", 0.2860, 0.3530)]
)
def test_idx_files(mnist, name, mean, deviation):
    folder, (train_x, train_y, test_x, test_y) = mnist
    data = images(name, folder)
    assert data.shape == (1, 3, 5) and data.name == name and data.train_x.dtype == np.float32
    np.testing.assert_allclose(
        data.train_x[:, 0], (train_x / 255 - mean) / deviation, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        data.test_x[:, 0], (test_x / 255 - mean) / deviation, rtol=1e-4, atol=1e-6
    )
    assert data.train_y.tolist() == train_y.tolist() and data.test_y.tolist() == test_y.tolist()


def test_cifar10_binary_version(cifar10):
    folder, (_, two, _) = cifar10
    data = images("cifar10", str(folder))
    assert (
        data.train_x.shape == (6, 3, 32, 32)
        and data.train_y.tolist() == [1, 2, 3, 1, 2, 3]
        and data.test_y.tolist() == [1, 2]
    )
    green = (two[1, 1 + 1024 : 1 + 2048].reshape(32, 32) / 255 - 0.4822) / 0.1994
    np.testing.assert_allclose(data.train_x[4, 1], green, rtol=1e-4, atol=1e-6)
    assert data.test_x.shape == (2, 3, 32, 32)


BROKEN = [
    (
        0,
        lambda b: gzip.compress(b"hello"),
        "mnist",
        r"train-images-idx3-ubyte.gz begins with the bytes .* \[0, 0, 8, 3\]",
    ),
    (
        0,
        lambda b: b[:30],
        "mnist",
        "train-images-idx3-ubyte.gz cannot be read: .*get the files of MNIST again",
    ),
    (0, lambda b: b"plain", "mnist", "train-images-idx3-ubyte.gz cannot be read"),
    (1, lambda b: b[:-1], "mnist", "train-labels-idx1-ubyte: 5 bytes of data, expected 6"),
    (1, lambda b: b"", "mnist", "train-labels-idx1-ubyte begins with"),
    (1, lambda b: idx(np.arange(5)), "mnist", "5 labels, expected 6, one for each image"),
    (
        1,
        lambda b: idx(np.array([0, 1, 2, 77, 4, 5])),
        "mnist",
        "label 77 of sample 3, expected 0 .. 9",
    ),
    (
        2,
        lambda b: gzip.compress(idx(np.zeros((4, 5, 5)))),
        "fashion_mnist",
        "5 x 5 pixels, expected 3 x 5 .*of Fashion-MNIST",
    ),
    (
        3,
        None,
        "fashion_mnist",
        r"has no file t10k-labels-idx1-ubyte \(nor .gz\), expected the files of Fashion-MNIST",
    ),
]


@pytest.mark.parametrize("which, change, name, said", BROKEN)
def test_broken_idx_files_are_named(mnist, which, change, name, said):
    folder, _ = mnist
    file = next(path for path in folder.iterdir() if path.name.startswith(IDX[which]))
    content = file.read_bytes()
    file.unlink()
    if change is not None:
        file.write_bytes(change(content))
    with pytest.raises(ValueError, match=said) as caught:
        images(name, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "file, content, said",
    [
        (
            "data_batch_2.bin",
            b"\0" * 3072,
            "data_batch_2.bin: 3072 bytes, expected a positive multiple of 3073",
        ),
        ("test_batch.bin", b"", "test_batch.bin: 0 bytes"),
        ("test_batch.bin", b"\x0b" * 3073, "test_batch.bin: label 11 of sample 0"),
        ("test_batch.bin", None, "no file test_batch.bin, expected the files of CIFAR-10"),
        ("data_batch_*.bin", None, "no file data_batch_1.bin"),
    ],
)
def test_broken_cifar10_files_are_named(cifar10, file, content, said):
    folder, _ = cifar10
    for path in folder.glob(file):
        path.unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        images("cifar10", folder)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: images("minst"), "unknown data set of images 'minst': did you mean mnist"),
        (
            lambda: images("mnist"),
            "mnist is read from files, but no path is given, expected the folder with the four IDX files",
        ),
        (
            lambda: images("cifar10", "/does/not/exist"),
            "exist is missing, expected the folder with the binary version.* of CIFAR-10",
        ),
        (lambda: images("digits", "x"), "comes with scikit-learn and is not read from files"),
    ],
)
def test_wrong_use(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ---------------------------------------------------------------------------------------------------------------------
# Splits, augmentation, batches


def test_splits():
    pytest.importorskip("sklearn")
    data = images("digits")
    for alpha, most in ((None, 10), (100.0, 10), (0.01, 4)):
        parts = split(data, 16, alpha, seed=1)
        assert sorted(np.concatenate(parts)) == list(range(1437)) and {
            len(part) for part in parts
        } == {89, 90}
        classes = np.mean([len(np.unique(data.train_y[part])) for part in parts])
        assert classes <= most and (most < 10 or classes > 8)


def test_augmented_images_are_crops_of_the_images_or_of_their_mirror_images():
    x = rng.standard_normal((200, 2, 4, 5)).astype(np.float32)
    y, again = (augment(x, np.random.default_rng(1), pad=1) for _ in range(2))
    bordered, seen = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), set()
    for a, b in zip(bordered, y):
        crops = {
            (i, j, flip): a[:, i : i + 4, j : j + 5][:, :, :: 1 - 2 * flip]
            for i in range(3)
            for j in range(3)
            for flip in (0, 1)
        }
        seen |= {key for key, crop in crops.items() if np.array_equal(crop, b)}
    assert len(seen) == 18 and y.dtype == np.float32 and np.array_equal(y, again)
    assert np.array_equal(augment(x, np.random.default_rng(1), pad=0, flip=False), x)


def test_batches_take_every_sample_once_an_epoch():
    parts = [np.arange(7), np.arange(10, 16), np.arange(20, 28)]
    batches = Batches(parts, 3, seed=5)
    assert batches.per_epoch == 2 and batches.epoch == 0
    epochs = [np.concatenate([batches.draw() for _ in range(2)], axis=1) for _ in range(3)]
    for rows in epochs:
        for part, row in zip(parts, rows):
            assert len(set(row)) == 6 and set(row) <= set(part)
    assert (
        sorted(epochs[0][1]) == list(range(10, 16))
        and not np.array_equal(epochs[0], epochs[1])
        and batches.epoch == 3
    )


def test_batches_belong_to_seed_and_worker():
    """Whichever workers are local, in whatever order they draw, before and after a restart."""
    parts = [np.arange(7), np.arange(10, 16), np.arange(20, 28)]
    every, some, other = (
        Batches(parts, 3, seed=5),
        Batches(parts, 3, seed=5, agents=[1, 2]),
        Batches(parts, 3, seed=6),
    )
    drawn = [every.draw() for _ in range(7)]
    assert not np.array_equal(drawn[0], other.draw())
    assert [some.of(1).tolist() for _ in range(7)] == [rows[2].tolist() for rows in drawn]
    assert [some.of(0).tolist() for _ in range(7)] == [rows[1].tolist() for rows in drawn]
    resumed = Batches(parts, 3, seed=5)
    resumed.load([3, 3, 3])
    assert np.array_equal([resumed.draw() for _ in range(4)], drawn[3:])
    assert resumed.state().tolist() == [7, 7, 7]
    assert every.random(1).random() == some.random(0).random() != every.random(2).random()


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: Batches([np.arange(4), np.arange(2)], 3),
            "batch = 3, but worker 1 has 2 samples, expected at most 2",
        ),
        (
            lambda: Batches([np.arange(4)], 3, agents=[1]),
            r"agents = \[1\], expected numbers 0 \.\. 0",
        ),
        (lambda: Batches([np.arange(4)], 3).load([1, 2]), "expected 1 numbers of batches"),
    ],
)
def test_wrong_batches(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ---------------------------------------------------------------------------------------------------------------------
# Data of the user's own

MINE = """
import numpy as np
x, y = np.arange(60, dtype=float).reshape(20, 3), np.arange(20) % 2
def as_dict(): return {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4] + 0.0}
def as_tuple(): return x, list(y), x[:4], y[:4]
def in_two(): return x, y
def gray(): return (255 * np.ones((20, 4, 5))).astype(np.uint8), y
def colour(): return np.ones((20, 3, 4, 5)), y
def raises(): raise KeyError("column 7")
def nothing(): pass
def three(): return 1, 2, 3
def nan(): return np.where(x == 31, np.nan, x), y
def large(): return np.where(x == 31, 1e300, x), y
def words(): return x, ["cat", "dog"] * 10
def half(): return x, y / 2
def negative(): return x, y - 1
def identities(): return x, y + 4711
def short(): return x, y[:9]
def column(): return x, y[:, None]
def ragged(): return [[1], [1, 2]], y
def flat(): return x[:, 0], y
def zeros(): return x, 0 * y
def other(): return x, y, x[:, :2], y
def partial(): return {"x_train": x, "y_train": y, "x_test": x}
def empty(): return x[:0], y[:0]
number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The working folder, with functions in mine.py and arrays in files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    y = np.arange(20) % 2
    np.savez(
        "mine.npz",
        x_train=np.arange(60.0).reshape(20, 3),
        y_train=y,
        x_test=np.arange(12.0).reshape(4, 3),
        y_test=y[:4],
    )
    np.savez("other.npz", a=1)
    np.savez("objects.npz", x_train=np.array([None, 1], dtype=object), y_train=y[:2])
    (tmp_path / "text.npz").write_text("x, y")
    return tmp_path


def test_own_data(mine):
    first = images("mine.npz")
    assert (first.shape, first.classes, first.note) == (
        (3,),
        2,
        "",
    ) and first.train_x.dtype == np.float32
    for name in ("mine.py:as_dict", "mine.py:as_tuple"):
        again = images(name)
        for key in ("train_x", "train_y", "test_x", "test_y"):
            a, b = getattr(first, key), getattr(again, key)
            assert np.array_equal(a, b) and a.dtype == b.dtype
    parts = [images("mine.py:in_two", seed=seed) for seed in (0, 0, 1)]
    assert (
        parts[0].test_x.shape == (4, 3) and parts[0].note == "4 of 20 samples held out for testing"
    )
    assert np.array_equal(parts[0].test_x, parts[1].test_x) and not np.array_equal(
        parts[0].test_x, parts[2].test_x
    )
    both = np.concatenate([parts[2].train_x, parts[2].test_x])
    assert np.array_equal(both[np.argsort(both[:, 0])], first.train_x)
    assert np.array_equal(parts[2].train_y, parts[2].train_x[:, 0] // 3 % 2)
    assert images("mine.py:gray").shape == (1, 4, 5) and images("mine.py:colour").shape == (3, 4, 5)


def test_a_file_that_has_moved_is_found_in_the_working_folder(mine, monkeypatch):
    located = partial(plugins.located, suffixes=(".py", ".npz"))
    assert (
        located("mine.npz") == str(mine / "mine.npz")
        and located("mine.py:in_two") == f"{mine / 'mine.py'}:in_two"
    )
    assert (
        located("/nowhere/mine.npz") == str(mine / "mine.npz")
        and located("/nowhere/none.npz") == "/nowhere/none.npz"
    )
    monkeypatch.chdir("/")
    assert located("mine.npz", mine) == str(mine / "mine.npz")


@pytest.mark.parametrize(
    "name, said",
    [
        ("none.npz", r"none.npz: no such file \("),
        (
            "text.npz",
            r"text.npz: not an .npz archive, .*expected one made by numpy.savez\(file, x_train=",
        ),
        ("objects.npz", "objects.npz: x_train holds Python objects .*never loaded"),
        (
            "other.npz",
            "other.npz has no x_train, expected x_train, y_train, x_test, y_test .*, found a",
        ),
        ("none.py:x", "none.py: no such file"),
        ("mine.py:in_tow", "mine.py has no in_tow: did you mean in_two?"),
        (
            "mine.py:number",
            "mine.py:number cannot be used as a data set: it is of type int, expected a function",
        ),
        ("mine.py:raises", "mine.py:raises: line 9: KeyError: 'column 7'"),
        (
            "mine.py:nothing",
            "mine.py:nothing returns nothing, expected a dict or a tuple of x_train",
        ),
        ("mine.py:three", "mine.py:three returns a tuple of 3, expected"),
        (
            "mine.py:nan",
            "mine.py:nan: x_train has the entry nan in sample 10, expected finite numbers",
        ),
        (
            "mine.py:large",
            r"mine.py:large: x_train has the entry 1e\+300 in sample 10, expected finite numbers of float32",
        ),
        (
            "mine.py:words",
            r"mine.py:words: y_train is an array of <U3, expected numbers: number them by numpy.unique",
        ),
        (
            "mine.py:half",
            "mine.py:half: y_train has the label 0.5 for sample 1, expected the classes 0, 1, 2",
        ),
        (
            "mine.py:negative",
            "mine.py:negative: y_train has the label -1 for sample 0, expected the classes",
        ),
        ("mine.py:identities", "mine.py:identities: y_train has the label 4711 for sample 0"),
        (
            "mine.py:short",
            r"mine.py:short: y_train has the shape \(9,\), expected \(20,\): one label for each sample",
        ),
        ("mine.py:column", r"mine.py:column: y_train has the shape \(20, 1\), expected \(20,\)"),
        ("mine.py:ragged", "mine.py:ragged: x_train is no array of numbers"),
        ("mine.py:flat", r"mine.py:flat: x_train has the shape \(20,\), expected \(N, d\)"),
        ("mine.py:zeros", "mine.py:zeros: all labels are 0, expected at least 2 classes"),
        (
            "mine.py:other",
            r"mine.py:other: x_test has samples of the shape \(2,\), expected \(3,\)",
        ),
        (
            "mine.py:partial",
            "mine.py:partial has no y_test, expected x_train, y_train, x_test, y_test",
        ),
        ("mine.py:empty", r"mine.py:empty: x_train has the shape \(0, 3\)"),
    ],
)
def test_own_data_is_refused_in_one_line(mine, name, said):
    with pytest.raises(ValueError, match=said) as caught:
        images(name)
    assert "\n" not in str(caught.value)
