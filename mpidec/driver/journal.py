"""The journal of a run: its records, its file and checkpoints, its target, and what is shown
while it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from .._words import warn
from ..comm.mixing.operator import Operator, StepOperator
from ..exceptions import ResumeError
from ..record.recorder import Record, Recorder
from ..solvers.base import at_step, state
from .answers import Answers, Errors
from .curve import curve
from .metrics import Metrics, columns
from .outcome import Target, said_by
from .plan import Plan, State, resumed_at
from .provenance import attributes
from .stepsize import Choice, Retry

_ORACLE = "oracle."  # prefix of what gradients remember, beside the memory of the mixer


class Journal:
    """What is kept of a run; a context that writes an exception into the file.

    Parameters
    ----------
    plan : Plan
    mixer : mixer
    choice : Choice or None
        The search that has found the step size.
    answers : Answers
    errors : Errors

    Attributes
    ----------
    records : list of dict
        The metrics of all records.
    sizes : list of float
        Their norms of the iterates.
    """

    def __init__(
        self,
        plan: Plan,
        mixer: Operator[StepOperator],
        choice: Choice | None,
        answers: Answers,
        errors: Errors,
    ):
        self._plan, self._net, self._mixer, self._choice = plan, plan.net, mixer, choice
        self._answers, self._errors = answers, errors
        self.measure = Metrics(plan.net, plan.problem, plan.metrics, like=plan.X)
        self.records: list[dict[str, float]] = []
        self.sizes: list[float] = []
        self._recorder: Recorder[Any] | None = None
        self._clock = time.perf_counter()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if self._recorder is not None:
            failed = isinstance(error, Exception) and not isinstance(error, Retry)
            self._recorder.abandon(f"{type(error).__name__}: {error}" if failed else "")
        if self._errors.common:  # none ends the job before rank 0 has written
            self._net.agree()

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """All records, an array for each metric."""
        return columns(self.records, self.measure.names)

    @property
    def error(self) -> Exception | None:
        """That of the file."""
        return None if self._recorder is None else self._recorder.error

    # -- the beginning and the end -----------------------------------------------------------------

    def begin(self) -> tuple[int, State]:
        """The step and the state to begin with: the first ones, or those of the last checkpoint;
        collective.
        """
        plan, record, k, elapsed = self._plan, self._plan.record, 0, 0.0
        s = at_step(plan.solver, 0).init(plan.X, self._mixer.at(0))
        state(plan.solver, "init", s, plan.X.shape)
        if record is not None:
            recorder = Recorder(self._net, record, s, plan.solver.needs.per_edge)
            self._recorder = recorder
            if record.resume:
                k, s, elapsed = self._resumed(recorder, record)
            else:
                self._create(recorder, record, s)
        if self._choice is not None:
            plan.chosen(self._choice.line())
        self._clock = time.perf_counter() - elapsed
        if k == 0:
            self.checkpoint(0, s)
        return k, s

    def recorded_at_once(self, k: int) -> bool:
        """Whether the state to begin with is recorded; a run that has reached its target takes
        no further steps.
        """
        there = self._recorder is not None and self._recorder.has(k)
        return k == 0 or k >= self._plan.steps or there

    def finish(self, k: int, s: State, outcome: str) -> None:
        """Write the result; collective."""
        if self._recorder is not None:
            self._recorder.finish(s.X, outcome, k)

    def _meta(self, record: Record) -> dict[str, Any]:
        """The root attributes of the file."""
        plan, net, graph, least = self._plan, self._net, self._mixer.topology, self.measure.least()
        meta = attributes(
            net,
            record,
            plan.solver,
            topology=graph,
            steps=plan.steps,
            every=plan.every,
            seed=plan.seed,
            choice=self._choice,
            problem=plan.problem,
        )
        meta["every"] = plan.every
        meta |= curve(
            net,
            plan.solver,
            plan.oracle,
            topology=graph,
            X=plan.X,
            seed=plan.seed,
            mixer=self._mixer,
            metrics=plan.metrics,
        )
        return meta | ({} if least is None else {"f_star": least})

    def _create(self, recorder: Recorder[Any], record: Record, s: State) -> None:
        plan, graph = self._plan, self._mixer.topology
        names, records = self.measure.names, plan.steps // plan.every + 2
        recorder.create(plan.X.shape[1:], names, s, graph, self._meta(record), records)

    def _resumed(self, recorder: Recorder[Any], record: Record) -> tuple[int, State, float]:
        """The step, the state and the seconds of the last checkpoint."""
        mixer, solver, meta = self._mixer, self._plan.solver, self._meta(record)
        k, s, counters, stored = recorder.load(mixer.topology, meta)
        if k > self._plan.steps:
            raise ResumeError(
                f"{record.path} has already taken {k} steps, steps is {self._plan.steps}: request "
                "more"
            )
        # earlier versions have counted no rows, and no gradients
        known = counters.tolist() + [0.0, float(k)][len(counters) - 3 :]
        elapsed, rounds, sent, rows, gradients = known
        own, memory = _parted(stored)
        forgotten = k > 0 and mixer.feedback and not solver.needs.exchange and not memory
        if forgotten and self._net.rank == 0:
            warn(
                f"{record.path}: the checkpoint of step {k} contains no error feedback memory (it "
                "was written by an earlier "
                "version): the memory starts at zero, and the results differ from an uninterrupted "
                "run"
            )
        mixer.recall(memory)
        try:
            self._answers.recall(own, int(gradients), k if solver.needs.argmin else 0, k)
        except ResumeError as error:
            raise ResumeError(f"{record.path}: {error}") from error
        counts, root = mixer.counts, self._net.rank == 0
        counts.rounds, counts.bytes = int(rounds), int(sent) * root
        counts.messages = int(rows) * root
        self._plan.note(resumed_at(k, recorder.resume(k, meta)))
        return k, s, elapsed

    # -- on the way --------------------------------------------------------------------------------

    def record(self, k: int, s: State) -> bool:
        """Measure the iterates after step `k`, record them, and return whether to stop;
        collective.
        """
        begun, plan = time.perf_counter(), self._plan
        metrics = {
            "step": k,
            "time": begun - self._clock,
            "rounds": self._mixer.rounds,
            "gradients": self._answers.gradients,
            "prox": self._answers.points,
            **self.measure.at(k)(s.X, self._mixer.messages, self._mixer.bytes),
        }
        if self.measure.failed:
            self._errors.raise_together(self.measure.error)
        self.records.append(metrics)
        self.sizes.append(self.measure.size)
        if self._recorder is not None:
            self._recorder.append(k, metrics, s.X)
        if plan.progress is not None and self._net.rank == 0:
            try:
                plan.progress(k, plan.steps, dict(metrics))
            except Exception as error:  # raised on all ranks at the next decision
                self._errors.note(error)
        stopped = self._reached(metrics)
        self._clock += time.perf_counter() - begun
        return stopped

    def checkpoint(self, k: int, s: State) -> None:
        """Write what a restart after step `k` needs; collective."""
        if self._recorder is None:
            return
        begun = time.perf_counter()
        sent = np.array([[self._mixer.bytes, self._mixer.messages]])
        if self._net.size > 1:
            sent = self._net.collectives.gather_all(sent, "a checkpoint")
        totals = sent.reshape(-1, 2).sum(axis=0)
        counters = [begun - self._clock, self._mixer.rounds, *totals, self._answers.gradients]
        memory = self._mixer.memory()
        memory |= {_ORACLE + name: rows for name, rows in self._answers.memory().items()}
        self._recorder.checkpoint(k, s, np.array(counters, float), memory)
        self._clock += time.perf_counter() - begun

    def _reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether to stop; where the clock or a callable decides, rank 0 does."""
        target, net, errors = self._plan.target, self._net, self._errors
        if target is None:
            return False
        if isinstance(target, Target):
            reached = target.reached(metrics)
            if "time" not in target.limits or net.size == 1:
                return reached  # the other metrics have the same bits on all ranks
            return bool(net.collectives.broadcast(reached, 0, "the decision to stop"))
        stopped = False
        if net.rank == 0:
            try:
                stopped = said_by(target, metrics)
            except Exception as error:
                if net.size == 1:
                    raise
                errors.note(error)
        said = (stopped, errors.first is not None)
        stopped, failed = net.collectives.broadcast(said, 0, "the decision to stop")
        if failed:
            errors.raise_together()
        return bool(stopped)


def _parted(
    stored: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What gradients remember, and what the mixer remembers, of the memory of a checkpoint."""
    own = {name.removeprefix(_ORACLE): stored[name] for name in stored if name.startswith(_ORACLE)}
    return own, {name: stored[name] for name in stored if not name.startswith(_ORACLE)}
