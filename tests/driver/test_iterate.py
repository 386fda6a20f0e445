"""`mpidec.iterate`: the steps of `solve`, one by one."""

from __future__ import annotations

import numpy as np
import pytest

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N, D = 4, 3
draw = np.random.default_rng(0)
A, B = draw.standard_normal((N, 20, D)), draw.standard_normal((N, 20))


def local(net):
    return P.LeastSquares(A[net.lo : net.hi], B[net.lo : net.hi], l2=0.1)


FIRST_ORDER = [S.GradientTracking(0.01), S.DGD("inverse_sqrt(0.01)"), S.DSGDCECA(0.01)]


@pytest.mark.parametrize(
    ("solver", "asked"),
    [
        (S.ADMM(0.1), "problem"),
        *((solver, F) for solver in FIRST_ORDER for F in ("problem", "oracle", "function")),
    ],
    ids=str,
)
def test_the_states_are_those_of_solve(solver, asked):
    graph = T.ceca(N) if isinstance(solver, S.DSGDCECA) else T.ring(N)
    with mpidec.Network(N) as net:
        problem = local(net)
        F = P.MiniBatch(problem, 5) if asked == "oracle" else problem
        given = (lambda X, k: problem.grad(X)) if asked == "function" else F
        W, X = net.mixer(graph), np.zeros((net.m, D))
        options = {"agents": net.agents, "seed": 7}
        states = [*mpidec.iterate(solver, given, W, X, steps=6, **options)]
        whole = mpidec.solve(F, solver, graph, steps=6, net=net, seed=7)
        np.testing.assert_array_equal(states[-1].X, whole.X)
        later = mpidec.iterate(solver, given, W, states[2], first=3, **options)
        for expected, found in zip(states[3:], later):
            np.testing.assert_array_equal(expected.X, found.X)


def test_what_it_cannot_run_is_refused():
    with mpidec.Network(N) as net:
        W, X = net.mixer(T.ring(N)), np.ones((net.m, D))
        assert len([*mpidec.iterate(S.Consensus(), None, W, X, steps=3)]) == 3
        for solver, F, words in (
            (S.A2CiD2(0.1), local(net), "A2CiD2 is asynchronous: run it with mpidec.solve"),
            (S.DGD(), local(net), "DGD: step_size is 'auto', expected a number, or a function"),
            (S.ADMM(0.1), P.MiniBatch(local(net), 5), "takes no random gradients"),
            (S.DGD(0.1), 3, "problem int has no m, d"),
            (
                S.ADMM(0.1),
                lambda X, k: X,
                "ADMM needs minimizers of the local functions, F is <fun",
            ),
            ("extra", local(net), "solver is 'extra', expected a solver"),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                next(mpidec.iterate(solver, F, W, X))
        for mixer, s, words in (
            (T.ring(N), X, "W is Topology.*, expected a mixer"),
            (W, X.tolist(), "s is .*, expected the rows"),
        ):
            with pytest.raises(TypeError, match=words):
                next(mpidec.iterate(S.DGD(0.1), local(net), mixer, s))
