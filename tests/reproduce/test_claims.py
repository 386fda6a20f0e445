"""Claims of the papers, each by its statement."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mpidec
from mpidec import solvers, topology
from mpidec.problems import LeastSquares
from mpidec.reproduce.acid.consensus import ConsensusTimes
from mpidec.reproduce.ceca.claims import CecaClaims
from mpidec.reproduce.experiment import alone

pytestmark = pytest.mark.serial
RNG = np.random.default_rng(5)


def problem(n, heterogeneity=1.0, d=3):
    """Least squares with the same minimizer for every heterogeneity."""
    draw = np.random.default_rng(n)
    A, x, R = draw.standard_normal((n, 5, d)), draw.standard_normal(d), draw.standard_normal((n, d))
    gradients = heterogeneity * (R - R.mean(axis=0))  # at x
    pulls = np.linalg.pinv(A.swapaxes(1, 2))
    return LeastSquares(A, A @ x - (pulls @ gradients[..., None])[..., 0]), x


def solved(solver, graph, local, steps):
    with alone(graph.n) as net:
        return mpidec.solve(local, solver, graph, steps=steps, net=net, every=steps).X


def test_dsgd_ceca_speeds_up_linearly():
    sizes = (4, 16, 64)
    errors = [
        float(CecaClaims(steps=1000, columns=32).measure(("noise", n, 3))["error"]) for n in sizes
    ]
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-1, abs=0.1)


def test_the_limit_of_relaysgd_does_not_depend_on_heterogeneity():
    for heterogeneity in (0.0, 1.0, 100.0):
        local, x = problem(6, heterogeneity)
        X = solved(solvers.RelaySGD(0.02), topology.chain(6), local, 1500)
        assert np.abs(X - x).max() <= 1e-12 * max(1, heterogeneity)
    gossip = solved(solvers.Diffusion(0.02), topology.ring(6), local, 500)
    assert np.abs(gossip - x).max() > 0.1


def test_the_rate_of_equitopo_does_not_depend_on_n():
    for kind in ("OD", "OU"):
        gaps = [topology.equitopo(n, kind).spectral_gap() for n in (30, 300, 1000)]
        assert max(gaps) / min(gaps) < 1.1
    assert topology.ring(30).spectral_gap() > 100 * topology.ring(1000).spectral_gap()


@pytest.mark.parametrize("ports", [1, 2])
def test_ceca_is_exact_after_the_least_number_of_rounds(ports):
    solver = solvers.DSGDCECA(0.0)
    for n in range(2, 65, 3 - ports):
        X = RNG.standard_normal((n, 2))
        with alone(n) as net:
            W, s = net.mixer(topology.ceca(n, ports=ports)), solver.init(X)
            for k in range(math.ceil(math.log2(n))):
                assert np.ptp(s.X, axis=0).min() > 1e-6
                s = solver.step(s, np.zeros_like(X), W.at(k))
        assert np.abs(s.X - X.mean(axis=0)).max() < 1e-14 * n, n


def test_a2cid2_needs_the_root_of_chi1_chi2():
    experiment = ConsensusTimes()
    rates = {
        order: [
            np.median([experiment.measure((n, order, s))["rate"] for s in range(8)])
            for n in (8, 16)
        ]
        for order in ("baseline", "sde")
    }
    slower = {order: few / many for order, (few, many) in rates.items()}
    assert slower["sde"] < 2.6 < 3.2 < slower["baseline"]


def test_relaysum_on_double_trees_sends_and_holds_two_models():
    n, d = 16, 40
    solver = solvers.RelaySGD(0.1)
    with alone(n) as net:
        W = net.mixer(topology.double_binary_trees(n))
        s = solver.init(np.zeros((n, d)), W.at(0))
        for k in range(5):
            s = solver.step(s, np.ones((n, d)), W.at(k))
        sent = W.bytes / (8 * n * 5 * d)
    assert W.messages == 5 * 4 * (n - 1)  # two trees, both ways
    assert sent == pytest.approx(4 * (n - 1) * (d / 2 + 1) / (n * d))  # a count travels along
    assert np.count_nonzero(s.M) / (n * d) == pytest.approx(sent) and sent < 2


@pytest.mark.parametrize("order", ["sde", "algorithm", "code"])
def test_averagings_of_a2cid2_keep_the_sum_of_x_and_x_tilde(order):
    x0 = RNG.standard_normal((7, 3))
    graph = topology.erdos_renyi(7, seed=2)
    result = mpidec.simulate(None, solvers.A2CiD2(0.0, order=order), graph, steps=30, x0=x0, seed=4)
    lost = np.abs((result.state.X + result.state.X_tilde - 2 * x0).sum(axis=0)).max()
    assert (lost < 1e-12) == (order != "code")


def test_disagreement_shrinks_by_rho():
    graph = topology.erdos_renyi(12, seed=int(RNG.integers(99)))
    values, vectors = np.linalg.eigh(graph.W.toarray())
    worst = int(np.argmax(np.abs(values[:-1])))
    rho = abs(values[worst])
    assert rho == pytest.approx(1 - graph.spectral_gap(), abs=1e-12)
    for X in (RNG.standard_normal((12, 4)), vectors[:, [worst]]):
        Y, first = X, np.linalg.norm(X - X.mean(axis=0))
        for k in range(1, 9):
            Y = graph.W @ Y
            norm = np.linalg.norm(Y - X.mean(axis=0))
            assert norm <= rho**k * first * (1 + 1e-12)
    assert norm == pytest.approx(rho**8 * first)


def test_push_sum_keeps_the_mass():
    n, solver, X = 9, solvers.PushSum(0.0), RNG.standard_normal((9, 2))
    graph = topology.from_weights(_columns(n))
    with alone(n) as net:
        W, s = net.mixer(graph), solver.init(X)
        for k in range(300):
            s = solver.step(s, np.zeros_like(X), W.at(k))
            assert s.w.sum() == pytest.approx(n, rel=1e-13)
            assert s.U.sum(axis=0) == pytest.approx(X.sum(axis=0), abs=1e-12)
    assert np.abs(s.X - X.mean(axis=0)).max() < 1e-12 < np.abs(s.w - 1).max()


def _columns(n):
    A = (RNG.random((n, n)) < 0.3) * RNG.random((n, n)) + np.eye(n) + np.roll(np.eye(n), 1, axis=0)
    return A / A.sum(axis=0)


def test_gossip_is_biased_by_heterogeneity_and_corrected_methods_are_not():
    local, x = problem(8)
    errors = {
        name: np.abs(solved(solvers.CATALOGUE[name](0.02), topology.ring(8), local, 2000) - x).max()
        for name in ("diffusion", "exact_diffusion", "gradient_tracking")
    }
    assert errors["diffusion"] > 1e-3
    assert max(errors["exact_diffusion"], errors["gradient_tracking"]) < 1e-12


def test_one_peer_exponential_averages_exactly_in_log2_n_rounds():
    for n in (8, 32, 12):
        graph, M = topology.one_peer_exponential(n), np.eye(n)
        for k in range(math.ceil(math.log2(n))):
            M = graph.at(k).W @ M
        assert (np.abs(M - 1 / n).max() < 1e-15) == (n != 12)


def test_d2_needs_eigenvalues_above_minus_a_third():
    local, x = problem(8)
    for weight, stable in ((0.33, True), (0.34, False)):  # the least eigenvalue is 1 - 4 weight
        graph = topology.ring(8, weights=weight)
        solver = solvers.D2(0.002)
        assert bool(solver.unstable(graph)) != stable
        with np.errstate(all="ignore"), alone(8) as net:
            W = net.mixer(graph)
            s = solver.init(RNG.standard_normal((8, 3)), W.at(0))
            for k in range(4000):
                s = solver.step(s, local.grad(s.X), W.at(k))
        assert (np.abs(s.X - x).max() < 1e-3) == stable
