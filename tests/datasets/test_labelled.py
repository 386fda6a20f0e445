"""Data of one's own: files and functions, and how they are refused."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mpidec import plugins
from mpidec.datasets.images import images
from mpidec.datasets.labelled import Reading

pytestmark = pytest.mark.serial


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


@pytest.mark.parametrize("sizes, noted", [([1e-6, 3e5], True), ([1.0, 255.0, 0.0], False)])
def test_columns_of_very_different_size_are_named(tmp_path, monkeypatch, sizes, noted):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).uniform(0.5, 1.0, (20, len(sizes))) * sizes
    np.savez("mine.npz", x_train=x, y_train=np.arange(20) % 2)
    assert ("set data.standardize=true" in images("mine.npz").note) == noted
    standardized = images("mine.npz", how=Reading(standardize=True))
    assert "standardize" not in standardized.note


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
