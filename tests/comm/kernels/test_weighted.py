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
