"""Push-sum and its relatives: mass, and weights that may vanish."""

import numpy as np
import pytest
from helpers.solvers import push_and_ring

import mpidec
from mpidec import solvers as S, topology as T


def test_osgp_keeps_its_mass_and_finds_the_average(comm):
    """On directed graphs that vary, with rows of random weights: what is on its way counts."""
    n, X = 9, np.random.default_rng(1).standard_normal((9, 3))
    with mpidec.Network(n) as net:
        W, solver = net.mixer(push_and_ring(n)), S.OSGP(0.0)
        s = solver.init(X[net.lo : net.hi])
        for k in range(1500):
            s = solver.step(s, 0.0, W.at(k))
            if k % 100 == 99:
                assert abs(net.sum(s.w + s.z)[0] - n) <= 1e-14 * n
                assert np.abs(net.sum(s.U + s.Z) - X.sum(axis=0)).max() <= 1e-13
        np.testing.assert_allclose(s.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-12)


def test_weights_that_may_vanish_are_refused():
    signed = T.from_weights([[1.4, -0.3, 0.2], [-0.2, 0.9, 0.3], [-0.2, 0.4, 0.5]], signed=True)
    best = T.star(
        16, weights="best_constant"
    )  # negative, and doubly stochastic: all weights stay 1
    for solver in (S.PushSum(), S.PushDIGing(), S.OSGP()):
        solver.check(best)
        with pytest.raises(ValueError, match="without negative entries unless"):
            solver.check(signed)
    S.GradientTracking().check(best)


def test_push_sum_with_half_rounds():
    n, S_ = 8, 3
    schedule = T.one_peer_exponential(n)  # the operators of half-round j of step k: 3 k + j
    for rounds in (1, S_):
        X = np.arange(n * 2.0).reshape(n, 2)
        G, want = 1 - X, X
        for k in range(4):
            want = want - 0.1 * G
            for j in range(rounds):
                want = (want + np.roll(want, 2 ** ((rounds * k + j) % 3), axis=0)) / 2
        with mpidec.Network(n) as net:
            here, W = slice(net.lo, net.hi), net.mixer(schedule).repeat(rounds)
            s = S.PushSum(0.1).init(X[here])
            for k in range(4):
                s = S.PushSum(0.1).step(s, G[here], W.at(k))
            np.testing.assert_allclose(s.X, want[here], rtol=1e-13)
            np.testing.assert_allclose(net.mean(s.U), X.mean(axis=0) - 0.4 * G.mean(axis=0))
            once = S.PushSum(0.0).step(S.PushSum(0.0).init(X[here]), G[here], W.at(0))
            if rounds == 3:  # a whole period: the exact average
                np.testing.assert_allclose(once.X, np.tile(X.mean(axis=0), (n, 1))[here])
