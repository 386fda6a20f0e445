"""DSGD-CECA: exact averages, and the reference."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("parity", ["paper", "repository"])
def test_one_port_ceca_follows_the_reference(reference, parity):
    key = "1Ppaper" if parity == "paper" else "1P"
    z = reference("ceca_consensus")
    for n in (n for n in range(2, 40, 2) if f"n{n}__{key}__x__yzero" in z):
        x, y = z[f"n{n}__{key}__x__yzero"], z[f"n{n}__{key}__y__yzero"]
        with mpidec.Network(n) as net:
            W, solver = net.mixer(T.ceca(n, ports=1, parity=parity)), S.DSGDCECA(0.0)
            s = solver.init(x[0][net.lo : net.hi])._replace(Y=y[0][net.lo : net.hi])
            for k in range(len(x) - 1):
                s = solver.step(s, 0.0, W.at(k))
                np.testing.assert_allclose(s.X, x[k + 1][net.lo : net.hi], atol=1e-12)
                np.testing.assert_allclose(s.Y, y[k + 1][net.lo : net.hi], atol=1e-12)
