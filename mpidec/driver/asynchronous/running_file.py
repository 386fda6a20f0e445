"""The file of a run on ranks, and what a resumed run has done before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...record.recorder import Record, Recorder
from ..metrics import ASYNCHRONOUS, COUNTERS, Metrics
from .files import Activity, arrays, counters, finish, rows
from .live import Live
from .result import AsyncResult, cannot_resume
from .simulation import histogram
from .snapshots import Snapshots


def names(net: Any, problem: Any) -> tuple[str, ...]:
    """The metrics of a run: those of asynchronous runs, and what the problem provides."""
    return (
        *ASYNCHRONOUS,
        "rounds",
        *(name for name in Metrics(net, problem).names if name not in COUNTERS),
    )


class Before(NamedTuple):
    """What a resumed run has done before: steps; time, messages, bytes and events; the arrays of `Run.asynchronous`."""

    step: int = 0
    counters: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    arrays: Mapping[str, np.ndarray] = {}

    @property
    def events(self) -> int:
        """Events of all agents."""
        return int(self.counters[3])

    def averagings(self, pairs: list[list[int]]) -> dict[tuple[int, int], int]:
        """Averagings of each edge in the whole run, with those of this part as (i, j, number)."""
        found = {(i, j): number for i, j, number in pairs}
        for (i, j), number in zip(self.arrays.get("edges", ()), self.arrays.get("averagings", ())):
            found[int(i), int(j)] = found.get((int(i), int(j)), 0) + int(number)
        return found

    def staleness(self, ages: list[list[int]]) -> np.ndarray:
        """The histogram of the whole run, with (age, number) of this part."""
        found = dict(enumerate(np.asarray(self.arrays.get("staleness", ()), int).tolist()))
        for age, number in ages:
            found[age] = found.get(age, 0) + number
        return histogram(found)


class Counting(NamedTuple):
    """Counters of the records of a run.

    Parameters
    ----------
    before : Before
    n : int
        Number of agents.
    width : int
        Numbers in a message.
    gradients : bool
        Whether each event is a gradient.
    """

    before: Before
    n: int
    width: int
    gradients: bool

    def __call__(
        self, t: float, events: int, messages: int, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """The record at the time `t` of this part of the run, after so many events and messages of all agents."""
        earlier, sent, volume, done = self.before.counters
        events += int(done)
        step = events // self.n
        counters = {
            "step": step,
            "rounds": step,
            "time": earlier + t,
            "events": events,
            "gradients": events if self.gradients else 0,
            "messages": int(sent) + messages,
            "bytes": int(volume) + 8 * self.width * messages,
        }
        return {
            **{name: value for name, value in metrics.items() if name not in COUNTERS},
            **counters,
        }


class File:
    """The file of a run on ranks.

    Parameters
    ----------
    net : Network
    problem : problem or None
    solver : Solver
        With numbers for its parameters.
    record : Record
    meta : callable (solver) -> dict
        Attributes.
    states, stacks
        Of the local agents.

    Notes
    -----
    All methods are collective.
    """

    def __init__(
        self,
        net: Any,
        problem: Any,
        solver: Any,
        record: Record,
        meta: Callable[[Any], dict[str, Any]],
        states: Sequence[Any],
        stacks: Mapping[str, np.ndarray],
    ):
        self._net, self._problem, self._solver, self._record = net, problem, solver, record
        least = Metrics(net, problem).least()
        self._meta = (
            meta(solver) | {"clock": "seconds"} | ({} if least is None else {"f_star": least})
        )
        self._states, self._stacks = states, stacks
        self._before, self._early = Before(), 0
        self.recorder: Recorder[Any] = Recorder(net, record, self._rows(), ())

    def begin(self, topology: Any, records: int) -> Before:
        """Create the file, for about so many records, or set the states to those of the last checkpoint."""
        if self._record.resume:
            self._before = self._resumed(topology)
        else:
            self.recorder.create(
                self._stacks["x"].shape[1:],
                names(self._net, self._problem),
                self._rows(),
                topology,
                self._meta,
                records,
            )
        self._early = self._before.step
        return self._before

    def first(self) -> None:
        """Write the first record of a new run, and a checkpoint, so that the file exists from the beginning."""
        if self._record.resume:
            return
        measure, X = Metrics(self._net, self._problem), self._stacks["x"]
        metrics = measure(X)
        if measure.failed:
            self._net.agree(measure.error)
        self.recorder.append(0, {**dict.fromkeys(names(self._net, self._problem), 0), **metrics}, X)
        if not cannot_resume(self._solver):
            self.recorder.checkpoint(0, self._rows(), np.zeros(4), {})
        self._net.agree(self.recorder.error)

    def live(self, snapshots: Snapshots, counting: Counting) -> Live:
        """Records during the run, until those of its end replace them."""

        def write(
            t: float, events: int, messages: int, metrics: dict[str, float], X: np.ndarray | None
        ) -> None:
            row = counting(t, events, messages, metrics)
            if row["step"] > self._early:
                self._early = int(row["step"])
                self.recorder.append_gathered(self._early, row, X)
                if self.recorder.error is not None:
                    raise self.recorder.error

        seconds = self._net.collectives.broadcast(self._record.flush_seconds, 0, "the record")
        return Live(
            self._net,
            Metrics(self._net, self._problem),
            snapshots,
            max(seconds, 1e-3),
            self._record.trajectory,
            write,
        )

    @property
    def seconds(self) -> float:
        """Between two checkpoints; infinite if the run cannot be resumed."""
        return math.inf if cannot_resume(self._solver) else self._record.checkpoint_seconds

    def checkpoint(self, counted: Mapping[str, float], activity: Activity) -> None:
        """Write a record, if its step is a new one, and a checkpoint while nothing is under way; not if a number is not finite.

        Parameters
        ----------
        counted : mapping
            The counters of the record, the same on all ranks but for the time.
        activity : Activity
        """
        measure, X = Metrics(self._net, self._problem), self._stacks["x"]
        metrics = {**measure(X), **counted}
        if measure.failed:
            self._net.agree(measure.error)
        if not all(map(math.isfinite, metrics.values())):
            return
        step, self._early = (
            int(metrics["step"]),
            int(self._net.collectives.broadcast(self._early, 0, "the record")),
        )
        if step > self._early:
            self._early = step
            self.recorder.append(step, metrics, X)
        self.recorder.checkpoint(step, self._rows(), counters(metrics), {}, arrays(activity))
        self._net.agree(self.recorder.error)

    def end(self, result: AsyncResult, snapshots: Snapshots) -> None:
        """Write the records, of each step the last one, in the place of those that were written during the run, and the result."""
        if self._net.collectives.broadcast(self._early, 0, "the record") > self._before.step:
            self.recorder.restart(self._before.step)
        finish(self.recorder, result, self._rows(), self._written(result.metrics, snapshots))

    def _written(self, metrics: Mapping[str, np.ndarray], snapshots: Snapshots) -> int:
        """Write the records: the step of the last one."""
        steps, last = [*metrics["step"].tolist(), math.inf], self._before.step
        for k, (step, t) in enumerate(zip(steps, metrics["time"].tolist())):
            if last < step < steps[k + 1]:
                self.recorder.append(
                    step,
                    {name: column[k].item() for name, column in metrics.items()},
                    snapshots.at(t - self._before.counters[0])[0],
                )
                last = step
        return last

    def _resumed(self, topology: Any) -> Before:
        if cannot_resume(self._solver):
            raise ValueError(cannot_resume(self._solver))
        first, stored, counters, _ = self.recorder.load(topology, self._meta)
        for name, values in stored._asdict().items():
            field = name[0].lower() + name[1:]
            if field in self._stacks:
                self._stacks[field][:] = values
            else:
                for s, value in zip(self._states, values.tolist()):
                    setattr(s, field, value)
        for s in self._states:
            if hasattr(s, "t"):  # the clocks of the agents begin anew
                s.t = 0.0
        arrays = self.recorder.asynchronous()
        self.recorder.resume(first, self._meta)
        return Before(int(first), tuple(counters.tolist()), arrays)

    def _rows(self) -> Any:
        return rows(self._solver, self._states, self._stacks)
