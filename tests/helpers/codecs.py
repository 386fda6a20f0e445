"""Codecs with several parameters, and rows through them."""

import numpy as np

from mpidec.comm.mixing.codecs import CODECS, QSGD, Blockwise8, RandK, TopK, codec

ALL = [
    *(codec(name) for name in CODECS),
    TopK(fraction=0.3),
    TopK(k=3),
    RandK(k=5, seed=7),
    QSGD(levels=1, bucket=8),
    QSGD(levels=127, bucket=512, seed=3),
    QSGD(levels=7),
    Blockwise8(block=100),
]


def rows(m, d, dtype=float, seed=0):
    return (np.random.default_rng([seed, m, d]).standard_normal((m, d)) * 10 + 1).astype(dtype)


def through(c, X, step=0, agents=None):
    agents = range(len(X)) if agents is None else agents
    encoded = c.encode(X, step, agents)
    assert encoded.dtype == np.uint8 and encoded.shape == (len(X), c.nbytes(X.shape[1], X.dtype))
    Y = c.decode(encoded, X.shape[1], X.dtype, step, agents)
    assert Y.dtype == X.dtype and Y.shape == X.shape
    return Y
