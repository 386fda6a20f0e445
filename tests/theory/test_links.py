"""Noise of links: against simulated runs, Lyapunov equations written by hand, and walks without a limit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from mpidec import solvers, theory, topology
from mpidec.driver.noisy_links import integrates
from mpidec.problems import LeastSquares
from mpidec.solvers.asynchronous import is_asynchronous
from mpidec.testing.case import alone, costs, graph_of, made, with_number
from mpidec.testing.linear import run
from mpidec.theory import links, moments
from mpidec.theory.links import LinkedSteps

pytestmark = pytest.mark.serial
SIGMA, RUNS, NOISY = 1e-3, 1500, 24
LINEAR = [
    name
    for name, kind in solvers.CATALOGUE.items()
    if not is_asynchronous(kind)
    and not made(kind).adaptive
    and kind is not solvers.ZeroAttractingDiffusion  # signs of the iterates
]
WEIGHTED = {"push_sum", "osgp", "push_diging", "frost", "relaysgd", "scaffold"}


def model_of(f, x=None):
    """The quadratics, or those with the same curvatures and a common minimizer x."""
    at = f.minimizer if x is None else np.array([x])
    return theory.Quadratic(at, f.h[:, :, None], f.h * (at - f.c) if x is None else 0 * f.h)


@pytest.mark.parametrize("name", LINEAR)
def test_what_noise_of_links_adds_is_what_runs_show(name):
    """The spread of independent runs, the columns, after some steps over noisy links; and an
    infinite steady state is seen by `solve`, too."""
    solver = with_number(made(solvers.CATALOGUE[name]), 0.08)
    graph = graph_of(solver)
    f = costs(graph.n, 1)
    with alone(graph.n) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        W = net.mixer(graph)
        steps = LinkedSteps(solver, W, f.h[:, :, None], SIGMA)
        assert steps.weighted == (name in WEIGHTED)
        if steps.weighted or not steps.periodic:
            return
        X = np.zeros((graph.n, RUNS))
        s = run(solver, W, f, solver.init(X, W.at(0)), steps.first)
        ends = [
            run(solver, mixer, f, s, NOISY, steps.first).X for mixer in (W.noisy(SIGMA, seed=3), W)
        ]
        V, maps = np.zeros((steps.size, steps.size)), steps.maps()
        for _, step in zip(range(NOISY), maps):
            V = step.M @ V @ step.M.T + step.links
    spread = np.diag(steps.observe() @ V @ steps.observe().T)
    found = ((ends[0] - ends[1]) ** 2).mean(axis=1)
    np.testing.assert_allclose(found.mean(), spread.mean(), rtol=0.08)
    s = theory.steady_state(model_of(f), solver, graph, link_noise=SIGMA)
    assert np.isinf(s.noise).all() == integrates(solver, graph)


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_diffusion_solves_its_lyapunov_equation(order):
    n, mu, h = 6, 0.15, np.linspace(0.5, 2, 6)
    W = (graph := topology.star(n, weights=topology.hastings(np.arange(1.0, 7)))).W.toarray()
    model = theory.Quadratic(np.zeros(2), h[:, None, None] * np.eye(2), np.zeros((n, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = theory.steady_state(
            model, solvers.Diffusion(mu, order=order), graph, noise=0.3, link_noise=0.2
        )
    D, own = np.diag(1 - mu * h), 0.04 * np.diag((W**2).sum(axis=1) - np.diag(W) ** 2)
    B, F = {
        "atc": (W @ D, own + (0.3 * mu) ** 2 * W @ W.T),
        "cta": (D @ W, D @ own @ D + (0.3 * mu) ** 2 * np.eye(n)),
    }[order]
    np.testing.assert_allclose(s.noise, 2 * np.diag(solve_discrete_lyapunov(B, F)), rtol=1e-6)


def test_complex_rows_and_schedules():
    n, mu, graph = 8, 0.2, topology.one_peer_exponential(8)
    h = np.linspace(0.5, 2, n)
    model = theory.Quadratic(np.zeros(1, complex), h[:, None, None] + 0j, np.zeros((n, 1)))
    s = theory.steady_state(model, solvers.Diffusion(mu), graph, link_noise=0.1)
    V, sizes = np.zeros((n, n)), []
    for k in range(300):
        A = graph.at(k).W.toarray()
        B = A @ np.diag(1 - mu * h)
        V = B @ V @ B.T + 0.01 * np.diag((A**2).sum(axis=1) - np.diag(A) ** 2)
        sizes.append(np.diag(V))
    np.testing.assert_allclose(s.noise, np.mean(sizes[-3:], axis=0), rtol=1e-7)


def test_schedules_that_never_repeat(monkeypatch):
    monkeypatch.setattr(moments, "SHORT", 32)
    monkeypatch.setattr(moments, "LONG", 256)
    f, graph = costs(6, 1), topology.random_matchings(topology.ring(6), seed=3)
    s = theory.steady_state(model_of(f), solvers.Diffusion(0.1), graph, link_noise=SIGMA)
    assert 0 < s.noise.mean() < 1e-4
    s = theory.steady_state(model_of(f), solvers.GradientTracking(0.1), graph, link_noise=SIGMA)
    assert np.isinf(s.msd).all()
    with pytest.raises(ValueError, match="PushSum sends weights on a schedule that never repeats"):
        theory.steady_state(model_of(f), solvers.PushSum(0.1), graph, link_noise=SIGMA)


def test_what_walks_unseen_is_no_growth():
    """The dual variable of Wang and Elia walks along the average, which it is sent as differences
    of; the average of consensus itself walks."""
    f, graph = costs(5, 1), topology.ring(5)
    s = theory.steady_state(model_of(f), solvers.WangElia(0.08), graph, link_noise=SIGMA)
    assert 0 < s.noise.mean() < 1e-5
    s = theory.steady_state(model_of(f), solvers.Consensus(), graph, link_noise=SIGMA)
    assert np.isinf(s.msd).all()
    still = theory.steady_state(model_of(f), solvers.EXTRA(0.08), graph, noise=SIGMA)
    assert np.isfinite(still.msd).all()


def test_weights_of_push_sum_are_noisy_too():
    """Around a common minimizer away from zero, where noise of the weights moves the ratio."""
    n, mu, R, x = 4, 0.1, 20_000, 1.5
    A = np.eye(n) + np.roll(np.eye(n), 1, axis=0) + np.eye(n)[[1, 0, 3, 2]] * [0, 1, 0, 0]
    graph = topology.from_weights(A / A.sum(axis=0))
    W, h = graph.W.toarray(), np.linspace(0.5, 2, n)
    off, rng = np.sqrt((W**2).sum(axis=1) - np.diag(W) ** 2), np.random.default_rng(0)
    model = theory.Quadratic(np.array([x]), h[:, None, None], np.zeros((n, 1)))
    s = theory.steady_state(model, solvers.PushSum(mu), graph, link_noise=SIGMA)
    U, w, X, found = np.full((R, n), x), np.ones((R, n)), np.full((R, n), x), []
    for _ in range(140):
        U = (U - mu * h * (X - x)) @ W.T + SIGMA * off * rng.standard_normal((R, n))
        w = w @ W.T + SIGMA * off * rng.standard_normal((R, n))
        X = U / w
        found.append(((X - x) ** 2).mean(axis=0))
    np.testing.assert_allclose(np.mean(found[-20:], axis=0), s.msd, rtol=0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"link_noise": -1.0}, "link_noise is -1.0, expected a finite number >= 0"),
        ({"link_noise": 0.1, "walk": 0.1}, "PushSum sends weights"),
    ],
)
def test_what_has_no_theory_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        theory.steady_state(
            model_of(costs(4, 1)), solvers.PushSum(0.1), topology.ring(4), **arguments
        )


def test_graphs_that_divide_the_columns_are_refused():
    with pytest.raises(ValueError, match="several graphs, expected one graph for link_noise"):
        theory.steady_state(
            model_of(costs(6, 1)), solvers.DGD(0.1), topology.double_binary_trees(6), link_noise=0.1
        )


@pytest.mark.parametrize("solver", [solvers.GradientTracking, solvers.EXTRA, solvers.Diffusion])
def test_the_unit_of_the_costs_changes_nothing(solver):
    """Noise of trackers, which is in the unit of gradients, may be smaller than that of the iterates by any factor."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(8, 10, 2)), rng.normal(size=(8, 10))
    found = []
    for unit in (1e-4, 1.0, 10.0, 1e4):
        f = LeastSquares(A * unit, b)
        f.x_star = f.solution()
        state = theory.steady_state(
            f,
            solver(0.01 / unit**2),
            topology.symmetric_exponential(8),
            noise=np.zeros(8),
            link_noise=0.01 / unit,
        )
        found.append(state.msd * unit**2)
    np.testing.assert_allclose(found, [found[1]] * 4, rtol=1e-6)
    assert np.isfinite(found[0]).all() == (solver is solvers.Diffusion)


@pytest.mark.parametrize("solver", [solvers.GradientTracking(0.1), solvers.PushDIGing(0.05)])
def test_blocks_of_any_size_add_up_to_the_same_covariance(solver, monkeypatch):
    """Each number that arrives is a source of its own, however many are followed at a time."""
    with alone(5) as net:
        W, H = net.mixer(topology.exponential(5)), np.ones((5, 1, 1))
        found = []
        for columns in (links.COLUMNS, 7, 1):
            monkeypatch.setattr(links, "COLUMNS", columns)
            found.append(next(LinkedSteps(solver, W, H, SIGMA).maps()).links)
    assert np.trace(found[0]) > 0
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-12, atol=1e-20)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 64.0, 1e6])
def test_noise_of_links_on_trackers_accumulates_whatever_the_unit_of_the_costs(scale):
    """Noise of gradients, in another unit, does not hide the random walk."""
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((6, 8, 3)), rng.standard_normal((6, 8))
    found = theory.steady_state(
        LeastSquares(A * scale**0.5, b * scale**0.5),
        solvers.GradientTracking(0.05 / scale),
        topology.ring(6),
        noise=0.3 * scale,
        link_noise=0.01,
    )
    assert np.isinf(found.noise).all()
