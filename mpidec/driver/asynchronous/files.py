"""Records of asynchronous runs: snapshots and metrics of runs on ranks, and the files, also of
runs that are resumed.
"""

from __future__ import annotations

import math
import os
import time
from bisect import bisect
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..._complex import from_reals
from ...comm.kernels import pairwise_sum
from ...comm.mixing import Network
from ...comm.runtime import MPI, on_all_ranks, over_mpi, wait_until
from ...exceptions import ResumeError
from ...protocols import Reductions
from ...record import Record, read
from ...record.internals import Recorder, spread
from ...solvers.internals import PairwiseSolver, PushSolver
from ...topology import Schedule, Topology
from ..metrics import Metrics, of_events
from ..outcome import StopFunction, Target, hits
from ..stepsize import Retry
from .result import AsyncResult, LocalAgents, cannot_resume, histogram, stacked

# Snapshots that are kept, and their size.
_MOST, _BYTES = 400, 1 << 26
# Seconds between two snapshots at first.
_FIRST = 1e-3
_SHARE = 0.02  # of the run so far: the least time between two records
# Seconds between two records in which a target is looked for, at first.
_TARGET = 0.05
# Seconds between two looks for the other thread to leave MPI.
_LOOK = 5e-5


def maximum(net: Reductions, value: float, what: str) -> float:
    """Return the largest of the values of all ranks; collective."""
    return -float(net.collectives.minimum(np.array([-value]), what)[0])


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
        self._taken: list[tuple[float, np.ndarray, int, int]] = []

    def follow(self, copy: Callable[[], np.ndarray]) -> None:
        """Let `copy` return the rows from now on."""
        self._copy = copy

    def look(self, now: float, events: int, messages: int, due: bool = False) -> None:
        """Take one if it is time to, or `due`."""
        if now < self._next and not due:
            return
        if len(self._taken) >= self._most:
            self._taken = self._taken[::2]
            self._every *= 2
        self._taken.append((now, self._copy(), events, messages))
        self._next = now + self._every

    @property
    def times(self) -> list[float]:
        """When they were taken."""
        return [time for time, *_ in self._taken]

    def at(self, time: float) -> tuple[np.ndarray, int, int]:
        """Return the last rows that were taken up to a time, with the numbers of events and
        messages.
        """
        _, X, events, messages = self._taken[max(bisect(self.times, time) - 1, 0)]
        return X, events, messages


class ResumedTotals(NamedTuple):
    """What a resumed run has done before: steps; time, messages, bytes and events; the arrays of
    `Run.asynchronous`.
    """

    step: int = 0
    counters: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    arrays: Mapping[str, np.ndarray] = {}

    @property
    def events(self) -> int:
        """Events of all agents."""
        return int(self.counters[3])

    def averagings(self, pairs: list[list[int]]) -> dict[tuple[int, int], int]:
        """Averagings of each edge in the whole run, with those of this part as (i, j, number)."""
        found = Counter({(i, j): number for i, j, number in pairs})
        if "edges" in self.arrays:
            before = zip(map(tuple, self.arrays["edges"].tolist()), self.arrays["averagings"])
            found.update({edge: int(number) for edge, number in before})
        return dict(found)

    def staleness(self, ages: list[list[int]]) -> np.ndarray:
        """Return the histogram of the whole run, with (age, number) of this part."""
        found = Counter(dict(enumerate(np.asarray(self.arrays.get("staleness", ()), int).tolist())))
        for age, number in ages:
            found[age] += number
        return histogram(found)


class AsyncFile:
    """The file of an asynchronous run; all methods but `append` are collective.

    Parameters
    ----------
    net : Network
    record : Record
    solver : Solver
        With numbers for its parameters.
    topology : Topology or Schedule
    measure : Metrics
    agents : LocalAgents
    meta : mapping
        Root attributes.
    """

    def __init__(
        self,
        net: Network,
        record: Record,
        solver: PairwiseSolver | PushSolver,
        topology: Topology | Schedule,
        measure: Metrics,
        agents: LocalAgents,
        meta: Mapping[str, Any],
    ):
        # Those that are left, if some have died with their ranks.
        self._left: Sequence[int] | None = None
        self._n = net.n
        if record.sharded:
            raise ValueError(
                f"Record({os.fspath(record.path)!r}, sharded=True): an asynchronous run writes one "
                "file, expected sharded=False or None"
            )
        record = replace(record, sharded=False)
        # The step of the last record, on rank 0.
        self.record, self.last = record, -1
        self._net, self._solver, self._topology, self._agents = net, solver, topology, agents
        least = measure.least()
        self._meta = {**meta, **record.deaths()} | ({} if least is None else {"f_star": least})
        self.recorder: Recorder[Any] = Recorder(net, record, self._states(), ())

    def begin(self, names: tuple[str, ...], records: int) -> ResumedTotals:
        """Create the file, for about so many records, or set the states to those of the last
        checkpoint.
        """
        if not self.record.resume:
            X = self._agents.X
            self.recorder.create(
                X.shape[1:], names, self._states(), self._topology, self._meta, records
            )
            return ResumedTotals()
        if reason := cannot_resume(self._solver):
            raise ValueError(reason)
        self.last, stored, totals, _ = self.recorder.load(self._topology, self._meta)
        arrays = self.recorder.asynchronous()
        if "queue" in arrays:
            raise ResumeError(
                f"{self.record.path} was written by a run on a queue of events, with messages "
                "under way: resume it there, with mpidec.simulate"
            )
        self._agents.recall(stored._asdict())
        for s in self._agents.states:
            # The clocks of the agents begin anew.
            if hasattr(s, "t"):
                s.t = 0.0
        self.later = self.recorder.resume(self.last, self._meta)
        return ResumedTotals(self.last, tuple(totals.tolist()), arrays)

    def go_on(self, n: int, left: Sequence[int]) -> None:
        """Reopen the file after its last record, as other ranks have died, and with them those of
        the n agents that are not `left`.  Its attributes stay those of all agents.
        """
        self._n, self._left = n, left
        with on_all_ranks(self._net):
            if self._net.rank == 0:
                self.last = int(read(self.record.path).metrics["step"][-1])
        self.last = self._net.collectives.broadcast(self.last, 0, "the record")
        self.recorder.resume(self.last, self.record.deaths())

    def _of_all(self, X: np.ndarray | None) -> np.ndarray | None:
        """Return rows of all agents that are left, with rows of NaN for the others."""
        return X if X is None or self._left is None else spread(X, self._left, self._n)

    @property
    def seconds(self) -> float:
        """Between two checkpoints; infinite if the run cannot be resumed, or some agents have died:
        a resumed run goes on from the last one before with all of them.
        """
        if self._left is not None:
            return math.inf
        return math.inf if cannot_resume(self._solver) else self.record.checkpoint_seconds

    def append(self, row: Mapping[str, float], X: np.ndarray | None, flush: bool = False) -> None:
        """Write a record, if its step is a new one; on rank 0, with the rows of all agents if
        the trajectory is stored.
        """
        if row["step"] > self.last:
            self.last = int(row["step"])
            self.recorder.append_gathered(self.last, row, self._of_all(X), flush)

    def restart(self, step: int) -> None:
        """Drop the records after `step`: others replace them."""
        if self._net.collectives.broadcast(self.last, 0, "the record") > step:
            self.last = step
            self.recorder.restart(step)

    def checkpoint(self, row: Mapping[str, float], activity: Mapping[str, np.ndarray]) -> None:
        """Write a checkpoint while nothing is under way, if the run can be resumed.

        Parameters
        ----------
        row : mapping
            The record of this moment, of which all metrics are finite.
        activity : mapping
            The arrays of `Run.asynchronous`.
        """
        if not cannot_resume(self._solver) and self._left is None:
            totals = [row[name] for name in ("time", "messages", "bytes", "events")]
            self.recorder.checkpoint(
                int(row["step"]), self._states(), np.array(totals, float), {}, activity
            )
        self._net.agree(self.recorder.error)

    def finish(self, result: AsyncResult) -> None:
        """Write the result."""
        X = self._of_all(self._net.gather(result.X))
        self.recorder.finish_gathered(
            X, str(result.outcome), result.steps, result.activity_arrays()
        )

    def _states(self) -> tuple[Any, ...]:
        """Return the states of the local agents as a named tuple of arrays; without agents, of
        arrays without rows.
        """
        agents = self._agents
        if not agents.states:
            x = agents.stacks["x"]
            some = [self._solver.init(np.zeros_like(x, shape=x.shape[1]))]
            agents = agents._replace(states=some, stacks=stacked(some))
        found = vars(agents.collected())
        arrays = {
            name: value[: len(self._agents.states)]
            for name, value in found.items()
            if isinstance(value, np.ndarray)
        }
        return namedtuple("State", arrays)(**arrays)


class _Moments:
    """The moments of the records during a run, which all ranks know beforehand.

    Parameters
    ----------
    first, seconds : float
        The first one, and the least time between two of them.

    Attributes
    ----------
    next : float
    taken : int
        How many have been taken.
    """

    def __init__(self, first: float, seconds: float):
        self.next, self._seconds, self.taken = first, seconds, 0

    def take(self) -> float:
        """Return the next one, after which there is another."""
        moment = self.next
        self.taken += 1
        self.next += max(self._seconds, _SHARE * self.next)
        return moment


class _UnderWay:
    """A record that is made in parts, each with requests that must end before the next part."""

    def __init__(self, net: Network):
        self._net = net
        self._parts: Iterator[list[MPI.Request]] | None = None
        self._requests: list[MPI.Request] = []

    def __bool__(self) -> bool:
        return self._parts is not None

    def begin(self, parts: Iterator[list[MPI.Request]]) -> None:
        self._parts = parts

    def ends(self) -> bool:
        """Go on with the record if its requests have ended; whether it is complete."""
        with self.turn(wait=False) as entered:
            if not (entered and MPI.Request.Testall(self._requests)):
                return False
        requests = None if self._parts is None else next(self._parts, None)
        self._requests = requests or []
        if requests is None:
            self._parts = None
        return requests is None

    @contextmanager
    def turn(self, wait: bool = True) -> Iterator[bool]:
        """A context in which no other thread is in MPI; without `wait`, yields False if the
        thread that averages is.
        """
        lock = self._net.engine.lock
        while not (entered := lock.acquire(True) > 0) and wait:
            time.sleep(_LOOK)
        try:
            yield entered
        finally:
            if entered:
                lock.release()


class SnapshotRecords:
    """Records of all agents, made of the snapshots of all ranks by nonblocking reductions.

    During the run, at moments that all ranks know beforehand: each rank takes part in a record when
    it comes between two of its events, however late, with the rows that it had at that moment.  At
    a pause and at the end, all ranks together.

    Parameters
    ----------
    net : Network
    measure : Metrics
    snapshots : Snapshots
        Rows, events and messages of this rank.
    before : ResumedTotals
    message_bytes : int
    gradients : bool
        Whether each event is a gradient.
    file : AsyncFile or None
    target : Target or callable, optional
        `reached` says, on rank 0, whether a record during the run has reached it.
    begun : float
        The time of the run on this rank: no records are made of the time before.

    Notes
    -----
    All methods but `look` are collective, as is the constructor.
    """

    def __init__(
        self,
        net: Network,
        measure: Metrics,
        snapshots: Snapshots,
        before: ResumedTotals,
        message_bytes: int,
        gradients: bool,
        file: AsyncFile | None,
        target: Target | StopFunction | None = None,
        begun: float = 0.0,
    ):
        self._net, self._measure, self._snapshots, self._file = net, measure, snapshots, file
        self._target = target
        self._before, self._message_bytes, self._gradients = before, message_bytes, gradients
        seconds = math.inf if target is None else _TARGET
        if file is not None:
            seconds = min(seconds, max(file.record.flush_seconds, 1e-3))
        seconds = net.collectives.broadcast(seconds, 0, "the record")
        first = seconds + (maximum(net, begun, "the record") if begun else 0.0)
        self._moments, self._current = _Moments(first, seconds), _UnderWay(net)
        # during the run, reductions overlap with other calls of the network
        self._own = file is not None or target is not None
        comm = over_mpi(net.comm, "asynchronous agents")
        self._comm = comm.Dup() if self._own else comm
        self._row: dict[str, float] = {}  # of the last record, on rank 0
        # Whether a record has reached the target, on rank 0.
        self.reached = False
        self._stack: np.ndarray | None = None

    def look(self, now: float) -> None:
        """Begin a record if it is time to, or go on with the current one; returns at once."""
        if not self._current and now >= self._moments.next:
            self._current.begin(self._record(self._moments.take()))
        if not (self._current and self._current.ends()):
            return
        file, error = self._file, self._measure.error
        if file is not None and self._net.rank == 0 and not self._measure.failed:
            file.append(self._row, self._rows, flush=True)
            error = error or file.recorder.error
        if error is not None:
            raise error
        if self._net.rank == 0 and not self._measure.failed:
            self.reached = self.reached or hits(self._target, self._row)

    def now(self, t: float) -> dict[str, float]:
        """Return the record at the time t, that of the last snapshot of all ranks, written if its
        step is a new one.
        """
        self._complete_begun()
        self._complete(t)
        self._net.agree(self._measure.error)
        if self._file is not None and self._net.rank == 0:
            self._file.append(self._row, self._rows)
        return self._net.collectives.broadcast(self._row, 0, "the record")

    def finish(self, number: int) -> tuple[list[dict[str, float]], list[float]]:
        """Records at equal distances in wall time, and the sizes of the rows.

        In the file they take the place of those that were written during the run; of each step the
        last one.
        """
        self._complete_begun()
        if self._file is not None:
            self._file.restart(self._before.step)
        end = maximum(self._net, self._snapshots.times[-1], "the end of the run")
        root = self._net.rank == 0 and self._file is not None
        rows: list[dict[str, float]] = []
        sizes: list[float] = []
        held: np.ndarray | None = None
        for t in np.linspace(0.0, end, max(number, 2)).tolist():
            self._complete(t)
            if self._file is not None and root and rows and self._row["step"] > rows[-1]["step"]:
                self._file.append(rows[-1], held)
            rows.append(self._row)
            sizes.append(self._measure.size)
            held = self._rows
        if self._file is not None and root:
            self._file.append(rows[-1], held)
        if self._own:
            self._comm.Free()
        return self._net.collectives.broadcast((rows, sizes), 0, "the records")

    @property
    def _rows(self) -> np.ndarray | None:
        """The rows of all agents at the last record, on rank 0, if the file stores them."""
        X = self._stack
        return from_reals(X) if X is not None and self._measure.complex else X

    def _complete_begun(self) -> None:
        """Complete all records that any rank has begun."""
        most = maximum(self._net, self._moments.taken, "the end of the run")

        def complete() -> bool:
            self.look(math.inf if self._moments.taken < most else -math.inf)
            return not self._current and self._moments.taken >= most

        wait_until(complete, "all ranks to complete the last record")

    def _complete(self, t: float) -> None:
        """Make a record; an error of the problem is raised on all ranks."""
        self._current.begin(self._record(t))
        wait_until(self._current.ends, "all ranks to complete a record")
        self._net.agree(self._measure.error)

    def _record(self, t: float) -> Iterator[list[MPI.Request]]:
        """Parts of a record, each with the requests that must end before the next part."""
        X, *counts = self._snapshots.at(t)
        net, measure, d = self._net, self._measure, X.shape[1]
        rows = X.astype(np.float64, copy=False)
        mine = np.concatenate([pairwise_sum(rows), np.array(counts, float)])
        sums = np.empty_like(mine)
        with self._current.turn():
            requests = [self._comm.Iallreduce(mine, sums)]
        yield requests
        mean = sums[:d] / net.n
        measure.at((self._before.events + int(sums[d])) // net.n)
        terms, far = pairwise_sum(measure.terms(rows, mean)), np.array([measure.distance(rows)])
        total, worst = np.empty_like(terms), np.empty_like(far)
        trajectory = self._file is not None and self._file.record.trajectory
        self._stack = np.empty((net.n, d), X.dtype) if trajectory and net.rank == 0 else None
        with self._current.turn():
            requests = [self._comm.Ireduce(terms, total), self._comm.Ireduce(far, worst, MPI.MAX)]
            if trajectory:
                row, held = net.context.row_type(X.itemsize * d), net.partition.counts()
                into = (
                    None
                    if self._stack is None
                    else [self._stack, (held, np.cumsum(held) - held), row]
                )
                requests.append(self._comm.Igatherv([X, len(X), row], into))
        yield requests
        if net.rank == 0:
            events, messages = map(int, sums[d:].tolist())
            earlier, sent, _, done = self._before.counters
            events += int(done)
            step = events // net.n
            metrics = measure.of(mean, total, float(worst[0]))
            gradients = events if self._gradients else 0
            self._row = of_events(
                metrics,
                step,
                earlier + t,
                events=events,
                gradients=gradients,
                messages=int(sent) + messages,
                message_bytes=self._message_bytes,
            ) | {"rounds": step}


@contextmanager
def failing(recorder: Recorder[Any] | None) -> Iterator[None]:
    """Context of a run: an exception is written into its file, with the outcome "failed"; a
    `Retry` closes the file.
    """
    try:
        yield
    except BaseException as error:
        if recorder is not None:
            failed = isinstance(error, Exception) and not isinstance(error, Retry)
            recorder.abandon(f"{type(error).__name__}: {error}" if failed else "")
        raise
