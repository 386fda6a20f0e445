"""Acc-DNGD and OPAPC: the papers' recursions, and steps in proportion to the square root of the condition number."""

import numpy as np
import pytest
from helpers.options import crossed

import mpidec
from mpidec import solvers as S, topology as T


def agents(n, kappa, d=6):
    """Quadratics of agents that disagree, with the same curvatures, from 1 / kappa to 1."""
    rng = np.random.default_rng([n, kappa])
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = np.geomspace(1 / kappa, 1, d)[:, None] ** 0.5 * Q
    return np.tile(A, (n, 1, 1)), rng.standard_normal((n, d))


def acc_dngd(solver, grad, W, X, steps):
    a, t = solver.step_size, solver.momentum
    Y = V = X
    Z = grad(Y)
    for _ in range(steps):
        X, V = W @ Y - a * Z, (1 - t) * W @ V + t * W @ Y - a / t * Z
        new = (X + t * V) / (1 + t)
        Y, Z = new, W @ Z + grad(new) - grad(Y)
    return X


def opapc(solver, grad, W, x, steps):
    """OPAPC with L = I - W, and its parameters from tau."""
    a, tau, chi = solver.step_size, solver.momentum, solver.chi
    eta, mu = a / tau, tau**2 / (chi * a)
    theta, xf, y = 1 / (2 * eta), x, 0 * x
    for _ in range(steps):
        xg = tau * x + (1 - tau) * xf
        half = (x - eta * (grad(xg) - mu * xg + y)) / (1 + eta * mu)
        y = y + theta * (half - W @ half)
        new = (x - eta * (grad(xg) - mu * xg + y)) / (1 + eta * mu)
        x, xf = new, xg + 2 * tau / (2 - tau) * (new - x)
    return x


METHODS = [
    *[(solver, acc_dngd) for solver in crossed(S.AccDNGD, 0.1, 2)],
    *[(solver, opapc) for solver in crossed(S.OPAPC, 0.2, 2)],
]
name = lambda case: type(case).__name__ if isinstance(case, S.Solver) else ""


@pytest.mark.parametrize("n", [3, 5, 7])
@pytest.mark.parametrize("solver, formula", METHODS, ids=name)
def test_the_papers_recursions(solver, formula, n):
    A, b = agents(n, 10)
    grad = lambda X: np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - b)
    x0, topology = np.random.default_rng(3).standard_normal((n, 6)), T.symmetric_exponential(n)
    with mpidec.Network(n) as net:
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
        X = mpidec.solve(problem, solver, topology, steps=30, x0=x0, net=net, every=30).X
        dense = formula(solver, grad, topology.W.toarray(), x0, 30)[net.lo : net.hi]
        np.testing.assert_allclose(X, dense, rtol=1e-12, atol=1e-12)


def steps_to(error, kappa, solver):
    """Steps to a relative error, over Chebyshev mixing."""
    A, b = agents(8, kappa)
    x = np.linalg.lstsq(A.reshape(-1, 6), b.reshape(-1), rcond=None)[0]
    L, mu = 1.0, 1 / kappa
    problem = mpidec.problems.LeastSquares(A, b)
    solver = (
        S.OPAPC(1 / (4 * L), momentum=0.5 * np.sqrt(mu / L))
        if solver is S.OPAPC
        else S.AccDNGD(0.2 / L, momentum=np.sqrt(mu * 0.2 / L))
        if solver is S.AccDNGD
        else S.ExactDiffusion(1 / L)
    )
    stop = lambda metrics: metrics["objective"] - least <= error**2 * first
    value = lambda x: 0.5 * np.mean(((A @ x - b) ** 2).sum(axis=1))
    least, first = value(x), value(0 * x) - value(x)
    result = mpidec.solve(
        problem,
        solver,
        T.ring(8),
        steps=20000,
        every=5,
        stop=stop,
        mixing=lambda W: W.accelerate(8),
    )
    return result.steps


@pytest.mark.serial
@pytest.mark.parametrize("solver", [S.OPAPC, S.AccDNGD], ids=lambda made: made.__name__)
def test_steps_grow_like_the_root_of_the_condition_number(solver):
    few, many = (steps_to(1e-8, kappa, solver) for kappa in (50, 800))  # 16 times as much
    assert 3 < many / few < 5
