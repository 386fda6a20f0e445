"""Asynchronous methods on the ranks of a network, in wall time."""

from __future__ import annotations

import math
import numbers
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...comm.runtime.interrupts import interrupts
from ...comm.runtime.mpi import MPI
from ...comm.runtime.progress import abandon
from ...problems.agents import of_one
from ...record.recorder import Record
from ...solvers.asynchronous import PairwiseSolver, Place
from ..diagnosis import likely_cause
from ..metrics import ASYNCHRONOUS, Metrics
from ..stepsize import requested_rule
from ..stopping import Outcome, RunEnd, Target, decide_outcome
from .clocks import delays, losses
from .ending import INTERRUPTED, PAUSED, Ending
from .files import Activity, failing
from .finite import FiniteGradient
from .live import Live
from .pairing import Pairing
from .pushing import Pushing
from .result import AsyncResult, collected, stacked
from .running_file import Before, Counting, File, names
from .simulation import prepared, warn_of_losses
from .snapshots import Snapshots

_RECORDS = 200
_LOOK = 0.02  # seconds between two looks for ranks that have left
_SWITCH = 2e-4  # seconds after which Python lets the other thread run
_SHARES = 100  # of a run, after which progress is told
_PAUSE = 50  # of the time of a pause: the least time between two of them

Progress = Callable[[int, int, Mapping[str, float]], None]


def run(
    problem: Any,
    oracle: Any,
    solver: Any,
    topology: Any,
    X: np.ndarray,
    net: Any,
    *,
    steps: int,
    every: int,
    seed: int,
    delay: Any = None,
    drop: float = 0.0,
    straggler: Mapping[int, float] | None = None,
    record: Record | None = None,
    meta: Callable[[Any], dict[str, Any]] | None = None,
    target: Target | None = None,
    progress: Progress | None = None,
) -> AsyncResult:
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
        The file; its first record is written at the beginning, others during the run, and those of the result at the end.  Now and
        then the agents pause: when nothing is under way, a checkpoint is written, as at the end.
    meta : callable (solver) -> dict, optional
        Its attributes.
    target : Target, optional
        Judged by the last record.
    progress : callable (step, steps, metrics), optional
        Called on rank 0, as the steps that it knows of go on, with the time and the events.

    Notes
    -----
    Collective.  Between the beginning and the end no rank waits for all others, but for checkpoints.  A gradient that is not
    finite ends the run.
    """
    way = _Way.checked(net, solver, delay, drop, straggler, seed)
    solver = prepared(solver, topology, problem, _largest_smoothness(net, problem, solver))
    if net.rank == 0:
        warn_of_losses(solver, drop)
        _warn_of_sleepers(net, straggler)
    here = _Here.of(net, solver, topology, X)
    file = (
        None
        if record is None or meta is None
        else File(net, problem, solver, record, meta, here.states, here.stacks)
    )
    records = min(_RECORDS, steps // every + 1)
    before = Before() if file is None else file.begin(topology, records)
    with failing(None if file is None else file.recorder), interrupts() as interrupted:
        if file is not None:
            file.first()
        counting = Counting(before, net.n, here.width, problem is not None)
        slots = net.slots(topology, np.zeros((net.m, here.width)))
        ending = Ending(slots, net.rank, net.size, max(steps * net.n - before.events, 0))
        gradient = (
            None if problem is None else FiniteGradient(of_one(oracle, net.agents, seed), net.lo)
        )
        agents = _agents(net, solver, here, slots, gradient, ending, way, seed)
        if isinstance(agents, Pushing) and before.events:
            agents.send_again()
            slots.flush()
            net.agree()  # everything is in its slot
        told = (
            None
            if progress is None or net.rank
            else _Told(progress, ending, before.events, steps, every, net.n)
        )
        saving = None if file is None else _Saving(net, file, here, agents, before, counting)
        live = None if file is None else file.live(agents.snapshots, counting)
        elapsed, reason = _events(net, agents, interrupted, _Watch(net, told), live, saving)
        agents.snapshots.look(elapsed, ending.events, agents.messages, due=True)
        metrics, rows, sizes = _metrics(net, problem, agents.snapshots, counting, records)
        judged = _judged(
            net,
            problem,
            oracle,
            topology,
            solver,
            here.stacks["x"],
            gradient,
            reason,
            target,
            metrics,
            rows,
            sizes,
        )
        result = _result(net, here, agents, before, solver, metrics, judged, elapsed)
        slots.close()
        if file is not None:
            file.end(result, agents.snapshots)
    return result


class _Way(NamedTuple):
    """What happens to messages and agents on purpose: delays, losses, and seconds that local agents sleep."""

    delay: Callable[[int, int], float] | None
    lost: Callable[[int], bool] | None
    pause: list[float]

    @classmethod
    def checked(
        cls, net: Any, solver: Any, delay: Any, drop: Any, straggler: Any, seed: int
    ) -> _Way:
        """Refuse wrong arguments on all ranks."""
        error, way = None, cls(None, None, [])
        try:
            pauses = _pauses(straggler, net.n)
            way = cls(
                delays(delay, seed, net.n),
                losses(drop, seed, net.n),
                [pauses.get(i, 0.0) for i in net.agents],
            )
            if isinstance(solver, PairwiseSolver) and not isinstance(solver.rate, numbers.Real):
                raise ValueError(
                    f"{type(solver).__name__}: rate is a {type(solver.rate).__name__}, expected a number on ranks; "
                    "mpidec.simulate takes rates of edges"
                )
            if (
                isinstance(solver, PairwiseSolver)
                and net.size > 1
                and MPI.Query_thread() < MPI.THREAD_SERIALIZED
            ):
                raise RuntimeError(
                    "MPI was initialized without threads, expected MPI_THREAD_SERIALIZED or more: gradients and "
                    "averagings are in two threads"
                )
        except (ValueError, TypeError, RuntimeError) as caught:
            error = caught
        net.agree(error)
        return way


class _Here(NamedTuple):
    """States of the local agents, the stacks that their arrays are rows of, and the length of a message."""

    states: list[Any]
    stacks: dict[str, np.ndarray]
    width: int

    @classmethod
    def of(cls, net: Any, solver: Any, topology: Any, X: np.ndarray) -> _Here:
        """The states at first."""
        places = [
            Place(
                i,
                net.n,
                tuple(topology.in_neighbors(i).tolist()),
                tuple(topology.out_neighbors(i).tolist()),
            )
            for i in net.agents
        ]
        states = [solver.init(x, place) for x, place in zip(X, places)]
        width = X.shape[1] if isinstance(solver, PairwiseSolver) else solver.width(X.shape[1])
        return cls(states, stacked(states) if states else {"x": np.empty((0, X.shape[1]))}, width)


def _largest_smoothness(net: Any, problem: Any, solver: Any) -> float | None:
    """The largest smoothness constant of any agent, if the solver needs it."""
    if problem is None or requested_rule(solver) is None:
        return None
    mine = float(np.max(problem.smoothness, initial=0.0)) if net.m else 0.0
    return -float(net.collectives.minimum(np.array([-mine]), "net.slots")[0])


def _agents(
    net: Any,
    solver: Any,
    here: _Here,
    slots: Any,
    gradient: Any,
    ending: Ending,
    way: _Way,
    seed: int,
) -> Pairing | Pushing:
    """The local agents, which take their messages from the slots."""
    x = here.stacks["x"]
    if isinstance(solver, PairwiseSolver):
        pairs = Pairing(
            solver,
            here.states,
            slots,
            gradient,
            ending,
            Snapshots(lambda: pairs.rows(), x.nbytes),
            way.pause,
            way.delay,
            way.lost,
            net.partition,
            net.rank,
            seed,
        )
        slots.others = pairs.receive
        return pairs
    slots.others = lambda rank, message: ending.receive(message)
    return Pushing(
        solver,
        here.states,
        slots,
        gradient,
        ending,
        Snapshots(x.copy, x.nbytes),
        way.pause,
        way.delay,
        way.lost,
        net.lo,
    )


def _events(
    net: Any,
    agents: Pairing | Pushing,
    interrupted: Callable[[], bool],
    watch: _Watch,
    live: Live | None,
    saving: _Saving | None,
) -> tuple[float, int]:
    """All events of the run, until nothing is under way: its seconds, and why it has ended, the same on all ranks."""
    net.agree()  # all ranks begin together
    begun = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - begun

    def between_events() -> None:
        now = clock()
        agents.snapshots.look(now, agents.ending.events, agents.messages)
        if live is not None:
            live.look(now)
        if saving is not None and saving.is_due(now):
            agents.rest()

    watch.clock = clock
    agents.snapshots.look(0.0, 0, 0, due=True)
    try:
        with _threads(isinstance(agents, Pairing)):
            while True:
                if isinstance(agents, Pairing):
                    agents.run(interrupted, between_events, watch, net.engine, net.comm.Ibarrier)
                else:
                    agents.run(interrupted, between_events, watch)
                elapsed = max(clock(), 1e-9)
                agents.slots.flush()
                net.agree()  # everything is in its slot
                agents.collect()
                reason = -int(
                    net.collectives.minimum(
                        np.array([-agents.ending.reason]), "the end of the run"
                    )[0]
                )
                if saving is None or reason != PAUSED:
                    break
                saving.save(elapsed, clock)
                agents.ending.go_on()
                net.agree()  # all ranks go on together
    except BaseException:
        abandon(live)  # MPI may still write to its arrays
        raise
    if live is not None:
        live.finish()
    return elapsed, reason


def _judged(
    net: Any,
    problem: Any,
    oracle: Any,
    topology: Any,
    solver: Any,
    X: np.ndarray,
    gradient: FiniteGradient | None,
    reason: int,
    target: Target | None,
    metrics: dict[str, np.ndarray],
    rows: list[dict[str, float]],
    sizes: list[float],
) -> RunEnd:
    """The outcome; collective."""
    found = _everywhere(
        net,
        np.array(
            [] if gradient is None or gradient.found is None else [gradient.found], float
        ).reshape(-1, 4),
    )
    if len(found):
        _, agent, k, value = min(
            found.tolist()
        )  # the first one at a finite point: others may have come from it
        return RunEnd(
            Outcome.DIVERGED,
            f"the gradient of agent {int(agent)} at its step {int(k)} is {value:g}",
            int(agent),
        )
    return decide_outcome(
        rows,
        sizes,
        f"after {rows[-1]['step']} steps ({rows[-1]['time']:.3g} s)",
        lambda: Metrics(net, problem).diverged_agent(X),
        interrupted=reason == INTERRUPTED,
        target=target,
        cause=lambda name, limit: _cause(
            net, problem, topology, solver, hasattr(oracle, "start"), metrics, name, limit
        ),
    )


def _result(
    net: Any,
    here: _Here,
    agents: Pairing | Pushing,
    before: Before,
    solver: Any,
    metrics: dict[str, np.ndarray],
    judged: RunEnd,
    elapsed: float,
) -> AsyncResult:
    """The result, with what all ranks have counted; collective."""
    activity = _activity(net, here, agents, before, elapsed)
    X, state = here.stacks["x"], collected(here.states, here.stacks) if here.states else None
    return AsyncResult(
        X,
        net.mean(X),
        judged.outcome,
        int(metrics["step"][-1]),
        metrics,
        state,
        activity.counts,
        activity.averagings,
        activity.staleness,
        solver,
        judged.reason,
        judged.agent,
        activity.idle,
    )


def _activity(
    net: Any, here: _Here, agents: Pairing | Pushing, before: Before, elapsed: float
) -> Activity:
    """What all ranks have counted; collective."""
    counts = _everywhere(net, np.array([s.k for s in here.states], np.int64))
    pairs = _everywhere(net, np.array(agents.pairs(), np.int64).reshape(-1, 3))
    idle = _everywhere(net, np.array([agents.idle / (agents.total or elapsed)]))
    ages = _everywhere(net, np.array(sorted(agents.staleness.items()), np.int64).reshape(-1, 2))
    return Activity(
        counts, before.averagings(pairs.tolist()), before.staleness(ages.tolist()), idle
    )


class _Saving:
    """Checkpoints during a run, for which all agents pause: rank 0 says when."""

    def __init__(
        self,
        net: Any,
        file: File,
        here: _Here,
        agents: Pairing | Pushing,
        before: Before,
        counting: Counting,
    ):
        self._net, self._file, self._here, self._agents, self._before = (
            net,
            file,
            here,
            agents,
            before,
        )
        self._counting, self._next = counting, file.seconds if net.rank == 0 else math.inf
        self._asked = 0.0

    def is_due(self, now: float) -> bool:
        """Whether the agents are to pause; on rank 0, between two events."""
        if now < self._next:
            return False
        self._asked, self._next = now, math.inf
        return True

    def save(self, now: float, clock: Callable[[], float]) -> None:
        """Write a checkpoint; collective."""
        net, agents = self._net, self._agents
        events, messages = _totals(net, agents.ending.events, agents.messages)
        self._file.checkpoint(
            self._counting(now, events, messages, {}),
            _activity(net, self._here, agents, self._before, now),
        )
        if net.rank == 0:
            end = clock()
            self._next = end + max(self._file.seconds, _PAUSE * (end - self._asked))


def _pauses(straggler: Any, n: int) -> dict[int, float]:
    pauses: dict[Any, Any] = (
        dict(straggler or {}) if isinstance(straggler, (Mapping, type(None))) else {None: None}
    )
    for agent, seconds in pauses.items():
        whole = isinstance(agent, numbers.Integral) and 0 <= int(agent) < n
        if not whole or not isinstance(seconds, numbers.Real) or not 0 <= float(seconds) < math.inf:
            raise ValueError(
                f"straggler is {straggler!r}, expected agents in 0 .. {n - 1} and seconds: {{0: 0.5}}"
            )
    return {int(agent): float(seconds) for agent, seconds in pauses.items()}


def _warn_of_sleepers(net: Any, straggler: Mapping[int, float] | None) -> None:
    """Warn if an agent that sleeps delays others, with which it takes turns on its rank."""
    pauses = _pauses(straggler, net.n)
    for rank in range(net.size):
        lo, hi = net.partition.bounds(rank)
        longest = max(range(lo, hi), key=lambda i: pauses.get(i, 0.0), default=lo)
        if len({pauses.get(i, 0.0) for i in range(lo, hi)}) > 1:
            warnings.warn(
                f"straggler: the {hi - lo} agents of rank {rank} take turns, and agent {longest} delays the others when "
                f"it sleeps: give it a rank of its own (mpirun -n {net.n}), or simulate the run",
                RuntimeWarning,
                stacklevel=4,
            )
            return


def _everywhere(net: Any, mine: np.ndarray) -> np.ndarray:
    """The rows of all ranks, one rank after the other, on all of them."""
    rows = net.gather_rows(mine)
    result: np.ndarray = net.collectives.broadcast(rows, 0, "net.gather")
    return result


class _Told:
    """Tells how far the run is, as far as rank 0 knows."""

    def __init__(
        self, progress: Progress, ending: Ending, before: int, steps: int, every: int, n: int
    ):
        self._progress, self._ending, self._before, self._steps, self._n = (
            progress,
            ending,
            before,
            steps,
            n,
        )
        self._every, self._next = max(1, min(every, steps // _SHARES)), 0

    def __call__(self, now: float) -> None:
        events = self._before + self._ending.total
        step = min(events // self._n, self._steps)
        if step >= self._next:
            self._next = step + self._every
            self._progress(step, self._steps, {"time": now, "events": events})


class _Watch:
    """Now and then, a look for ranks that have left the run with an exception, which is raised."""

    def __init__(self, net: Any, told: _Told | None):
        self._matching, self._told, self._next = net.matching, told, 0.0
        self.clock: Callable[[], float] = time.monotonic

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK
            self._matching.poll()
            self._matching.look_for_leavers()
            if self._told is not None:
                self._told(self.clock())


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


def _cause(
    net: Any,
    problem: Any,
    topology: Any,
    solver: Any,
    stochastic: bool,
    metrics: Mapping[str, np.ndarray],
    name: str,
    limit: float,
) -> str:
    """The likely cause of a missed target, with a remedy, or ""; collective."""
    values, steps = metrics[name], metrics["step"]
    middle = (len(values) - 1) // 2
    if problem is None or steps[middle] == steps[-1]:
        return ""
    if not solver.exact and not callable(solver.step_size) and values[-1] > 0.5 * values[middle]:
        return (
            f"{name} has stopped falling: with a constant step size {type(solver).__name__} stays at a distance from the "
            "minimizer: use a smaller or decreasing one, such as inverse_sqrt(auto), or RunningSumTracking, which is exact"
        )
    return likely_cause(net, problem, topology, solver, stochastic, metrics, name, limit)


def _metrics(
    net: Any, problem: Any, snapshots: Snapshots, counting: Counting, records: int
) -> tuple[dict[str, np.ndarray], list[dict[str, float]], list[float]]:
    """Metrics at equal distances in wall time, as columns and as rows, and the sizes of the rows of the agents; collective."""
    end = snapshots.times[-1]
    if net.size > 1:
        end = -float(net.collectives.minimum(np.array([-end]), "the end of the run")[0])
    measure = Metrics(net, problem)
    rows: list[dict[str, float]] = []
    sizes: list[float] = []
    for t in np.linspace(0.0, end, max(records, 2)).tolist():
        Z, *mine = snapshots.at(t)
        events, messages = _totals(net, *mine)
        metrics = measure(Z)
        if measure.failed:
            net.agree(measure.error)
        rows.append(counting(t, events, messages, metrics))
        sizes.append(measure.size)
    whole = {*ASYNCHRONOUS, "rounds"} - {"time"}
    columns = {
        name: np.array([row[name] for row in rows], np.int64 if name in whole else float)
        for name in names(net, problem)
    }
    return columns, rows, sizes


def _totals(net: Any, *mine: int) -> list[int]:
    """Sums over all ranks."""
    if net.size == 1:
        return list(mine)
    all_ = net.collectives.gather_all(np.array(mine, np.int64), "the metrics of a record")
    return [int(total) for total in all_.sum(axis=0)]
