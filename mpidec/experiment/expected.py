"""What theory expects of a run, where it applies: the rate, and where the run rests."""

from __future__ import annotations

import json
import math

import numpy as np

from .. import theory
from ..comm.mixing.network import Network
from ..driver.asynchronous import AsyncResult
from ..driver.solve import Result
from ..problems.base import Problem
from ..problems.members import moves
from ..record.runfile import annotate
from ..solvers.base import Bias, with_step_size
from .build import Job
from .settings import Mixing

# Numbers of all agents that depend on each other, at most: beyond, theory takes longer than runs.
LARGE, DEPENDENT = 300, 100
# A factor per step from which on, or down to which, the rate tells nothing.
STILL, AT_ONCE = 1 - 1e-9, 1e-6
# The relative error of a linearization that is rounding; an error that is.
QUADRATIC, ROUNDING = 1e-6, 1e-12


def expected(job: Job, result: Result | AsyncResult, net: Network) -> dict[str, float]:
    """The `rate`, the factor per step by which the error falls in the end, the mean-square
    deviation `msd` at which it rests, and the `error_rms` of that; empty where the theory does not
    apply.

    It applies to linear solvers with a constant step size, all agents in one process, on smooth
    problems with few unknowns and a known minimizer; where the run rests elsewhere, to quadratic
    ones.
    """
    step, choice, graph = result.step_size, result.choice, job.topology
    if not (_applies(job, result, net) and isinstance(step, (int, float, type(None)))):
        return {}
    if choice is not None and len(graph.choices) > 1:
        graph = graph.chosen(choice.weights)
    solver = job.solver if step is None else with_step_size(job.solver, float(step))
    try:
        model = theory.Quadratic.of(job.oracle.problem)
        if job.topology.n * max(len(part.x_star) for _, part in model.parts()) > DEPENDENT:
            return {}
        factor = theory.rate(model, solver, graph)
        msd = 0.0
        if job.oracle.random or solver.bias_on(graph) is not Bias.NONE:
            if not _quadratic(job.oracle.problem, model):
                return {}
            msd = float(theory.steady_state(job.oracle, solver, graph).msd.mean())
    except ValueError:
        return {}
    error = math.sqrt(msd) / (float(np.linalg.norm(model.x_star)) or 1.0)
    if not (AT_ONCE < factor < STILL and math.isfinite(msd)):
        return {}
    return {"rate": factor, "msd": msd, "error_rms": error * (error > ROUNDING)}


def _applies(job: Job, result: Result | AsyncResult, net: Network) -> bool:
    """Whether the theory applies to a run, and is quick."""
    wanted, graph = job.experiment, job.topology
    plain = wanted.mixing == Mixing() and wanted.problem.variance_reduction is None
    ended = isinstance(result, Result) and result.outcome not in ("diverged", "interrupted")
    known = job.x_star is not None and not moves(job.oracle.problem)
    small = job.solver.needs.problem and graph.n * job.d <= LARGE and bool(graph.period)
    weights = len(graph.choices) == 1 or result.choice is not None
    return net.size == 1 and ended and known and small and plain and weights


def _quadratic(problem: Problem, model: theory.Quadratic) -> bool:
    """Whether the curvatures are those of the model away from the minimizer, too."""
    e = np.random.default_rng(0).standard_normal(model.g.shape)
    e *= max(float(np.abs(model.x_star).max(initial=0.0)), 1.0)
    change = problem.grad(model.x_star + e) - problem.grad(model.x_star + 0 * e)
    off = change - np.einsum("nij,nj->ni", model.H, e)
    return bool(np.abs(off).max() <= QUADRATIC * np.abs(change).max())


def state(path: str, found: dict[str, float]) -> None:
    """Write what theory expects into the file of a run."""
    if found:
        annotate(path, expected=json.dumps(found))


def worded(found: dict[str, float]) -> str:
    """What theory expects in words.

    Examples
    --------
    >>> worded({"rate": 0.981, "msd": 0.0, "error_rms": 0.0})
    'error falls by a factor of 0.9810 per step in the end'
    >>> worded({"rate": 0.9, "msd": 1.0, "error_rms": 0.0135})
    'rests at error_rms 1.35e-02 (-37.4 dB)'
    """
    if not found:
        return ""
    error, factor = found["error_rms"], found["rate"]
    if error:
        return f"rests at error_rms {error:.2e} ({20 * math.log10(error):.1f} dB)"
    digits = max(3, 2 - math.floor(math.log10(1 - factor)))
    return f"error falls by a factor of {factor:.{digits}f} per step in the end"
