"""Operations under way: the tree, large arrays, the end of the network."""

import gc

import numpy as np
import pytest
from helpers.matching import started

from mpidec.comm.checks import header as h
from mpidec.comm.checks.matching import Matching
from mpidec.comm.checks.operation import ARRIVED, SENT, tree

pytestmark = [pytest.mark.wide, pytest.mark.library]


LARGE = 50_000  # numbers: more than follows a header in its message


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("root", [0, 1])
def test_the_tree_spans_all_ranks(size, root):
    edges = {(tree(rank, size, root)[0], rank) for rank in range(size)}
    assert edges == {
        (rank, child) for rank in range(size) for child in tree(rank, size, root)[1]
    } | {(None, root % size)}


@pytest.mark.mpi(min_size=2)
def test_large_arrays_reach_their_operations_in_any_order(matching):
    """Rank 1 sends to rank 0 in a call of all ranks, then in one of two; rank 0 takes the second first."""
    if matching.rank > 1:
        return

    def sends(value):
        def steps(operation):
            operation.send(0, h.EDGE, np.full(LARGE, value))
            yield SENT

        return steps

    def takes(operation):
        operation.expect(h.EDGE, [1])
        yield ARRIVED
        return float(operation.take(1, h.EDGE, np.dtype(float))[0])

    if matching.rank == 1:
        for operation in (
            started(matching, "all", sends(1.0)),
            started(matching, "two", sends(2.0), peer=0),
        ):
            operation.wait()
    else:
        two = started(matching, "two", takes, peer=1, senders=[(1, h.EDGE)])
        two.wait()
        every = started(matching, "all", takes, senders=[(1, h.EDGE)])
        every.wait()
        assert (two.result, every.result) == (2, 1)


@pytest.mark.mpi(min_size=2)
def test_large_arrays_of_several_stages(matching):
    """An operation that takes two large arrays of one rank, sent before it begins."""
    if matching.rank > 1:
        return
    stages = (h.TO_LEADER, h.EDGE, h.UP)

    def sends(operation):
        for stage in stages:
            operation.send(0, stage, np.full(LARGE, float(stage)))
        yield SENT

    def takes(operation):
        for stage in stages[::-1]:
            operation.expect(stage, [1])
            yield ARRIVED
        return [float(operation.take(1, stage, np.dtype(float))[-1]) for stage in stages]

    if matching.rank == 1:
        started(matching, "stages", sends).wait()
    else:
        operation = started(matching, "stages", takes, senders=[(1, stage) for stage in stages])
        operation.wait()
        assert operation.result == list(stages)


def test_an_operation_that_the_end_of_the_network_leaves_incomplete(comm):
    own = comm.Dup()
    matching = Matching(own)

    def steps(operation):
        operation.expect(h.EDGE, [matching.rank])  # from itself, which sends nothing
        yield ARRIVED

    operation = started(matching, "itself", steps)
    matching.close()
    with pytest.raises(
        RuntimeError, match="itself call 1 was not complete when the network was closed"
    ):
        operation.wait()
    own.Free()


def test_operations_do_not_keep_their_arrays(matching):
    """An operation that has ended holds neither what it sent nor what it received."""

    def steps(operation):
        operation.send(matching.rank, h.EDGE, np.ones(LARGE))
        operation.expect(h.EDGE, [matching.rank])
        yield ARRIVED

    operation = started(matching, "itself", steps, senders=[(matching.rank, h.EDGE)])
    operation.wait()
    gc.collect()
    assert not [
        thing
        for thing in gc.get_referents(operation, *vars(operation).values())
        if isinstance(thing, np.ndarray)
    ]
