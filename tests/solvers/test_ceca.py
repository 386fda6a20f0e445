"""DSGD-CECA: exact averages, and the recursion with dense matrices."""

import numpy as np
import pytest
from helpers.graphs import ceca_rounds

import mpidec
from mpidec import solvers as S, topology as T


@pytest.mark.parametrize("ports", [1, 2])
def test_ceca_averages_exactly_for_every_n(ports, comm):
    every = range(2, 65, ports % 2 + 1)
    for n in every if comm.size == 1 else [n for n in (2, 3, 6, 7, 16, 34) if n in every]:
        X = np.random.default_rng(n).standard_normal((n, 2))
        with mpidec.Network(n) as net:
            W, solver = net.mixer(T.ceca(n, ports=ports)), S.DSGDCECA(0.0)
            s = solver.init(X[net.lo : net.hi])
            for k in range((n - 1).bit_length()):
                s = solver.step(s, 0.0, W.at(k))
            np.testing.assert_allclose(s.X, np.tile(X.mean(axis=0), (net.m, 1)), atol=1e-13)


@pytest.mark.parametrize(
    "options", [{"ports": 2}, {"ports": 1}, {"ports": 1, "parity": "repository"}], ids=str
)
def test_ceca_follows_its_dense_recursion(options):
    a, rng = 0.1, np.random.default_rng(0)
    for n in (2, 6, 10, 12):
        X0, Y0, B = rng.standard_normal((3, n, 3))
        with mpidec.Network(n) as net:
            own = slice(net.lo, net.hi)
            W, solver = net.mixer(T.ceca(n, **options)), S.DSGDCECA(a)
            s = solver.init(X0[own])._replace(Y=Y0[own])
            X, Y = X0, Y0
            for r, (digit, c, sender) in enumerate(2 * ceca_rounds(n, **options)):
                s = solver.step(s, solver.point(s) - B[own], W.at(r))
                G = (X if digit else Y) - B
                X, Y = X - a * G, Y - a * G
                if digit:
                    X, Y = (X + X[sender]) / 2, ((c + 1) * X[sender] + c * Y) / (2 * c + 1)
                else:
                    X, Y = ((c + 1) * X + c * Y[sender]) / (2 * c + 1), (Y + Y[sender]) / 2
                np.testing.assert_allclose(s.X, X[own], atol=1e-12)
                np.testing.assert_allclose(s.Y, Y[own], atol=1e-12)
