"""DGD and diffusion: what they refuse."""

import pytest

from mpidec import solvers as S


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.DGD(0.1, order="act"), "order is 'act', expected one of awc, atc, cta"),
        (lambda: S.Diffusion(0.1, order="awc"), "expected one of atc, cta"),
    ],
)
def test_a_wrong_word(make, words):
    with pytest.raises(ValueError, match=words):
        make()
