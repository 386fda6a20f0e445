"""Simulation of asynchronous methods on a queue of events, in one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike

from ..comm.mixing import Network
from ..record import Record
from ..solvers import Solver
from .arguments import Delay, explained
from .asynchronous.result import AsyncResult
from .metrics import Own
from .outcome import Stop
from .plan import Mixing, Progress, Queue
from .solve import solve

if TYPE_CHECKING:
    from ..problems import OracleLike, Problem
    from .arguments import TopologyLike


@explained
def simulate(
    problem: Problem | OracleLike | None,
    solver: Solver | type[Solver] | str,
    topology: TopologyLike,
    *,
    steps: int | None = None,
    events: np.ndarray | None = None,
    x0: ArrayLike | None = None,
    net: Network | None = None,
    seed: int = 0,
    delay: Delay | None = None,
    drop: float = 0.0,
    rates: ArrayLike | None = None,
    straggler: Mapping[int, float] | None = None,
    every: float = 10,
    stop: Stop | None = None,
    record: str | os.PathLike[str] | Record | None = None,
    progress: Progress | bool | None = None,
    mixing: Mixing | None = None,
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
        methods, the time from the exchange to the end of the averaging; an averaging
        is skipped if either agent is busy.
    drop : float
        Probability that a message is lost; for pairwise methods, that an averaging does not happen.
    rates : float or array (n,), optional
        Wake-ups, or gradients, of each agent in a unit of time; by default 1.  Small ones are
        stragglers.
    straggler : dict {agent: time}, optional
        How long agents sleep at each of their steps, in units of time: the rate r of such an agent
        becomes r / (1 + r T).  (On ranks, where a step takes the time that it takes, seconds.)
    every : float
        Steps between two records; units of time with `events`.
    stop : mapping or callable, optional
        As for `mpidec.solve`: `{"error": 1e-8}` stops at the first record with `error <= 1e-8`; the
        counters `time`, `events`, `gradients`, `messages` and `bytes` are budgets.
    record : path or Record, optional
        HDF5 file for metrics, trajectory, checkpoints and the result, as for `mpidec.solve`; a
        checkpoint has the messages under way, so that a resumed run has the bits of an
        uninterrupted one.
    progress : callable or bool, optional
        Called as `progress(step, steps, metrics)` at each record; True prints a line instead.
    metrics : dict {name: callable}, optional
        User-defined metrics, as for `mpidec.solve`.

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
    result = solve(
        problem,
        solver,
        topology,
        steps=steps,
        x0=x0,
        net=net,
        seed=seed,
        record=record,
        every=every,
        stop=stop,
        progress=progress,
        mixing=mixing,
        delay=delay,
        drop=drop,
        straggler=straggler,
        rates=rates,
        metrics=metrics,
        clock=Queue(events),
    )
    return cast("AsyncResult", result)
