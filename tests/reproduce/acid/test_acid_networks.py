"""A2CiD2's trainings: gradients of the perceptron, published tables, large rings."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from mpidec.reproduce import measure, publish
from mpidec.reproduce.acid.networks import FAST, PLAIN, AcidFigure4, AcidTable5, Table4
from mpidec.reproduce.acid.perceptron import Perceptron

pytestmark = pytest.mark.serial


def test_gradients_of_the_perceptron():
    """Against differences; a batch of all images has the gradient of all."""
    problem, rng = Perceptron(3, hidden=5, batch=4), np.random.default_rng(0)
    X = np.stack([problem.initial(seed) for seed in range(3)])
    D = rng.standard_normal(X.shape)
    slope = (problem.value(X + 1e-6 * D) - problem.value(X - 1e-6 * D)) / 2e-6
    np.testing.assert_allclose((problem.grad(X) * D).sum(axis=1), slope, rtol=1e-6)
    np.testing.assert_allclose(problem.grad(X[[0, 0, 0]])[2], problem.grad(X)[0], rtol=1e-12)
    gradient = problem.start(range(3), seed=1)
    draws = np.random.default_rng((1, 2)).integers(len(problem.y), size=(2, 4))
    for rows in draws:  # of agent 2 alone
        expected = problem._gradient(X[2:], problem.A[None, rows], problem.Y[None, rows])
        np.testing.assert_allclose(gradient(X[2:], 0, agents=[2]), expected, rtol=1e-12)


def test_published():
    assert Table4.rows[FAST][64] - Table4.rows[PLAIN][64] == pytest.approx(1.18)
    assert AcidTable5.rows["ring", "A2CiD2", 2.0] == {16: 75.3, 32: 74.4, 64: 71.4}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a2cid2_keeps_large_rings_together(tmp_path):
    rings, path = AcidFigure4(seeds=(1, 2)), str(tmp_path / "rings.h5")
    measure(rings, path)
    assert not publish(rings, path).failed
