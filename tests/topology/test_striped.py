"""Stripes: what they refuse.  No MPI."""

import pytest

import mpidec.topology as T

pytestmark = pytest.mark.serial


WRONG = [
    (lambda: T.striped([T.base_k(5)]), TypeError, "striped: element 0 is Schedule('base_k'"),
    (lambda: T.striped([T.star(5, weights="push-pull")]), ValueError, "a pair of matrices"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), WRONG, ids=[words[-24:] for *_, words in WRONG]
)
def test_wrong_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
