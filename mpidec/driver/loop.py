"""The loop of a run: take the states from its clock; after each, record, checkpoint or stop what
is due.
"""

from __future__ import annotations

from collections.abc import Callable

from ..comm.runtime import interrupts
from .attempts import Attempt
from .clocks import Clock
from .decisions import Control
from .journal import Journal
from .outcome import Outcome, RunEnd, not_finite
from .plan import State
from .result import Result


def once(attempt: Attempt, clock: Clock) -> Result:
    """One run, with one step size, on one graph; collective.

    Raises
    ------
    Retry
    """
    plan = attempt.plan
    # until the file is complete: Ctrl-C reaches some ranks later than others
    with interrupts() as interrupted:
        with Journal(plan, clock, attempt.choice) as journal:
            k, s, end = _run(attempt, clock, journal, interrupted)
            attempt.retry(end, k)
            plan.net.wait_for_readers()
        if end.outcome is not Outcome.DIVERGED:
            journal.checkpoint(k, s)
        clock.finish()
        result = clock.result(attempt.result(k, s, journal, end))
        journal.finish(result)
        return result


def _run(
    attempt: Attempt, clock: Clock, journal: Journal, interrupted: Callable[[], bool]
) -> tuple[int, State, RunEnd]:
    """Return the last step, its state, and why it is the last one; collective."""
    plan, errors = attempt.plan, clock.errors
    k, s = journal.begin()
    control = Control(plan.net, plan.record.checkpoint_seconds if plan.record else None)
    stopped = journal.recorded_at_once(k) and journal.record(k, s)
    states, guard = iter(()) if stopped else clock.states(k, s), attempt.on_the_way
    if k:
        journal.copy(k, s)
        if guard is not None:
            guard.skip(k)
    for k, s, recorded in states:
        control.watch(k, s.X)
        if guard is not None and k >= guard.next:
            guard.check(k, plan.of_first_run(s.X))
        if not (recorded or k >= control.next):
            continue
        decision = control.decide(
            k, interrupted(), errors.first or journal.error, journal.copy_is_due
        )
        if decision.failed:
            errors.raise_together(journal.error)
        if decision.diverged is not None:
            return decision.diverged[0], s, attempt.not_finite(*decision.diverged)
        if recorded or decision.interrupted:
            stopped = journal.record(k, s)
            if not_finite(journal.records[-1], last=False):
                break
        if decision.interrupted:
            return k, s, RunEnd(Outcome.INTERRUPTED)
        if decision.checkpoint:
            journal.checkpoint(k, s)
        if decision.copy:
            journal.copy(k, s)
        if stopped:
            break
    errors.raise_together()  # of the last call of progress
    return k, s, attempt.judge(k, s, journal, stopped)
