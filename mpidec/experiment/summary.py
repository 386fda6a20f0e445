"""What is printed at the end of a run: how it ended, and its table."""

from __future__ import annotations

import numpy as np

from ..cli.output import resume_command
from ..cli.progress import COLUMNS
from ..cli.tables import facts, options, plural, quantity
from ..driver.asynchronous import AsyncResult
from ..driver.attempts import ANY_SIZE
from ..driver.solve import Result
from ..plugins import short
from . import settings as config
from .build import Job


def ending(job: Job, result: Result | AsyncResult, ranks: int) -> str:
    """What the user must know about a run that did not end well, in one line; else an empty
    string.
    """
    if isinstance(result, Result) and result.outcome == "diverged" and result.unstable:
        return f"diverged at step {result.steps}: {result.reason}"  # which has the remedy
    if result.outcome == "diverged":
        mixing = job.experiment.mixing
        step = result.step_size
        remedy = (
            f"use a step size smaller than {step:.3g}"
            if isinstance(step, (int, float))
            else "use smaller step sizes"
        )
        if job.solver.unstable(job.topology):
            remedy = f"the likely cause is the graph, on which {type(job.solver).__name__} is unstable (see the warning above)"
        elif mixing.codec and getattr(job.solver, "exact", False):
            codec = f"{short(mixing.codec)}{options(mixing.options)}"
            smaller = "" if job.solver.needs.least_delta else f", or {remedy}"
            remedy = (
                f"the likely cause is the codec, {codec}: send more of each row, set a smaller "
                "mixing.gamma, take another solver, "
                f"such as beer{smaller}"
            )
        if ANY_SIZE in result.reason:
            remedy = "look for NaN in what agents send"
            if mixing.attack is not None and mixing.robust is None:
                remedy = "mixing.robust leaves such rows out"
        return f"diverged at step {result.steps}: {result.reason}: {remedy}"
    if result.outcome == "interrupted" and (obstacle := getattr(result, "obstacle", "")):
        return (
            f"interrupted after step {result.steps}: {job.experiment.run.out} is complete up to "
            f"it; {obstacle}"
        )
    if result.outcome == "interrupted":
        return (
            f"interrupted after step {result.steps}: continue with "
            f"{resume_command('run', job.experiment.run.out, ranks)}"
        )
    return result.reason


def summary(job: Job, result: Result | AsyncResult, ranks: int, slow: str = "") -> str:
    """The table printed at the end of a run; `slow` says what makes it slow."""
    problem, wanted, n = job.experiment.problem, job.experiment.run, job.topology.n
    metrics = {name: values[-1] for name, values in result.metrics.items() if len(values)}
    steps, times = result.metrics["step"], result.metrics["time"]
    outcome = str(result.outcome)
    if outcome == "stopped":
        outcome += f" at step {result.steps}: error <= {wanted.stop_error:g}"
    elif outcome == "diverged":
        outcome += f" at step {result.steps}"
    elif outcome == "missed":
        outcome += f": error > {wanted.stop_error:g} after {result.steps} steps"
    elif outcome == "completed" and result.verdict:
        outcome += f": {result.verdict}"
    gap = job.spectral_gap(result.choice)
    rows = {
        "problem": f"{short(problem.name)}{options(_penalties(problem))}",
        "data": f"{short(problem.data)}, {job.samples} samples x {job.d} unknowns, "
        f"{f'label {job.label}, ' if job.label else ''}partition {problem.partition}"
        if problem.data
        else f"none, {job.d} unknowns",
        **(
            {"classes": ", ".join(f"{word} = {number}" for number, word in _classes(job))}
            if job.classes
            else {}
        ),
        "agents": f"{n}, simulated" if wanted.simulate else f"{n} on {plural(ranks, 'rank')}",
        "topology": f"{short(job.experiment.topology.name)}{options(job.experiment.topology.options)}"
        + (f", spectral gap {gap:.4g}" if gap is not None else ""),
        **_mixing(job.experiment.mixing),
        "solver": f"{short(job.experiment.solver.name)}{options(job.experiment.solver.options)}",
        **({"step size": result.choice.line()} if result.choice is not None else {}),
        **(fault_rows(wanted) if job.asynchronous else {}),
        "steps": f"{result.steps} of {wanted.steps}",
        **(async_rows(result) if isinstance(result, AsyncResult) else {}),
        "outcome": outcome,
    }
    rows |= {name: f"{metrics[name]:.6g}" for name in (*COLUMNS, "error_max") if name in metrics}
    rows |= {
        "time": f"{times[-1]:.4g} units, simulated"
        if wanted.simulate
        else f"{times[-1]:.3g} s, {(steps[-1] - steps[0]) / max(times[-1] - times[0], 1e-9):.4g} "
        "steps/s",
        "sent": f"{quantity(metrics['bytes'] / n, 'B')} per agent",
        "file": wanted.out,
    }
    if slow:
        rows["pace"] = slow
    if job.note:
        rows["note"] = job.note
    return facts({name.replace("_", " "): value for name, value in rows.items()})


def fault_rows(wanted: config.Run) -> dict[str, str]:
    """What delays, loses and stops messages and agents."""
    unit = "units" if wanted.simulate else "s"
    delay = wanted.delay if isinstance(wanted.delay, tuple) else (wanted.delay,)
    return {
        **(
            {"delay": " to ".join(f"{value:g}" for value in dict.fromkeys(delay)) + f" {unit}"}
            if any(delay)
            else {}
        ),
        **({"drop": f"{wanted.drop:.4g}"} if wanted.drop else {}),
        **(
            {
                "stragglers": ", ".join(
                    f"agent {agent} {seconds:g} {unit} a step"
                    for agent, seconds in wanted.pauses().items()
                )
            }
            if wanted.straggler
            else {}
        ),
    }


def async_rows(result: AsyncResult) -> dict[str, str]:
    """What the agents, the edges and the ranks of an asynchronous run have done."""
    counts, ages, idle = result.counts, result.staleness, result.idle
    messages = int(result.metrics["messages"][-1])
    rows = {
        "per agent": f"{counts.min()} (agent {counts.argmin()}) to {counts.max()} (agent {counts.argmax()}) steps"
        if counts.min() < counts.max()
        else f"{counts.max()} steps",
        "messages": f"{messages} ({messages / max(counts.sum(), 1):.3g} per step)",
    }
    if result.averagings:
        rows["averagings"] = (
            f"{2 * sum(result.averagings.values()) / max(counts.sum(), 1):.4g} per gradient"
        )
    if ages.sum():
        found = np.flatnonzero(ages)
        mean = f"{(ages * np.arange(len(ages))).sum() / ages.sum():.3g}"
        rows["staleness"] = (
            f"messages {mean} units old when read in the mean, {found[-1]} at most"
            if idle is None
            else f"{mean} messages found per reading in the mean, {found[-1]} at most"
        )
    if idle is not None and len(idle) > 1:
        rows["idle"] = (
            f"{100 * idle.max():.3g} % of the time at most (rank {idle.argmax()}), "
            f"{100 * idle.min():.3g} % at least"
        )
    elif idle is not None:
        rows["idle"] = f"{100 * idle[0]:.3g} % of the time"
    return rows


def _classes(job: Job) -> list[tuple[int, str]]:
    """The numbers that stand for the names of the classes."""
    return [
        (
            2 * c - 1 if len(job.classes) == 2 and job.experiment.problem.name == "logistic" else c,
            word,
        )
        for c, word in enumerate(job.classes)
    ]


def _penalties(problem: config.Problem) -> dict[str, object]:
    """The options of a problem, and the settings of its scale and penalties that are not the
    defaults.
    """
    names = ("scale", "intercept", "l2_total", "l1", "l1_total", "lower", "upper", "simplex")
    return dict(problem.options) | {
        name: value for name in names if (value := getattr(problem, name)) is not None
    }


def _mixing(wanted: config.Mixing) -> dict[str, str]:
    parts = [f"{short(wanted.codec)}{options(wanted.options)}"] if wanted.codec else []
    parts += (
        [f"{wanted.accelerate} times, {wanted.method or 'chebyshev'}"] if wanted.accelerate else []
    )
    for name in ("attack", "noise", "loss", "robust", "repeat"):
        value = getattr(wanted, name)
        parts += [] if value is None else [f"{name} {value}"]
    return {"mixing": ", ".join(parts)} if parts else {}
