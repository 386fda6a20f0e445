"""What rank 0 does for all: its result or its error, on every rank."""

import pytest

from mpidec.comm.runtime.agreement import on_root
from mpidec.exceptions import InputError, from_another_rank, on_all_ranks

pytestmark = pytest.mark.library


def fails(error):
    raise error


@pytest.mark.parametrize(
    "error, kind",
    [(ValueError("wrong"), InputError), (OSError(2, "none", "a.h5"), InputError), (ZeroDivisionError("wrong"), ZeroDivisionError)],
)  # fmt: skip
def test_all_ranks_raise_the_error_of_rank_0_and_only_it_has_made_it(comm, error, kind):
    """Whoever prints errors prints it once."""
    assert on_root(comm, lambda x: x + comm.rank, 1) == 1
    with pytest.raises(kind, match="wrong" if error.args[0] == "wrong" else "a.h5: none") as raised:
        on_root(comm, fails, error)
    assert on_all_ranks(raised.value)
    assert from_another_rank(raised.value) == (comm.rank > 0)
