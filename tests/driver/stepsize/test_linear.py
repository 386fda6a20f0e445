"""Linear models: their dimensions, and the gradients that they take."""

import numpy as np
from helpers.squares import D, squares

import mpidec
from mpidec import problems as P, solvers as S, topology as T
from mpidec.driver.stepsize import linear


def test_many_unknowns_are_projected():
    n, d = 4, 300
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((n, 20, d)) / 20, rng.standard_normal((n, 20))
    with mpidec.Network(n) as net:
        problem = P.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi], l2=0.05)
        choice = mpidec.tune(problem, S.EXTRA(), T.ring(n), net=net)
        assert choice.rule == "steps" and choice.gradients < 150
        steps = int(2 * choice.expected) + 50
        result = mpidec.solve(
            problem, S.EXTRA(choice.step_size), T.ring(n), steps=steps, net=net, every=steps
        )
        whole = P.LeastSquares(A, b, l2=0.05).solution()
        assert np.linalg.norm(result.x - whole) < 1e-5 * np.linalg.norm(whole)


def test_short_runs_have_short_searches():
    n, d = 4, 60
    rng = np.random.default_rng(0)
    A, y = rng.standard_normal((n, 30, d)), np.sign(rng.standard_normal((n, 30)))
    with mpidec.Network(n) as net:
        problem = P.LogisticRegression(A[net.lo : net.hi], y[net.lo : net.hi], l2=0.05)
        choices = [
            mpidec.tune(problem, S.GradientTracking(), T.ring(n), steps=steps, net=net)
            for steps in (80, 5000)
        ]
        assert choices[0].gradients <= 40 < choices[1].gradients
        assert 0.5 < choices[0].step_size / choices[1].step_size < 2


def test_quadratic_functions_take_few_gradients():
    with mpidec.Network(6) as net:
        assert mpidec.tune(squares(net), S.EXTRA(), T.ring(6), net=net).gradients == D + 5
        assert mpidec.tune(squares(net), S.EXTRA(), T.ring(6), steps=20, net=net).gradients == D + 5


def test_the_rows_of_the_steepest_agents_come_to_rank_0(comm):
    with mpidec.Network(max(9, comm.size), comm) as net:
        curvature = np.random.default_rng(1).permutation(net.n) + 1.0
        H = np.diag(curvature)[net.lo : net.hi]  # agent i's only along axis i
        rows = linear._steepest(net, lambda X: H * X, net.m, net.n, 4)
        assert (rows is None) == (net.rank > 0)
        if rows is not None:
            expected = np.eye(net.n)[np.argsort(-curvature)[:4]]
            np.testing.assert_allclose(np.abs(rows), expected, atol=1e-12)
