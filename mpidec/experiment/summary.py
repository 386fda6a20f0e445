"""The summary printed at the end of a run: how it ended, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..cli import COLUMNS, facts, options, plural, quantity, resume_command
from ..driver.internals import ANY_SIZE, BAND, BUILT_IN, SHARE, AsyncResult, Result, Target
from ..plugins import short
from ..record.internals import rises
from . import settings as config
from .build import Job


def ending(job: Job, result: Result, ranks: int) -> str:
    """Return what the user must know about a run that did not end well, in one line; else an empty
    string.
    """
    if result.outcome == "diverged":
        text = f"diverged at step {result.steps}: {result.reason}"
        if isinstance(result, Result) and result.unstable:  # the reason has the remedy
            return text
        return f"{text}: {_remedy(job, result)}"
    if result.outcome == "interrupted":
        out, text = job.experiment.run.out, f"interrupted after step {result.steps}: "
        if isinstance(result, AsyncResult) and result.obstacle:
            return f"{text}{out} is complete up to it; {result.obstacle}"
        return f"{text}continue with {resume_command('run', out, ranks)}"
    return result.reason


def _remedy(job: Job, result: Result) -> str:
    """Return what helps against the divergence of a run."""
    mixing, step = job.experiment.mixing, result.step_size
    if ANY_SIZE in result.reason:
        if mixing.attack is not None and mixing.robust is None:
            return "mixing.robust leaves such rows out"
        return "look for NaN in what agents send"
    if job.solver.unstable(job.topology):
        return (
            f"the likely cause is the graph, on which {type(job.solver).__name__} is unstable (see "
            "the warning above)"
        )
    remedy = "use smaller step sizes"
    if isinstance(step, (int, float)):
        remedy = f"use a step size smaller than {step:.3g}"
    if not (mixing.codec and job.solver.exact):
        return remedy
    smaller = "" if job.solver.needs.least_delta else f", or {remedy}"
    return (
        f"the likely cause is the codec, {short(mixing.codec)}{options(mixing.options)}: send more "
        f"of each row, set a smaller mixing.gamma, take another solver, such as beer{smaller}"
    )


def _given(job: Job, result: Result) -> dict[str, Any]:
    """Return the parameters of the solver, without a step size that has a row of its own."""
    found = dict(job.experiment.solver.options)
    if result.choice is not None:
        found.pop("step_size", None)
    return found


def summary(
    job: Job,
    result: Result,
    ranks: int,
    slow: str = "",
    theory: str = "",
    privacy: str = "",
    lost: str = "",
) -> str:
    """Return the table printed at the end of a run; `slow` says what makes it slow, `theory` what
    is expected of it, `privacy` what its noise hides, and `lost` who has died, a line for each
    time.
    """
    problem, wanted, n = job.experiment.problem, job.experiment.run, job.topology.n
    metrics = {name: values[-1] for name, values in result.metrics.items() if len(values)}
    solver = job.experiment.solver
    runs = wanted.runs or 1
    rows = {
        "problem": f"{short(problem.name)}{options(_penalties(problem))}",
        "data": _data(job),
        "classes": ", ".join(f"{word} = {number}" for number, word in _classes(job)),
        "agents": f"{n}, simulated" if wanted.simulate else f"{n} on {plural(ranks, 'rank')}",
        "lost": "; ".join(lost.splitlines()),
        "runs": _runs(runs, wanted.seed),
        "topology": _topology(job, job.spectral_gap(result.choice)),
        "mixing": _mixing(job.experiment.mixing),
        "solver": f"{short(solver.name)}{options(_given(job, result))}",
        "step size": "" if result.choice is None else result.choice.line(),
        **(asynchronous_rows(wanted) if job.asynchronous else {}),
        "steps": f"{result.steps} of {wanted.steps}",
        **(async_rows(result) if isinstance(result, AsyncResult) else {}),
        "outcome": _outcome(result, job.limits),
        **{name: _value(metrics, name, runs) for name in _shown(metrics, runs)},
        "theory": theory,
        "privacy": privacy,
        "time": _time(result, wanted),
        "sent": _sent(metrics, n, runs),
        "file": wanted.out,
        "pace": slow,
        "note": job.note,
    }
    return facts({name.replace("_", " "): value for name, value in rows.items() if value})


def _topology(job: Job, gap: float | None) -> str:
    """Return the graph, with its spectral gap if that is known."""
    graph = job.experiment.topology
    more = "" if gap is None else f", spectral gap {gap:.4g}"
    return f"{short(graph.name)}{options(graph.options)}{more}"


def _shown(metrics: Mapping[str, float], runs: int) -> list[str]:
    """Return the metrics that have rows of their own; the bands of many runs have none."""
    bands = {f"{name}_{end}" for name in metrics for end in BAND} if runs > 1 else set()
    known = (*COLUMNS, "error_max", *sorted(metrics.keys() - BUILT_IN - bands))
    return [name for name in known if name in metrics]


def _sent(metrics: Mapping[str, float], n: int, runs: int) -> str:
    """Return how much the n agents have sent."""
    share = f", {metrics[SHARE]:.1%} of the messages" if SHARE in metrics else ""
    return f"{quantity(metrics['bytes'] / n, 'B')} per agent{' and run' * (runs > 1)}{share}"


def _data(job: Job) -> str:
    """Return the data set, its size and its partition."""
    problem, label = job.experiment.problem, f"label {job.label}, " if job.label else ""
    if not problem.data:
        return f"none, {job.d} unknowns"
    return (
        f"{short(problem.data)}, {job.samples} samples x {job.d} unknowns, {label}partition "
        f"{problem.partition}"
    )


def _runs(runs: int, seed: int) -> str:
    """Return how many runs take their steps together."""
    if runs == 1:
        return ""
    return f"{runs}, seeds {seed} to {seed + runs - 1}; their mean (10 % and 90 % quantiles)"


def _value(metrics: Mapping[str, float], name: str, runs: int) -> str:
    """Return the last value of a metric, and of many runs their band."""
    text = f"{metrics[name]:.6g}"
    if runs == 1 or f"{name}_low" not in metrics:
        return text
    low, high = (metrics[f"{name}_{end}"] for end in BAND)
    return f"{text} ({low:.3g} to {high:.3g})"


def _outcome(result: Result, limits: Mapping[str, float]) -> str:
    """Return how a run ended, with step and limits."""
    more = {
        "stopped": f" at step {result.steps}: {Target(limits)}",
        "diverged": f" at step {result.steps}",
        "missed": f": {_missed(result, limits)} after {result.steps} steps",
        "completed": f": {result.verdict}" if result.verdict else "",
    }
    return f"{result.outcome}{more.get(result.outcome, '')}"


def _missed(result: Result, limits: Mapping[str, float]) -> str:
    """Return the first limit that a run has not reached."""
    last = {name: values[-1] for name, values in result.metrics.items()}
    name, limit = Target(limits).missed(last) or ("", 0.0)
    return f"{name} {'<' if rises(name) else '>'} {limit:g}"


def _time(result: Result, wanted: config.Run) -> str:
    """Return how long a run took."""
    steps, times = result.metrics["step"], result.metrics["time"]
    if wanted.simulate:
        return f"{times[-1]:.4g} units, simulated"
    pace = steps[-1] / max(times[-1], 1e-9)  # also of the parts before a resume
    return f"{times[-1]:.3g} s, {pace:.4g} steps/s"


def asynchronous_rows(wanted: config.Run) -> dict[str, str]:
    """Return what delays, loses and stops messages and agents."""
    unit = "units" if wanted.simulate else "s"
    delay = wanted.delay if isinstance(wanted.delay, tuple) else (wanted.delay or 0.0,)
    times = " to ".join(f"{value:g}" for value in dict.fromkeys(delay))
    return {
        "delay": f"{times} {unit}" if any(delay) else "",
        "drop": f"{wanted.drop:.4g}" if wanted.drop else "",
        "stragglers": ", ".join(
            f"agent {agent} {time:g} {unit} a step" for agent, time in wanted.pauses().items()
        ),
    }


def async_rows(result: AsyncResult) -> dict[str, str]:
    """Return what the agents, the edges and the ranks of an asynchronous run have done."""
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
    """Return the numbers that stand for the names of the classes."""
    return [
        (
            2 * c - 1 if len(job.classes) == 2 and job.experiment.problem.name == "logistic" else c,
            word,
        )
        for c, word in enumerate(job.classes)
    ]


def _penalties(problem: config.Problem) -> dict[str, object]:
    """Return the options of a problem, and the settings of its scale and penalties that are not the
    defaults.
    """
    names = ("scale", "intercept", "l2_total", "l1", "l1_total", "lower", "upper", "simplex")
    return dict(problem.options) | {
        name: value for name in names if (value := vars(problem)[name]) is not None
    }


def _mixing(wanted: config.Mixing) -> str:
    parts = [f"{short(wanted.codec)}{options(wanted.options)}"] if wanted.codec else []
    if wanted.accelerate:
        parts.append(f"{wanted.accelerate} times, {wanted.method or 'chebyshev'}")
    if wanted.triggered is not None:
        decays = f" * {wanted.decay}^k" * bool(wanted.decay)
        parts.append(f"triggered {wanted.triggered:g}{decays}")
    faults = {
        name: vars(wanted)[name] for name in ("attack", "noise", "clip", "lose", "robust", "repeat")
    }
    parts += [f"{name} {value}" for name, value in faults.items() if value is not None]
    return ", ".join(parts)
