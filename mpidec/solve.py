"""Solver loop: gradient, step, record, stop."""

from __future__ import annotations

import enum
import operator
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from . import resolve
from .metrics import Metrics
from .mixing import Mixer, Network
from .mixing.operator import Operator, StepOperator
from .record.recorder import Record, Recorder
from .runtime.decisions import Control
from .runtime.launch import library

Stop = Mapping[str, float] | Callable[[Mapping[str, float]], bool]
Progress = Callable[[int, int, Mapping[str, float]], None]


class Outcome(str, enum.Enum):
    """Outcome of a run; compares equal to the plain string."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Result:
    """Result of `solve`.

    Attributes
    ----------
    X : array (m, d)
        The final iterates of the local agents.
    x : array (d,)
        Their average over all agents.
    outcome : Outcome
        "completed", "stopped" (by `stop`), "diverged" or "interrupted"; compares equal to the plain string.
    steps : int
        Steps taken; for a diverged run, the first step after which an iterate was not finite.
    metrics : dict of arrays
        One entry per record: `step`, `time` (s), `rounds`, `bytes`, `consensus`, and, if the problem provides them,
        `gradient_norm`, `objective` and `error`.
    """

    X: np.ndarray
    x: np.ndarray
    outcome: Outcome
    steps: int
    metrics: dict[str, np.ndarray] = field(repr=False)


def solve(problem: Any, solver: Any, topology: Any, *, steps: int, x0: Any = None, net: Network | None = None, seed: int = 0,
          record: str | os.PathLike | Record | None = None, every: int = 1, stop: Stop | None = None,
          progress: Progress | bool | None = None,
          mixing: Callable[[Mixer], Operator[StepOperator]] | None = None) -> Result:
    r"""Minimize :math:`f(x) = \tfrac{1}{n} \sum_i f_i(x)` over a network of n agents.

    Parameters
    ----------
    problem : problem or oracle
        The functions of the local agents, such as `mpidec.problems.LeastSquares(A[net.lo:net.hi], b[net.lo:net.hi])`, or an
        oracle that wraps them, such as `MiniBatch(problem, 32)`; `mpidec.problems.load_problem` makes one from data.  None for a
        solver that uses no gradients (`x0` is then required).
    solver : Solver, class or str
        A solver; a class is made with its defaults.  Names are those of the command line, and ``"FILE.py:NAME"``.
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
        HDF5 file for metrics, trajectory, checkpoints and the result.
    every : int
        Steps between two records.  The first and the last iterate are always recorded.
    stop : mapping or callable, optional
        `{"error": 1e-8}` stops at the first record with `error <= 1e-8`; a callable receives the metrics of each record, on rank 0
        only, and returns whether to stop.
    progress : callable or bool, optional
        Called as `progress(step, steps, metrics)` at each record, on rank 0; True prints a line instead.
    mixing : callable, optional
        Function that derives the mixer used by the solver from the mixer of the topology, such as `lambda W: W.accelerate(3)` or
        `lambda W: W.compress("top_k", fraction=0.01)`.

    Returns
    -------
    Result

    Raises
    ------
    ValueError, TypeError
        On every rank, before the first step: a wrong shape, or a topology that the solver does not support.
    OSError
        On every rank: the file could not be written.

    Notes
    -----
    Collective.  A step communicates what the solver sends; a record needs two sums over all agents, and a gather if the trajectory
    is stored.  At records, and every few steps in between, one small reduction decides for all ranks whether to continue.

    The iterates are bit-identical on any number of ranks; to this end BLAS runs with one thread during the call.

    NumPy allocates large temporaries in the memory of `Network.memory`, where mixing needs no copies.

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
    with ExitStack() as stack:
        if net is None:
            net = stack.enter_context(_network(problem, topology, x0))
        error: Exception | None = None
        try:
            resolve.oracle(problem)
            topology, solver = resolve.graph(topology, net.n), resolve.method(solver, problem)
            answer, problem = _answer(problem, solver, net, seed)
            steps, every, seed = _integer("steps", steps, 0), _integer("every", every, 1), _integer("seed", seed, 0)
            X = _rows(x0, problem, net)
            resolve.probe(problem, X)
            with warnings.catch_warnings():
                if net.rank > 0:
                    warnings.simplefilter("ignore")
                solver.check(topology.at(0) if topology.period == 1 else topology)
            reached = _stop(stop, problem)
        except (ValueError, TypeError) as caught:
            error = caught
        net.agree(error)
        plain = stack.enter_context(_closing(net.mixer(topology)))
        mixer: Operator[StepOperator] = plain if mixing is None else _made(mixing, plain, net)
        stack.enter_context(_one_blas_thread())
        stack.enter_context(net.memory())
        stack.enter_context(np.errstate(over="ignore", invalid="ignore", divide="ignore"))
        run = _Run(net, problem, solver, mixer, answer, steps, every, reached, _progress(progress))
        return run(X, Record(record) if isinstance(record, (str, os.PathLike)) else record, seed)


class _Run:
    """One run of the solver loop."""

    def __init__(self, net: Network, problem: Any, solver: Any, mixer: Operator[StepOperator],
                 answer: Callable[[np.ndarray, int], Any], steps: int, every: int,
                 reached: Callable[[Mapping[str, float]], bool], progress: Progress | None):
        self.net, self.solver, self.mixer, self.answer = net, solver, mixer, answer
        self.steps, self.every, self.reached, self.progress = steps, every, reached, progress
        self.measure = Metrics(net, problem)
        self.rows: list[list[float]] = []
        self.recorder: Recorder | None = None
        self._elapsed = 0.0

    def __call__(self, X: np.ndarray, record: Record | None, seed: int) -> Result:
        first, s = 0, self.solver.init(X, self.mixer.at(0))
        if record is not None:
            self.recorder = Recorder(self.net, record, s, self.solver.per_edge)
        try:
            if record is not None and self.recorder is not None and record.resume:
                first, s = self._resume(self.recorder, record, seed)
            elif record is not None and self.recorder is not None:
                self.recorder.create(X.shape[1:], self.measure.names, s, self.mixer.topology, self._meta(record, seed))
            with _interrupts() as interrupted:
                control = Control(self.net, record.checkpoint_seconds if record else None)
                s, k, outcome = self._loop(s, first, control, interrupted)
                self.net._drain()
        except BaseException:
            if self.recorder is not None:
                self.recorder.abandon()
            raise
        if self.recorder is not None:
            if outcome is not Outcome.DIVERGED:
                self._checkpoint(k, s)
            self.recorder.finish(s.X, str(outcome), k)
        columns = np.array(self.rows).reshape(-1, len(self.measure.names)).T
        metrics = {name: column.astype(np.int64) if name in ("step", "rounds", "bytes") else column
                   for name, column in zip(self.measure.names, columns)}
        return Result(s.X, self.net.mean(s.X), outcome, k, metrics)

    def _resume(self, recorder: Recorder[Any], record: Record, seed: int) -> tuple[int, Any]:
        """Load the last checkpoint; return its step and state, and restore the memory and the counters of the mixer."""
        first, s, (self._elapsed, rounds, sent), memory = recorder.load()
        if first > 0 and self.mixer.feedback and not memory and self.net.rank == 0:
            warnings.warn(f"{record.path}: the checkpoint of step {first} contains no error feedback memory (it was written by an "
                          "earlier version): the memory starts at zero, and the results differ from an uninterrupted run",
                          RuntimeWarning, stacklevel=4)
        self.mixer.recall(memory)
        self.mixer.counts.rounds, self.mixer.counts.bytes = int(rounds), int(sent) if self.net.rank == 0 else 0
        changed = {key: value for key, value in self._meta(record, seed).items() if key in ("ranks", "mpi", "config")}
        recorder.resume(first, changed)
        return first, s

    def _loop(self, s: Any, first: int, control: Control, interrupted: Callable[[], bool]) -> tuple[Any, int, Outcome]:
        solver, mixer, answer, steps, every = self.solver, self.mixer, self.answer, self.steps, self.every
        self._clock = time.perf_counter() - self._elapsed
        if first == 0:
            self._checkpoint(0, s)
        stopped = (first == 0 or first >= steps) and self._record(first, s)
        k = first
        step = self.net._keeping(solver.step) if solver.keeps_rows else solver.step
        while not stopped and k < steps:
            s = step(s, answer(solver.point(s), k), mixer.at(k))
            k += 1
            control.watch(k, s.X)
            recording = k % every == 0 or k == steps
            if not (recording or control.due(k)):
                continue
            decision = control.decide(k, interrupted(), self.recorder.error if self.recorder else None)
            if decision.failed:
                self.net.agree(self.recorder.error if self.recorder else None)
            if decision.diverged is not None:
                return s, decision.diverged, Outcome.DIVERGED
            if recording or decision.interrupted:
                stopped = self._record(k, s)
            if decision.interrupted:
                return s, k, Outcome.INTERRUPTED
            if decision.checkpoint:
                self._checkpoint(k, s)
        return s, k, Outcome.STOPPED if stopped else Outcome.COMPLETED

    def _record(self, k: int, s: Any) -> bool:
        begun = time.perf_counter()
        metrics = {"step": k, "time": begun - self._clock, "rounds": self.mixer.rounds, **self.measure(s.X, self.mixer.bytes)}
        self.rows.append([metrics[name] for name in self.measure.names])
        if self.recorder is not None:
            self.recorder.append(k, metrics, s.X)
        if self.progress is not None and self.net.rank == 0:
            self.progress(k, self.steps, metrics)
        stopped = bool(self.reached(metrics)) if self.net.rank == 0 else False
        if self.reached is not _never and self.net.size > 1:
            stopped = self.net.comm.bcast(stopped)
        self._clock += time.perf_counter() - begun
        return stopped

    def _checkpoint(self, k: int, s: Any) -> None:
        if self.recorder is not None:
            begun = time.perf_counter()
            sent = self.net.comm.allreduce(self.mixer.bytes)
            counters = np.array([begun - self._clock, self.mixer.rounds, sent], float)
            self.recorder.checkpoint(k, s, counters, self.mixer.memory())
            self._clock += time.perf_counter() - begun

    def _meta(self, record: Record, seed: int) -> dict[str, Any]:
        from ._version import __version__
        described = (f"# from mpidec.solve: {self.solver!r} over {self.mixer.topology!r}, {self.steps} steps, every {self.every}\n")
        return {"mpidec": __version__, "config": record.config or described, "seed": seed, "agents": self.net.n,
                "ranks": self.net.size, "mpi": library(),
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds")}


def _network(problem: Any, topology: Any, x0: Any) -> Network:
    """The network of as many agents as the arguments of `solve` stand for."""
    if isinstance(topology, str) or callable(topology):     # n may be known only to all ranks together
        with Network() as ranks:
            n, error = 0, None
            try:
                n = resolve.agents(problem, topology, x0)
            except (ValueError, TypeError) as caught:
                error = caught
            ranks.agree(error)
            inner = getattr(problem, "problem", problem)
            if ranks.size > 1 and hasattr(inner, "m") and not hasattr(inner, "n"):
                counts = ranks.comm.allgather(inner.m)
                if set(counts) != {1}:                      # each rank may hold some agents, or all of them
                    raise ValueError(f"the number of agents is unknown: the problems of the ranks have {counts} agents; pass a "
                                     "topology with n, such as mpidec.topology.ring(n), or net=, a Network")
                n = len(counts)
    else:
        n = resolve.agents(problem, topology, x0)
    return Network(n)


def _made(mixing: Callable[[Mixer], Operator[StepOperator]], mixer: Mixer, net: Network) -> Operator[StepOperator]:
    """The mixer that `mixing` returns; its errors are raised on every rank."""
    made: Operator[StepOperator] = mixer
    error: Exception | None = None
    try:
        made = mixing(mixer)
        if not isinstance(made, Operator):
            raise TypeError(f"mixing returned {made!r:.60}, expected a mixer derived from its argument: lambda W: W.accelerate(3)")
    except (ValueError, TypeError) as caught:
        error = caught
    net.agree(error)
    return made


def _answer(problem: Any, solver: Any, net: Network, seed: int) -> tuple[Callable[[np.ndarray, int], Any], Any]:
    """The function that evaluates the gradients (or proximal points) of step k, and the problem behind an oracle."""
    oracle, problem = problem, getattr(problem, "problem", problem)
    if solver.uses == "nothing":
        return lambda V, k: None, problem
    if problem is None:
        raise ValueError(f"{type(solver).__name__} needs the {solver.uses} of a problem, but problem is None")
    if solver.uses == "prox":
        if not hasattr(problem, "prox"):
            raise ValueError(f"{type(solver).__name__} needs problem.prox, which {type(problem).__name__} does not have")
        return lambda V, k: problem.prox(V, solver.step_size), problem
    if hasattr(oracle, "start"):
        return oracle.start(net.agents, _integer("seed", seed, 0)), problem
    return lambda X, k: problem.grad(X), problem


def _integer(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, expected an integer >= {least}")
    return number


def _rows(x0: Any, problem: Any, net: Network) -> np.ndarray:
    """The initial rows of the local agents."""
    if problem is None and x0 is None:
        raise ValueError("neither problem nor x0 is given: without a problem, pass x0 of shape (n, d)")
    if problem is not None and problem.m != net.m:
        raise ValueError(f"rank {net.rank}: the problem has {problem.m} agents, but this rank hosts {net.m} (agents "
                         f"{net.lo}:{net.hi} of {net.n}): pass the data of the local agents, A[net.lo:net.hi], or "
                         "load_problem(..., net=net)")
    d = np.shape(x0)[-1] if problem is None and np.ndim(x0) else getattr(problem, "d", 1)
    if x0 is None:
        return np.zeros((net.m, d))
    try:
        x0 = np.asarray(x0, float)
    except (TypeError, ValueError):
        raise ValueError(f"x0 is {x0!r:.60}, expected numbers of shape ({d},) or ({net.n}, {d})") from None
    if x0.shape not in ((d,), (net.n, d)):
        raise ValueError(f"x0 has shape {x0.shape}, expected ({d},), common to all agents, or ({net.n}, {d})")
    if not np.isfinite(x0).all():
        raise ValueError(f"x0 is not finite in {np.count_nonzero(~np.isfinite(x0))} of {x0.size} entries, the first at index "
                         f"{tuple(int(i) for i in np.argwhere(~np.isfinite(x0))[0])}")
    return np.tile(x0, (net.m, 1)) if x0.ndim == 1 else np.array(x0[net.lo:net.hi])


def _never(metrics: Mapping[str, float]) -> bool:
    return False


def _stop(stop: Stop | None, problem: Any) -> Callable[[Mapping[str, float]], bool]:
    if stop is None:
        return _never
    if callable(stop):
        return stop
    if not isinstance(stop, Mapping):
        raise TypeError(f'stop is {stop!r}, expected a mapping such as {{"error": 1e-8}} or a callable')
    known = {"consensus", "gradient_norm", "objective", "time", "bytes", "rounds"}
    known |= {"error"} if getattr(problem, "x_star", None) is not None else set()
    for name, limit in stop.items():
        if name not in known:
            reason = " (the problem has no x_star)" if name == "error" else ""
            raise ValueError(f"stop: unknown metric {name!r}{reason}, expected one of {', '.join(sorted(known))}")
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not np.isfinite(limit):
            raise ValueError(f"stop[{name!r}] is {limit!r}, expected a finite number")
    growing = {"time", "bytes", "rounds"}
    limits = dict(stop)
    return lambda metrics: all(metrics[name] >= limit if name in growing else metrics[name] <= limit
                               for name, limit in limits.items())


def _progress(progress: Progress | bool | None) -> Progress | None:
    if progress is True:
        return lambda step, steps, metrics: print(
            f"step {step}/{steps}  " + "  ".join(f"{name} {metrics[name]:.3e}" for name in
                                                 ("objective", "consensus", "error") if name in metrics), flush=True)
    return progress or None


@contextmanager
def _closing(mixer: Any) -> Iterator[Any]:
    yield mixer
    mixer.close()                                   # collective, therefore not after an error on this rank only


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    from threadpoolctl import threadpool_limits
    with threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Context that defers Ctrl-C: the first one takes effect at the next common decision, the second one raises."""
    interrupted = False

    def note(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
