"""The cost of an event, a step and a record, in calls of functions: the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.counting import calls

import mpidec

pytestmark = pytest.mark.serial
N = 16
PROBLEM = mpidec.problems.LeastSquares(
    np.random.default_rng(0).standard_normal((N, 20, 10)), np.ones((N, 20))
)
GRAPH = mpidec.topology.symmetric_exponential(N)


def simulated(steps: int) -> object:
    return mpidec.simulate(PROBLEM, mpidec.solvers.A2CiD2(1e-3), GRAPH, steps=steps, seed=1)


def solved(steps: int, every: int = 10**6) -> object:
    return mpidec.solve(
        PROBLEM, mpidec.solvers.ExactDiffusion(1e-3), GRAPH, steps=steps, every=every
    )


@pytest.mark.parametrize(
    "run, most",
    [
        (simulated, 640),
        (solved, 44),
        (lambda steps: solved(steps, every=1), 240),
    ],
    ids=["events of a unit of time", "step", "step with a record"],
)
def test_a_step_is_a_few_calls(run, most):
    run(30)  # imports
    few, many = calls(lambda: run(10)), calls(lambda: run(30))
    assert (many - few) / 20 <= most
