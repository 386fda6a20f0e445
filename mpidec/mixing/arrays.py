"""Whatever holds numbers, seen as NumPy rows: NumPy itself, and PyTorch tensors on the CPU, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def as_rows(X: Any, m: int) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """`X` as a C-contiguous 2-D array of `m` rows, and the function that gives a result the kind and shape of `X`.

    Raises
    ------
    ValueError
        If the number of rows is not `m`.
    TypeError
        If the entries cannot be averaged (whole numbers, objects), or live on a device.
    """
    home: Callable[[np.ndarray], Any] = _same
    if not isinstance(X, np.ndarray):
        if type(X).__module__.partition(".")[0] == "torch":
            import torch
            X, home = X.detach().numpy(), torch.from_numpy
        else:
            X = np.asarray(X)
    if X.ndim == 0 or len(X) != m:
        raise ValueError(f"rows have shape {X.shape}, expected ({m}, ...): one row for each agent that this rank hosts")
    if X.dtype.kind not in "fc":
        raise TypeError(f"rows are {X.dtype}, expected floating-point numbers: X.astype(float)")
    shape = X.shape
    if X.ndim == 2 and home is _same:
        return np.ascontiguousarray(X), home
    rows = np.ascontiguousarray(X.reshape(m, int(np.prod(shape[1:]))))
    return rows, lambda Y: home(Y.reshape(shape))


def _same(Y: np.ndarray) -> np.ndarray:
    return Y
