"""Gradient tracking: what it refuses."""

import pytest

from mpidec import solvers as S


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.GradientTracking(0.1, variant="x"), "expected one of atc, semi-atc, diging"),
    ],
)
def test_a_wrong_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()
