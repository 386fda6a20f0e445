"""Methods of RelaySGD's experiments with dense matrices and delays: judges of the solvers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from ...topology import Schedule, Topology
from .. import dense
from ..dense import STEPS, Gradient, Recursion, Rows
from ..experiment import Arrays
from .correction import distances
from .quadratics import SOLVERS, Instance, iterates

# Step size; the largest curvature is 1.
SIZE = 0.1


def delays(graph: Topology) -> Rows:
    """Return one less than the hops between two agents, zero from an agent to itself."""
    return np.asarray(np.maximum(distances(graph) - 1, 0).astype(int))


def arrived(past: list[Rows], late: Rows) -> Rows:
    """Return the mean of the rows of all agents, each as old as its delay."""
    recent = np.array(past[-1 - late.max() :])
    return np.asarray(recent[late.max() - late, np.arange(len(late))].mean(axis=1))


def models(grad: Gradient, late: Rows, a: float, X: Rows, steps: int) -> Rows:
    """RelaySGD: X_i <- mean_j V_j of some steps ago, V = X - a grad(X); X^0 before the first."""
    past = [X] * late.max()
    for _ in range(steps):
        past.append(X - a * grad(X))
        X = arrived(past, late)
    return X


def gradients(grad: Gradient, late: Rows, a: float, X: Rows, steps: int) -> Rows:
    """RelaySGD/Grad: X_i <- X_i - a mean_j grad_j(X_j) of some steps ago; 0 before the first."""
    past = [np.zeros_like(X)] * late.max()
    for _ in range(steps):
        past.append(grad(X))
        X = X - a * arrived(past, late)
    return X


def half_rounds(n: int) -> list[Rows]:
    """Return products of two one-peer exponential matrices each, in turn."""
    peers = dense.one_peer_exponential(n)
    return [peers[(2 * k + 1) % len(peers)] @ peers[2 * k % len(peers)] for k in range(len(peers))]


def constant(graph: Topology) -> list[Rows]:
    """Return the Metropolis weights of a graph that does not change."""
    return [dense.metropolis(graph)]


METHODS: Mapping[str, tuple[Recursion, Callable[[Any], Any]]] = {
    "RelaySGD": (models, delays),
    "RelaySGD/Grad": (gradients, delays),
    "D2": (dense.d2, dense.metropolis),
    "exact diffusion": (dense.d2, lambda graph: dense.lazy(dense.metropolis(graph))),
    "gradient tracking": (dense.push_pull, lambda graph: constant(graph) * 2),
    "gossip": (dense.changing, constant),
    "SGP": (dense.changing, lambda graph: half_rounds(graph.n)),
    "all-reduce": (dense.changing, lambda graph: [np.full((graph.n, graph.n), 1 / graph.n)]),
}


def checked(f: Instance, solver: str, graph: Topology | Schedule) -> Arrays:
    """Return how far the first steps of a solver are from its equations."""
    recursion, weights = METHODS[solver]
    start = np.zeros_like(f.c)
    expected = recursion(
        lambda X: np.einsum("nde,ne->nd", f.H, X) - f.c, weights(graph), SIZE, start, STEPS
    )
    *_, X = islice(iterates(f, SOLVERS[solver](SIZE), graph), STEPS + 1)
    return {"apart": np.asarray(dense.distance(X, expected, start))}
