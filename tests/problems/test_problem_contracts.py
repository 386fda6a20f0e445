"""`mpidec.testing.check_problem`: problems of this package have the properties, and faults are found."""

import numpy as np
import pytest

from mpidec import problems as P
from mpidec.testing import ContractError, ProblemContract, check_problem

RNG = np.random.default_rng(0)
A, Y = RNG.standard_normal((24, 3)), RNG.standard_normal(24)
C = RNG.standard_normal((3, 2))
pytestmark = pytest.mark.serial


def squares(**options):
    return P.load_problem((A, Y), n=3, problem="least_squares", **options)


class TestSVRG(ProblemContract):
    problem = P.SVRG(squares(), 2)


@pytest.mark.parametrize(
    "problem",
    [
        squares(l1_total=2.0),
        P.load_problem((A, np.arange(24) % 3), n=3, problem="softmax", l2_total=1.0),
        P.Noisy(squares(), 0.3),
        P.Subgradient(squares(l1_total=2.0)),
        P.Custom(lambda X: ((X - C) ** 2).sum(1) / 2, lambda X: X - C, 3, 2, smoothness=1.0),
        P.Stream(lambda rng, i, k: (rng.standard_normal(2), i), 3, 2, x_star=np.zeros(2)),
    ],
    ids=str,
)
def test_problems_have_the_properties(problem):
    check_problem(problem)


class Squares:
    """The function of `half` and `slope`, with some members replaced."""

    m, d, x_star = 3, 2, C.mean(axis=0)
    smoothness = np.ones(3)

    def value(self, X):
        return ((X - C) ** 2).sum(axis=1) / 2

    def grad(self, X, agents=None):
        return X - (C if agents is None else C[agents])

    def prox(self, V, t):
        t = np.broadcast_to(t, (3,))[:, None]
        return (V + t * C) / (1 + t)


class Tiny(Squares):
    """In small units."""

    smoothness = np.full(3, 1e-9)

    def value(self, X):
        return 1e-9 * super().value(X)

    def grad(self, X, agents=None):
        return 1e-9 * super().grad(X, agents)

    def prox(self, V, t):
        return super().prox(V, 1e-9 * np.asarray(t))


class Bare:
    """What a problem must have, and no more."""

    m, d, value, grad = 3, 2, Squares.value, Squares.grad


def drifting():
    kept = np.zeros((3, 2))

    def grad(self, X, agents=None):
        if agents is not None:
            return X - C[agents]
        kept[:] = X - C
        return kept

    return grad


def in_place(self, X):
    X -= C
    return (X**2).sum(axis=1) / 2


def coupled(self, X, agents=None):
    return X - C if agents is not None else X - C + 1e-9 * (X.mean(axis=0) - X[0])


class Batches:
    problem = Squares()
    weight = 2.0

    def start(self, agents, seed):
        def gradient(X, k):
            return self.weight * (X - C) + np.random.default_rng([seed, k]).standard_normal(X.shape)

        return gradient


def unseeded(self, agents, seed):
    return lambda X, k: X - C + np.random.default_rng().standard_normal(X.shape)


@pytest.mark.parametrize(
    "name, base, members",
    [
        ("shapes", Squares, {"value": lambda self, X: ((X - C) ** 2).sum() / 2}),
        ("differences", Squares, {"grad": lambda self, X: X - C + 0.5}),
        ("differences", Squares, {"value": lambda self, X: ((X - C) ** 2).sum(axis=1)}),
        ("rows", Squares, {"grad": coupled}),
        ("subsets", Squares, {"grad": lambda self, X, agents=None: X - C[: len(X)]}),
        ("in_place", Squares, {"value": in_place}),
        ("in_place", Squares, {"grad": drifting()}),
        ("smoothness", Squares, {"smoothness": np.array([1.0, 0.9, 1.0])}),
        ("smoothness", Tiny, {"smoothness": np.full(3, 0.5e-9)}),
        ("minimizer", Squares, {"x_star": C[0]}),
        ("minimizer", Squares, {"solution": lambda self: C.sum(axis=0)}),
        ("prox", Squares, {"prox": lambda self, V, t: Squares.prox(self, V, 2 * t)}),
        ("draws", Batches, {}),
        ("draws", Batches, {"start": unseeded}),
    ],
)
def test_faults_are_found(name, base, members):
    for right in (Squares, Tiny, Bare):
        check_problem(right())
    with pytest.raises(ContractError, match=rf"fails '{name}': .*; "):
        check_problem(type("Mine", (base,), members)())
