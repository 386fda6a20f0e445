"""A rank that leaves all others with an exception is heard of along a tree."""

from collections import Counter
from types import SimpleNamespace

import pytest

from mpidec.comm.checks.ending import LeavingRanks

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize("size", [11, 64])
def test_all_ranks_hear_of_one_that_leaves_and_none_sends_more_than_log_p(size, first):
    post: list = []
    ranks = [
        LeavingRanks(
            SimpleNamespace(
                comm=SimpleNamespace(rank=rank, size=size),
                send=lambda dest, header, rank=rank: post.append((rank, dest, header)),
            )
        )
        for rank in range(size)
    ]
    ranks[first].leave(OSError("no space"))
    sent: Counter = Counter()
    while post:
        source, dest, header = post.pop()
        sent[source] += 1
        ranks[dest].receive(source, header.stage, header.text)
        if dest == 0:
            ranks[0].leave(ranks[0].error)
    assert max(sent.values()) <= size.bit_length()
    for rank, one in enumerate(ranks):
        assert one.left == (rank in (0, first)) and (0 in one.ranks) == (rank > 0)
        if not one.left:
            with pytest.raises(OSError, match="no space"):
                one.raise_error()
