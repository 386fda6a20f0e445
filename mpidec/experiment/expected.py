"""What theory expects of a run, where it applies: the rate, and the level at which it plateaus."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np

from .. import theory
from ..comm.mixing import Network
from ..driver.internals import Result
from ..problems import Problem
from ..problems.internals import moves
from ..record.internals import annotate
from ..solvers import Bias, Solver
from ..solvers.internals import PairwiseSolver, with_step_size
from ..topology import Schedule, Topology
from .build import Job
from .settings import Mixing

Expected = dict[str, Any]
# Numbers of all agents that depend on each other, at most: beyond, theory takes longer than runs.
LARGE, DEPENDENT = 300, 100
# Steps times the cube of such numbers, at most, and the size from which on a step takes longer, for
# a curve; its points: the file stores 64 KiB.
WORK, QUICK, POINTS = 2e9, 40, 400
# A factor per step from which on, or down to which, the rate tells nothing.
STILL, AT_ONCE = 1 - 1e-9, 1e-6
# The relative error of a linearization that is rounding; an error that is.
QUADRATIC, ROUNDING = 1e-6, 1e-12


def expected(job: Job, result: Result, net: Network) -> Expected | str:
    """Return the `rate`, the factor per step by which the error falls in the end, the mean-square
    deviation `msd` at which it plateaus, the `error_rms` of that, and where it is quick the
    `curve`, error_rms at some `steps`; the reason where the theory does not apply.

    It applies to linear solvers with a constant step size, all agents in one process, pairwise ones
    on a queue of events without delays, on smooth problems with few unknowns and a known minimizer;
    where the limit is another point, to quadratic ones.
    """
    step, choice, graph = result.step_size, result.choice, job.topology
    if reason := _outside(job, result, net):
        return reason
    if choice is not None and len(graph.choices) > 1:
        graph = graph.chosen(choice.weights)
    solver = job.solver
    if isinstance(step, (int, float)):
        solver = with_step_size(solver, float(step))
    try:
        return _derived(job, result, solver, graph)
    except ValueError as error:
        return str(error).removeprefix("theory: ")


def _derived(
    job: Job, result: Result, solver: Solver, graph: Topology | Schedule
) -> Expected | str:
    """Return what is expected of a run to which the theory may apply, or why it does not.

    Raises
    ------
    ValueError
    """
    model = theory.Quadratic.of(job.oracle.problem)
    if job.topology.n * max(len(Q.T) for Q, _ in model.parts()) > DEPENDENT:
        return f"more than {DEPENDENT} numbers of all agents depend on each other"
    factor = theory.rate(model, solver, graph)
    links, quadratic = job.experiment.mixing.noise or 0.0, _quadratic(job.oracle.problem, model)
    biased = job.oracle.random or links > 0 or solver.bias_on(graph) is not Bias.NONE
    if biased and not quadratic:
        return "the problem is not quadratic, and the run does not end at its minimizer"
    msd = _level(job, solver, graph, links) if biased else 0.0
    if reason := _useless(factor, msd, links > 0):
        return reason
    curve = _curve(job, result, solver, graph) if quadratic else {}
    error_rms = math.sqrt(msd) / (model.scale or 1.0)
    return {"rate": factor, "msd": msd, "error_rms": error_rms * (error_rms > ROUNDING), **curve}


def _level(job: Job, solver: Solver, graph: Topology | Schedule, links: float) -> float:
    """Return the mean-square deviation in the steady state, the mean over the agents."""
    found = theory.steady_state(job.oracle, solver, graph, link_noise=links)
    return float(found.msd.mean())


def _curve(
    job: Job, result: Result, solver: Solver, graph: Topology | Schedule
) -> dict[str, list[float]]:
    """Return `steps` and `curve`: the error_rms that theory expects at some of the records; nothing
    where it would take long.
    """
    model, n = theory.Quadratic.of(job.oracle.problem), graph.n
    size, records = n * max(len(Q.T) for Q, _ in model.parts()), result.metrics["step"]
    if result.steps * max(size, QUICK) ** 3 > WORK:
        return {}
    links = job.experiment.mixing.noise or 0.0
    found = theory.transient(
        job.oracle, solver, graph, steps=result.steps, link_noise=links, x0=job.x0
    )
    some = np.linspace(0, len(records) - 1, POINTS).astype(int)
    steps = np.unique(records[some]).astype(int)
    curve = np.sqrt(found.msd[steps].mean(axis=1)) / (model.scale or 1.0)
    return {"steps": steps.tolist(), "curve": np.where(curve > ROUNDING, curve, 0.0).tolist()}


def _useless(factor: float, msd: float, noisy_links: bool) -> str:
    """Return why a rate and a level tell nothing about a curve; empty if they do."""
    if noisy_links and factor < STILL and not math.isfinite(msd):
        return "the solver integrates the noise of its links: the error grows without a limit"
    if not (factor < STILL and math.isfinite(msd)):
        return f"the error does not fall, by the factor {factor:.6g} per step"
    return "" if factor > AT_ONCE else "the error vanishes in a few steps"


def _outside(job: Job, result: Result, net: Network) -> str:
    """Return why the theory does not apply to a run, or is not quick; empty if it may."""
    wanted, graph, plain = job.experiment, job.topology, Mixing()
    reasons = {
        "the agents are on several ranks (one process has it)": net.size > 1,
        "the run is asynchronous": job.asynchronous and not _random_times(job),
        f"the run has {result.outcome}": result.outcome == "diverged",
        "the run was interrupted": result.outcome == "interrupted",
        "the problem has no x_star": not job.measured,
        "the minimizer moves": moves(job.oracle.problem),
        "the solver minimizes nothing": not job.solver.needs.problem,
        "the solver takes samples": job.solver.needs.data,
        f"there are more than {LARGE} unknowns of all agents": graph.n * job.d > LARGE,
        "the graph never repeats": not graph.period,
        "mixing has options": replace(wanted.mixing, noise=None) != plain,
        "gradients have reduced variance": wanted.problem.variance_reduction is not None,
        "the graph has several weights": len(graph.choices) > 1 and result.choice is None,
        "the step size changes": not isinstance(result.step_size, (int, float, type(None))),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _random_times(job: Job) -> bool:
    """Return whether gradients and averagings of a run come by clocks, and nothing delays them."""
    run = job.experiment.run
    disturbed = run.delay or run.drop or run.straggler
    return isinstance(job.solver, PairwiseSolver) and bool(run.simulate) and not disturbed


def _quadratic(problem: Problem, model: theory.Quadratic) -> bool:
    """Return whether the curvatures are those of the model away from the minimizer, too."""
    e = np.random.default_rng(0).standard_normal(model.g.shape)
    e *= max(float(np.abs(model.x_star).max(initial=0.0)), 1.0)
    change = problem.grad(model.x_star + e) - problem.grad(model.x_star + 0 * e)
    off = change - np.einsum("nij,nj->ni", model.H, e)
    return bool(np.abs(off).max() <= QUADRATIC * np.abs(change).max())


def state(path: str, found: Expected | str) -> None:
    """Write what theory expects, or why it expects nothing, into the file of a run."""
    if isinstance(found, str):
        annotate(path, no_theory=found)
    else:
        annotate(path, expected=json.dumps(found))


def worded(found: Expected | str) -> str:
    """Return what theory expects, as a phrase.

    Examples
    --------
    >>> worded({"rate": 0.981, "msd": 0.0, "error_rms": 0.0})
    'error falls by a factor of 0.9810 per step in the end'
    >>> worded({"rate": 0.9, "msd": 1.0, "error_rms": 0.0135})
    'plateau at error_rms 1.35e-02 (-37.4 dB)'
    >>> worded("the minimizer moves")
    'none: the minimizer moves'
    """
    if isinstance(found, str):
        return f"none: {found}"
    error, factor = found["error_rms"], found["rate"]
    if error:
        return f"plateau at error_rms {error:.2e} ({20 * math.log10(error):.1f} dB)"
    digits = max(3, 2 - math.floor(math.log10(1 - factor)))
    return f"error falls by a factor of {factor:.{digits}f} per step in the end"
