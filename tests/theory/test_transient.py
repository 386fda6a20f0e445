"""Learning curves against runs, dense recursions and averages of many runs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.linalg import block_diag

from mpidec import solvers, theory, topology
from mpidec.solvers.asynchronous import is_asynchronous
from mpidec.testing.case import alone, costs, graph_of, made, with_number
from mpidec.testing.linear import run
from mpidec.theory.links import LinkedSteps
from mpidec.theory.moments import course
from mpidec.theory.noise import Noise

pytestmark = pytest.mark.serial
LINEAR = [
    name
    for name, kind in solvers.CATALOGUE.items()
    if not is_asynchronous(kind) and not made(kind).adaptive and kind.needs.problem
    if name != "zero_attracting_diffusion"  # signs are not linear
]


def model_of(f):
    return theory.Quadratic(f.minimizer, f.h[:, :, None], f.h * (f.minimizer - f.c))


@pytest.mark.parametrize("name", LINEAR)
def test_without_noise_the_course_is_that_of_a_run(name):
    """From the first step on, with its weights, counts, local steps and schedules."""
    solver = with_number(made(solvers.CATALOGUE[name]), 0.08)
    graph = graph_of(solver)
    f, K = costs(graph.n, 1), 3 * graph.n + 20
    X = np.random.default_rng(1).standard_normal((graph.n, 1))
    with alone(graph.n) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        W, want = net.mixer(graph), []
        s = solver.init(X, W.at(0))
        for k in range(K + 1):
            want.append(((s.X - f.minimizer) ** 2).sum(axis=1))
            s = run(solver, W, f, s, 1, k)
        t = theory.transient(model_of(f), solver, graph, steps=K, x0=X)
    assert not t.noise.any()
    np.testing.assert_allclose(t.bias, want, rtol=1e-7, atol=1e-10)


def test_mean_and_covariance_of_diffusion_are_those_of_the_dense_recursion():
    n, d, mu, K, rng = 6, 2, 0.15, 150, np.random.default_rng(0)
    A, root = rng.standard_normal((n, 2 * d, d)), rng.standard_normal((n, d, d))
    H, sigma = A.swapaxes(1, 2) @ A / d, 0.1 * root @ root.swapaxes(1, 2)
    g, x, X = (rng.standard_normal(shape) for shape in ((n, d), d, (n, d)))
    g -= g.mean(axis=0)
    graph = topology.star(n)
    W = graph.W.toarray()
    t = theory.transient(
        theory.Quadratic(x, H, g),
        solvers.Diffusion(mu),
        graph,
        steps=K,
        noise=sigma,
        link_noise=0.2,
        x0=X,
    )
    B, eye = np.kron(W, np.eye(d)), np.eye(n * d)
    links = 0.04 * np.kron(np.diag((W**2).sum(axis=1) - np.diag(W) ** 2), np.eye(d))
    F = mu**2 * B @ block_diag(*sigma) @ B.T + links
    M, e, V = B @ (eye - mu * block_diag(*H)), (X - x).ravel(), 0 * eye
    for k in range(K + 1):
        want = (e**2).reshape(n, d).sum(axis=1), np.diag(V).reshape(n, d).sum(axis=1)
        np.testing.assert_allclose([t.bias[k], t.noise[k]], want, rtol=1e-10, atol=1e-13)
        e, V = M @ e - mu * B @ g.ravel(), M @ V @ M.T + F
    np.testing.assert_array_equal(t.msd, t.bias + t.noise)
    s = theory.steady_state(
        theory.Quadratic(x, H, g), solvers.Diffusion(mu), graph, noise=sigma, link_noise=0.2
    )
    np.testing.assert_allclose(t.msd[-1], s.msd, rtol=1e-4)


@pytest.mark.parametrize("name", ["exact_diffusion", "gradient_tracking", "push_sum", "prox_skip"])
def test_the_mean_of_many_noisy_runs(name):
    """The runs are the columns; proximal skips are random, and a schedule never repeats."""
    R, K, sigma = 4000, 60, 0.5
    solver = with_number(made(solvers.CATALOGUE[name]), 0.08)
    graph = graph_of(solver)
    f, rng = costs(graph.n, 1), np.random.default_rng(3)
    t = theory.transient(model_of(f), solver, graph, steps=K, noise=sigma)
    with alone(graph.n) as net:
        W, found = net.mixer(graph), []
        s = solver.init(np.zeros((graph.n, R)), W.at(0))
        for k in range(K + 1):
            found.append(((s.X - f.minimizer) ** 2).mean())
            noisy = type(f)(f.h, f.c + sigma * rng.standard_normal((graph.n, R)) / f.h)
            s = run(solver, W, noisy, s, 1, k)
    assert abs(10 * np.log10(found) - t.msd_db).max() < 0.2


def test_curvatures_that_vary_from_sample_to_sample():
    """LMS whose regressors have two values: the noise depends on the deviation, which the exact
    recursion of the second moment has."""
    n, mu, K = 5, 0.2, 60
    H, graph, X = np.linspace(0.5, 1.5, n), topology.star(n), np.linspace(-2, 2, n)
    D, v = np.outer([0.4, -0.4], H), np.outer([0.3, -0.3], np.ones(n))
    noise = Noise(0.25 * np.ones((n, 1, 1)), D[..., None, None], v[..., None])
    part = theory.Quadratic(np.zeros(1), H[:, None, None], np.zeros((n, 1)))
    with alone(n) as net:
        steps = LinkedSteps(solvers.Diffusion(mu), net.mixer(graph), part.H)
        found = course(steps, part, X[:, None], noise, K)
    W, R = graph.W.toarray(), np.outer(X, X)
    M, e = W @ np.diag(1 - mu * H), X
    for k in range(K + 1):
        np.testing.assert_allclose(found[k].sum(axis=0), np.diag(R), rtol=1e-10)
        drawn = 0.25 + (D**2).mean(axis=0) * np.diag(R) + 2 * (D * v).mean(axis=0) * e
        R, e = M @ R @ M.T + mu**2 * W @ np.diag(drawn) @ W.T, M @ e


def test_refusals():
    f = costs(4, 1)
    with pytest.raises(ValueError, match="steps is -1"):
        theory.transient(model_of(f), solvers.DGD(0.1), topology.ring(4), steps=-1)
    with pytest.raises(ValueError, match="PushSum sends weights"):
        theory.transient(
            model_of(f), solvers.PushSum(0.1), topology.ring(4), steps=1, link_noise=0.1
        )
