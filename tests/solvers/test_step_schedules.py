"""Schedules of step sizes as text and as functions."""

import numpy as np
import pytest

from mpidec import solvers as S
from mpidec.solvers.step_schedules import SCHEDULES, parsed


@pytest.mark.serial
def test_schedules_are_refused_with_a_reason():
    for text, words in (
        ("inverse(-1)", "start is -1"),
        ("cosine(0.1, steps=0)", "steps is 0"),
        ("cosine(0.1, stops=3)", "stops"),
        ("__import__('os')", "unknown schedule"),
        ("warm_up(0.1, 5, then=3)", "then is 3"),
        ("1 + 1", "contains"),
        ("inverse(", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=words):
            parsed(text)
    with pytest.raises(ValueError, match="only solve"):
        S.Inverse()(3)
    with pytest.raises(ValueError, match="only solve"):
        S.DGD().step(S.DGD().init(np.ones((1, 2))), np.ones((1, 2)), lambda X: X)
    assert {"constant", "inverse", "inverse_sqrt", "step", "cosine", "warm_up"} == set(SCHEDULES)


@pytest.mark.serial
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_starts_elsewhere_is_the_same_but_for_a_factor(name):
    for start in ("auto", "safe", 0.7):
        other = SCHEDULES[name](start).starting_at(0.3)
        assert type(other) is SCHEDULES[name] and other.start == 0.3
        assert [other(k) for k in (0, 3, 400)] == [0.3 * other.factor(k) for k in (0, 3, 400)]


@pytest.mark.serial
def test_factors_are_those_of_the_formulas():
    k, rng = np.arange(60), np.random.default_rng(0)
    for T in (1.0, 2.5, *rng.uniform(3, 20, 3)):
        part = float(rng.uniform(0.1, 0.9))
        half = part + (1 - part) * np.cos(np.pi * np.minimum(k / T, 1) / 2) ** 2
        ramp = np.minimum((k + 1) / np.ceil(T), 1)
        for schedule, want in [
            (S.Inverse(0.3, delay=T), T / (T + k)),
            (S.InverseSqrt(0.3, delay=T), np.sqrt(T / (T + k))),
            (S.StepDecay(0.3, ratio=part, every=T), part ** np.floor(k / T)),
            (S.Cosine(0.3, steps=T, end=part), half),
            (S.WarmUp(0.3, steps=T), ramp),
            (
                S.WarmUp(0.3, steps=T, then=S.Inverse(delay=4.0)),
                np.minimum(ramp, 4 / (4 + np.maximum(k - np.ceil(T), 0))),
            ),
        ]:
            got = [schedule(each) for each in k.tolist()]
            np.testing.assert_allclose(got, 0.3 * want, rtol=1e-12, err_msg=repr(schedule))
