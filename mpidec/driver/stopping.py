"""Endings of a run: its target, an explosion, and the likely cause of a missed target."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..exceptions import Interrupted as Interrupted
from .metrics import COUNTERS, GROWING

OBJECTIVE, SIZE, GROWTH, FAR = 1e6, 1e3, 10.0, 1e30  # factors of an explosion
_COLUMNS = 30.0  # ratio of column norms that slows a run down
_STILL = 1e-9  # relative change over half of a run that has come to rest
_SLOW = 1000  # factor of the steps taken that are missing when a run has come to rest
_LARGE = 500  # agents up to which the spectral gap is computed for a message

Stop = Mapping[str, float] | Callable[[Mapping[str, float]], bool]


class Outcome(str, enum.Enum):
    """Outcome of a run; compares equal to the plain string."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    MISSED = "missed"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Target:
    """Limits of metrics at which a run stops, all of them at one record.

    Examples
    --------
    >>> target = Target({"error": 1e-8, "rounds": 100})
    >>> target.reached({"error": 1e-9, "rounds": 100})
    True
    >>> target.missed({"error": 0.5, "rounds": 100})
    ('error', 1e-08)
    """

    limits: Mapping[str, float]

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether all limits are reached."""
        return all(
            metrics[name] >= limit if name in GROWING else metrics[name] <= limit
            for name, limit in self.limits.items()
        )

    @property
    def is_quality(self) -> bool:
        """Whether a limit is on something else than a budget."""
        return any(name not in GROWING for name in self.limits)

    def missed(self, metrics: Mapping[str, float]) -> tuple[str, float] | None:
        """The first metric that is still above its limit, with the limit; None if there is none (budgets do not count)."""
        return next(
            (
                (name, limit)
                for name, limit in self.limits.items()
                if name not in GROWING and not metrics[name] <= limit
            ),
            None,
        )


def target_of(
    stop: Stop | None, problem: Any, counters: Sequence[str] = COUNTERS
) -> Target | Callable[[Mapping[str, float]], bool] | None:
    if stop is None or callable(stop):
        return stop
    if not isinstance(stop, Mapping) or not stop:
        raise TypeError(
            f'stop is {stop!r}, expected a mapping such as {{"error": 1e-8}} or a callable'
        )
    errors = {"error", "error_rms", "error_max"}
    known = {"consensus", *counters} - {"step"}
    known |= {"gradient_norm", "objective"} if problem is not None else set()
    known |= errors if getattr(problem, "x_star", None) is not None else set()
    for name, limit in stop.items():
        if name not in known:
            reason = (
                " (the problem has no x_star)"
                if name in errors
                else " (steps=... limits the steps)"
                if name in ("step", "steps")
                else ""
            )
            raise ValueError(
                f"stop: unknown metric {name!r}{reason}, expected one of {', '.join(sorted(known))}"
            )
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not np.isfinite(limit):
            raise ValueError(f"stop[{name!r}] is {limit!r}, expected a finite number")
        if limit < 0 and name != "objective":
            raise ValueError(
                f"stop[{name!r}] is {limit!r}, expected a number >= 0: {name} is never negative"
            )
        if limit == 0 and name in errors:
            raise ValueError(
                f"stop[{name!r}] is 0, expected a number > 0, such as 1e-8: rounding keeps {name} above 0"
            )
    return Target(dict(stop))


def not_finite(metrics: Mapping[str, float], last: bool) -> str:
    """The name of a metric that is not finite, or "".

    An objective of +inf counts only at the last record (`last`): a mean that is still outside the domain of f may enter it.
    """
    return next(
        (
            name
            for name, value in metrics.items()
            if not math.isfinite(value) and (last or name != "objective" or value != math.inf)
        ),
        "",
    )


def exploded(records: Sequence[Mapping[str, float]], sizes: Sequence[float]) -> str:
    """What has exploded between the first and the last record, or "".

    An explosion is judged at the end of a run only, because an iterate may grow by any factor and still come back (step sizes
    that start too large and decrease).  The objective must have grown by 1e6 in size, at least tenfold since the first half of
    the run, and the rows by 1e3; without an objective the rows by 1e6.  Where the solution is known, an error that has grown by
    1e3, and is larger than 1e3, suffices; and rows that have grown to 1e30 always do.
    """
    if len(records) < 2:
        return ""
    if "objective" not in records[0]:
        far = sizes[-1] > OBJECTIVE * sizes[0] > 0
        return f"the rows grew from {sizes[0]:.3g} to {sizes[-1]:.3g}" if far else ""
    values = [abs(metrics["objective"]) for metrics in records]
    early = max(value for value in values[: (len(values) + 1) // 2])
    if (
        values[-1] > OBJECTIVE * values[0] > 0
        and values[-1] > GROWTH * early
        and sizes[-1] > SIZE * sizes[0]
    ):
        return f"the objective grew from {records[0]['objective']:.3g} to {records[-1]['objective']:.3g}"
    first, last = (metrics.get("error", 0.0) for metrics in (records[0], records[-1]))
    if last > SIZE * max(first, 1.0):
        return f"the error grew from {first:.3g} to {last:.3g}"
    return (
        f"the rows grew from {sizes[0]:.3g} to {sizes[-1]:.3g}"
        if sizes[-1] > FAR * max(sizes[0], 1.0)
        else ""
    )


class RunEnd(NamedTuple):
    """How a run has ended: its outcome, the reason, and the agent that has diverged."""

    outcome: Outcome
    reason: str = ""
    agent: int | None = None


def decide_outcome(
    records: Sequence[Mapping[str, float]],
    sizes: Sequence[float],
    moment: str,
    diverged_agent: Callable[[], int],
    *,
    target: Target | Callable[[Mapping[str, float]], bool] | None = None,
    stopped: bool = False,
    interrupted: bool = False,
    too_far: Callable[[], str] = lambda: "",
    cause: Callable[[str, float], str] = lambda name, limit: "",
) -> RunEnd:
    """Decide the outcome of a run that has ended by itself, from its records: of `solve`, on ranks, and simulated.

    Parameters
    ----------
    records : sequence of mappings
        Its metrics.
    sizes : sequence of float
        Sizes of the rows at the records.
    moment : str
        The time of the last record, such as "after 12 steps".
    diverged_agent : callable () -> int
        The agent that has diverged; collective on ranks.
    target : Target or callable, optional
        What the run should reach.
    stopped, interrupted : bool
        Whether it has reached that, or Ctrl-C has ended it.
    too_far : callable () -> str
        Why the rows count as diverged although their metrics do not, or ""; collective on ranks.
    cause : callable (name, limit) -> str
        The likely cause of a missed target, or ""; collective on ranks.

    Examples
    --------
    >>> decide_outcome([{"error": 1.0}, {"error": float("nan")}], [1.0, 1.0], "at time 5", lambda: 3)
    RunEnd(outcome=<Outcome.DIVERGED: 'diverged'>, reason='error is nan at time 5 (first at agent 3)', agent=3)
    """
    last, quality = records[-1], isinstance(target, Target) and target.is_quality
    if stopped and quality:
        return RunEnd(Outcome.STOPPED)
    moved = len(records) > 1 or last["step"] > 0
    if name := not_finite(last, last=True) if moved else "":
        agent = diverged_agent()
        reason = f"{name} is {last[name]:g} {moment} (first at agent {agent})"
        return RunEnd(Outcome.DIVERGED, reason, agent)
    if grown := exploded(records, sizes):
        agent = diverged_agent()
        reason = f"{grown} {moment} (agent {agent} is the farthest)"
        return RunEnd(Outcome.DIVERGED, reason, agent)
    if stopped or interrupted:
        return RunEnd(Outcome.STOPPED if stopped else Outcome.INTERRUPTED)
    if far := too_far():
        return RunEnd(Outcome.DIVERGED, far, diverged_agent())
    missed = target.missed(last) if isinstance(target, Target) else None
    if missed is None:
        return RunEnd(Outcome.COMPLETED)
    name, limit = missed
    remedy = cause(name, limit)
    reason = f"{name} {last[name]:.3g} {moment}, target {short(limit)} missed"
    return RunEnd(Outcome.MISSED, f"{reason}: {remedy}" if remedy else reason)


def likely_cause(
    net: Any,
    problem: Any,
    topology: Any,
    solver: Any,
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


def spread(net: Any, problem: Any) -> tuple[float, int, int] | None:
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


def short(number: float) -> str:
    """A number as people write it: 1e-8.

    Examples
    --------
    >>> short(1e-8), short(0.05)
    ('1e-8', '0.05')
    """
    return re.sub(r"e([-+])0*", lambda match: "e" + match[1].strip("+"), f"{number:g}")


def _rounded(number: float) -> str:
    digits = max(len(str(int(number))) - 2, 0)
    return f"{round(number / 10**digits) * 10**digits:,}"
