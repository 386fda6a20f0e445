"""Likely causes of missed targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..protocols import Reductions
from ..solvers.base import Solver, name_of
from .verdict import limit_of, resting_since

if TYPE_CHECKING:
    from ..problems.base import Problem
    from ..topology import Schedule, Topology

_COLUMNS = 30.0  # ratio of column norms that slows a run down
_STILL = 1e-9  # relative change over half of a run that has come to rest
_ROUNDED = 1e-4  # relative error below which a run that rests in float32 does so by rounding
_SLOW = 1000  # factor of the steps taken that are missing when a run has come to rest
_LARGE = 500  # agents up to which the spectral gap is computed for a message


def likely_cause(
    net: Reductions,
    problem: Problem | None,
    topology: Topology | Schedule,
    solver: Solver,
    stochastic: bool,
    metrics: Mapping[str, np.ndarray],
    name: str,
    limit: float,
    codec: str = "",
) -> str:
    """The likely cause of a missed target `metrics[name] <= limit`, with a remedy; collective.

    Parameters
    ----------
    stochastic : bool
        Whether the gradients are random.
    metrics : dict of arrays
        All records of the run.
    codec : str
        Why the codec limits the accuracy, if it does.
    """
    values, steps = metrics[name], metrics["step"]
    middle, last = (len(values) - 1) // 2, float(values[-1])
    change = abs(values[middle] - last)
    objective = metrics.get("objective")
    columns = spread(net, problem)
    size = (
        f" than {solver.step_size:.3g}"
        if isinstance(getattr(solver, "step_size", None), (int, float))
        else ""
    )
    if objective is not None and objective[-1] > objective[0] + 1e-9 * abs(objective[0]):
        return f"the objective grew from {objective[0]:.3g} to {objective[-1]:.3g}: use a step size smaller{size}"
    if stochastic and len(values) > 2 and last > 0.5 * values[middle]:
        return f"the gradients are random, and {name} has stopped falling: use a smaller step size{size} or larger batches"
    dtype = getattr(problem, "dtype", None)  # of Neural, a torch.dtype
    single = isinstance(dtype, np.dtype) and dtype == np.float32
    if single and len(values) > 2 and _ROUNDED > last > 0.5 * values[middle]:
        return (
            f"{name} has stopped falling at the accuracy of float32, the dtype of the data: give float64 data, or a "
            "larger target"
        )
    if codec and len(values) > 2 and last > 0.5 * values[middle]:
        return codec
    if len(values) > 2 and change <= _STILL * abs(last) and name == "objective":
        return "it has come to rest: the target may lie below the minimum"
    at_rest = (
        f"{name} has come to rest: a method with a bias (DGD, diffusion, push-sum) stays at a distance that shrinks with "
        "the step size: use an exact method, such as gradient_tracking, or a smaller step size"
    )
    if getattr(solver, "exact", False):
        at_rest = (
            f"{name} has come to rest: at the accuracy of float64, or since the function is flat or the steps are too small "
            "there: begin closer to the minimizer (x0), or use a larger step size"
        )
    if len(values) > 2 and change <= _STILL * last:
        return at_rest
    if columns is not None:
        ratio, largest, smallest = columns
        if ratio > _COLUMNS:
            return (
                f"the columns of the data differ in size by a factor of {ratio:.2g} (column {largest} the largest, column "
                f"{smallest} the smallest, counted from 0): standardize them (problem.standardize=true)"
            )
    if not getattr(solver, "exact", False) and isinstance(solver.step_size, (int, float)):
        level = last if resting_since(values, steps) is not None else limit_of(values)
        if level > limit:
            return (
                f"{name} comes to rest near {level:.2g}: {name_of(solver)}, a method with a bias, stays at a distance that "
                "shrinks with the step size: use an exact method, such as gradient_tracking, or a smaller step size"
            )
    disagreement = metrics["consensus"][-1]
    if (
        "error" in metrics
        and metrics["error_rms"][-1] > 3 * metrics["error"][-1]
        and topology.period == 1
        and net.n <= _LARGE
    ):
        return (
            f"the agents still disagree (consensus {disagreement:.3g}; {topology.name} has a spectral gap of "
            f"{topology.spectral_gap():.3g}): use a graph with more edges, such as exponential, or mixing.accelerate=3"
        )
    if values[middle] > last > limit > 0:
        rate = math.log(values[middle] / last) / float(steps[-1] - steps[middle])
        more = math.log(last / limit) / rate
        if more > _SLOW * steps[-1]:
            return at_rest
        return f"it still falls, and needs about {_rounded(more)} more steps at this rate: take more steps, or larger ones"
    return f"{name} falls slowly: use a larger step size, or a graph with more edges"


def spread(net: Reductions, problem: Problem | None) -> tuple[float, int, int] | None:
    """Ratio of the largest to the smallest norm of the data's columns, and the two columns; None without data; collective."""
    A = getattr(problem, "A", None)
    if not (hasattr(problem, "features") and isinstance(A, np.ndarray) and A.ndim == 3):
        return None
    norms = np.sqrt(net.sum((A * A).sum(axis=1)))
    used = np.flatnonzero(norms > 0)
    if not len(used):
        return None
    largest, smallest = used[np.argmax(norms[used])], used[np.argmin(norms[used])]
    return float(norms[largest] / norms[smallest]), int(largest), int(smallest)


def _rounded(number: float) -> str:
    digits = max(len(str(int(number))) - 2, 0)
    return f"{round(number / 10**digits) * 10**digits:,}"
