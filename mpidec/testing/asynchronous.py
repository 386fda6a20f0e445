"""Properties of asynchronous solvers, on a seeded queue of events."""

from __future__ import annotations

import re

import numpy as np

from ..driver.internals import simulate
from ..solvers import Solver
from ..solvers.internals import PushSolver
from ..topology import from_weights, one_peer_exponential
from .case import SMALL, costs, graph_of, problem, require, resized, with_number
from .linear import QuadraticCosts


def minimizer(solver: Solver) -> None:
    """An exact solver leads all agents to the minimizer of the sum, although messages are late
    and lost.
    """
    graph = graph_of(solver)
    f = costs(graph.n)
    result = simulate(
        problem(f),
        with_number(solver, 0.1),
        graph,
        steps=3000,
        delay=(0, 1),
        drop=0.1,
        stop={"error_max": 1e-11},
        every=50,
    )
    away = float(abs(result.X - f.minimizer).max())
    require(
        away <= 1e-10,
        solver,
        "minimizer",
        f"agents are {away:.2g} away from the minimizer after 3000 events of each ({graph.name}, "
        "late and lost messages), "
        "expected 0",
        "do the trackers sum to the gradients?  A method with a bias declares exact = False",
    )


def bias(solver: Solver) -> None:
    """A biased solver plateaus nearer to the minimizer with a smaller step size, and at it if the
    agents' minimizers are equal.
    """
    graph = graph_of(solver)
    f = costs(graph.n)
    large, small = 2 * SMALL, SMALL / 2
    far, near = _rest(solver, large, f), _rest(solver, small, f)
    require(
        near <= 0.65 * far,
        solver,
        "bias",
        f"agents rest at {far:.3g} from the minimizer with step size {large:g}, at {near:.3g} with "
        "a quarter of it "
        f"({graph.name}), expected at most .65 times that",
        "does the step size multiply the whole gradient, once, and do all agents count alike?",
    )
    same = _rest(solver, large, QuadraticCosts(f.h, f.c[:1] + 0 * f.c))
    require(
        same <= 1e-9,
        solver,
        "bias",
        f"agents whose minimizers are equal rest at {same:.3g} from it, expected 0",
        "is mass lost, or the gradient taken elsewhere than at the iterate?",
    )


def _rest(solver: Solver, size: float, f: QuadraticCosts) -> float:
    """Distance from the minimizer (root mean square over agents, and over late records)."""
    result = simulate(
        problem(f), resized(solver, size), graph_of(solver), steps=round(32 / size), every=5
    )
    late = result.metrics["error_rms"][-len(result.metrics["error_rms"]) // 3 :]
    return float(np.sqrt((late**2).mean()) * np.linalg.norm(f.minimizer))


def average(solver: Solver) -> None:
    """Without a problem, all agents reach the average of their initial points, also with late
    messages: no mass is lost.
    """
    graph = graph_of(solver)
    X = np.random.default_rng(4).standard_normal((graph.n, 2))
    late = (0, 2) if isinstance(solver, PushSolver) else None
    result = simulate(None, with_number(solver, 0.0), graph, steps=400, x0=X, delay=late, every=400)
    away = float(abs(result.X - X.mean(axis=0)).max())
    require(
        away <= 1e-10,
        solver,
        "average",
        f"without a problem, an agent is {away:.2g} away from the average of the initial points "
        "after 400 events of each "
        f"({graph.name}), expected 0",
        "is mass lost or counted twice?",
    )


def kinds(solver: Solver) -> None:
    """A graph that varies, and one that is not connected, are refused with a remedy; the
    solver's own graph is not.
    """
    solver.check(graph_of(solver))
    parts = from_weights(np.kron(np.eye(2), np.full((2, 2), 0.5)), connected=False)
    for graph in (one_peer_exponential(8), parts):
        try:
            solver.check(graph)
            words = ""
        except ValueError as refusal:
            words = str(refusal)
        require(
            re.search(r"\buse\b|topology\.", words),
            solver,
            "kinds",
            f"of the topology {graph.name}, which is no constant connected graph, check() says "
            f"{words!r}",
            "call super().check(topology), and name a topology that works",
        )


def few_agents(solver: Solver) -> None:
    """One agent alone minimizes; two agents come near the minimizer."""
    for n in (1, 2):
        f = costs(n)
        result = simulate(
            problem(f), with_number(solver, 0.1), graph_of(solver, n), steps=600, every=600
        )
        away = float(abs(result.X - f.minimizer).max())
        limit = 1e-8 if n == 1 or solver.exact else 1.0
        require(
            away <= limit,
            solver,
            "few_agents",
            f"{n} agent{'s' * (n > 1)} rest at {away:.2g} from the minimizer after 600 events of "
            "each, expected at most "
            f"{limit:g}",
            "does the solver divide by the number of neighbours?",
        )
