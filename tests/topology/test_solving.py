"""Solvers on the schedules of the catalogue: against dense recursions, in one process and on ranks."""

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
import mpidec.topology as T

SCHEDULES = {
    "base_k": lambda: T.base_k(7, 2),
    "hypercuboid": lambda: T.hypercuboid(6, [2, 3]),
    "one_peer_hypercube": lambda: T.one_peer_hypercube(7),
    "inner_outer": lambda: T.inner_outer(6, 3),
    "random_matchings": lambda: T.random_matchings(T.erdos_renyi(7, 0.6, seed=1), seed=2),
    "matcha": lambda: T.matcha(T.erdos_renyi(7, 0.6, seed=1), 0.6),
}


def least_squares(n, d=3, p=5):
    rng = np.random.default_rng(1)
    A, b = rng.standard_normal((n, p, d)), rng.standard_normal((n, p))
    return A, b, np.linalg.lstsq(A.reshape(-1, d), b.reshape(-1), rcond=None)[0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_diffusion_and_gradient_tracking_are_their_dense_recursions(name):
    schedule, alpha = SCHEDULES[name](), 0.02
    n = schedule.n
    steps = 800 if MPI.COMM_WORLD.size == 1 else 80
    A, b, x_star = least_squares(n)

    def gradient(X):
        return np.einsum("ipd,ip->id", A, np.einsum("ipd,id->ip", A, X) - b)

    X = Z = np.zeros((n, 3))
    G = Y = gradient(Z)
    for k in range(steps):
        W = schedule.at(k).W.toarray()
        X = W @ (X - alpha * gradient(X))
        Y = W @ (Y + gradient(Z) - G) if k else Y
        G, Z = gradient(Z), W @ (Z - alpha * Y)
    with mpidec.Network(n) as net:
        problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
        for solver, expected in (("diffusion", X), ("gradient_tracking", Z)):
            made = mpidec.solvers.CATALOGUE[solver](alpha)
            result = mpidec.solve(problem, made, schedule, steps=steps, every=steps, net=net)
            np.testing.assert_allclose(result.X, expected[net.lo : net.hi], rtol=0, atol=1e-13)
            if solver == "gradient_tracking" and steps == 800:
                assert abs(result.x - x_star).max() < 1e-11
