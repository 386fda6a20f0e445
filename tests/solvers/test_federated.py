"""Federated methods over sampled agents, against the algorithms of the papers with a server."""

import numpy as np
import pytest
from helpers.options import crossed
from helpers.solvers import label

import mpidec
from mpidec import problems as P, solvers as S, topology as T

N, D, H, ROUNDS, A = 7, 3, 3, 12, 0.02


def data():
    rng = np.random.default_rng(8)
    return rng.standard_normal((N, 5, D)), rng.standard_normal((N, 5)), rng.standard_normal(D)


def server(solver, schedule):
    """The server's x after ROUNDS rounds, client by client."""
    B, y, x = data()
    grad = lambda i, z: B[i].T @ (B[i] @ z - y[i])
    name, m, v = type(solver).__name__, 0 * x, 0 * x + getattr(solver, "floor", 0) ** 2
    c, own, buffer = 0 * x, np.zeros((N, D)), 0 * x
    for t in range(ROUNDS):
        S_t, ends, moves = schedule.sample(t), [], []
        for i in S_t:
            z = x
            for _ in range(H):
                g = grad(i, z)
                if name == "FedProx":
                    g = g + solver.proximal * (z - x)
                if name == "SCAFFOLD":
                    g = g - own[i] + c
                z = z - A * g
            ends.append(z)
            if name == "SCAFFOLD":
                new = own[i] - c + (x - z) / (H * A)
                moves.append(new - own[i])
                own[i] = new
        delta = np.mean(ends, axis=0) - x
        if name == "FedOpt":
            m = solver.momentum * m + (1 - solver.momentum) * delta
            b = solver.decay
            if solver.method == "adam":
                v = b * v + (1 - b) * delta**2
            elif solver.method == "yogi":
                v = v - (1 - b) * delta**2 * np.sign(v - delta**2)
            else:
                v = v + delta**2
            x = x + solver.outer_step * m / (np.sqrt(v) + solver.floor)
        elif name == "SCAFFOLD":
            x = x + solver.outer_step * delta
            c = c + len(S_t) / N * np.mean(moves, axis=0)
        elif name == "DiLoCo":  # Nesterov momentum of the server
            buffer = solver.momentum * buffer - delta
            x = x - solver.outer_step * (solver.momentum * buffer - delta)
        else:
            x = x + delta
    return x


SOLVERS = [
    *(
        solver
        for made in (S.LocalDGD, S.FedProx, S.DiLoCo, S.SCAFFOLD, S.FedOpt)
        for solver in crossed(made, A, local_steps=H)
    ),
]


@pytest.mark.parametrize("fraction", [0.4, 1.0])
@pytest.mark.parametrize("solver", SOLVERS, ids=label)
def test_the_papers_algorithms_with_partial_participation(solver, fraction):
    B, y, x = data()
    schedule = T.sampled_average(N, fraction, seed=3)
    with mpidec.Network(N) as net:
        problem = P.LeastSquares(B[net.lo : net.hi], y[net.lo : net.hi])
        X = mpidec.solve(problem, solver, schedule, steps=H * ROUNDS, net=net, x0=x).X
        np.testing.assert_allclose(X, np.tile(server(solver, schedule), (net.m, 1)), rtol=1e-12)


@pytest.mark.serial
def test_scaffold_is_exact_with_partial_participation_and_fedavg_is_not():
    B, y, _ = data()
    problem = P.LeastSquares(B, y, l2=0.3)
    x_star = problem.solution()
    far = {}
    for solver in (S.SCAFFOLD(), S.LocalDGD(A, local_steps=5)):
        result = mpidec.solve(problem, solver, T.sampled_average(N, 0.5), steps=600)
        far[type(solver)] = np.linalg.norm(result.X - x_star)
    assert far[S.SCAFFOLD] < 1e-10 and far[S.LocalDGD] > 1e-3


@pytest.mark.serial
def test_full_participation_is_kgt_on_the_complete_graph():
    B, y, x = data()
    one, other = (
        mpidec.solve(P.LeastSquares(B, y), solver, T.complete(N), steps=40, x0=x).X
        for solver in (S.SCAFFOLD(A, 0.7, 4), S.KGT(A, 0.7, 4))
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.serial
def test_what_averages_over_samples_and_what_does_not():
    half = T.sampled_average(N, 0.5)
    S.SlowMo().check(half)
    with pytest.warns(RuntimeWarning, match="DGD minimizes a weighted sum .* sampled_average"):
        S.DGD().check(half)
    for solver in (S.GradientTracking(), S.KGT()):
        with pytest.raises(ValueError, match="sampled_average topology is row stochastic"):
            solver.check(half)
    for graph in (T.ring(N), T.one_peer_exponential(8)):
        with pytest.raises(ValueError, match="SCAFFOLD averages over all agents"):
            S.SCAFFOLD().check(graph)


@pytest.mark.serial
def test_adaptive_steps_keep_the_agents_together():
    B, y, x = data()
    solver = S.FedOpt(1e-4, 0.1, floor=1e-5, local_steps=2)
    for graph in (T.complete(N), T.sampled_average(N, 0.4)):
        result = mpidec.solve(P.LeastSquares(B, y), solver, graph, steps=400, x0=x)
        assert result.metrics["consensus"][-1] < 1e-10
