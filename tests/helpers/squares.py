"""Least squares of random data."""

import numpy as np

from mpidec import problems as P

D = 4


def data(n, seed=0, p=6):
    rng = np.random.default_rng([seed, n])
    A, b = rng.standard_normal((n, p, D)) / np.sqrt(p), rng.standard_normal((n, p))
    return A, b, np.linalg.lstsq(A.reshape(-1, D), b.reshape(-1), rcond=None)[0]


def squares(net, **options):
    A, b, _ = data(net.n)
    return P.LeastSquares(A[net.lo : net.hi], b[net.lo : net.hi], **options)
