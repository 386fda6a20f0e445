"""Solvers of the catalogue with a graph each."""

from functools import partial

import numpy as np

import mpidec
from mpidec import solvers as S, topology as T
from mpidec.solvers.asynchronous import is_asynchronous
from mpidec.testing.case import graph_of, with_number
from mpidec.testing.contract import variants


def digraph(n, seed=3):
    """A pair of random weights on a random strongly connected digraph, with unequal degrees."""
    rng = np.random.default_rng([seed, n])
    A = (
        (rng.random((n, n)) < 0.3)
        | np.eye(n, dtype=bool)
        | np.roll(np.eye(n, dtype=bool), 1, axis=0)
    )
    R, C = (A * rng.uniform(0.5, 2, (n, n)) for _ in range(2))
    return T.push_pull(
        T.from_weights(R / R.sum(axis=1, keepdims=True)), T.from_weights(C / C.sum(axis=0))
    )


ALL = [
    (with_number(solver, 0.02), partial(graph_of, solver))
    for name, made in S.CATALOGUE.items()
    if not (is_asynchronous(made) or made.needs.data)
    for solver in variants(made)
]


"""Solvers of the catalogue with a number as step size, each with its graph as a function of n."""


def label(case):
    return (
        repr(case) if isinstance(case, S.Solver) else getattr(case, "__name__", "graph").strip("<>")
    )


D = 4


def least_squares(n, seed=0, p=6):
    """Agents that disagree: A (n, p, D), b (n, p) and the solution of their average."""
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, p, D)) / np.sqrt(p), rng.standard_normal((n, p))
    x = np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]
    return A, b, x


def run(net, data, solver, topology, steps, x0=None, **options):
    A, b, _ = data
    problem = mpidec.problems.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi])
    return mpidec.solve(
        problem, solver, topology, steps=steps, x0=x0, net=net, every=10**9, **options
    )


def push_and_ring(n):
    return T.cycle([T.star(n, weights="push"), T.ring(n)])
