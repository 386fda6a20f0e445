"""Graphs that the paper compares, and runs on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ... import topology
from ...driver.internals import iterate
from ...solvers import DGD, DSGDCECA, Solver
from ...topology import Schedule, Topology
from .. import dense
from ..dense import STEPS
from ..experiment import alone

Rows = np.ndarray
Gradient = Callable[[Rows, int], Rows]  # of all agents, at a step

CECA = ("CECA-1P", "CECA-2P")
FIXED: Mapping[str, Callable[[int], Topology | Schedule]] = {
    "CECA-1P": lambda n: topology.ceca(n, ports=1, parity="repository"),
    "CECA-2P": topology.ceca,
    "one-peer exponential": topology.one_peer_exponential,
    "grid": topology.grid,
    "ring": topology.ring,
    "exponential": topology.exponential,
    "central": topology.complete,
}
DRAWN = {"OD-EquiDyn": "OD", "OU-EquiDyn": "OU"}


def possible(n: int, names: Iterable[str]) -> list[str]:
    """Return those of the graphs that n agents can have: pairs need an even n."""
    return [name for name in names if n % 2 == 0 or name != "CECA-1P"]


def iterates(
    solver: Solver, graph: Topology | Schedule, X: Rows, steps: int, gradient: Gradient
) -> Iterator[Rows]:
    """The iterates of all agents, in this process: after 0, 1, ..., `steps` steps."""
    with alone(graph.n) as net:
        W = net.mixer(graph)
        yield X
        yield from (s.X for s in iterate(solver, gradient, W, X, steps=steps))


def descent(graph: Topology | Schedule, step_size: float | Callable[[int], float]) -> Solver:
    """DSGD-CECA on its graph, and DSGD on others."""
    return DSGDCECA(step_size) if graph.name == "ceca" else DGD(step_size, order="atc")


def averaging_errors(graph: Topology | Schedule, seed: int, rounds: int) -> Rows:
    """Error of the averages after 0, 1, ... rounds, as the published code computes it: sqrt(n)
    times the norm of the deviations from the mean.
    """
    x0 = np.random.RandomState(seed).randn(graph.n, 1)
    rows = iterates(descent(graph, 0.0), graph, x0, rounds, lambda X, k: np.zeros_like(X))
    return math.sqrt(graph.n) * np.array([np.linalg.norm(X - x0.mean()) for X in rows])


def ceca(
    grad: dense.Gradient, ports: int, rate: Callable[[int], float], X: Rows, steps: int
) -> Rows:
    """X and Y lose a_k grad(X), or a_k grad(Y) in rounds of the digit 0; then, with n_r and the row
    of the sender s, X' = (X + X_s) / 2 and Y' = ((n_r + 1) X_s + n_r Y) / (2 n_r + 1), or X' =
    ((n_r + 1) X + n_r Y_s) / (2 n_r + 1) and Y' = (Y + Y_s) / 2.
    """
    n, Y, count = len(X), X, 0
    i, digits = np.arange(n), f"{max(n - 1, 1):b}"
    for k in range(steps):
        one, count = digits[k % len(digits)] == "1", count if k % len(digits) else 0
        G = rate(k) * grad(X if one else Y)
        X, Y = X - G, Y - G
        sign = np.where(i % 2, 1, -1)  # with one port, partners send each other
        s = (i + (2 * count + 1) * sign if ports == 1 else i - count - one) % n
        whole = 2 * count + 1
        if one:
            X, Y = (X + X[s]) / 2, ((count + 1) * X[s] + count * Y) / whole
        else:
            X, Y = ((count + 1) * X + count * Y[s]) / whole, (Y + Y[s]) / 2
        count = 2 * count + one
    return X


def weights(name: str, graph: Topology | Schedule) -> Sequence[Rows]:
    """Return the weights of the paper in turn; random ones are those that were drawn."""
    if name == "one-peer exponential":
        return dense.one_peer_exponential(graph.n)
    if name in DRAWN:
        return [graph.at(k).W.toarray() for k in range(STEPS)]
    return [dense.exponential(graph.n) if name == "exponential" else dense.metropolis(graph.at(0))]


def apart(
    name: str,
    graph: Topology | Schedule,
    rate: Callable[[int], float],
    start: Rows,
    gradient: dense.Gradient,
    derived: dense.Gradient,
) -> float:
    """Return how far the first steps with a gradient are from the equations with `derived`, the
    same gradient written apart.
    """
    expected = (
        ceca(derived, CECA.index(name) + 1, rate, start, STEPS)
        if name in CECA
        else dense.changing(derived, weights(name, graph), rate, start, STEPS)
    )
    *_, X = iterates(descent(graph, rate), graph, start, STEPS, lambda X, k: gradient(X))
    return dense.distance(X, expected, start)


def pulled_apart(
    name: str, graph: Topology | Schedule, rate: Callable[[int], float], seed: int
) -> float:
    """Return how far the first steps from zero are from the equations, where f_i is half the square
    of the distance from a random point.
    """
    points = np.random.default_rng(seed).standard_normal((graph.n, 3))

    def pull(X: Rows) -> Rows:
        return X - points

    return apart(name, graph, rate, np.zeros_like(points), pull, pull)
