"""The estimated minimizer."""

import numpy as np

import mpidec
from mpidec import problems as P, solvers as S, topology as T


def test_functions_that_only_look_quadratic_at_first():
    """Linear from 0 to 3; the minimizer is 4."""
    with mpidec.Network(4) as net:
        problem = P.Custom(
            lambda X: np.where(abs(X - 4) <= 1, (X - 4) ** 2 / 2, abs(X - 4) - 0.5).sum(axis=1),
            lambda X: np.clip(X - 4, -1, 1),
            m=net.m,
            d=1,
        )
        result = mpidec.solve(problem, S.EXTRA(), T.ring(4), steps=200, net=net)
        assert result.choice.rule == "steps" and abs(result.x[0] - 4) < 1e-6
