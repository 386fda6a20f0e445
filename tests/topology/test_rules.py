"""The rules of the graphs, against edges written down a second time, also by block.  No MPI."""

import math

import numpy as np
import pytest
from helpers.graphs import EDGES, RULES, adjacency, assert_canonical, dense_weights, sizes

import mpidec.topology as T

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("name", RULES)
def test_graph_and_metropolis_weights_by_definition(name):
    for n in sizes(name):
        expected = dense_weights(adjacency(n, EDGES[name](n)), "metropolis")
        np.testing.assert_allclose(T.CATALOGUE[name](n).W.toarray(), expected, atol=3e-16)


@pytest.mark.parametrize("name", RULES)
def test_runs_of_rows_make_up_W(name):
    for n in (1, 2, 8, 32):
        topology = T.CATALOGUE[name](n, weights=0.03)
        if (runs := topology.source.runs()) is None:
            assert name not in ("ring", "complete", "exponential", "symmetric_exponential")
            continue
        W, end = np.zeros((n, n)), 0
        for start, stop, shifts, weights in runs:
            assert start == end < stop and (np.diff(shifts) > 0).all()
            for i in range(start, end := stop):
                W[i, i + shifts] = weights
        assert end == n and (topology.W.toarray() == W).all()


def test_large_graphs_by_block():
    n = 10**6
    for name in set(RULES) - {"spanning_tree"}:  # computed from a stored graph
        topology = T.CATALOGUE[name](2**20 if name == "hypercube" else n)
        for block in (topology.rows(777_777, 777_779), topology.columns(777_777, 777_779)):
            assert_canonical(block)
            np.testing.assert_allclose(block.sum(axis=1), 1, rtol=1e-12)
            assert (block.indices.dtype == np.int32) and block.nnz <= 2 * (
                n if name == "complete" else 21
            )
    assert T.exponential(n).in_neighbors(5).tolist() == sorted((5 - 2**t) % n for t in range(20))
    assert T.exponential(n).spectral_gap() == pytest.approx(2 / 21)
    assert T.ring(n).spectral_gap() == pytest.approx(4 / 3 * math.sin(math.pi / n) ** 2, rel=1e-3)
    assert T.hypercube(2**12).spectral_gap() == pytest.approx(2 / 13)
    big = T.ring(3 * 10**9).rows(5, 7)
    assert big.indices.dtype == np.int64 and big.indices.tolist() == [4, 5, 6, 5, 6, 7]
    assert T.grid(3 * 10**9).rows(0, 1).nnz == 3
