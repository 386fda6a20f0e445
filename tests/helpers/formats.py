"""Formats of arrays, and rows in them."""

import numpy as np

from mpidec.comm.arrays.formats import BFLOAT16, narrow, widen

FORMATS = ["<f4", "<f8", "<c8", "<c16", "<f2", BFLOAT16]


N = 7


def stack(n=N, shape=(3,), format="<f8", seed=0):
    """Rows with the values that the format has, and the same in the format itself."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, *shape))
    if format == BFLOAT16:
        return widen(narrow(X.astype(np.float32), BFLOAT16), BFLOAT16)
    return (X + 1j * rng.standard_normal(X.shape) if np.dtype(format).kind == "c" else X).astype(
        format
    )
