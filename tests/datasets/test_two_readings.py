"""Files and graphs that can be read in two ways: each is refused, or said in a warning; those with
one reading are taken without a word.
"""

import warnings

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp

import mpidec.topology as T
from mpidec.datasets import readers
from mpidec.problems import load_problem

pytestmark = pytest.mark.serial

RNG = np.random.default_rng(3)
NUMBERS = RNG.normal(size=(12, 4)).round(2)
CLASSES = np.arange(12) % 2
TARGETS = (100 * RNG.random(12)).round(1)


def text(*columns, first="", separator=","):
    """A first line, and lines of the columns."""
    lines = [separator.join(map(str, row)) for row in zip(*columns)]
    return "\n".join([first] * bool(first) + lines) + "\n"


def body(first="", features=2, last=CLASSES, separator=","):
    """A first line, and lines of features and a label."""
    return text(*NUMBERS.T[:features], last, first=first, separator=separator)


def word(text, of="1.5"):
    """A table with a word in place of a number."""
    return body("u,v,y") + f"{text},{of},1\n"


U, V, W, Z = NUMBERS.T
DOTS = [f"{i + 1}.{100 + 37 * i}" for i in range(12)]
HEADERS = {
    "pandas": body("0,1,2"),
    "pandas of two columns": body("0,1", 1),
    "pandas with its index": text(range(12), U, V, CLASSES, first=",0,1,2"),
    "counted from 1": body("1,2,3"),
    "quoted": body('"0.5","0.1","0.7"'),
    "years": body("1990,1991,1992"),
    "years with gaps": body("1950,1960,1980"),
    "years, two columns": body("1990,1991", 1),
    "years, decreasing": body("1992,1991,1990"),
    "wavelengths": body("400.0,410.0,420.0"),
    "wavelengths and a name": body("400.0,410.0,class"),
    "years and a text label": body("1990,1991,1992", last=["a", "b"] * 6),
    "in scientific notation": body("1e3,2e3,3e3"),
    "angles": body("-90,-45,45"),
    "negative numbers of columns": body("-3,-2,-1"),
    "semicolons": body("1990;1991;1992", separator=";"),
    "tabs": body("1990\t1991\t1992", separator="\t"),
    "blanks": body("1990 1991 1992", separator=" "),
    "numbers of rows and columns": body("12,3"),
    "numbers of rows and columns, as many": body("12 2", 1, separator=" "),
    "scikit-learn's": body("12,2,ill,well", 3),
    "in two lines": body("u,v,y\nm,s,1"),
    "repeated below": body("u,v,y") + body("u,v,y"),
    "in a comment, the label first": text(CLASSES, U, V, first="# y,u,v"),
    "in a comment, the label between": text(U, TARGETS, V, first="# u target v"),
}
LABELS = {
    "B between": body("CRIM,RM,B,MEDV", 3),
    "coordinates": body("x,y,class"),
    "coordinates of points": body("x,y,z"),
    "two letters": body("u,b,y"),
    "two usual names": body("target,u,label"),
    "two targets": text(U, V, TARGETS, W, first="x1,x2,y1,y2"),
    "one-hot": text(U, V, CLASSES, 1 - CLASSES, first="u,v,class_a,class_b"),
    "species before the last": text(U, ["a", "b"] * 6, V, first="u,species,v"),
    "survived between": text(range(1, 13), CLASSES, CLASSES[::-1], V, first="nr,survived,sex,fare"),
    "diagnosis first": text(CLASSES, U, V, first="diagnosis,u,v"),
    "quality between": text(U, range(3, 15), V, first="u,quality,v"),
    "price between": text(U, TARGETS, V, first="rooms,price,area"),
    "response first": text(TARGETS, U, V, first="response,u,v"),
    "digits first, pixels last": text(CLASSES, U, V, 0 * CLASSES),
    "classes first": text(1 + CLASSES, U, V),
    "text between": text(U, ["a", "b"] * 6, V),
    "text first": text(["a", "b"] * 6, U, V),
    "index last": text(U, V, CLASSES, range(12), first="u,v,kind,id"),
    "classes that differ in case": body("u,v,y", last=["Yes", "yes", "no"] * 4),
    "classes that differ in a blank": body("u,v,y", last=["on line", "on  line", "off"] * 4),
    "a class called none": body("u,v,y", last=["none", "mild", "none"] * 4),
    "a class called -": body("u,v,y", last=["-", "+", "-"] * 4),
    "a class called nan": body("u,v,y", last=["nan", "a", "b"] * 4),
    "a class called NA": body("u,v,y", last=["NA", "DE", "FR"] * 4),
}
VALUES = {
    **{f"missing: {missing!r}": word(missing) for missing in ("NA", "?", "", "nan", "-", "NULL")},
    **{
        f"filled: {fill}": text(U, [*V[:-1], fill], CLASSES, first="u,v,y")
        for fill in ("-999", "-9999", "-999.25", "9999", "-99", "1e20", "-32768", "9.96921e36")
    },
    "thousands": word('"1,234"'),
    "thousands and more": word("1.234.567"),
    "thousands by apostrophes": word("1'234"),
    "thousands by underscores": word("1_234"),
    "decimal commas": text(["1,5", "2,5"], [0, 1], first="u;y", separator=";"),
    "decimal commas and tabs": text(["1,5", "2,5"], ["3,5", "1,5"], [0, 1], separator="\t"),
    "decimal commas and blanks": text(["1,5", "2,5"], ["3,5", "1,5"], [0, 1], separator=" "),
    "points of thousands": text(DOTS, U, CLASSES, separator=";"),
    "points of thousands, tabs": text(DOTS, U, CLASSES, separator="\t"),
    "points of thousands in the target": text(U, V, DOTS, separator=";"),
    "percent": word("12%"),
    "dollars": word("$12"),
    "in brackets": word("(12)"),
    "Fortran's exponents": word("1.5d3"),
    "hexadecimal": word("0x10"),
    "a fraction": word("1/2"),
    "a time": word("12:30"),
    "a date": word("2024-01-02"),
    "a truth value": word("TRUE"),
    "with a unit": word("5 kg"),
    "Unicode's minus": word("\u22121.5"),
    "a comment behind": word("1.5", "2 # why"),
    "a column that counts": text(range(12), U, V, CLASSES, first="id,u,v,y"),
    "an index with gaps": text(3 * np.arange(12), U, V, CLASSES, first="Unnamed: 0,u,v,y"),
    "a shuffled index": text(RNG.permutation(12), U, V, CLASSES, first="index,u,v,y"),
    "a total below": body("u,v,y") + f"{U.sum()},{V.sum()},total\n",
}
SVM = "1 2:1 3:2\n0 2:3\n1 1:1\n0 3:4\n"
FILES = {
    **{f"header, {name}": {"mine.csv": content} for name, content in HEADERS.items()},
    **{f"label, {name}": {"mine.csv": content} for name, content in LABELS.items()},
    **{f"value, {name}": {"mine.csv": content} for name, content in VALUES.items()},
    "libsvm from 0": {"a": "1 0:1 2:2\n0 1:3\n"},
    "libsvm, test from 0": {"a": SVM, "test": "1 0:1 2:2\n0 1:3\n"},
    "libsvm, training from 0": {"a": "1 0:1 2:2\n0 1:3\n", "test": "1 1:1 2:2\n0 1:3\n"},
    "libsvm, test with more": {"a": SVM, "test": "1 5:1\n0 1:3\n"},
    "libsvm, test with fewer": {"a": SVM, "test": "1 1:1\n0 1:3\n"},
    "libsvm, queries": {"a": SVM.replace(" ", " qid:1 ", 1)},
    "libsvm, many labels": {"a.svm": "1,3 1:1\n0,2 2:1\n"},
    "npz, y and b": {"mine.npz": {"A": NUMBERS, "y": CLASSES, "b": TARGETS}},
    "npz, targets as a column": {"mine.npz": {"A": NUMBERS, "y": TARGETS[:, None]}},
    "npz, samples in columns": {"mine.npz": {"A": NUMBERS.T, "y": CLASSES}},
}


def graph(*nodes, kind=nx.Graph, **attributes):
    """A ring of nodes, in their order."""
    G = kind()
    G.add_nodes_from(nodes)
    G.add_edges_from(
        (node, nodes[(i + 1) % len(nodes)], attributes) for i, node in enumerate(nodes)
    )
    return G


def looped(**attributes):
    G = graph(0, 1, 2, weight=0.25)
    G.add_edge(0, 0, **attributes)
    return G


FIVE = np.roll(np.eye(5), 1, 1)
ZEROS = sp.csr_array((np.array([1.0, 0, 0, 1]), ([0, 0, 1, 1], [0, 1, 0, 1])), shape=(2, 2))
GRAPHS = {
    "digits as text": graph(*map(str, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9])),
    "names with numbers": graph(*(f"agent{i}" for i in [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9])),
    "from 1": graph(1, 2, 3),
    "from 1, as text": graph("1", "2", "3"),
    "from 1, of numpy": graph(*np.arange(1, 4)),
    "from 1, as floats": graph(1.0, 2.0, 3.0),
    "tens": graph(10, 20, 30),
    "negative": graph(-1, 0, 1),
    "floats between": graph(0.5, 0.25, 0.75),
    "decimals as text": graph("1.5", "1.25", "1.125"),
    "letters, not in order": graph("b", "a", "c"),
    "letters, upper and lower": graph("B", "a", "C"),
    "letters, upper first": graph("B", "C", "a"),
    "hosts": graph("node01", "node02", "node03"),
    "addresses": graph("10.0.0.1", "10.0.0.2", "10.0.0.3"),
    "racks": graph("rack0-node0", "rack0-node1", "rack1-node0", "rack1-node1"),
    "weekdays": graph("Mon", "Tue", "Wed", "Thu"),
    "hexadecimal": graph("8", "9", "a", "10", "1a"),
    "bytes": graph(b"0", b"1", b"10", b"2"),
    "pairs, not in order": graph((0, 1), (0, 0), (1, 0)),
    "pairs with text": graph(*(("r", str(i)) for i in [0, 1, 10, 2])),
    "numbers and text": graph(0, 1, "a"),
    "sets": graph(*map(frozenset, ["ab", "bc", "ca"])),
    "sets of one size, and of another": graph(*map(frozenset, ["a", "ab", "c"])),
    "not a number": graph(0.0, float("nan"), 1.0),
    "removed nodes": nx.Graph(nx.complete_graph(5).subgraph([0, 2, 4])),
    "disconnected": nx.Graph([("u", "v"), ("x", "y")]),
    "weights that could be used": graph(0, 1, 2, weight=0.25),
    "weights, a loop with another": (looped(weight=0.1), "weight"),
    "weights of text": (graph(0, 1, 2, weight="0.25"), "weight"),
    "weights that are distances": (graph(0, 1, 2, weight=3.5), "weight"),
    "weights of some edges": (nx.compose(graph(0, 1, 2, weight=0.2), nx.Graph([(0, 3)])), "weight"),
    "adjacency of a ring": nx.to_numpy_array(nx.cycle_graph(5)),
    "adjacency of a directed ring": FIVE,
    "adjacency of a pair": np.array([[0.0, 1], [1, 0]]),
    "adjacency of whole numbers": nx.to_numpy_array(nx.complete_graph(3)).astype(int),
    "laplacian": np.eye(5) * 2 - FIVE - FIVE.T,
    "zeros that are stored": ZEROS,
    "walk on an even ring": (np.roll(np.eye(4), 1, 1) + np.roll(np.eye(4), -1, 1)) / 2,
    "truth values": FIVE > 0,
    "sums in percent": 100 * (np.eye(5) + FIVE) / 2,
}
ONE_READING = {
    "names": body("u,v,y"),
    "names of text labels": body("u,v,y", last=["ill", "well"] * 6),
    "no names": body(),
    "label first": text(CLASSES, U, V, first="y,u,v"),
    "outcome between": text(U, CLASSES, V, first="u,outcome,v"),
    "species last": body("u,v,species", last=["a", "b", "c"] * 4),
    "price last": body("rooms,area,price", last=TARGETS),
    "whole numbers": text([3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8], [0, 1, 0, 1, 1, 0]),
    "a comment without names": body("# made by hand"),
    "savetxt": body(separator=" "),
    "names in a comment, the label last": body("# u,v,y"),
    "small negative numbers": text(U, -9.9 * abs(V), CLASSES, first="u,v,y"),
    "years as values": text(range(1990, 2014, 2), U, CLASSES, first="when,u,y"),
    "points of decimals": text(DOTS, U, CLASSES),
}
ONE_ORDER = {
    "0 ..": graph(0, 1, 2),
    "0 .., not in order": graph(2, 0, 1),
    "of numpy": graph(*np.arange(3)),
    "floats": graph(0.0, 1.0, 2.0),
    "text": graph("0", "1", "2"),
    "agents": graph(*(f"agent{i}" for i in range(12))),
    "letters": graph("a", "b", "c"),
    "names": graph("Ann", "Bob", "Cem"),
    "pairs": graph((0, 0), (0, 1), (1, 0), (1, 1)),
    "a matrix": (np.eye(5) + FIVE) / 2,
    "distances": graph(0, 1, 2, weight=3.5),
    "weights": (graph(0, 1, 2, weight=0.25), "weight"),
    "weights, a loop with the rest": (looped(weight=0.5), "weight"),
}


OF_OTHERS = "columns of A differ in size", "the error metric is not available"  # not of reading


def said(call, *arguments):
    """What is said of it: the messages of warnings, or of the refusal."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call(*arguments)
        except (ValueError, TypeError) as error:
            return [str(error)]
    lines = [str(warning.message) for warning in caught]
    return [line for line in lines if not any(words in line for words in OF_OTHERS)]


def loaded(folder, files):
    """The problem of files, which is the default one for their labels; the second is the test set."""
    for name, content in files.items():
        if isinstance(content, dict):
            np.savez(folder / name, **content)
        else:
            (folder / name).write_text(content, encoding="utf-8")
    data, test = (*(folder / name for name in files), None)[:2]
    load_problem(data, n=2, test=test, l2_total=1.0)


def built(given):
    G, *weights = given if isinstance(given, tuple) else (given,)
    (T.from_networkx if isinstance(G, nx.Graph) else T.from_weights)(G, *weights)


@pytest.mark.parametrize("name", FILES)
def test_files_that_can_be_read_in_two_ways(tmp_path, name):
    lines = said(loaded, tmp_path, FILES[name])
    assert lines and all(line and "\n" not in line for line in lines)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_can_be_read_in_two_ways(name):
    lines = said(built, GRAPHS[name])
    assert lines and all(line and "\n" not in line for line in lines)


@pytest.mark.parametrize("name", ONE_READING)
def test_files_with_one_reading(tmp_path, name):
    assert not said(loaded, tmp_path, {"mine.csv": ONE_READING[name]})


@pytest.mark.parametrize("name", ONE_ORDER)
def test_graphs_with_one_reading(name):
    assert not said(built, ONE_ORDER[name])


@pytest.mark.parametrize(
    ("first", "separator"), [("# y,u,v", ","), ("# y u v", " "), ("# y,u,v", " "), ("# y u v", ",")]
)
def test_names_in_the_comment_of_savetxt_are_those_of_the_columns(first, separator, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(text(CLASSES, U, V, first=first, separator=separator))
    data = readers.read(path)
    np.testing.assert_array_equal(data.y, CLASSES)
    assert (data.names, data.label) == (("u", "v"), "y")
    assert data.notes == ("the comment in line 1 (y, u, v) is taken as the names of the columns",)
    assert readers.read(path, label="v").names == ("y", "u")
