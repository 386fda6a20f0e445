"""What steps preserve: the mean over the agents, and the average of the initial points."""

from __future__ import annotations

import math

import numpy as np

from ..driver.internals import as_topology
from ..solvers import Bias, Solver
from ..solvers.internals import with_step_size
from .case import alone, bearable, graph_of, require, with_number
from .linear import ConstantGradients, run


def mean(solver: Solver) -> None:
    """On a doubly stochastic W, the mean of the agents takes the steps of a single agent with the
    mean of the gradients.

    So gradients, trackers and the mass of push-sum are counted once each, and counters agree.
    """
    graph = graph_of(solver)
    if graph.kind != "doubly":
        graph = as_topology("exponential", graph.n)
    n, d = graph.n, 2
    rng, method = np.random.default_rng(2), with_number(solver, 0.3)
    X = rng.standard_normal((n, d))
    with alone(n) as net, alone(1) as single:
        W, W1 = net.mixer(graph), single.mixer(graph_of(solver, 1))
        s, s1 = method.init(X, W.at(0)), method.init(X.mean(axis=0)[None], W1.at(0))
        for k in range(12):
            G = rng.standard_normal((n, d))
            s = run(method, W, ConstantGradients(G), s, 1, k)
            s1 = run(method, W1, ConstantGradients(G.mean(axis=0)[None]), s1, 1, k)
            for name, a, b in zip(s._fields, s, s1):
                rows = np.ndim(a) == 2 and len(a) == n
                away = float(abs(np.mean(a, axis=0) - b).max()) if rows else 0.0
                require(
                    away <= 1e-12,
                    solver,
                    "mean",
                    f"after {k + 1} steps the mean of {name} over {n} agents ({graph.name}) "
                    f"differs by {away:.2g} from "
                    "that of a single agent with the mean of the gradients, expected rounding "
                    "errors",
                    "is mass lost in a mixing, or do trackers not sum to the gradients?  A method "
                    "whose mean goes "
                    "another way declares keeps_mean = False",
                )


def average(solver: Solver) -> None:
    """Without gradients, all agents reach the average of their initial points, with each kind of
    W that the solver declares.
    """
    scaled = solver.bias_on(graph_of(solver)) is Bias.OTHER  # the step size scales what it mixes
    method = with_step_size(solver, 0.3) if scaled else with_number(solver, 0.3)
    for graph in bearable(solver, ("column",)):
        X = np.random.default_rng(4).standard_normal((graph.n, 2))
        with alone(graph.n) as net:
            W = net.mixer(graph)
            s, k, away = method.init(X, W.at(0)), 0, math.inf
            while k < 1600 * method.period and away > 1e-11:
                s = run(method, W, ConstantGradients(0 * X), s, 1, k)
                k += 1
                if k % 50 == 0:
                    away = float(abs(s.X - X.mean(axis=0)).max())
        require(
            away <= 1e-10,
            solver,
            "average",
            f"with gradients of zero, an agent is {away:.2g} away from the average of the initial "
            f"points after {k} steps "
            f"on {graph.name} ({graph.kind} stochastic), expected 0",
            "is mass lost or counted twice, or is the weight of push-sum mixed otherwise than the "
            "rows?",
        )
