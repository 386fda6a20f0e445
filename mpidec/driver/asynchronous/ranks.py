"""Asynchronous methods on the ranks of a network, in wall time."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from ...comm.checks.matching import Matching
from ...comm.mixing.network import Network
from ...comm.runtime.interrupts import interrupts
from ...comm.runtime.progress import abandon
from ...problems.agents import of_one
from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ..diagnosis import likely_cause
from ..loop import Plan
from ..metrics import Metrics
from ..stopping import Outcome, RunEnd, decide_outcome
from .files import (
    Activity,
    AsyncRunFile,
    Live,
    RecordCounters,
    ResumedTotals,
    Snapshots,
    columns,
    failing,
    maximum,
    names,
)
from .pairing import PairwiseRunner
from .pushing import PushRunner
from .result import AsyncResult, LocalAgents, collected
from .runner import INTERRUPTED, PAUSED, Faults, FiniteGradient, Runner, Termination, pauses
from .simulation import as_asynchronous, prepared, warn_of_losses

_RECORDS = 200
_LOOK = 0.02  # seconds between two looks for ranks that have left
_SHARES = 100  # of a run, after which progress is reported
_PAUSE = 50  # of the time of a pause: the least time between two of them


def run(plan: Plan) -> AsyncResult:
    """Run an asynchronous method on the ranks of a network; see `mpidec.solve`.

    Notes
    -----
    Collective.  Between the beginning and the end no rank waits for all others, but for checkpoints.  A gradient that is not
    finite ends the run.

    The first record is written at the beginning, others during the run, 200 at most, and those of the result at the end.  Now and
    then the agents pause: when nothing is under way, a checkpoint is written, as at the end.  The target is judged by the last
    record.
    """
    net, topology, solver = plan.net, plan.topology.at(0), as_asynchronous(plan.solver)
    faults = Faults.checked(plan, solver)
    solver = prepared(solver, topology, plan.problem, net)
    if net.rank == 0:
        warn_of_losses(solver, plan.drop)
        _warn_of_sleepers(net, plan.straggler)
    agents = LocalAgents.of(solver, topology, plan.X, net.agents)
    file = None if plan.record is None else AsyncRunFile(plan, plan.record, solver, agents)
    records = min(_RECORDS, plan.steps // plan.every + 1)
    before = ResumedTotals() if file is None else file.begin(plan.topology, records)
    with failing(None if file is None else file.recorder), interrupts() as interrupted:
        if file is not None:
            file.first()
        return _Run(plan, solver, agents, faults, file, before)(records, interrupted)


class _Run:
    """The part of a run from its beginning, or from the checkpoint that it continues, to its end; all calls are collective."""

    def __init__(
        self,
        plan: Plan,
        solver: PairwiseSolver | PushSolver,
        agents: LocalAgents,
        faults: Faults,
        file: AsyncRunFile | None,
        before: ResumedTotals,
    ):
        self.plan, self.net, self.solver, self.agents = plan, plan.net, solver, agents
        self.file, self.before = file, before
        net, problem = plan.net, plan.problem
        self.measure = Metrics(net, problem)
        self.counters = RecordCounters(before, net.n, agents.width, problem is not None)
        slots = net.slots(plan.topology.at(0), np.zeros((net.m, agents.width)))
        goal = max(plan.steps * net.n - before.events, 0)
        self.termination = Termination(slots, net.rank, net.size, goal)
        self.gradient = (
            None
            if problem is None
            else FiniteGradient(of_one(plan.oracle, net.agents, plan.seed), net.lo)
        )
        common = (agents, slots, self.gradient, self.termination, faults)
        self.runner: Runner = (
            PairwiseRunner(solver, *common, net, plan.seed)
            if isinstance(solver, PairwiseSolver)
            else PushRunner(solver, *common, net.lo)
        )
        self.snapshots = Snapshots(self.runner.rows, agents.stacks["x"].nbytes)

    def __call__(self, records: int, interrupted: Callable[[], bool]) -> AsyncResult:
        net, runner, file = self.net, self.runner, self.file
        if isinstance(runner, PushRunner) and self.before.events:
            runner.send_again()
            runner.slots.flush()
            net.agree()  # everything is in its slot
        live = None if file is None else file.live(self.snapshots, self.counters)
        elapsed, reason = self._events(interrupted, live)
        self.snapshots.look(elapsed, self.termination.events, runner.messages, due=True)
        rows, sizes = self._records(records)
        metrics = columns(rows, names(self.measure, "rounds"))
        outcome, text, agent = self._end(reason, metrics, rows, sizes)
        counts, averagings, staleness, idle = self._activity(elapsed)
        X, states = self.agents.stacks["x"], self.agents.states
        result = AsyncResult(
            X,
            net.mean(X),
            outcome,
            int(metrics["step"][-1]),
            metrics,
            collected(states, self.agents.stacks) if states else None,
            counts,
            averagings,
            staleness,
            self.solver,
            text,
            agent,
            idle,
        )
        runner.slots.close()
        if file is not None:
            file.end(result, self.snapshots)
        return result

    def _events(self, interrupted: Callable[[], bool], live: Live | None) -> tuple[float, int]:
        """All events, until nothing is under way: the seconds, and why the run has ended, the same on all ranks."""
        net, plan, runner, file = self.net, self.plan, self.runner, self.file
        termination, snapshots = self.termination, self.snapshots
        timer = CheckpointTimer(math.inf if file is None or net.rank else file.seconds)
        net.agree()  # all ranks begin together
        begun = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - begun

        def between_events() -> None:
            now = clock()
            snapshots.look(now, termination.events, runner.messages)
            if live is not None:
                live.look(now)
            if timer.is_due(now):
                runner.end(PAUSED)

        reporter = None
        if plan.progress is not None and net.rank == 0:
            reporter = ProgressReporter(plan, termination, self.before.events, net.n, clock)
        monitor = FailureMonitor(net.matching, reporter)
        snapshots.look(0.0, 0, 0, due=True)
        try:
            while True:
                runner.run(interrupted, between_events, monitor)
                elapsed = max(clock(), 1e-9)
                runner.slots.flush()
                net.agree()  # everything is in its slot
                runner.collect()
                reason = int(maximum(net, termination.reason, "the end of the run"))
                if file is None or reason != PAUSED:
                    break
                events, messages = self._sums(termination.events, runner.messages)
                file.checkpoint(
                    self.counters(elapsed, events, messages, {}), self._activity(elapsed)
                )
                timer.restart(clock())
                termination.go_on()
                net.agree()  # all ranks go on together
        except BaseException:
            abandon(live)  # MPI may still write to its arrays
            raise
        if live is not None:
            live.finish()
        return elapsed, reason

    def _records(self, number: int) -> tuple[list[dict[str, float]], list[float]]:
        """Records at equal distances in wall time, and the sizes of the rows of the agents."""
        net, measure = self.net, self.measure
        end = maximum(net, self.snapshots.times[-1], "the end of the run")
        rows: list[dict[str, float]] = []
        sizes: list[float] = []
        for t in np.linspace(0.0, end, max(number, 2)).tolist():
            Z, *mine = self.snapshots.at(t)
            events, messages = self._sums(*mine)
            metrics = measure(Z)
            if measure.failed:
                net.agree(measure.error)
            rows.append(self.counters(t, events, messages, metrics))
            sizes.append(measure.size)
        return rows, sizes

    def _end(
        self,
        reason: int,
        metrics: Mapping[str, np.ndarray],
        rows: list[dict[str, float]],
        sizes: list[float],
    ) -> RunEnd:
        """The outcome."""
        found = self.gradient.found if self.gradient is not None else None
        all_ = self._everywhere(np.array([] if found is None else [found], float).reshape(-1, 4))
        if len(all_):
            # the first one at a finite point: others may have come from it
            _, agent, k, value = min(all_.tolist())
            text = f"the gradient of agent {int(agent)} at its step {int(k)} is {value:g}"
            return RunEnd(Outcome.DIVERGED, text, int(agent))
        return decide_outcome(
            rows,
            sizes,
            f"after {rows[-1]['step']} steps ({rows[-1]['time']:.3g} s)",
            lambda: self.measure.diverged_agent(self.agents.stacks["x"]),
            target=self.plan.target,
            interrupted=reason == INTERRUPTED,
            cause=lambda name, limit: self._cause(metrics, name, limit),
        )

    def _cause(self, metrics: Mapping[str, np.ndarray], name: str, limit: float) -> str:
        """The likely cause of a missed target, with a remedy, or ""."""
        plan, solver = self.plan, self.solver
        values, steps = metrics[name], metrics["step"]
        middle = (len(values) - 1) // 2
        if plan.problem is None or steps[middle] == steps[-1]:
            return ""
        at_rest = values[-1] > 0.5 * values[middle]
        if not solver.exact and not callable(solver.step_size) and at_rest:
            return (
                f"{name} has stopped falling: with a constant step size {type(solver).__name__} stays at a distance from the "
                "minimizer: use a smaller or decreasing one, such as inverse_sqrt(auto), or RunningSumTracking, which is exact"
            )
        stochastic = hasattr(plan.oracle, "start")
        return likely_cause(
            self.net, plan.problem, plan.topology, solver, stochastic, metrics, name, limit
        )

    def _activity(self, elapsed: float) -> Activity:
        """What all ranks have counted."""
        runner = self.runner
        counts = self._everywhere(np.array([s.k for s in self.agents.states], np.int64))
        pairs = self._everywhere(np.array(runner.averaging_counts(), np.int64).reshape(-1, 3))
        idle = self._everywhere(np.array([runner.idle / (runner.total or elapsed)]))
        ages = sorted(runner.staleness.items())
        all_ages = self._everywhere(np.array(ages, np.int64).reshape(-1, 2))
        return Activity(
            counts,
            self.before.averagings(pairs.tolist()),
            self.before.staleness(all_ages.tolist()),
            idle,
        )

    def _everywhere(self, mine: np.ndarray) -> np.ndarray:
        """The rows of all ranks, one rank after the other, on all of them."""
        rows = self.net.gather_rows(mine)
        return np.asarray(self.net.collectives.broadcast(rows, 0, "net.gather"))

    def _sums(self, *mine: int) -> list[int]:
        """Sums over all ranks."""
        if self.net.size == 1:
            return list(mine)
        what = "the metrics of a record"
        all_ = self.net.collectives.gather_all(np.array(mine, np.int64), what)
        return [int(total) for total in all_.sum(axis=0)]


class CheckpointTimer:
    """When the agents pause for a checkpoint; infinite `seconds` on all ranks but 0."""

    def __init__(self, seconds: float):
        self._seconds, self._next, self._asked = seconds, seconds, 0.0

    def is_due(self, now: float) -> bool:
        """Whether the agents are to pause; once, until `restart`."""
        if now < self._next:
            return False
        self._asked, self._next = now, math.inf
        return True

    def restart(self, now: float) -> None:
        """Wait again, after a pause that has ended; longer if it has taken long."""
        self._next = now + max(self._seconds, _PAUSE * (now - self._asked))


class ProgressReporter:
    """Reports how far the run is, as far as rank 0 knows."""

    def __init__(
        self,
        plan: Plan,
        termination: Termination,
        before: int,
        n: int,
        clock: Callable[[], float],
    ):
        self._plan, self._termination, self._before, self._n = plan, termination, before, n
        self._clock, self._next = clock, 0
        self._every = max(1, min(plan.every, plan.steps // _SHARES))

    def __call__(self) -> None:
        events = self._before + self._termination.total
        step = min(events // self._n, self._plan.steps)
        if step >= self._next and self._plan.progress is not None:
            self._next = step + self._every
            self._plan.progress(step, self._plan.steps, {"time": self._clock(), "events": events})


class FailureMonitor:
    """Now and then, looks for ranks that have left the run with an exception, which is raised."""

    def __init__(self, matching: Matching, report: ProgressReporter | None):
        self._matching, self._report, self._next = matching, report, 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK
            self._matching.poll()
            self._matching.look_for_leavers()
            if self._report is not None:
                self._report()


def _warn_of_sleepers(net: Network, straggler: Mapping[int, float] | None) -> None:
    """Warn if an agent that sleeps delays others, with which it takes turns on its rank."""
    seconds = pauses(straggler, net.n)
    for rank in range(net.size):
        lo, hi = net.partition.bounds(rank)
        longest = max(range(lo, hi), key=lambda i: seconds.get(i, 0.0), default=lo)
        if len({seconds.get(i, 0.0) for i in range(lo, hi)}) > 1:
            warnings.warn(
                f"straggler: the {hi - lo} agents of rank {rank} take turns, and agent {longest} delays the others when "
                f"it sleeps: give it a rank of its own (mpirun -n {net.n}), or simulate the run",
                RuntimeWarning,
                stacklevel=4,
            )
            return
