"""Rows for tests of faults."""

import numpy as np


def stack(n, d=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))
