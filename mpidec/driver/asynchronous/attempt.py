"""An asynchronous run with one step size, on ranks or simulated: its end and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...protocols import Reductions
from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ...solvers.base import Solver
from ..arguments import problem_of
from ..diagnosis import Diagnosis
from ..metrics import Metrics, columns
from ..outcome import Outcome, RunEnd, StopFunction, Target, decide_outcome
from ..stepsize import Choice, Guard, Retry
from .files import names
from .result import AsyncResult, LocalAgents, collected

if TYPE_CHECKING:
    from ...problems import Oracle
    from ...topology import Schedule, Topology


@dataclass(frozen=True, kw_only=True)
class AsyncAttempt:
    """A run with one step size.

    Attributes
    ----------
    net, oracle, topology, target, drop
        As in `Plan`.
    solver : PairwiseSolver or PushSolver
        With a number or a schedule as its step size.
    agents : LocalAgents
    measure : Metrics
    counters : tuple of str
        Metrics of the records beside those of all asynchronous runs.
    choice, guard
        The search that has found the step size.
    last : bool
        Whether there is no further attempt.
    """

    net: Reductions
    oracle: Oracle | None
    topology: Topology | Schedule
    target: Target | StopFunction | None
    drop: float
    solver: PairwiseSolver | PushSolver
    agents: LocalAgents
    measure: Metrics
    counters: tuple[str, ...] = ()
    choice: Choice | None = None
    guard: Guard | None = None
    last: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics of its records."""
        return names(self.measure, *self.counters)

    def judge(
        self,
        rows: Sequence[Mapping[str, float]],
        sizes: Sequence[float],
        moment: str,
        *,
        stopped: bool = False,
        interrupted: bool = False,
    ) -> RunEnd:
        """The outcome; collective."""
        guard, X = self.guard, self.agents.stacks["x"]
        return decide_outcome(
            rows,
            sizes,
            moment,
            lambda: self.measure.diverged_agent(X),
            target=self.target,
            stopped=stopped,
            interrupted=interrupted,
            too_far=lambda: "" if guard is None else guard.far(X, strict=self.last),
            cause=lambda name, limit: Diagnosis(
                self.net,
                problem_of(self.oracle),
                self.topology,
                solver=self.solver,
                oracle=self.oracle,
                metrics=columns(rows, self.names),
                name=name,
                limit=limit,
                X=X,
                limits=lost_mass(self.solver, self.drop),
                searched=self.choice is not None,
            ).cause(),
        )

    def retry(self, end: RunEnd) -> None:
        """Begin again if the run has diverged and there are smaller step sizes to try.

        Raises
        ------
        Retry
        """
        if end.outcome is Outcome.DIVERGED and self.guard is not None and not self.last:
            raise Retry(end.reason)

    def result(
        self,
        rows: Sequence[Mapping[str, float]],
        end: RunEnd,
        counts: np.ndarray,
        averagings: Mapping[tuple[int, int], int],
        staleness: np.ndarray,
        idle: np.ndarray | None = None,
    ) -> AsyncResult:
        """The result of a run that has ended; collective."""
        X, states, metrics = self.agents.stacks["x"], self.agents.states, columns(rows, self.names)
        return AsyncResult(
            X,
            self.net.mean(X),
            end.outcome,
            steps=int(metrics["step"][-1]),
            metrics=metrics,
            state=collected(states, self.agents.stacks) if states else None,
            counts=counts,
            averagings=averagings,
            staleness=staleness,
            solver=self.solver,
            reason=end.reason,
            agent=end.agent,
            idle=idle,
            choice=self.choice,
            problem=problem_of(self.oracle),
        )


def lost_mass(solver: Solver, drop: float) -> str:
    """What lost messages do to a solver that adds them up, with a remedy, or ""."""
    if not (drop and isinstance(solver, PushSolver) and solver.accumulates):
        return ""
    return (
        f"{type(solver).__name__} loses mass with each lost message (drop={drop}), and ends at a "
        "wrong point: use "
        "RunningSumTracking"
    )
