"""Losses, drawn by hand."""

import numpy as np

N, D = 7, 5


def stack(seed=0, d=D):
    return np.random.default_rng(seed).standard_normal((N, d))


def masks(*stripes, steps=3, share=0.3):
    return np.random.default_rng(1).random((steps, *stripes, N, N)) < share


def weights(W, lost, fill):
    """The matrix of a step in which some messages are lost."""
    left = W * ~(lost & ~np.eye(N, dtype=bool))
    missing = W.sum(axis=1) - left.sum(axis=1)
    if fill == "renormalize":
        return left / left.sum(axis=1, keepdims=True) * W.sum(axis=1, keepdims=True)
    return left + np.diag(missing) * (fill == "own")
