"""How runs end: outcomes, targets and explosions."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._validation import takes
from ..record.internals import rises
from .metrics import BUILT_IN, COUNTERS, ERRORS, GROWING, METRICS, NONE, provided

if TYPE_CHECKING:
    from ..problems import Problem

OBJECTIVE, SIZE, GROWTH, FAR = 1e6, 1e3, 10.0, 1e30  # factors of an explosion
# Part of a gradient that is less than its rounding errors.
NOTHING = 1e-20

StopFunction = Callable[[Mapping[str, float]], bool]
Stop = Mapping[str, float] | StopFunction


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
    >>> str(Target({"error": 1e-8, "accuracy": 0.9}))
    'error <= 1e-08 and accuracy >= 0.9'
    """

    limits: Mapping[str, float]

    def __str__(self) -> str:
        return " and ".join(
            f"{name} {'>=' if _grows(name) else '<='} {limit:g}"
            for name, limit in self.limits.items()
        )

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether all limits are reached."""
        return all(self._met(name, metrics) for name in self.limits)

    def _met(self, name: str, metrics: Mapping[str, float]) -> bool:
        value, limit = metrics[name], self.limits[name]
        return value >= limit if _grows(name) else value <= limit

    @property
    def is_quality(self) -> bool:
        """Whether a limit is on something else than a budget."""
        return any(name not in GROWING for name in self.limits)

    def missed(self, metrics: Mapping[str, float]) -> tuple[str, float] | None:
        """Return the first metric that has not reached its limit, with the limit; None if there is
        none (budgets do not count).
        """
        return next(
            (
                (name, limit)
                for name, limit in self.limits.items()
                if name not in GROWING and not self._met(name, metrics)
            ),
            None,
        )


def _grows(name: str) -> bool:
    """Return whether a limit on a metric is a lower one: of budgets, and of what is better if
    larger.
    """
    return name in GROWING or rises(name)


def target_of(
    stop: Stop | None,
    problem: Problem | None,
    counters: Sequence[str] = COUNTERS,
    own: Iterable[str] = NONE,
) -> Target | StopFunction | None:
    """Return the target that the argument `stop` of `solve` stands for; None if there is none.
    `own` are the names of the user's own metrics.

    Raises
    ------
    TypeError, ValueError
    """
    if callable(stop):
        takes(stop, "stop", "metrics")
    if stop is None or callable(stop):
        return stop
    if not isinstance(stop, Mapping) or not stop:
        raise TypeError(
            f'stop is {stop!r}, expected a mapping such as {{"error": 1e-8}} or a callable'
        )
    measured = (metric.name for metric in provided(problem))
    known = {*measured, *counters, *own} - {"step"}
    for name, limit in stop.items():
        if name not in known:
            reason = (
                " (the problem has no x_star)"
                if name in ERRORS
                else " (steps=... limits the steps)"
                if name in ("step", "steps")
                else ""
            )
            raise ValueError(
                f"stop: unknown metric {name!r}{reason}, expected one of {', '.join(sorted(known))}"
            )
        _check_limit(name, limit, own)
    return Target(dict(stop))


def said_by(stop: StopFunction, metrics: Mapping[str, float]) -> bool:
    """Return whether a function says to stop, of a copy of the metrics.

    Raises
    ------
    TypeError
        If it returns neither True nor False.
    """
    said = stop(dict(metrics))
    if not isinstance(said, (bool, np.bool_)):
        forgot = ": is a return missing?" if said is None else ""
        raise TypeError(f"stop(metrics) returned {said!r:.60}, expected True or False{forgot}")
    return bool(said)


def hits(target: Target | StopFunction | None, metrics: Mapping[str, float]) -> bool:
    """Return whether a record has reached the target, if there is one."""
    if target is None:
        return False
    return target.reached(metrics) if isinstance(target, Target) else said_by(target, metrics)


def _check_limit(name: str, limit: object, own: Iterable[str]) -> None:
    """Refuse a limit that is no number, or that the metric cannot reach."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not np.isfinite(limit):
        raise ValueError(f"stop[{name!r}] is {limit!r}, expected a finite number")
    signed = {metric.name for metric in METRICS.values() if metric.signed}
    if limit < 0 and name not in signed.union(own):
        raise ValueError(
            f"stop[{name!r}] is {limit!r}, expected a number >= 0: {name} is never negative"
        )
    if limit == 0 and name in ERRORS:
        raise ValueError(
            f"stop[{name!r}] is 0, expected a number > 0, such as 1e-8: rounding keeps {name} "
            "above 0"
        )


def not_finite(metrics: Mapping[str, float], last: bool) -> str:
    """Return the name of a metric that is not finite; "" if there is none.

    An objective of +inf counts only at the last record (`last`): a mean that is still outside the
    domain of f may enter it.  Metrics of the user's own may have any value.
    """
    return next(
        (
            name
            for name, value in metrics.items()
            if name in BUILT_IN
            and not math.isfinite(value)
            and (last or name != "objective" or value != math.inf)
        ),
        "",
    )


def _falls(records: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the gradient is smaller at the end, but not by more than rounding errors
    allow: as on the way to a minimizer far away, and not where a step has led out of reach of what
    was large.
    """
    first, last = (metrics.get("gradient_norm", math.nan) for metrics in (records[0], records[-1]))
    return NOTHING * first < last < first


def exploded(records: Sequence[Mapping[str, float]], sizes: Sequence[float]) -> str:
    """Name the metric that has exploded between the first and the last record; "" if none has.

    An explosion is judged at the end of a run only, because an iterate may grow by any factor and
    still come back (step sizes that start too large and decrease).  The objective must have grown
    by 1e6 in size, at least tenfold since the first half of the run, and the rows by 1e3; if it has
    fallen so far, the gradient must not have become smaller.  Without an objective the rows must
    have grown by 1e6.  Where the solution is known, an error that has grown by 1e3, and is larger
    than 1e3, suffices; and so do rows that have grown to 1e30, unless the gradient is smaller.
    """
    if len(records) < 2:
        return ""
    if "objective" not in records[0]:
        far = sizes[-1] > OBJECTIVE * sizes[0] > 0
        return f"the rows grew from {sizes[0]:.3g} to {sizes[-1]:.3g}" if far else ""
    if sizes[-1] > SIZE * sizes[0] and (changed := _objective_exploded(records)):
        return changed
    first, last = (metrics.get("error", 0.0) for metrics in (records[0], records[-1]))
    if last > SIZE * max(first, 1.0):
        return f"the error grew from {first:.3g} to {last:.3g}"
    return (
        f"the rows grew from {sizes[0]:.3g} to {sizes[-1]:.3g}"
        if sizes[-1] > FAR * max(sizes[0], 1.0) and not _falls(records)
        else ""
    )


class RunEnd(NamedTuple):
    """How a run has ended: its outcome, the reason, and the agent that has diverged."""

    outcome: Outcome
    reason: str = ""
    agent: int | None = None


def _objective_exploded(records: Sequence[Mapping[str, float]]) -> str:
    """How the objective has grown in size without bounds, or ""."""
    objectives = [metrics["objective"] for metrics in records]
    values = [abs(value) for value in objectives]
    early = max(values[: (len(values) + 1) // 2])
    if values[-1] > OBJECTIVE * values[0] > 0 and values[-1] > GROWTH * early:
        change = f"from {objectives[0]:.3g} to {objectives[-1]:.3g}"
        if objectives[-1] > objectives[0]:
            return f"the objective grew {change}"
        if not records[-1]["gradient_norm"] < records[0]["gradient_norm"]:
            return f"the objective seems unbounded below: it fell {change}"
    return ""


def decide_outcome(
    records: Sequence[Mapping[str, float]],
    sizes: Sequence[float],
    moment: str,
    diverged_agent: Callable[[], int],
    *,
    target: Target | StopFunction | None = None,
    stopped: bool = False,
    interrupted: bool = False,
    too_far: Callable[[], str] = lambda: "",
    cause: Callable[[str, float], str] = lambda name, limit: "",
) -> RunEnd:
    """Decide the outcome of a run that has ended by itself, from its records: of `solve`, on ranks,
    and simulated.

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
    overflows = records[0].get("objective") == math.inf and _falls(records)
    if name := not_finite(last, last=not overflows) if moved else "":
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
    if isinstance(target, Target) and (missed := target.missed(last)):
        name, limit = missed
        reason = f"{name} {last[name]:.3g} {moment}, target {short(limit)} missed"
        return RunEnd(Outcome.MISSED, ": ".join(filter(None, (reason, cause(name, limit)))))
    return RunEnd(Outcome.COMPLETED)


def short(number: float) -> str:
    """Return a number as people write it: 1e-8.

    Examples
    --------
    >>> short(1e-8), short(0.05)
    ('1e-8', '0.05')
    """
    return re.sub(r"e([-+])0*", lambda match: "e" + match[1].strip("+"), f"{number:g}")
