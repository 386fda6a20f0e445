"""Rows in the memory of a node: read where they lie, changed when nobody reads them any more, and given back."""

import gc
import os
import time

import numpy as np
import pytest

import mpidec
from mpidec import topology as T
from mpidec.runtime import node as stack
from mpidec.transport import node_reader as links

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.skipif(stack.shared is None, reason="the kernel is not compiled")]
SMALL, LARGE = 5, (getattr(stack.shared, 'SMALL', 0) // 8) * 3 + 7      # columns that are copied, and that are read in place


@pytest.fixture
def net():
    with mpidec.Network() as net:
        yield net


def test_rows_and_results_lie_in_the_stack(net):
    W, X = net.mixer(T.ring(net.n)), net.empty(LARGE)
    X[...] = net.rank
    copies = net.stack.node.copies
    Y = W(X)
    assert X.base is not None
    assert Y.base is not None
    assert net.stack.node.copies == copies                             # nothing was copied
    dense = T.ring(net.n).W.toarray() @ np.arange(float(net.n))
    np.testing.assert_allclose(Y, np.full((1, LARGE), dense[net.rank]), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("d", [SMALL, LARGE])
def test_rows_may_change_as_soon_as_mixing_returns(net, d):
    """Fast ranks overwrite their rows at once, slow ones read late: whoever reads must not see it."""
    W, X = net.mixer(T.exponential(net.n)), net.empty(d)
    dense = T.exponential(net.n).W.toarray()
    for k in range(60):
        X[...] = 100 * k + net.rank
        if k % net.n == net.rank:
            time.sleep(0.003)
        Y = W(X)
        X[...] = np.nan
        np.testing.assert_allclose(Y, np.full((1, d), dense[net.rank] @ (100.0 * k + np.arange(net.n))), rtol=1e-13)


def test_results_that_are_kept_stay_as_they_are(net):
    W = net.mixer(T.ring(net.n))
    kept = [W(np.full((net.m, SMALL), float(k))) for k in range(200)]
    for k, Y in enumerate(kept):
        np.testing.assert_array_equal(Y, np.full((net.m, SMALL), float(k)))


def test_blocks_are_used_again(net):
    W = net.mixer(T.ring(net.n))
    for d in (SMALL, LARGE):
        Y = np.ones((net.m, d))
        for _ in range(50):
            Y = W(Y)
    del Y
    assert len(net.stack._blocks) < 16


def test_nothing_is_left_when_networks_are_closed(comm):
    def files():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))
    counts = []
    for _ in range(6):
        with mpidec.Network() as net:
            W = net.mixer(T.ring(net.n))
            for d in (SMALL, LARGE, 3 * LARGE):
                W(W(np.ones((net.m, d))))
            del W
        comm.Barrier()
        counts.append(files())
    assert counts[-1] <= counts[1]


def test_a_network_pretends_to_be_several_nodes(monkeypatch, comm):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "2")
    n = 3 * comm.size
    X = np.random.default_rng(0).standard_normal((n, 9))
    with mpidec.Network(n) as net:
        assert net.stack is None or len(net.stack.near) <= 2
        for make in (T.exponential, T.one_peer_exponential, lambda n: T.star(n, weights="push")):
            np.testing.assert_allclose(net.mixer(make(n))(X[net.lo:net.hi]), (make(n).at(0).W @ X)[net.lo:net.hi], atol=1e-14)


def test_rows_of_different_shapes_are_found(net):
    W = net.mixer(T.complete(net.n))
    with pytest.raises(ValueError, match=r"rank \d+ and rank \d+ mix different things in mixing 1: rows of [34] float64 in "
                                         r"W\(X\) over complete on rank \d+, rows of [34] float64 on rank \d+;"):
        W(np.zeros((net.m, 4 if net.rank else 3)))


def test_too_many_mixings_under_way(net):
    W = net.mixer(T.ring(net.n))
    pending = [W.start(np.ones((net.m, 2))) for _ in range(links.IN_FLIGHT)]
    with pytest.raises(RuntimeError, match="56 mixings are under way"):
        W.start(np.ones((net.m, 2)))
    for one in reversed(pending):
        np.testing.assert_array_equal(one.wait(), np.ones((net.m, 2)))



def pair(n, i, j):
    W = np.eye(n)
    W[i, i] = W[j, j] = W[i, j] = W[j, i] = 0.5
    return T.from_weights(W, connected=False)


@pytest.mark.mpi(min_size=3)
def test_no_rank_is_64_mixings_ahead_of_one_that_reads_from_it(net):
    """Ranks 0 and 1 meet in one of 64 steps; in the others rank 0 is alone, and could be long past it."""
    n, period = net.n, 64
    W = net.mixer(T.cycle([pair(n, 0, 1), *[pair(n, 1, 2)] * (period - 1)]))
    for k in range(6 * period):
        if net.rank == 1 and k % period == 0:
            time.sleep(0.003)
        Y = W.at(k)(np.full((1, 3), 100.0 * k + net.rank))
        if k % period == 0 and net.rank < 2:
            np.testing.assert_array_equal(Y, np.full((1, 3), 100.0 * k + 0.5))


@pytest.mark.mpi(min_size=2)
def test_a_mixing_under_way_outlives_the_slots(net):
    W = net.mixer(T.complete(net.n))
    first = W.start(np.full((1, 3), float(net.rank)))
    for k in range(150):
        np.testing.assert_allclose(W(np.full((1, 3), float(k + net.rank))), np.full((1, 3), k + (net.n - 1) / 2), rtol=1e-14)
    np.testing.assert_allclose(first.wait(), np.full((1, 3), (net.n - 1) / 2), rtol=1e-14)
