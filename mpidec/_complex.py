"""Complex numbers beside real ones: rows as pairs of reals, moduli, types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]  # real or complex


def is_complex(dtype: object) -> bool:
    """Return whether a dtype of NumPy, or an array, is complex.

    Examples
    --------
    >>> is_complex(np.dtype(np.complex64)), is_complex(np.ones(2)), is_complex(None)
    (True, False, False)
    """
    return getattr(getattr(dtype, "dtype", dtype), "kind", "") == "c"


def as_reals(X: Array) -> Array:
    """Complex rows as pairs of real and imaginary parts, (m, d) -> (m, 2 d); real ones as they are.

    Examples
    --------
    >>> as_reals(np.array([[1 + 2j, 3j]]))
    array([[1., 2., 0., 3.]])
    """
    return np.ascontiguousarray(X).view(X.real.dtype) if is_complex(X) else X


def from_reals(X: Array) -> Array:
    """Return the complex rows whose pairs of real and imaginary parts are the rows of X, (m, 2 d)
    -> (m, d).

    Examples
    --------
    >>> from_reals(np.array([[1.0, 2.0, 0.0, 3.0]]))
    array([[1.+2.j, 0.+3.j]])
    """
    return np.ascontiguousarray(X).view(np.result_type(X.dtype, np.complex64))


def width(X: Array) -> int:
    """Return the number of real numbers in a row of X.

    Examples
    --------
    >>> width(np.ones((2, 3))), width(np.ones((2, 3), complex))
    (3, 6)
    """
    return int(X.shape[1] * (1 + is_complex(X)))


def squares(X: Array) -> Array:
    r"""Return the squares of the moduli of all entries, :math:`|x|^2`.

    Examples
    --------
    >>> squares(np.array([3 + 4j])), squares(np.array([-3.0]))
    (array([25.]), array([9.]))
    """
    return X.real * X.real + X.imag * X.imag if is_complex(X) else X * X


def double(X: Array) -> Array:
    """Return the array in float64 or complex128, itself where it is so already.

    Examples
    --------
    >>> double(np.ones(1, np.complex64)).dtype, double(np.ones(1, np.float32)).dtype
    (dtype('complex128'), dtype('float64'))
    """
    return X.astype(doubled(X.dtype), copy=False)


def doubled(dtype: DTypeLike) -> np.dtype[Any]:
    """Float64, or complex128 of a complex dtype.

    Examples
    --------
    >>> doubled(np.complex64), doubled(int)
    (dtype('complex128'), dtype('float64'))
    """
    return np.dtype(np.complex128 if is_complex(np.dtype(dtype)) else np.float64)


def by_parts(function: Callable[..., Array], *arrays: Array) -> Array:
    """Return the function of real arrays; of complex ones, that of their real parts and of their
    imaginary parts.

    Examples
    --------
    >>> by_parts(np.sqrt, np.array([4 + 9j])), by_parts(np.sqrt, np.array([4.0]))
    (array([2.+3.j]), array([2.]))
    """
    if not any(map(is_complex, arrays)):
        return function(*arrays)
    return function(*(X.real for X in arrays)) + 1j * function(*(X.imag for X in arrays))
