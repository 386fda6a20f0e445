"""Ranks that agree, and that are told of what others refuse."""

import numpy as np
import pytest

import mpidec
from mpidec import topology as T

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.mark.mpi(min_size=2)
def test_ranks_with_different_topologies_are_told(comm):
    with (
        mpidec.Network(6) as net,
        pytest.raises(ValueError, match="the ranks hand in different topologies"),
    ):
        net.mixer(T.ring(6) if comm.rank else T.chain(6))


@pytest.mark.mpi(min_size=2)
def test_agree_raises_the_error_of_the_lowest_rank(comm):
    with mpidec.Network(4) as net:
        net.agree(None)
        with pytest.raises(KeyError, match="from rank 1"):
            net.agree(KeyError(f"from rank {comm.rank}") if comm.rank else None)


@pytest.mark.mpi(min_size=2)
def test_a_refusal_that_is_heard_late_keeps_the_ranks_in_step():
    """Rank 0 only sends to rank 1, and hears in its next mixing that the rows before were refused."""
    with mpidec.Network(transport="shared") as net:
        if net.node is None:
            pytest.skip("memory cannot be shared here")
        weights = np.eye(net.n)
        weights[1, :2] = 0.5
        W, raised = net.mixer(T.from_weights(weights, connected=False)), []
        for k in range(8):
            try:
                Y = W(np.full((1, 3 + (k == 2 and net.rank == 1)), float(k)))
                np.testing.assert_array_equal(Y, np.full((1, 3), float(k)))
            except ValueError as error:
                raised.append((k, str(error)))
            net.barrier()
        assert len(raised) == (1 if net.rank < 2 else 0)
        assert all(
            "rank 0" in text and "rank 1" in text and "mixing 3" in text for _, text in raised
        )
