"""Intervals of stable step sizes, and rates on graphs that are not, or hardly, connected."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import mpidec
from mpidec import problems, solvers, theory, topology
from mpidec.theory import noise

pytestmark = [pytest.mark.serial, pytest.mark.filterwarnings("ignore")]


def costs(n, d=1, seed=0):
    rng = np.random.default_rng(seed)
    h, g = rng.uniform(0.5, 2, (n, d)), rng.standard_normal((n, d))
    return theory.Quadratic(np.zeros(d), h[:, :, None] * np.eye(d), g - g.mean(axis=0))


def weakly(gap, n=3):
    """Two parts, with so small a gap."""
    W = np.kron(np.eye(2), np.full((n, n), 1 / n))
    swap = np.kron([[0, 1], [1, 0]], np.eye(n))
    return topology.from_weights((1 - gap / 2) * W + gap / 2 * swap @ W, connected=gap > 0)


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-9, 1e-3])
def test_averaging_falls_by_the_gap(gap):
    found = theory.rate(costs(6), solvers.Consensus(), weakly(gap))
    assert 1 - found == pytest.approx(gap, rel=1e-2, abs=1e-14)


@pytest.mark.parametrize(
    "graph",
    [weakly(0.0), topology.from_weights(np.eye(6), connected=False)],
    ids=["parts", "identity"],
)
@pytest.mark.parametrize(
    "kind", ["EXTRA", "ExactDiffusion", "NIDS", "GradientTracking", "PushPull"]
)
def test_the_error_of_exact_solvers_rests_where_parts_are_apart(kind, graph):
    solver, model = getattr(solvers, kind)(0.05), costs(6)
    assert theory.rate(model, solver, graph) == pytest.approx(1, abs=1e-12)
    assert theory.rate(model, solver, topology.ring(6)) < 0.99
    assert theory.rate(model, solvers.DGD(0.05), graph) < 0.99  # towards its own limit
    low, high = theory.largest_step(model, solver, graph)  # it comes to rest
    assert low == 0
    assert high > 0.2


@pytest.mark.parametrize("kind", ["ExactDiffusion", "EXTRA"])
def test_small_steps_are_unstable_on_a_directed_graph(kind):
    graph, model, solver = topology.exponential(16), costs(16), getattr(solvers, kind)
    low, high = theory.largest_step(model, solver(1.0), graph)
    assert 0.02 < low < 0.1 < 0.5 < high

    def rate(step):
        return theory.rate(model, solver(step), graph)

    assert rate(0.999 * low) > 1 > rate(1.001 * low)
    assert rate(0.999 * high) < 1 < rate(1.001 * high)
    for step, falls in ((0.5 * low, False), (1.5 * low, True)):
        f = problems.LeastSquares(np.sqrt(model.H), -(np.sqrt(model.H[:, 0]) ** -1) * model.g)
        X = mpidec.solve(f, solver(step), graph, steps=1500).X
        assert (abs(X - f.solution()).max() < 1e-6) == falls


def test_steps_that_are_smaller_than_those_tried_first_are_found():
    graph, model = topology.ring(40), costs(40)
    low, high = theory.largest_step(model, solvers.GradientTracking(1.0, variant="diging"), graph)
    rates = [
        theory.rate(model, solvers.GradientTracking(a * high, variant="diging"), graph)
        for a in (0.99, 1.01)
    ]
    assert low == 0 < high
    assert rates[0] < 1 < rates[1]


def test_the_mean_square_of_a_stream_is_stable_up_to_a_smaller_step(monkeypatch):
    monkeypatch.setattr(noise, "TOGETHER", 4000)
    scale = np.array([1.0, 0.5])

    def draw(rng, agent, k):
        u = scale * rng.standard_normal(2)
        return u, u.sum() + 0.1 * rng.standard_normal()

    # of Gaussian samples with the variances r, the sum of mu r / (2 - 2 mu r) is 1 at the limit
    stream = problems.Stream(draw, 2, 2, x_star=np.ones(2), held_out=5000)
    graph = topology.from_weights(np.eye(2), connected=False)
    steps = theory.largest_step(stream, solvers.Diffusion(0.1), graph)
    mu = steps.mean_square
    assert steps.high == pytest.approx(2, rel=0.05)
    assert mu == pytest.approx(0.6444, rel=0.08)
    for by, finite in ((0.97, True), (1.03, False)):
        s = theory.steady_state(stream, solvers.Diffusion(by * mu), graph)
        assert np.isfinite(s.msd).all() == finite
    assert theory.largest_step(costs(2), solvers.Diffusion(0.1), graph).mean_square > 0.9


def test_an_interval_is_a_tuple_of_two_numbers():
    steps = theory.StableSteps(0.06, 0.9, 0.5)
    low, high = steps
    assert (low, high) == steps == (0.06, 0.9)
    assert f"{steps} {steps:.1f}" == "0.06 to 0.9 (mean square: 0.5) 0.1 to 0.9 (mean square: 0.5)"
    assert np.float64(2) * steps == steps * 2 == (0.12, 1.8)
    for same in (copy.deepcopy(steps), pickle.loads(pickle.dumps(steps))):
        assert same == steps
        assert same.mean_square == 0.5
    assert str(theory.StableSteps(0.0, 0.0)) == "none"


def test_units_apply_to_each_limit():
    steps = theory.StableSteps(0.5, 4.0, mean_square=2.0)
    for scaled in (0.5 * steps, steps * np.float64(0.5)):
        assert (*scaled, scaled.mean_square) == (0.25, 2.0, 1.0)
        assert str(scaled) == "0.25 to 2 (mean square: 1)"
