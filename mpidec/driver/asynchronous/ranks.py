"""Asynchronous methods on the ranks of a network, in wall time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from ..._words import warn
from ...comm.mixing.network import Network
from ...comm.runtime.agreement import on_all_ranks
from ...comm.runtime.interrupts import interrupts
from ...comm.runtime.progress import abandon
from ...problems.agents import of_one
from ...record.origin import table
from ...record.reader import read
from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ..attempts import attempts
from ..curve import curve
from ..metrics import Metrics
from ..outcome import Outcome, RunEnd
from ..plan import Plan, recorded_choice, resumed_at
from ..provenance import attributes
from ..stepsize import Choice, Guard, Task, requested_rule, with_size
from .attempt import AsyncAttempt
from .clocks import Gradient
from .events import Events
from .files import (
    AsyncFile,
    Records,
    ResumedTotals,
    Snapshots,
    activity_arrays,
    failing,
    maximum,
)
from .pairing import PairwiseRunner
from .pushing import PushRunner
from .result import AsyncResult, LocalAgents
from .runner import INTERRUPTED, PAUSED, Faults, FiniteGradient, Runner, Termination, pauses
from .search import AsyncSearch, safe_size
from .simulation import as_asynchronous, prepared, warn_of_losses

_RECORDS = 200
_LOOK = 0.02  # seconds between two looks for ranks that have left
_SHARES = 100  # of a run, after which progress is reported
_PAUSE = 50  # of the time of a pause: the least time between two of them


def run(plan: Plan) -> AsyncResult:
    """Run an asynchronous method on the ranks of a network; see `mpidec.solve`.

    Notes
    -----
    Collective.  Between the beginning and the end no rank waits for all others, but for
    checkpoints.  A gradient that is not finite ends the run.

    The first record is written at the beginning, others during the run, 200 at most, and those of
    the result at the end.  Now and then the agents pause: when nothing is under way, a checkpoint
    is written, as at the end.  The target is judged by the last record.
    """
    net, topology, solver = plan.net, plan.topology.at(0), as_asynchronous(plan.solver)
    faults = Faults.checked(plan, solver)
    solver = prepared(solver, topology)
    if net.rank == 0:
        warn_of_losses(solver, plan.drop)
        _warn_of_sleepers(net, plan.straggler)
    record = plan.record
    if plan.oracle is None or requested_rule(solver) is None:
        return _attempt(plan, faults, solver)
    if record is not None and record.resume:
        return _attempt(plan, faults, with_size(solver, _recorded_step_size(plan, solver)))
    paused = pauses(plan.straggler, net.n)
    events = Events.of_ranks(solver, topology, paused, plan.delay, plan.drop, plan.seed)
    task = Task(
        net,
        plan.oracle,
        solver=solver,
        X0=plan.X,
        steps=plan.steps,
        seed=plan.seed,
        tol=plan.tolerance,
    )
    search = AsyncSearch(task, solver, topology, events)
    return attempts(
        net,
        solver,
        search,
        search(),
        lambda choice, guard, last: _attempt(
            plan, faults, with_size(solver, choice.step_size), choice, guard, last
        ),
    )


def _attempt(
    plan: Plan,
    faults: Faults,
    solver: PairwiseSolver | PushSolver,
    choice: Choice | None = None,
    guard: Guard | None = None,
    last: bool = True,
) -> AsyncResult:
    """The run with one step size; `Retry` if it does not converge and is not the last attempt;
    collective.
    """
    net = plan.net
    agents = LocalAgents.of(solver, plan.topology.at(0), plan.X, net.agents)
    attempt = AsyncAttempt(
        net=net,
        oracle=plan.oracle,
        topology=plan.topology,
        target=plan.target,
        drop=plan.drop,
        solver=solver,
        agents=agents,
        measure=Metrics(net, plan.problem, plan.metrics),
        counters=("rounds",),
        choice=choice,
        guard=guard,
        last=last,
    )
    before, file = ResumedTotals(), None
    records = min(_RECORDS, plan.steps // plan.every + 1)
    if plan.record is not None:
        meta = attributes(
            net,
            plan.record,
            solver,
            topology=plan.topology,
            steps=plan.steps,
            every=plan.every,
            seed=plan.seed,
            choice=choice,
            problem=plan.problem,
        )
        meta["clock"] = "seconds"
        meta |= curve(
            net,
            solver,
            plan.oracle,
            plan.topology,
            plan.X,
            plan.seed,
            delay=plan.delay,
            drop=plan.drop,
            straggler=plan.straggler,
            metrics=plan.metrics,
        )
        file = AsyncFile(
            net,
            plan.record,
            solver,
            topology=plan.topology,
            measure=attempt.measure,
            agents=agents,
            meta=meta,
        )
        before = file.begin(attempt.names, records)
        if plan.record.resume:
            plan.note(resumed_at(before.step, file.later))
    if choice is not None:
        plan.chosen(choice.line())
    with failing(None if file is None else file.recorder), interrupts() as interrupted:
        return _Run(plan, attempt, faults, file, before)(records, interrupted)


def _recorded_step_size(plan: Plan, solver: PairwiseSolver | PushSolver) -> float:
    """The step size that the run in the file has chosen; collective.

    Earlier versions took the safe one for "auto".
    """
    net, record, problem = plan.net, plan.record, plan.problem
    if record is None or problem is None:
        raise RuntimeError("unreachable")
    safe, earlier = safe_size(problem, solver, net), False
    with on_all_ranks(net):
        if net.rank == 0:
            found = read(record.path).attributes
            number = table(found, "settings").get("solver.step_size")
            given = isinstance(number, float) and not math.isclose(number, safe, rel_tol=1e-9)
            earlier = "step_size" not in found and not given
    if net.collectives.broadcast(earlier, 0, "the step size of the run"):
        return safe
    return recorded_choice(net, record)[0]


class _Run:
    """The part of a run from its beginning, or from the checkpoint that it continues, to its
    end; all calls are collective.
    """

    def __init__(
        self,
        plan: Plan,
        attempt: AsyncAttempt,
        faults: Faults,
        file: AsyncFile | None,
        before: ResumedTotals,
    ):
        self.plan, self.net, self.attempt = plan, plan.net, attempt
        self.file, self.before, agents, solver = file, before, attempt.agents, attempt.solver
        net, problem = plan.net, plan.problem
        slots = net.slots(plan.topology.at(0), np.zeros((net.m, agents.width), agents.dtype))
        goal = max(plan.steps * net.n - before.events, 0)
        self.termination = Termination(slots, net.rank, net.size, goal)
        self.gradient = (
            None
            if plan.oracle is None
            else FiniteGradient(
                self._traced(of_one(plan.oracle.gradients(net.agents, plan.seed))), net.lo
            )
        )
        common = (agents, slots, self.gradient, self.termination, faults)
        self.runner: Runner = (
            PairwiseRunner(solver, *common, net, plan.seed)
            if isinstance(solver, PairwiseSolver)
            else PushRunner(solver, *common, net.lo)
        )
        self.snapshots = Snapshots(self.runner.rows, agents.stacks["x"].nbytes)
        self.records = Records(
            net,
            attempt.measure,
            self.snapshots,
            before=before,
            message_bytes=agents.message_bytes,
            gradients=problem is not None,
            file=file,
        )

    def _traced(self, gradient: Gradient) -> Gradient:
        """The gradient, whose calls are events of the timeline if there is one."""
        timeline = self.net.context.timeline
        return gradient if timeline is None else timeline.computing("gradient", gradient)

    def __call__(self, number: int, interrupted: Callable[[], bool]) -> AsyncResult:
        net, runner, file = self.net, self.runner, self.file
        self.snapshots.look(0.0, 0, 0, due=True)
        if file is not None and not file.record.resume:  # the file exists from the beginning
            file.checkpoint(self.records.now(0.0), {})
        if isinstance(runner, PushRunner) and self.before.events:
            runner.send_again()
            runner.slots.wait()
            net.agree()  # everything is in its slot
        elapsed, reason = self._events(interrupted)
        rows, sizes = self.records.finish(number)
        end = self._end(reason, rows, sizes)
        result = self.attempt.result(rows, end, *self._activity(elapsed))
        runner.slots.close()
        self.attempt.retry(end)
        if file is not None:
            if end.outcome is not Outcome.DIVERGED:
                file.checkpoint(rows[-1], {})
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
        begun = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - begun

        def between_events() -> None:
            now = clock()
            snapshots.look(now, termination.events, runner.messages)
            records.look(now)
            if timer.is_due(now):
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

    def _end(
        self,
        reason: int,
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
        moment = f"after {rows[-1]['step']} steps ({rows[-1]['time']:.3g} s)"
        return self.attempt.judge(rows, sizes, moment, interrupted=reason == INTERRUPTED)

    def _activity(
        self, elapsed: float
    ) -> tuple[np.ndarray, dict[tuple[int, int], int], np.ndarray, np.ndarray]:
        """What all ranks have counted: the fields `counts`, `averagings`, `staleness` and `idle`
        of `AsyncResult`.
        """
        runner = self.runner
        counts = self._everywhere(np.array([s.k for s in self.attempt.agents.states], np.int64))
        pairs = self._everywhere(np.array(runner.averaging_counts(), np.int64).reshape(-1, 3))
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
        """The rows of all ranks, one rank after the other, on all of them."""
        rows = self.net.gather_rows(mine)
        return np.asarray(self.net.collectives.broadcast(rows, 0, "net.gather"))


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
        self._every = max(1, min(plan.every, plan.steps // _SHARES))

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
