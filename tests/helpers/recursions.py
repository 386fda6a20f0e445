"""Least squares of a few agents, random weights, and steps of a solver by hand."""

import numpy as np

from mpidec import solvers as S

N, D = 5, 3
RNG = np.random.default_rng(3)
A, B, X0 = (
    RNG.standard_normal((N, 4, D)) / 2,
    RNG.standard_normal((N, 4)),
    RNG.standard_normal((N, D)),
)


def random_weights(seed):
    """A symmetric, doubly stochastic matrix."""
    rng = np.random.default_rng(seed)
    P = [np.eye(N)[rng.permutation(N)] for _ in range(3)]
    return np.eye(N) / 4 + sum(
        c * (p + p.T) / 2 for c, p in zip(0.75 * rng.dirichlet([1, 1, 1]), P)
    )


W1, W2 = random_weights(0), random_weights(1)


def grad(X, A=A, b=B):
    return np.einsum("npd,np->nd", A, np.einsum("npd,nd->np", A, X) - b)


def local(s, X, shift=0.0):
    """The end of H local steps."""
    for _ in range(s.local_steps):
        X = X - s.step_size * (grad(X) + shift)
    return X


def local_dgd(s, W, rounds):
    X = X0
    for t in range(rounds):
        X = (W1, W2)[t % 2] @ local(s, X)
    return X


def steps_of(solver, W, net, steps, step_sizes=None):
    s = solver.init(X0[net.lo : net.hi], W.at(0))
    for k in range(steps):
        now = S.base.with_step_size(solver, step_sizes(k)) if step_sizes else solver
        s = now.step(s, grad(now.point(s), A[net.lo : net.hi], B[net.lo : net.hi]), W.at(k))
    return s
