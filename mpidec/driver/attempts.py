"""Attempts of a run: one, or several with smaller and smaller step sizes where a search has
found the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from .._complex import as_reals, is_complex
from .._words import warn
from ..comm.mixing.internals import Operator, StepOperator
from ..problems.internals import real_view, seen
from ..solvers.internals import name_of, step_size_of
from . import codec_limits, noisy_links
from .backup import Backup
from .clocks import Clock, Steps, Watched
from .diagnosis import Diagnosis
from .journal import RunLog
from .outcome import Outcome, RunEnd, decide_outcome
from .plan import Plan, State
from .recalled import Recalled, as_recorded
from .result import Result
from .runs import mixer_of_runs
from .stepsize import (
    TUNING,
    Choice,
    Guard,
    ModelSearch,
    Retry,
    Search,
    Task,
    requested_rule,
    unstable_schedule,
    with_size,
)

ANY_SIZE = "whatever the step size"  # words of a reason

R = TypeVar("R")


def attempts(
    plan: Plan,
    search: ModelSearch,
    choice: Choice,
    run: Callable[[Plan, Choice, Guard | None, bool], R],
) -> R:
    """Return the result of `run(plan, choice, guard, last)`, with the step size of the choice;
    again with a smaller one after each `Retry`.  A run that goes on without its dead leaves out
    those that have failed before; a resumed one that begins again replaces its file.  Collective.
    """
    net, solver, record, backup = plan.net, plan.solver, plan.record, Backup.of(plan.net)
    failed = 0 if backup is None or backup.key is None else backup.failed
    begun = choice.failed

    def once(choice: Choice, last: bool) -> R:
        if backup is not None:
            backup.failed = choice.failed
        now = replace(plan, solver=with_size(solver, choice.step_size))
        if record is not None and record.resume and choice.failed > begun:
            now = replace(now, record=replace(record, resume=False, replace=True))
        return run(now, choice, search.guard(choice), last)

    while choice.failed < TUNING.attempts:
        reason: Retry | None = None
        if choice.failed >= failed:
            try:
                return once(choice, False)
            except Retry as retry:
                reason = retry
        smaller = search.smaller(choice)
        if reason is not None and net.rank == 0:
            warn(
                f"{name_of(solver)} did not converge with the step size {choice.step_size:.4g} "
                f"({reason}): the run "
                f"begins again with {smaller.step_size:.4g}"
            )
        choice = smaller
    return once(choice, True)


def searched(search: ModelSearch, recalled: Recalled | None) -> Choice:
    """Return the choice of a search, or that in the file of a resumed run; collective."""
    if recalled is None:
        return search()
    search.recall(recalled.point, recalled.away)
    return recalled.choice


@dataclass(frozen=True)
class Attempt:
    """A run with one step size, and how it is judged.

    Parameters
    ----------
    plan : Plan
        With a solver whose step size is a number or a schedule.
    clock : Watched
    choice : Choice or None
        The search that has found the step size.
    guard : Guard or None
        Checks of the distance to the estimated minimizer.
    last : bool
        Whether there is no further attempt, so that the guard judges the end only.
    unstable : str
        Why the solver may diverge on the schedule with any small step size, or "".
    """

    plan: Plan
    clock: Watched
    choice: Choice | None = None
    guard: Guard | None = None
    last: bool = True
    unstable: str = ""

    @property
    def on_the_way(self) -> Guard | None:
        """The guard, unless it judges the end only."""
        return None if self.last else self.guard

    def retry(self, end: RunEnd, k: int) -> None:
        """Begin again if the run has diverged, not at once, and there are smaller step sizes to
        try.

        Raises
        ------
        Retry
        """
        again = self.on_the_way is not None and not self._at_once(k)
        if end.outcome is Outcome.DIVERGED and again:
            raise Retry(end.reason)

    def not_finite(self, k: int, agent: int) -> RunEnd:
        """Return the end of a run whose iterates are not finite after step `k`."""
        reason = f"the iterate of agent {agent} is not finite after step {k}"
        if self._at_once(k):
            cause = self.clock.disturbance
            reason += f", {ANY_SIZE}{', as ' * bool(cause)}{cause}"
        return RunEnd(Outcome.DIVERGED, reason, agent)

    def _at_once(self, k: int) -> bool:
        """Return whether iterates not finite after step `k` are so with any step size that a search
        would find.
        """
        # One step does not overflow unless gradients are not finite already, or rows that arrive:
        # the latter with the first step that mixes, the last of a period.
        first = self.plan.solver.period if self.clock.disturbance else 1
        return self.choice is not None and k in (1, first)

    def too_far(self, X: np.ndarray, k: int) -> str:
        """Return why a chosen step size has failed although the metrics are finite, or "";
        collective.
        """
        if self.guard is None:
            return ""
        far = self.guard.far(self.plan.of_first_run(X), strict=self.last)
        if not far:
            return ""
        far = f"{far}, after {k} steps"
        if self.choice is not None and self.choice.futile:
            return f"{far}: no step size makes progress with this codec"
        if not self.last or self.unstable:
            return far
        return (
            f"{far}, as it was with the {TUNING.attempts} larger step sizes tried before: start "
            "closer to the minimizer (x0), or give a step size or a schedule"
        )

    def judge(
        self, k: int, s: State, log: RunLog, stopped: bool, interrupted: bool = False
    ) -> RunEnd:
        """Return the outcome of a run that has ended by itself after step `k`; collective."""
        plan, clock, X = self.plan, self.clock, self.plan.of_first_run(s.X)
        return decide_outcome(
            log.records,
            log.sizes,
            clock.moment(k),
            lambda: log.measure.diverged_agent(s.X),
            target=plan.target,
            stopped=stopped,
            interrupted=interrupted,
            too_far=lambda: self.too_far(s.X, k),
            cause=lambda name, limit: Diagnosis(
                net=plan.net,
                problem=seen(plan.problem, plan.X),
                topology=clock.topology,
                solver=plan.solver,
                oracle=plan.oracle,
                metrics=log.metrics,
                name=name,
                limit=limit,
                X=X,
                limits=clock.limits(X.shape[1]),
                unstable=self.unstable,
                searched=self.choice is not None,
            ).cause(),
        )

    def result(self, k: int, s: State, log: RunLog, end: RunEnd) -> Result:
        """Return the result of a run that has ended after step `k`; collective."""
        plan, solver = self.plan, self.plan.solver
        return Result(
            X=plan.by_run(s.X),
            x=plan.net.mean(plan.by_run(s.X)),
            outcome=end.outcome,
            steps=k,
            metrics=log.metrics,
            reason=self._reason(end),
            agent=end.agent,
            step_size=step_size_of(solver),
            choice=self.choice,
            limit=self.clock.disturbance if solver.exact else "",
            unstable=self.unstable,
            problem=plan.problem,
        )

    def _reason(self, end: RunEnd) -> str:
        """Return the reason of the end, and of a divergence the schedule, if that is the likely
        cause.
        """
        if end.outcome is not Outcome.DIVERGED or not self.unstable:
            return end.reason
        return (
            f"{end.reason}; unless the step size is too large, the schedule is the cause: "
            f"{self.unstable}"
        )


Once = Callable[[Attempt, Clock], Result]


def attempted(plan: Plan, once: Once) -> Result:
    """Return the result of a run, after a search if its step size is to be found; collective."""
    plan, recalled = as_recorded(plan)
    with plan.mixer() as mixer:
        mixer_of_runs(mixer, plan.runs, plan.solver, plan.oracle)  # refused before a search
        X0, oracle = as_reals(plan.X), plan.oracle
        if is_complex(plan.X) and oracle is not None:  # the search knows real rows
            oracle = real_view(oracle)
        unstable = unstable_schedule(plan.net, plan.solver, mixer, X0.shape[1])
        if plan.net.rank == 0:
            _warn(plan, mixer, unstable)
        if oracle is None or (recalled is None and requested_rule(plan.solver) is None):
            steps = Steps(plan, mixer)
            return once(Attempt(plan, steps, unstable=unstable), steps)
        task = Task(
            plan.net,
            oracle,
            solver=plan.solver,
            X0=X0,
            steps=plan.steps,
            seed=plan.seed,
            tol=plan.tolerance,
        )
        search = Search(task, plan.topology, mixer, unstable)
        choice = searched(search, recalled)
    plan = replace(plan, topology=search.topology)
    # where the schedule is the cause, smaller step sizes are no remedy
    alone = bool(unstable) or choice.futile

    def run(plan: Plan, choice: Choice, guard: Guard | None, last: bool) -> Result:
        with plan.mixer() as mixer:
            steps = Steps(plan, mixer)
            return once(Attempt(plan, steps, choice, guard, last or alone, unstable), steps)

    return attempts(plan, search, choice, run)


def _warn(plan: Plan, mixer: Operator[StepOperator], unstable: str) -> None:
    solver = plan.solver
    few = solver.advice(plan.steps)
    codec = codec_limits.warning(solver, mixer, as_reals(plan.X).shape[1])
    for warning in (codec, unstable, few, noisy_links.warning(solver, mixer)):
        if warning:
            warn(warning)
