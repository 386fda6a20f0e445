"""Races: their windows, what drops out, and what explodes on the way."""

from types import SimpleNamespace

import numpy as np
import pytest
from programs import stepsizes

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver.stepsize import race


@pytest.mark.serial
@pytest.mark.parametrize("drops", [False, True])
def test_a_step_size_whose_errors_explode_on_the_way_is_not_the_most_accurate(drops):
    """Also where it has come back by the last step, and whether or not it can be left out of the trial."""

    class Stack:
        sizes, E = np.array([0.3, 0.2, 0.1]), np.ones((1, 1, 3))

        def run(self, k):
            errors = {0.3: 0.0 if k > 32 else 1e100, 0.2: 0.9**k, 0.1: 0.99**k}
            self.E = np.array([[[errors[size] for size in self.sizes]]])

        def keep(self, kept):
            if drops:
                self.sizes, self.E = self.sizes[kept], self.E[..., kept]
            return drops

    model = SimpleNamespace(
        n=1, size=1.0, distance=1.0, curvature=1.0, mean=np.eye(1), start=np.ones((1, 1))
    )
    criterion = race.ErrorAfter(64, noisy=False, decreasing=False)
    found = criterion.race(lambda sizes, start: Stack(), model, np.array([0.3, 0.2, 0.1]))
    assert np.isinf(found.predicted[0]) and found.size == 0.2
    np.testing.assert_allclose(found.predicted[1:], [0.9**64, 0.99**64], rtol=1e-9)


@pytest.mark.serial
def test_a_race_goes_on_with_larger_steps_where_its_largest_is_the_best():
    """Half steps that arrive late make the average of RelaySGD slow, and stable with large steps."""
    n = 24
    rng = np.random.default_rng(7)
    A = rng.standard_normal((n, 30, 5)) * np.logspace(0.7, -0.5, 5)
    b = A.sum(axis=2) + rng.standard_normal((n, 30)) + rng.standard_normal((n, 1))
    found = mpidec.tune(P.LeastSquares(A, b), S.RelaySGD(), T.binary_tree(n), steps=2000)
    assert found.step_size > 2.4 / found.curvature
    assert found.tried[0] > found.step_size and np.isinf(found.predicted[0])


@pytest.mark.serial
def test_a_race_of_implicit_steps_reaches_those_of_the_slow_directions():
    """They are stable with any step size; one of about the inverse of the largest curvature leaves all as it is."""
    rng = np.random.default_rng(3)
    A = rng.normal(size=(4, 9, 5)) * [1, 1, 10, 1e3, 1e5]
    problem = P.LeastSquares(A, A @ [3, -2, 0.1, 1e-3, 1e-5] + rng.normal(size=(4, 9)))
    problem.x_star = problem.solution()
    result = mpidec.solve(problem, S.ADMM(), T.ring(4), steps=60, every=60)
    assert result.choice.expected < 1e5 and result.metrics["error"][-1] < 0.9


@pytest.mark.serial
def test_step_sizes_that_dropped_out_are_not_chosen():
    """Far from the minimizer, the first steps of tiny step sizes look fast: their early predictions are too good."""
    pytest.importorskip("sklearn")
    problem, x = stepsizes.make("diabetes", 16)
    x0 = 10 * np.linalg.norm(x) * np.random.default_rng(1).standard_normal(len(x)) / np.sqrt(len(x))
    choice = mpidec.tune(problem, S.EXTRA(), T.ring(16), x0=x0)
    steps, _ = stepsizes.scan(
        problem, S.EXTRA(), T.ring(16), choice.step_size * np.array([0.5, 1, 2]), x, 12000, x0=x0
    )
    assert steps[1] <= 1.3 * steps.min() < np.inf
