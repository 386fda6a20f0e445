"""What all solvers inherit: refusals of graphs and step sizes."""

import numpy as np
import pytest
from helpers.solvers import label, least_squares, run

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.solvers import base

D = 4


def test_zeros_are_made_by_the_module_of_the_array():
    class Cupy:
        """An array whose module is not NumPy's."""

        def __array_function__(self, function, types, arguments, options):
            return function.__name__, arguments[0] is self, options

    assert base.zeros(Cupy(), 3, 1) == ("zeros_like", True, {"shape": (3, 1)})
    zeros = base.zeros(np.ones((0, 4), np.float32), 3, 1)
    assert zeros.dtype == np.float32
    assert zeros.tolist() == [[0.0]] * 3


def test_rows_may_change_unless_a_solver_says_otherwise():
    assert S.Solver.keeps_rows is False


@pytest.mark.parametrize(
    "solver, topology, words",
    [
        (
            S.ExactDiffusion(0.1),
            T.star(4, weights="uniform"),
            "ExactDiffusion needs a doubly stochastic W.*row stochastic.*metropolis",
        ),
        (
            S.GradientTracking(0.1),
            T.star(4, weights="push"),
            "needs a doubly stochastic W.*column stochastic",
        ),
        (
            S.PushSum(0.1),
            T.star(4, weights="uniform"),
            "needs a doubly or column stochastic W.*push",
        ),
        (S.Consensus(), T.star(4, weights="push"), "needs a doubly or row stochastic W.*uniform"),
        (S.RelaySGD(0.1), T.ring(4), "needs a tree.*chain"),
        (S.RelaySGD(0.1), T.one_peer_exponential(4), "needs a tree.*chain"),
        (S.DSGDCECA(0.1), T.exponential(4), "topology.ceca"),
    ],
    ids=lambda case: label(case) if not isinstance(case, str) else "",
)
def test_a_solver_refuses_a_topology_that_it_cannot_work_with(solver, topology, words):
    with mpidec.Network(4) as net, pytest.raises(ValueError, match=words):
        run(net, least_squares(4), solver, topology, 3)


@pytest.mark.parametrize("step_size", [-1, np.nan, np.inf, "fast", True, None])
@pytest.mark.parametrize(
    "solver", [S.DGD, S.EXTRA, S.GradientTracking, S.PushSum, S.RelaySGD, S.DSGDCECA]
)
def test_a_wrong_step_size(solver, step_size):
    with pytest.raises(
        ValueError, match=f"{solver.__name__}: step_size is .*expected a finite number"
    ):
        solver(step_size=step_size)
