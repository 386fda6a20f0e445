"""Graphs that the paper compares, and runs on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from ... import topology
from ...solvers import DGD, DSGDCECA, Solver
from ...solvers.base import at_step
from ...topology import Schedule, Topology
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
        s = solver.init(X, W.at(0))
        yield s.X
        for k in range(steps):
            s = at_step(solver, k).step(s, gradient(solver.point(s), k), W.at(k))
            yield s.X


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
