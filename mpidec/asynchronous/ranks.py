"""Asynchronous methods on the ranks of a network, in wall time."""

from __future__ import annotations

import math
import numbers
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..endings import Outcome, Target, exploded, likely_cause, not_finite, short
from ..metrics import ASYNCHRONOUS, COUNTERS, Metrics
from ..problems.agents import of_one
from ..record.recorder import Record, Recorder
from ..runtime.interrupts import interrupts
from ..solvers.asynchronous import PairwiseSolver, Place
from ..stepsize import wanted
from .clocks import delays, losses
from .ending import INTERRUPTED, Ending
from .files import failing, finish, rows
from .pairing import Pairing
from .pushing import Pushing
from .result import AsyncResult, cannot_resume, collected, stacked
from .simulation import histogram, prepared, warn_of_losses
from .snapshots import Snapshots

_RECORDS = 200
_LOOK = 0.02                                        # seconds between two looks for ranks that have left
_SWITCH = 2e-4                                      # seconds after which Python lets the other thread run
_SHARES = 100                                       # of a run, after which progress is told

Progress = Callable[[int, int, Mapping[str, float]], None]


def run(problem: Any, oracle: Any, solver: Any, topology: Any, X: np.ndarray, net: Any, *, steps: int, every: int, seed: int,
        delay: Any = None, drop: float = 0.0, straggler: Mapping[int, float] | None = None, record: Record | None = None,
        meta: Callable[[Any], dict[str, Any]] | None = None, target: Target | None = None,
        progress: Progress | None = None) -> AsyncResult:
    """Run an asynchronous method on the ranks of a network; see `mpidec.solve`.

    Parameters
    ----------
    problem, oracle : problem or None
        The functions of the local agents, and the oracle that wraps them, or the problem itself.
    solver, topology
        An asynchronous solver and a static topology.
    X : array (m, d)
        Initial points of the local agents.
    net : Network
    steps : int
        Events (wake-ups, or gradients) of an agent in the mean.
    every : int
        Steps between two records, 200 records at most.
    seed : int
    delay : float, (low, high) or callable, optional
        Seconds before a message leaves, as for `simulate`.
    drop : float
        Probability that a message is lost on purpose.
    straggler : dict {agent: seconds}, optional
        How long agents sleep at each event.
    record : Record, optional
        The file; its first record is written at the beginning, the others and a checkpoint at the end, when nothing is under way.
    meta : callable (solver) -> dict, optional
        Its attributes.
    target : Target, optional
        Judged by the last record.
    progress : callable (step, steps, metrics), optional
        Called on rank 0, as the steps that it knows of go on, with the time and the events.

    Notes
    -----
    Collective.  Between the beginning and the end there is no call of all ranks.
    """
    error, between, lost, pauses = None, None, None, {}
    try:
        between, lost, pauses = delays(delay, seed, net.n), losses(drop, seed, net.n), _pauses(straggler, net.n)
        if isinstance(solver, PairwiseSolver) and not isinstance(solver.rate, numbers.Real):
            raise ValueError(f"{type(solver).__name__}: rate is a {type(solver.rate).__name__}, expected a number on ranks; "
                             "mpidec.simulate takes rates of edges")
        if isinstance(solver, PairwiseSolver) and net.size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError("MPI was initialized without threads, expected MPI_THREAD_SERIALIZED or more: gradients and "
                               "averagings are in two threads")
    except (ValueError, TypeError, RuntimeError) as caught:
        error = caught
    net.agree(error)
    largest = None
    if problem is not None and wanted(solver) is not None:
        mine = float(np.max(problem.smoothness, initial=0.0)) if net.m else 0.0
        largest = -float(net._together.minimum(np.array([-mine]), "net.slots")[0])
    solver = prepared(solver, topology, problem, largest)
    if net.rank == 0:
        warn_of_losses(solver, drop)
    pairwise = isinstance(solver, PairwiseSolver)
    places = [Place(i, net.n, tuple(topology.in_neighbors(i).tolist()), tuple(topology.out_neighbors(i).tolist()))
              for i in net.agents]
    states = [solver.init(x, place) for x, place in zip(X, places)]
    stacks = stacked(states) if states else {"x": np.empty((0, X.shape[1]))}
    width = X.shape[1] if pairwise else solver.width(X.shape[1])
    before, recorder, records = _Before(), None, min(_RECORDS, steps // every + 1)
    if record is not None and meta is not None:
        recorder = Recorder(net, record, rows(states, stacks), ())
        if record.resume:
            before = _resumed(recorder, topology, solver, states, stacks, meta(solver))
        else:
            least = Metrics(net, problem).least()
            recorder.create(X.shape[1:], _names(net, problem), rows(states, stacks), topology,
                            meta(solver) | {"clock": "seconds"} | ({} if least is None else {"f_star": least}), records)
    with failing(recorder):
        if recorder is not None and not record.resume:                                              # type: ignore[union-attr]
            _begun(recorder, net, problem, rows(states, stacks), stacks["x"])
        slots = net.slots(topology, np.zeros((net.m, width)))
        ending = Ending(slots, net.rank, net.size, max(steps * net.n - before.events, 0))
        gradient = None if problem is None else of_one(oracle, net.agents, seed)
        pause = [pauses.get(i, 0.0) for i in net.agents]
        agents: Any
        if pairwise:
            snapshots = Snapshots(lambda: agents.rows(), X.nbytes)
            agents = Pairing(solver, states, slots, gradient, ending, snapshots, pause, between, lost, net.partition, net.rank,
                             seed)
            slots.others = agents.receive
        else:
            snapshots = Snapshots(lambda: stacks["x"].copy(), X.nbytes)
            agents = Pushing(solver, states, slots, gradient, ending, snapshots, pause, between, lost, net.lo)
            slots.others = lambda rank, message: ending.receive(message)
        net.agree()                                 # all ranks begin together
        begun = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - begun
        snapshots.look(0.0, 0, 0, due=True)
        watch = _Watch(net, None if progress is None or net.rank else _Told(progress, ending, before.events, steps, every, net.n,
                                                                          clock))
        with interrupts() as interrupted, _threads(pairwise):
            if pairwise:
                agents.run(interrupted, clock, watch, net._engine, net.comm.Ibarrier)
            else:
                agents.run(interrupted, clock, watch)
        elapsed = max(clock(), 1e-9)
        slots.flush()
        net.agree()                                 # everything is in its slot
        if not pairwise:
            agents.collect()
        snapshots.look(clock(), ending.events, agents.messages, due=True)
        metrics, outcome, reason, agent = _metrics(net, problem, snapshots, width, records, stacks["x"], before)
        if outcome is Outcome.COMPLETED and ending.reason == INTERRUPTED:
            outcome = Outcome.INTERRUPTED
        final = {name: float(column[-1]) for name, column in metrics.items()}
        if outcome is Outcome.COMPLETED and target is not None and (missed := target.missed(final)):
            outcome, (name, limit) = Outcome.MISSED, missed
            cause = _cause(net, problem, topology, solver, hasattr(oracle, "start"), metrics, name, limit)
            reason = f"{name} {final[name]:.3g} after {metrics['step'][-1]} steps, target {short(limit)} missed{cause}"
        counts = _everywhere(net, np.array([s.k for s in states], np.int64))
        edges = [(agent.number, other, count) for agent in (agents.agents if pairwise else ()) for other, count in
                 zip(agent.neighbors, agent.averagings) if agent.number < other]
        pairs = _everywhere(net, np.array(edges, np.int64).reshape(-1, 3))
        idle = _everywhere(net, np.array([agents.idle / (getattr(agents, "total", 0.0) or elapsed)]))
        ages = _everywhere(net, np.array(sorted(agents.staleness.items()), np.int64).reshape(-1, 2))
        slots.close()
        state = collected(states, stacks) if states else None
        result = AsyncResult(stacks["x"], net.mean(stacks["x"]), outcome, int(metrics["step"][-1]), metrics, state, counts,
                             before.averagings(pairs.tolist()), before.staleness(ages.tolist()), solver, reason, agent, idle)
        if recorder is not None:
            last = _written(recorder, metrics, snapshots, before)
            finish(recorder, result, rows(states, stacks), last)
    return result


def _pauses(straggler: Any, n: int) -> dict[int, float]:
    pauses: dict[Any, Any] = dict(straggler or {}) if isinstance(straggler, (Mapping, type(None))) else {None: None}
    for agent, seconds in pauses.items():
        whole = isinstance(agent, numbers.Integral) and 0 <= int(agent) < n
        if not whole or not isinstance(seconds, numbers.Real) or not 0 <= float(seconds) < math.inf:
            raise ValueError(f"straggler is {straggler!r}, expected agents in 0 .. {n - 1} and seconds: {{0: 0.5}}")
    return {int(agent): float(seconds) for agent, seconds in pauses.items()}


def _everywhere(net: Any, mine: np.ndarray) -> np.ndarray:
    """The rows of all ranks, one rank after the other, on all of them."""
    rows = net.gather_rows(mine)
    result: np.ndarray = net._together.broadcast(rows, 0, "net.gather")
    return result


class _Told:
    """Tells how far the run is, as far as rank 0 knows."""

    def __init__(self, progress: Progress, ending: Ending, before: int, steps: int, every: int, n: int, clock: Callable[[], float]):
        self._progress, self._ending, self._before, self._steps, self._n = progress, ending, before, steps, n
        self._clock, self._every, self._next = clock, max(1, min(every, steps // _SHARES)), 0

    def __call__(self) -> None:
        events = self._before + self._ending.total
        step = min(events // self._n, self._steps)
        if step >= self._next:
            self._next = step + self._every
            self._progress(step, self._steps, {"time": self._clock(), "events": events})


class _Watch:
    """Now and then, a look for ranks that have left the run with an exception, which is raised."""

    def __init__(self, net: Any, told: Callable[[], None] | None):
        self._matching, self._told, self._next = net._matching, told, 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK
            self._matching.poll()
            self._matching.look_for_leavers()
            if self._told is not None:
                self._told()


@contextmanager
def _threads(two: bool) -> Iterator[None]:
    """A context in which two threads of this process take turns often."""
    before = sys.getswitchinterval()
    if two:
        sys.setswitchinterval(min(before, _SWITCH))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _names(net: Any, problem: Any) -> tuple[str, ...]:
    """The metrics of a run: those of asynchronous runs, and what the problem provides."""
    return (*ASYNCHRONOUS, "rounds", *(name for name in Metrics(net, problem).names if name not in COUNTERS))


class _Before(NamedTuple):
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


def _begun(recorder: Recorder[Any], net: Any, problem: Any, state: Any, X: np.ndarray) -> None:
    """Write the first record and a checkpoint, so that the file exists from the beginning; collective."""
    measure = Metrics(net, problem)
    metrics = measure(X)
    if measure.failed:
        net.agree(measure.error)
    recorder.append(0, {**dict.fromkeys(_names(net, problem), 0), **metrics}, X)
    recorder.checkpoint(0, state, np.zeros(4), {})
    net.agree(recorder.error)


def _resumed(recorder: Recorder[Any], topology: Any, solver: Any, states: list[Any], stacks: Mapping[str, np.ndarray],
             meta: Mapping[str, Any]) -> _Before:
    """Set the states to those of the last checkpoint; what the run has done before."""
    if cannot_resume(solver):
        raise ValueError(cannot_resume(solver))
    first, stored, counters, _ = recorder.load(topology)
    for name, values in stored._asdict().items():
        field = name[0].lower() + name[1:]
        if field in stacks:
            stacks[field][:] = values
        else:
            for s, value in zip(states, values.tolist()):
                setattr(s, field, value)
    for s in states:
        if hasattr(s, "t"):                         # the clocks of the agents begin anew
            s.t = 0.0
    arrays = recorder.asynchronous()
    recorder.resume(first, {key: value for key, value in meta.items() if key in ("ranks", "mpi", "config")})
    return _Before(int(first), tuple(counters.tolist()), arrays)


def _written(recorder: Recorder[Any], metrics: Mapping[str, np.ndarray], snapshots: Snapshots, before: _Before) -> int:
    """Write the records, of each step the last one; the step of the last one; collective."""
    steps, last = [*metrics["step"].tolist(), math.inf], before.step
    for k, (step, t) in enumerate(zip(steps, metrics["time"].tolist())):
        if last < step < steps[k + 1]:
            recorder.append(step, {name: column[k].item() for name, column in metrics.items()},
                            snapshots.at(t - before.counters[0])[0])
            last = step
    return last


def _cause(net: Any, problem: Any, topology: Any, solver: Any, stochastic: bool, metrics: Mapping[str, np.ndarray], name: str,
           limit: float) -> str:
    """The likely cause of a missed target, with a remedy, after a colon; collective."""
    values, steps = metrics[name], metrics["step"]
    middle = (len(values) - 1) // 2
    if problem is None or steps[middle] == steps[-1]:
        return ""
    if not solver.exact and not callable(solver.step_size) and values[-1] > 0.5 * values[middle]:
        return (f": {name} has stopped falling: with a constant step size {type(solver).__name__} stays at a distance from the "
                "minimizer: use a smaller or decreasing one, such as inverse_sqrt(auto), or RunningSumTracking, which is exact")
    return f": {likely_cause(net, problem, topology, solver, stochastic, metrics, name, limit)}"


def _metrics(net: Any, problem: Any, snapshots: Snapshots, width: int, records: int, X: np.ndarray,
             before: _Before) -> tuple[dict[str, np.ndarray], Outcome, str, int | None]:
    """Metrics at equal distances in wall time, and the outcome."""
    end = snapshots.times[-1]
    if net.size > 1:
        end = -float(net._together.minimum(np.array([-end]), "the end of the run")[0])
    measure = Metrics(net, problem)
    rows: list[dict[str, float]] = []
    sizes: list[float] = []
    for t in np.linspace(0.0, end, max(records, 2)).tolist():
        Z, *mine = snapshots.at(t)
        events, messages = _totals(net, *mine)
        metrics = measure(Z)
        if measure.failed:
            net.agree(measure.error)
        earlier, sent, volume, done = before.counters
        events, step = int(done) + events, (int(done) + events) // net.n
        counters = {"step": step, "rounds": step, "time": earlier + t, "events": events,
                    "gradients": events if problem is not None else 0, "messages": int(sent) + messages,
                    "bytes": int(volume) + 8 * width * messages}
        rows.append({**{name: value for name, value in metrics.items() if name not in COUNTERS}, **counters})
        sizes.append(measure.size)
    whole = {*ASYNCHRONOUS, "rounds"} - {"time"}
    columns = {name: np.array([row[name] for row in rows], np.int64 if name in whole else float) for name in _names(net, problem)}
    name = not_finite(rows[-1], last=True)
    if name or (reason := exploded(rows, sizes)):
        reason = f"{name} is {rows[-1][name]:g} after {rows[-1]['time']:.3g} s" if name else reason
        return columns, Outcome.DIVERGED, reason, measure.culprit(X)
    return columns, Outcome.COMPLETED, "", None


def _totals(net: Any, *mine: int) -> list[int]:
    """Sums over all ranks."""
    if net.size == 1:
        return list(mine)
    all_ = net._together.gather_all(np.array(mine, np.int64), "the metrics of a record")
    return [int(total) for total in all_.sum(axis=0)]
