"""Arrays of any shape as they travel: a flat run of numbers, a dtype and a shape; NumPy, or PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

BFLOAT16 = "bfloat16"


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
    torch: bool = False

    @classmethod
    def of(cls, x: Any, kinds: str = "fc") -> Wire:
        """From an array, a tensor or a number whose dtype is of one of the `kinds` of NumPy.

        Raises
        ------
        TypeError
            If the entries are of another kind, or live on a device.
        """
        torch = type(x).__module__.partition(".")[0] == "torch"
        if torch:
            if x.device.type != "cpu":
                raise TypeError(f"the tensor lives on {x.device}, expected one on the CPU: x.cpu()")
            x, shape = x.detach(), tuple(x.shape)
            if str(x.dtype) == "torch.bfloat16" and "f" in kinds:
                import torch as library
                return cls(x.contiguous().view(library.int16).numpy().view(np.uint16).reshape(-1), shape, BFLOAT16, True)
            x = x.numpy()
        x = np.asarray(x)
        if x.dtype.kind not in kinds:
            remedy = ": x.astype(float)" if x.dtype.kind in "biu" else ""
            wanted = "floating-point or complex numbers" if "i" not in kinds else "numbers"
            raise TypeError(f"the array is {x.dtype}, expected {wanted}{remedy}")
        dtype = x.dtype.newbyteorder("=")
        return cls(np.ascontiguousarray(x, dtype).reshape(-1), x.shape, dtype.str, torch)

    @property
    def values(self) -> np.ndarray:
        """The numbers in the precision of the arithmetic: float32 for the 16-bit formats, else their own."""
        return widen(self.flat, self.dtype)

    def home(self, flat: np.ndarray, shape: tuple[int, ...] | None = None) -> Any:
        """A result, in any precision, as the kind of array that this one was."""
        return self.home_bits(narrow(flat, self.dtype), shape)

    def home_bits(self, flat: np.ndarray, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Any:
        """A result in the format of the wire, as the kind of array that this one was."""
        shaped = flat.reshape(self.shape if shape is None else shape)
        if not self.torch:
            return shaped
        import torch
        if (dtype or self.dtype) == BFLOAT16:
            return torch.from_numpy(shaped.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(shaped)


def flat_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype that carries a format."""
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def working(dtype: str) -> np.dtype:
    """The NumPy dtype of the arithmetic on a format."""
    return np.dtype(np.float32 if dtype == BFLOAT16 or np.dtype(dtype) == np.float16 else dtype)


def widen(flat: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers on the wire in the precision of the arithmetic."""
    if dtype == BFLOAT16:
        return (flat.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return flat.astype(working(dtype), copy=False)


def narrow(flat: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in the precision of the arithmetic, rounded to the nearest (ties to even) of the format."""
    if dtype != BFLOAT16:
        return flat.astype(dtype, copy=False)
    bits = np.ascontiguousarray(flat, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(flat), np.uint32(0x7FC0), rounded).astype(np.uint16)


def combine(terms: Iterable[tuple[float, np.ndarray]], like: np.ndarray) -> np.ndarray:
    """`sum_t weight_t * flat_t`, term by term in the order given, in the dtype of `like`; always a new array."""
    total = np.zeros_like(like)
    real = like.real.dtype.type
    for t, (weight, flat) in enumerate(terms):
        if t == 0:
            np.multiply(flat, real(weight), out=total)
        else:
            total += flat * real(weight)
    return total
