"""`mpidec.solve`: arguments checked on all ranks, then a synchronous or an asynchronous run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from numpy.typing import ArrayLike

from .._validation import choice, integer, number
from ..comm.mixing import Network
from ..comm.runtime import end_as_interrupted, on_all_ranks
from ..exceptions import Interrupted, ResumeError
from ..record import Record
from ..solvers import Solver
from ..solvers.internals import Asynchronous
from .answers import gradients_for
from .arguments import (
    as_oracle,
    as_record,
    as_solver,
    as_topology,
    check_callbacks,
    check_equal,
    check_hosted,
    check_minimizer,
    check_step_size,
    explained,
    in_words,
    initial_rows,
    known_minimizer,
    network_of_run,
    problem_of,
)
from .asynchronous.draws import losses
from .asynchronous.dropping import Dropping
from .asynchronous.events import Events
from .asynchronous.prepared import check_queue, checked_rates, pauses
from .asynchronous.ranks import run as run_on_ranks
from .asynchronous.simulated import run as simulated
from .attempts import attempted
from .loop import once
from .metrics import Own, checked, counters_of
from .outcome import Outcome as Outcome, Stop, target_of
from .plan import Mixing, Plan, Progress as Progress, Queue, arithmetic, as_progress
from .result import Result as Result
from .runs import check_runs
from .survivors import Loader, continued

if TYPE_CHECKING:
    from ..problems import OracleLike, Problem
    from ..problems.internals import Gradients
    from ..topology import Schedule, Topology
    from .arguments import Delay, TopologyLike


@explained
def solve(
    problem: Problem | OracleLike | Loader | None,
    solver: Solver | type[Solver] | str,
    topology: TopologyLike,
    *,
    steps: int | None = None,
    x0: ArrayLike | None = None,
    net: Network | None = None,
    seed: int = 0,
    record: str | os.PathLike[str] | Record | None = None,
    every: float = 10,
    stop: Stop | None = None,
    progress: Progress | bool | None = None,
    mixing: Mixing | None = None,
    delay: Delay | None = None,
    drop: float = 0.0,
    straggler: Mapping[int, float] | None = None,
    rates: ArrayLike | None = None,
    metrics: Mapping[str, Own] | None = None,
    clock: Queue | None = None,
    runs: int = 1,
    on_failure: Literal["end", "continue", "drop"] = "end",
) -> Result:
    r"""Minimize :math:`f(x) = \tfrac{1}{n} \sum_i f_i(x)` over a network of n agents.

    Parameters
    ----------
    problem : problem or oracle
        The functions of the local agents, such as `mpidec.problems.LeastSquares(A[net.lo:net.hi],
        b[net.lo:net.hi])`, or an oracle that wraps them, such as `MiniBatch(problem, 32)`;
        `mpidec.problems.load_problem` makes one from data.  None for a solver that uses no
        gradients (`x0` is then required).  With `on_failure="continue"` a function
        `loader(agents)`, which returns that of the agents of a range.
    solver : Solver, class or str
        A solver; a class is made with its defaults.  Names are those of the command line, and
        ``"FILE.py:NAME"``.  Its step size is a number; "auto" (the default), found before the first
        step (see Notes), or "safe"; or a function of the step k, such as the schedule
        `mpidec.solvers.InverseSqrt()`.
    topology : Topology, Schedule, str, networkx graph, matrix or function
        The graph, or sequence of graphs, of the n agents: also by name, as a networkx graph (with
        Metropolis weights), as a stochastic matrix (rows are receivers), or as a function of n.
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
        `mpidec.Record(path, replace=True)` replaces it, and `Record(path, resume=True)` continues
        its run, with the same settings.
    every : int
        Steps between two records.  The first and the last iterate are always recorded.
    stop : mapping or callable, optional
        `{"error": 1e-8}` stops at the first record with `error <= 1e-8`, `{"error_rms": 1e-8,
        "consensus": 1e-9}` where both hold; counters are budgets: `{"bytes": 1e9}` stops at the
        first record with `bytes >= 1e9`, and `{"accuracy": 0.95}` at one with `accuracy >= 0.95`.
        A callable receives the metrics of each record, on rank 0 only, and returns whether to stop.
        Asynchronous agents on ranks take a few more steps until all of them know.
    progress : callable or bool, optional
        Called as `progress(step, steps, metrics)` at each record, on rank 0; True prints a line
        instead.  Of asynchronous solvers the metrics are the time and the events that rank 0 knows
        of.
    mixing : callable, optional
        Function that derives the mixer used by the solver from the mixer of the topology, such as
        `lambda W: W.accelerate(3)` or `lambda W: W.compress("top_k", fraction=0.01)`.
    delay : float, (low, high) or callable, optional
        For asynchronous solvers: seconds that a message is held back before it leaves, as for
        `mpidec.simulate`.
    drop : float
        Probability that a message is lost; for synchronous solvers that of `W.lossy`.
    straggler : dict {agent: seconds}, optional
        How long agents sleep at each of their steps.  The iterates of a
        synchronous solver are unchanged; only the wall time grows.
    rates : float or array (n,), optional
        For asynchronous solvers: relative speeds of the agents.  On ranks those of less than the
        largest rate r sleep (r / rate - 1) times as long as each of their steps takes.
    metrics : dict {name: callable}, optional
        User-defined metrics: ``f(X, agents, k)`` receives the rows of the local agents, (m, d),
        their numbers among all, a range, and the step, and returns one number per local agent,
        (m,). The average over all agents is recorded, and `stop` may name it: smaller
        values are better, and NaN and infinity are accepted.  With `record`, they are also called
        near `x0`, to be recognized by a resume.
    clock : mpidec.Queue, optional
        Runs an asynchronous solver on a queue of events, in each process that calls it alone, as
        `mpidec.simulate` does, instead of on the ranks in wall time.
    runs : int
        Number of independent runs that take their steps together, of a synchronous solver: run r
        has the iterates that it has alone with the seed ``seed + r`` (of gradients; the noise of
        links and random codecs have their own seeds, plus r).  See Notes.
    on_failure : {"end", "continue", "drop"}
        With "continue" the run outlives ranks that die: those that are left load the problems of
        their agents, and take the steps since the last copy again, with the same results.  Copies
        are made about each half second, in the memory of two ranks; without one the run goes on
        from the last checkpoint of `record`, or begins again.  With "drop" the agents of an
        asynchronous solver go on without those that have died.  Both need Open MPI, and
        ``mpirun --with-ft ulfm``.

    Returns
    -------
    Result
        For asynchronous solvers an `mpidec.driver.asynchronous.AsyncResult`.

    Raises
    ------
    ValueError, TypeError
        On every rank, before the first step: a wrong shape, or a topology that the solver does not
        support.
    OSError
        On every rank: the file exists, or could not be written.
    RanksLost
        With `on_failure`: too few ranks are left, as in one half of a network that has come apart;
        with "drop" also when ranks die before the first event.
    Interrupted
        On every rank, a `KeyboardInterrupt`: Ctrl-C has ended the run after a step.  The file is
        complete, with the outcome "interrupted", and `result` of the exception is what the run has
        reached.  A second Ctrl-C ends the run at once.
    Exception
        An exception of the problem or the solver on one rank is raised on all ranks.  What is
        recorded is written, with the outcome "failed" and the exception's text.  After an exception
        of the solver the ranks are no longer synchronized: create a new Network.

    Notes
    -----
    Collective.  A step communicates what the solver sends; a record needs two sums over all agents,
    and a gather if the trajectory is stored.  At records, and every few steps in between, one small
    reduction decides for all ranks whether to continue.

    A run diverges when an iterate is not finite after some step (found exactly, with its agent),
    when a metric that is not user-defined is not finite at a record (an objective of +inf only at
    the last one), or when its last record is an explosion: the objective has grown by 1e6 and the
    iterates by 1e3.  Explosions are judged at the end only, so that no run ends early that would
    have come back.

    The iterates have the dtype of the problem's data, float32 or float64 (complex64 or complex128),
    or of `x0` if the problem has no `dtype`; so have gradients, what is sent, and what is in the
    file.  Metrics are computed in float64 from these iterates, and so are minimizers and the search
    for a step size.

    Complex rows are sent and recorded as such.  Gradients are those with :math:`f(x + h) = f(x) +
    \mathrm{Re}\, g^* h + \dots`, and norms those of moduli.  Codecs, metrics and the search for a
    step size take rows as pairs of real and imaginary parts.  Asynchronous solvers refuse them:
    `mpidec.problems.RealView` makes such pairs of a problem.

    The iterates are bit-identical on any number of ranks; to this end BLAS runs with one thread
    during the call.

    NumPy allocates large temporaries in the memory of `Network.memory`, where mixing needs no
    copies.

    `step_size="auto"` races step sizes in a linear model of the gradients at an estimate of the
    minimizer, through the solver's own steps: the fastest one for exact methods, and the one of
    least error after `steps` steps for methods with bias, for schedules and for random gradients.
    The search sums over all agents, which an experiment can and a deployed network cannot;
    `step_size="safe"` is a bound that needs only the largest smoothness constant. The choice is
    `Result.step_size`, and `Result.choice` has the table. A run that does not converge with it
    begins again with a smaller one, with a `RuntimeWarning`; so does a resumed one, unless it is
    resumed with `changed=True`.

    A checkpoint contains the state of the solver, the counters, and the memory of a mixer with
    error feedback: a resumed run is bit-identical to an uninterrupted one, on any number of ranks.
    A checkpoint without that memory (of other mixings) is resumed with zero memory and
    a `RuntimeWarning`; the run then converges along another path.

    With `on_failure="continue"` each attempt has a network of its own, of as many agents as `net`,
    the topology or `x0` says.  After a death `net`, and every other
    network of the ranks, is closed, and `Network()` makes one of the ranks that are left.

    With `on_failure="drop"` all agents L that are left pause after a death, take what has arrived
    at them, take back what the dead have not read (on another node: what has not left), and go on
    from their iterates, on the edges between them (of a topology given by its name, or as a
    function of n, on that of as many agents).  The mass of the others is lost, and messages that
    are under way between nodes.  With M the sum of the masses w that are left,

    .. math:: w_i \leftarrow \frac{|L|}{M} w_i, \qquad u_i \leftarrow \frac{|L|}{M} u_i, \qquad i \in L

    so that no estimate :math:`u_i / w_i` changes, and the masses sum to the number of agents, as at
    the beginning: otherwise the steps of the average would be longer for ever.  What was lost, of n
    at first, is `AsyncResult.lost_mass`.  Only push-sum has masses, others count 1 an agent;
    gradient tracking begins its sums anew, so that it converges to the minimizer of the sum over L.
    Records are those of the agents in L from the beginning of the run on, rows of the others NaN in
    the file; errors stay distances from the minimizer of all.  A file is resumed with all agents,
    from its last checkpoint before the death.

    With `runs` R, `Result.X` has the shape (m, R, d) and `Result.x` (R, d).  The metrics are means
    over the runs, of norms the roots of mean squares (see `mpidec.driver.runs.MetricsOfRuns`), and
    the target of `stop` is one of these means; `NAME_low` and `NAME_high` are the 10 % and 90 %
    quantiles of the runs.  `bytes` are the R-th part of all: weights (push-sum, FROST) and counts
    (RelaySGD), which are those of all runs, are sent once.  The step size is one for all runs:
    "auto" finds that of the first one.  Solvers and mixings that compute with whole rows, solvers
    that take samples, and runs in which nothing is random are refused.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> result = mpidec.solve(
    ...     mpidec.problems.LeastSquares(A, b),
    ...     mpidec.solvers.ExactDiffusion(step_size=0.5),
    ...     mpidec.topology.ring(4),
    ...     steps=200,
    ... )
    >>> result.x.round(9).tolist(), str(result.outcome)
    ([2.0], 'completed')
    """
    if choice(on_failure, "on_failure", ("end", "continue", "drop")) == "continue":
        again = partial(
            solve,
            solver=solver,
            topology=topology,
            steps=steps,
            x0=x0,
            seed=seed,
            every=every,
            stop=stop,
            progress=progress,
            mixing=mixing,
            delay=delay,
            drop=drop,
            straggler=straggler,
            rates=rates,
            metrics=metrics,
            clock=clock,
            runs=runs,
        )
        return continued(again, problem, net, topology, x0, as_record(record))
    problem = cast("Problem | OracleLike | None", problem)
    with ExitStack() as stack:
        own = network_of_run("solve", net, problem, topology, x0, alone=clock is not None)
        net = stack.enter_context(own)
        with on_all_ranks(net):
            saved = _checked_record(record, net)
            oracle = as_oracle(problem)
            functions = problem_of(oracle)
            method = as_solver(solver, oracle)
            runs = integer(runs, "runs")
            check_runs(runs, method)
            graph = as_topology(topology, net.n, solver=method)
            _check_clock(method, clock, net, steps)
            _refuse(method, delay=delay, rates=rates, mixing=mixing)
            if on_failure == "drop":
                _check_drop(method, clock)
            seed = integer(seed, "seed", least=0)
            every = _checked_every(every, clock, saved)
            check_hosted(oracle, net)
            gradient = gradients_for(method, oracle, net.agents, seed)
            X = initial_rows(x0, functions, net)
            check_callbacks(functions, X, net.lo, method.needs.problem)
            if functions is not None:
                check_step_size(method)
            _check_graph(method, graph, net)
            more, known = checked(metrics, functions), known_minimizer(functions, net.n)
            target = target_of(stop, functions, counters_of(method, clock), more)
            if clock is None:
                _refuse_memory(method, saved, gradient)
            pauses(straggler, net.n), losses(drop, seed), checked_rates(rates, net.n)
            events = None
            if clock is not None:
                events = Events.of_queue(
                    method,
                    graph.at(0),
                    clock.events,
                    problem=functions,
                    rates=rates,
                    straggler=straggler,
                    delay=delay,
                    drop=drop,
                    seed=seed,
                )
            if events is not None and events.end is not None:
                steps = events.steps
            steps = integer(steps, "steps", least=0)  # type: ignore[arg-type]
        check_equal(
            net,
            {
                "solver": method,
                "oracle": in_words(oracle),
                "steps": steps,
                "every": every,
                "seed": seed,
                "runs": runs,
                "stop": stop,
                "metrics": metrics,
                "x_star": None if known is None else f"{known.dtype} of shape {known.shape}",
                "x0": x0,
                "record": saved and os.fspath(saved.path),
                "resume": saved is not None and saved.resume,
            },
        )
        check_minimizer(net, known)
        stack.enter_context(arithmetic(net))
        stack.enter_context(net.raising_together())
        plan = Plan(
            net=net,
            oracle=oracle,
            solver=method,
            topology=graph,
            X=X,
            steps=steps,
            every=every,
            seed=seed,
            stop=stop,
            target=target,
            record=saved,
            progress=as_progress(progress),
            mixing=mixing,
            delay=delay,
            drop=drop,
            straggler=straggler,
            rates=rates,
            clock=clock,
            metrics=more,
            runs=runs,
        )
        result = _result(plan, events, topology if on_failure == "drop" else None)
    # Now that the network of this call is closed.
    if result.outcome is Outcome.INTERRUPTED:
        end_as_interrupted()
        raise Interrupted(result, saved)
    return result


def _result(plan: Plan, events: Events | None, dropping: TopologyLike | None) -> Result:
    """Return the result of a run; `dropping`: the topology of one that goes on without its dead."""
    if events is not None:
        return simulated(plan, events)
    if not isinstance(plan.solver, Asynchronous):
        return attempted(plan, once)
    if dropping is not None and plan.net.size > 1:
        return Dropping(plan, dropping)(run_on_ranks)
    return run_on_ranks(plan)


def _checked_record(record: str | os.PathLike[str] | Record | None, net: Network) -> Record | None:
    """Return the argument `record`; rank 0 refuses a file that is there."""
    saved = as_record(record)
    if saved is not None and net.rank == 0:
        saved.check()
    return saved


def _checked_every(every: float, clock: Queue | None, record: Record | None) -> float:
    """Return the distance of records, steps or of a queue times."""
    if clock is None:
        every = integer(every, "every")  # type: ignore[arg-type]
    number(every, "every", above=0)
    if record is not None and every < 1:
        raise ValueError(
            f"every is {every:g}, expected at least 1 with record, whose file has one "
            "record of each step: leave out one of them, or multiply the times of events and every"
        )
    return every


def _check_graph(solver: Solver, graph: Topology | Schedule, net: Network) -> None:
    """Refuse a graph that the solver does not support; rank 0 warns."""
    with warnings.catch_warnings():
        if net.rank > 0:
            warnings.simplefilter("ignore")
        solver.check(graph.at(0) if graph.period == 1 else graph)


def _check_clock(solver: Solver, clock: Queue | None, net: Network, steps: int | None) -> None:
    """Refuse a queue of events where there can be none, and runs without a length."""
    if clock is None:
        if steps is None:
            raise TypeError("steps is missing, expected the number of steps: steps=1000")
        return
    check_queue(clock, solver, net)
    if (steps is None) == (clock.events is None):
        raise ValueError(
            f"{'neither steps nor events is' if steps is None else 'both steps and events are'} "
            "given, expected one of them: steps=100, or events=, a table"
        )


def _check_drop(solver: Solver, clock: Queue | None) -> None:
    """Refuse runs that cannot go on without some of their agents."""
    if clock is not None:
        raise ValueError('on_failure="drop" is of ranks that die, but a queue of events has one')
    if not isinstance(solver, Asynchronous):
        raise ValueError(
            f'on_failure="drop": {type(solver).__name__} is synchronous, and its agents cannot go on '
            'without others: on_failure="continue" goes on with all of them, whose data the ranks '
            "that are left load"
        )


def _refuse(solver: Solver, **given: object) -> None:
    """Refuse what solvers of this kind do not have."""
    name = type(solver).__name__
    synchronous = "is synchronous: all agents take each step together"
    reasons = {
        "delay": f"{synchronous}, after all messages: leave it out (straggler={{agent: seconds}} "
        "slows agents), or take an asynchronous solver, such as A2CiD2",
        "rates": f"{synchronous}, at the pace of the slowest: leave it out "
        "(straggler={agent: seconds} slows agents), or take an asynchronous solver, such as A2CiD2",
    }
    if isinstance(solver, Asynchronous):
        reasons = {
            "mixing": "is asynchronous: its agents exchange rows in pairs, or push them, without "
            "W: leave it out, or take a synchronous solver, such as GradientTracking"
        }
    for argument, reason in reasons.items():
        if given[argument] is not None:
            raise ValueError(f"{argument} is given, but {name} {reason}")


def _refuse_memory(solver: Solver, record: Record | None, gradient: Gradients | None) -> None:
    """Refuse to resume an asynchronous run on ranks whose gradients depend on earlier steps."""
    if not isinstance(solver, Asynchronous):
        return
    if record and record.resume and gradient and gradient.remembered:
        raise ResumeError(
            f"{record.path}: files of asynchronous runs on ranks hold no memory of "
            "variance-reduced gradients: repeat the run, or simulate it, with mpidec.simulate"
        )
