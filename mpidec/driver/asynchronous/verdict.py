"""Outcomes of asynchronous runs, judged by their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..stopping import Outcome, Target, exploded, not_finite, short


class Verdict(NamedTuple):
    """Outcome of a run, the reason, and the agent that diverged."""

    outcome: Outcome
    reason: str = ""
    agent: int | None = None


def verdict(
    records: Sequence[Mapping[str, Any]],
    sizes: Sequence[float],
    culprit: Callable[[], int],
    moment: Callable[[Mapping[str, Any]], str],
    *,
    stopped: bool = False,
    interrupted: bool = False,
    target: Any = None,
    cause: Callable[[str, float], str] = lambda name, limit: "",
) -> Verdict:
    """Judge a run.

    Parameters
    ----------
    records : sequence of mappings
        Its metrics.
    sizes : sequence of float
        Sizes of the rows at the records.
    culprit : callable () -> int
        The agent that diverged; collective on ranks.
    moment : callable (metrics) -> str
        The time of a record in words.
    stopped, interrupted : bool
        How the run has ended.
    target : Target, optional
        What it should have reached.
    cause : callable (name, limit) -> str
        The likely cause of a missed target, as the end of a sentence; collective on ranks.

    Examples
    --------
    >>> verdict([{"error": 1.0}, {"error": float("nan")}], [1.0, 1.0], lambda: 3, lambda last: "at time 5")
    Verdict(outcome=<Outcome.DIVERGED: 'diverged'>, reason='error is nan at time 5', agent=3)
    """
    last = records[-1]
    name = not_finite(last, last=True) if len(records) > 1 else ""
    if name:
        return Verdict(Outcome.DIVERGED, f"{name} is {last[name]:g} {moment(last)}", culprit())
    if not stopped and (grown := exploded(records, sizes)):
        return Verdict(Outcome.DIVERGED, grown, culprit())
    if stopped or interrupted:
        return Verdict(Outcome.STOPPED if stopped else Outcome.INTERRUPTED)
    missed = target.missed(last) if isinstance(target, Target) else None
    if missed is None:
        return Verdict(Outcome.COMPLETED)
    name, limit = missed
    return Verdict(
        Outcome.MISSED,
        f"{name} {last[name]:.3g} {moment(last)}, target {short(limit)} missed{cause(name, limit)}",
    )
