"""Asynchronous runs by the equations of the paper, event by event: judges that share nothing with
the solver, its constants and its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike

from ...driver.internals import GRADIENT, meetings, simulate
from ...problems import Oracle
from ...solvers import A2CiD2
from ...topology import Topology, edge_rates
from ..dense import Rows
from .perceptron import Floats, Perceptron

STEPS = 3  # units of time
Gradient = Callable[[int, Floats], Floats]  # of agent i at x


def constants(graph: Topology, rate: float) -> tuple[float, float]:
    """Return chi1 and chi2 by the pseudo-inverse of the Laplacian of the rates."""
    links = graph.W.toarray() != 0
    np.fill_diagonal(links, False)
    degrees = links.sum(axis=1)
    rates = rate * links * (1 / degrees[:, None] + 1 / degrees) / 2
    L = np.diag(rates.sum(axis=1)) - rates
    P = np.linalg.pinv(L)
    resistances = np.diag(P)[:, None] + np.diag(P) - 2 * P
    return float(1 / np.linalg.eigvalsh(L)[1]), float(resistances[links].max() / 2)


def replayed(
    solver: A2CiD2, graph: Topology, start: Rows, seed: int, gradient: Gradient | None
) -> Rows:
    """Return the iterates after the first events, by equation (4) and Algorithm 1; gradients are
    those of the order "sde".
    """
    chi1, chi2 = constants(graph, float(solver.rate))
    eta = 0.5 / math.sqrt(chi1 * chi2) if solver.eta is None else solver.eta
    sizes = np.array([0.5, 0.5 * math.sqrt(chi1 / chi2) if solver.eta is None else 0.5])
    n, d = start.shape
    Z = np.stack([start, start], axis=1)  # x and x~ of each agent
    B, last, count = np.zeros((n, d)), np.zeros(n), np.zeros(n, int)

    def flow(i: int, t: float) -> None:
        stay = (1 + math.exp(-2 * eta * (t - last[i]))) / 2
        Z[i], last[i] = np.array([[stay, 1 - stay], [1 - stay, stay]]) @ Z[i], t

    events = meetings(seed, np.ones(n), edge_rates(graph, solver.rate))
    for t, kind, i, j in takewhile(lambda event: event[0] <= STEPS, events):
        if kind == GRADIENT:
            if gradient is not None:
                flow(i, t)
                step = solver.step_size
                B[i] = solver.momentum * B[i] + gradient(i, Z[i, 0])
                Z[i] -= (step(count[i]) if callable(step) else step) * B[i]
                count[i] += 1
            continue
        pair = [i, j]
        before = Z[pair, 0]
        flow(i, t)
        flow(j, t)
        now = Z[pair, 0]
        sent = now if solver.order == "sde" else before
        own = before if solver.order == "algorithm" else now
        Z[pair] -= sizes[:, None] * (own - sent[::-1])[:, None]
    return np.asarray(Z[:, 0])


def difference(
    problem: Oracle | Perceptron | None,
    solver: A2CiD2,
    graph: Topology,
    x0: ArrayLike,
    seed: int,
    gradient: Gradient | None = None,
) -> Mapping[str, ArrayLike]:
    """Return how far a simulation is from its events by the equations, relative to how far these
    have gone, as "apart".
    """
    start = np.array(np.broadcast_to(x0, (graph.n, np.shape(x0)[-1])))
    expected = replayed(solver, graph, start, seed, gradient)
    X = simulate(problem, solver, graph, steps=STEPS, x0=x0, seed=seed, every=STEPS).X
    return {"apart": np.abs(X - expected).max() / np.abs(expected - start).max()}


def batches(problem: Perceptron, seed: int) -> Gradient:
    """Return the gradients of a perceptron over the batches that the agents draw."""
    draws = [np.random.default_rng((seed, agent)) for agent in range(problem.m)]
    (inputs, hidden), _ = problem.shapes

    def gradient(i: int, x: Floats) -> Floats:
        samples = draws[i].integers(len(problem.y), size=problem.batch)
        W1, W2 = x[: inputs * hidden].reshape(inputs, hidden), x[inputs * hidden :]
        W2 = W2.reshape(hidden + 1, -1)
        total = np.zeros_like(x)
        for a, y in zip(problem.A[samples], problem.Y[samples]):
            h = a @ W1
            outputs = np.exp(np.append(h * (h > 0), 1.0) @ W2)
            error = outputs / outputs.sum() - y
            back = (W2[:-1] @ error) * (h > 0)
            total += np.append(np.outer(a, back), np.outer(np.append(h * (h > 0), 1.0), error))
        return total / problem.batch

    return gradient
