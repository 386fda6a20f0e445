"""Weighted sums of rows, compiled and in NumPy."""

import numpy as np
import pytest
from helpers.mixing import random_weights, stack
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.kernels import weighted as kernel
from mpidec.comm.transport import plan

pytestmark = [pytest.mark.wide, pytest.mark.library]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize(
    "make",
    [
        T.ring,
        T.star,
        T.exponential,
        lambda n: T.star(n, weights="push"),
        lambda n: T.from_weights(random_weights(n, 3).T),
        lambda n: T.from_weights(random_weights(n, 3)),
    ],
)
def test_the_compiled_kernel_and_numpy_have_the_same_bits(make, dtype, monkeypatch):
    n, X = 150, stack(150, (600,), dtype)
    with mpidec.Network(n) as net:
        W, x = net.mixer(make(n)), X[net.lo : net.hi]
        compiled = W(x)
        monkeypatch.setattr(kernel, "_kernel", None)
        np.testing.assert_array_equal(W(x).view(np.uint8), compiled.view(np.uint8))


@pytest.mark.serial
@pytest.mark.parametrize(
    "make", [T.ring, T.exponential, T.one_peer_exponential, T.symmetric_exponential]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_runs_of_rows_have_the_bits_of_single_rows(make, dtype, monkeypatch):
    n, X = 2500, stack(2500, (3,), dtype)
    with mpidec.Network(n) as net:
        runs = net.mixer(make(n)).at(1)(X)
        with monkeypatch.context() as context:
            context.setattr(kernel, "_kernel", None)
            np.testing.assert_array_equal(net.mixer(make(n)).at(1)(X), runs)
        monkeypatch.setattr(plan, "_MANY", n + 1)
        np.testing.assert_array_equal(net.mixer(make(n)).at(1)(X), runs)


@pytest.mark.serial
@pytest.mark.parametrize(
    "topology",
    [
        T.from_weights(np.eye(3), connected=False),
        T.from_weights(np.eye(1500), connected=False),
        T.from_weights([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], connected=False),
    ],
)
def test_agents_without_neighbours_keep_the_sign_of_zeros(monkeypatch, topology):
    """With the compiled kernel and without it."""
    for compiled in (kernel._kernel, None):
        monkeypatch.setattr(kernel, "_kernel", compiled)
        with mpidec.Network(topology.n, comm=MPI.COMM_SELF) as net:
            Y = net.mixer(topology)(np.full((topology.n, 2), -0.0))
            assert np.signbit(Y[-1]).all()


@pytest.mark.serial
@pytest.mark.parametrize("n", [1, 2, 9, 70])
@pytest.mark.parametrize("compiled", [True, False])
def test_terms_of_dense_rows_are_those_of_the_matrix(n, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernel, "_dense", None)
    elif not kernel.COMPILED:
        pytest.skip("the kernel is not compiled")
    of, A = kernel.Weights.of_dense, random_weights(n, 4) @ random_weights(n, 5).T
    A[np.random.default_rng(n).random((n, n)) < 0.5] = -0.0
    A[range(n), range(n)] += 1 - A.sum(axis=1)
    lo, hi = n // 3, n
    made = of(A[lo:hi], lo, kernel.ROWS)
    i, j = np.nonzero(A[lo:hi] * (np.arange(n) != np.arange(lo, hi)[:, None]))
    np.testing.assert_array_equal(made.indices, j)
    np.testing.assert_array_equal(made.w, A[lo:hi][i, j])
    np.testing.assert_array_equal(np.diff(made.indptr), np.bincount(i, minlength=hi - lo))
    edges = kernel.Entries(made.indptr, j.astype(np.int64), (j + n).astype(np.int32))
    again = of(A[lo:hi], lo, kernel.ROWS, edges)
    np.testing.assert_array_equal(again.indices, j + n)
    np.testing.assert_array_equal(again.w, made.w)
    for check, bad in (
        (kernel.ROWS, A * np.linspace(1, 2, n + 1)[1:, None]),
        (kernel.COLUMNS, A.T * np.linspace(1, 2, n + 1)[1:]),
        (kernel.POSITIVE, A - 10 * np.eye(n)),
        (kernel.ROWS, np.where(np.arange(n) == n - 1, np.nan, A)),
        (kernel.COLUMNS, np.where(np.arange(n) == n - 1, np.inf, A)),
    ):
        assert of(np.ascontiguousarray(bad), 0, check) is None
        assert of(np.ascontiguousarray(bad), 0, 0) is not None
    if n > 2:  # a weight beside the edges
        B = A.copy()
        r, c = np.argwhere((A[lo:hi] == 0) & (np.arange(n) != np.arange(lo, hi)[:, None]))[-1]
        B[lo + r, c] = 1e-12
        assert of(B[lo:hi], lo, kernel.ROWS) is not None
        assert of(B[lo:hi], lo, kernel.ROWS, edges) is None


@pytest.mark.serial
@pytest.mark.skipif(not kernel.COMPILED, reason="the kernel is not compiled")
@pytest.mark.parametrize("n", [1, 2, 9, 70])
def test_terms_of_bools_are_metropolis_weights(n):
    drawn = np.random.default_rng(n).random((n, n)) < 0.3
    edges = drawn | drawn.T
    W = np.zeros((n, n))
    degree = [sum(edges[i, j] for j in range(n) if j != i) for i in range(n)]
    for i, j in np.argwhere(edges & ~np.eye(n, dtype=bool)):
        W[i, j] = 0.7 / (1 + max(degree[i], degree[j]))
    made, expected = kernel.Weights.metropolis(edges, 0.7), kernel.Weights.of_dense(W, 0)
    for name in "indptr", "indices", "w", "v":
        np.testing.assert_array_equal(getattr(made, name), getattr(expected, name))
    if n > 1:
        edges[0, n - 1] ^= True
        assert kernel.Weights.metropolis(edges, 1.0) is None
