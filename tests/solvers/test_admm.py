"""Solvers of ADMM's family: against recursions with a row for each edge, and with explicit sums over neighbours."""

import numpy as np
import pytest
from helpers.options import crossed
from helpers.solvers import label

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N, D = 7, 4


def local(agents, term=None):
    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((N, 6, D)), rng.standard_normal((N, 6))
    mine = slice(agents[0], agents[-1] + 1)
    return P.LeastSquares(A[mine], b[mine], term=term)


def by_edges(solver, W, functions, X, steps):
    """Relaxed ADMM with z_ij at agent i for each neighbour j, as in the papers, with the penalty w_ij of an edge."""
    n, a, w = len(X), solver.step_size, W - np.diag(np.diag(W))
    d = w.sum(axis=1)[:, None]

    def exchanged(Z, X):  # z_ij = (z_ij - z_ji) / 2 + w_ij x_j
        return (Z - Z.transpose(1, 0, 2)) / 2 + w[:, :, None] * X[None]

    Z = w[:, :, None] * ((X[:, None] + X[None]) / 2 if isinstance(solver, S.ADMM) else X[None])
    ZY = ZG = np.zeros((n, n, D))
    for k in range(steps):
        match solver:
            case S.ADMM():
                X = functions.prox(Z.sum(axis=1) / d, (a / d)[:, 0])
                Z = exchanged(Z, X)
            case S.LTADMM():
                if k % solver.local_steps == 0:
                    Z = exchanged(Z, X) if k else Z
                    C = d * X - Z.sum(axis=1)
                beta = solver.dual_step or 1 / solver.local_steps
                X = X - a * functions.grad(X) - beta * C
            case S.ATG():
                rho = solver.penalty
                Y = (X + rho * ZY.sum(axis=1)) / (1 + rho * d) if k else X
                G = (functions.grad(X) + rho * ZG.sum(axis=1)) / (1 + rho * d)
                X = (1 - solver.mixing) * X + solver.mixing * (Y - a * G)
                ZY, ZG = exchanged(ZY, Y), exchanged(ZG, G)
    return X


def by_neighbours(solver, W, functions, X, steps):
    """The papers' recursions with sums over the neighbours, and penalties in their units."""
    n, a = len(X), solver.step_size
    P_, Z = np.zeros_like(X), np.zeros_like(X)
    for k in range(steps):
        G = functions.grad(X)
        match solver:
            case S.DLM():  # (14), (15): 1 / (2 c d_i + rho), with c_ij = kappa w_ij rho
                c, rho = solver.penalty / a * (W - np.diag(np.diag(W))), 1 / a
                L = np.diag(c.sum(axis=1)) - c
                X = X - (G + L @ X + P_) / (2 * c.sum(axis=1)[:, None] + rho)
                P_ = P_ + L @ X
            case S.DiNNO():  # (4a), and gradient steps for (4b)
                rho = solver.penalty / a * W
                if k % solver.local_steps == 0:
                    X0 = X
                    P_ = P_ + np.array(
                        [sum(rho[i, j] * (X[i] - X[j]) for j in range(n)) for i in range(n)]
                    )
                pull = [
                    sum(2 * rho[i, j] * (X[i] - (X0[i] + X0[j]) / 2) for j in range(n) if j != i)
                    for i in range(n)
                ]
                X = X - a * (G + P_ + np.array(pull))
            case S.WangElia():
                K = (np.eye(n) - W) / 2
                X, Z = X - K @ (X + Z) - a * G, Z + K @ X
            case S.ProxSkip():
                Wa = np.eye(n) - (np.eye(n) - W) / (2 * solver.chi)
                Z = X - a * G - P_
                X = Z
                if np.random.default_rng([solver.seed, k]).random() < solver.probability:
                    X = Wa @ Z
                    P_ = P_ + (solver.dual_step or solver.probability) * (Z - X)
    return X


RECURSIONS = [
    (by_edges, S.ADMM(0.3)),
    (by_edges, S.LTADMM(0.01, local_steps=3)),
    (by_neighbours, S.WangElia(0.02)),
    (by_neighbours, S.ProxSkip(0.02, probability=0.4, chi=1.5)),
    *[(by_edges, solver) for made in (S.LTADMM, S.ATG) for solver in crossed(made, 0.01, 2)],
    *[
        (by_neighbours, solver)
        for made in (S.DLM, S.DiNNO, S.ProxSkip)
        for solver in crossed(made, 0.01, 2)
    ],
]


@pytest.mark.parametrize("formula, solver", RECURSIONS, ids=label)
def test_the_recursions_of_the_papers(formula, solver):
    x0, graph = np.random.default_rng(3).standard_normal((N, D)), T.erdos_renyi(N, seed=2)
    with mpidec.Network(N) as net:
        X = mpidec.solve(local(net.agents), solver, graph, steps=25, x0=x0, net=net).X
        expected = formula(solver, graph.W.toarray(), local(range(N)), x0, 25)[net.lo : net.hi]
        np.testing.assert_allclose(X, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rounds", [lambda W: W.repeat(2), lambda W: W.accelerate(3)])
@pytest.mark.parametrize("solver", [S.ProxSkip, S.MGSkip])
def test_mg_skip_is_prox_skip_with_the_matrix_of_several_rounds(solver, rounds):
    x0, graph = np.random.default_rng(3).standard_normal((N, D)), T.erdos_renyi(N, seed=2)
    solver = solver(0.02, probability=0.4, chi=1.5)
    with mpidec.Network(N) as net:
        go = {"steps": 25, "x0": x0, "net": net, "mixing": rounds}
        X = mpidec.solve(local(net.agents), solver, graph, **go).X
        W = net.gather(rounds(net.mixer(graph))(np.eye(N)[net.lo : net.hi]))
        W = net.comm.bcast(W)
        prox_skip = S.ProxSkip(0.02, probability=0.4, chi=1.5)
        expected = by_neighbours(prox_skip, W, local(range(N)), x0, 25)[net.lo : net.hi]
    np.testing.assert_allclose(X, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("oracle", [P.SAGA, P.SARAH])
def test_lt_admm_with_variance_reduction_has_the_papers_recursion_and_no_bias(oracle):
    """LT-ADMM-VR: each local step takes the next batch."""

    class Drawn:
        def __init__(self):
            self.gradient, self.k = oracle(local(range(N)), 2).start(range(N), 0), -1

        def grad(self, X):
            self.k += 1
            return self.gradient(X, self.k)

    x0, graph = np.random.default_rng(3).standard_normal((N, D)), T.erdos_renyi(N, seed=2)
    solver = S.LTADMM(0.01, local_steps=3)
    with mpidec.Network(N) as net:
        problem = oracle(local(net.agents), 2)
        X = mpidec.solve(problem, solver, graph, steps=25, x0=x0, net=net).X
        expected = by_edges(solver, graph.W.toarray(), Drawn(), x0, 25)[net.lo : net.hi]
        np.testing.assert_allclose(X, expected, rtol=1e-11, atol=1e-12)
        if net.size == 1:
            end = mpidec.solve(problem, solver, graph, steps=3000, x0=x0, net=net, every=3000).X
            np.testing.assert_allclose(end, np.tile(problem.problem.solution(), (N, 1)), atol=1e-10)


@pytest.mark.serial
@pytest.mark.parametrize("term", [P.l1(2.0), P.box(-0.1, 0.2)], ids=["l1", "box"])
def test_admm_minimizes_functions_with_a_term(term):
    functions = local(range(N), term)
    functions.x_star = x = functions.solution()
    result = mpidec.solve(functions, S.ADMM(), T.ring(N), steps=1000, stop={"error": 1e-12})
    assert result.choice.rule == "steps"
    assert term.face(x).basis.shape[1] < D
    np.testing.assert_allclose(result.X, np.tile(x, (N, 1)), atol=1e-10)


@pytest.mark.serial
def test_admm_needs_proximal_points():
    square = P.Custom(lambda X: (X**2).sum(axis=1), lambda X: 2 * X, m=2, d=1)
    with pytest.raises(ValueError, match=r"ADMM needs problem\.prox"):
        mpidec.solve(square, S.ADMM(1.0), T.complete(2), steps=1)
