"""A module that looks like CuPy, as far as mpidec uses it, over NumPy: its arrays are not NumPy's, and do not become that."""

from __future__ import annotations

import contextlib
import types

import numpy as np


class ndarray:
    """`cupy.ndarray`."""

    __module__ = "cupy"

    def __init__(self, memory):
        self._memory = np.asarray(memory)
        self.device = types.SimpleNamespace(id=0)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __len__(self):
        return len(self._memory)

    dtype = property(lambda self: self._memory.dtype)
    shape = property(lambda self: self._memory.shape)
    ndim = property(lambda self: self._memory.ndim)
    strides = property(lambda self: self._memory.strides)
    itemsize = property(lambda self: self._memory.itemsize)
    flags = property(lambda self: self._memory.flags)
    data = property(lambda self: types.SimpleNamespace(ptr=self._memory.ctypes.data))
    real = property(lambda self: ndarray(self._memory.real))

    def __getitem__(self, key):
        return ndarray(self._memory[bare(key)])

    def __setitem__(self, key, values):
        self._memory[bare(key)] = bare(values)

    def __mul__(self, other):
        return ndarray(self._memory * bare(other))

    __rmul__ = __mul__

    def __add__(self, other):
        return ndarray(self._memory + bare(other))

    def __sub__(self, other):
        return ndarray(self._memory - bare(other))

    def reshape(self, *shape):
        return ndarray(self._memory.reshape(*shape))

    def transpose(self, *axes):
        return ndarray(self._memory.transpose(*axes))

    def view(self, dtype):
        return ndarray(self._memory.view(dtype))

    def astype(self, dtype, copy=True):
        return ndarray(self._memory.astype(dtype, copy=copy))

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            return self._memory.copy()
        assert (
            type(out) is np.ndarray
            and out.dtype == self.dtype
            and out.shape == self.shape
            and out.flags.c_contiguous
        )
        assert isinstance(stream, Stream) and not blocking
        out[...] = self._memory
        return out

    def set(self, arr, stream=None):
        assert (
            type(arr) is np.ndarray
            and arr.dtype == self.dtype
            and arr.shape == self.shape
            and isinstance(stream, Stream)
        )
        self._memory[...] = arr


class Stream:
    """`cupy.cuda.Stream`."""

    def __init__(self):
        self.synchronized = 0

    def synchronize(self):
        self.synchronized += 1

    def record(self):
        return types.SimpleNamespace(synchronize=lambda: None)


def bare(X):
    return X._memory if isinstance(X, ndarray) else X


def module():
    """The module `cupy`."""
    stream = Stream()
    cuda = types.SimpleNamespace(
        Device=lambda place: contextlib.nullcontext(),
        get_current_stream=lambda: stream,
        alloc_pinned_memory=bytearray,
    )
    result = types.ModuleType("cupy")
    vars(result).update(
        ndarray=ndarray,
        cuda=cuda,
        empty=lambda shape, dtype: ndarray(np.full(shape, 7, dtype)),
        asarray=lambda X: ndarray(np.array(X)),
        ascontiguousarray=lambda X: ndarray(np.ascontiguousarray(X._memory)),
        concatenate=lambda parts, axis: ndarray(np.concatenate([X._memory for X in parts], axis)),
        zeros_like=lambda X: ndarray(np.zeros_like(X._memory)),
    )
    return result
