"""Verdicts on runs: plateaus, falls, grows, or does not move."""

import re
import warnings

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver.verdict import limit_of, verdict

pytestmark = pytest.mark.serial

N, D = 8, 3


def problem(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    made = P.LeastSquares(rng.standard_normal((N, 5, D)), scale * rng.standard_normal((N, 5)))
    made.x_star = made.solution()
    return made


def solved(solver, topology=T.ring, steps=1000, made=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = topology(N) if callable(topology) else topology
        return mpidec.solve(
            problem() if made is None else made, solver, graph, steps=steps, **options
        )


PERIODIC = np.roll(np.eye(N), 1, axis=1)


@pytest.mark.parametrize(
    "solver, topology, steps, options, said",
    [
        (S.DGD(0.02), T.ring, 2000, {}, r"error_rms has plateaued at 0\.\d+ since step \d+$"),
        (S.DGD(0.02), T.ring, 2000, {"mixing": lambda W: W.compress("qsgd")}, "has plateaued at"),
        (S.ExactDiffusion(0.02), T.ring, 4000, {}, r"has plateaued at .*e-1[4-7] since step"),
        (S.EXTRA(0.01), T.ring, 100, {}, "error_rms still falls"),
        (S.DGD(1e-4), T.ring, 1000, {}, "error_rms still falls"),
        (S.DGD(1e-12), T.ring, 1000, {}, "no progress: error_rms is 1, as at the start$"),
        (S.DGD(1e-9), T.ring, 100, {"x0": np.full(D, 1e100)}, "no progress: error_rms is"),
        (S.GradientTracking(0.02), PERIODIC, 300, {}, r"has grown from 1 to|farther than"),
    ],
)  # fmt: skip
def test_one_true_word_about_a_run(solver, topology, steps, options, said):
    result = solved(solver, topology, steps, **options)
    assert result.outcome in ("completed", "diverged")
    if result.outcome == "completed":
        assert re.search(said, result.verdict), result
        assert result.verdict in repr(result)


def test_noise_rests_at_its_floor():
    result = solved(S.DGD(0.02), T.ring, 2000, P.Noisy(problem(), 1.0))
    assert re.match(r"error_rms has plateaued at 0\.\d+ since step \d+$", result.verdict), result


@pytest.mark.parametrize("steps", [150, 250, 400, 600, 1000])
def test_a_method_with_a_bias_is_not_told_to_take_more_steps_than_to_its_bias(steps):
    result = solved(S.DGD(0.02), T.ring, steps, stop={"error_rms": 1e-6})
    bias = solved(S.DGD(0.02), T.ring, 4000).metrics["error_rms"][-1]
    assert result.outcome == "missed" and "more steps at this rate" not in result.reason
    assert "a method with a bias" in result.reason
    found = re.search(r"plateaued at ([\d.e-]+)", result.reason)
    assert found is None or np.isclose(float(found[1]), bias, rtol=0.3)


def test_a_periodic_w_is_warned_of():
    with pytest.warns(RuntimeWarning, match=r"periodic .*\(I \+ W\) / 2"):
        T.from_weights([[0, 1], [1, 0]])
    with pytest.warns(RuntimeWarning, match="period 3"):
        T.from_weights(np.roll(np.eye(3), 1, axis=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        T.from_weights([[0, 1, 0], [0.5, 0, 0.5], [0.5, 0.5, 0]])
        T.from_weights([[0.5, 0.5], [0.5, 0.5]])


def test_growth_from_a_start_at_the_solution_is_rounding():
    steps = np.arange(0, 400, 10)
    values = np.concatenate([[1e-16], 0.8 ** steps[1:]])
    assert verdict({"step": steps, "error_rms": values}) == "error_rms still falls"


def test_where_a_sequence_ends():
    """Exact for geometric ones; nothing is said of what does not fall, or does not fall ever less."""
    rng, k = np.random.default_rng(0), np.arange(17.0)
    for _ in range(50):
        v, c, rho = rng.uniform(0.1, 1), rng.uniform(0.1, 5), rng.uniform(0.5, 0.95)
        assert limit_of(v + c * rho**k) == pytest.approx(v, rel=1e-6)
        values = np.sort(rng.uniform(1, 2, 17))[::-1]
        assert 0 <= limit_of(values) < values[-1]
    for none in (20 - k, 400 - k**2, 1 + k, np.ones(17), 1 + 0.9 ** k[::-1], 0.5 - k, 0.9 ** k[:4]):
        assert limit_of(none) == 0


@pytest.mark.parametrize("level", [0.01, 0.4, 0.7, 1.5, 1.9, 2.2, 40.0])
def test_a_plateau_is_called_farther_than_the_start_where_it_is(level):
    steps = np.arange(0, 2000, 10)
    values = level + (1 - level) * 0.98**steps
    said = verdict({"step": steps, "error_rms": values})
    assert f"has plateaued at {level:.2g} since" in said
    assert ("farther than at the start (1)" in said) == (level > 2)
