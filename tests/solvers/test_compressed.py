"""CHOCO, BEER, MoTEF and LEAD with a codec that sends a fifth of each row: the papers' recursions, exactness, bytes, resuming."""

import numpy as np
import pytest
from helpers.options import crossed
from mpi4py import MPI

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.record import Record

D, KEPT = 10, 2


def agents(n, seed=0, p=15):
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, p, D)) / np.sqrt(p), rng.standard_normal((n, p))
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return A, b, x


def top(X):
    """C: the largest entries of each row."""
    keep = np.argsort(-abs(X), axis=1, kind="stable")[:, :KEPT]
    Q = np.zeros_like(X)
    np.put_along_axis(Q, keep, np.take_along_axis(X, keep, axis=1), axis=1)
    return Q


def choco(solver, grad, W, gamma, X, steps):
    Xhat = 0 * X
    for _ in range(steps):
        half = X - solver.step_size * grad(X)
        Xhat = Xhat + top(half - Xhat)
        X = half + gamma * (W - np.eye(len(W))) @ Xhat
    return X


def motef(solver, grad, W, gamma, X, steps):
    """MoTEF; of BEER, with all of the newest gradient."""
    part, L = getattr(solver, "momentum", 1.0), W - np.eye(len(W))
    M = V = grad(X)
    H, Z = top(X), top(V)
    for _ in range(steps):
        X = X + gamma * L @ H - solver.step_size * V
        H = H + top(X - H)
        old, M = M, (1 - part) * M + part * grad(X)
        V = V + gamma * L @ Z + M - old
        Z = Z + top(V - Z)
    return X


def lead(solver, grad, W, gamma, X, steps):
    """LEAD, with a dual step of its own, which in the paper is the same."""
    a, beta, H, dual = solver.step_size, solver.dual or gamma, 0 * X, 0 * X
    for _ in range(steps):
        Y = X - a * grad(X) - a * dual
        H = H + top(Y - H)
        step = gamma / 2 * (np.eye(len(W)) - W) @ H
        X, dual = Y - step, dual + beta / a * step
    return X


METHODS = [
    (S.CHOCO(0.05), choco, 1),
    (S.BEER(0.05), motef, 2),
    *[(solver, motef, 2) for solver in crossed(S.MoTEF, 0.05)],
    (S.LEAD(0.4), lead, 1),
    *[(solver, lead, 1) for solver in crossed(S.LEAD, 0.4)],
]
CODEC = {"codec": "top_k", "fraction": 0.2, "gamma": 0.15}
label = lambda case: type(case).__name__ if isinstance(case, S.Solver) else ""


@pytest.mark.parametrize("solver, formula, rows", METHODS, ids=label)
def test_the_papers_recursions_and_their_bytes(solver, formula, rows, tmp_path):
    n, steps = 7, 24
    A, b, _ = agents(n)
    grad = lambda X: np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - b)
    x0, topology = np.random.default_rng(3).standard_normal((n, D)), T.symmetric_exponential(n)
    path = MPI.COMM_WORLD.bcast(str(tmp_path / "run.h5"))
    with mpidec.Network(n) as net:
        go = {
            "problem": mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi]),
            "solver": solver,
            "topology": topology,
            "x0": x0,
            "net": net,
            "mixing": lambda W: W.compress(**CODEC),
        }
        whole = mpidec.solve(steps=steps, every=steps, **go)
        dense = formula(solver, grad, topology.W.toarray(), CODEC["gamma"], x0, steps)
        np.testing.assert_allclose(whole.X, dense[net.lo : net.hi], rtol=1e-10, atol=1e-12)
        edges = topology.W.nnz - n
        assert whole.metrics["bytes"][-1] == steps * rows * edges * KEPT * (8 + 4)
        mpidec.solve(steps=9, record=Record(path), **go)
        resumed = mpidec.solve(steps=steps, record=Record(path, resume=True), **go)
        np.testing.assert_array_equal(resumed.X, whole.X)


@pytest.mark.serial  # the recursions above carry it over to more ranks
@pytest.mark.parametrize("n", [3, 8, 13])
@pytest.mark.parametrize(
    "solver, gamma, steps",
    [(S.BEER(0.1), 0.3, 800), (S.MoTEF(0.1), 0.3, 800), (S.LEAD(), None, 1500)],
    ids=label,
)
def test_exact_with_a_fifth_of_each_row(solver, gamma, steps, n):
    A, b, x = agents(n)
    with mpidec.Network(n) as net:
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
        result = mpidec.solve(
            problem,
            solver,
            T.symmetric_exponential(n),
            steps=steps,
            every=steps,
            net=net,
            mixing=lambda W: W.compress("top_k", fraction=0.2, gamma=gamma),
        )
        np.testing.assert_allclose(result.X, np.tile(x, (net.m, 1)), rtol=0, atol=1e-10)


@pytest.mark.serial
def test_choco_keeps_its_bias():
    A, b, x = agents(8)
    problem, gamma = mpidec.problems.LeastSquares(A, b), CODEC["gamma"]
    far = [
        np.linalg.norm(
            mpidec.solve(problem, S.CHOCO(0.01), T.ring(8), steps=1500, every=1500, mixing=mixing).X
            - x
        )
        for mixing in (
            lambda W: W.compress(**CODEC),
            lambda W: W.compress("identity", feedback=False, gamma=gamma),
        )
    ]
    assert far[0] == pytest.approx(far[1], rel=0.02)
