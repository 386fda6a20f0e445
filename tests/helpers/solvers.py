"""Solvers of the catalogue with a graph each."""

from functools import partial

import numpy as np

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
    if not is_asynchronous(made)
    for solver in variants(made)
]
"""Solvers of the catalogue with a number as step size, each with its graph as a function of n."""


def label(case):
    return (
        repr(case) if isinstance(case, S.Solver) else getattr(case, "__name__", "graph").strip("<>")
    )
