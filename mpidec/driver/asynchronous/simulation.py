"""Simulation of asynchronous methods on a queue of events, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ..._validation import integer, number
from ..._words import warn
from ...comm.mixing.network import Network
from ...comm.runtime.collectives import Collectives
from ...comm.runtime.interrupts import interrupts
from ...comm.runtime.launch import end_as_interrupted
from ...comm.runtime.mpi import MPI
from ...exceptions import Interrupted
from ...problems.agents import of_one
from ...problems.base import Problem
from ...record.recorder import Record
from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ...solvers.base import Solver
from ...topology import Schedule, Topology, mixing_constants
from ..arguments import (
    Delay,
    as_oracle,
    as_record,
    as_solver,
    as_topology,
    check_callbacks,
    check_hosted,
    check_real,
    explained,
    infer_agents,
    initial_rows,
    problem_of,
)
from ..attempts import attempts
from ..metrics import ASYNCHRONOUS, Metrics, Own, checked as checked_metrics
from ..outcome import (
    Outcome,
    Stop,
    StopFunction,
    Target,
    not_finite,
    said_by,
    target_of,
)
from ..plan import Progress, as_progress
from ..provenance import attributes
from ..stepsize import Choice, Guard, Task, requested_rule, with_size
from .attempt import AsyncAttempt, lost_mass
from .clocks import (
    AVERAGING,
    GRADIENT,
    checked,
    delays,
    losses,
)
from .events import Events
from .files import AsyncFile, failing, with_counters
from .result import SIMULATED, AsyncResult, LocalAgents, histogram
from .search import AsyncSearch
from .simulator import PairwiseSimulator, PushSimulator

if TYPE_CHECKING:
    from ...problems.oracles import Oracle, OracleLike
    from ..arguments import TopologyLike


@explained
def simulate(
    problem: Problem | OracleLike | None,
    solver: Solver | type[Solver] | str,
    topology: TopologyLike,
    *,
    steps: int | None = None,
    events: np.ndarray | None = None,
    x0: ArrayLike | None = None,
    seed: int = 0,
    delay: Delay | None = None,
    drop: float = 0.0,
    rates: ArrayLike | None = None,
    every: float = 10,
    stop: Stop | None = None,
    record: str | os.PathLike[str] | Record | None = None,
    progress: Progress | bool | None = None,
    metrics: Mapping[str, Own] | None = None,
) -> AsyncResult:
    r"""Run an asynchronous method on a queue of events, in this process; the result is a function
    of the arguments.

    Agents wake up, or compute gradients, by Poisson clocks of their own; neighbours of a pairwise
    method average by Poisson clocks of the edges.

    Parameters
    ----------
    problem : problem, oracle or None
        The functions of all n agents.  None for averaging alone, of the rows of `x0`.
    solver : Solver, class or str
        An asynchronous solver, such as `mpidec.solvers.A2CiD2(0.1)`.  `step_size="auto"` is
        searched for in a simulation of the same events with a linear model of the problem; "safe"
        is a bound from the largest smoothness constant of any agent.
    topology : Topology, str, networkx graph, matrix or function
        The graph; its weights are not used.
    steps : int, optional
        Events (wake-ups, or gradients) of an agent on average.  The run ends at the time `steps`
        divided by the mean of `rates`.
    events : structured array, optional
        In place of `steps`: the events themselves, with the fields `time`, `kind` (0: gradient or
        wake-up of agent i, 1: averaging of i and j), `i` and `j`, in the order of time.
    x0 : array (d,) or (n, d), optional
        Initial point, common to all agents or one per agent; zeros by default.
    seed : int
        Seed of all random numbers.  Those of an agent belong to it and to its own count of events.
    delay : float, (low, high) or callable, optional
        Time that a message is on its way: a constant, uniform, or `delay(rng, i, j)`.  For pairwise
        methods, the time from the exchange to the end of the averaging; a pair of which one is busy
        does not average.
    drop : float
        Probability that a message is lost; for pairwise methods, that an averaging does not happen.
    rates : float or array (n,), optional
        Wake-ups, or gradients, of each agent in a unit of time; by default 1.  Small ones are
        stragglers: 1 / (1 + T) is the rate of an agent that sleeps for T units at each step.  (On
        ranks, where a step takes the time that it takes, `mpidec.solve` has `straggler`, seconds.)
    every : float
        Steps between two records; units of time with `events`.
    stop : mapping or callable, optional
        As for `mpidec.solve`: `{"error": 1e-8}` stops at the first record with `error <= 1e-8`; the
        counters `time`, `events`, `gradients`, `messages` and `bytes` are budgets.
    record : path or Record, optional
        HDF5 file for metrics, trajectory and the result, as for `mpidec.solve`.
    progress : callable or bool, optional
        Called as `progress(step, steps, metrics)` at each record; True prints a line instead.
    metrics : dict {name: callable}, optional
        Metrics of one's own, as for `mpidec.solve`.

    Returns
    -------
    AsyncResult
        For pairwise methods the states after the last event of each agent, not integrated to the
        end of the run.  For push methods the messages that are on their way at the end are
        delivered and collected.

    Raises
    ------
    ValueError, TypeError
        A wrong argument, or a topology that the solver does not support.
    Interrupted
        Ctrl-C has ended the run at a record; `result` of the exception is what it has reached.

    Notes
    -----
    Not collective: under MPI, each process that calls it simulates alone.  The averagings of a
    pairwise method have the rates `mpidec.topology.edge_rates(topology, solver.rate)`; its time is
    that of the queue.  A problem of the user's own without ``grad(X, agents)`` is evaluated for all
    agents at each event.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> result = mpidec.simulate(
    ...     mpidec.problems.LeastSquares(A, b),
    ...     mpidec.solvers.RunningSumTracking(0.5),
    ...     mpidec.topology.ring(4),
    ...     steps=1000,
    ...     delay=(0, 1),
    ...     drop=0.2,
    ...     rates=[0.2, 1, 1, 1],
    ... )
    >>> result.x.round(9).tolist(), str(result.outcome), bool(result.counts[0] < result.counts[1] / 3)
    ([2.0], 'completed', True)
    """
    if (steps is None) == (events is None):
        raise ValueError(
            f"{'neither steps nor events is' if steps is None else 'both steps and events are'} "
            "given, expected one "
            "of them: steps=100, or events=, a table"
        )
    oracle = as_oracle(problem)
    functions = problem_of(oracle)
    n = infer_agents(problem, topology, x0)
    method = as_asynchronous(as_solver(solver, oracle))
    graph = as_topology(topology, n, solver=method)
    seed = integer(seed, "seed", least=0)
    net = SerialNetwork(n)
    check_hosted(oracle, net)
    X = initial_rows(x0, functions, net)
    check_real(method, X)
    check_callbacks(functions, X)
    method.check(graph)
    static = graph.at(0)
    if functions is None and method.needs_problem:
        raise ValueError(
            f"{type(method).__name__} needs the gradients of a problem, but problem is None; for "
            "averaging, use "
            "AsyncPushSum or PairwiseGossip"
        )
    pairwise = isinstance(method, PairwiseSolver)
    number(every, "every", above=0)
    own = checked_metrics(metrics, functions)
    target = target_of(stop, functions, ASYNCHRONOUS, own)
    pace = checked_rates(rates, n)
    if rates is not None and events is not None:
        raise ValueError("rates is given, but the events are: leave out one of them")
    if rates is not None and pairwise and functions is None:
        raise ValueError(
            "rates are those of gradients, but problem is None; the averagings have the rate of "
            "the solver"
        )
    delays(delay, seed), losses(drop, seed)  # checked
    warn_of_losses(method, drop)
    method, end = prepared(method, static), 0.0
    if events is not None:
        kinds = (
            ((GRADIENT, AVERAGING) if functions is not None else (AVERAGING,))
            if pairwise
            else (GRADIENT,)
        )
        table = checked(
            events,
            static,
            kinds,
            type(method).__name__ + " without a problem" * (functions is None),
        )
        happening = Events.of_table(table, delay, drop, seed)
        end = float(table["time"][-1]) if len(table) else 0.0
    elif steps is not None:
        clocks = np.zeros(n) if pairwise and functions is None else pace
        happening = Events.of_clocks(method, static, clocks, delay, drop, seed)
        end = integer(steps, "steps", least=0) * happening.unit
    saved = as_record(record)
    if saved is not None:
        saved.check()
        if saved.resume:
            raise ValueError(f"{os.fspath(saved.path)}: {SIMULATED}")
    from threadpoolctl import threadpool_limits

    simulation = _Simulation(
        net,
        functions,
        oracle,
        graph=graph,
        happening=happening,
        X0=X,
        seed=seed,
        end=end,
        every=every,
        target=target,
        saved=saved,
        progress=as_progress(progress),
        drop=drop,
        metrics=own,
    )
    with threadpool_limits(1, user_api="blas"):
        if oracle is None or requested_rule(method) is None:
            return simulation(method)
        tol = stop.get("error", 1.0) if isinstance(stop, Mapping) else 1.0
        total = round(end / happening.unit)
        task = Task(net, oracle, method, X0=X, steps=total, seed=seed, tol=tol)
        search = AsyncSearch(task, method, static, happening)
        return attempts(
            net,
            method,
            search,
            search(),
            lambda choice, guard, last: simulation(
                with_size(method, choice.step_size), choice, guard, last
            ),
        )


@dataclass(frozen=True)
class _Simulation:
    """A simulation but for its step size; see `simulate`."""

    net: SerialNetwork
    functions: Problem | None
    oracle: Oracle | None
    graph: Topology | Schedule
    happening: Events
    X0: np.ndarray
    seed: int
    end: float
    every: float
    target: Target | StopFunction | None
    saved: Record | None
    progress: Callable[[int, int, Mapping[str, float]], None] | None
    drop: float
    metrics: Mapping[str, Own]

    def __call__(
        self,
        method: PairwiseSolver | PushSolver,
        choice: Choice | None = None,
        guard: Guard | None = None,
        last: bool = True,
    ) -> AsyncResult:
        """The result with a step size; a `guard` ends the run with `Retry`, unless it is the
        last attempt.
        """
        net, n, happening, end = self.net, self.net.n, self.happening, self.end
        unit, total, oracle = happening.unit, round(end / happening.unit), self.oracle
        gradient = None if oracle is None else of_one(oracle.gradients(range(n), self.seed))
        agents = LocalAgents.of(method, self.graph.at(0), self.X0, range(n))
        attempt = AsyncAttempt(
            net=net,
            oracle=oracle,
            topology=self.graph,
            target=self.target,
            drop=self.drop,
            solver=method,
            agents=agents,
            measure=Metrics(net, self.functions, self.metrics),
            choice=choice,
            guard=guard,
            last=last,
        )
        simulator = happening.simulator(method, agents, gradient)
        rows: list[dict[str, float]] = []
        sizes: list[float] = []
        with (
            ExitStack() as stack,
            np.errstate(over="ignore", invalid="ignore", divide="ignore"),
        ):
            file = self._file(attempt, stack, total)
            stack.enter_context(failing(None if file is None else file.recorder))
            interrupted = stack.enter_context(interrupts())

            def reached(t: float) -> bool:
                """Measure and record the iterates at time `t`; whether they have reached the
                target.
                """
                row = self._row(attempt, simulator, t)
                rows.append(row)
                sizes.append(attempt.measure.size)
                if file is not None:
                    file.append(row, agents.stacks["x"])
                    net.agree(file.recorder.error)
                if self.progress is not None:
                    self.progress(int(row["step"]), total, dict(row))
                if guard is not None and not last and row["step"] > 0:
                    guard.check(int(row["step"]), agents.stacks["x"])
                target = self.target
                if target is None:
                    return False
                if isinstance(target, Target):
                    return bool(target.reached(row))
                return said_by(target, row)

            k, t, stopped, halted = 0, -1.0, False, False
            if end > 0:
                stopped, halted = reached(0.0), interrupted()
            while not (stopped or halted or t == end or (k and not_finite(rows[-1], last=False))):
                k += 1
                t = k * (self.every * unit)
                t = t if t < end * (1 - 1e-12) else end  # not two that rounding errors separate
                simulator.run(t)
                if t == end:
                    simulator.finish()
                stopped, halted = reached(t), interrupted()
            simulator.finish()
            moment = f"at time {rows[-1]['time']:g}"
            judged = attempt.judge(rows, sizes, moment, stopped=stopped, interrupted=halted)
            attempt.retry(judged)
            counts = np.array([s.k for s in agents.states])
            averagings, staleness = dict(simulator.averagings), histogram(simulator.staleness)
            result = attempt.result(rows, judged, counts, averagings, staleness)
            if file is not None:
                file.finish(result)
        if judged.outcome is Outcome.INTERRUPTED:
            end_as_interrupted()
            raise Interrupted(result, self.saved)
        return result

    def _file(self, attempt: AsyncAttempt, stack: ExitStack, total: int) -> AsyncFile | None:
        """The file of an attempt, if the run is recorded; `stack` closes its network."""
        if self.saved is None:
            return None
        alone = stack.enter_context(Network(self.net.n, comm=MPI.COMM_SELF))
        meta = attributes(
            alone,
            self.saved,
            attempt.solver,
            topology=self.graph,
            steps=total,
            every=self.every,
            seed=self.seed,
            choice=attempt.choice,
            function="simulate",
            problem=self.functions,
        )
        file = AsyncFile(
            alone,
            self.saved,
            attempt.solver,
            topology=self.graph,
            measure=attempt.measure,
            agents=attempt.agents,
            meta=meta | {"clock": "simulated"},
        )
        file.begin(attempt.names, int(total / self.every) + 2)
        return file

    def _row(
        self, attempt: AsyncAttempt, simulator: PairwiseSimulator | PushSimulator, t: float
    ) -> dict[str, float]:
        """The record of the time `t`."""
        step = int(t / self.happening.unit + 1e-9)
        return with_counters(
            attempt.measure.at(step)(attempt.agents.stacks["x"]),
            step,
            t,
            events=simulator.events,
            gradients=simulator.gradients,
            messages=simulator.messages,
            message_bytes=attempt.agents.message_bytes,
        )


def as_asynchronous(solver: Solver) -> PairwiseSolver | PushSolver:
    """Return `solver`, refused with a TypeError if it is not asynchronous."""
    if not isinstance(solver, (PairwiseSolver, PushSolver)):
        raise TypeError(
            f"{type(solver).__name__} takes common steps: run it with mpidec.solve; asynchronous "
            "solvers are A2CiD2, "
            "AsyncPushSum, PairwiseGossip and RunningSumTracking"
        )
    return solver


def warn_of_losses(solver: PairwiseSolver | PushSolver, drop: float) -> None:
    """Warn if lost messages are lost mass."""
    if told := lost_mass(solver, drop):
        warn(told)


def prepared(
    solver: PairwiseSolver | PushSolver, topology: Topology
) -> PairwiseSolver | PushSolver:
    """Return the asynchronous solver with numbers for the parameters that depend on the graph.

    Examples
    --------
    >>> import mpidec
    >>> prepared(mpidec.solvers.A2CiD2(0.1), mpidec.topology.complete(2)).eta
    1.0
    """
    if isinstance(solver, PairwiseSolver):
        return solver.prepared(partial(mixing_constants, topology))
    return solver


class SerialNetwork:
    """All agents in this process: the `Reductions` of a simulation."""

    def __init__(self, n: int):
        self.n = self.m = self.hi = n
        self.lo = self.rank = 0
        self.size = 1
        self.collectives = Collectives(MPI.COMM_SELF)

    def sum(self, X: np.ndarray) -> np.ndarray:
        """The sum of the rows."""
        return np.asarray(X.sum(axis=0))

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The average of the rows."""
        return np.asarray(X.mean(axis=0))

    def gather(self, X: np.ndarray) -> np.ndarray:
        """All rows."""
        return X

    def agree(self, error: Exception | None = None) -> None:
        """Raise the error, if there is one."""
        if error is not None:
            raise error


def checked_rates(rates: ArrayLike | None, n: int) -> np.ndarray:
    try:
        pace = np.asarray(1.0 if rates is None else rates, float)
    except (TypeError, ValueError):
        pace = np.array(np.nan)
    if (
        pace.shape not in ((), (n,))
        or not np.isfinite(pace).all()
        or (pace < 0).any()
        or not pace.any()
    ):
        raise ValueError(
            f"rates is {rates!r:.60}, expected a number > 0, or {n} numbers >= 0, of which some "
            "are > 0"
        )
    return np.array(np.broadcast_to(pace, (n,)))
