"""Flat arrays: arrays of any shape, NumPy, PyTorch or CuPy, as messages carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ...arrays import BFLOAT16, Given, narrow, to_host, widen
from ...runtime import empty
from ..base.gradients import refuse_grad

# Numbers of an array that is summed in one expression, and of a piece of a larger one, which stays
# in the cache from the product to the sum.
_SMALL, _PIECE = 1 << 11, 1 << 14
# Dtypes in which sums are taken as they are.
_PRECISE = "fdFD"


class FlatArray(NamedTuple):
    """A contiguous 1-D array, its format, and the array that it was made from.

    Attributes
    ----------
    flat : array (size,)
        The numbers; for bfloat16 their bits as uint16.
    shape : tuple of int
        Of the array it came from.
    dtype : str
        The format: NumPy's name, or "bfloat16".
    make : callable (array, dtype) -> array
        Makes the kind of array it came from.

    Examples
    --------
    >>> array = FlatArray.of(np.float32(3))
    >>> array.flat.tolist(), array.shape, array.dtype
    ([3.0], (), '<f4')
    """

    flat: np.ndarray
    shape: tuple[int, ...]
    dtype: str
    make: Callable[[np.ndarray, str], Any]

    @classmethod
    def of(cls, x: Given, kinds: str = "fc") -> FlatArray:
        """From an array, a tensor or a number whose dtype is of one of the `kinds` of NumPy; one on
        a device is copied.

        Raises
        ------
        TypeError
            If the entries are of another kind, or masked, or cannot be read, or autograd records
            the tensor.
        """
        if (
            type(x) is not np.ndarray
            and isinstance(x, np.ndarray)
            and isinstance(x, np.ma.MaskedArray)
        ):
            raise TypeError(
                "the array is masked, and messages carry no masks: fill it, x.filled(0)"
            )
        refuse_grad(x)
        host, dtype, make = to_host(x)
        if dtype == BFLOAT16:
            if "f" not in kinds:
                raise TypeError("the array is bfloat16, expected whole numbers")
        elif host.dtype.kind not in kinds:
            remedy = (
                ": x.astype(float), or x.double() of a tensor" if host.dtype.kind in "biuO" else ""
            )
            wanted = "floating-point or complex numbers" if "i" not in kinds else "numbers"
            raise TypeError(f"the array is {host.dtype}, expected {wanted}{remedy}")
        elif not host.dtype.isnative:
            host = host.astype(host.dtype.newbyteorder("="))
            dtype = host.dtype.str
        return cls(np.ascontiguousarray(host).reshape(-1), host.shape, dtype, make)

    @property
    def values(self) -> np.ndarray:
        """The numbers in the precision of the arithmetic: float32 for the 16-bit formats, else
        their own.
        """
        return self.widen(self.flat)

    def widen(self, bits: np.ndarray) -> np.ndarray:
        """Numbers in the same format, in the precision of the arithmetic."""
        return bits if bits.dtype.char in _PRECISE else widen(bits, self.dtype)

    def restore(self, values: np.ndarray) -> Any:
        """Return a result, in the precision of the arithmetic, as an array of the same shape,
        format and kind.
        """
        return self.restore_bits(
            values if values.dtype == self.flat.dtype else narrow(values, self.dtype)
        )

    def restore_bits(self, bits: np.ndarray, shape: tuple[int, ...] | None = None) -> Any:
        """Return a result in the same format as an array of the same kind, of the same or another
        shape.
        """
        return self.make(bits.reshape(self.shape if shape is None else shape), self.dtype)


def combine(terms: Iterable[tuple[float, np.ndarray]], like: np.ndarray) -> np.ndarray:
    """`sum_t weight_t * array_t`, term by term in the order given, in the dtype of `like`;
    always a new array.
    """
    given, size = list(terms), len(like)
    if not given:
        return np.zeros_like(like)
    (first_weight, first), *others = given
    if size <= _SMALL:
        total = first * first_weight
        for weight, flat in others:
            total += flat * weight
        return total
    total, product = empty(like.shape, like.dtype), np.empty(min(_PIECE, size), like.dtype)
    for start in range(0, size, _PIECE):  # pieces that stay in the cache
        piece = slice(start, start + _PIECE)
        part = total[piece]
        np.multiply(first[piece], first_weight, part)
        for weight, flat in others:
            part += np.multiply(flat[piece], weight, product[: size - start])
    return total
