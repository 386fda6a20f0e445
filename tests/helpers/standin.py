"""A device that is none: its arrays own memory that NumPy cannot read, its work is done late, what is read too early is garbage.

Work is queued on the current stream of a place, and done when somebody waits for it (or for a later event of that stream); until
then the memory of a result is all ones in binary, which is NaN.  A copy from an array whose work is not done is an error.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from mpidec.comm.arrays.devices import extent
from mpidec.comm.arrays.formats import BFLOAT16, flat_dtype, narrow, widen, working


class Stream:
    """A queue of work."""

    def __init__(self):
        self.queue, self.done, self.added = [], 0, 0

    def add(self, work, copies=False):
        self.queue.append((work, copies))
        self.added += 1
        return Mark(self, self.added)

    def run(self, until):
        while self.done < until:
            self.queue.pop(0)[0]()
            self.done += 1

    def synchronize(self):
        self.run(self.added)

    @property
    def busy(self):
        """Whether something that is no copy is still to be done."""
        return not all(copies for _, copies in self.queue)


class Mark:
    """An event."""

    def __init__(self, stream, number):
        self.stream, self.number = stream, number

    def synchronize(self):
        self.stream.run(self.number)


class Array:
    """An array of the stand-in device."""

    def __init__(self, memory, format, place, device):
        self._memory, self.format, self.place, self.device = memory, format, place, device
        self.shape = memory.shape

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion of a device array")

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        raise TypeError("a device array is not read number by number")

    @property
    def dtype(self):
        return self.format

    def is_contiguous(self):
        return self._memory.flags.c_contiguous

    def get(self):
        """Wait for all work, and return what is there, as NumPy sees it (float32 for bfloat16)."""
        for stream in self.device.streams:
            stream.synchronize()
        return widen(self._memory, BFLOAT16) if self.format == BFLOAT16 else self._memory.copy()

    def queued(self, function, *others, format=None):
        """`function(memory, ...)`, done later."""
        arrays = [self, *others]
        raw = [X._memory if isinstance(X, Array) else X for X in arrays]
        sample = function(*(np.zeros_like(X) if isinstance(X, np.ndarray) else X for X in raw))
        result = self.device.garbage(sample.shape, format or sample.dtype.str, self.place)
        self.device.stream(self.place).add(lambda: np.copyto(result._memory, function(*raw)))
        return result

    def view(self, memory, format=None):
        return Array(memory, format or self.format, self.place, self.device)

    def reshape(self, shape):
        return self.view(self._memory.reshape(shape))

    def __getitem__(self, key):
        if isinstance(key, Array):
            return self.queued(lambda X, places: X[places], key)
        return self.view(self._memory[key])

    def __setitem__(self, key, values):
        place = key._memory if isinstance(key, Array) else key

        def work():
            self._memory[place] = values._memory

        self.device.stream(self.place).add(work)

    def __mul__(self, other):
        return self.queued(lambda X, Y: X * Y, other)

    def __rmul__(self, other):
        return self.queued(lambda X, Y: X.dtype.type(Y) * X, other)

    def __add__(self, other):
        return self.queued(lambda X, Y: X + Y, other)

    def __sub__(self, other):
        return self.queued(lambda X, Y: X - Y, other)


class Standin:
    """The protocol of `mpidec.comm.arrays.devices.Device`; `log` has what was done:
    ("synchronize", place), ("out" or "in", bytes).
    """

    name = "stand-in"

    def __init__(self, places=2):
        self.streams = [Stream() for _ in range(places)]
        self.current = dict(enumerate(self.streams))
        self.here = 0
        self.log = []

    # For tests

    def stream(self, place):
        return self.current[place]

    def switch(self, place):
        """Make a new stream the current one of a place."""
        self.current[place] = Stream()
        self.streams.append(self.current[place])

    def garbage(self, shape, format, place):
        dtype = flat_dtype(format)
        ones = bytearray(b"\xff" * (dtype.itemsize * math.prod(shape)))
        return Array(np.frombuffer(ones, dtype).reshape(shape), format, place, self)

    def array(self, values, format=None, place=0):
        """An array that will have these values when its stream is synchronized."""
        values = np.asarray(values)
        X = self.garbage(values.shape, format or values.dtype.str, place)
        bits = narrow(values, format) if format == BFLOAT16 else values.astype(flat_dtype(X.format))
        self.stream(place).add(lambda: np.copyto(X._memory, bits))
        return X

    def count(self, what):
        return sum(kind == what for kind, _ in self.log)

    # The protocol

    def matches(self, families, X):
        return isinstance(X, Array)

    def format(self, X):
        return X.format

    def place(self, X):
        return X.place

    def span(self, X):
        return extent(X._memory.ctypes.data, X.shape, X._memory.strides, X._memory.itemsize)

    @contextlib.contextmanager
    def on(self, place):
        before, self.here = self.here, place
        yield
        self.here = before

    def synchronize(self, place):
        self.log.append(("synchronize", place))
        self.stream(place).synchronize()

    def empty(self, shape, format, place):
        return self.garbage(tuple(shape), format, place)

    def bytes(self, X):
        if not X.is_contiguous():
            X = X.queued(np.ascontiguousarray, format=X.format)
        return X.view(X._memory.reshape(-1).view(np.uint8), "|u1")

    def pinned(self, nbytes):
        memory = np.empty(nbytes, np.uint8)
        return memory, memory

    def copy_out(self, part, buffer):
        if self.stream(part.place).busy:
            raise RuntimeError(
                "a device array is read before the stream that makes it was synchronized"
            )
        self.log.append(("out", len(part)))
        return self.stream(part.place).add(lambda: np.copyto(buffer, part._memory), copies=True)

    def copy_in(self, part, buffer):
        self.log.append(("in", len(part)))
        return self.stream(part.place).add(lambda: np.copyto(part._memory, buffer), copies=True)

    def flat(self, X):
        if not X.is_contiguous():
            X = X.queued(np.ascontiguousarray, format=X.format)
        return X.reshape((len(X), math.prod(X.shape[1:])))

    def real(self, flat):
        dtype = flat_dtype(flat.format)
        if dtype.kind == "c":
            return flat.view(
                flat._memory.view(flat._memory.real.dtype), flat._memory.real.dtype.str
            )
        if working(flat.format) == dtype:
            return flat
        return flat.queued(lambda X: widen(X, flat.format), format="<f4")

    def from_real(self, rows, shape, format):
        assert rows.place == self.here
        dtype = flat_dtype(format)
        if dtype.kind == "c":
            return rows.view(rows._memory.view(dtype).reshape(shape), format)
        return (
            rows
            if working(format) == dtype
            else rows.queued(lambda X: narrow(X, format), format=format)
        ).reshape(shape)

    def constant(self, values, place):
        return Array(np.array(values), values.dtype.str, place, self)

    def concatenate(self, parts, axis):
        return parts[0].queued(
            lambda *arrays: np.concatenate(arrays, axis), *parts[1:], format=parts[0].format
        )

    def zeros_like(self, rows):
        return rows.queued(np.zeros_like, format=rows.format)
