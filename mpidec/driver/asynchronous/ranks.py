"""Asynchronous methods on the ranks of a network, in wall time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..._complex import as_reals, is_complex
from ..._words import warn
from ...comm.mixing import Network
from ...comm.runtime import abandon, interrupts, on_all_ranks
from ...problems.internals import of_one, real_view
from ...solvers.internals import PairwiseSolver
from ..attempts import Attempt, attempts, searched
from ..clocks import Iterates
from ..curve import attributes_of_run
from ..journal import RunLog
from ..metrics import Metrics
from ..outcome import Outcome, RunEnd, hits
from ..plan import Plan, resumed_at
from ..recalled import as_recorded
from ..stepsize import Choice, Guard, Task, requested_rule
from .draws import Gradient
from .dropping import Dropping, Part
from .events import Events
from .files import (
    AsyncFile,
    ResumedTotals,
    SnapshotRecords,
    Snapshots,
    failing,
    maximum,
)
from .pairing import PairwiseRunner
from .prepared import as_asynchronous, pauses, prepared
from .pushing import PushRunner
from .result import AsyncResult, LocalAgents, activity_arrays
from .runner import INTERRUPTED, PAUSED, REACHED, FiniteGradient, MessageFaults, Runner, Termination
from .search import AsyncSearch

if TYPE_CHECKING:
    from ...record import Record
    from ...topology import Schedule, Topology

# Records of a run, at most: enough for a curve, and few for the reductions that make all of them
# at its end.
_RECORDS = 200
# Seconds between two looks for ranks that have left.
_LOOK = 0.02
_SHARES = 100  # of a run, after which progress is reported
# The least time between two pauses, in units of the time that a pause takes: checkpoints, during
# which no agent works, cost at most 2 % of a run.
_PAUSE = 50


def run(plan: Plan, dropping: Dropping | None = None) -> AsyncResult:
    """Run an asynchronous method on the ranks of a network, some of which may die with `dropping`;
    see `mpidec.solve`.

    Notes
    -----
    Collective.  Between the beginning and the end no rank waits for all others, but for
    checkpoints.  A gradient that is not finite ends the run.

    The first record is written at the beginning, others during the run, 200 at most, and those of
    the result at the end.  Now and then the agents pause: when nothing is under way, a checkpoint
    is written, as at the end.  A record that reaches the target ends the run.
    """
    net, topology, solver = plan.net, plan.topology.at(0), as_asynchronous(plan.solver)
    faults = MessageFaults.checked(plan, solver)
    solver = prepared(solver, topology)
    if net.rank == 0:
        if losing := solver.losing(plan.drop):
            warn(losing)
        _warn_of_sleepers(net, plan.straggler)
    plan, recalled = as_recorded(replace(plan, solver=solver))
    if dropping is not None and dropping.former is not None:
        recalled = None  # of all agents
    if plan.oracle is None or (recalled is None and requested_rule(plan.solver) is None):
        return _attempt(plan, faults, dropping=dropping)
    events = Events.of_ranks(
        solver,
        topology,
        straggler=plan.straggler,
        rates=plan.rates,
        delay=plan.delay,
        drop=plan.drop,
        seed=plan.seed,
    )
    task = Task(
        net,
        real_view(plan.oracle) if is_complex(plan.X) else plan.oracle,
        solver=as_asynchronous(plan.solver),
        X0=as_reals(plan.X),
        steps=plan.steps,
        seed=plan.seed,
        tol=plan.tolerance,
    )
    search = AsyncSearch(task, solver, topology, events)
    return attempts(
        plan,
        search,
        searched(search, recalled),
        lambda plan, choice, guard, last: _attempt(plan, faults, choice, guard, last, dropping),
    )


def _attempt(
    plan: Plan,
    faults: MessageFaults,
    choice: Choice | None = None,
    guard: Guard | None = None,
    last: bool = True,
    dropping: Dropping | None = None,
) -> AsyncResult:
    """Return the run with one step size; `Retry` if it does not converge and is not the last
    attempt; collective.
    """
    net, solver = plan.net, as_asynchronous(plan.solver)
    former = None if dropping is None else dropping.former
    agents = LocalAgents.of(solver, plan.topology.at(0), plan.X, net.agents)
    numbers = net.agents
    if dropping is not None and former is not None:
        dropping.hand_over(agents)
        numbers = former.mine
    measure = Metrics(net, plan.problem, plan.metrics, like=plan.X, agents=numbers)
    log = RunLog(measure, measure.names_of_events("rounds"))
    before, file = ResumedTotals(), None
    records = min(_RECORDS, int(plan.steps / plan.every) + 1)
    if plan.record is not None:
        file = AsyncFile(
            net,
            plan.record,
            solver,
            topology=plan.topology,
            measure=measure,
            agents=agents,
            meta=_meta(plan, plan.record, choice, guard) if former is None else {},
        )
        if former is not None:
            file.go_on(former.n, former.numbers)
        else:
            before = file.begin(log.names, records)
        if plan.record.resume and former is None:
            plan.note(resumed_at(before.step, file.later))
    if choice is not None:
        plan.chosen(choice.line())
    with failing(None if file is None else file.recorder), interrupts() as interrupted:
        if former is not None:
            before = former.before
        ranks = Ranks(plan, agents, log, faults, file, before, dropping)
        return ranks(Attempt(plan, ranks, choice, guard, last), records, interrupted)


def _meta(plan: Plan, record: Record, choice: Choice | None, guard: Guard | None) -> dict[str, Any]:
    """Return the root attributes of the file of a run; collective."""
    meta = attributes_of_run(
        plan,
        record,
        choice,
        guard,
        plan.topology,
        delay=plan.delay,
        drop=plan.drop,
        straggler=plan.straggler,
        rates=plan.rates,
    )
    return meta | {"clock": "seconds"}


class Ranks:
    """The clock of asynchronous agents on ranks: wall time.  It runs the part of a run from its
    beginning, or from the checkpoint that it continues, to its end; all calls are collective.
    """

    def __init__(
        self,
        plan: Plan,
        agents: LocalAgents,
        log: RunLog,
        faults: MessageFaults,
        file: AsyncFile | None,
        before: ResumedTotals,
        dropping: Dropping | None = None,
    ):
        self.dropping = dropping
        self.former = None if dropping is None else dropping.former
        if dropping is not None and self.former is None:
            dropping.forget()
        self.plan, self.net, self.agents, self.log = plan, plan.net, agents, log
        self.file, self.before = file, before
        self.solver = solver = as_asynchronous(plan.solver)
        net, problem, oracle = plan.net, plan.problem, plan.oracle
        if oracle is not None and agents.complex:
            oracle = real_view(oracle)
        slots = net.slots(plan.topology.at(0), np.zeros((net.m, agents.width), agents.dtype))
        goal = max(plan.steps * net.n - before.events, 0)
        self.termination = Termination(slots, net.rank, net.size, goal)
        self.gradient = (
            None
            if oracle is None
            else FiniteGradient(
                self._traced(of_one(oracle.gradients(self._numbers, plan.seed))),
                self._numbers.start,
            )
        )
        common = (agents, slots, self.gradient, self.termination, faults)
        self.runner: Runner = (
            PairwiseRunner(solver, *common, net, plan.seed)
            if isinstance(solver, PairwiseSolver)
            else PushRunner(solver, *common, net.lo)
        )
        if self.former is None:
            self.snapshots = Snapshots(self.runner.rows, agents.stacks["x"].nbytes)
        else:
            self.snapshots = self.former.snapshots
            self.snapshots.follow(self.runner.rows)
            self.runner.follow(self.former.runner)
        self.records = SnapshotRecords(
            net,
            log.measure,
            self.snapshots,
            before=before,
            message_bytes=agents.message_bytes,
            gradients=problem is not None,
            file=file,
            target=plan.target,
            begun=0.0 if self.former is None else time.perf_counter() - self.former.begun,
        )

    @property
    def _numbers(self) -> range:
        """The local agents, by their numbers at the beginning of the run."""
        return self.net.agents if self.former is None else self.former.mine

    def _traced(self, gradient: Gradient) -> Gradient:
        """Return the gradient, whose calls are events of the timeline if there is one."""
        timeline = self.net.context.timeline
        return gradient if timeline is None else timeline.computing("gradient", gradient)

    @property
    def topology(self) -> Topology | Schedule:
        return self.plan.topology

    disturbance: ClassVar[str] = ""

    def limits(self, d: int) -> str:
        return self.solver.losing(self.plan.drop)

    def moment(self, k: int) -> str:
        return f"after {k} steps ({self.log.records[-1]['time']:.3g} s)"

    def __call__(
        self, attempt: Attempt, number: int, interrupted: Callable[[], bool]
    ) -> AsyncResult:
        """The result; an attempt whose guard refuses it raises `Retry`."""
        net, runner, file = self.net, self.runner, self.file
        if self.former is None:
            self._first_record()
        if isinstance(runner, PushRunner) and self.before.events and self.former is None:
            runner.send_again()
            runner.slots.wait()
            net.agree()  # everything is in its slot
        elapsed, reason = self._events(interrupted)
        log, agents = self.log, self.agents
        log.records, log.sizes = self.records.finish(number)
        k, s = int(log.records[-1]["step"]), Iterates(agents.X)
        end = self._end(attempt, reason, k, s)
        counts, averagings, staleness, idle = self._activity(elapsed)
        former = self.former
        result = AsyncResult(
            **vars(attempt.result(k, s, log, end)),
            state=agents.collected() if agents.states else None,
            counts=counts,
            averagings=averagings,
            staleness=staleness,
            solver=self.solver,
            idle=idle,
            left=None if former is None else np.array(former.numbers),
            lost_mass=0.0 if former is None else former.lost,
        )
        runner.slots.close()
        attempt.retry(end, k)
        if file is not None:
            if end.outcome is not Outcome.DIVERGED:
                file.checkpoint(log.records[-1], {})
            file.finish(result)
        return result

    def _events(self, interrupted: Callable[[], bool]) -> tuple[float, int]:
        """All events, until nothing is under way: the seconds, and why the run has ended, the
        same on all ranks.
        """
        net, plan, runner, file = self.net, self.plan, self.runner, self.file
        termination, snapshots, records = self.termination, self.snapshots, self.records
        timer = CheckpointTimer(math.inf if file is None or net.rank else file.seconds)
        net.agree()  # all ranks begin together
        begun = time.perf_counter() if self.former is None else self.former.begun
        if self.dropping is not None:
            self.dropping.begin(self._part(begun))

        def clock() -> float:
            return time.perf_counter() - begun

        def between_events() -> None:
            now = clock()
            snapshots.look(now, termination.events, runner.messages)
            records.look(now)
            if records.reached:
                runner.end(REACHED)
            elif timer.is_due(now):
                runner.end(PAUSED)

        monitor = Monitor(plan, termination, self.before.events, clock)
        try:
            while True:
                runner.run(interrupted, between_events, monitor)
                elapsed = max(clock(), 1e-9)
                runner.slots.wait()
                net.agree()  # everything is in its slot
                runner.collect()
                snapshots.look(elapsed, termination.events, runner.messages, due=True)
                reason = int(maximum(net, termination.reason, "the end of the run"))
                if file is None or reason != PAUSED:
                    return elapsed, reason
                row = records.now(elapsed)
                if all(map(math.isfinite, row.values())):
                    file.checkpoint(row, activity_arrays(*self._activity(elapsed)))
                timer.restart(clock())
                termination.go_on()
                net.agree()  # all ranks go on together
        except BaseException:
            abandon(records)  # MPI may still write to its arrays
            raise

    def _first_record(self) -> None:
        """The record at the beginning: the file exists from then on."""
        file = self.file
        self.snapshots.look(0.0, 0, 0, due=True)
        if file is not None and not file.record.resume:
            file.checkpoint(self.records.now(0.0), {})

    def _part(self, begun: float) -> Part:
        """Return what the living go on from when ranks die."""
        now = self.plan, self.agents, self.runner
        if self.former is not None:
            plan, agents, runner = now
            return replace(self.former, plan=plan, agents=agents, runner=runner)
        n = self.net.n
        return Part(n, range(n), self.net.agents, *now, self.snapshots, self.before, begun)

    def _end(self, attempt: Attempt, reason: int, k: int, s: Iterates) -> RunEnd:
        """Return the outcome."""
        found = self.gradient.found if self.gradient is not None else None
        all_ = self._everywhere(np.array([] if found is None else [found], float).reshape(-1, 4))
        if len(all_):
            # the first one at a finite point: others may have come from it
            _, agent, own, value = min(all_.tolist())
            text = f"the gradient of agent {int(agent)} at its step {int(own)} is {value:g}"
            return RunEnd(Outcome.DIVERGED, text, int(agent))
        stopped = reason == REACHED or self._ends_at_target()
        return attempt.judge(k, s, self.log, stopped, reason == INTERRUPTED)

    def _ends_at_target(self) -> bool:
        """Return whether the last record has reached the target, as rank 0 says."""
        plan, net, reached = self.plan, self.net, False
        with on_all_ranks(net):
            if net.rank == 0:
                reached = hits(plan.target, self.log.records[-1])
        return bool(net.collectives.broadcast(reached, 0, "the end of the run"))

    def _activity(
        self, elapsed: float
    ) -> tuple[np.ndarray, dict[tuple[int, int], int], np.ndarray, np.ndarray]:
        """Return what all ranks have counted: the fields `counts`, `averagings`, `staleness` and
        `idle` of `AsyncResult`.
        """
        runner = self.runner
        counts = self._everywhere(np.array([s.k for s in self.agents.states], np.int64))
        mine = [pair for pair in runner.averaging_counts() if pair[0] < pair[1]]
        if self.former is not None:
            counts = self.former.of_all(counts)
            mine = [*self.former.averagings, *self.former.named(mine)]
        pairs = self._everywhere(np.array(mine, np.int64).reshape(-1, 3))
        idle = self._everywhere(np.array([runner.idle / (runner.total or elapsed)]))
        ages = sorted(runner.staleness.items())
        all_ages = self._everywhere(np.array(ages, np.int64).reshape(-1, 2))
        before = self.before
        averagings, staleness = (
            before.averagings(pairs.tolist()),
            before.staleness(all_ages.tolist()),
        )
        return counts, averagings, staleness, idle

    def _everywhere(self, mine: np.ndarray) -> np.ndarray:
        """Return the rows of all ranks, one rank after the other, on all of them."""
        rows = self.net.gather_rows(mine)
        return np.asarray(self.net.collectives.broadcast(rows, 0, "net.gather"))


class CheckpointTimer:
    """When the agents pause for a checkpoint; infinite `seconds` on all ranks but 0."""

    def __init__(self, seconds: float):
        self._seconds, self._next, self._asked = seconds, seconds, 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the agents are to pause; once, until `restart`."""
        if now < self._next:
            return False
        self._asked, self._next = now, math.inf
        return True

    def restart(self, now: float) -> None:
        """Wait again, after a pause that has ended; longer if it has taken long."""
        self._next = now + max(self._seconds, _PAUSE * (now - self._asked))


class Monitor:
    """Now and then, looks for ranks that have left the run with an exception, which is raised; rank
    0 reports how far the run is.

    Parameters
    ----------
    plan : Plan
    termination : Termination
    before : int
        Events of the run before this part of it.
    clock : callable () -> float
        The time of the run.
    """

    def __init__(
        self, plan: Plan, termination: Termination, before: int, clock: Callable[[], float]
    ):
        self._plan, self._termination, self._before, self._clock = plan, termination, before, clock
        self._next, self._next_step = 0.0, 0
        self._every = max(1, min(int(plan.every), plan.steps // _SHARES))

    def __call__(self) -> None:
        plan, net, now = self._plan, self._plan.net, time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK
        net.matching.poll()
        net.matching.look_for_leavers()
        events = self._before + self._termination.total
        step = min(events // net.n, plan.steps)
        if plan.progress is not None and net.rank == 0 and step >= self._next_step:
            self._next_step = step + self._every
            plan.progress(step, plan.steps, {"time": self._clock(), "events": events})


def _warn_of_sleepers(net: Network, straggler: Mapping[int, float] | None) -> None:
    """Warn if an agent that sleeps delays others, with which it takes turns on its rank."""
    seconds = pauses(straggler, net.n)
    for rank in range(net.size):
        lo, hi = net.partition.bounds(rank)
        longest = max(range(lo, hi), key=lambda i: seconds.get(i, 0.0), default=lo)
        if len({seconds.get(i, 0.0) for i in range(lo, hi)}) > 1:
            warn(
                f"straggler: the {hi - lo} agents of rank {rank} take turns, and agent {longest} "
                "delays the others when "
                f"it sleeps: give it a rank of its own (mpirun -n {net.n}), or simulate the run"
            )
            return
