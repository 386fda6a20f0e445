"""What is said of missed targets, and what is not: sentences that were false once, and the runs in which they were."""

import re
import warnings

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver.verdict import verdict

pytestmark = pytest.mark.serial

N, D = 6, 3
RNG = np.random.default_rng(7)
A = RNG.standard_normal((N, 5, D))
B = A @ np.arange(1.0, 4.0) + 0.5 * RNG.standard_normal((N, 5))
RING, FAILING = T.ring(N), T.failing_links(T.ring(N), 0.5)


def least_squares(scales=1.0, away=0.0, same=False):
    made = P.LeastSquares(*((part[:1].repeat(N, 0) if same else part) for part in (A * scales, B)))
    made.x_star = made.solution() + away
    return made


def custom(value, grad, x_star=None):
    return P.Custom(lambda X: value(X).sum(axis=1), grad, m=N, d=2, smoothness=12.0, x_star=x_star)


ONES = np.ones(2)
QUARTIC = custom(lambda X: (X - 1) ** 4, lambda X: 4 * (X - 1) ** 3, ONES)
WELLS = custom(lambda X: X**4 / 4 - X**2 / 2, lambda X: X**3 - X, ONES)
LINEAR = custom(lambda X: X, np.ones_like)
FLAT, LOW = {"gradient_norm": 1e-6}, {"objective": 0.0}
NOISE = {"mixing": lambda W: W.noisy(1e-9)}
MORE = "more steps"


@pytest.mark.parametrize(
    "problem, solver, graph, steps, options, said, never",
    [
        (least_squares(), S.DGD(0.02), RING, 400, {}, "a bias, .* shrinks with the step", MORE),
        (least_squares(), S.PushSum(0.02), FAILING, 200, {}, "a bias, .* shrinks", MORE),
        (least_squares(same=True), S.DGD(0.02), RING, 100, {}, MORE, "bias"),
        (least_squares(), S.Diffusion(0.02), T.complete(N), 60, {}, MORE, "bias"),
        (least_squares(), S.Adam(S.GradientTracking(0.02)), RING, 900, {}, "need not shrink", "smaller"),
        (least_squares(), S.ExactDiffusion(0.1), RING, 500, {"stop": {"error": 1e-30}}, "accuracy of float64", "flat"),
        (least_squares(away=0.5), S.ExactDiffusion(0.1), RING, 500, {}, "x_star is not where the gradient", "accuracy"),
        (least_squares(away=1e-7), S.ExactDiffusion(0.1), RING, 500, {"stop": {"error": 1e-9}}, "x_star is not", "accuracy"),
        (least_squares(away=0.5), S.DGD(0.02), RING, 400, {}, "x_star is not where", "bias"),
        (P.SARAH(least_squares(), 1, period=10**6), S.ExactDiffusion(0.01), RING, 600, {}, "gradients of SARAH", "accuracy"),
        (least_squares(np.geomspace(1e-6, 1e6, D)), S.ExactDiffusion(1e-13), RING, 300, {}, "the columns .* differ", "accuracy"),
        (least_squares(), S.ExactDiffusion(1e-9), RING, 100, {}, "a step size larger than 1e-09", "accuracy"),
        (least_squares(), S.ExactDiffusion(0.02), RING, 60, NOISE, "it still falls; channel noise", "plateau"),
        (QUARTIC, S.GradientTracking(0.05), RING, 300, {}, "it has fallen from", MORE + " at this rate"),
        (WELLS, S.GradientTracking(0.1), RING, 300, {"x0": -ONES / 2}, "several stationary points", "accuracy"),
        (LINEAR, S.GradientTracking(0.1), RING, 100, {"stop": FLAT}, "may be unbounded below", "step size"),
        (least_squares(), S.DGD(0.02), RING, 400, {"stop": LOW}, "objective has plateaued .* a bias", MORE),
        (least_squares(), S.ExactDiffusion(0.1), RING, 500, {"stop": LOW}, "target lies below the objective", "bias"),
    ],
)  # fmt: skip
def test_the_cause_is_the_one_of_this_run(problem, solver, graph, steps, options, said, never):
    given = {"stop": {"error_rms": 1e-6}} | options
    missed = mpidec.solve(problem, solver, graph, steps=steps, **given)
    assert missed.outcome == "missed"
    assert re.search(said, missed.reason) and never not in missed.reason, missed.reason


def test_a_simulation_that_plateaus_with_the_safe_step_size_is_not_told_to_take_a_larger_one():
    stop = {"error_rms": 1e-6}
    missed = mpidec.simulate(
        least_squares(), S.PairwiseGossip("safe"), RING, steps=400, stop=stop, every=5
    )
    assert missed.outcome == "missed" and "PairwiseGossip is a method with a bias" in missed.reason
    assert "larger" not in missed.reason and MORE not in missed.reason


def test_a_fall_without_end_is_not_called_growth_or_plateau():
    fallen = mpidec.solve(LINEAR, S.GradientTracking(0.1), RING, steps=100).verdict
    assert fallen.startswith("the objective has fallen from 0 to -")
    steps = np.arange(0, 110, 10)
    values = np.append(0.5 ** steps[:-1], 0.0)
    ended = {"step": steps, "gradient_norm": values, "consensus": 2.0 * steps}
    assert verdict(ended) == "gradient_norm is 0 since step 100, and consensus 2e+02"


def test_a_search_names_no_convexity_and_no_minimizer_where_it_cannot_know():
    zero = P.LeastSquares(np.zeros((N, 4, 2)), np.ones((N, 4)))
    concave = custom(lambda X: -(X**2) / 2, lambda X: -X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mpidec.solve(zero, "exact_diffusion", RING, steps=20)
        (told,) = [str(one.message) for one in caught]
        mpidec.solve(concave, "exact_diffusion", RING, steps=100, x0=ONES)
    assert "the largest curvature is zero" in told and "convex" not in told
    assert not any("minimizer" in str(one.message) for one in caught[1:])
