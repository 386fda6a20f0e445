"""Arrays as other programs hand them over, at each public entry: right, or refused in one line that names the argument."""

import numpy as np
import pytest
import scipy.sparse

import mpidec
from mpidec import problems as P, topology as T
from mpidec.solvers import DGD

pytestmark = pytest.mark.serial

N, SAMPLES, D = 4, 6, 3
RNG = np.random.default_rng(0)
A = RNG.integers(-8, 9, (N * SAMPLES, D)).astype(float)
Y = RNG.integers(0, 2, N * SAMPLES).astype(float)
STACK, TARGETS = A.reshape(N, SAMPLES, D), Y.reshape(N, SAMPLES)
RING = T.ring(N).W.toarray()
X = np.ones((N, D))


def masked(array):
    return np.ma.masked_array(
        np.where(RNG.random(array.shape) < 0.5, -9999, array), array == array.flat[0]
    )


def with_object(array):
    made = array.astype(object)
    made.flat[0] = "word"
    return made


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def datetimes(array):
    return np.zeros(array.shape, "datetime64[s]")


RIGHT = {
    "nothing_masked": np.ma.masked_array,
    "list": lambda a: a.tolist(),
    "big_endian": lambda a: a.astype(">f8"),
    "objects": lambda a: a.astype(object),
    "longdouble": lambda a: a.astype(np.longdouble),
    "fortran": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "read_only": read_only,
}
WRONG = {
    "masked": masked,
    "word": with_object,
    "dates": datetimes,
    "text": lambda a: a.astype(str),
    "nan": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 1, np.nan, a),
    "structured": lambda a: np.zeros(a.shape, [("x", float)]),
}
ENTRIES = {  # what is handed over, the entry, how a message names it, and what is right beside
    "load.A": (A, lambda a: P.load_problem((a, Y), n=N, l2=1.0).grad(X), "A", ""),
    "load.y": (Y, lambda y: P.load_problem((A, y), n=N, l2=1.0).grad(X), "y", "text"),
    "load.test": (
        A,
        lambda a: P.load_problem((A, Y), n=N, l2=1.0, test=(a, Y)).given.test[0],
        "A",
        "",
    ),
    "LeastSquares.A": (STACK, lambda a: P.LeastSquares(a, TARGETS).grad(X), "A", ""),
    "LeastSquares.b": (TARGETS, lambda b: P.LeastSquares(STACK, b).grad(X), "b", ""),
    "LogisticRegression.y": (
        2 * TARGETS - 1,
        lambda y: P.LogisticRegression(STACK, y).grad(X),
        "y",
        "",
    ),
    "Huber.A": (STACK, lambda a: P.Huber(a, TARGETS).grad(X), "A", ""),
    "x_star": (X[0], lambda x: P.LeastSquares(STACK, TARGETS, x_star=x).x_star, "x_star", ""),
    "x0": (
        X[0],
        lambda x: mpidec.solve(P.LeastSquares(STACK, TARGETS), DGD(1e-3), "ring", steps=1, x0=x).X,
        "x0",
        "",
    ),
    "from_weights": (RING, lambda W: T.from_weights(W).W.toarray(), "W", ""),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_kind_of_array(entry):
    array, enter, name, also = ENTRIES[entry]
    expected = enter(array)
    for kind, make in RIGHT.items():
        if kind == "objects" and entry == "from_weights":
            continue
        np.testing.assert_array_equal(enter(make(array)), expected, err_msg=kind)
    for kind, make in WRONG.items():
        if kind != also:
            with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b") as error:
                enter(make(array))
            assert "\n" not in str(error.value)
            assert kind != "masked" or "masked value" in str(error.value)


def test_sparse_samples():
    dense = P.load_problem((A, Y), n=N, l2=1.0).grad(X)
    for make in (scipy.sparse.csr_matrix, scipy.sparse.coo_array):
        np.testing.assert_allclose(P.load_problem((make(A), Y), n=N, l2=1.0).grad(X), dense, 1e-14)


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"u": A[:, 0], "v": A[:, 1] > 0, "w": A[:, 2].astype(int)})
    expected = np.column_stack([A[:, 0], A[:, 1] > 0, A[:, 2]])
    for each in (frame, frame.convert_dtypes(), frame.astype({"v": "boolean", "w": "Int64"})):
        for y in (Y, pandas.Series(Y), pandas.Series(Y).astype("Int64"), pandas.Series(Y == 1)):
            data = P.dataset(each, y)
            np.testing.assert_array_equal(data.A, expected)
            np.testing.assert_array_equal(data.y, Y)
    names = pandas.Series(np.where(Y == 1, "ill", "well"))
    for y in (names, names.astype("category"), names.astype("string")):
        assert P.dataset(frame, y).classes == ("ill", "well")
    with pytest.raises(TypeError, match=r"A: the column 'kind' has dtype .*get_dummies"):
        P.dataset(frame.assign(kind=names), Y)
    with pytest.raises(TypeError, match=r"A: the column 't' has dtype datetime"):
        P.dataset(frame.assign(t=pandas.date_range("2020", periods=len(frame))), Y)
    with pytest.raises(ValueError, match="y and A have other indices"):
        P.dataset(frame, pandas.Series(Y).sample(frac=1, random_state=0))
    dummies = pandas.get_dummies(frame.assign(kind=names), dtype=None)
    assert P.dataset(dummies, Y).A.shape == (len(A), 5)
    hole = frame.convert_dtypes()
    hole.loc[3, "w"] = pandas.NA
    with pytest.raises(ValueError, match="A is nan at row 3, column 2"):
        P.dataset(hole, Y)


def of_custom(returned):
    problem = P.Custom(lambda X: X[:, 0], lambda X: returned, N, D)
    return mpidec.solve(problem, DGD(0.1), "ring", steps=1)


@pytest.mark.parametrize(
    ("array", "enter"),
    [
        (A, P.standardized),
        (Y, P.signs),
        (Y, P.class_numbers),
        (np.ones(N), lambda v: T.ring(N, weights=T.hastings(v))),
        (
            np.ones(N),
            lambda r: mpidec.simulate(None, "pairwise_gossip", "ring", steps=1, rates=r, x0=X),
        ),
        (np.ones((N, D)), of_custom),
    ],
    ids=["standardized", "signs", "class_numbers", "hastings", "rates", "Custom"],
)
def test_masked_numbers_are_refused(array, enter):
    with pytest.raises((TypeError, ValueError), match="mask"):
        enter(masked(array))


def simulated(rates=None, edges=1.0):
    solver = mpidec.solvers.A2CiD2(0.01, rate=edges)
    return mpidec.simulate(P.LeastSquares(STACK, TARGETS), solver, "ring", steps=2, rates=rates).X


def of_smoothness(L):
    return P.Custom(lambda X: 0, lambda X: X, N, D, smoothness=L).smoothness


def coupled(b, strong=None):
    functions = (lambda C: C, lambda X: X[:, 0])
    made = P.ConstraintCoupled(*functions, np.ones((N, 2, D)), b, strong_convexity=strong)
    return made.b if strong is None else made.smoothness


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("array", "enter"),
    [
        (np.ones(N), simulated),
        (RING - np.diag(np.diag(RING)), lambda R: simulated(edges=R)),
        (np.ones(N), of_smoothness),
        (np.ones((N, 2)), coupled),
        (np.ones(N), lambda mu: coupled(np.ones((N, 2)), mu)),
        (np.ones(N), P.signs),
    ],
    ids=["rates", "edge_rates", "smoothness", "b", "strong_convexity", "signs"],
)
def test_complex_numbers_are_real_ones_if_no_imaginary_part_is_lost(array, enter):
    """NumPy drops imaginary parts with a warning, whatever they are."""
    np.testing.assert_array_equal(enter(array + 0j), enter(array))
    with pytest.raises((TypeError, ValueError), match=r"imaginary|expected|labels"):
        enter(array * (1 + 1j))
