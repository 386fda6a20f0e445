"""Arrays of any shape as they travel: a flat run of numbers, a dtype and a shape; NumPy, PyTorch or CuPy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays.formats import BFLOAT16, narrow, widen
from ...arrays.formats import flat_dtype as flat_dtype
from ...arrays.formats import working as working
from ...arrays.host import Home, to_host
from ...runtime.memory import empty

_PIECE = 1 << 14                                    # numbers


@dataclass(frozen=True, eq=False)
class Wire:
    """One array on its way: `flat` is 1-D and contiguous (the bits as uint16 if the dtype is bfloat16).

    Examples
    --------
    >>> wire = Wire.of(np.float32(3))
    >>> wire.flat.tolist(), wire.shape, wire.dtype
    ([3.0], (), '<f4')
    """

    flat: np.ndarray
    shape: tuple[int, ...]
    dtype: str
    kind: Home

    @classmethod
    def of(cls, x: Any, kinds: str = "fc") -> Wire:
        """From an array, a tensor or a number whose dtype is of one of the `kinds` of NumPy; one on a device is copied.

        Raises
        ------
        TypeError
            If the entries are of another kind, or cannot be read.
        """
        host, format, kind = to_host(x)
        if format == BFLOAT16:
            if "f" not in kinds:
                raise TypeError("the array is bfloat16, expected whole numbers")
            return cls(np.ascontiguousarray(host).reshape(-1), host.shape, format, kind)
        if host.dtype.kind not in kinds:
            remedy = ": x.astype(float)" if host.dtype.kind in "biu" else ""
            wanted = "floating-point or complex numbers" if "i" not in kinds else "numbers"
            raise TypeError(f"the array is {host.dtype}, expected {wanted}{remedy}")
        dtype = host.dtype.newbyteorder("=")
        return cls(np.ascontiguousarray(host, dtype).reshape(-1), host.shape, dtype.str, kind)

    @property
    def values(self) -> np.ndarray:
        """The numbers in the precision of the arithmetic: float32 for the 16-bit formats, else their own."""
        return widen(self.flat, self.dtype)

    def home(self, flat: np.ndarray, shape: tuple[int, ...] | None = None) -> Any:
        """A result, in any precision, as the kind of array that this one was."""
        return self.home_bits(narrow(flat, self.dtype), shape)

    def home_bits(self, flat: np.ndarray, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Any:
        """A result in the format of the wire, as the kind of array that this one was."""
        return self.kind(flat.reshape(self.shape if shape is None else shape), dtype or self.dtype)


def combine(terms: Iterable[tuple[float, np.ndarray]], like: np.ndarray) -> np.ndarray:
    """`sum_t weight_t * flat_t`, term by term in the order given, in the dtype of `like`; always a new array."""
    given, real = list(terms), like.real.dtype.type
    total = empty(like.shape, like.dtype)
    if not given:
        total.fill(0)
    product = np.empty(min(_PIECE, len(total)), like.dtype)
    for start in range(0, len(total), _PIECE):      # pieces that stay in the cache
        piece = slice(start, start + _PIECE)
        for t, (weight, flat) in enumerate(given):
            if t == 0:
                np.multiply(flat[piece], real(weight), out=total[piece])
            else:
                some = np.multiply(flat[piece], real(weight), out=product[:len(total) - start])
                total[piece] += some
    return total
