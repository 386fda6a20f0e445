"""Solvers: against the papers' formulas, the centralized solution, and themselves on other numbers of ranks."""

from contextlib import nullcontext

import numpy as np
import pytest
from helpers.solvers import digraph, label, least_squares, push_and_ring, run

import mpidec
from mpidec import solvers as S, topology as T

D = 4


def dense(solver, topology, grad, X, steps):
    """The papers' recursions, written with dense matrices and all history."""
    n, a = len(X), solver.step_size
    eye = np.eye(n)
    Xs, Gs = [X], [grad(X)]
    Y, U, w, late = Gs[0], X, np.ones((n, 1)), (0.0, 0.0)
    for k in range(steps):
        X, G, W, before = (
            Xs[-1],
            Gs[-1],
            topology.at(k).W.toarray(),
            topology.at(max(k - 1, 0)).W.toarray(),
        )
        match solver:
            case S.DGD(order="atc"):
                new = W @ (X - a * G)
            case S.DGD(order="cta"):
                new = W @ X - a * grad(W @ X)
            case S.DGD(order="awc"):
                new = W @ X - a * G
            case S.EXTRA():  # (2.13)
                new = (
                    W @ X - a * G
                    if k == 0
                    else (eye + W) @ X - (eye + W) / 2 @ Xs[-2] - a * (G - Gs[-2])
                )
            case S.ExactDiffusion() | S.D2():
                M = W if isinstance(solver, S.D2) else (eye + W) / 2
                new = M @ (X - a * G) if k == 0 else M @ (2 * X - Xs[-2] - a * (G - Gs[-2]))
            case S.GradientTracking():
                if k:
                    change = G - Gs[-2]
                    Y = W @ (Y + change) if solver.variant == "atc" else before @ Y + change
                new = W @ X - a * Y if solver.variant == "diging" else W @ (X - a * Y)
            case S.PushSum():
                U, w = W @ (U - a * G), W @ w
                new = U / w
            case S.OSGP():  # what was sent in the step before arrives now
                V, D = U - a * G, np.diag(np.diag(W))
                U, w, late = D @ V + late[0], D @ w + late[1], ((W - D) @ V, (W - D) @ w)
                new = U / w
            case S.PushPull():
                R, C = topology.at(k).R.W.toarray(), topology.at(max(k - 1, 0)).C.W.toarray()
                Y = C @ Y + G - Gs[-2] if k else Y
                new = R @ X - a * Y if solver.variant == "ab" else R @ (X - a * Y)
            case S.FROST():
                H = [
                    g / (n * np.linalg.matrix_power(W, j).diagonal()[:, None])
                    for j, g in zip((k - 1, k), Gs[-2:])
                    if j >= 0
                ]
                Y = W @ Y + H[-1] - H[-2] if k else G / n
                new = W @ (X - a * Y) if solver.variant == "atc" else W @ X - a * Y
            case S.PushDIGing():
                Y = before @ Y + G - Gs[-2] if k else Y
                U, w = W @ (U - a * Y), W @ w
                new = U / w
        Xs.append(new)
        Gs.append(grad(new))
    return Xs[-1]


def dense_relay(solver, topology, grad, X, steps):
    """RelaySGD, edge by edge."""
    n, first = len(X), X
    N = [topology.in_neighbors(i) for i in range(n)]
    M = {(i, j): (0 * X[i], 0) for i in range(n) for j in N[i]}
    for _ in range(steps):
        V = -solver.step_size * grad(X) + X * (solver.relay == "model")
        M = {
            (i, j): (
                V[i] + sum(M[h, i][0] for h in N[i] if h != j),
                1 + sum(M[h, i][1] for h in N[i] if h != j),
            )
            for i, j in M
        }
        S_ = np.array([V[i] + sum(M[j, i][0] for j in N[i]) for i in range(n)])
        c = np.array([[1 + sum(M[j, i][1] for j in N[i])] for i in range(n)])
        R = {"initial": first, "current": X, "own": V, "count": S_ / c}[solver.missing]
        X = X + S_ / n if solver.relay == "gradient" else (S_ + (n - c) * R) / n
    return X


def dense_ceca(solver, topology, grad, X, steps):
    """Algorithm 1 of DSGD-CECA with two ports, from the digits of n - 1."""
    n, Y = len(X), X
    digits = [int(digit) for digit in f"{n - 1:b}"]
    for k in range(steps):
        r = k % len(digits)
        delta, n_r = digits[r], (n - 1) >> (len(digits) - r)  # n_r: the digits before
        G = grad(X if delta else Y)
        X, Y = X - solver.step_size * G, Y - solver.step_size * G
        X_s, Y_s = np.roll(X, n_r + delta, axis=0), np.roll(Y, n_r + delta, axis=0)
        if delta:
            X, Y = (X + X_s) / 2, ((n_r + 1) * X_s + n_r * Y) / (2 * n_r + 1)
        else:
            X, Y = ((n_r + 1) * X + n_r * Y_s) / (2 * n_r + 1), (Y + Y_s) / 2
    return X


def dense_adaptive(solver, topology, grad, X, steps):
    """The method of Chen and Wang, agent by agent."""
    n, W, eta = len(X), topology.W.toarray(), [np.full(len(X), solver.step_size)]
    Y = grad(X)
    for k in range(steps):
        new = W @ (X - eta[-1][:, None] * Y)
        Z = W @ (Y + grad(new) - grad(X))
        if k == 0:
            eta.append(eta[0])
        else:
            limit = np.linalg.norm(new - X, axis=1) / np.linalg.norm(Z - Y, axis=1) / 2
            grown = [np.sqrt(1 + eta[-1][i] / eta[-2][i]) * eta[-1][i] for i in range(n)]
            eta.append(np.minimum(grown, limit))
        X, Y = new, Z
    return X


def ring_and_star(n):
    return T.cycle([T.ring(n), T.star(n)])


def rows(n):
    return digraph(n).R


def stars(n):
    return T.cycle([T.star(n, weights="push-pull"), T.ring(n), digraph(n)])


PAPERS = [
    (dense, solver, graph)
    for graph in (T.grid, ring_and_star)
    for solver in (
        S.DGD(0.1, order="atc"),
        S.DGD(0.1, order="cta"),
        S.DGD(0.1, order="awc"),
        S.GradientTracking(0.1),
        S.GradientTracking(0.1, variant="semi-atc"),
        S.GradientTracking(0.1, variant="diging"),
    )
]


PAPERS += [(dense, solver, T.grid) for solver in (S.EXTRA(0.1), S.ExactDiffusion(0.1), S.D2(0.1))]
PAPERS += [
    (dense, solver, push_and_ring) for solver in (S.PushSum(0.1), S.OSGP(0.1), S.PushDIGing(0.1))
]


PAPERS += [
    (dense, S.PushPull(0.1, variant), graph)
    for variant in ("atc", "ab")
    for graph in (T.grid, ring_and_star, digraph, stars)
]


PAPERS += [
    (dense, S.FROST(0.1, variant), graph)
    for variant in ("atc", "frost")
    for graph in (T.grid, rows)
]


PAPERS += [
    (dense_relay, S.RelaySGD(0.1, missing=missing), T.binary_tree)
    for missing in ("initial", "current", "count", "own")
]


PAPERS += [
    (dense_relay, S.RelaySGD(0.1, relay="gradient"), T.chain),
    (dense_ceca, S.DSGDCECA(0.1), T.ceca),
]


PAPERS += [(dense_adaptive, S.AdaptiveGradientTracking(size), T.grid) for size in (1e-3, 1.0)]


@pytest.mark.parametrize("formula, solver, graph", PAPERS, ids=label)
def test_the_papers_recursions(formula, solver, graph):
    n = 6
    data, topology = least_squares(n), graph(n)
    A, b, _ = data
    x0 = np.random.default_rng(3).standard_normal((n, D))
    grad = lambda X: np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - b)
    with mpidec.Network(n) as net:
        X = run(net, data, solver, topology, 25, x0).X
        np.testing.assert_allclose(
            X, formula(solver, topology, grad, x0, 25)[net.lo : net.hi], rtol=1e-12, atol=1e-12
        )


def test_the_catalogue_is_what_is_exported():
    exported = {
        value
        for value in vars(S).values()
        if isinstance(value, type) and issubclass(value, S.Solver)
    } - {S.Solver, S.FunctionSolver, S.SampleSolver, S.Momentum, S.Adam, S.Clip}
    # the last three are made of another solver
    assert set(S.CATALOGUE.values()) == exported


NEED_W = ("dgd", "admm", "dlm", "atg", "frost", "relaysgd")


@pytest.mark.parametrize("name", S.CATALOGUE)
def test_init_works_without_w_or_says_that_it_needs_it(name):
    solver = S.CATALOGUE[name](**{"order": "cta"} if name == "dgd" else {})
    line = rf"{type(solver).__name__} .*: init\(X, W\) needs W, the operator of step 0"
    with pytest.raises(ValueError, match=line) if name in NEED_W else nullcontext():
        solver.init(np.ones((3, 2)))
