"""Files of data: good ones, and each way in which one is bad."""

import pathlib
import pickle
import zipfile

import numpy as np
import pytest

from mpidec.problems import (
    load,
)

pytestmark = pytest.mark.serial


A4, Y4 = np.arange(8.0).reshape(4, 2), np.array([0.0, 1, 1, 0])


GOOD = {
    "plain.csv": "0,1,0\n2,3,1\n4,5,1\n6,7,0\n",
    "header.csv": "u,v,w\n0,1,0\n2,3,1\n4,5,1\n6,7,0\n",
    "named.csv": "u,Label,v\n0,0,1\n2,1,3\n4,1,5\n6,0,7\n",
    "quoted.csv": '"u","target","v"\n"0","0","1"\n2,1,3\n4,1,5\n6,0,7\n',
    "semicolons.csv": "u;v;y\r\n0;1;0\r\n2;3;1\r\n\r\n4;5;1\r\n6;7;0\r\n",
    "tabs.csv": "0\t1\t0\n2\t3\t1\n4\t5\t1\n6\t7\t0",
    "numbered.csv": "0,1,label\n0,1,0\n2,3,1\n4,5,1\n6,7,0\n",
    "comment.csv": "# from numpy.savetxt\n0, 1, 0\n 2, 3e0, +1\n4,5,1\n6,7,0\n",
    "mark.csv": "\ufeffu,v,y\n0,1,0\n2,3,1\n4,5,1\n6,7,0\n",
    "words.csv": "u,v,y\n0,1,cat\n2,3,dog\n4,5,dog\n6,7,cat\n",
    "words_alone.csv": "0,1,cat\n2,3,dog\n4,5,dog\n6,7,cat\n",
    "from_0.svm": "0 1:1\n1 0:2 1:3\n1 0:4 1:5\n0 0:6 1:7\n",
    "mine.svm": "0 2:1\n1 1:2 2:3\n1 1:4 2:5 # a comment\n\n0 1:6 2:7\n",
    "mine.libsvm": "+0 2:1\n1 qid:3 1:2 2:3\n1 1:4 2:5\n0 1:6 2:7\n",
    "mine.txt": "0 2:1\r\n1 1:2 2:3\r\n1 1:4 2:5\r\n0 1:6 2:7",
}


@pytest.mark.parametrize("name", GOOD)
def test_good_text_files(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD[name].encode())
    data = load(tmp_path / name)
    assert np.array_equal(data.A, A4)
    assert np.array_equal(data.y, Y4)
    assert (data.kind, data.name) == ("classification", str(tmp_path / name))


@pytest.mark.parametrize(
    "label, dtype", [("y", float), ("y", np.int8), ("b", np.float32), ("y", bool)]
)
def test_good_archives(tmp_path, label, dtype):
    np.savez_compressed(
        tmp_path / "mine.npz", A=A4.astype(np.float32), **{label: Y4.astype(dtype)}, other=["a"]
    )
    data = load(str(tmp_path / "mine.npz"))
    assert np.array_equal(data.A, A4)
    assert (data.A.dtype, data.y.dtype) == (np.float32, np.float64)
    assert np.array_equal(data.y, Y4)
    assert data.kind == ("regression" if label == "b" else "classification")


BAD_TEXT = {
    "empty.csv": ("", r"empty.csv is empty"),
    "blank.csv": ("\n\n  \n", "no lines with data"),
    "only_header.csv": ("u,v,y\n", "line 1: a header but no samples"),
    "one_column.csv": ("1\n2\n", "line 1: one column, expected features and a label"),
    "ragged.csv": ("1,2,0\n1,2,0\n1,2\n", "line 3: 2 values, expected 3 as in line 1"),
    "long.csv": ("u,v,y\n1,2,0\n1,2,0,4\n", "line 3: 4 values, expected 3 as in line 1"),
    "word.csv": ("1,2,0\n1,x,0\n", "line 2, column 2: 'x' is not a number"),
    "word_first.csv": ("1,x,0\n1,2,0\n", "line 1, column 2: 'x' is not a number"),
    "string_label.csv": (
        "u,v,label\n1,2,0\n1,2,benign\n",
        "line 3, column 3: 'benign' is not a number.*class names in all lines",
    ),
    "hole.csv": ("1,2,0\n1,,0\n", "line 2, column 2: is empty"),
    "nan.csv": ("1,2,0\n\n1,nan,0\n", "line 3, column 2 is nan, expected a finite number"),
    "inf.csv": ("u,v,y\n1,2,-inf\n", "line 2, column 3 is -inf"),
    "huge.csv": ("1,2,0\n1,1e999,0\n", "line 2, column 2 is inf"),
    "underscore.csv": ("1,2,0\n1_0,2,0\n", "line 2, column 1: '1_0' is not a number"),
    "hex.csv": ("1,2,0\n0x10,2,0\n", "line 2, column 1: '0x10' is not a number"),
    "index.csv": (",u,y\n0,1,0\n", "line 1: column 1 has no name.*index=False"),
    "two_labels.csv": ("u,y,label\n1,0,0\n", r"line 1: 2 label columns \(y, label\), expected one"),
    "quote.csv": ('1,2,0\n"1,2,0\n', "line 2: malformed"),
    "nul.csv": ("1,2,0\n1,\0,0\n", "line 2"),
    "binary.csv": (b"\xff\xfe1\x00,\x00", "not a text file.*0xff is not UTF-8"),
    "latin.csv": (b"1,2,0\n1,\xe9,0\n", "not a text file.*0xe9 is not UTF-8"),
    "empty.svm": ("", "is empty"),
    "comments.svm": ("# nothing\n\n", "no lines with data"),
    "csv.txt": ("1,2,0\n", "line 1, label: '1,2,0' is not a number"),
    "labels.svm": ("1\n-1\n", "2 labels but no features"),
    "no_label.svm": ("1:2 2:3\n", "line 1: starts with '1:2', expected 'label index:value"),
    "no_colon.svm": ("1 1:2\n1 5\n", "line 2: '5', expected index:value"),
    "no_value.svm": ("1 1:\n", "line 1, index 1: is empty"),
    "zero.svm": (
        "1 0:2 0:3\n",
        "line 1: index 0 after 0, expected ascending indices from 1, or from 0",
    ),
    "negative.svm": ("1 -1:2\n", "line 1: '-1:2', expected index:value"),
    "twice.svm": ("1 1:2\n1 1:2 1:3\n", "line 2: index 1 after 1"),
    "descending.svm": ("1 2:2 1:3\n", "line 1: index 1 after 2"),
    "nan.svm": ("1 1:2\n-1 1:1 2:nan\n", "line 2, index 2 is nan"),
    "nan_label.svm": ("nan 1:2\n", "line 1, label is nan"),
    "word.svm": ("1 1:x\n", "line 1, index 1: 'x' is not a number"),
    "wide.svm": ("1 99999999999:1\n", "need 800 GB as a dense matrix, expected at most 8 GB"),
    "data.json": ("{}", r"unknown file extension '.json', expected one of .npz .csv"),
    "data": ("1,2\n", r"unknown file extension '\(none\)'"),
    "text.npz": ("hello", "not an .npz archive, or truncated"),
    "empty.npz": ("", "is empty"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text_files(tmp_path, name):
    text, message = BAD_TEXT[name]
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(path, message)


def refused(path, message):
    with pytest.raises(ValueError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def nan_at(array, place):
    array = array.copy()
    array[place] = np.nan
    return array


BAD_ARRAYS = {
    "names": ({"X": A4, "y": Y4}, r"holds X, y, expected A \(N, d\) and y or b"),
    "no_label": ({"A": A4}, r"holds A, expected A \(N, d\) and y or b"),
    "nothing": ({}, "holds no arrays, expected A"),
    "both": ({"A": A4, "y": Y4, "b": Y4}, "holds both y and b"),
    "flat": ({"A": Y4, "y": Y4}, r"A has shape \(4,\), expected \(N, d\)"),
    "column": ({"A": A4, "y": Y4[:, None]}, r"y has shape \(4, 1\), expected \(4,\)"),
    "short": (
        {"A": A4, "b": Y4[:3]},
        r"b has shape \(3,\), expected \(4,\): one target per row of A \(4, 2\)",
    ),
    "no_rows": (
        {"A": A4[:0], "y": Y4[:0]},
        r"A has shape \(0, 2\), expected .*at least one sample",
    ),
    "strings": ({"A": A4.astype(str), "y": Y4}, "A has dtype <U.*expected real numbers"),
    "nan": ({"A": nan_at(A4, (2, 1)), "y": Y4}, "A is nan at row 2, column 1"),
    "nan_label": ({"A": A4, "b": nan_at(Y4, 3)}, "b is nan at row 3"),
    "pickle": (
        {"A": A4, "y": np.array([print, 1, 2, 3], dtype=object)},
        "y holds Python objects .*never loaded",
    ),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_archives(tmp_path, name):
    arrays, message = BAD_ARRAYS[name]
    np.savez(tmp_path / "bad.npz", **arrays)
    refused(tmp_path / "bad.npz", message)


class Bomb:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("exploded"),)


def test_pickles_are_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bomb.npz").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path / "bomb.npz", "not an .npz archive")
    np.savez(tmp_path / "bomb.npz", A=np.array([Bomb()], dtype=object), y=Y4)
    refused(tmp_path / "bomb.npz", "never loaded")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("A", pickle.dumps(Bomb()))
        archive.writestr("y.npy", pickle.dumps(Bomb()))
    refused(tmp_path / "bomb.npz", "A has dtype .*expected real numbers")
    assert not (tmp_path / "exploded").exists()


def test_damaged_archives(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, A=np.random.default_rng(0).standard_normal((50, 3)), y=np.ones(50))
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    refused(path, "truncated")
    said = str(path)
    for place in range(
        40, len(good), 97
    ):  # a flipped byte is refused, or harmless, never a traceback
        path.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        try:
            load(path)
        except ValueError as error:
            said = str(error)
        assert str(path) in said


@pytest.mark.parametrize("shape", ["(10**15, 3)", "(10**20, 3)", "(True, 3)", "(6, 3"])
def test_damaged_headers(tmp_path, shape):
    size = shape.replace("10**15", f"{10**15}").replace("10**20", f"{10**20}")
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {size}, }}\n".encode()
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        text = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        archive.writestr("A.npy", text + bytes(144))
    refused(tmp_path / "bad.npz", "A is damaged")


def test_paths(tmp_path):
    refused(tmp_path / "missing.csv", "no such file")
    refused(tmp_path / "none" / "missing.csv", "no such file")
    (tmp_path / "heart.csv").write_text("1,2\n")
    refused(tmp_path / "haert.csv", r"no such file \(did you mean heart.csv\?\)")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", "is a directory, expected a file")
    with pytest.raises(
        ValueError,
        match=r"unknown data set 'brest_cancer': did you mean breast_cancer?.*or the path of a file",
    ):
        load("brest_cancer")
    with pytest.raises(
        ValueError, match="data set breast_cancer takes no parameters, but n was given"
    ):
        load("breast_cancer", n=3)
    with pytest.raises(
        ValueError,
        match=r"unknown parameter of data set synthetic_least_squares 'sed': did you mean seed?",
    ):
        load("synthetic_least_squares", sed=3)
    with pytest.raises(ValueError, match=r"heart.csv takes no parameters, but n was given"):
        load(tmp_path / "heart.csv", n=3)
    with pytest.raises(TypeError, match=r"data = 3 is a int, expected a name or a path"):
        load(3)


@pytest.mark.parametrize("label, column", [("kind", 1), (1, 1), (-2, 1), ("u", 0), (None, 2)])
def test_the_column_of_the_label_is_chosen(tmp_path, label, column):
    (tmp_path / "mine.csv").write_text("u,kind,v\n1,7,3\n2,8,4\n")
    data = load(tmp_path / "mine.csv", label=label)
    table = np.array([[1.0, 7, 3], [2, 8, 4]])
    assert np.array_equal(data.y, table[:, column])
    assert (
        np.array_equal(data.A, np.delete(table, column, axis=1))
        and data.label == ("u", "kind", "v")[column]
    )


def test_a_wrong_label_is_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("u,kind,v\n1,7,3\n2,8,4\n")
    (tmp_path / "bare.csv").write_text("1,7,3\n2,8,4\n")
    (tmp_path / "mine.svm").write_text("1 1:2\n")
    np.savez(tmp_path / "mine.npz", A=A4, target=["a", "b", "b", "a"])
    assert load(tmp_path / "mine.npz", label="target").classes == ("a", "b")
    for name, label, message in (
        ("mine.csv", "knid", "no column 'knid' for the label: did you mean kind"),
        ("bare.csv", 3, r"no column 3 .*expected a number 0 .. 2"),
        ("mine.svm", 0, "omit label"),
        ("mine.npz", "tarte", r"holds A, target, expected A .* and tarte"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name, label=label)
