"""Files of data: good ones, and each way in which one is bad."""

import bz2
import gzip
import lzma
import pathlib
import pickle
import re
import tempfile
import warnings
import zipfile

import h5py
import numpy as np
import pytest

import mpidec
from mpidec.problems import load, load_problem

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
    "two_labels.csv": ("y,u,label\n1,0,0\n", r"line 1: 2 label columns \(y, label\), expected one"),
    "quote.csv": ('1,2,0\n"1,2,0\n', "line 2: malformed"),
    "nul.csv": ("1,2,0\n1,\0,0\n", "line 2"),
    "binary.csv": (b"\xff\xfe1\x00,\x00", "not a text file in UTF-8 .byte 0xff"),
    "latin.csv": (b"1,2,0\n1,\xe9,0\n", "not a text file in UTF-8 .byte 0xe9"),
    "empty.svm": ("", "is empty"),
    "comments.svm": ("# nothing\n\n", "no lines with data"),
    "csv.svm": ("1,2,0\n", "line 1: the label '1,2,0' is several labels"),
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
    "wide.svm": ("1 99999999999:1\n", "need 800 GB for each agent, expected at most 1 GB"),
    "data.json": (
        "{}",
        r"its extension '.json' does not say what it is, .*expected one of .npz",
    ),
    "data": ("hello\nworld\n", r"its extension '\(none\)'"),
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


def body(width, rows=12):
    """Lines of random numbers and a label 0 or 1."""
    numbers = np.random.default_rng(0).normal(size=(rows, width - 1)).round(2)
    return "".join(",".join(map(str, row)) + f",{i % 2}\n" for i, row in enumerate(numbers))


NAMES = "is taken as the names of the columns"
SAID = {  # a name, the first line, samples, features, the label, and what is said of another reading
    "pandas": ("0,1,2\n", 12, 2, "2", NAMES),
    "quoted": ('"0.5","0.1","0.7"\n', 12, 2, "0.7", NAMES),
    "years": ("1990,1991,1992\n", 12, 2, "1992", NAMES),
    "wavelengths": ("400.0,410.0,420.0\n", 12, 2, "420.0", NAMES),
    "some_named": ("400.0,410.0,class\n", 12, 2, "class", NAMES),
    "housing": ("CRIM,RM,B,MEDV\n", 12, 3, "MEDV", "not B"),
    "coordinates": ("x,y,class\n", 12, 2, "class", "not y"),
    "letters": ("u,b,y\n", 12, 2, "y", "not b"),
    "counted": ("id,u,v,y\n", 12, 3, "y", "column 1 .id. counts the lines"),
    "sentinel": ("u,v,y\n-999,1,0\n", 13, 2, "y", r"column 1 .u. has 1 value -999"),
    "among_lower_ones": ("u,v,y\n-999,1,0\n-2500,3,0\n", 14, 2, "y", ""),
    "sample": ("0.5,0.1,1\n", 13, 2, "column 2", ""),
    "named": ("u,v,y\n", 12, 2, "y", ""),
    "label_first": ("y,u,v\n", 12, 2, "y", ""),
    "outcome": ("u,Outcome,v\n", 12, 2, "Outcome", ""),
}


@pytest.mark.parametrize("name", SAID)
def test_what_can_be_read_in_two_ways_is_said(tmp_path, name):
    first, samples, features, label, said = SAID[name]
    text = body(features + 1)
    if name == "counted":
        text = "".join(f"{i},{line}\n" for i, line in enumerate(body(features).splitlines()))
    (tmp_path / "mine.csv").write_text(first + text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = load(tmp_path / "mine.csv")
    assert data.A.shape == (samples, features) and data.label == label
    assert len(caught) == len(data.notes) == bool(said)
    assert not said or (re.search(said, data.notes[0]) and data.notes[0] in str(caught[0].message))


def test_two_columns_of_numbers_may_have_names():
    pairs = "".join(f"{i % 2},{i % 3 % 2}\n" for i in range(9))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "mine.csv")
        path.write_text("0,1\n" + pairs)
        with pytest.warns(UserWarning, match=r"line 1 \(0, 1\) is taken as a sample: .* put #"):
            assert load(path).A.shape == (10, 1)
        path.write_text("# 0,1\n" + pairs)
        assert load(path).A.shape == (9, 1) and not load(path).notes


@pytest.mark.parametrize(
    "text, words",
    [
        ("u,v,y\n1,NA,0\n", "line 2, column 2: 'NA' stands for a missing value"),
        ("1,?,0\n1,2,0\n", "line 1, column 2: '\\?' stands for a missing value"),
        ("u,v,y\n1,2,a\n1,2,N/A\n", "line 3, column 3: 'N/A' stands for a missing value"),
        ("u;v;y\n1,5;2;1\n", "line 2, column 1: '1,5' is a decimal comma: write points"),
        ('u,v,y\n"1,234",2,1\n', "line 2, column 1: '1,234' .*thousands.*decimal comma"),
        ("u;v;y\n1.234.567;2;1\n", "line 2, column 1: '1.234.567' .*thousands"),
        ("u,v,y\n12%,2,1\n", "line 2, column 1: '12%' is a percentage"),
        ("u,u,y\n1,2,1\n", "label 'u' is 2 columns, expected one"),
        ("1,0,y\n1,2,1\n", "label 0 is the name of one column, the number of another"),
    ],
)
def test_words_that_are_numbers_to_some_are_refused(tmp_path, text, words):
    (tmp_path / "mine.csv").write_text(text)
    label = "u" if "label 'u'" in words else 0 if "label 0" in words else None
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "mine.csv", label=label)


def test_a_point_may_separate_thousands(tmp_path):
    (tmp_path / "mine.csv").write_text(
        "u;v;y\n" + "".join(f"{i}.250;{i * i};1\n" for i in (3, 1, 7))
    )
    with pytest.warns(UserWarning, match="column 1: each value has three digits after its point"):
        assert load(tmp_path / "mine.csv").A[0, 0] == 3.25


SVM = b"-1 3:1 11: .5\n+1 5:  1\n"
FILES = {
    "a1a": SVM,
    "w8a.t": SVM,
    "mushrooms.txt": SVM,
    "x.scale": SVM,
    "w8a.bz2": bz2.compress(SVM),
    "x.xz": lzma.compress(SVM),
    "mine.svm.gz": gzip.compress(SVM),
    "rcv1_train.binary.bz2": bz2.compress(SVM),
    "iris.data": b"1.5,3.5,Iris-setosa\n4.9,3.0,Iris-versicolor\n",
    "savetxt.txt": b"1.5e+00 3.5e+00 0.0e+00\n4.9e+00 3.0e+00 1.0e+00\n",
    "savetxt.dat": b"# by numpy\n1.5e+00 3.5e+00 0.0e+00\n4.9e+00 3.0e+00 1.0e+00\n",
    "table.tsv.gz": gzip.compress(b"u\tv\ty\n1.5\t3.5\t0\n4.9\t3.0\t1\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_under_the_names_that_they_have(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    data = load(tmp_path / name)
    if data.sparse:
        expected = np.zeros((2, 11))
        expected[0, [2, 10]], expected[1, 4] = (1, 0.5), 1
        assert np.array_equal(data.A, expected) and data.y.tolist() == [-1, 1]
    else:
        assert data.A.tolist() == [[1.5, 3.5], [4.9, 3.0]] and data.y.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["bad.bz2", "bad.gz", "bad.xz"])
def test_damaged_compressed_files(tmp_path, name):
    packed = {"bz2": bz2, "gz": gzip, "xz": lzma}[name[4:]].compress(SVM * 99)
    for text in (packed[: len(packed) // 2], packed[:-9] + bytes(9), b"no archive at all"):
        (tmp_path / name).write_bytes(text)
        refused(tmp_path / name, "damaged|cannot be read|not a text file")


def test_test_sets_of_libsvm_have_other_numbers_of_features(tmp_path):
    (tmp_path / "a1a").write_bytes(SVM * 4)
    (tmp_path / "a1a.t").write_bytes(b"-1 3:1 13:1\n+1 2:1\n")
    with pytest.warns(UserWarning, match="has 11 features, the test set 13: both are padded"):
        made = load_problem(tmp_path / "a1a", n=2, test=tmp_path / "a1a.t")
    assert made.d == 13 and made.given.test[0].shape == (2, 13)
    assert load_problem(tmp_path / "a1a", n=2, features=13).d == 13
    with pytest.raises(ValueError, match="features is 5, expected an integer >= 11"):
        load(tmp_path / "a1a", features=5)
    np.savez(tmp_path / "mine.npz", A=A4, y=Y4)
    for source in (tmp_path / "mine.npz", "breast_cancer"):
        with pytest.raises(ValueError, match="features = 5"):
            load(source, features=5)


def test_how_a_file_was_read_is_in_the_file_of_the_run(tmp_path):
    (tmp_path / "mine.csv").write_text("x,y,class\n" + body(3))
    with pytest.warns(UserWarning, match="not y"):
        made = load_problem(tmp_path / "mine.csv", n=2)
    mpidec.solve(made, "dgd", "ring", steps=1, record=str(tmp_path / "run.h5"))
    with h5py.File(tmp_path / "run.h5") as file:
        assert "not y" in file.attrs["notes"]
