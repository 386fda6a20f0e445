"""Least squares of six agents, and momentum and Adam by hand."""

import numpy as np

import mpidec
from mpidec import solvers as S

N, D, STEPS = 6, 5, 20
RNG = np.random.default_rng(4)
A, B = RNG.standard_normal((N, 6, D)) / 2, RNG.standard_normal((N, 6))
X0 = RNG.standard_normal((N, D))


def gradient(X):
    return np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - B)


def solved(net, solver, topology, mixing=None, steps=STEPS):
    here = slice(net.lo, net.hi)
    problem = mpidec.problems.LeastSquares(A[here], B[here])
    return mpidec.solve(problem, solver, topology, steps=steps, x0=X0, net=net, mixing=mixing).X


def updates(solver):
    """`D = update(G)` of the local optimizer, with all its memory."""
    B = M = V = k = 0

    def momentum(G):
        nonlocal B
        B = solver.momentum * B + (1 - solver.dampening) * G
        return G + solver.momentum * B if solver.nesterov else B

    def adam(G):
        nonlocal M, V, k
        k, M, V = k + 1, 0.9 * M + 0.1 * G, 0.999 * V + 0.001 * G**2
        return M / (1 - 0.9**k) / (np.sqrt(V / (1 - 0.999**k)) + 1e-8)

    return {S.Momentum: momentum, S.Adam: adam}.get(type(solver), lambda G: G)
