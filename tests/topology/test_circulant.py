"""Circulant graphs: what they refuse.  No MPI."""

import numpy as np
import pytest

import mpidec.topology as T

pytestmark = pytest.mark.serial


WRONG = [
    (lambda: T.ring(0), ValueError, "ring: n is 0, expected an integer >= 1"),
    (lambda: T.ring(-3), ValueError, "n is -3"),
    (lambda: T.ring(4.0), TypeError, "n is 4.0"),
    (lambda: T.ring(True), TypeError, "n is True"),
    (lambda: T.ring("8"), TypeError, "n is '8'"),
    (lambda: T.ring(None), TypeError, "n is None"),
    (lambda: T.ring([4]), TypeError, "n is [4]"),
    (lambda: T.ring(np.array([4, 5])), TypeError, "n is array([4, 5])"),
    (lambda: T.exponential(8, base=1), ValueError, "base is 1, expected an integer >= 2"),
    (lambda: T.exponential(8, base=2.5), TypeError, "base is 2.5, expected an integer"),
    (lambda: T.symmetric_exponential(8, base=0), ValueError, "base"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)
