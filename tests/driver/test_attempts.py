"""What an attempt says of its end: each sentence where it is true, and not where it is not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mpidec.driver.attempts import ANY_SIZE, Attempt
from mpidec.driver.verdict import verdict

pytestmark = pytest.mark.serial
X = np.zeros((2, 3))


def attempt(period=1, chosen=True, futile=False, far="", last=True, unstable="", disturbance=""):
    return Attempt(
        plan=SimpleNamespace(solver=SimpleNamespace(period=period), of_first_run=lambda rows: rows),
        clock=SimpleNamespace(disturbance=disturbance),
        choice=SimpleNamespace(futile=futile) if chosen else None,
        guard=SimpleNamespace(far=lambda rows, strict: far),
        last=last,
        unstable=unstable,
    )


@pytest.mark.parametrize(
    "k, given, any_size",
    [
        (1, {}, True),
        (2, {}, False),
        (1, {"chosen": False}, False),  # of a step size of the user's
        (5, {"period": 5, "disturbance": "wrong rows are sent"}, True),  # after local steps
        (4, {"period": 5, "disturbance": "wrong rows are sent"}, False),
        (5, {"period": 5}, False),  # nothing but the step size can be the cause
        (1, {"period": 5, "disturbance": "wrong rows are sent"}, True),
    ],
)
def test_what_any_step_size_would_do_is_not_blamed_on_it(k, given, any_size):
    said = attempt(**given).not_finite(k, agent=3).reason
    assert said.startswith(f"the iterate of agent 3 is not finite after step {k}")
    assert (ANY_SIZE in said) == any_size
    cause = given.get("disturbance", "")
    assert said.endswith(f", as {cause}") == bool(any_size and cause)


@pytest.mark.parametrize(
    "given, remedy",
    [
        ({}, "start closer to the minimizer (x0)"),
        ({"last": False}, ""),
        ({"unstable": "the schedule is unstable"}, ""),  # another start would not help
        ({"futile": True}, "no step size makes progress with this codec"),
        ({"chosen": False}, "start closer to the minimizer (x0)"),
    ],
)
def test_the_remedy_for_a_run_that_ends_far_away(given, remedy):
    said = attempt(far="the iterates are far away", **given).too_far(X, 40)
    assert said.startswith("the iterates are far away, after 40 steps") and remedy in said
    assert ("x0" in said) == ("x0" in remedy) and ("codec" in said) == ("codec" in remedy)
    assert attempt(far="", **given).too_far(X, 40) == ""


@pytest.mark.parametrize("top, grown", [(1.0, False), (1e-9, True)])
def test_a_run_that_begins_at_the_solution_has_not_grown(top, grown):
    """Its error rises from nothing, and falls again to far below what it was in between."""
    steps = np.arange(101)
    error = np.maximum(top * 0.9 ** np.abs(steps - 20.0), 1e-9 * 1.05**steps)
    error[0] = 1e-12
    said = verdict({"step": steps, "error_rms": error})
    assert ("has grown" in said) == grown, said
