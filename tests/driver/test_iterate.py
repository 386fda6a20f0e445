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
            (
                S.DGD(0.1),
                lambda X, k: np.zeros(D),
                r"gradient\(X, k\) returned .*shape \(3,\), exp",
            ),
            (S.DGD(0.1), lambda X, k: X + 1j, r"gradient\(X, k\) returned .*complex"),
            (S.DGD(0.1), lambda X: X, r"gradient is .*, expected a function of \(X, k\)"),
            (S.DGD(0.1), P.LeastSquares(A[:3], B[:3]), "the problem has 3 agents, but this rank"),
            (S.DSGDCECA(0.1), local(net), "DSGDCECA needs .* got the ring topology"),
            (S.EXTRA(0.1), P.Custom(lambda X: X[:, 0], lambda X: 0, net.m, D), "grad"),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                next(mpidec.iterate(solver, F, W, X))
        for mixer, s, words in (
            (T.ring(N), X, "W is Topology.*, expected a mixer"),
            (W, X.tolist(), "s is .*, expected the rows"),
            (W, (X, X), "s is .*, expected the rows"),
            (W, np.ones((5, D)), r"s has rows of shape \(5, 3\), expected \(., 3\): one for each"),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                next(mpidec.iterate(S.DGD(0.1), local(net), mixer, s))
        for given, words in (
            ({"steps": -1}, "steps is -1, expected an integer >= 0"),
            ({"first": -1}, "first is -1, expected an integer >= 0"),
            ({"seed": -1}, "seed is -1, expected an integer >= 0"),
            ({"agents": 3}, "agents is 3, expected the numbers of the local agents"),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                next(mpidec.iterate(S.DGD(0.1), P.MiniBatch(local(net), 5), W, X, **given))


def test_compressed_rows_give_the_states_of_solve():
    def mixing(W):
        return W.compress("top_k", fraction=0.4)

    with mpidec.Network(N) as net:
        W = mixing(net.mixer(T.ring(N)))
        states = mpidec.iterate(S.DGD(0.01), local(net), W, np.zeros((net.m, D)), steps=8)
        whole = mpidec.solve(local(net), S.DGD(0.01), T.ring(N), steps=8, net=net, mixing=mixing)
        np.testing.assert_array_equal([*states][-1].X, whole.X)
