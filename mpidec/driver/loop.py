"""Solver loop: gradient, step, record, stop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..comm.mixing import Mixer, Network
from ..comm.mixing.operator import Operator, StepOperator
from ..comm.runtime.agreement import on_all_ranks
from ..comm.runtime.interrupts import interrupts
from ..exceptions import ResumeError
from ..record.reader import read
from ..record.recorder import Record, Recorder
from ..solvers.base import Solver, at_step, state
from ..topology.optimized import Adaptive
from . import codec_limits
from .answers import Answers, Errors, gradients_for, term_of
from .arguments import Delay, check_equal
from .curve import curve
from .decisions import Control
from .diagnosis import Diagnosis
from .metrics import Metrics, columns
from .outcome import Outcome, RunEnd, Stop, StopFunction, Target, decide_outcome, not_finite
from .provenance import attributes
from .result import Result
from .stepsize import Choice, Guard, Retry, Search, requested_rule, unstable_schedule, with_size
from .stepsize.guard import ATTEMPTS, LEFT

if TYPE_CHECKING:
    from ..problems import Oracle, Problem
    from ..topology import Schedule, Topology

ANY_SIZE = "whatever the step size"  # words of a reason
_ORACLE = "oracle."  # prefix of what gradients remember, beside the memory of the mixer

Progress = Callable[[int, int, Mapping[str, float]], None]
Mixing = Callable[[Mixer], Operator[StepOperator]]


def resumed_at(step: int, later: bool) -> str:
    """What a resumed run tells at its beginning."""
    again = ": later records are computed again" if later else ""
    return f"resumed at step {step}, that of the last checkpoint{again}"


class State(Protocol):
    """State of a solver: a named tuple with the rows of the local agents."""

    @property
    def X(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Plan:
    """Arguments of one run, checked; see `mpidec.solve`."""

    net: Network
    problem: Problem | None
    oracle: Problem | Oracle | None
    solver: Solver
    topology: Topology | Schedule
    X: np.ndarray
    steps: int
    every: int
    seed: int
    stop: Stop | None
    target: Target | StopFunction | None
    record: Record | None
    progress: Progress | None
    mixing: Mixing | None
    delay: Delay | None = None
    drop: float = 0.0
    straggler: Mapping[int, float] | None = None


def note(plan: Plan, line: str) -> None:
    """Show a line beside the progress, on rank 0."""
    show = getattr(plan.progress, "note", None)
    if show is not None and plan.net.rank == 0:
        show(line)


def run(plan: Plan) -> Result:
    """Run a solver in common steps; collective.

    A step size that is to be found is searched for before, and a run that does not converge with it begins again with a smaller
    one.
    """
    net, record, solver, X = plan.net, plan.record, plan.solver, plan.X
    if requested_rule(solver) is not None and record is not None and record.resume:
        size, weights = recorded_choice(net, record)
        solver = with_size(solver, size)
        if isinstance(plan.topology, Adaptive):
            plan = replace(plan, topology=dict(plan.topology.choices).get(weights, plan.topology))
    asked, search, choice, guard, unstable = solver, None, None, None, ""
    for attempt in range(ATTEMPTS + 1):
        with ExitStack() as mixers:
            base = mixers.enter_context(closing(net.mixer(plan.topology)))
            mixer = derived(plan.mixing, base, net)
            warning = "" if attempt else codec_limits.warning(solver, mixer, X.shape[1])
            if warning and net.rank == 0:
                warnings.warn(warning, RuntimeWarning, stacklevel=3)
            if not attempt:
                unstable = unstable_schedule(net, solver, mixer, X.shape[1])
                if unstable and net.rank == 0:
                    warnings.warn(unstable, RuntimeWarning, stacklevel=3)
            H = getattr(solver, "local_steps", 1)
            if (
                plan.steps < H
                and H > 1
                and not getattr(solver, "gossip", False)
                and net.rank == 0
                and not attempt
            ):
                warnings.warn(
                    f"{type(solver).__name__} mixes every {H} steps, the run takes {plan.steps}, all without communication: "
                    f"take more steps, or local_steps={max(1, plan.steps // 10)}",
                    RuntimeWarning,
                    stacklevel=3,
                )
            if requested_rule(solver) and plan.problem is not None and plan.oracle is not None:
                tol = plan.stop.get("error", 1.0) if isinstance(plan.stop, Mapping) else 1.0
                search = Search(
                    net,
                    plan.problem,
                    plan.oracle,
                    solver,
                    plan.topology,
                    mixer,
                    X,
                    plan.steps,
                    plan.seed,
                    tol,
                    unstable,
                )
                choice = search()
                if search.topology is not plan.topology:
                    plan = replace(plan, topology=search.topology)
                    base = mixers.enter_context(closing(net.mixer(plan.topology)))
                    mixer = derived(plan.mixing, base, net)
            if search is not None and choice is not None:
                solver = with_size(asked, choice.step_size)
                if search.point is not None:
                    left = LEFT if search.reduced and attempt < 2 else 1.0
                    guard = Guard(net, search.point, X, choice, plan.steps, search.away, left)
            try:
                # where the schedule is the cause, smaller step sizes are no remedy
                futile = bool(unstable) or (choice is not None and choice.futile)
                last = attempt == ATTEMPTS or futile
                return _Run(replace(plan, solver=solver), mixer, choice, guard, last, unstable)()
            except Retry as retry:
                if search is None or choice is None:
                    raise
                smaller = search.smaller(choice, 2.0 if attempt < 2 else 8.0)
                if net.rank == 0:
                    warnings.warn(
                        f"{type(solver).__name__} did not converge with the step size {choice.step_size:.4g} "
                        f"({retry}): the run begins again with {smaller.step_size:.4g}",
                        RuntimeWarning,
                        stacklevel=3,
                    )
                choice = smaller
    raise RuntimeError("unreachable")


class _Run:
    """One run with one step size.

    Parameters
    ----------
    plan : Plan
        With a solver whose step size is a number or a schedule.
    mixer : mixer
    choice : Choice or None
        The search that has found the step size.
    guard : Guard or None
        Checks of the distance to the estimated minimizer.
    last : bool
        Whether there is no further attempt, so that the guard judges the end only.
    unstable : str
        Why the solver may diverge on the schedule with any small step size, or "".
    """

    def __init__(
        self,
        plan: Plan,
        mixer: Operator[StepOperator],
        choice: Choice | None,
        guard: Guard | None,
        last: bool,
        unstable: str,
    ):
        self.unstable = unstable
        self.plan, self.net, self.solver, self.mixer = plan, plan.net, plan.solver, mixer
        self.choice, self.guard, self.last = choice, guard, last
        self.errors = Errors(plan.net)
        gradient = gradients_for(plan.solver, plan.oracle, plan.net.agents, plan.seed)
        self.answers = Answers(plan.problem, term_of(plan.oracle), gradient, self.errors)
        self.measure = Metrics(plan.net, plan.problem)
        self.records: list[dict[str, float]] = []
        self.sizes: list[float] = []
        self.recorder: Recorder[Any] | None = None
        self._elapsed = 0.0

    def __call__(self) -> Result:
        """Run, and write the file; collective."""
        with (
            interrupts() as interrupted
        ):  # until the file is complete: Ctrl-C reaches some ranks later than others
            return self._run(interrupted)

    def _run(self, interrupted: Callable[[], bool]) -> Result:
        plan, solver, record = self.plan, self.solver, self.plan.record
        try:
            first, s = 0, at_step(solver, 0).init(plan.X, self.mixer.at(0))
            state(solver, "init", s, plan.X.shape)
            if record is not None:
                self.recorder = Recorder(self.net, record, s, solver.needs.per_edge)
                first, s = self._begin(self.recorder, record, s)
            if self.choice is not None:
                note(plan, f"step size {self.choice.line()}")
            control = Control(self.net, record.checkpoint_seconds if record else None)
            s, k, end = self._loop(s, first, control, interrupted)
            retry = self.guard is not None and not self.last and not self._at_once(k)
            if end.outcome is Outcome.DIVERGED and retry:
                raise Retry(end.reason)
            self.net.wait_for_readers()
        except BaseException as error:
            if self.recorder is not None:
                failed = isinstance(error, Exception) and not isinstance(error, Retry)
                self.recorder.abandon(f"{type(error).__name__}: {error}" if failed else "")
            if self.errors.common:  # none ends the job before rank 0 has written
                self.net.agree()
            raise
        if self.recorder is not None:
            if end.outcome is not Outcome.DIVERGED:
                self._checkpoint(k, s)
            self.recorder.finish(s.X, str(end.outcome), k)
        step_size = getattr(solver, "step_size", None)
        mean = self.net.mean(s.X)
        return Result(
            s.X,
            mean,
            end.outcome,
            k,
            columns(self.records, self.measure.names),
            self._reason(end),
            end.agent,
            step_size,
            self.choice,
            codec_limits.disturbance(solver, self.mixer),
            self.unstable,
        )

    def _reason(self, end: RunEnd) -> str:
        """The reason of the end, and of a divergence the schedule, if that is the likely cause."""
        if end.outcome is not Outcome.DIVERGED or not self.unstable:
            return end.reason
        return f"{end.reason}; unless the step size is too large, the schedule is the cause: {self.unstable}"

    def _begin(self, recorder: Recorder[Any], record: Record, s: State) -> tuple[int, State]:
        """Create the file, or load its last checkpoint; the step and the state to begin with."""
        plan, mixer = self.plan, self.mixer
        meta = attributes(
            self.net,
            record,
            self.solver,
            mixer.topology,
            plan.steps,
            plan.every,
            plan.seed,
            self.choice,
            problem=plan.problem,
        )
        least = self.measure.least()
        meta |= {"every": plan.every} | curve(
            self.net, self.solver, plan.oracle, mixer.topology, plan.X, plan.seed, mixer
        )
        meta |= {} if least is None else {"f_star": least}
        if not record.resume:
            names, records = self.measure.names, plan.steps // plan.every + 2
            recorder.create(plan.X.shape[1:], names, s, mixer.topology, meta, records)
            return 0, s
        first, s, counters, memory = recorder.load(mixer.topology, meta)
        # earlier versions have counted no rows, and no gradients
        known = counters.tolist() + [0.0, float(first)][len(counters) - 3 :]
        self._elapsed, rounds, sent, rows, gradients = known
        own = {
            name.removeprefix(_ORACLE): rows
            for name, rows in memory.items()
            if name.startswith(_ORACLE)
        }
        memory = {name: rows for name, rows in memory.items() if not name.startswith(_ORACLE)}
        expected = mixer.feedback and not self.solver.needs.exchange
        if first > 0 and expected and not memory and self.net.rank == 0:
            warnings.warn(
                f"{record.path}: the checkpoint of step {first} contains no error feedback memory (it was written by an "
                "earlier version): the memory starts at zero, and the results differ from an uninterrupted run",
                RuntimeWarning,
                stacklevel=4,
            )
        mixer.recall(memory)
        try:
            self.answers.recall(
                own, int(gradients), first if self.solver.needs.argmin else 0, first
            )
        except ResumeError as error:
            raise ResumeError(f"{record.path}: {error}") from error
        counts, root = mixer.counts, self.net.rank == 0
        counts.rounds, counts.bytes = int(rounds), int(sent) * root
        counts.messages = int(rows) * root
        note(plan, resumed_at(first, recorder.resume(first, meta)))
        return first, s

    def _loop(
        self, s: State, first: int, control: Control, interrupted: Callable[[], bool]
    ) -> tuple[State, int, RunEnd]:
        solver, mixer, answers = self.solver, self.mixer, self.answers
        steps, every, shape = self.plan.steps, self.plan.every, s.X.shape
        self._clock = time.perf_counter() - self._elapsed
        stopped = False
        if first == 0:
            self._checkpoint(0, s)
        if first == 0 or first >= steps or (self.recorder is not None and self.recorder.has(first)):
            # a run that has reached its target takes no further steps
            stopped = self._record(first, s)
        k = first
        varying, guard = callable(getattr(solver, "step_size", None)), self.guard
        ask, step = self._timed("gradient", solver.ask), self._step(solver)
        while not stopped and k < steps:
            if varying:
                now = at_step(solver, k)
                ask, step = self._timed("gradient", now.ask), self._step(now)
            s = step(s, ask(answers.at(k), s), mixer.at(k))
            if k == first:
                state(solver, "step", s, shape)
            k += 1
            control.watch(k, s.X)
            if guard is not None and not self.last and guard.due(k):
                guard.check(k, s.X)
            recording = k % every == 0 or k == steps
            if not (recording or control.due(k)):
                continue
            error = self.errors.first or (self.recorder.error if self.recorder else None)
            decision = control.decide(k, interrupted(), error)
            if decision.failed:
                self.errors.raise_together(error)
            if decision.diverged is not None:
                k, agent = decision.diverged
                reason = f"the iterate of agent {agent} is not finite after step {k}"
                if self._at_once(k):
                    cause = self.mixer.disturbance
                    reason += f", {ANY_SIZE}{', as ' * bool(cause)}{cause}"
                return s, k, RunEnd(Outcome.DIVERGED, reason, agent)
            if recording or decision.interrupted:
                stopped = self._record(k, s)
                if not_finite(self.records[-1], last=False):
                    break
            if decision.interrupted:
                return s, k, RunEnd(Outcome.INTERRUPTED)
            if decision.checkpoint:
                self._checkpoint(k, s)
        self.errors.raise_together()  # of the last call of progress
        return s, k, self._end(s, k, stopped)

    def _step(self, solver: Solver) -> Callable[..., Any]:
        """The step of a solver, which is an event of the timeline if there is one."""
        step: Callable[..., Any] = solver.step
        return self._timed("step", self.net.keeping(step) if solver.keeps_rows else step)

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        timeline = self.net.context.timeline
        return call if timeline is None else timeline.computing(name, call)

    def _end(self, s: State, k: int, stopped: bool) -> RunEnd:
        """The outcome of a run that has ended by itself; collective."""
        return decide_outcome(
            self.records,
            self.sizes,
            f"after {k} steps",
            lambda: self.measure.diverged_agent(s.X),
            target=self.plan.target,
            stopped=stopped,
            too_far=lambda: self._too_far(s.X, k),
            cause=lambda name, limit: Diagnosis(
                self.net,
                self.plan.problem,
                self.mixer.topology,
                self.solver,
                self.plan.oracle,
                columns(self.records, self.measure.names),
                name,
                limit,
                s.X,
                codec_limits.limit(self.solver, self.mixer, s.X.shape[1]),
                self.unstable,
                self.choice is not None,
            ).cause(),
        )

    def _at_once(self, k: int) -> bool:
        """Whether iterates not finite after step `k` are so with any step size that a search would find."""
        first = getattr(self.solver, "local_steps", 1) if self.mixer.disturbance else 1
        return self.choice is not None and k in (1, first)

    def _too_far(self, X: np.ndarray, k: int) -> str:
        """Why a chosen step size has failed although the metrics are finite, or ""; collective."""
        far = self.guard.far(X, strict=self.last) if self.guard is not None else ""
        if far and self.choice is not None and self.choice.futile:
            return f"{far}, after {k} steps: no step size makes progress with this codec"
        if not far or not self.last:
            return far and f"{far}, after {k} steps"
        if self.unstable:
            return f"{far}, after {k} steps"
        return (
            f"{far}, after {k} steps, as with {ATTEMPTS} larger step sizes: begin closer to the minimizer (x0), or give "
            "a step size or a schedule"
        )

    def _record(self, k: int, s: State) -> bool:
        """Measure the iterates after step `k`, record them, and return whether to stop; collective."""
        begun = time.perf_counter()
        plan = self.plan
        metrics = {
            "step": k,
            "time": begun - self._clock,
            "rounds": self.mixer.rounds,
            "gradients": self.answers.gradients,
            "prox": self.answers.points,
            **self.measure(s.X, self.mixer.messages, self.mixer.bytes),
        }
        if self.measure.failed:
            self.errors.raise_together(self.measure.error)
        self.records.append(metrics)
        self.sizes.append(self.measure.size)
        if self.recorder is not None:
            self.recorder.append(k, metrics, s.X)
        if plan.progress is not None and self.net.rank == 0:
            try:
                plan.progress(k, plan.steps, metrics)
            except Exception as error:  # raised on all ranks at the next decision
                self.errors.note(error)
        stopped = self._reached(metrics)
        self._clock += time.perf_counter() - begun
        return stopped

    def _reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether to stop; where the clock or a callable decides, rank 0 does."""
        target, net = self.plan.target, self.net
        if target is None:
            return False
        if isinstance(target, Target):
            reached = target.reached(metrics)
            if "time" not in target.limits or net.size == 1:
                return reached  # the other metrics have the same bits on all ranks
            return bool(net.collectives.broadcast(reached, 0, "the decision to stop"))
        stopped = False
        if net.rank == 0:
            try:
                stopped = bool(target(metrics))
            except Exception as error:
                if net.size == 1:
                    raise
                self.errors.note(error)
        stopped, failed = net.collectives.broadcast(
            (stopped, self.errors.first is not None), 0, "the decision to stop"
        )
        if failed:
            self.errors.raise_together()
        return bool(stopped)

    def _checkpoint(self, k: int, s: State) -> None:
        if self.recorder is not None:
            begun = time.perf_counter()
            sent = np.array([[self.mixer.bytes, self.mixer.messages]])
            if self.net.size > 1:
                sent = self.net.collectives.gather_all(sent, "a checkpoint")
            totals = sent.reshape(-1, 2).sum(axis=0)
            counters = [begun - self._clock, self.mixer.rounds, *totals, self.answers.gradients]
            memory = self.mixer.memory()
            memory |= {_ORACLE + name: rows for name, rows in self.answers.memory().items()}
            self.recorder.checkpoint(k, s, np.array(counters, float), memory)
            self._clock += time.perf_counter() - begun


def derived(mixing: Mixing | None, base: Mixer, net: Network) -> Operator[StepOperator]:
    """The mixer that `mixing` makes of the mixer of the topology; its errors are raised on every rank."""
    if mixing is None:
        return base
    with on_all_ranks(net):
        if not callable(mixing):
            raise TypeError(
                f"mixing is {mixing!r:.60}, expected a function of the mixer W, such as "
                'lambda W: W.compress("top_k", fraction=0.01) or lambda W: W.accelerate(3)'
            )
        mixer = mixing(base)
        if not isinstance(mixer, Operator):
            raise TypeError(
                f"mixing returned {mixer!r:.60}, expected a mixer derived from its argument: lambda W: W.accelerate(3)"
            )
    check_equal(net, {"mixing": mixer.calls})
    return mixer


@contextmanager
def closing(mixer: Mixer) -> Iterator[Mixer]:
    """Context that closes a mixer; collective, therefore not after an error on this rank only."""
    yield mixer
    mixer.close()


@contextmanager
def arithmetic(net: Network) -> Iterator[None]:
    """Context of the steps: BLAS with one thread, temporaries in the memory of the node, and no warnings of overflow."""
    from threadpoolctl import threadpool_limits

    with (
        threadpool_limits(1, user_api="blas"),
        net.memory(),
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),
    ):
        yield


def recorded_choice(net: Network, record: Record) -> tuple[float, str]:
    """The step size that the run in the file has chosen, and the weights, or ""."""
    size, weights = 0.0, ""
    with on_all_ranks(net):
        if net.rank == 0:
            found = read(record.path).attributes
            if "step_size" not in found:
                raise ValueError(
                    f"{record.path}: its step size was given as a number: resume with the same number"
                )
            size, weights = float(found["step_size"]), str(found.get("weights", ""))
    size, weights = net.collectives.broadcast((size, weights), 0, "the step size of the run")
    return float(size), str(weights)
