"""Terms with a prox, and the solutions of problems with a term, scale, intercept: against scikit-learn and scipy.  No MPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.optimize
from helpers.proximal import PEXTRA
from helpers.sets import first

import mpidec
from mpidec.problems import (
    Custom,
    Huber,
    LeastSquares,
    LogisticRegression,
    MiniBatch,
    Separable,
    Simplex,
    Softmax,
    Subgradient,
    box,
    elastic_net,
    l1,
    load_problem,
    minimizer,
    simplex,
)
from mpidec.solvers import ADMM, DGD, Solver

pytestmark = pytest.mark.serial

TERMS = {
    "l1": l1(0.4),
    "elastic net": elastic_net(0.3, 0.5),
    "box": box(-0.2, 0.3),
    "bounded l1": Separable(l1=0.3, lower=0.0),
    "simplex": simplex(1.5),
}
RNG = np.random.default_rng(3)
A, Y = RNG.normal(size=(60, 5)) * [1, 2, 1, 0.5, 1], RNG.normal(size=60)


def losses(**options) -> dict[str, Any]:
    S = A.reshape(4, 15, 5), Y.reshape(4, 15)
    return {
        "least squares": LeastSquares(*S, **options),
        "huber": Huber(*S, delta=0.7, **options),
        "logistic": LogisticRegression(S[0], np.where(S[1] > 0, 1, -1), **options),
        "softmax": Softmax(S[0], np.digitize(S[1], [-0.5, 0.5]), classes=3, **options),
    }


LOSSES = list(losses())


@pytest.mark.parametrize("name", TERMS)
def test_prox_is_the_minimizer(name):
    """No point nearby is better, among those that hold the constraint; t differs from row to row."""
    term, t = TERMS[name], np.array([0.3, 2.0])
    V = RNG.normal(size=(2, 4))
    X = term.prox(V, t)

    def cost(Z):
        return term.value(Z) + ((Z - V) ** 2).sum(axis=1) / (2 * t)

    np.testing.assert_allclose(term.prox(X, 1e-300), X, atol=1e-14)  # it is feasible
    for _ in range(300):
        Z = term.prox(X + 0.1 * RNG.normal(size=X.shape), 1e-300)  # a feasible point nearby
        assert (cost(Z) >= cost(X) - 1e-14).all()


def test_proxes_in_closed_form():
    V = np.array([[3.0, -0.5, 1.0]])
    assert l1(1.0).prox(V, 2.0).tolist() == [[1.0, 0.0, 0.0]]
    assert elastic_net(1.0, 0.5).prox(V, 2.0).tolist() == [[0.5, 0.0, 0.0]]
    assert box(0, 2).prox(V, 2.0).tolist() == [[2.0, 0.0, 1.0]]
    assert simplex(1.0).prox(V, 2.0).tolist() == [[1.0, 0.0, 0.0]]
    assert Separable(l1=1.0, free=1).prox(V, 1.0).tolist() == [[2.0, 0.0, 1.0]]
    assert Simplex(1.0, free=1).prox(V, 1.0).tolist() == [[1.0, 0.0, 1.0]]
    np.testing.assert_allclose(l1(0.5).subgradient(V), [[0.5, -0.5, 0.5]])
    assert V.tolist() == [[3.0, -0.5, 1.0]]


@pytest.mark.parametrize(
    "options", [{"l2": -1}, {"l1": np.nan}, {"lower": 1.0, "upper": 1.0}, {"lower": np.nan}]
)
def test_wrong_terms_are_refused(options):
    with pytest.raises(ValueError, match=r"expected"):
        Separable(**options)
    with pytest.raises(ValueError, match="simplex is 0"):
        simplex(0)
    with pytest.raises(ValueError, match="expected simplex alone"):
        load_problem((A, Y), n=4, simplex=1.0, l1=0.1)


@pytest.mark.parametrize("weight, intercept", [(1.0, False), (0.25, True)])
@pytest.mark.parametrize("term", [None, *TERMS])
@pytest.mark.parametrize("name", LOSSES)
def test_solution_and_prox_meet_the_optimality_condition(name, term, weight, intercept):
    r = None if term is None else TERMS[term]
    problem = losses(l2=0.1, weight=weight, intercept=intercept, term=r)[name]
    r = problem.term
    x, t = problem.solution(), 1 / problem.smoothness.max()

    def step(X, G):
        return X - t * G if r is None else r.prox(X - t * G, t)

    X = np.tile(x, (4, 1))
    g = problem.grad(X).mean(axis=0)
    np.testing.assert_allclose(step(x[None], g[None])[0], x, atol=1e-10)
    V = RNG.normal(size=X.shape)
    P = problem.prox(V, 0.7)
    np.testing.assert_allclose(step(P, problem.grad(P) + (P - V) / 0.7), P, atol=1e-9)


@pytest.mark.parametrize("term", [None, *TERMS])
@pytest.mark.parametrize("name", ["least squares", "logistic", "softmax"])
def test_proximal_points_of_all_agents_at_once_are_those_of_each(name, term, monkeypatch):
    problem = losses(l2=0.1, weight=0.5, term=None if term is None else TERMS[term])[name]
    V, t = 2 * RNG.normal(size=(4, problem.d)), np.array([1e-3, 0.1, 1.0, 30.0])
    ridge = problem.l2 + 1 / t
    each = [
        problem._minimize(problem.A[i], problem._Y[i], ridge[i], V[i] / t[i], V[i], 1)
        for i in range(4)
    ]
    monkeypatch.setattr(type(problem), "_minimize", None)  # what is slower is not called
    P = problem.prox(V, t)
    np.testing.assert_allclose(P, each, atol=1e-12)
    alone = type(problem)(problem.A[1:2], problem.y[1:2], **problem.options)
    np.testing.assert_array_equal(alone.prox(V[1:2], t[1:2]), P[1:2])


def test_proximal_points_are_found_sooner_from_points_nearby(monkeypatch):
    problem, formed = losses(l2=0.1, term=TERMS["l1"])["logistic"], []
    curvature = problem._curvature
    monkeypatch.setattr(
        problem, "_curvature", lambda T, Y: formed.append(len(T)) or curvature(T, Y)
    )
    V = RNG.normal(size=(4, problem.d))
    P = problem.prox(V, 1.0)
    far = len(formed)
    np.testing.assert_allclose(problem.prox(V, 1.0, P + 1e-7), P, atol=1e-13)
    assert len(formed) - far <= 2 < far
    monkeypatch.setattr(problem, "prox", lambda V, t, start: starts.append(start) or V + 1)
    starts: list[np.ndarray] = []
    mpidec.solve(problem, ADMM(0.3), mpidec.topology.ring(4), steps=2)
    assert [start[0, 0] for start in starts] == [0, 1]  # the points of the last step


@pytest.mark.parametrize("term", [None, Separable(l1=0.1)])
def test_intercepts_of_classes_sum_to_zero_as_those_of_gradient_methods(term):
    rng = np.random.default_rng(4)
    A = np.concatenate([rng.standard_normal((3, 9, 2)), np.ones((3, 9, 1))], axis=2)
    y = rng.integers(0, 4, (3, 9))
    problem = Softmax(A, y, classes=4, l2=0.2, term=term, intercept=True)
    assert abs(problem.solution()[-4:].sum()) < 1e-12


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_with_weight_and_intercept(name):
    problem = losses(l2=0.3, weight=0.2, intercept=True)[name]
    X, h = RNG.normal(size=(4, problem.d)), 1e-6
    slopes = [
        (problem.value(X + h * e) - problem.value(X - h * e)) / (2 * h) for e in np.eye(problem.d)
    ]
    np.testing.assert_allclose(problem.grad(X), np.array(slopes).T, rtol=1e-6, atol=1e-7)
    gradient = MiniBatch(problem, 15).start(range(4), 0)
    np.testing.assert_allclose(gradient(X, 3), problem.grad(X), rtol=1e-12)
    both = type(problem).concatenate([problem, problem])
    assert np.array_equal(both.value(np.tile(X, (2, 1)))[4:], problem.value(X))


def test_lasso_and_elastic_net_are_those_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    for options in ({"l1_total": 6.0}, {"l1_total": 12.0, "l2_total": 5.0}):
        for scale in ("sum", "mean"):
            problem = load_problem(
                (A, Y), 4, "least_squares", intercept=True, scale=scale, **options
            )
            l1_, l2_ = options["l1_total"] / 60, options.get("l2_total", 0) / 60
            peer = linear.ElasticNet(
                alpha=l1_ + l2_, l1_ratio=l1_ / (l1_ + l2_), tol=1e-14, max_iter=10**6
            ).fit(A, Y)
            np.testing.assert_allclose(problem.x_star, [*peer.coef_, peer.intercept_], atol=1e-8)
            assert (problem.x_star == 0).any()


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated")
@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_logistic_regression_is_that_of_scikit_learn(penalty):
    linear = pytest.importorskip("sklearn.linear_model")
    names = np.where(Y > 0.3, "well", "ill")
    C = 0.5
    amounts = {"l2": {"l2_total": 1 / C}, "l1": {"l1_total": 1 / C, "l2_total": 0.0}}[penalty]
    problem = load_problem((A, names), 4, intercept=penalty == "l2", scale="mean", **amounts)
    if penalty == "l2":
        peer = linear.LogisticRegression(C=C, tol=1e-12, max_iter=10**5).fit(A, names)
        np.testing.assert_allclose(problem.x_star, [*peer.coef_[0], peer.intercept_[0]], atol=1e-6)
        assert (
            (A @ problem.x_star[:-1] + problem.x_star[-1] > 0) == (peer.predict(A) == "well")
        ).all()
    else:
        peer = linear.LogisticRegression(
            C=C,
            solver="saga",
            l1_ratio=1.0,
            penalty="elasticnet",
            fit_intercept=False,
            tol=1e-13,
            max_iter=10**5,
        ).fit(A, names)
        np.testing.assert_allclose(problem.x_star, peer.coef_[0], atol=1e-6)


def test_box_and_simplex_are_those_of_scipy():
    problem = load_problem((A, Y), 4, "least_squares", lower=-0.05, upper=0.08)
    peer = scipy.optimize.lsq_linear(A, Y, (-0.05, 0.08), method="bvls", tol=1e-14)
    np.testing.assert_allclose(problem.x_star, peer.x, atol=1e-12)
    assert {-0.05, 0.08} & set(problem.x_star.tolist())
    problem = load_problem((A, Y), 4, "huber", simplex=0.5)
    peer = scipy.optimize.minimize(
        lambda x: problem_value(A, Y, x),
        np.full(5, 0.1),
        bounds=[(0, None)] * 5,
        method="SLSQP",
        constraints={"type": "eq", "fun": lambda x: x.sum() - 0.5},
        options={"ftol": 1e-15},
    )
    np.testing.assert_allclose(problem.x_star, peer.x, atol=1e-6)
    assert abs(problem.x_star.sum() - 0.5) < 1e-14


def problem_value(A, Y, x):
    r = np.abs(A @ x - Y)
    return np.where(r <= 1, r * r / 2, r - 0.5).sum()


def test_the_solution_does_not_depend_on_n_where_it_says_so():
    def x_star(n, **options):
        return load_problem((A, Y > 0), n, "logistic", **options).x_star

    for options in (
        {},
        {"scale": "mean"},
        {"scale": "mean", "l2": 0.3, "l1": 0.01},
        {"l2_total": 3.0, "l1_total": 1.0},
    ):
        np.testing.assert_allclose(
            x_star(4, **options), x_star(7, **options), rtol=1e-9, atol=1e-12
        )
    np.testing.assert_allclose(x_star(4), x_star(7, scale="mean"), rtol=1e-9)
    assert np.linalg.norm(x_star(4, l2=0.3) - x_star(8, l2=0.3)) > 1e-3
    mean = load_problem((A, Y > 0), 7, "logistic", scale="mean")
    X = np.zeros((7, 5))
    assert mean.value(X).mean() == pytest.approx(np.log(2))


def test_the_minimizer_of_functions_with_gradients_only():
    problem = losses(l2=0.1)["logistic"]
    own = Custom(problem.value, problem.grad, problem.m, problem.d)
    np.testing.assert_allclose(minimizer(own), problem.solution(), atol=1e-13)
    with pytest.raises(ValueError, match="201 unknowns, expected at most 200"):
        minimizer(Custom(problem.value, problem.grad, 4, 201))
    with pytest.raises(ValueError, match="no finite minimizer"):
        minimizer(Custom(lambda X: X[:, 0], np.ones_like, 2, 1))


@dataclass(frozen=True)
class PGEXTRA(Solver):
    """PG-EXTRA (W. Shi, Q. Ling, G. Wu, W. Yin, IEEE TSP 63 (2015)): EXTRA with a proximal step for the term."""

    step_size: float
    term: Any = None

    class State(NamedTuple):
        X: np.ndarray
        Z: np.ndarray
        D: np.ndarray  # W X - step_size G of the step before

    def init(self, X, W=None):
        return self.State(X, np.zeros_like(X), np.zeros_like(X))

    def step(self, s, G, W):
        WX = W(s.X)
        D = (s.X + WX) / 2 - self.step_size * G
        Z = s.Z + WX - self.step_size * G - s.D if s.D.any() else WX - self.step_size * G
        return self.State(self.term.prox(Z, self.step_size), Z, D)


@pytest.mark.parametrize("amounts", first([{"simplex": 0.5}, {"l1": 1.5}, {"lower": 0.0}]))
def test_proximal_solvers_reach_the_solution(amounts):
    problem = load_problem((A, Y), 4, "least_squares", **amounts)
    step = 0.3 / problem.smoothness.max()
    for solver, steps, accuracy in ((PGEXTRA(step), 3000, 1e-9), (PEXTRA(0.05), 800, 1e-7)):
        result = mpidec.solve(problem, solver, "complete", steps=steps, every=steps)
        np.testing.assert_allclose(result.X, np.tile(problem.x_star, (4, 1)), atol=accuracy)
    if "l1" in amounts:
        result = mpidec.solve(
            Subgradient(problem), DGD(step / 10), "complete", steps=4000, every=4000
        )
        np.testing.assert_allclose(result.x, problem.x_star, atol=0.02)


@pytest.mark.serial
@pytest.mark.parametrize("name", TERMS)
def test_rows_within_faces_are_feasible_and_stay_if_they_are(name):
    """`within` leaves a row that lies on the face of its own proximal point, and makes any row one that the term admits."""
    term, rng = TERMS[name], np.random.default_rng(0)
    P, X = term.prox(rng.standard_normal((20, 5)), 0.3), 3 * rng.standard_normal((20, 5))
    np.testing.assert_allclose(term.within(P, P), P, atol=1e-12)
    Y = term.within(X, P)
    np.testing.assert_allclose(term.prox(Y, 0.0), Y, atol=1e-12)
    np.testing.assert_allclose(term.within(Y, P), Y, atol=1e-12)
