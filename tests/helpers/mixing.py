"""Random weights and rows."""

import numpy as np

TRANSPORTS = ["auto", "neighbor", "p2p"]


def random_weights(n, seed, density=0.3):
    """A strongly connected, directed, row-stochastic matrix (a cycle and some more edges)."""
    rng = np.random.default_rng([seed, n])
    W = (
        (rng.random((n, n)) < density) * rng.random((n, n))
        + np.eye(n)
        + np.roll(np.eye(n), 1, axis=1)
    )
    return W / W.sum(axis=1, keepdims=True)


def stack(n, shape=(3,), dtype=float, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, *shape))
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(dtype).kind == "c" else X).astype(
        dtype
    )
