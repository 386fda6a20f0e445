"""Data sets of images from files of their formats, splits, augmentation; the workers' batches."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from mpidec.datasets.images import _stratified, augment, images, split

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


def test_test_samples_are_those_of_scikit_learn():
    selection = pytest.importorskip("sklearn.model_selection")
    for seed in range(20):  # classes of different sizes, with remainders that are equal
        y = np.random.default_rng(seed).permutation(np.repeat(np.arange(5), 8 + seed % 4))
        y = np.concatenate([y, np.full(seed, 5)]) if seed > 7 else y
        theirs = selection.train_test_split(
            np.arange(len(y)), test_size=12 + seed, stratify=y, random_state=0
        )
        assert all(map(np.array_equal, _stratified(y, 12 + seed), theirs))


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
            "mnist is read from files, but `path=` is not given, expected the folder with the four IDX files",
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
