"""Search for a step size without a run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ..comm.mixing import Mixer, Network
from ..solvers.base import with_step_size
from ..solvers.step_schedules import StepSchedule
from . import arguments as resolve
from .solve import _answer, _arithmetic, _closing, _made, _network
from .stepsize import Choice, Search
from .stepsize.choice import TOLERANCE


def tune(
    problem: Any,
    solver: Any,
    topology: Any,
    *,
    steps: int = 5000,
    x0: Any = None,
    net: Network | None = None,
    seed: int = 0,
    tol: float = TOLERANCE,
    mixing: Callable[[Mixer], Any] | None = None,
) -> Choice:
    """Find the step size that `solve` finds with `step_size="auto"`, and show what it tried.

    Parameters
    ----------
    problem, solver, topology, x0, net, seed, mixing
        As in `solve`.  The step size of the solver is not used; of a schedule, its start is replaced.
    steps : int
        Steps of the run to come; the choice depends on it for methods with bias, schedules and random gradients.
    tol : float
        Relative error to which steps are counted.

    Returns
    -------
    Choice
        With `step_size`, the table (`print(choice)`) and a picture (`choice.plot().savefig("tune.png")`).

    Notes
    -----
    Collective.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> choice = mpidec.tune(mpidec.problems.LeastSquares(A, b), mpidec.solvers.ExactDiffusion(), mpidec.topology.ring(4))
    >>> choice.rule, 0.1 < choice.step_size < 2
    ('steps', True)
    """
    with ExitStack() as stack:
        if net is None:
            net = stack.enter_context(_network(problem, topology, x0))
        error: Exception | None = None
        try:
            resolve.oracle(problem)
            topology, solver = resolve.graph(topology, net.n), resolve.method(solver, problem)
            behind = _answer(problem, solver, net, seed)[1]
            if not hasattr(solver, "step_size") or solver.uses == "nothing":
                raise ValueError(f"{type(solver).__name__} has no step size")
            if getattr(solver, "asynchronous", False):
                raise ValueError(
                    f"{type(solver).__name__} is asynchronous, and tune takes common steps: give step_size as a "
                    'number, or leave it to the bound of "auto"'
                )
            steps = operator.index(steps)
            X = resolve.rows(x0, behind, net)
            resolve.probe(behind, X, net.lo)
            solver.check(topology.at(0) if topology.period == 1 else topology)
            step = solver.step_size
            solver = with_step_size(
                solver, replace(step, start="auto") if isinstance(step, StepSchedule) else "auto"
            )
        except (ValueError, TypeError) as caught:
            error = caught
        net.agree(error)
        stack.enter_context(_arithmetic(net))
        plain = stack.enter_context(_closing(net.mixer(topology)))
        made = plain if mixing is None else _made(mixing, plain, net)
        return Search(net, behind, problem, solver, topology, made, X, steps, seed, tol)()
