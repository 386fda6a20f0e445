"""Adaptive step sizes: agents that do not move, and graphs that turn the rows."""

import numpy as np
import pytest

from mpidec import solvers as S, topology as T


@pytest.mark.serial
def test_an_agent_that_does_not_move_keeps_its_adaptive_step_size():
    """The others take the smaller of two limits, or the one that is known, of their own last steps."""
    solver, rng = S.AdaptiveGradientTracking(0.1), np.random.default_rng(0)
    s, curvature = solver.init(rng.standard_normal((4, 3))), np.array([0.0, 0.1, 4.0, 1.0])[:, None]

    def alone(X):
        return X

    X, etas, ratios = [s.X], [np.full(4, 0.1)], [np.ones(4)]
    for k in range(6):
        G = curvature * X[-1] + 1.0 * (curvature > 0)  # agent 0 stays where it is
        s = solver.step(s, G, alone)
        if k > 1:
            moved, turned = (
                np.linalg.norm(A, axis=1) for A in (X[-1] - X[-2], curvature * (X[-1] - X[-2]))
            )
            largest = np.sqrt(1 + ratios[-1]) * etas[-1]
            limit = moved / np.where(turned > 0, 2 * turned, 1)
            etas += [np.where(turned > 0, np.minimum(largest, limit), etas[-1])]
            ratios += [etas[-1] / etas[-2]]
        np.testing.assert_allclose(s.eta[:, 0], etas[-1], rtol=1e-12)
        X += [s.X]
    assert s.eta[0] == 0.1 and (s.eta[1:] != 0.1).all()


def test_adaptive_step_sizes_warn_of_eigenvalues_that_turn():
    ring = lambda n, g: T.from_weights((1 - g) * np.eye(n) + g * np.roll(np.eye(n), 1, axis=0))
    adaptive = S.AdaptiveGradientTracking()
    for graph in (ring(5, 0.2), ring(8, 0.5), ring(3, 0.8)):  # diverges on these
        with pytest.warns(RuntimeWarning, match="made for undirected graphs, and diverges"):
            adaptive.check(graph)
    for graph in (ring(3, 0.5), T.exponential(16), T.exponential(100), T.ring(7)):
        assert adaptive.unstable(graph) == ""
