"""Copies between device and host, in pieces, through pinned host memory.

Two buffers alternate: while the device copies one piece, the host copies the other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import numpy as np

from .devices import Array, Device, Event, Pinned

CHUNK = 8 << 20  # size of a buffer in bytes


class Buffer:
    """Pinned host memory, and the event of the last copy that used it."""

    def __init__(self, device: Device):
        pinned: tuple[Pinned, np.ndarray] = device.pinned(CHUNK)
        self.memory, self.host = pinned
        self.event: Event | None = None

    def wait(self) -> None:
        """Wait for the last copy."""
        if self.event is not None:
            self.event.synchronize()
            self.event = None


_SPARE: dict[Device, list[tuple[Buffer, Buffer]]] = {}


@contextmanager
def _buffers(device: Device) -> Iterator[tuple[Buffer, Buffer]]:
    """Two buffers for exclusive use within the context."""
    spare = _SPARE.setdefault(device, [])
    try:
        pair = spare.pop()
    except IndexError:
        pair = Buffer(device), Buffer(device)
    yield pair
    # Not after an error: a copy may still be using them.
    spare.append(pair)


def download(device: Device, X: Array, host: np.ndarray) -> None:
    """Copy `X` to `host` bit by bit, after all work queued on the stream of `X`; `host` is
    C-contiguous, with the format of `X`.
    """
    out = host.reshape(-1).view(np.uint8)
    if not len(out):
        return
    source = device.bytes(X)
    device.synchronize(device.place(X))
    with _buffers(device) as pair:
        last: tuple[Buffer, np.ndarray] | None = None
        for buffer, start in zip(cycle(pair), range(0, len(out), CHUNK)):
            piece = out[start : start + CHUNK]
            buffer.wait()
            buffer.event = device.copy_out(
                source[start : start + len(piece)], buffer.memory[: len(piece)]
            )
            if last is not None:
                _copy_piece(*last)
            last = buffer, piece
        if last is not None:
            _copy_piece(*last)


def _copy_piece(buffer: Buffer, piece: np.ndarray) -> None:
    buffer.wait()
    piece[:] = buffer.host[: len(piece)]


def upload(device: Device, host: np.ndarray, Y: Array) -> Array:
    """Copy `host` to the contiguous device array `Y` bit by bit, and return `Y`.

    The copy is queued on the current stream of the device; `host` (C-contiguous) may be changed as
    soon as this function returns.
    """
    data = host.reshape(-1).view(np.uint8)
    if not len(data):
        return Y
    target = device.bytes(Y)
    with _buffers(device) as pair:
        for buffer, start in zip(cycle(pair), range(0, len(data), CHUNK)):
            piece = data[start : start + CHUNK]
            buffer.wait()
            buffer.host[: len(piece)] = piece
            buffer.event = device.copy_in(
                target[start : start + len(piece)], buffer.memory[: len(piece)]
            )
    return Y
