"""What is computed for an agent has the same bits whichever other agents the process holds, in any order, alone, wherever its
data lie in memory; `make test-all` runs this file with the kernels of other processors, too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mpidec.problems import (
    LSVRG,
    SAGA,
    SARAH,
    SVRG,
    ConstraintCoupled,
    Full,
    Huber,
    LeastSquares,
    LogisticRegression,
    MiniBatch,
    Noisy,
    RealView,
    Softmax,
    Stream,
    Subgradient,
    elastic_net,
    l1,
)

M = 5
BLOCKS = [[0], [1], [4], [1, 2], [0, 1, 2], [2, 3, 4], [1, 2, 3, 4]]
SOME = [[3], [4, 1], [2, 0, 3], [4, 3, 2, 1, 0]]
SHAPES = [(1, 1), (1, 4), (3, 1), (1, 17), (19, 1), (2, 3), (5, 8), (8, 5), (33, 7), (40, 64)]
DTYPES = [np.float64, np.float32, np.complex128, np.complex64]
LOSSES = {
    "squares": (LeastSquares, {}),
    "ridge": (LeastSquares, {"l2": 0.3, "weight": 0.7, "intercept": True}),
    "elastic": (LeastSquares, {"term": elastic_net(0.1, 0.2)}),
    "logistic": (LogisticRegression, {"l2": 0.1}),
    "huber": (Huber, {"l2": 0.1, "term": l1(0.1)}),
    "softmax": (Softmax, {"classes": 3, "l2": 0.1}),
}
ORACLES = {
    "full": lambda problem: Full(problem),
    "one": lambda problem: MiniBatch(problem, 1),
    "all": lambda problem: MiniBatch(problem, problem.p),
    "noisy": lambda problem: Noisy(MiniBatch(problem, 1), 0.1),
    "svrg": lambda problem: SVRG(problem, 1, period=2),
    "lsvrg": lambda problem: LSVRG(problem, 1, period=2),
    "sarah": lambda problem: SARAH(problem, 1, period=3),
    "saga": lambda problem: SAGA(problem, 1),
}


def unaligned(X: np.ndarray) -> np.ndarray:
    """A copy of X that begins a number beyond a multiple of 64 bytes."""
    room = np.empty(X.nbytes + 128, np.uint8)
    begin = -room.ctypes.data % 64 + X.itemsize
    copy = room[begin : begin + X.nbytes].view(X.dtype).reshape(X.shape)
    copy[...] = X
    return copy


def spread(X: np.ndarray) -> np.ndarray:
    """The same numbers, with others between them."""
    room = np.zeros((*X.shape, 2), X.dtype)
    room[..., 0] = X
    return room[..., 0]


def drawn(seed: int, *shape: int, dtype: object = float) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    X = rng.standard_normal(shape)
    return (X + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else X).astype(dtype)


def same(found, expected, what: object) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes(), what


def made(kind: str, p: int, d: int, dtype: object, rows: list[int]):
    """A problem of some of M agents."""
    Loss, options = LOSSES[kind]
    A, y = drawn(1, M, p, d, dtype=dtype), drawn(2, M, p, dtype=dtype)
    if Loss is LogisticRegression:
        y = np.where(y > 0, 1.0, -1.0)
    if Loss is Softmax:
        y = np.arange(M * p).reshape(M, p) % 3
    return Loss(unaligned(A[rows]), y[rows], **options)


def check(of, X: np.ndarray) -> None:
    """Compare what `of(rows, X, agents)` computes for `agents` (None: all) of a problem of `rows`."""
    every = list(range(len(X)))
    whole = of(every, X, None)
    for rows in BLOCKS:
        for laid in (np.ascontiguousarray, unaligned, spread):
            for name, found in of(rows, laid(X[rows]), None).items():
                same(found, whole[name][rows], (name, rows, laid.__name__))
    for some in SOME:
        for name, found in of(every, unaligned(X[some]), some).items():
            same(found, whole[name][some], (name, "agents", some))


@pytest.mark.parametrize("kind", LOSSES)
def test_values_gradients_and_proximal_points(kind):
    dtypes = DTYPES if kind in ("squares", "ridge") else DTYPES[:2]
    for (p, d), dtype in product(SHAPES, dtypes):

        def of(rows, X, agents, p=p, d=d, dtype=dtype):
            problem = made(kind, p, d, dtype, rows)
            found = {"grad": problem.grad(X, agents)}
            if agents is None:
                found |= {"value": problem.value(X), "smoothness": problem.smoothness}
                found |= {"slopes": problem.slopes(X)}
                if np.dtype(dtype).itemsize >= 8 and d <= 8:
                    found |= {"prox": problem.prox(X, 0.5)}
            return found

        check(of, drawn(3, M, made(kind, p, d, dtype, [0]).d, dtype=dtype))


@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize("kind", ["squares", "logistic", "softmax"])
def test_oracles(oracle, kind):
    for p, d, dtype in [(7, 17, float), (3, 1, float), (1, 5, float), (6, 4, np.complex128)]:
        if np.dtype(dtype).kind == "c" and kind != "squares":
            continue

        def of(rows, X, agents, p=p, d=d, dtype=dtype):
            gradients = ORACLES[oracle](made(kind, p, d, dtype, rows)).gradients(rows, seed=1)
            steps = [gradients(X + k, k, agents) for k in range(4)]
            return dict(enumerate(steps))

        check(of, drawn(4, M, made(kind, p, d, dtype, [0]).d, dtype=dtype))


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("loss", ["least_squares", "own"])
def test_streams(loss, dtype):
    def own(x, u, y):
        return abs(y - u @ x) ** 2 / 2, u.conj() * (u @ x - y)

    def draw(rng, agent, k):
        u = rng.standard_normal(64) + (1j * rng.standard_normal(64) if dtype is complex else 0)
        return u, u.sum() + rng.standard_normal()

    for d in (1, 2, 3, 8, 33):

        def of(rows, X, agents, d=d):
            lo = rows[0]  # blocks of neighbours, as on ranks
            given = {"loss": own if loss == "own" else loss, "lo": lo, "held_out": 6}
            found = {}

            def first(rng, agent, k):
                u, y = draw(rng, agent, k)
                return u[:d], y

            for held_out in (6, 50):
                stream = Stream(first, len(rows), d, **(given | {"held_out": held_out}))
                gradient = stream.gradients(rows, seed=3)
                found |= {("grad", held_out): stream.grad(X, agents)}
                found |= {("sample", held_out): gradient(X, 2, agents)}
                if agents is None:
                    found |= {("value", held_out): stream.value(X)}
                if agents is None and loss != "own":
                    found |= {("smoothness", held_out): stream.smoothness}
            return found

        check(of, drawn(5, M, d, dtype=dtype))


def test_terms_views_and_duals():
    A, b = drawn(6, M, 3, 4), drawn(7, M, 3)

    def of(rows, X, agents):
        squares = LeastSquares(A[rows] + 1j * A[rows], b[rows], term=l1(0.1))
        view = RealView(squares)
        subgradient = Subgradient(
            LeastSquares(A[rows][..., :1] * np.ones(8), b[rows], term=l1(0.1))
        )
        found = {"view": view.grad(X, agents)}
        found |= {"subgradient": subgradient.gradients(rows, 0)(X, 0, agents)}
        if agents is None:
            found |= {"value": view.value(X), "prox": view.prox(X, 0.5)}
            dual = ConstraintCoupled(
                lambda C: -C, lambda P: (P * P).sum(axis=1) / 2, A[rows], b[rows]
            )
            found |= {"dual": dual.grad(X[:, :3]), "dual value": dual.value(X[:, :3])}
        return found

    check(of, drawn(8, M, 8))
