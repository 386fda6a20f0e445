"""Records of asynchronous runs: snapshots and metrics during a run, and the files, also of runs that are resumed."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...comm.mixing.network import Network
from ...comm.runtime.mpi import MPI
from ...comm.runtime.progress import wait_until
from ...problems.base import Problem
from ...protocols import Reductions
from ...record.recorder import Record, Recorder
from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ...topology import Schedule, Topology
from ..loop import Plan
from ..metrics import ASYNCHRONOUS, COUNTERS, Metrics
from ..provenance import attributes
from ..stopping import Outcome
from .result import (
    SIMULATED,
    AsyncResult,
    LocalAgents,
    cannot_resume,
    collected,
    histogram,
    stacked,
)

_MOST, _BYTES = 400, 1 << 26  # snapshots that are kept, and their size
_FIRST = 1e-3  # seconds between two snapshots at first
_SHARE = 0.02  # of the run so far: the least time between two records
_LOOK = 5e-5  # seconds between two looks for the other thread to leave MPI
_WHOLE = {*ASYNCHRONOUS, "rounds"} - {"time"}  # metrics that are whole numbers

Write = Callable[[float, int, int, dict[str, float], np.ndarray | None], None]


def maximum(net: Reductions, value: float, what: str) -> float:
    """The largest of the values of all ranks; collective."""
    return -float(net.collectives.minimum(np.array([-value]), what)[0])


def names(measure: Metrics, *counters: str) -> tuple[str, ...]:
    """The metrics of a run: the counters of asynchronous runs, others, and what the problem provides."""
    provided = (name for name in measure.names if name not in COUNTERS)
    return (*ASYNCHRONOUS, *counters, *provided)


def columns(records: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """All records as arrays, by metric."""
    return {
        name: np.array([record[name] for record in records], np.int64 if name in _WHOLE else float)
        for name in names
    }


class Snapshots:
    """Copies of rows, at distances in time that grow with the run.

    Parameters
    ----------
    copy : callable () -> array
        The rows now.
    size : int
        Their size in bytes.
    """

    def __init__(self, copy: Callable[[], np.ndarray], size: int):
        self._copy, self._most = copy, max(4, min(_MOST, _BYTES // max(size, 1)))
        self._every, self._next = _FIRST, 0.0
        self.times: list[float] = []
        self._rows: list[np.ndarray] = []
        self._counts: list[tuple[int, int]] = []

    def look(self, now: float, events: int, messages: int, due: bool = False) -> None:
        """Take one if it is time to, or `due`."""
        if now < self._next and not due:
            return
        if len(self.times) >= self._most:
            self.times, self._rows, self._counts = (
                self.times[::2],
                self._rows[::2],
                self._counts[::2],
            )
            self._every *= 2
        self.times.append(now)
        self._rows.append(self._copy())
        self._counts.append((events, messages))
        self._next = now + self._every

    def at(self, time: float) -> tuple[np.ndarray, int, int]:
        """The last rows that were taken up to a time, with the numbers of events and messages."""
        k = max(bisect(self.times, time) - 1, 0)
        return self._rows[k], *self._counts[k]


class Live:
    """Metrics of all agents at moments that all ranks know beforehand, by nonblocking reductions.

    Each rank takes part in a record when it comes between two of its events, however late, with the rows that it had at the moment
    of the record.

    Parameters
    ----------
    net : Network
    measure : Metrics
    snapshots : Snapshots
        Rows, events and messages of this rank.
    seconds : float
        Between two records; more in a long run, the same on all ranks.
    trajectory : bool
        Whether rank 0 is sent the rows of all agents.
    write : callable (time, events, messages, metrics, X)
        Takes a record on rank 0; `X` are the rows of all agents, or None.

    Notes
    -----
    The constructor and `finish` are collective.
    """

    def __init__(
        self,
        net: Network,
        measure: Metrics,
        snapshots: Snapshots,
        seconds: float,
        trajectory: bool,
        write: Write,
    ):
        self._net, self._measure, self._snapshots, self._write = net, measure, snapshots, write
        self._seconds, self._trajectory = seconds, trajectory
        self._comm, self._next, self._begun = net.comm.Dup(), seconds, 0
        self._parts: Iterator[list[MPI.Request]] | None = None
        self._requests: list[MPI.Request] = []

    def look(self, now: float) -> None:
        """Begin a record if it is time to, or go on with the current one; returns at once."""
        if self._parts is None:
            if now < self._next:
                return
            self._parts = self._record(self._next)
            self._begun += 1
            self._next += max(self._seconds, _SHARE * self._next)
        else:
            with self._turn(wait=False) as entered:
                if not (entered and MPI.Request.Testall(self._requests)):
                    return
        try:
            self._requests = next(self._parts)
        except StopIteration:
            self._parts, self._requests = None, []

    def finish(self) -> None:
        """Complete all records that any rank has begun."""
        most = maximum(self._net, self._begun, "the end of the run")

        def complete() -> bool:
            self.look(math.inf if self._begun < most else -math.inf)
            return self._parts is None and self._begun >= most

        wait_until(complete, "all ranks to complete the last record")
        self._comm.Free()

    def _record(self, t: float) -> Iterator[list[MPI.Request]]:
        """Parts of a record, each with the requests that must end before the next part."""
        X, *counts = self._snapshots.at(t)
        net, measure, d = self._net, self._measure, X.shape[1]
        mine = np.concatenate([X.sum(axis=0), np.array(counts, float)])
        sums = np.empty_like(mine)
        with self._turn():
            requests = [self._comm.Iallreduce(mine, sums)]
        yield requests
        mean = sums[:d] / net.n
        terms, far = measure.terms(X, mean).sum(axis=0), np.array([measure.distance(X)])
        if measure.error is not None:
            raise measure.error
        total, worst = np.empty_like(terms), np.empty_like(far)
        stack = np.empty((net.n, d)) if self._trajectory and net.rank == 0 else None
        with self._turn():
            requests = [self._comm.Ireduce(terms, total), self._comm.Ireduce(far, worst, MPI.MAX)]
            if self._trajectory:
                row, held = net.context.row_type(8 * d), net.partition.counts()
                into = None if stack is None else [stack, (held, np.cumsum(held) - held), row]
                requests.append(self._comm.Igatherv([X, len(X), row], into))
        yield requests
        if net.rank == 0:
            events, messages = map(int, sums[d:].tolist())
            self._write(t, events, messages, measure.of(mean, total, float(worst[0])), stack)

    @contextmanager
    def _turn(self, wait: bool = True) -> Iterator[bool]:
        """A context in which no other thread is in MPI; without `wait`, yields False if the thread that averages is."""
        lock = self._net.engine.lock
        while not (entered := lock.acquire(True) > 0) and wait:
            time.sleep(_LOOK)
        try:
            yield entered
        finally:
            if entered:
                lock.release()


class ResumedTotals(NamedTuple):
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


class RecordCounters(NamedTuple):
    """Counters of the records of a run.

    Parameters
    ----------
    before : ResumedTotals
    n : int
        Number of agents.
    width : int
        Numbers in a message.
    gradients : bool
        Whether each event is a gradient.
    """

    before: ResumedTotals
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
        return with_counters(metrics, counters)


def with_counters(metrics: Mapping[str, float], counters: Mapping[str, float]) -> dict[str, float]:
    """A record: the metrics of the rows, with the counters of an asynchronous run in the place of those of common steps."""
    return {
        **{name: value for name, value in metrics.items() if name not in COUNTERS},
        **counters,
    }


class Activity(NamedTuple):
    """What agents, edges and ranks have done so far; the fields are those of `AsyncResult`."""

    counts: np.ndarray
    averagings: Mapping[tuple[int, int], int]
    staleness: np.ndarray
    idle: np.ndarray


def activity_arrays(result: AsyncResult | Activity) -> dict[str, np.ndarray]:
    """What `Run.asynchronous` holds of a run.

    Examples
    --------
    >>> import mpidec
    >>> result = mpidec.simulate(None, mpidec.solvers.PairwiseGossip(), mpidec.topology.ring(3), steps=9, x0=np.eye(3))
    >>> activity_arrays(result)["edges"].tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    found = {"steps": result.counts}
    if result.averagings:
        edges = sorted(result.averagings)
        found |= {
            "edges": np.array(edges, np.int64),
            "averagings": np.array([result.averagings[edge] for edge in edges], np.int64),
        }
    if len(result.staleness):
        found["staleness"] = result.staleness
    if result.idle is not None:
        found["idle"] = result.idle
    return found


@contextmanager
def failing(recorder: Recorder[Any] | None) -> Iterator[None]:
    """Context of a run: an exception is written into its file, with the outcome "failed"."""
    try:
        yield
    except BaseException as error:
        if recorder is not None:
            recorder.abandon(
                f"{type(error).__name__}: {error}" if isinstance(error, Exception) else ""
            )
        raise


class SimulatedFile:
    """The file of a simulated run, written in this process; a context manager.

    Parameters
    ----------
    record : path or Record
    X : array (n, d)
        The rows of the agents.
    measure : Metrics
    topology, solver
    steps, every, seed
        Of the run.
    problem : problem or None
    """

    def __init__(
        self,
        record: str | os.PathLike[str] | Record,
        X: np.ndarray,
        measure: Metrics,
        topology: Topology | Schedule,
        solver: PairwiseSolver | PushSolver,
        steps: int,
        every: float,
        seed: int,
        problem: Problem | None,
    ):
        if not isinstance(record, (str, os.PathLike, Record)):
            raise TypeError(
                f"record is {record!r:.60}, expected a path, or mpidec.Record(path, ...)"
            )
        self.record = record if isinstance(record, Record) else Record(record)
        self.record.check()
        if self.record.resume:
            raise ValueError(f"{os.fspath(self.record.path)}: {SIMULATED}")
        self._net, self._last = Network(len(X), MPI.COMM_SELF), -1
        self.recorder: Recorder[Any] = Recorder(self._net, self.record, (), ())
        meta = attributes(
            self._net,
            self.record,
            solver,
            topology,
            steps,
            every,
            seed,
            function="simulate",
            problem=problem,
        )
        self.recorder.create(
            X.shape[1:],
            names(measure),
            namedtuple("State", ())(),
            topology,
            meta | _clock("simulated", measure),
            int(steps / every) + 2,
        )

    def append(self, metrics: Mapping[str, float], X: np.ndarray) -> None:
        """Write a record, if its step is a new one."""
        if metrics["step"] > self._last:
            self._last = int(metrics["step"])
            self.recorder.append(self._last, metrics, X)
            self._net.agree(self.recorder.error)

    def finish(self, result: AsyncResult) -> None:
        """Write the result."""
        _finish(self.recorder, result, None, self._last)

    def __enter__(self) -> SimulatedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._net.close()


class AsyncRunFile:
    """The file of a run on ranks.

    Parameters
    ----------
    plan : Plan
    record : Record
        That of the plan.
    solver : Solver
        With numbers for its parameters.
    agents : LocalAgents

    Notes
    -----
    All methods are collective.
    """

    def __init__(
        self,
        plan: Plan,
        record: Record,
        solver: PairwiseSolver | PushSolver,
        agents: LocalAgents,
    ):
        net, problem = plan.net, plan.problem
        self._net, self._solver, self._record, self._agents = net, solver, record, agents
        self._measure, self._X = Metrics(net, problem), agents.stacks["x"]
        meta = attributes(
            net,
            record,
            solver,
            plan.topology,
            plan.steps,
            plan.every,
            plan.seed,
            problem=problem,
        )
        self._meta = meta | _clock("seconds", self._measure)
        self._before, self._early = ResumedTotals(), 0
        self.recorder: Recorder[Any] = Recorder(net, record, self._rows(), ())

    def begin(self, topology: Topology | Schedule, records: int) -> ResumedTotals:
        """Create the file, for about so many records, or set the states to those of the last checkpoint."""
        if self._record.resume:
            self._before = self._resumed(topology)
        else:
            self.recorder.create(
                self._X.shape[1:],
                names(self._measure, "rounds"),
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
        metrics = self._measured()
        self.recorder.append(
            0, {**dict.fromkeys(names(self._measure, "rounds"), 0), **metrics}, self._X
        )
        if not cannot_resume(self._solver):
            self.recorder.checkpoint(0, self._rows(), np.zeros(4), {})
        self._net.agree(self.recorder.error)

    def live(self, snapshots: Snapshots, counters: RecordCounters) -> Live:
        """Records during the run, until those of its end replace them."""

        def write(
            t: float, events: int, messages: int, metrics: dict[str, float], X: np.ndarray | None
        ) -> None:
            row = counters(t, events, messages, metrics)
            if row["step"] > self._early:
                self._early = int(row["step"])
                self.recorder.append_gathered(self._early, row, X)
                if self.recorder.error is not None:
                    raise self.recorder.error

        seconds = self._net.collectives.broadcast(self._record.flush_seconds, 0, "the record")
        return Live(
            self._net, self._measure, snapshots, max(seconds, 1e-3), self._record.trajectory, write
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
        metrics = {**self._measured(), **counted}
        if not all(map(math.isfinite, metrics.values())):
            return
        step, self._early = int(metrics["step"]), self._shared(self._early)
        if step > self._early:
            self._early = step
            self.recorder.append(step, metrics, self._X)
        self.recorder.checkpoint(
            step, self._rows(), _totals(metrics), {}, activity_arrays(activity)
        )
        self._net.agree(self.recorder.error)

    def end(self, result: AsyncResult, snapshots: Snapshots) -> None:
        """Write the records, of each step the last one, in the place of those that were written during the run, and the result."""
        if self._shared(self._early) > self._before.step:
            self.recorder.restart(self._before.step)
        last = self._write_records(result.metrics, snapshots)
        _finish(self.recorder, result, self._rows(), last)

    def _shared(self, step: int) -> int:
        """A step of rank 0, on all ranks."""
        return int(self._net.collectives.broadcast(step, 0, "the record"))

    def _measured(self) -> dict[str, float]:
        """The metrics of the rows now; an error of the problem is raised on all ranks."""
        metrics = self._measure(self._X)
        if self._measure.failed:
            self._net.agree(self._measure.error)
        return metrics

    def _write_records(self, metrics: Mapping[str, np.ndarray], snapshots: Snapshots) -> int:
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

    def _resumed(self, topology: Topology | Schedule) -> ResumedTotals:
        if cannot_resume(self._solver):
            raise ValueError(cannot_resume(self._solver))
        first, stored, totals, _ = self.recorder.load(topology, self._meta)
        for name, values in stored._asdict().items():
            field = name[0].lower() + name[1:]
            if field in self._agents.stacks:
                self._agents.stacks[field][:] = values
            else:
                for s, value in zip(self._agents.states, values.tolist()):
                    setattr(s, field, value)
        for s in self._agents.states:
            if hasattr(s, "t"):  # the clocks of the agents begin anew
                s.t = 0.0
        arrays = self.recorder.asynchronous()
        self.recorder.resume(first, self._meta)
        return ResumedTotals(int(first), tuple(totals.tolist()), arrays)

    def _rows(self) -> tuple[Any, ...]:
        """The states of the local agents as a named tuple of arrays; without agents, of arrays without rows."""
        states, stacks = self._agents.states, self._agents.stacks
        some = states or [self._solver.init(np.zeros(self._X.shape[1]))]
        found = vars(collected(some, stacks if states else stacked(some)))
        arrays = {
            name: value[: len(states)]
            for name, value in found.items()
            if isinstance(value, np.ndarray)
        }
        return namedtuple("State", arrays)(**arrays)


def _clock(clock: str, measure: Metrics) -> dict[str, Any]:
    """Root attributes of asynchronous runs: the unit of time, and the objective at the solution; collective."""
    least = measure.least()
    return {"clock": clock} | ({} if least is None else {"f_star": least})


def _totals(record: Mapping[str, float]) -> np.ndarray:
    """Time, messages, bytes and events of a record, with which a resumed run goes on."""
    return np.array([record[name] for name in ("time", "messages", "bytes", "events")], float)


def _finish(
    recorder: Recorder[Any], result: AsyncResult, state: tuple[Any, ...] | None, last: int
) -> None:
    """Write a checkpoint if the run can be resumed, and the result; collective.

    Parameters
    ----------
    recorder : Recorder
    result : AsyncResult
    state : named tuple
        The states of the agents.
    last : int
        Step of the last record in the file.
    """
    if result.outcome is not Outcome.DIVERGED and not result.obstacle:
        totals = _totals({name: column[-1] for name, column in result.metrics.items()})
        recorder.checkpoint(last, state, totals, {})
    recorder.finish(result.X, str(result.outcome), last, activity_arrays(result))
