"""Schedules on which the disagreement between agents grows with every small step size."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from ...comm.mixing import Network
from ...comm.mixing.internals import Kept, Operator, StepOperator
from ...comm.runtime import ALONE, on_all_ranks
from ...solvers import Solver
from ...solvers.internals import at_step, iterate, name_of, step_size_of, with_step_size
from .linear import GradientModel
from .search import undisturbed
from .tuning import TUNING


def growth(solver: Solver, W: Operator[StepOperator]) -> float:
    """Return the factor per step by which the disagreement grows where the functions are linear; 1
    if it does not grow so fast.

    The agents' gradients are constant and add up to zero.  So little curvature as small step sizes
    meet does not stop the growth.

    Parameters
    ----------
    solver : Solver
        With a number as step size, which has no influence where there is no curvature.
    W : mixer
        Of all agents, in one process.

    Examples
    --------
    >>> import mpidec
    >>> schedule = mpidec.topology.base_k(12)
    >>> with mpidec.Network(12, comm=ALONE) as net:
    ...     W = net.mixer(schedule)
    ...     [round(growth(solver(1.0), W), 2) for solver in (mpidec.solvers.EXTRA, mpidec.solvers.GradientTracking)]
    [1.05, 1.0]
    """
    cycle = (W.topology.period or 1) * solver.period
    steps = max(TUNING.shortest_growth, TUNING.cycles * cycle)
    g, X = (Z - Z.mean(axis=0) for Z in np.random.default_rng(0).standard_normal((2, W.n, 2)))
    model = GradientModel(
        np.zeros((1, W.n, 2, 2)),
        g[None],
        X,
        mean=np.zeros((2, 2)),
        size=1.0,
        curvature=1.0,
        distance=1.0,
    )
    sizes: list[float] = []
    with np.errstate(all="ignore"):
        run = iterate(solver, model, W, solver.init(X, W.at(0)))
        while True:
            for k, s in zip(range(len(sizes), steps), run):
                away = float(np.linalg.norm(s.X - s.X.mean(axis=0)))
                if not away < TUNING.overflows:
                    return max(float((TUNING.overflows / np.linalg.norm(X)) ** (1 / (k + 1))), 1.0)
                sizes.append(away)
            half = steps // 2
            ratio = max(sizes[half:]) / max(max(sizes[half // 2 : half]), TUNING.tiny)
            if ratio >= TUNING.fast:
                return float(ratio ** (1 / half))
            if ratio <= TUNING.no_growth or 2 * steps > max(
                TUNING.longest_growth, TUNING.cycles * cycle
            ):
                return 1.0
            steps *= 2


def unstable_schedule(net: Network, solver: Solver, mixer: Operator[StepOperator], d: int) -> str:
    """Return why a solver may diverge on a periodic schedule with any small step size, and a
    remedy, or ""; collective.
    """
    graph = mixer.topology
    H = solver.period
    if (
        graph.period in (None, 1)
        or graph.period * H > TUNING.longest_growth // TUNING.cycles
        or graph.kind != "doubly"
        or graph.divides_columns
        or not 1 < graph.n <= TUNING.most_growing
        or not solver.needs.problem
        or solver.adaptive
    ):
        return ""
    cause = ""
    with on_all_ranks(net):
        if net.rank == 0:
            step = step_size_of(solver)
            if not isinstance(step, (int, float)):
                step = at_step(solver, 0).step_size if callable(step) else 1.0
                step = step if isinstance(step, (int, float)) else 1.0
            now = with_step_size(solver, step or 1.0)
            with (
                Network(graph.n, comm=ALONE) as alone,
                closing(alone.mixer(graph)) as base,
            ):
                W = undisturbed(mixer.rebuilt(base, Kept(codec=False, d=d)))
                factor = _growth(now, W)
                if factor > 1:
                    lazy = not mixer.layers and (
                        _growth(now, base.compress("identity", gamma=0.5)) == 1
                    )
                    cause = _message(solver, graph.name, factor, lazy)
    return str(net.collectives.broadcast(cause, 0, "the growth of the disagreement"))


def _growth(solver: Solver, W: Operator[StepOperator]) -> float:
    """Return the growth; 1 for a solver that fails here: its error is raised by the run."""
    try:
        return growth(solver, W)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return 1.0


def _message(solver: Solver, graph: str, factor: float, lazy: bool) -> str:
    remedy = "use GradientTracking, or KGT with local steps, which need no constant W"
    if lazy:
        remedy += (
            ', or lazy steps (I + W)/2: mixing=lambda W: W.compress("identity", gamma=0.5) '
            "(mixing.codec=identity, mixing.gamma=0.5)"
        )
    return (
        f"{name_of(solver)} may diverge on the {graph} schedule with any small step size: where "
        "the curvature is small, the "
        f"disagreement between the agents grows by a factor of {factor:.3g} per step; {remedy}"
    )
