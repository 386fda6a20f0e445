"""Device arrays (CuPy arrays, PyTorch CUDA tensors) behind one small protocol.

Work on a device is queued on a stream.  All operations here are queued on the current stream of the
device that holds the array, like the library's own operations.  An input array must have been made
on that stream (or the stream must wait for it); a result is ready for the operations that follow on
the same stream.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import numpy as np
from numpy.typing import ArrayLike

from .formats import BFLOAT16, working

if TYPE_CHECKING:
    import cupy
    import torch


class Array(Protocol):
    """Common interface of NumPy, CuPy and PyTorch arrays, as far as this package uses it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __add__(self, other: Any, /) -> Any: ...
    def reshape(self, shape: tuple[int, ...], /) -> Any: ...


# An array of NumPy, CuPy or PyTorch, or what NumPy makes one of.
Given = Array | ArrayLike
# A device number, or a `torch.device`.
Place = Hashable
# Memory of the host that a device reads and writes.
Pinned = Union[np.ndarray, "torch.Tensor"]


class Event(Protocol):
    """Event recorded on a stream."""

    def synchronize(self) -> None:
        """Wait until all work queued before the event is done."""


class CuPy:
    """Arrays of class `cupy.ndarray`; a place is a device number.

    A `place` identifies the device that holds an array, in the library's own terms; a `format` is
    the dtype of the entries, in NumPy's notation (`"<f4"`), or `"bfloat16"`.
    """

    name = "cupy"

    @property
    def library(self) -> Any:
        """The library, imported when an array needs it."""
        import cupy

        return cupy

    def matches(self, families: set[str], X: object) -> bool:
        """Return whether `X` is an array of this library on a device; `families` are the packages
        of its class and base classes.
        """
        return "cupy" in families

    def format(self, X: cupy.ndarray) -> str:
        """Return the format of the entries."""
        return str(X.dtype.newbyteorder("=").str)

    def place(self, X: cupy.ndarray) -> int:
        """Return the device that holds `X`."""
        return int(X.device.id)

    def span(self, X: cupy.ndarray) -> tuple[int, int]:
        """Address range `(begin, end)` of the array's memory."""
        return extent(X.data.ptr, X.shape, X.strides, X.itemsize)

    def on(self, place: Place) -> AbstractContextManager[object]:
        """Context in which `place` is the current device."""
        return cast(AbstractContextManager[object], self.library.cuda.Device(place))

    def synchronize(self, place: Place) -> None:
        """Wait for all work queued on the current stream of `place`."""
        with self.on(place):
            self.library.cuda.get_current_stream().synchronize()

    def empty(self, shape: Sequence[int], format: str, place: Place) -> cupy.ndarray:
        """Uninitialized array on a device."""
        with self.on(place):
            return self.library.empty(tuple(shape), format)

    def bytes(self, X: cupy.ndarray) -> cupy.ndarray:
        """Return the memory of `X` as a 1-D array of bytes; a queued copy if `X` is not
        contiguous.
        """
        with self.on(self.place(X)):
            return self.library.ascontiguousarray(X).reshape(-1).view(np.uint8)

    def pinned(self, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Pinned host memory, as an object of this library and as a NumPy array."""
        memory = np.frombuffer(self.library.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        return memory, memory

    def copy_out(self, part: cupy.ndarray, buffer: np.ndarray) -> Event:
        """Queue a copy of bytes from the device to pinned memory."""
        with self.on(self.place(part)):
            stream = self.library.cuda.get_current_stream()
            part.get(stream=stream, out=buffer, blocking=False)
            return cast(Event, stream.record())

    def copy_in(self, part: cupy.ndarray, buffer: np.ndarray) -> Event:
        """Queue a copy of bytes from pinned memory to the device."""
        with self.on(self.place(part)):
            stream = self.library.cuda.get_current_stream()
            part.set(buffer, stream=stream)
            return cast(Event, stream.record())

    def flat(self, X: cupy.ndarray) -> cupy.ndarray:
        """`X` as a contiguous matrix with one row per row of `X`."""
        return self.library.ascontiguousarray(X).reshape(len(X), math.prod(X.shape[1:]))

    def real(self, flat: cupy.ndarray) -> cupy.ndarray:
        """Contiguous matrix as real numbers of the working precision: float16 and bfloat16 become
        float32, complex entries become
        pairs of real ones."""
        return (
            flat.view(flat.real.dtype)
            if flat.dtype.kind == "c"
            else flat.astype(working(flat.dtype.str), copy=False)
        )

    def from_real(self, rows: cupy.ndarray, shape: Sequence[int], format: str) -> cupy.ndarray:
        """Inverse of `flat` followed by `real`: an array of this shape and format."""
        dtype = np.dtype(format)
        return (rows.view(dtype) if dtype.kind == "c" else rows.astype(dtype, copy=False)).reshape(
            tuple(shape)
        )

    def constant(self, values: np.ndarray, place: Place) -> cupy.ndarray:
        """Copy of a NumPy array on a device."""
        with self.on(place):
            return self.library.asarray(values)

    def concatenate(self, parts: Sequence[cupy.ndarray], axis: int) -> cupy.ndarray:
        """Return the parts, joined along an axis."""
        return self.library.concatenate(parts, axis=axis)

    def zeros_like(self, rows: cupy.ndarray) -> cupy.ndarray:
        """Array of zeros of the same shape and dtype on the same device."""
        return self.library.zeros_like(rows)


class Torch:
    """Tensors of class `torch.Tensor` on a CUDA device, with the methods of `CuPy`; a place is a
    `torch.device`.
    """

    name = "torch"
    kind = "cuda"

    @property
    def library(self) -> Any:
        """The library, imported when a tensor needs it."""
        import torch

        return torch

    def matches(self, families: set[str], X: torch.Tensor) -> bool:
        return "torch" in families and X.device.type == self.kind

    def format(self, X: torch.Tensor) -> str:
        return torch_format(X.dtype)

    def place(self, X: torch.Tensor) -> torch.device:
        return X.device

    def span(self, X: torch.Tensor) -> tuple[int, int]:
        size = X.element_size()
        return extent(X.data_ptr(), X.shape, [step * size for step in X.stride()], size)

    def on(self, place: torch.device) -> AbstractContextManager[object]:
        return cast(AbstractContextManager[object], self.library.cuda.device(place))

    def synchronize(self, place: torch.device) -> None:
        self.library.cuda.current_stream(place).synchronize()

    def empty(self, shape: Sequence[int], format: str, place: torch.device) -> torch.Tensor:
        return self.library.empty(tuple(shape), dtype=torch_dtype(format), device=place)

    def bytes(self, X: torch.Tensor) -> torch.Tensor:
        return plain(X).contiguous().reshape(-1).view(self.library.uint8)

    def pinned(self, nbytes: int) -> tuple[torch.Tensor, np.ndarray]:
        memory = self.library.empty(nbytes, dtype=self.library.uint8, pin_memory=True)
        return memory, memory.numpy()

    def copy_out(self, part: torch.Tensor, buffer: torch.Tensor) -> Event:
        buffer.copy_(part, non_blocking=True)
        return self._record(part.device)

    def copy_in(self, part: torch.Tensor, buffer: torch.Tensor) -> Event:
        part.copy_(buffer, non_blocking=True)
        return self._record(part.device)

    def _record(self, place: torch.device) -> Event:
        event = self.library.cuda.Event()
        event.record(self.library.cuda.current_stream(place))
        return cast(Event, event)

    def flat(self, X: torch.Tensor) -> torch.Tensor:
        return plain(X).contiguous().reshape(len(X), math.prod(X.shape[1:]))

    def real(self, flat: torch.Tensor) -> torch.Tensor:
        if flat.is_complex():
            return self.library.view_as_real(flat).reshape(flat.shape[0], 2 * flat.shape[1])
        return flat.to(self.library.float32) if flat.element_size() == 2 else flat

    def from_real(self, rows: torch.Tensor, shape: Sequence[int], format: str) -> torch.Tensor:
        dtype = torch_dtype(format)
        if dtype.is_complex:
            return self.library.view_as_complex(
                rows.reshape(rows.shape[0], rows.shape[1] // 2, 2)
            ).reshape(tuple(shape))
        return rows.to(dtype).reshape(tuple(shape))

    def constant(self, values: np.ndarray, place: torch.device) -> torch.Tensor:
        return self.library.from_numpy(np.ascontiguousarray(values)).to(place)

    def concatenate(self, parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        return self.library.cat(list(parts), dim=axis)

    def zeros_like(self, rows: torch.Tensor) -> torch.Tensor:
        return self.library.zeros_like(rows)


Device = CuPy | Torch  # arrays of one library on a device
KNOWN: list[Device] = [CuPy(), Torch()]


def families(X: object) -> set[str]:
    """Names of the packages that define the class of `X` and its base classes."""
    return _packages(type(X))  # type: ignore[arg-type]


@lru_cache
def _packages(kind: type) -> set[str]:
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def device_of(X: object) -> Device | None:
    """Return the library and device kind of `X`; None if `X` is not a device array."""
    if isinstance(X, np.ndarray):
        return None
    names = families(X)
    return next((device for device in KNOWN if device.matches(names, X)), None)


def plain(X: torch.Tensor) -> torch.Tensor:
    """Return the tensor detached from autograd, with lazy conjugation and negation applied."""
    return X.detach().resolve_conj().resolve_neg()


@lru_cache
def torch_format(dtype: torch.dtype) -> str:
    """Return the format of tensors of a dtype of PyTorch."""
    name = str(dtype).removeprefix("torch.")
    if name == BFLOAT16:
        return name
    try:
        text: str = np.dtype(name).str
        return text
    except TypeError:
        raise TypeError(
            f"the tensor has dtype {name}, expected one that NumPy supports, or bfloat16: x.float()"
        ) from None


def torch_dtype(format: str) -> torch.dtype:
    """Return the PyTorch dtype of a format."""
    import torch

    return getattr(torch, format if format == BFLOAT16 else np.dtype(format).name)


def extent(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """Address range `(begin, end)` of the memory of an array.

    Examples
    --------
    >>> extent(1000, (3, 2), (16, -8), 8)
    (992, 1040)
    """
    if 0 in shape:
        return address, address
    steps = [(size - 1) * stride for size, stride in zip(shape, strides)]
    return address + sum(min(step, 0) for step in steps), address + sum(
        max(step, 0) for step in steps
    ) + itemsize
