"""Pairwise methods at random times, against their expected maps and the averages of many runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mpidec
from mpidec import problems, solvers, theory, topology
from mpidec.theory.noise import Noise
from mpidec.theory.pairwise import PairwiseMoments

pytestmark = pytest.mark.serial
N = 5
H = np.linspace(0.5, 2, N)
C = np.random.default_rng(1).standard_normal(N)
C -= (H * C).sum() / H.sum()
MODEL = theory.Quadratic(np.zeros(1), H[:, None, None], (-H * C)[:, None])
X = np.linspace(-2, 3, N)
PAIRS = solvers.PairwiseGossip(0.1)


def squares(graph, solver, sigma, K, R=3000):
    """The mean squares of R runs at the times 0 .. K: all events have one clock, and each run its
    own events."""
    rng, edges = np.random.default_rng(0), topology.edge_rates(graph, solver.rate).toarray()
    i, j = np.nonzero(np.triu(edges))
    rates = np.r_[edges[i, j], np.ones(N)]
    x, found = np.tile(X, (R, 1)), [(X**2).mean()]
    b, runs = 0 * x, np.arange(R)
    for _ in range(K):
        events = rng.poisson(rates.sum(), R)
        for e in range(events.max()):
            on = runs[events > e]
            event = rng.choice(len(rates), len(on), p=rates / rates.sum())
            some, edge = on[event < len(i)], event[event < len(i)]
            mean = (x[some, i[edge]] + x[some, j[edge]]) / 2
            x[some, i[edge]] = x[some, j[edge]] = mean
            some, a = on[event >= len(i)], event[event >= len(i)] - len(i)
            g = H[a] * (x[some, a] - C[a]) + sigma * rng.standard_normal(len(a))
            b[some, a] = solver.momentum * b[some, a] + g
            x[some, a] -= solver.step_size * b[some, a]
        found.append((x**2).mean())
    return np.array(found)


@pytest.mark.parametrize(
    "solver",
    [solvers.PairwiseGossip(0.2), solvers.PairwiseGossip(0.1, momentum=0.5, rate=2.0)],
    ids=["plain", "momentum"],
)
def test_curve_and_steady_state_are_the_mean_of_many_runs(solver):
    graph = topology.star(N)
    t = theory.transient(MODEL, solver, graph, steps=30, noise=0.5, x0=X[:, None])
    found = squares(graph, solver, 0.5, 30)
    assert abs(10 * np.log10(found) - t.msd_db).max() < 0.2
    s = theory.steady_state(MODEL, solver, graph, noise=0.5)
    assert abs(10 * np.log10(found[-10:].mean()) - s.msd_db) < 0.2
    later = theory.transient(MODEL, solver, graph, steps=150, noise=0.5)
    np.testing.assert_allclose([later.bias[-1], later.noise[-1]], [s.bias, s.noise], rtol=1e-6)


def test_the_rate_of_averaging_is_that_of_the_expected_map():
    """E W (x) W, over the events, on the second moments of the disagreement; on complete graphs a
    closed form."""
    n = 6
    gossip = solvers.PairwiseGossip()
    assert theory.rate(None, gossip, topology.complete(n)) == pytest.approx(
        np.exp(-n / (4 * (n - 1)))
    )
    graph = topology.erdos_renyi(n, p=0.5, seed=2)
    rates, J, expected = topology.edge_rates(graph).tocoo(), np.eye(n) - 1 / n, 0.0
    for i, j, rate in zip(rates.row, rates.col, rates.data):
        e = (np.eye(n)[i] - np.eye(n)[j])[:, None]
        A = J @ (np.eye(n) - e @ e.T / 2)
        expected = expected + rate / 2 * np.kron(A, A)
    total = rates.data.sum() / 2
    largest = abs(np.linalg.eigvals(expected / total)).max()
    assert theory.rate(None, gossip, graph) == pytest.approx(
        np.exp(total * (largest - 1) / 2), rel=1e-9
    )


@pytest.mark.parametrize("solver", [solvers.PairwiseGossip(0.1), solvers.A2CiD2(0.1)])
def test_simulated_runs_stay_where_it_says(solver):
    """By the clocks of `mpidec.simulate`, with momentum that flows in A2CiD2, in many columns."""
    graph, d, K, c = topology.ring(N), 60, 400, 0.2 * C[:, None]
    model = dataclasses.replace(MODEL, g=0.2 * MODEL.g)
    problem = problems.Custom(
        lambda Y: (H[:, None] * (Y - c) ** 2).sum(axis=1) / 2,
        lambda Y: H[:, None] * (Y - c),
        m=N,
        d=d,
        x_star=np.zeros(d),
    )
    oracle, rows = problems.Noisy(problem, 0.5 * np.sqrt(d)), []
    metrics = {"square": lambda Y, agents, k: rows.append((Y**2).mean()) or np.zeros(len(Y))}
    mpidec.simulate(oracle, solver, graph, steps=K, every=1, metrics=metrics)
    s = theory.steady_state(model, solver, graph, noise=0.5)
    assert abs(10 * np.log10(np.mean(rows[60:])) - s.msd_db) < 0.2


def test_curvatures_of_samples():
    """Of one agent, the second moment of the error solves a linear equation of its own."""
    h, mu, v, D = 1.25, 0.3, np.array([0.3, -0.1, -0.2]), np.array([0.5, -0.2, -0.3])
    noise = Noise(np.array([[[0.09]]]), D[:, None, None, None], v[:, None, None])
    part = theory.Quadratic(np.zeros(1), np.full((1, 1, 1), h), np.zeros((1, 1)))
    graph = topology.from_weights([[1.0]])
    moments = PairwiseMoments(solvers.PairwiseGossip(mu), graph, part, noise, np.ones((1, 1)))
    speed, rest = 2 * mu * h - mu**2 * (h**2 + (D**2).mean()), mu**2 * 0.09
    cross, t = 2 * mu**2 * (D * v).mean(), np.arange(6)
    part_of_mean = cross / (speed - mu * h) * (np.exp(-mu * h * t) - np.exp(-speed * t))
    want = np.exp(-speed * t) + part_of_mean + rest / speed * (1 - np.exp(-speed * t))
    np.testing.assert_allclose(moments.course(5).sum(axis=1)[:, 0], want)
    np.testing.assert_allclose(moments.limit().sum(), rest / speed)


def test_unstable_steps_and_refusals():
    ring = topology.ring(N)
    assert np.isinf(theory.steady_state(MODEL, solvers.PairwiseGossip(1.5), ring).msd).all()
    assert theory.rate(MODEL, solvers.PairwiseGossip(1.5), ring) > 1
    large = theory.Quadratic(np.zeros(1), np.ones((60, 1, 1)), np.zeros((60, 1)))
    for call, text in [
        (
            lambda: theory.steady_state(MODEL, solvers.A2CiD2(0.1), ring, link_noise=0.1),
            "averages in pairs",
        ),
        (
            lambda: theory.transient(MODEL, PAIRS, ring, steps=1, target=np.ones((N, 1))),
            "one minimizer",
        ),
        (lambda: theory.rate(MODEL, solvers.A2CiD2(0.1, order="code"), ring), "expected 'sde'"),
        (
            lambda: theory.rate(large, solvers.PairwiseGossip(0.1), topology.ring(60)),
            "at most 48",
        ),
        (lambda: theory.rate(MODEL, solvers.AsyncPushSum(0.1), ring), "is asynchronous"),
        (lambda: theory.rate(None, solvers.PairwiseGossip(), "ring"), "problem is None"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            call()
