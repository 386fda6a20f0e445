"""Asynchronous runs in one process, on a queue of events."""

from __future__ import annotations

from dataclasses import replace

from ..._complex import as_reals, is_complex
from ..._words import warn
from ...problems.internals import real_view
from ..attempts import Attempt, attempts, searched
from ..clocks import Simulated
from ..loop import once
from ..plan import Plan
from ..recalled import as_recorded
from ..result import Result
from ..stepsize import Choice, Guard, Task, requested_rule
from .events import Events
from .prepared import as_asynchronous, prepared
from .search import AsyncSearch


def run(plan: Plan, events: Events) -> Result:
    """Return the result of a simulation, after a search if its step size is to be found."""
    net, static = plan.net, plan.topology.at(0)
    solver = prepared(as_asynchronous(plan.solver), static)
    if losing := solver.losing(plan.drop):
        warn(losing)
    plan, recalled = as_recorded(replace(plan, solver=solver))
    oracle = plan.oracle
    if oracle is None or (recalled is None and requested_rule(plan.solver) is None):
        clock = Simulated(plan, events)
        return once(Attempt(plan, clock), clock)
    if is_complex(plan.X):  # the search knows real rows
        oracle = real_view(oracle)
    task = Task(
        net,
        oracle,
        solver,
        X0=as_reals(plan.X),
        steps=plan.steps,
        seed=plan.seed,
        tol=plan.tolerance,
    )
    search = AsyncSearch(task, solver, static, events)

    def attempt(plan: Plan, choice: Choice, guard: Guard | None, last: bool) -> Result:
        clock = Simulated(plan, events)
        return once(Attempt(plan, clock, choice, guard, last), clock)

    return attempts(plan, search, searched(search, recalled), attempt)
