"""Whatever holds numbers, seen as NumPy arrays: NumPy itself and PyTorch on the CPU without a copy, device arrays by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from . import staging
from .devices import Device, device_of, families, plain, torch_format
from .formats import BFLOAT16, flat_dtype, narrow, widen

Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
Home = Callable[[np.ndarray, str], Any]             # a host array and its format -> the same as the kind of array that came


def to_host(X: Any, empty: Empty = np.empty) -> tuple[np.ndarray, str, Home]:
    """`X` as a NumPy array (the bits of bfloat16 as uint16), its format, and what gives a result the kind of `X`.

    Parameters
    ----------
    X : array
        A device array is copied when all that is queued on its current stream is done.
    empty : callable (shape, dtype) -> array, optional
        Where that copy goes.

    Raises
    ------
    TypeError
        If the numbers are nowhere where they can be read.
    """
    if isinstance(X, np.ndarray):
        return X, X.dtype.str, _numpy
    device = device_of(X)
    if device is not None:
        format = device.format(X)
        host = empty(tuple(X.shape), flat_dtype(format))
        staging.download(device, X, host)
        return host, format, _up(device, device.place(X))
    if "torch" in families(X):
        return _from_torch(X)
    if hasattr(X, "__cuda_array_interface__"):
        raise TypeError(f"the array is a {type(X).__module__}.{type(X).__name__} on a device, expected one of cupy or torch: "
                        "cupy.asarray(X)")
    X = np.asarray(X)
    return X, X.dtype.str, _numpy


def native(X: Any, kinds: str) -> np.ndarray:
    """`X` as a NumPy array in the byte order of this machine, if its dtype is of one of the `kinds` of NumPy.

    Raises
    ------
    TypeError
        If the entries are of another kind (objects, say), or masked.
    """
    _unmasked(X)
    X = np.asarray(X)
    if X.dtype.kind not in kinds or X.dtype.hasobject:
        raise TypeError(f"the array is of dtype {X.dtype}, expected numbers")
    return X.astype(X.dtype.newbyteorder("="), copy=False)


def _unmasked(X: Any) -> None:
    if isinstance(X, np.ma.MaskedArray):
        raise TypeError("the array is masked, and masks are not mixed: fill it, X.filled(0.0), or mix values and mask separately")


def as_rows(X: Any, m: int, empty: Empty = np.empty, half: bool = False) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """`X` as a C-contiguous 2-D array of `m` rows, and the function that gives a result the kind and shape of `X`.

    Rows of bfloat16 are float32, and rounded once on the way back; with `half` they are uint16 both ways.

    Raises
    ------
    ValueError
        If the number of rows is not `m`.
    TypeError
        If the entries cannot be averaged (whole numbers, objects), or cannot be read.
    """
    _unmasked(X)
    if isinstance(X, np.ndarray):
        format, home = X.dtype.str, cast(Home, _numpy)
    else:
        check_rows(np.shape(X), m)
        X, format, home = to_host(X, empty)
    check_rows(X.shape, m, format)
    order = X.dtype.newbyteorder("=")
    if X.ndim == 2 and home is _numpy:
        return _aligned(np.ascontiguousarray(X, order)), _same
    shape = X.shape
    if format == BFLOAT16 and not half:
        return widen(X, format).reshape(m, math.prod(shape[1:])), lambda Y: home(narrow(Y.reshape(shape), format), format)
    rows = _aligned(np.ascontiguousarray(X.reshape(m, math.prod(shape[1:])), order))
    return rows, lambda Y: home(Y.reshape(shape), format)


def as_target(out: Any, X: Any, rows: np.ndarray, empty: Empty = np.empty) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """Where the rows `rows` of `X` go when `out` is to have them, and the function that completes and returns `out`.

    Raises
    ------
    ValueError
        If `out` is not like `X`, or overlaps it.
    """
    device = check_out(out, X)
    if device is not None:
        format = device.format(out)
        return empty(rows.shape, rows.dtype), lambda Y: staging.upload(device, _bits(Y, format), out)
    host, format, _ = to_host(out)
    if not host.flags.writeable:
        raise ValueError("out is read-only, expected an array that can be written to")
    if np.may_share_memory(host, rows):
        raise ValueError("out overlaps the rows to be mixed: give an array of its own")
    if host.dtype == rows.dtype:
        return host.reshape(rows.shape), lambda _: out

    def complete(Y: np.ndarray) -> Any:
        host[...] = _bits(Y, format).reshape(host.shape)
        return out
    return empty(rows.shape, rows.dtype), complete


def check_rows(shape: Sequence[int], m: int, format: str = "<f8") -> None:
    """Raise if an array of this shape and format is not `m` rows of numbers that can be averaged."""
    if len(shape) == 0 or shape[0] != m:
        raise ValueError(f"rows have shape {tuple(shape)}, expected ({m}, ...): one row for each agent that this rank hosts")
    if format != BFLOAT16 and np.dtype(format).kind not in "fc":
        raise TypeError(f"rows are {np.dtype(format)}, expected floating-point numbers: X.astype(float)")


def check_out(out: Any, X: Any) -> Device | None:
    """Raise if `out` cannot hold what becomes of `X`; the device of both, if they live on one."""
    device = device_of(X)
    alike = device_of(out) is device and hasattr(out, "shape") and tuple(out.shape) == np.shape(X)
    if alike and device is not None:
        alike = device.place(out) == device.place(X) and device.format(out) == device.format(X) and _contiguous(out)
        if alike and _overlap(device.span(out), device.span(X)):
            raise ValueError("out overlaps the rows to be mixed: give an array of its own")
    elif alike:
        alike = (isinstance(out, np.ndarray) or "torch" in families(out)) and _contiguous(out) and _format(out) == _format(X)
    if not alike:
        kind = "array" if device is None else f"{device.name} array on the same device"
        raise ValueError(f"out is {type(out).__name__} {tuple(getattr(out, 'shape', ()))} {getattr(out, 'dtype', '')}, expected a "
                         f"C-contiguous {kind} {np.shape(X)} {getattr(X, 'dtype', '')}")
    return device


def empty_like(X: Any, shape: tuple[int, ...], dtype: Any, empty: Empty) -> Any:
    """An uninitialized array of the kind of `X`, where it lives; on the host, in the memory that `empty` gives."""
    device = device_of(X)
    format = _format(X) if dtype is None else np.dtype(dtype).str
    if device is not None:
        return device.empty(shape, format, device.place(X))
    home = _torch if "torch" in families(X) else _numpy
    return home(empty(shape, flat_dtype(format)), format)


def _format(X: Any) -> str:
    device = device_of(X)
    if device is not None:
        return device.format(X)
    return np.asarray(X).dtype.newbyteorder("=").str if isinstance(X, np.ndarray) or "torch" not in families(X) else torch_format(X)


def _bits(Y: np.ndarray, format: str) -> np.ndarray:
    return Y if Y.dtype == flat_dtype(format) else narrow(Y, format)


def _contiguous(X: Any) -> bool:
    return bool(X.is_contiguous() if hasattr(X, "is_contiguous") else X.flags.c_contiguous)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _aligned(X: np.ndarray) -> np.ndarray:
    return X if X.flags.aligned else X.copy()


def _same(Y: np.ndarray) -> np.ndarray:
    return Y


def _numpy(host: np.ndarray, format: str) -> np.ndarray:
    return host


def _torch(host: np.ndarray, format: str) -> Any:
    import torch
    if format == BFLOAT16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(host)


def _up(device: Device, place: Any) -> Home:
    return lambda host, format: staging.upload(device, np.ascontiguousarray(host), device.empty(host.shape, format, place))


def _from_torch(X: Any) -> tuple[np.ndarray, str, Home]:
    import torch
    if X.device.type != "cpu":
        remedy = "give it numbers first, X.to_empty(...)" if X.device.type == "meta" else "X.cpu()"
        raise TypeError(f"the tensor lives on {X.device}, expected the CPU or a CUDA device: {remedy}")
    if X.layout is not torch.strided:
        raise TypeError(f"the tensor is {X.layout}, expected a dense one: X.to_dense()")
    format, X = torch_format(X), plain(X)
    if format == BFLOAT16:
        return X.contiguous().view(torch.int16).numpy().view(np.uint16), format, _torch
    return X.numpy(), format, _torch


def row_bytes(rows: np.ndarray) -> int:
    """Bytes of a row."""
    return rows.nbytes // len(rows) if len(rows) else rows.itemsize * math.prod(rows.shape[1:])
