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
from .stepsize import Guard


def once(attempt: Attempt, clock: Clock) -> Result:
    """One run, with one step size, on one graph; collective.

    Raises
    ------
    Retry
    """
    plan = attempt.plan
    # until the file is complete: Ctrl-C reaches some ranks later than others
    with interrupts() as interrupted:
        with Journal(plan, clock, attempt.choice, attempt.guard) as journal:
            k, s, end = _run(attempt, clock, journal, interrupted)
            attempt.retry(end, k)
            plan.net.wait_for_readers()
        try:
            if end.outcome is not Outcome.DIVERGED:
                journal.checkpoint(k, s)
            clock.finish()
            result = clock.result(attempt.result(k, s, journal, end))
            journal.finish(result)
        except BaseException:
            journal.close()
            raise
        return result


def _run(
    attempt: Attempt, clock: Clock, journal: Journal, interrupted: Callable[[], bool]
) -> tuple[int, State, RunEnd]:
    """Return the last step, its state, and why it is the last one; collective."""
    plan, errors, guard = attempt.plan, clock.errors, attempt.on_the_way
    k, s = journal.begin()
    control = Control(plan.net, plan.checkpoint_seconds)
    stopped = _begun(journal, guard, k, s)
    states = iter(()) if stopped else clock.states(k, s)
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
        journal.keep(k, s, decision)
        if stopped:
            break
    errors.raise_together()  # of the last call of progress
    return k, s, attempt.judge(k, s, journal, stopped)


def _begun(journal: Journal, guard: Guard | None, k: int, s: State) -> bool:
    """Record the first state where that is due, and return whether to stop at once; collective."""
    stopped = journal.recorded_at_once(k) and journal.record(k, s)
    if k:
        journal.copy(k, s)
    if k and guard is not None:
        guard.skip(k)
    return stopped
