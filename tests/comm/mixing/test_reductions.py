"""Sums and means over all agents, and rows to rank 0."""

import numpy as np
import pytest
from helpers.mixing import stack
from mpi4py import MPI

import mpidec
from mpidec.comm.mixing.network import reductions

pytestmark = [pytest.mark.wide, pytest.mark.library]


def test_mean_and_gather():
    n = 10
    X = stack(n, (3, 2))
    with mpidec.Network(n) as net:
        np.testing.assert_allclose(net.mean(X[net.lo : net.hi]), X.mean(axis=0), atol=1e-15)
        whole = net.gather(X[net.lo : net.hi])
        assert (whole is None) == (net.rank > 0)
        if net.rank == 0:
            np.testing.assert_array_equal(whole, X)
        np.testing.assert_array_equal(net.scatter(whole), X[net.lo : net.hi])


def test_the_mean_of_half_precision_is_rounded_once():
    """The sum, 91,000, is larger than any float16, and 1001.0 / 10 is not the rounded sum divided by 10."""
    n = 10
    X = np.array([[9100.0, 100.1]] * n, np.float16)
    X[0] += np.array([0.0, 1.0], np.float16)
    with mpidec.Network(n) as net:
        mine = X[net.lo : net.hi]
        for mean in (net.mean(mine), net.mean(mine.astype(">f2")), net.mean(list(mine))):
            assert mean.dtype == np.float16
            np.testing.assert_array_equal(mean, X.astype(float).mean(axis=0).astype(np.float16))


def test_sums_are_of_the_type_and_size_that_numpy_gives_them():
    n = 9
    with mpidec.Network(n) as net:
        for code in "?bBhHiIlLefdFD":
            X = np.full((n, 2), 1, code) if code in "?eF" else abs(stack(n, (2,))).astype(code)
            if np.dtype(code).kind in "iu" and np.dtype(code).itemsize < 8:
                X[:] = np.iinfo(code).max  # whose sum is larger than any number of this type
            total, whole = net.sum(X[net.lo : net.hi]), X.sum(axis=0)
            assert total.dtype == whole.dtype, code
            np.testing.assert_allclose(total, whole, rtol=1e-6, err_msg=code)
            mean = net.mean(X[net.lo : net.hi])
            np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-6, atol=1e-12, err_msg=code)


@pytest.mark.parametrize("columns", [1, 2, 3, 30])
def test_sums_have_the_same_bits_on_any_number_of_ranks(columns):
    n = 1000
    X = stack(n, (columns,))
    with mpidec.Network(n) as net, mpidec.Network(n, comm=MPI.COMM_SELF) as alone:
        np.testing.assert_array_equal(net.sum(X[net.lo : net.hi]), alone.sum(X))


def tree_sum(X, start, level):
    """Sum of the agents of a node of the binary tree, by its definition."""
    if level == 0:
        return X[start]
    left, middle = tree_sum(X, start, level - 1), start + 2 ** (level - 1)
    return left + tree_sum(X, middle, level - 1) if middle < len(X) else left


@pytest.mark.parametrize("n", [1, 2, 5, 8, 13, 47])
@pytest.mark.parametrize("from_bytes", [1, 4096])  # slices, tree
def test_sums_are_those_of_a_tree_of_the_agents(monkeypatch, n, from_bytes):
    monkeypatch.setattr(reductions, "_SLICE", from_bytes)
    X = stack(n, (3,))
    with mpidec.Network(n) as net:
        np.testing.assert_array_equal(
            net.sum(X[net.lo : net.hi]), tree_sum(X, 0, (n - 1).bit_length())
        )


KINDS = {
    "shape": lambda rows, first: rows if first else rows.reshape(len(rows), 2, 3),
    "type": lambda rows, first: rows.astype(np.float16 if first else np.float32),
    "width": lambda rows, first: rows if first else np.ones((len(rows), 4000)),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["sum", "mean", "gather"])
def test_rows_of_different_kinds_are_refused_on_all_ranks(op, kind, known, comm):
    """Also where each rank has made such calls before, in which all agreed."""
    with mpidec.Network() as net:
        call, rows = getattr(net, op), np.ones((net.m, 6))
        if known:
            call(KINDS[kind](rows, True))
            call(KINDS[kind](rows, False))
        with pytest.raises(mpidec.RankMismatchError) as caught:
            call(KINDS[kind](rows, net.rank == 0))
        texts = comm.allgather(str(caught.value))
        assert texts == [texts[0]] * comm.size
        assert "rank 0 is in net." in texts[0] and "(rows of " in texts[0]
        assert net.sum(rows).tolist() == [net.n] * 6  # and everything goes on
