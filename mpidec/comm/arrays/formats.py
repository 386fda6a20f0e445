"""Formats of array entries: the dtype in NumPy's notation (`"<f4"`), or `"bfloat16"`, whose bits
are stored as uint16.
"""

from __future__ import annotations

import numpy as np

BFLOAT16 = "bfloat16"


def flat_dtype(format: str) -> np.dtype:
    """Return the NumPy dtype that stores a format."""
    return np.dtype(np.uint16 if format == BFLOAT16 else format)


def working(format: str) -> np.dtype:
    """Return the NumPy dtype in which sums are computed: float32 for the 16-bit formats, otherwise
    the format itself.
    """
    return np.dtype(np.float32 if format == BFLOAT16 or np.dtype(format) == np.float16 else format)


def widen(bits: np.ndarray, format: str) -> np.ndarray:
    """Stored entries converted to the working precision.

    Examples
    --------
    >>> widen(np.array([0x3F80], np.uint16), BFLOAT16).tolist()
    [1.0]
    """
    if format == BFLOAT16:
        result: np.ndarray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return result
    return bits.astype(working(format), copy=False)


def narrow(values: np.ndarray, format: str) -> np.ndarray:
    """Entries of the working precision rounded to a format (to nearest, ties to even)."""
    if format != BFLOAT16:
        return values.astype(format, copy=False)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    result: np.ndarray = np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return result
