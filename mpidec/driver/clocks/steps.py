"""Synchronous steps: all agents take each step together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..._words import warn
from ...comm.mixing.internals import Operator, StepOperator
from ...exceptions import ResumeError
from ...solvers import Solver
from ...solvers.internals import at_step, iterate, state
from .. import codec_limits
from ..answers import Answers, Errors, answers_of
from ..metrics import SHARE, Metrics
from ..plan import Plan, State
from ..result import Result
from ..runs import AnswersOfRuns, mixer_of_runs
from .clock import Arrays

if TYPE_CHECKING:
    from ...protocols import Functions
    from ...topology import Schedule, Topology

# Prefix of what gradients remember, beside the memory of the mixer.
_ORACLE = "oracle."


class Steps:
    """The clock of synchronous steps, on all ranks.

    Parameters
    ----------
    plan : Plan
    mixer : mixer
    """

    name: ClassVar[str] = ""
    function: ClassVar[str] = "solve"

    def __init__(self, plan: Plan, mixer: Operator[StepOperator]):
        self._plan, self._mixer = plan, mixer
        self.errors = Errors(plan.net)
        self._of_runs = mixer_of_runs(mixer, plan.runs, plan.solver, plan.oracle)
        self._answers = self._functions()

    def _functions(self) -> Answers:
        plan, oracle, agents = self._plan, self._plan.oracle, self._plan.net.agents
        if oracle is None or not plan.solver.needs.problem or plan.runs == 1:
            return answers_of(plan.solver, oracle, agents, plan.seed, self.errors)
        gradients = oracle.of_runs(agents, range(plan.seed, plan.seed + plan.runs))
        return AnswersOfRuns(plan.runs, oracle, gradients, self.errors)

    @property
    def mixer(self) -> Operator[StepOperator]:
        """The mixer of the steps."""
        return self._mixer

    @property
    def topology(self) -> Topology | Schedule:
        return self._mixer.topology

    @property
    def disturbance(self) -> str:
        return self._mixer.disturbance

    def limits(self, d: int) -> str:
        return codec_limits.limit(self._plan.solver, self._mixer, d)

    def names(self, measure: Metrics) -> tuple[str, ...]:
        return measure.names + (SHARE,) * (self._mixer.withheld is not None)

    def conditions(self) -> dict[str, object]:
        return {"runs": self._plan.runs}

    def begin(self) -> State:
        plan = self._plan
        X = plan.X if plan.runs == 1 else np.tile(plan.X, (1, plan.runs))
        s: State = at_step(plan.solver, 0).init(X, self._of_runs.at(0))
        state(plan.solver, "init", s, X.shape)
        return s

    def states(self, first: int, s: State) -> Iterator[tuple[int, State, bool]]:
        plan, F, W = self._plan, self._answers, self._of_runs
        every, steps = plan.every, plan.steps
        run = iterate(plan.solver, F, W, s, first, steps - first, calls=self._calls)
        for k, now in enumerate(run, first + 1):
            if k == first + 1:
                state(plan.solver, "step", now, s.X.shape)
            yield k, now, k % every == 0 or k == steps

    def _calls(self, solver: Solver) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """`ask` and `step` of a solver, which are events of the timeline if there is one."""
        net = self._plan.net
        ask, step, timeline = solver.ask, solver.step, net.context.timeline
        if solver.keeps_rows:
            step = net.keeping(step)
        if timeline is not None:
            ask, step = timeline.computing("gradient", ask), timeline.computing("step", step)
        return (self._slowed(ask) if self._plan.straggler else ask), step

    def _slowed(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """`ask` after the pauses of the local agents, which take turns."""
        pauses = self._plan.straggler or {}
        seconds = sum(pauses.get(i, 0.0) for i in self._plan.net.agents)

        def slowed(F: Functions, s: State) -> Any:
            time.sleep(seconds)
            return ask(F, s)

        return slowed

    def moment(self, k: int) -> str:
        return f"after {k} steps"

    def measured(self, measure: Metrics, k: int, s: State, seconds: float) -> dict[str, float]:
        mixer, answers = self._mixer, self._answers
        record = {
            "step": k,
            "time": seconds,
            "rounds": mixer.rounds,
            "gradients": answers.gradients,
            "prox": answers.points,
            **measure.at(k)(s.X, mixer.messages, mixer.bytes),
        }
        if mixer.withheld is not None:
            sent, withheld = record["rows"], float(self._plan.net.sum(mixer.withheld)[0])
            record[SHARE] = sent / (sent + withheld) if sent else float(withheld == 0)
        return record

    def stored(self, s: State) -> tuple[Any, ...]:
        return s  # type: ignore[return-value]  # a named tuple

    def totals(self, seconds: float) -> list[float]:
        net = self._plan.net
        sent = [self._mixer.bytes, self._mixer.messages]
        if net.size > 1:
            mine = np.zeros((net.m, 2), np.int64)
            mine[0] = sent
            sent = net.sum(mine).tolist()
        return [seconds, self._mixer.rounds, *sent, self._answers.gradients]

    def memory(self) -> Arrays:
        own = self._answers.memory()
        return {**self._of_runs.memory(), **{_ORACLE + name: rows for name, rows in own.items()}}

    def arrays(self) -> Arrays:
        return {}

    def recall(
        self, path: str, k: int, s: State, totals: list[float], memory: Arrays, arrays: Arrays
    ) -> tuple[State, float]:
        mixer, solver, root = self._of_runs, self._plan.solver, self._plan.net.rank == 0
        elapsed, rounds, sent, rows, gradients = totals
        own = {
            name.removeprefix(_ORACLE): stored
            for name, stored in memory.items()
            if name.startswith(_ORACLE)
        }
        of_mixer = {name: memory[name] for name in memory if not name.startswith(_ORACLE)}
        forgotten = k > 0 and mixer.feedback and not solver.needs.exchange and not of_mixer
        if forgotten and root:
            warn(
                f"{path}: the checkpoint of step {k} contains no error feedback memory (its "
                "mixings had none): the memory starts at zero, and the results differ "
                "from an uninterrupted run"
            )
        mixer.recall(of_mixer)
        try:
            self._answers.recall(own, int(gradients), k if solver.needs.argmin else 0, k)
        except ResumeError as error:
            raise ResumeError(f"{path}: {error}") from error
        counts = mixer.counts
        counts.rounds, counts.bytes = int(rounds), int(sent) * root
        counts.messages = int(rows) * root
        return s, elapsed

    def repeats(self, k: int) -> bool:
        return False

    def finish(self) -> None:
        pass

    def result(self, result: Result) -> Result:
        return result
