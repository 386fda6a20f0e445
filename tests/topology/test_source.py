"""Blocks of W, computed and stored.  No MPI."""

import pytest
from helpers.graphs import assert_canonical

import mpidec.topology as T

pytestmark = pytest.mark.serial


def test_blocks_computed_in_pieces_are_the_rows_of_W():
    for topology in (
        T.grid(40_000),
        T.binary_tree(40_000, weights="uniform"),
        T.star(40_000, center=20_000),
    ):
        whole = topology.rows(0, 40_000)
        assert_canonical(whole)
        for block, expected in (
            (topology.rows(19_990, 20_010), whole),
            (topology.columns(19_990, 20_010), whole.T.tocsr()),
        ):
            assert (block != expected[19_990:20_010]).nnz == 0
