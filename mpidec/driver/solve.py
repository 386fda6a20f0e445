"""Solver loop: gradient, step, record, stop."""

from __future__ import annotations

import os
import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ..comm.mixing import Mixer, Network
from ..comm.mixing.operator import Operator, StepOperator
from ..comm.runtime.interrupts import interrupts
from ..record.reader import last_values
from ..record.recorder import Record, Recorder
from ..solvers.base import at_step, state
from . import arguments as resolve
from . import codec_limits as compression
from .asynchronous.ranks import run as run_on_ranks
from .decisions import Control
from .metrics import COUNTERS, GROWING, Metrics
from .provenance import attributes
from .stepsize import Choice, Guard, Retry, Search, chosen, wanted
from .stepsize.guard import ATTEMPTS
from .stopping import Interrupted as Interrupted
from .stopping import Outcome as Outcome
from .stopping import RunEnd, Stop, Target, decide_outcome, likely_cause, not_finite, target_of

Progress = Callable[[int, int, Mapping[str, float]], None]
_TEXT = 160  # characters of an argument that ranks compare


@dataclass(frozen=True, repr=False)
class Result:
    """Result of `solve`.

    Attributes
    ----------
    X : array (m, d)
        The final iterates of the local agents.
    x : array (d,)
        Their average over all agents.
    outcome : Outcome
        "completed" (all steps taken, no target), "stopped" (by `stop`), "missed" (all steps taken, but `stop` not reached),
        "diverged" or "interrupted" (in `Interrupted.result`); compares equal to the plain string.
    steps : int
        Steps taken; for a diverged run, the first step after which an iterate (or, at a record, a metric) was not finite.
    metrics : dict of arrays
        One entry per record: the counters `step`, `time` (s), `rounds` (mixings), `rows` and `bytes` (sent by all agents),
        `gradients` and `prox` (evaluations of each agent); `consensus`; and, if the problem provides them, `gradient_norm`,
        `objective`, `error`, `error_rms` and `error_max`; see `mpidec.driver.metrics.Metrics`.
    reason : str
        For a diverged run what happened, for a missed target the last value and the likely cause; else empty.
    agent : int or None
        For a diverged run the first agent whose iterate was not finite, or the one farthest from zero.
    step_size : float, callable or None
        The step size of the run: the number that "auto" or "safe" became, or the schedule starting there.
    choice : Choice or None
        The search for it; None if a number was given, or read from the file of a resumed run.
    """

    X: np.ndarray
    x: np.ndarray
    outcome: Outcome
    steps: int
    metrics: dict[str, np.ndarray]
    reason: str = ""
    agent: int | None = None
    step_size: Any = None
    choice: Choice | None = None

    def __repr__(self) -> str:
        size = (
            f", step size {self.step_size:.4g}"
            if self.step_size and isinstance(self.step_size, (int, float))
            else ""
        )
        return (
            f"Result({self.outcome} after {self.steps} steps{size}{last_values(self.metrics)}; X {self.X.shape}, "
            f"x {self.x.shape}, records: {len(self.metrics.get('step', ()))}"
            f"{f'; {self.reason}' if self.reason else ''})"
        )


def solve(
    problem: Any,
    solver: Any,
    topology: Any,
    *,
    steps: int,
    x0: Any = None,
    net: Network | None = None,
    seed: int = 0,
    record: str | os.PathLike[str] | Record | None = None,
    every: int = 10,
    stop: Stop | None = None,
    progress: Progress | bool | None = None,
    mixing: Callable[[Mixer], Operator[StepOperator]] | None = None,
    delay: Any = None,
    drop: float = 0.0,
    straggler: Mapping[int, float] | None = None,
    **unknown: NoReturn,
) -> Any:
    r"""Minimize :math:`f(x) = \tfrac{1}{n} \sum_i f_i(x)` over a network of n agents.

    Parameters
    ----------
    problem : problem or oracle
        The functions of the local agents, such as `mpidec.problems.LeastSquares(A[net.lo:net.hi], b[net.lo:net.hi])`, or an
        oracle that wraps them, such as `MiniBatch(problem, 32)`; `mpidec.problems.load_problem` makes one from data.  None for a
        solver that uses no gradients (`x0` is then required).
    solver : Solver, class or str
        A solver; a class is made with its defaults.  Names are those of the command line, and ``"FILE.py:NAME"``.  Its step size is
        a number; "auto" (the default), found before the first step (see Notes), or "safe"; or a function of the step k, such as the
        schedule `mpidec.solvers.InverseSqrt()`.
    topology : Topology, Schedule, str, networkx graph, matrix or function
        The graph, or sequence of graphs, of the n agents: also by name, as a networkx graph (with Metropolis weights), as a
        stochastic matrix (rows are receivers), or as a function of n.
    steps : int
        Number of steps; a resumed run counts them from its original start.
    x0 : array (d,) or (n, d), optional
        Initial point, common to all agents or one per agent; zeros by default.
    net : Network, optional
        Network of n agents; by default a new one over `MPI.COMM_WORLD`, for this call only.
    seed : int
        Seed of the oracle's random numbers.
    record : path or Record, optional
        HDF5 file for metrics, trajectory, checkpoints and the result.  An existing one is refused:
        `mpidec.Record(path, replace=True)` replaces it, and `Record(path, resume=True)` continues its run.
    every : int
        Steps between two records.  The first and the last iterate are always recorded.
    stop : mapping or callable, optional
        `{"error": 1e-8}` stops at the first record with `error <= 1e-8`, `{"error_rms": 1e-8, "consensus": 1e-9}` where both
        hold; counters are budgets: `{"bytes": 1e9}` stops at the first record with `bytes >= 1e9`.  A callable receives the
        metrics of each record, on rank 0 only, and returns whether to stop.  Asynchronous solvers have no common steps: a target
        is judged at the end.
    progress : callable or bool, optional
        Called as `progress(step, steps, metrics)` at each record, on rank 0; True prints a line instead.  Of asynchronous solvers
        the metrics are the time and the events that rank 0 knows of.
    mixing : callable, optional
        Function that derives the mixer used by the solver from the mixer of the topology, such as `lambda W: W.accelerate(3)` or
        `lambda W: W.compress("top_k", fraction=0.01)`.
    delay : float, (low, high) or callable, optional
        For asynchronous solvers: seconds that a message is held back before it leaves, as for `mpidec.simulate`.
    drop : float
        For asynchronous solvers: probability that a message is lost.
    straggler : dict {agent: seconds}, optional
        For asynchronous solvers: how long agents sleep at each of their steps.
    **unknown
        Any other argument is refused, with the place where it belongs.

    Returns
    -------
    Result or AsyncResult

    Raises
    ------
    ValueError, TypeError
        On every rank, before the first step: a wrong shape, or a topology that the solver does not support.
    OSError
        On every rank: the file exists, or could not be written.
    Interrupted
        On every rank, a `KeyboardInterrupt`: Ctrl-C has ended the run after a step.  The file is complete, with the outcome
        "interrupted", and `result` of the exception is what the run has reached.  A second Ctrl-C ends the run at once.
    Exception
        Of the problem or the solver on some rank, on every rank.  What is recorded is written, with the outcome "failed" and the
        exception's text.  After one of a solver the network is out of step: use a new one.

    Notes
    -----
    Collective.  A step communicates what the solver sends; a record needs two sums over all agents, and a gather if the trajectory
    is stored.  At records, and every few steps in between, one small reduction decides for all ranks whether to continue.

    A run diverges when an iterate is not finite after some step (found exactly, with its agent), when a metric is not finite at a
    record (an objective of +inf only at the last one), or when its last record is an explosion: the objective has grown by 1e6
    and the iterates by 1e3.  Explosions are judged at the end only, so that no run ends early that would have come back.

    The iterates are bit-identical on any number of ranks; to this end BLAS runs with one thread during the call.

    NumPy allocates large temporaries in the memory of `Network.memory`, where mixing needs no copies.

    `step_size="auto"` races step sizes in a linear model of the gradients at an estimate of the minimizer, through the solver's own
    steps: the fastest one for exact methods, and the one of least error after `steps` steps for methods with bias, for schedules
    and for random gradients.  The search sums over all agents, which a study may do; `step_size="safe"` is a bound that needs only
    the largest smoothness constant.  The choice is `Result.step_size`, and `Result.choice` has the table.  A run that does not
    converge with it begins again with half of it, with a `RuntimeWarning`.

    A checkpoint contains the state of the solver, the counters, and the memory of a mixer with error feedback: a resumed run is
    bit-identical to an uninterrupted one, on any number of ranks.  A checkpoint without that memory (written by an earlier version)
    is resumed with zero memory and a `RuntimeWarning`; the run then converges along another path.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> result = mpidec.solve(mpidec.problems.LeastSquares(A, b), mpidec.solvers.ExactDiffusion(step_size=0.5),
    ...                       mpidec.topology.ring(4), steps=200)
    >>> result.x.round(9).tolist(), str(result.outcome)
    ([2.0], 'completed')
    """
    resolve.arguments(unknown, solve)
    record = Record(record) if isinstance(record, (str, os.PathLike)) else record
    with ExitStack() as stack:
        if net is None:
            net = stack.enter_context(_network(problem, topology, x0))
        error: Exception | None = None
        try:
            if record is not None and not isinstance(record, Record):
                raise TypeError(
                    f"record is {record!r:.60}, expected a path, or mpidec.Record(path, ...)"
                )
            if record is not None and net.rank == 0:
                record.check()
            resolve.oracle(problem)
            topology, solver = resolve.graph(topology, net.n), resolve.method(solver, problem)
            own_pace = bool(getattr(solver, "asynchronous", False))
            _only_for(
                own_pace,
                solver,
                {"delay": delay, "drop": drop or None, "straggler": straggler},
                {"mixing": mixing},
            )
            oracle, (_, problem) = problem, _answer(problem, solver, net, seed)
            steps, every = resolve.integer("steps", steps, 0), resolve.integer("every", every, 1)
            seed = resolve.integer("seed", seed, 0)
            X = resolve.rows(x0, problem, net)
            resolve.probe(problem, X, net.lo, solver.uses == "gradient")
            if problem is not None:
                resolve.step_size(solver)
            with warnings.catch_warnings():
                if net.rank > 0:
                    warnings.simplefilter("ignore")
                solver.check(topology.at(0) if topology.period == 1 else topology)
            target = target_of(stop, problem)
            at_end = _judged_at_the_end(target, solver) if own_pace else None
        except Exception as caught:  # also of the problem's own functions: raised on all ranks
            error = caught
        net.agree(error)
        _same(
            net,
            {
                "solver": solver,
                "steps": steps,
                "every": every,
                "seed": seed,
                "stop": stop,
                "x0": x0,
                "record": record and os.fspath(record.path),
                "resume": record is not None and record.resume,
            },
        )
        stack.enter_context(_arithmetic(net))
        stack.enter_context(net.raising_together())
        if own_pace:
            meta = (
                None
                if record is None
                else partial(
                    attributes,
                    net,
                    record,
                    topology=topology,
                    steps=steps,
                    every=every,
                    seed=seed,
                    problem=problem,
                )
            )
            result: Any = run_on_ranks(
                problem,
                oracle,
                solver,
                topology,
                X,
                net,
                steps=steps,
                every=every,
                seed=seed,
                delay=delay,
                drop=drop,
                straggler=straggler,
                record=record,
                meta=meta,
                target=at_end,
                progress=_progress(progress),
            )
        else:
            result = _in_common_steps(
                net,
                problem,
                oracle,
                solver,
                topology,
                X,
                steps,
                every,
                seed,
                stop,
                target,
                record,
                _progress(progress),
                mixing,
            )
    if result.outcome is Outcome.INTERRUPTED:  # now that the network of this call is closed
        raise Interrupted(result, record)
    return result


def _in_common_steps(
    net: Network,
    problem: Any,
    oracle: Any,
    solver: Any,
    topology: Any,
    X: np.ndarray,
    steps: int,
    every: int,
    seed: int,
    stop: Stop | None,
    target: Target | Callable[[Mapping[str, float]], bool] | None,
    record: Record | None,
    progress: Progress | None,
    mixing: Callable[[Mixer], Operator[StepOperator]] | None,
) -> Result:
    """Find the step size if it is to be found, and run; begin again with a smaller one if the run does not converge."""
    if wanted(solver) is not None and record is not None and record.resume:
        solver = chosen(solver, _recorded_step_size(net, record))
    asked, search, choice, guard = solver, None, None, None
    for attempt in range(ATTEMPTS + 1):
        with _closing(net.mixer(topology)) as plain:
            mixer: Operator[StepOperator] = plain if mixing is None else _made(mixing, plain, net)
            if (
                attempt == 0
                and net.rank == 0
                and (unfit := compression.warning(solver, mixer, X.shape[1]))
            ):
                warnings.warn(unfit, RuntimeWarning, stacklevel=3)
            if wanted(solver) is not None:
                tol = stop.get("error", 1.0) if isinstance(stop, Mapping) else 1.0
                search = Search(net, problem, oracle, solver, topology, mixer, X, steps, seed, tol)
                choice = search()
            guard = None
            if search is not None and choice is not None:
                solver = chosen(asked, choice.step_size)
                if search.point is not None:
                    guard = Guard(net, search.point, X, choice, steps)
            last = attempt == ATTEMPTS
            answer = _answer(oracle, solver, net, seed)[0]
            run = _Run(
                net,
                problem,
                solver,
                mixer,
                answer,
                hasattr(oracle, "start"),
                steps,
                every,
                target,
                progress,
                None if last else guard,
                choice,
                guard if last else None,
            )
            try:
                return run(X, record, seed)
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
    """One run of the solver loop."""

    def __init__(
        self,
        net: Network,
        problem: Any,
        solver: Any,
        mixer: Operator[StepOperator],
        answer: Callable[[np.ndarray, int], Any],
        stochastic: bool,
        steps: int,
        every: int,
        target: Target | Callable[[Mapping[str, float]], bool] | None,
        progress: Progress | None,
        guard: Guard | None = None,
        choice: Choice | None = None,
        judge: Guard | None = None,
    ):
        self.net, self.problem, self.solver, self.mixer, self.answer = (
            net,
            problem,
            solver,
            mixer,
            answer,
        )
        self.stochastic, self.steps, self.every, self.target, self.progress = (
            stochastic,
            steps,
            every,
            target,
            progress,
        )
        self.guard, self.choice, self.judge = (
            guard,
            choice,
            judge,
        )  # one that begins again, and one of the last attempt
        self.measure = Metrics(net, problem)
        self.records: list[dict[str, float]] = []
        self.sizes: list[float] = []
        self.recorder: Recorder[Any] | None = None
        self.error: Exception | None = None  # of a gradient on this rank
        self.common = False  # whether all ranks have raised an exception together
        self._elapsed = 0.0

    def __call__(self, X: np.ndarray, record: Record | None, seed: int) -> Result:
        with (
            interrupts() as interrupted
        ):  # until the file is complete: Ctrl-C reaches some ranks later than others
            return self._run(X, record, seed, interrupted)

    def _run(
        self, X: np.ndarray, record: Record | None, seed: int, interrupted: Callable[[], bool]
    ) -> Result:
        try:
            first, s = (
                0,
                state(
                    self.solver, "init", at_step(self.solver, 0).init(X, self.mixer.at(0)), X.shape
                ),
            )
            if record is not None:
                self.recorder = Recorder(self.net, record, s, self.solver.per_edge)
            if record is not None and self.recorder is not None and record.resume:
                first, s = self._resume(self.recorder, record, seed)
            elif record is not None and self.recorder is not None:
                self.recorder.create(
                    X.shape[1:],
                    self.measure.names,
                    s,
                    self.mixer.topology,
                    self._meta(record, seed),
                    self.steps // self.every + 2,
                )
            note = getattr(self.progress, "note", None)
            if note is not None and self.choice is not None and self.net.rank == 0:
                note(f"step size {self.choice.line()}")
            control = Control(self.net, record.checkpoint_seconds if record else None)
            s, k, outcome, reason, agent = self._loop(s, first, control, interrupted)
            self.net.wait_for_readers()
        except BaseException as error:
            if self.recorder is not None:
                failed = isinstance(error, Exception) and not isinstance(error, Retry)
                self.recorder.abandon(f"{type(error).__name__}: {error}" if failed else "")
            if self.common:  # none ends the job before rank 0 has written
                self.net.agree()
            raise
        if self.recorder is not None:
            if outcome is not Outcome.DIVERGED:
                self._checkpoint(k, s)
            self.recorder.finish(s.X, str(outcome), k)
        return Result(
            s.X,
            self.net.mean(s.X),
            outcome,
            k,
            self._columns(),
            reason,
            agent,
            getattr(self.solver, "step_size", None),
            self.choice,
        )

    def _columns(self) -> dict[str, np.ndarray]:
        """All records as arrays."""
        whole = set(COUNTERS) - {"time"}
        return {
            name: np.array(
                [metrics[name] for metrics in self.records], np.int64 if name in whole else float
            )
            for name in self.measure.names
        }

    def _resume(self, recorder: Recorder[Any], record: Record, seed: int) -> tuple[int, Any]:
        """Load the last checkpoint; return its step and state, and restore the memory and the counters of the mixer."""
        meta = self._meta(record, seed)
        first, s, counters, memory = recorder.load(self.mixer.topology, meta)
        self._elapsed, rounds, sent, rows = (*counters, 0.0)[
            :4
        ]  # an earlier version has counted no rows
        if first > 0 and self.mixer.feedback and not memory and self.net.rank == 0:
            warnings.warn(
                f"{record.path}: the checkpoint of step {first} contains no error feedback memory (it was written by an "
                "earlier version): the memory starts at zero, and the results differ from an uninterrupted run",
                RuntimeWarning,
                stacklevel=4,
            )
        self.mixer.recall(memory)
        counts, root = self.mixer.counts, self.net.rank == 0
        counts.rounds, counts.bytes, counts.messages = (
            int(rounds),
            int(sent) * root,
            int(rows) * root,
        )
        recorder.resume(first, meta)
        return first, s

    def _loop(
        self, s: Any, first: int, control: Control, interrupted: Callable[[], bool]
    ) -> tuple[Any, int, Outcome, str, int | None]:
        solver, mixer, answer, steps, every = (
            self.solver,
            self.mixer,
            self._answer,
            self.steps,
            self.every,
        )
        self._clock = time.perf_counter() - self._elapsed
        stopped = False
        if first == 0:
            self._checkpoint(0, s)
        if first == 0 or first >= steps or (self.recorder is not None and self.recorder.has(first)):
            stopped = self._record(
                first, s
            )  # a run that has reached its target takes no further steps
        k = first
        step = self.net.keeping(solver.step) if solver.keeps_rows else solver.step
        varying, guard, shape = callable(getattr(solver, "step_size", None)), self.guard, s.X.shape
        while not stopped and k < steps:
            if varying:
                step = at_step(solver, k).step
                step = self.net.keeping(step) if solver.keeps_rows else step
            s = step(s, answer(solver.point(s), k), mixer.at(k))
            if k == first:
                state(solver, "step", s, shape)
            k += 1
            control.watch(k, s.X)
            if guard is not None and guard.due(k):
                guard.check(k, s.X)
            recording = k % every == 0 or k == steps
            if not (recording or control.due(k)):
                continue
            error = self.error or (self.recorder.error if self.recorder else None)
            decision = control.decide(k, interrupted(), error)
            if decision.failed:
                self._fail(error)
            if decision.diverged is not None:
                k, agent = decision.diverged
                reason = f"the iterate of agent {agent} is not finite after step {k}"
                if guard is not None:
                    raise Retry(reason)
                return s, k, Outcome.DIVERGED, reason, agent
            if recording or decision.interrupted:
                stopped = self._record(k, s)
                if not_finite(self.records[-1], last=False):
                    break
            if decision.interrupted:
                return s, k, Outcome.INTERRUPTED, "", None
            if decision.checkpoint:
                self._checkpoint(k, s)
        self._fail(self.error)  # of the last call of progress
        return (s, k, *self._ending(s, k, stopped))

    def _ending(self, s: Any, k: int, stopped: bool) -> RunEnd:
        """The outcome of a run that has ended by itself; collective."""
        end = decide_outcome(
            self.records,
            self.sizes,
            f"after {k} steps",
            lambda: self.measure.diverged_agent(s.X),
            target=self.target,
            stopped=stopped,
            too_far=lambda: self._too_far(s.X, k),
            cause=lambda name, limit: likely_cause(
                self.net,
                self.problem,
                self.mixer.topology,
                self.solver,
                self.stochastic,
                self._columns(),
                name,
                limit,
                compression.limit(self.solver, self.mixer, s.X.shape[1]),
            ),
        )
        if end.outcome is Outcome.DIVERGED and self.guard is not None:
            raise Retry(end.reason)
        return end

    def _too_far(self, X: np.ndarray, k: int) -> str:
        """Why a chosen step size has failed although the metrics are finite, or ""; collective."""
        if self.guard is not None:
            far = self.guard.far(X, strict=False)
            return f"{far}, after {k} steps" if far else ""
        if self.judge is None or not (far := self.judge.far(X, strict=True)):
            return ""
        return (
            f"{far}, after {k} steps, as with {ATTEMPTS} larger step sizes: begin closer to the minimizer (x0), or give "
            "a step size or a schedule"
        )

    def _answer(self, V: np.ndarray, k: int) -> Any:
        """The gradients (or proximal points) of step `k`; if they fail on one of several ranks, zeros until the next decision.

        The other ranks wait for this one in their mixings: it goes on to the decision, where all ranks raise its exception.
        """
        if self.net.size == 1:
            return _like(self.answer(V, k), V)
        if self.error is None:
            try:
                return _like(self.answer(V, k), V)
            except Exception as error:
                self.error = error
        return np.zeros_like(V)

    def _fail(self, error: Exception | None) -> None:
        """Raise the exception of the lowest rank that has one, on all ranks."""
        try:
            self.net.agree(error)
        except Exception:
            self.common = True
            raise

    def _record(self, k: int, s: Any) -> bool:
        begun = time.perf_counter()
        uses = self.solver.uses
        metrics = {
            "step": k,
            "time": begun - self._clock,
            "rounds": self.mixer.rounds,
            "gradients": k * (uses == "gradient"),
            "prox": k * (uses == "prox"),
            **self.measure(s.X, self.mixer.messages, self.mixer.bytes),
        }
        if self.measure.failed:
            self._fail(self.measure.error)
        self.records.append(metrics)
        self.sizes.append(self.measure.size)
        if self.recorder is not None:
            self.recorder.append(k, metrics, s.X)
        if self.progress is not None and self.net.rank == 0:
            try:
                self.progress(k, self.steps, metrics)
            except Exception as error:  # raised on all ranks at the next decision
                self.error = self.error or error
        stopped = self._reached(metrics)
        self._clock += time.perf_counter() - begun
        return stopped

    def _reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether to stop; where the clock or a callable decides, rank 0 does."""
        target = self.target
        if target is None:
            return False
        if isinstance(target, Target):
            if "time" not in target.limits or self.net.size == 1:
                return target.reached(metrics)  # the other metrics have the same bits on all ranks
            return bool(
                self.net.collectives.broadcast(target.reached(metrics), 0, "the decision to stop")
            )
        stopped = False
        if self.net.rank == 0:
            try:
                stopped = bool(target(metrics))
            except Exception as error:
                if self.net.size == 1:
                    raise
                self.error = self.error or error
        stopped, failed = self.net.collectives.broadcast(
            (stopped, self.error is not None), 0, "the decision to stop"
        )
        if failed:
            self._fail(self.error)
        return bool(stopped)

    def _meta(self, record: Record, seed: int) -> dict[str, Any]:
        least = self.measure.least()
        return attributes(
            self.net,
            record,
            self.solver,
            self.mixer.topology,
            self.steps,
            self.every,
            seed,
            self.choice,
            problem=self.problem,
        ) | ({} if least is None else {"f_star": least})

    def _checkpoint(self, k: int, s: Any) -> None:
        if self.recorder is not None:
            begun = time.perf_counter()
            mine = np.array([self.mixer.bytes, self.mixer.messages])
            sent, rows = (
                mine
                if self.net.size == 1
                else self.net.collectives.gather_all(mine, "a checkpoint").sum(axis=0)
            )
            counters = np.array([begun - self._clock, self.mixer.rounds, sent, rows], float)
            self.recorder.checkpoint(k, s, counters, self.mixer.memory())
            self._clock += time.perf_counter() - begun


def _only_for(
    own_pace: bool, solver: Any, asynchronous: Mapping[str, Any], synchronous: Mapping[str, Any]
) -> None:
    """Refuse arguments that belong to solvers of the other kind."""
    for name, value in (synchronous if own_pace else asynchronous).items():
        if value is not None:
            kind, remedy = (
                ("no common steps", "its agents exchange rows in pairs, or push them")
                if own_pace
                else (
                    "common steps",
                    "delay, drop and straggler are for asynchronous solvers, such as A2CiD2",
                )
            )
            raise ValueError(
                f"{name} is given, but {type(solver).__name__} has {kind}: leave it out ({remedy})"
            )


def _judged_at_the_end(
    target: Target | Callable[[Mapping[str, float]], bool] | None, solver: Any
) -> Target | None:
    """Return the target of a solver without common steps; what would end its runs is refused."""
    if target is None:
        return None
    budget = (
        "a function"
        if callable(target)
        else next((name for name in target.limits if name in GROWING), "")
    )
    if callable(target) or budget:
        raise ValueError(
            f"stop is {budget}{'' if callable(target) else ', a budget'}, but {type(solver).__name__} has no common "
            'steps at which to stop: limit steps; {"error": 1e-8} is judged at the end'
        )
    return target


def _recorded_step_size(net: Network, record: Record) -> float:
    """The step size that the run in the file has chosen."""
    size = 0.0
    error: Exception | None = None
    if net.rank == 0:
        try:
            from ..record import read

            size = float(read(record.path).attributes["step_size"])
        except KeyError:
            error = ValueError(
                f"{record.path}: its step size was given as a number: resume with the same number"
            )
        except (OSError, ValueError) as caught:
            error = caught
    net.agree(error)
    return float(net.collectives.broadcast(size, 0, "the step size of the run"))


def _same(net: Network, arguments: Mapping[str, Any]) -> None:
    """Compare the arguments of all ranks.

    Raises
    ------
    ValueError
        On every rank, naming the argument and both sides.
    """
    if net.size == 1:
        return
    texts = [_text(value) for value in arguments.values()]
    every = net.gather_rows(np.array([texts], f"S{_TEXT}"))
    error = None
    for rank, others in enumerate(() if every is None else every):
        for name, mine, other in zip(arguments, () if every is None else every[0], others):
            if mine != other and error is None:
                error = ValueError(
                    f"rank 0 and rank {rank} call solve with different {name}: {mine.decode(errors='replace')} and "
                    f"{other.decode(errors='replace')}; every rank must pass the same"
                )
    net.agree(error)


def _text(value: Any) -> bytes:
    """What an argument is, in words that are the same on all ranks; long ones end with a fingerprint."""
    if isinstance(value, np.ndarray):
        return f"array {value.shape} #{zlib.crc32(value.tobytes()):08x}".encode()
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode()
    return text if len(text) <= _TEXT else text[: _TEXT - 12] + b"... #%08x" % zlib.crc32(text)


def _network(problem: Any, topology: Any, x0: Any) -> Network:
    """The network of as many agents as the arguments of `solve` stand for."""
    if isinstance(topology, str) or callable(topology):  # n may be known only to all ranks together
        with Network() as ranks:
            n, error = 0, None
            try:
                n = resolve.agents(problem, topology, x0)
            except (ValueError, TypeError) as caught:
                error = caught
            ranks.agree(error)
            inner = getattr(problem, "problem", problem)
            if ranks.size > 1 and hasattr(inner, "m") and not hasattr(inner, "n"):
                counts = ranks.collectives.gather_all(np.array(inner.m), "solve").tolist()
                if set(counts) != {1}:  # each rank may hold some agents, or all of them
                    raise ValueError(
                        f"the number of agents is unknown: the problems of the ranks have {counts} agents; pass a "
                        "topology with n, such as mpidec.topology.ring(n), or net=, a Network"
                    )
                n = len(counts)
    else:
        n = resolve.agents(problem, topology, x0)
    return Network(n)


def _made(
    mixing: Callable[[Mixer], Operator[StepOperator]], mixer: Mixer, net: Network
) -> Operator[StepOperator]:
    """The mixer that `mixing` returns; its errors are raised on every rank."""
    made: Operator[StepOperator] = mixer
    error: Exception | None = None
    try:
        made = mixing(mixer)
        if not isinstance(made, Operator):
            raise TypeError(
                f"mixing returned {made!r:.60}, expected a mixer derived from its argument: lambda W: W.accelerate(3)"
            )
    except (ValueError, TypeError) as caught:
        error = caught
    net.agree(error)
    return made


def _answer(
    problem: Any, solver: Any, net: Network, seed: int
) -> tuple[Callable[[np.ndarray, int], Any], Any]:
    """The function that evaluates the gradients (or proximal points) of step k, and the problem behind an oracle."""
    oracle, problem = problem, getattr(problem, "problem", problem)
    if solver.uses == "nothing" or (
        problem is None and getattr(solver, "asynchronous", False) and not solver.needs_problem
    ):
        return lambda V, k: None, problem
    if problem is None:
        raise ValueError(
            f"{type(solver).__name__} needs the {solver.uses} of a problem, but problem is None"
        )
    if solver.uses == "prox":
        if not hasattr(problem, "prox"):
            raise ValueError(
                f"{type(solver).__name__} needs problem.prox, which {type(problem).__name__} does not have"
            )
        return lambda V, k: problem.prox(V, at_step(solver, k).step_size), problem
    if hasattr(oracle, "start"):
        return oracle.start(net.agents, resolve.integer("seed", seed, 0)), problem
    return lambda X, k: problem.grad(X), problem


def _like(G: Any, V: np.ndarray) -> Any:
    """The gradients (or proximal points) at V, if there is one row for each agent."""
    if G is not None and np.shape(G) != V.shape:
        raise ValueError(
            f"the problem returned gradients (or proximal points) of shape {np.shape(G)}, expected {V.shape}"
        )
    return G


def _progress(progress: Progress | bool | None) -> Progress | None:
    return _Printed() if progress is True else progress or None


class _Printed:
    """Progress in one line for each record."""

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        self.note(
            f"step {step}/{steps}  "
            + "  ".join(
                f"{name} {metrics[name]:.3e}"
                for name in ("objective", "consensus", "error")
                if name in metrics
            )
        )

    def note(self, line: str) -> None:
        print(line, flush=True)


@contextmanager
def _closing(mixer: Any) -> Iterator[Any]:
    yield mixer
    mixer.close()  # collective, therefore not after an error on this rank only


@contextmanager
def _arithmetic(net: Network) -> Iterator[None]:
    """Context of the steps: BLAS with one thread, temporaries in the memory of the node, and no warnings of overflow."""
    from threadpoolctl import threadpool_limits

    with (
        threadpool_limits(1, user_api="blas"),
        net.memory(),
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),
    ):
        yield
