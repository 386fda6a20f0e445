"""Arrays of any supported library as NumPy arrays: NumPy and PyTorch on the CPU without a copy,
device arrays with one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import staging
from .devices import Array, Device, Given, Place, device_of, families, plain, torch_format
from .formats import BFLOAT16, flat_dtype, narrow, widen

if TYPE_CHECKING:
    import cupy
    import torch

ArrayT = TypeVar("ArrayT", bound=Array)
Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
# (result on the host, its format) -> array of the kind of the input.
Restore = Callable[[np.ndarray, str], ArrayT]


def to_host(X: Given, empty: Empty = np.empty) -> tuple[np.ndarray, str, Restore[Any]]:
    """Convert `X` to a NumPy array (bfloat16 as uint16 bits).

    Parameters
    ----------
    X : array
        A device array is copied after all work queued on its current stream.
    empty : callable (shape, dtype) -> array, optional
        Allocates the copy.

    Returns
    -------
    host : NumPy array
    format : str
    restore : callable (host, format) -> array
        Converts a result to the kind of array that `X` is, on the same device.

    Raises
    ------
    TypeError
        If the entries cannot be read (unknown device, sparse tensor, unsupported dtype).
    """
    if isinstance(X, np.ndarray):
        return X, X.dtype.str, _numpy
    device = device_of(X)
    if device is not None:
        array = cast(Array, X)
        format = device.format(array)
        host = empty(tuple(array.shape), flat_dtype(format))
        staging.download(device, array, host)
        return host, format, _to_device(device, device.place(array))
    if "torch" in families(X):
        return _from_torch(X)
    if hasattr(X, "__cuda_array_interface__"):
        raise TypeError(
            f"the array is a {type(X).__module__}.{type(X).__name__} on a device, expected an "
            "array of cupy or torch: "
            "cupy.asarray(X)"
        )
    X = np.asarray(X)
    return X, X.dtype.str, _numpy


def plain_tensor(X: object) -> tuple[np.ndarray, str, Restore[Any]] | None:
    """Return a dense tensor of PyTorch on the CPU as `to_host` returns it; None for anything else,
    and where autograd records.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(X, torch.Tensor):
        return None
    if X.device.type != "cpu" or (X.requires_grad and torch.is_grad_enabled()):
        return None
    try:
        return _from_torch(X)
    except TypeError:  # which `to_host` raises
        return None


def native(X: ArrayLike | None, kinds: str) -> np.ndarray:
    """`X` as a NumPy array in native byte order.

    Parameters
    ----------
    X : array
    kinds : str
        The accepted kinds of dtypes, as in `numpy.dtype.kind`.

    Raises
    ------
    TypeError
        If the dtype is of another kind (objects, for example), or the array is masked.
    """
    if isinstance(X, np.ma.MaskedArray):
        _refuse_mask()
    X = np.asarray(X)
    if X.dtype.kind not in kinds or X.dtype.hasobject:
        raise TypeError(f"the array has dtype {X.dtype}, expected numbers")
    result: np.ndarray = X.astype(X.dtype.newbyteorder("="), copy=False)
    return result


def _refuse_mask() -> NoReturn:
    raise TypeError(
        "masked arrays are not supported: fill the array, X.filled(0.0), or mix values and mask "
        "separately"
    )


def as_rows(
    X: Given, m: int, empty: Empty = np.empty, half: bool = False
) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """Convert `X` to a C-contiguous 2-D array of `m` rows.

    Parameters
    ----------
    X : array (m, ...)
    m : int
    empty : callable (shape, dtype) -> array, optional
        Allocates the copy of a device array.
    half : bool
        Whether bfloat16 stays 16 bits wide (as uint16); by default it is converted to float32, and
        results are rounded once.

    Returns
    -------
    rows : array (m, d)
    restore : callable (rows) -> array
        Converts a result to the kind, shape and dtype of `X`.

    Raises
    ------
    ValueError
        If the number of rows is not `m`.
    TypeError
        If the entries cannot be averaged (integers, objects), or cannot be read.
    """
    if (
        type(X) is np.ndarray
        and X.ndim == 2
        and len(X) == m
        and X.dtype.char in "fdFD"
        and X.flags.c_contiguous
        and X.flags.aligned
        and X.dtype.isnative
    ):
        return X, _identity
    if isinstance(X, np.ma.MaskedArray):
        _refuse_mask()
    if isinstance(X, np.ndarray):
        format, restore = X.dtype.str, cast(Restore[Any], _numpy)
    else:
        check_rows(np.shape(X), m)
        X, format, restore = to_host(X, empty)
    check_rows(X.shape, m, format)
    order = X.dtype.newbyteorder("=")
    if X.ndim == 2 and restore is _numpy:
        return _aligned(np.ascontiguousarray(X, order)), _identity
    shape = X.shape
    if format == BFLOAT16 and not half:
        return widen(X, format).reshape(m, math.prod(shape[1:])), lambda Y: restore(
            narrow(Y.reshape(shape), format), format
        )
    rows = _aligned(np.ascontiguousarray(X.reshape(m, math.prod(shape[1:])), order))
    return rows, lambda Y: restore(Y.reshape(shape), format)


def as_target(
    out: Array, X: Array, rows: np.ndarray, empty: Empty = np.empty
) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """Target of a mixing of `X` into `out`.

    Parameters
    ----------
    out, X : array (m, ...)
    rows : array (m, d)
        The rows of `X`, as `as_rows` returns them.
    empty : callable (shape, dtype) -> array, optional
        Allocates the target where the result cannot be written to `out` directly.

    Returns
    -------
    target : array (m, d)
        Receives the result.
    complete : callable (target) -> array
        Copies the target to `out` where necessary, and returns `out`.

    Raises
    ------
    ValueError
        If `out` differs from `X` in kind, shape or dtype, is read-only, or overlaps `X`.
    """
    device = check_out(out, X)
    if device is not None:
        format = device.format(out)
        return empty(rows.shape, rows.dtype), lambda Y: staging.upload(
            device, _bits(Y, format), out
        )
    host, format, _ = to_host(out)
    if not host.flags.writeable:
        raise ValueError("out cannot be written to, expected a writable array")
    if np.may_share_memory(host, rows):
        raise ValueError("out overlaps the rows to be mixed: pass a separate array")
    if host.dtype == rows.dtype:
        return host.reshape(rows.shape), lambda _: out

    def complete(Y: np.ndarray) -> Array:
        host[...] = _bits(Y, format).reshape(host.shape)
        return out

    return empty(rows.shape, rows.dtype), complete


def check_rows(shape: Sequence[int], m: int, format: str = "<f8") -> None:
    """Raise unless an array of this shape and format consists of `m` rows of floating-point
    numbers.
    """
    if len(shape) == 0 or shape[0] != m:
        raise ValueError(
            f"rows have shape {tuple(shape)}, expected ({m}, ...): one row for each agent of this "
            "rank"
        )
    if format != BFLOAT16 and np.dtype(format).kind not in "fc":
        raise TypeError(
            f"rows have dtype {np.dtype(format)}, expected floating-point numbers: X.astype(float)"
        )


def check_out(out: Array, X: Array) -> Device | None:
    """Raise unless `out` can hold a result of the kind, shape and dtype of `X`; return their
    device kind (None: the host).
    """
    device = device_of(X)
    matches = device_of(out) is device and np.shape(out) == np.shape(X)
    if matches and device is not None:
        matches = (
            device.place(out) == device.place(X)
            and device.format(out) == device.format(X)
            and _contiguous(out)
        )
        (begin, end), (first, last) = device.span(out), device.span(X)
        if matches and begin < last and first < end:
            raise ValueError("out overlaps the rows to be mixed: pass a separate array")
    elif matches:
        matches = (
            (isinstance(out, np.ndarray) or "torch" in families(out))
            and _contiguous(out)
            and _format(out) == _format(X)
        )
    if not matches:
        kind = "array" if device is None else f"{device.name} array on the same device"
        raise ValueError(
            f"out is a {type(out).__name__} of shape {tuple(np.shape(out))} and dtype "
            f"{getattr(out, 'dtype', None)}, expected a C-contiguous {kind} of shape {np.shape(X)} "
            "and dtype "
            f"{getattr(X, 'dtype', None)}"
        )
    return device


def empty_like(X: ArrayT, shape: tuple[int, ...], dtype: DTypeLike | None, empty: Empty) -> ArrayT:
    """Uninitialized array of the kind of `X`, on its device; host memory is allocated by
    `empty`.
    """
    device = device_of(X)
    format = _format(X) if dtype is None else np.dtype(dtype).str
    if device is not None:
        return cast(ArrayT, device.empty(shape, format, device.place(X)))
    restore: Restore[Any] = _torch if "torch" in families(X) else _numpy
    made: ArrayT = restore(empty(shape, flat_dtype(format)), format)
    return made


def _format(X: Array) -> str:
    device = device_of(X)
    if device is not None:
        return device.format(X)
    return (
        np.asarray(X).dtype.newbyteorder("=").str
        if isinstance(X, np.ndarray) or "torch" not in families(X)
        else torch_format(X.dtype)
    )


def _bits(Y: np.ndarray, format: str) -> np.ndarray:
    return Y if Y.dtype == flat_dtype(format) else narrow(Y, format)


def _contiguous(X: np.ndarray | cupy.ndarray | torch.Tensor) -> bool:
    return bool(X.is_contiguous() if hasattr(X, "is_contiguous") else X.flags.c_contiguous)


def _aligned(X: np.ndarray) -> np.ndarray:
    return X if X.flags.aligned else X.copy()


def _identity(Y: np.ndarray) -> np.ndarray:
    return Y


def _numpy(host: np.ndarray, format: str) -> np.ndarray:
    return host


def _torch(host: np.ndarray, format: str) -> torch.Tensor:
    import torch

    if format == BFLOAT16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(host)


def _to_device(device: Device, place: Place) -> Restore[Any]:
    return lambda host, format: staging.upload(
        device, np.ascontiguousarray(host), device.empty(host.shape, format, place)
    )


def _from_torch(X: torch.Tensor) -> tuple[np.ndarray, str, Restore[torch.Tensor]]:
    import torch

    if X.device.type != "cpu":
        remedy = (
            "a meta tensor has no data, allocate it with to_empty(...)"
            if X.device.type == "meta"
            else "X.cpu()"
        )
        raise TypeError(
            f"the tensor is on device {X.device}, expected the CPU or a CUDA device: {remedy}"
        )
    if X.layout is not torch.strided:
        raise TypeError(f"the tensor has layout {X.layout}, expected a dense tensor: X.to_dense()")
    format, X = torch_format(X.dtype), plain(X)
    if format == BFLOAT16:
        return X.contiguous().view(torch.int16).numpy().view(np.uint16), format, _torch
    return X.numpy(), format, _torch


def row_bytes(rows: np.ndarray) -> int:
    """Size of a row in bytes."""
    return rows.nbytes // len(rows) if len(rows) else rows.itemsize * math.prod(rows.shape[1:])
