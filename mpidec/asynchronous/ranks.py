"""Asynchronous methods on the ranks of a network, in wall time."""

from __future__ import annotations

import math
import numbers
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from ..endings import Outcome, exploded, not_finite
from ..metrics import ASYNCHRONOUS, COUNTERS, Metrics
from ..problems.agents import of_one
from ..record.recorder import Record, Recorder
from ..runtime.interrupts import interrupts
from ..solvers.asynchronous import PairwiseSolver, Place
from ..stepsize import wanted
from .clocks import delays, losses
from .ending import INTERRUPTED, Ending
from .pairing import Pairing
from .pushing import Pushing
from .result import AsyncResult, collected, stacked
from .simulation import histogram, prepared
from .snapshots import Snapshots

_RECORDS = 200
_LOOK = 0.02                                        # seconds between two looks for ranks that have left
_SWITCH = 2e-4                                      # seconds after which Python lets the other thread run


def run(problem: Any, oracle: Any, solver: Any, topology: Any, X: np.ndarray, net: Any, *, steps: int, every: int, seed: int,
        delay: Any = None, drop: float = 0.0, straggler: Mapping[int, float] | None = None, record: Record | None = None,
        meta: Callable[[Any], dict[str, Any]] | None = None) -> AsyncResult:
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
        The file; its metrics and its checkpoint are written at the end, when nothing is under way.
    meta : callable (solver) -> dict, optional
        Its attributes.

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
    pairwise = isinstance(solver, PairwiseSolver)
    places = [Place(i, net.n, tuple(topology.in_neighbors(i).tolist()), tuple(topology.out_neighbors(i).tolist()))
              for i in net.agents]
    states = [solver.init(x, place) for x, place in zip(X, places)]
    stacks = stacked(states) if states else {"x": np.empty((0, X.shape[1]))}
    width = X.shape[1] if pairwise else solver.width(X.shape[1])
    first, recorder, records = 0, None, min(_RECORDS, steps // every + 1)
    if record is not None and meta is not None:
        recorder = Recorder(net, record, _state(states, stacks), ())
        if record.resume:
            first = _resumed(recorder, topology, solver, states, stacks, meta(solver))
        else:
            least = Metrics(net, problem).least()
            recorder.create(X.shape[1:], _names(net, problem), _state(states, stacks), topology,
                            meta(solver) | ({} if least is None else {"f_star": least}), records)
    slots = net.slots(topology, np.zeros((net.m, width)))
    ending = Ending(slots, net.rank, net.size, max(steps - first, 0) * net.n)
    gradient = None if problem is None else of_one(oracle, net.agents, seed)
    pause = [pauses.get(i, 0.0) for i in net.agents]
    agents: Any
    if pairwise:
        snapshots = Snapshots(lambda: agents.rows(), X.nbytes)
        agents = Pairing(solver, states, slots, gradient, ending, snapshots, pause, between, lost, net.partition, net.rank, seed)
        slots.others = agents.receive
    else:
        snapshots = Snapshots(lambda: stacks["x"].copy(), X.nbytes)
        agents = Pushing(solver, states, slots, gradient, ending, snapshots, pause, between, lost, net.lo)
        slots.others = lambda rank, message: ending.receive(message)
    net.agree()                                     # all ranks begin together
    begun = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - begun
    snapshots.look(0.0, 0, 0, due=True)
    watch = _Watch(net)
    with interrupts() as interrupted, _threads(pairwise):
        if pairwise:
            agents.run(interrupted, clock, watch, net._engine, net.comm.Ibarrier)
        else:
            agents.run(interrupted, clock, watch)
    slots.flush()
    net.agree()                                     # everything is in its slot
    if not pairwise:
        agents.collect()
    snapshots.look(clock(), ending.events, agents.messages, due=True)
    metrics, outcome, reason, agent = _metrics(net, problem, snapshots, width, records, stacks["x"], first)
    if outcome is Outcome.COMPLETED and ending.reason == INTERRUPTED:
        outcome = Outcome.INTERRUPTED
    taken = int(metrics["step"][-1])
    if recorder is not None:
        _write(recorder, metrics, snapshots, first, outcome, _state(states, stacks), stacks["x"])
    counts = _everywhere(net, np.array([s.k for s in states], np.int64))
    edges = [(agent.number, other, count) for agent in (agents.agents if pairwise else ()) for other, count in
             zip(agent.neighbors, agent.averagings) if agent.number < other]
    pairs = _everywhere(net, np.array(edges, np.int64).reshape(-1, 3))
    idle = _everywhere(net, np.array([agents.idle / max(agents.total, 1e-9) if pairwise else 0.0]))
    ages = _everywhere(net, np.array(sorted(agents.staleness.items()), np.int64).reshape(-1, 2))
    staleness: dict[int, int] = {}
    for age, count in ages.tolist():
        staleness[age] = staleness.get(age, 0) + count
    slots.close()
    state = collected(states, stacks) if states else None
    return AsyncResult(stacks["x"], net.mean(stacks["x"]), outcome, taken, metrics, state, counts,
                       {(i, j): count for i, j, count in pairs.tolist()}, histogram(staleness), solver, reason, agent, idle)


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


class _Watch:
    """Now and then, a look for ranks that have left the run with an exception, which is raised."""

    def __init__(self, net: Any):
        self._matching, self._next = net._matching, 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK
            self._matching.poll()
            self._matching.look_for_leavers()


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


def _state(states: list[Any], stacks: Mapping[str, np.ndarray]) -> Any:
    """The states of the local agents as rows, for a checkpoint."""
    fields = vars(collected(states, stacks)) if states else {"X": stacks["x"]}
    rows = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    return namedtuple("State", rows)(**rows)


def _resumed(recorder: Recorder[Any], topology: Any, solver: Any, states: list[Any], stacks: Mapping[str, np.ndarray],
             meta: Mapping[str, Any]) -> int:
    """Set the states to those of the last checkpoint; its step."""
    if not getattr(solver, "accumulates", True):
        raise ValueError(f"{type(solver).__name__} cannot be resumed: the last messages of its agents are not in the file")
    first, stored, _, _ = recorder.load(topology)
    for name, rows in stored._asdict().items():
        field = name[0].lower() + name[1:]
        if field in stacks:
            stacks[field][:] = rows
        else:
            for s, value in zip(states, rows.tolist()):
                setattr(s, field, value)
    recorder.resume(first, {key: value for key, value in meta.items() if key in ("ranks", "mpi", "config")})
    return int(first)


def _write(recorder: Recorder[Any], metrics: Mapping[str, np.ndarray], snapshots: Snapshots, first: int, outcome: Outcome,
           state: Any, X: np.ndarray) -> None:
    """Write the records, a checkpoint and the result."""
    last = first if recorder.has(first) else first - 1
    for k, (step, t) in enumerate(zip(metrics["step"].tolist(), metrics["time"].tolist())):
        if step > last:
            recorder.append(step, {name: column[k].item() for name, column in metrics.items()}, snapshots.at(t)[0])
            last = step
    if outcome is not Outcome.DIVERGED:
        recorder.checkpoint(last, state, np.array([metrics["time"][-1], metrics["messages"][-1], metrics["bytes"][-1]]), {})
    recorder.finish(X, str(outcome), last)


def _metrics(net: Any, problem: Any, snapshots: Snapshots, width: int, records: int, X: np.ndarray, first: int
             ) -> tuple[dict[str, np.ndarray], Outcome, str, int | None]:
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
        step = first + events // net.n
        counters = {"step": step, "rounds": step, "time": t, "events": events, "gradients": events if problem is not None else 0,
                    "messages": messages, "bytes": 8 * width * messages}
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
