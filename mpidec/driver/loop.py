"""Solver loop: ask, step, look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..comm.mixing.operator import Operator, StepOperator
from ..comm.runtime.interrupts import interrupts
from ..solvers.base import Solver, at_step, state, step_size_of
from . import codec_limits
from .answers import Answers, Errors, gradients_for
from .attempts import Attempt
from .decisions import Control
from .journal import Journal
from .outcome import Outcome, RunEnd, not_finite
from .plan import Plan, State
from .result import Result


def steps(
    plan: Plan, W: Operator[StepOperator], F: Answers, s: State, first: int
) -> Iterator[tuple[int, State]]:
    """The states after each step, with their numbers: the mathematics of a run, and nothing
    else.
    """
    varying = callable(step_size_of(plan.solver))
    ask, step = _calls(plan, plan.solver)
    for k in range(first, plan.steps):
        if varying:
            ask, step = _calls(plan, at_step(plan.solver, k))
        s = step(s, ask(F.at(k), s), W.at(k))
        yield k + 1, s


def once(attempt: Attempt) -> Result:
    """One run, with one step size, on one graph; collective.

    Raises
    ------
    Retry
    """
    plan, errors = attempt.plan, Errors(attempt.plan.net)
    gradients = gradients_for(plan.solver, plan.oracle, plan.net.agents, plan.seed)
    term = None if plan.oracle is None else plan.oracle.term
    answers = Answers(plan.problem, term, gradients, errors)
    # until the file is complete: Ctrl-C reaches some ranks later than others
    with interrupts() as interrupted:
        with Journal(plan, attempt.mixer, attempt.choice, answers, errors) as journal:
            k, s, end = _run(attempt, journal, answers, errors, interrupted)
            attempt.retry(end, k)
            plan.net.wait_for_readers()
        if end.outcome is not Outcome.DIVERGED:
            journal.checkpoint(k, s)
        journal.finish(k, s, str(end.outcome))
        return Result(
            X=s.X,
            x=plan.net.mean(s.X),
            outcome=end.outcome,
            steps=k,
            metrics=journal.metrics,
            reason=attempt.reason(end),
            agent=end.agent,
            step_size=step_size_of(plan.solver),
            choice=attempt.choice,
            limit=codec_limits.disturbance(plan.solver, attempt.mixer),
            unstable=attempt.unstable,
            problem=plan.problem,
        )


def _run(
    attempt: Attempt,
    journal: Journal,
    answers: Answers,
    errors: Errors,
    interrupted: Callable[[], bool],
) -> tuple[int, State, RunEnd]:
    """The last step, its state, and why it is the last one; collective."""
    plan = attempt.plan
    first, begun = k, s = journal.begin()
    control = Control(plan.net, plan.record.checkpoint_seconds if plan.record else None)
    stopped = journal.recorded_at_once(k) and journal.record(k, s)
    for k, s in () if stopped else steps(plan, attempt.mixer, answers, begun, first):
        if k == first + 1:
            state(plan.solver, "step", s, plan.X.shape)
        control.watch(k, s.X)
        if attempt.guard is not None:
            attempt.check(k, s.X)
        recorded = k % plan.every == 0 or k == plan.steps
        if not (recorded or control.due(k)):
            continue
        decision = control.decide(k, interrupted(), errors.first or journal.error)
        if decision.failed:
            errors.raise_together(journal.error)
        if decision.diverged is not None:
            return decision.diverged[0], s, attempt.not_finite(*decision.diverged)
        if recorded or decision.interrupted:
            stopped = journal.record(k, s)
            if not_finite(journal.records[-1], last=False):
                break
        if decision.interrupted:
            return k, s, RunEnd(Outcome.INTERRUPTED)
        if decision.checkpoint:
            journal.checkpoint(k, s)
        if stopped:
            break
    errors.raise_together()  # of the last call of progress
    return k, s, attempt.judge(k, s, journal, stopped)


def _calls(plan: Plan, solver: Solver) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`ask` and `step` of a solver, which are events of the timeline if there is one."""
    net, timeline = plan.net, plan.net.context.timeline
    step = net.keeping(solver.step) if solver.keeps_rows else solver.step
    if timeline is None:
        return solver.ask, step
    return timeline.computing("gradient", solver.ask), timeline.computing("step", step)
