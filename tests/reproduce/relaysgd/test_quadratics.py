"""Random quadratics of RelaySGD's experiments, and the search for step sizes on them."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

pytest.importorskip("torch")

from mpidec import topology
from mpidec.exceptions import ConfigError
from mpidec.reproduce.relaysgd.quadratics import (
    GRAPHS,
    SOLVERS,
    Trial,
    iterates,
    random_quadratics,
    sampled_steps,
)
from mpidec.reproduce.relaysgd.scalability import published, to_plateau
from mpidec.solvers import DGD

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("n", "zeta2", "r0", "seed", "mu"),
    [(5, 0.3, 2.0, 7, 0.5), (8, 0.0, 10.0, 1, 0.1), (3, 4.0, 1.0, 2, None)],
)
def test_instances_have_what_is_asked_for(n, zeta2, r0, seed, mu):
    f = random_quadratics(n, zeta2, r0, seed, mu=mu)
    eigenvalues = np.linalg.eigvalsh(f.H)
    np.testing.assert_allclose(eigenvalues[:, -1], 1, rtol=1e-12)
    if mu is not None:
        np.testing.assert_allclose(eigenvalues, [np.linspace(mu, 1, 10) ** 2] * n, rtol=1e-10)
    G = f.grad(np.tile(f.x_star, (n, 1)))
    np.testing.assert_allclose(G.mean(axis=0), 0, atol=1e-13 * r0)
    assert np.square(G).sum(axis=1).mean() == pytest.approx(zeta2, abs=1e-5)
    assert np.linalg.norm(f.x_star) == pytest.approx(r0)


@pytest.mark.parametrize(("n", "zeta2"), [(4, -1.0), (4, 1e10), (1, 0.1), (4, math.nan)])
def test_a_heterogeneity_without_an_instance(n, zeta2):
    with pytest.raises(ConfigError, match="expected 0 to"):
        random_quadratics(n, zeta2, 1.0, 0)


def test_points_side_by_side_are_independent():
    f = random_quadratics(4, 1.0, 1.0, 3)
    X = np.random.default_rng(0).standard_normal((4, 30))
    G = f.grad(X)
    for j in range(3):
        part = X[:, 10 * j : 10 * j + 10]
        expected = np.stack([f.H[i] @ part[i] - f.c[i] for i in range(4)])
        np.testing.assert_allclose(G[:, 10 * j : 10 * j + 10], expected, atol=1e-13)
        e = part.mean(axis=0) - f.x_star
        assert f.error(X)[j] == pytest.approx(np.mean([e @ H @ e for H in f.H]))


def test_noise_has_the_given_variance():
    f = random_quadratics(3, 0.0, 0.0, 0)
    run = iterates(f, DGD(1.0, order="atc"), topology.complete(3), sigma=0.5, copies=4000)
    mean = list(islice(run, 2))[1][0].reshape(4000, 10)
    assert np.square(mean).sum(axis=1).mean() == pytest.approx(0.25 / 3, rel=0.05)


@pytest.mark.parametrize(
    "cell",
    [
        ("gossip", "ring", 4, 0.01, 2),
        ("RelaySGD/Grad", "tree", 6, 0.01, 0),
        ("RelaySGD/Grad", "chain", 4, 0.0, 6),
        ("RelaySGD", "chain", 6, 1.0, 1),
        ("D2", "ring", 12, 0.01, 3),
        ("gradient tracking", "ring", 6, 1.0, 0),
        ("SGP", "exponential", 12, 0.01, 4),
    ],
)
def test_the_search_finds_the_published_steps_and_step_size(cell):
    solver, graph, n, zeta2, seed = cell
    biased = solver in ("gossip", "RelaySGD/Grad")
    f = random_quadratics(n, zeta2, 10.0 if biased else 100.0, seed)
    trial = Trial(f, SOLVERS[solver], GRAPHS[graph](n), to_plateau(solver, zeta2))
    found = trial.search(100.0 if biased else 10.0)
    assert found.steps == published()[cell].steps
    assert found.step_size == pytest.approx(published()[cell].step_size, rel=1e-12)


def test_ends_of_runs():
    f = random_quadratics(4, 1.0, 1.0, 0)
    ring = topology.ring(4)
    trial = Trial(f, SOLVERS["gossip"], ring, True, max_steps=200)
    assert trial.run(3.0)[0] == "large"  # diverges
    assert trial.run(0.5)[0] == "large"  # a plateau above the target
    assert trial.run(1e-4) == ("slow", sampled_steps(200)[-2])
    assert math.isinf(trial.steps(1e-4)) and trial.run(0.01, best=2)[1] < 30
