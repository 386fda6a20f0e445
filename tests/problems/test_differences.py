"""Gradients that are not those of the values are found before a run; right ones of any kind are not accused."""

import re

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S
from mpidec.comm.runtime import MPI
from mpidec.problems.differences import mismatch

M, D, SAMPLES = 4, 5, 20
RNG = np.random.default_rng(0)
A, B, C = RNG.normal(size=(M, SAMPLES, D)), RNG.normal(size=(M, SAMPLES)), RNG.normal(size=(M, D))
Y, W1, W2 = np.sign(B), RNG.normal(size=(8, D)), RNG.normal(size=8)
A32, B32, SCALES = A.astype("f4"), B.astype("f4"), 10.0 ** np.arange(-6, 9, 3)
STARTS = {
    "zero": np.zeros((M, D)),
    "large": 1e6 * C,
    "small": 1e-6 * C,
    "mixed": C * 10.0 ** RNG.integers(-6, 6, (M, D)),
}


def scores(X):
    return np.einsum("mpd,md->mp", A, X)


def back(S):
    return np.einsum("mpd,mp->md", A, S)


def network(X):
    Z = np.einsum("hd,mpd->mph", W1, A * X[:, None]) + 0.1
    return Z, np.maximum(Z, 0) @ W2 - B


def network_grad(X):
    Z, r = network(X)
    return np.einsum("mp,h,mph,hd,mpd->md", 2 * r / SAMPLES, W2, Z > 0, W1, A)


def single(X):
    return np.einsum("mpd,md->mp", A32, X.astype("f4")) - B32


def huber(delta):
    return (
        lambda X: np.where(
            abs(t := scores(X) - B) <= delta, t * t / 2, delta * (abs(t) - delta / 2)
        ).sum(1),
        lambda X: back(np.clip(scores(X) - B, -delta, delta)),
    )


def squares(X):
    return ((X - C) ** 2).sum(1) / 2


NOISE = np.random.default_rng(1)
SMOOTH = {
    "least squares": (lambda X: ((scores(X) - B) ** 2).sum(1) / 2, lambda X: back(scores(X) - B)),
    "logistic": (
        lambda X: np.logaddexp(0, -Y * scores(X)).sum(1),
        lambda X: back(-Y / (1 + np.exp(np.minimum(Y * scores(X), 700)))),
    ),
    "cubic": (lambda X: (X**3).sum(1), lambda X: 3 * X**2),
    "Huber": huber(1.0),
    "network": (lambda X: (network(X)[1] ** 2).mean(1), network_grad),
}
RIGHT = SMOOTH | {
    "narrow Huber": huber(1e-9),
    "l1": (lambda X: abs(X).sum(1), np.sign),
    "l1, subgradient 1 at 0": (lambda X: abs(X).sum(1), lambda X: np.where(X >= 0, 1.0, -1.0)),
    "concave kink": (lambda X: -abs(X).sum(1), lambda X: -np.sign(X)),
    "hinge": (
        lambda X: np.maximum(0, 1 - Y * scores(X)).sum(1),
        lambda X: back(-Y * (Y * scores(X) < 1)),
    ),
    "scales": (
        lambda X: ((X * SCALES - C) ** 2).sum(1),
        lambda X: 2 * (X * SCALES - C) * SCALES,
    ),
    "huge": (lambda X: 1e300 * (X**2).sum(1), lambda X: 2e300 * X),
    "offset": (lambda X: 1e20 + squares(X), lambda X: X - C),
    "nan": (lambda X: np.full(M, np.nan), lambda X: X - C),
    "constant": (lambda X: np.zeros(M), lambda X: X - C),
    "exponential": (lambda X: np.exp(1e4 * X).sum(1), lambda X: 1e4 * np.exp(1e4 * X)),
    "barrier": (lambda X: -np.log(X + 9e-3).sum(1), lambda X: -1 / (X + 9e-3)),
    "float32": (
        lambda X: (single(X) ** 2).sum(1) / 2,
        lambda X: np.einsum("mpd,mp->md", A32, single(X)),
    ),
    "float32, summed in float64": (
        lambda X: (single(X) ** 2).sum(1, dtype=float) / 2,
        lambda X: np.einsum("mpd,mp->md", A32, single(X)),
    ),
    "random value": (lambda X: squares(X) + 0.1 * NOISE.normal(size=M), lambda X: X - C),
    "random gradient": (squares, lambda X: X - C + 0.1 * NOISE.normal(size=X.shape)),
    "rounded value": (lambda X: squares(X).round(3), lambda X: X - C),
    "share of errors": (lambda X: (np.sign(scores(X)) != Y).mean(1), lambda X: back(scores(X) - B)),
    "rows that depend on each other": (
        lambda X: squares(X) + (X * X.mean(0)).sum(1),
        lambda X: X - C + X.mean(0) + X / M,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_gradient_is_not_accused(name):
    value, grad = RIGHT[name]
    for start, X in STARTS.items():
        found = mismatch(value, grad, X, range(M))
        assert found is None, (start, found)


def entry(G):
    G[2, 3] *= -1
    return G


def agent(G):
    G[3] *= 2
    return G


WRONG = {
    "sign": lambda G, X: -G,
    "factor 2": lambda G, X: 2 * G,
    "mean in place of sum": lambda G, X: G / SAMPLES,
    "shift": lambda G, X: G + 0.5,
    "forgotten l2": lambda G, X: G - 0.1 * X,
    "entry": lambda G, X: entry(G.copy()),
    "agent": lambda G, X: agent(G.copy()),
    "agents in another order": lambda G, X: G[::-1],
    "entries in another order": lambda G, X: G[:, ::-1],
    "zero": lambda G, X: 0 * G,
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gradient_is_found(name, wrong):
    value, grad = SMOOTH[name]
    for X in (np.zeros((M, D)), np.random.default_rng(3).normal(size=(M, D))):
        found = mismatch(value, lambda X: WRONG[wrong](grad(X), X), X, range(M))
        assert found is not None
        assert found.row == {"entry": 2, "agent": 3}.get(wrong, 0)


def test_it_costs_three_values_and_one_gradient():
    calls = []
    value, grad = SMOOTH["logistic"]
    mismatch(
        lambda X: calls.append("value") or value(X),
        lambda X: calls.append("grad") or grad(X),
        np.zeros((M, D)),
        range(M),
    )
    assert sorted(calls) == ["grad", "value", "value", "value"]


@pytest.mark.parametrize("call", [3, 4])  # at a point near x0, and there again
def test_an_exception_that_is_not_repeated_comes_through(call):
    calls = []

    def grad(X):
        calls.append(X)
        if len(calls) == call:
            raise RuntimeError("no data any more")
        return 2 * (X - C)

    f = P.Custom(squares, grad, M, D)
    expected = pytest.raises(RuntimeError, match="no data any more")
    with mpidec.Network(M, MPI.COMM_SELF) as net, expected:
        mpidec.solve(f, S.DGD(0.3), "ring", steps=3, net=net)


def test_points_outside_of_the_domain_are_left_out():
    def grad(X):
        if (abs(X - C) > 1e-3 * abs(C)).any():
            raise ValueError("outside")
        return X - C

    assert mismatch(squares, grad, C, range(M)) is None
    found = mismatch(squares, lambda X: 2 * grad(X), C, range(M))
    assert found is not None and found.row == 0


def shifted(**options):
    """Agent 2 alone has a wrong gradient."""
    E = np.zeros((M, D))
    E[2] = 0.5
    return P.Custom(squares, lambda X: X - C + E, M, D, **options)


SAID = (
    "Custom: grad(X) is not the gradient of value(X) for agent 2: along a random direction near x0"
)


class Own:
    m, d, check = M, D, True
    value, grad = staticmethod(squares), staticmethod(lambda X: 1.0 * X)


class WithTerm(P.LeastSquares):
    def grad(self, X, agents=None):
        return super().grad(X, agents) + self.slip


@pytest.mark.serial
@pytest.mark.parametrize(
    "run",
    [
        lambda f: mpidec.solve(f, S.EXTRA(0.3), "ring", steps=3),
        lambda f: mpidec.solve(f, S.A2CiD2(0.1), "ring", steps=3),
        lambda f: mpidec.solve(P.Noisy(f, 0.1), S.DGD(0.3), "ring", steps=3),
        lambda f: mpidec.simulate(f, S.A2CiD2(0.1), "ring", steps=3),
        lambda f: mpidec.tune(f, S.EXTRA(), "ring"),
    ],
    ids=["solve", "asynchronous", "oracle", "simulate", "tune"],
)
def test_every_run_checks_the_problem_inside_unless_it_is_told_not_to(run):
    with pytest.raises(ValueError, match=re.escape(SAID)):
        run(shifted())
    run(shifted(check=False))


@pytest.mark.serial
def test_classes_of_ones_own_and_those_with_a_term_are_checked_too():
    with pytest.raises(ValueError, match=r"Own: grad\(X\) is not .* check=False"):
        mpidec.solve(Own(), S.EXTRA(0.3), "ring", steps=3)
    Own.check = False
    mpidec.solve(Own(), S.EXTRA(0.3), "ring", steps=3)
    for WithTerm.slip in (0.0, 0.1):
        f = WithTerm(A, B, term=P.elastic_net(0.2, 0.3), l2=0.1)
        if WithTerm.slip:
            with pytest.raises(ValueError, match=r"value\(X\), less the term, for agent 0"):
                mpidec.solve(f, S.NIDS(0.01), "ring", steps=3)
        else:
            mpidec.solve(f, S.NIDS(0.01), "ring", steps=3)


def test_all_ranks_name_the_same_agent():
    with mpidec.Network(M) as net:
        local = slice(net.lo, net.hi)
        E = np.zeros((M, D))
        E[2] = 0.5
        f = P.Custom(
            lambda X: ((X - C[local]) ** 2).sum(1) / 2,
            lambda X: X - C[local] + E[local],
            net.m,
            D,
        )
        with pytest.raises(ValueError, match=re.escape(SAID)):
            mpidec.solve(f, S.EXTRA(0.3), "ring", steps=3, net=net)
        assert net.sum(np.ones((net.m, 1)))[0] == M  # in step


@pytest.mark.serial
def test_complex_gradients_of_real_rows_and_what_moves_are_refused():
    right = P.Custom(squares, lambda X: X - C, M, D)
    for f in (
        P.Custom(squares, lambda X: X - C + 0j, M, D),
        type("Own", (Own,), {"grad": lambda self, X: X + 0j})(),
    ):
        with pytest.raises(TypeError, match=r"grad\(X\) is complex, expected real numbers"):
            mpidec.solve(f, S.EXTRA(0.3), "ring", steps=3)
    right.x_star = lambda k: np.zeros(D - 1)
    with pytest.raises(ValueError, match=r"x_star\(0\) is of shape .*, expected finite numbers of"):
        mpidec.solve(right, S.EXTRA(0.3), "ring", steps=3)
