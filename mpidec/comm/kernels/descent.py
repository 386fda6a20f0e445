"""A step down the gradient, in one pass over memory."""

from __future__ import annotations

import numpy as np

from ...protocols import StepSize
from .weighted import _kernel

# Numbers from which on one pass pays.
_LEAST = 1 << 12


def descend(X: np.ndarray, step_size: StepSize | np.ndarray, G: np.ndarray | float) -> np.ndarray:
    r"""Return the rows :math:`X - \alpha G`, of the kind and dtype of `X`.

    Computed as :math:`-\alpha G + X`, each operation rounded separately: the same bits on every
    way.

    Parameters
    ----------
    X, G : array (m, ...)
        NumPy, PyTorch or CuPy.
    step_size : float or array (...)
        :math:`\alpha`; an array of NumPy holds one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> descend(np.array([[1., 2.]]), 0.5, np.array([[2., 2.]]))
    array([[0., 1.]])
    """
    if type(step_size) is np.ndarray:
        return _columns(X, step_size, G)
    a = -(step_size if type(step_size) is float else _number(step_size, G))
    if (
        _kernel is not None
        and type(X) is np.ndarray
        and type(G) is np.ndarray
        and X.size >= _LEAST
        and _alike(X, G)
    ):
        out = np.empty_like(X)
        _kernel.descend(a, G, X, out)
        return out
    T = a * G
    if isinstance(T, float) or T.dtype != X.dtype or T.shape != X.shape:
        return T + X
    T += X  # in the memory of the product
    return T


def _columns(X: np.ndarray, step_size: np.ndarray, G: np.ndarray | float) -> np.ndarray:
    T: np.ndarray = -step_size.astype(X.dtype, copy=False) * G
    T += X
    return T


def _number(step_size: StepSize | np.ndarray, G: np.ndarray | float) -> float:
    try:
        return float(step_size)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        if isinstance(G, (int, float)) and G == 0:  # consensus
            return 0.0
        raise ValueError(
            f"step_size is {step_size!r}, expected a number at each step: only solve() and "
            "mpidec.tune() "
            "find one"
        ) from None


def _alike(X: np.ndarray, G: np.ndarray) -> bool:
    """Whether two arrays have the same layout of numbers that the compiled loop knows."""
    x, g = X.flags, G.flags
    return (
        X.dtype.char in "df"
        and X.dtype == G.dtype
        and X.shape == G.shape
        and X.dtype.isnative
        and x.c_contiguous
        and x.aligned
        and g.c_contiguous
        and g.aligned
    )
