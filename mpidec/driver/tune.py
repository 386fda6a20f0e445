"""Search for a step size without a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from .._complex import as_reals, is_complex
from .._validation import integer
from ..comm.mixing import Network
from ..comm.runtime import on_all_ranks
from ..problems.internals import real_view
from ..solvers import Solver, StepSchedule
from ..solvers.internals import PairwiseSolver, PushSolver, name_of, step_size_of, with_step_size
from .answers import gradients_for
from .arguments import (
    Delay,
    as_oracle,
    as_solver,
    as_topology,
    check_callbacks,
    check_hosted,
    explained,
    initial_rows,
    network_of_run,
    problem_of,
)
from .asynchronous.draws import GRADIENT
from .asynchronous.events import Events
from .asynchronous.prepared import check_queue, prepared
from .asynchronous.search import AsyncSearch
from .plan import Mixing, Queue, arithmetic, closing, derived
from .stepsize import TUNING, Choice, Search, Task

if TYPE_CHECKING:
    from ..problems import OracleLike, Problem
    from ..topology import Topology
    from .arguments import TopologyLike


@explained
def tune(
    problem: Problem | OracleLike,
    solver: Solver | type[Solver] | str,
    topology: TopologyLike,
    *,
    steps: int = 5000,
    x0: ArrayLike | None = None,
    net: Network | None = None,
    seed: int = 0,
    tol: float = TUNING.tolerance,
    mixing: Mixing | None = None,
    delay: Delay | None = None,
    drop: float = 0.0,
    straggler: Mapping[int, float] | None = None,
    rates: ArrayLike | None = None,
    clock: Queue | None = None,
) -> Choice:
    """Find the step size that `solve` or `simulate` finds with `step_size="auto"`, and show what it
    tried.

    Parameters
    ----------
    problem, solver, topology, x0, net, seed, mixing
        As in `solve`.  The step size of the solver is not used; of a schedule, its start is
        replaced.
    steps : int
        Steps of the run to come; the choice depends on it for methods with bias, schedules and
        random gradients.
    tol : float
        Relative error to which steps are counted.
    delay, drop, straggler
        For asynchronous solvers, as in `solve`.
    rates : float or array (n,), optional
        As in `simulate`: the run to come is simulated, and the time of `delay` is that of its
        clocks; 1 if all agents are equal.
    clock : mpidec.Queue, optional
        As in `solve`: the run to come is simulated.  With a table of events, `steps` is the length
        of the table.

    Returns
    -------
    Choice
        With `step_size`, the table (`print(choice)`) and a picture
        (`choice.plot().savefig("tune.png")`).

    Notes
    -----
    Collective.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> choice = mpidec.tune(
    ...     mpidec.problems.LeastSquares(A, b),
    ...     mpidec.solvers.ExactDiffusion(),
    ...     mpidec.topology.ring(4),
    ... )
    >>> choice.rule, 0.1 < choice.step_size < 2
    ('steps', True)
    """
    with ExitStack() as stack:
        own = network_of_run("tune", net, problem, topology, x0, alone=clock is not None)
        net = stack.enter_context(own)
        with on_all_ranks(net):
            oracle = as_oracle(problem)
            method = as_solver(solver, oracle)
            graph = as_topology(topology, net.n, solver=method)
            if clock is not None:
                check_queue(clock, method, net)
            steps, seed = integer(steps, "steps", least=0), integer(seed, "seed", least=0)
            functions = problem_of(oracle)
            check_hosted(oracle, net)
            gradients_for(method, oracle, net.agents, seed)
            X = initial_rows(x0, functions, net)
            none = step_size_of(method) is None or not method.needs.problem or method.needs.data
            if oracle is None or none:
                raise ValueError(f"{name_of(method)} has no step size that a search finds")
            check_callbacks(functions, X, net.lo)
            method.check(graph.at(0) if graph.period == 1 else graph)
            step = method.step_size
            method = with_step_size(
                method, replace(step, start="auto") if isinstance(step, StepSchedule) else "auto"
            )
            events = None
            if isinstance(method, (PairwiseSolver, PushSolver)):
                static = graph.at(0)
                method = prepared(method, static)
                told = {"straggler": straggler, "delay": delay, "drop": drop, "seed": seed}
                events = _events(method, static, functions, clock, rates, **told)
                if events.end is not None:
                    steps = events.steps
            elif any((delay is not None, drop, straggler, rates is not None)):
                raise ValueError(
                    f"{type(method).__name__} is synchronous: leave out delay, drop, straggler "
                    "and rates"
                )
            if is_complex(X):  # the search knows real rows
                oracle, X = real_view(oracle), as_reals(X)
        stack.enter_context(arithmetic(net))
        task = Task(net, oracle, method, X0=X, steps=steps, seed=seed, tol=tol)
        if events is not None and isinstance(method, (PairwiseSolver, PushSolver)):
            return AsyncSearch(task, method, graph.at(0), events)()
        base = stack.enter_context(closing(net.mixer(graph)))
        return Search(task, graph, derived(mixing, base, net))()


def _events(
    solver: PairwiseSolver | PushSolver,
    topology: Topology,
    problem: Problem | None,
    clock: Queue | None,
    rates: ArrayLike | None,
    **told: Any,
) -> Events:
    """Return what happens in the run to come, on ranks or on a queue (its table has gradients)."""
    if clock is None and rates is None:
        return Events.of_ranks(solver, topology, rates=None, **told)
    table = None if clock is None else clock.events
    events = Events.of_queue(solver, topology, table, problem=problem, rates=rates, **told)
    if table is not None and not (table["kind"] == GRADIENT).any():
        raise ValueError(
            "the table of events has no gradients, which step sizes scale: give a step size, or "
            "other events"
        )
    return events
