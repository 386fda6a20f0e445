"""The journal of a run: its records, its file and checkpoints, its target, and what is shown
while it goes on.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from ..comm.runtime import died
from ..exceptions import ResumeError
from ..record import Record
from ..record.internals import Recorder, buffered, edge_counts, held, restored
from .backup import Backup
from .clocks import Clock
from .curve import attributes_of_run
from .decisions import Decision
from .metrics import Metrics, columns
from .outcome import Target, said_by
from .plan import Plan, State, resumed_at
from .result import Result
from .runs import MetricsOfRuns
from .stepsize import Choice, Guard, Retry

# The rows of the last records in a copy; no field has a dot in its name.
_TAIL = "trajectory."


class RunLog:
    """The records of a run.

    Attributes
    ----------
    measure : Metrics
    names : tuple of str
        The metrics of a record.
    records : list of dict
        The metrics of all records.
    sizes : list of float
        Their norms of the iterates.
    """

    def __init__(self, measure: Metrics, names: tuple[str, ...]):
        self.measure, self.names = measure, names
        self.records: list[dict[str, float]] = []
        self.sizes: list[float] = []

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """All records, an array for each metric."""
        return columns(self.records, self.names)


class Journal(RunLog):
    """What is kept of a run; a context that writes an exception into the file.

    Parameters
    ----------
    plan : Plan
    clock : Clock
    choice : Choice or None
        The search that has found the step size.
    guard : Guard or None
        What the file of the run keeps, for the guard of a resumed one.
    """

    def __init__(
        self, plan: Plan, clock: Clock, choice: Choice | None = None, guard: Guard | None = None
    ):
        given = plan.net, plan.problem, plan.metrics
        measure = (
            Metrics(*given, like=plan.X)
            if plan.runs == 1
            else MetricsOfRuns(plan.runs, *given, like=plan.X)
        )
        super().__init__(measure, clock.names(measure))
        self._plan, self._net, self._source = plan, plan.net, clock
        self._choice, self._guard = choice, guard
        self._errors = clock.errors
        self._recorder: Recorder[Any] | None = None
        self._backup, self._edges, self._again = Backup.of(plan.net), dict[str, np.ndarray](), False
        if self._backup is not None:
            self.records, self.sizes = self._backup.records, self._backup.sizes
        self._tail = self._recorded_rows()
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
            failed = isinstance(error, Exception) and not (isinstance(error, Retry) or died(error))
            self._recorder.abandon(f"{type(error).__name__}: {error}" if failed else "")
        # None ends the job before rank 0 has written.
        if self._errors.common and not died(error):
            self._net.agree()

    @property
    def error(self) -> Exception | None:
        """That of the file."""
        return None if self._recorder is None else self._recorder.error

    # -- the beginning and the end -----------------------------------------------------------------

    def begin(self) -> tuple[int, State]:
        """Return the step and the state to begin with: the first ones, or those of the last
        checkpoint; collective.
        """
        plan, record, backup, k, elapsed = self._plan, self._plan.record, self._backup, 0, 0.0
        s, per_edge = self._source.begin(), plan.solver.needs.per_edge
        stored: Any = self._source.stored(s)
        if record is not None:
            self._recorder = Recorder(self._net, record, stored, per_edge)
        if backup is not None:
            self._edges = edge_counts(self._net, stored, per_edge)
        if backup is not None and backup.key is not None:
            k, s, elapsed = self._recalled(backup, backup.key.step, type(stored))
        elif self._recorder is not None and record is not None:
            if record.resume:
                k, s, elapsed = self._resumed(self._recorder, record)
            else:
                self._create(self._recorder, record, s)
        recorded = self._recorder is not None and self._recorder.has(k)
        self._again = recorded or any(record["step"] == k for record in self.records)
        if backup is not None:
            backup.begin(k + (k > 0 and not self._again))
        if self._choice is not None:
            plan.chosen(self._choice.line())
        self._clock = time.perf_counter() - elapsed
        if k == 0:
            self.checkpoint(0, s)
        return k, s

    def _recorded_rows(self) -> deque[tuple[int, np.ndarray]] | None:
        """Return a place for the rows of the last records, as many as may not be in the file yet;
        None if they are not recorded, or never copied.
        """
        record, X = self._plan.record, self._plan.X
        if self._backup is None or record is None or not record.trajectory:
            return None
        return deque(maxlen=buffered(X.nbytes // max(len(X), 1) * self._net.n * self._plan.runs))

    def recorded_at_once(self, k: int) -> bool:
        """Return whether to record the state to begin with: of a new run, at the last step, or
        where there is that record already.
        """
        return k == 0 or k >= self._plan.steps or self._again

    def finish(self, result: Result) -> None:
        """Write the result; collective."""
        if self._recorder is not None:
            self._recorder.finish(
                result.X, str(result.outcome), result.steps, result.activity_arrays()
            )

    def close(self) -> None:
        """Close the file as it is: those that are left when a rank has died open it again."""
        if self._recorder is not None:
            self._recorder.abandon()

    def _meta(self, record: Record) -> dict[str, Any]:
        """Return the root attributes of the file."""
        plan, source, least = self._plan, self._source, self.measure.least()
        meta = attributes_of_run(
            plan,
            record,
            self._choice,
            self._guard,
            source.topology,
            source.function,
            source.mixer,
            **source.conditions(),
        )
        meta |= {"every": plan.every} | ({"clock": source.name} if source.name else {})
        meta |= {} if plan.runs == 1 else {"runs": plan.runs}
        meta |= record.deaths()
        return meta | ({} if least is None else {"f_star": least})

    def _create(self, recorder: Recorder[Any], record: Record, s: State) -> None:
        plan, source = self._plan, self._source
        recorder.create(
            plan.by_run(s.X).shape[1:],
            self.names,
            source.stored(s),
            source.topology,
            self._meta(record),
            int(plan.steps / plan.every) + 2,
        )

    def _resumed(self, recorder: Recorder[Any], record: Record) -> tuple[int, State, float]:
        """Return the step, the state and the seconds of the last checkpoint."""
        source, meta = self._source, self._meta(record)
        k, s, totals, memory = recorder.load(source.topology, meta)
        if k > self._plan.steps:
            raise ResumeError(
                f"{record.path} has already taken {k} steps, steps is {self._plan.steps}: request "
                "more"
            )
        arrays = recorder.asynchronous() if source.name else {}
        s, elapsed = source.recall(os.fspath(record.path), k, s, totals.tolist(), memory, arrays)
        self._plan.note(resumed_at(k, recorder.resume(k, meta, source.repeats(k))))
        return k, s, elapsed

    def _recalled(self, backup: Backup, k: int, kind: type[Any]) -> tuple[int, State, float]:
        """Return the step, the state and the seconds of the copy in memory."""
        found, (totals, steps, saved) = backup.recall(self._net, self._edges)
        rows = dict(zip(steps, np.moveaxis(found.pop(_TAIL), 1, 0))) if steps else {}
        stored, memory = restored(kind, found)
        s, elapsed = self._source.recall("the copy", k, stored, totals, memory, {})
        if self._recorder is not None and self._plan.record is not None:
            so_far = [record for record in self.records if record["step"] < k]
            self._recorder.rejoin(k, self._meta(self._plan.record), so_far, rows, saved)
        if self._tail is not None:
            self._tail.extend((step, X) for step, X in rows.items() if step < k)
        return k, s, elapsed

    # -- on the way --------------------------------------------------------------------------------

    def record(self, k: int, s: State) -> bool:
        """Measure the iterates after step `k`, record them, and return whether to stop;
        collective.
        """
        begun, plan = time.perf_counter(), self._plan
        metrics = self._source.measured(self.measure, k, s, begun - self._clock)
        if self.measure.failed:
            self._errors.raise_together(self.measure.error)
        self.records.append(metrics)
        self.sizes.append(self.measure.size)
        if self._recorder is not None:
            self._recorder.append(k, metrics, plan.by_run(s.X))
        if self._tail is not None:
            self._tail.append((k, np.array(plan.by_run(s.X))))
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
        source = self._source
        totals = np.array(source.totals(begun - self._clock), float)
        self._recorder.checkpoint(k, source.stored(s), totals, source.memory(), source.arrays())
        self._clock += time.perf_counter() - begun

    def keep(self, k: int, s: State, decision: Decision) -> None:
        """Write a checkpoint or a copy after step `k`, if all ranks have decided so; collective."""
        if decision.checkpoint:
            self.checkpoint(k, s)
        if decision.copy:
            self.copy(k, s)

    @property
    def copy_is_due(self) -> bool:
        """Whether it is time for a copy in memory."""
        return self._backup is not None and self._backup.due

    def copy(self, k: int, s: State) -> None:
        """Keep in memory what those that are left need to go on after step `k`, of which there is a
        record if it is due; collective.
        """
        if self._backup is None:
            return
        begun = time.perf_counter()
        source, steps = self._source, list[int]()
        totals = source.totals(begun - self._clock)
        rows = held(source.stored(s), source.memory())
        saved = None if self._recorder is None else self._recorder.saved()
        if self._tail is not None and saved is not None:
            while self._tail and self._tail[0][0] <= saved[0]:
                self._tail.popleft()
            if self._tail:
                steps = [step for step, _ in self._tail]
                rows[_TAIL] = np.stack([X for _, X in self._tail], axis=1)
        self._backup.keep(self._net, k, rows, self._edges, (totals, steps, saved))
        self._clock += time.perf_counter() - begun

    def _reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether to stop; where the clock or a callable decides, rank 0 does."""
        target, net, errors = self._plan.target, self._net, self._errors
        if target is None:
            return False
        if isinstance(target, Target):
            reached = target.reached(metrics)
            if "time" not in target.limits or net.size == 1:
                # The other metrics have the same bits on all ranks.
                return reached
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
