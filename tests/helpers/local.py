"""Rows, random graphs and disagreements for tests of local-view calls."""

import numpy as np
import pytest

DTYPES = [np.float16, np.float32, np.float64, np.complex64, np.complex128]
RTOL = {"e": 2e-3, "f": 1e-6, "d": 1e-13, "F": 1e-6, "D": 1e-13}


def stack(n, shape=(3,), dtype=float, seed=0):
    rng = np.random.default_rng([seed, n])
    X = rng.standard_normal((n, *shape))
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(dtype).kind == "c" else X).astype(
        dtype
    )


def random_graph(n, seed, density=0.5):
    """Any directed graph, empty rows and columns included: three factors of the weights of its edges."""
    rng = np.random.default_rng([seed, n])
    there = (rng.random((n, n)) < density) & ~np.eye(n, dtype=bool)
    own, src, dst = rng.standard_normal(n), rng.standard_normal((n, n)), rng.standard_normal((n, n))
    return own, there, src, dst


def dense(own, there, src, dst, X):
    W = np.diag(own) + there * src * dst.T
    return np.tensordot(W, X, 1)


def disagree(net, call, *words):
    """The call, or the barrier after it, raises here."""
    with pytest.raises(ValueError) as caught:  # noqa: PT012
        call()
        net.barrier()
        net.barrier()
    for word in words:  # also on a rank that has heard meanwhile that the other one closes
        assert word in str(caught.value)
