"""Device arrays to the host and back, in pieces, through pinned host memory.

While one piece is copied by the device, the one before (or behind) is copied by the host: two buffers take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np

from .devices import Device, Event

CHUNK = 8 << 20                                     # bytes of one buffer


class Buffer:
    """Pinned host memory, and the last copy that used it."""

    def __init__(self, device: Device):
        self.memory, self.host = device.pinned(CHUNK)
        self.event: Event | None = None

    def settle(self) -> None:
        """Wait for the last copy."""
        if self.event is not None:
            self.event.synchronize()
            self.event = None


_SPARE: dict[Device, list[tuple[Buffer, Buffer]]] = {}


@contextmanager
def _buffers(device: Device) -> Iterator[tuple[Buffer, Buffer]]:
    """Two buffers that nobody else uses meanwhile."""
    spare = _SPARE.setdefault(device, [])
    try:
        pair = spare.pop()
    except IndexError:
        pair = Buffer(device), Buffer(device)
    yield pair
    spare.append(pair)                              # not after an error: nobody knows what is under way


def download(device: Device, X: Any, host: np.ndarray) -> None:
    """`host[...] = X` bit by bit, when all that was queued on the stream of X is done; `host` is C-contiguous, of X's format."""
    out = host.reshape(-1).view(np.uint8)
    if not len(out):
        return
    source = device.bytes(X)
    device.synchronize(device.place(X))
    with _buffers(device) as pair:
        last: tuple[Buffer, np.ndarray] | None = None
        for buffer, start in zip(cycle(pair), range(0, len(out), CHUNK)):
            piece = out[start:start + CHUNK]
            buffer.settle()
            buffer.event = device.copy_out(source[start:start + len(piece)], buffer.memory[:len(piece)])
            if last is not None:
                _take(*last)
            last = buffer, piece
        if last is not None:
            _take(*last)


def _take(buffer: Buffer, piece: np.ndarray) -> None:
    buffer.settle()
    piece[:] = buffer.host[:len(piece)]


def upload(device: Device, host: np.ndarray, Y: Any) -> Any:
    """`Y[...] = host` bit by bit, on the stream that is current at Y's place; `host`, C-contiguous, may change at once.

    Returns Y, which is contiguous.
    """
    data = host.reshape(-1).view(np.uint8)
    if not len(data):
        return Y
    target = device.bytes(Y)
    with _buffers(device) as pair:
        for buffer, start in zip(cycle(pair), range(0, len(data), CHUNK)):
            piece = data[start:start + CHUNK]
            buffer.settle()
            buffer.host[:len(piece)] = piece
            buffer.event = device.copy_in(target[start:start + len(piece)], buffer.memory[:len(piece)])
    return Y
