"""Graphs and sizes that solvers accept: kinds of W, one and two agents."""

from __future__ import annotations

import re
import warnings

import numpy as np

from ..driver.internals import solve
from ..solvers import Bias, Solver
from ..solvers.internals import step_size_of
from .case import alone, costs, directed, graph_of, problem, require, resized, with_number


def kinds(solver: Solver) -> None:
    """A W of a kind that the class does not declare is refused, with a remedy; the solver's own
    graph is not.
    """
    graph = graph_of(solver)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with_number(solver).check(graph)
            error = None
        except (ValueError, RuntimeWarning) as found:
            error = found
    require(
        error is None,
        solver,
        "kinds",
        f"the solver's own graph, {graph.name}, is refused: {error}",
        "change needs.graph, or check()",
    )
    for kind in {"row", "column"} - {*solver.needs.kinds}:
        try:
            solver.check(directed(kind))
            words = None
        except ValueError as refusal:
            words = str(refusal)
        require(
            words is not None,
            solver,
            "kinds",
            f"a {kind} stochastic W is accepted, but needs.kinds is {solver.needs.kinds}",
            "does check() call super().check(topology)?",
        )
        require(
            re.search(r"\buse\b|topology\.|weights=", words or ""),
            solver,
            "kinds",
            f"the refusal names no remedy: {words!r}",
            "name a topology or weights that work",
        )


def few_agents(solver: Solver) -> None:
    """One agent alone takes steps and, with a problem, minimizes; two agents take steps."""
    method, steps = with_number(solver, 0.2), 400
    size = step_size_of(method)
    if isinstance(size, (int, float)) and size > 0:  # that of a user's may be small
        size = max(size, 2e-3)
        method, steps = resized(method, size), round(max(400, 80 / size))
    for n in (1, 2):
        graph, f = graph_of(solver, n), costs(n)
        X = np.zeros((n, 3)) + np.random.default_rng(n).standard_normal(3)
        target = f.minimizer if solver.needs.problem else X.mean(axis=0)
        with alone(n) as net:
            costs_of = problem(f) if solver.needs.problem else None
            result = solve(costs_of, method, graph, steps=steps, x0=X, net=net, every=steps)
        away = float(abs(result.X - target).max())
        alone_exact = not solver.adaptive and solver.bias_on(graph) is not Bias.OTHER
        limit = 1e-8 if solver.exact or (n == 1 and alone_exact) else 1.0
        require(
            away <= limit,
            solver,
            "few_agents",
            f"{n} agent{'s' * (n > 1)} ({graph.name}) rest at {away:.2g} from the minimizer after "
            f"{steps} steps, expected at most {limit:g}",
            "does the solver divide by n - 1, or by the number of neighbours?",
        )
