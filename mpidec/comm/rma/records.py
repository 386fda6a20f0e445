"""Records: arrays with a push-sum weight that others write to; see `_records.c`, and the same without a compiler.

Without the compiled extension no other process reads or writes the records of this one: all rows arrive in messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np

try:
    _records: Any = import_module("._records", __package__)
except ImportError:  # no compiler where the package was installed
    _records = None

HEADER = 64  # bytes before the row of a record
ALIGNED = 64
_FIELDS = np.dtype(
    [
        ("lock", "u8"),
        ("transfers", "u8"),
        ("p", "f8"),
        ("replaced", "u8"),
        ("filled", "u8"),
        ("fresh", "u8"),
        ("unused", "u8", 2),
    ]
)
_MUTEX = np.dtype([("owner", "u8"), ("since", "f8"), ("waiting", "u8"), ("unused", "u8", 5)])
Weights = list[float | None]
_LOCK = threading.RLock()


def stride(count: int, dtype: np.dtype) -> int:
    """Bytes of a record with a row of `count` numbers."""
    return HEADER + -(-count * dtype.itemsize // ALIGNED) * ALIGNED


class _Record:
    """A record as arrays."""

    def __init__(self, memory: np.ndarray, count: int, dtype: np.dtype):
        self.row = memory[HEADER : HEADER + count * dtype.itemsize].view(dtype)
        self._fields = memory[:HEADER].view(_FIELDS)

    def __getitem__(self, field: str) -> Any:
        return self._fields[field][0]

    def __setitem__(self, field: str, value: Any) -> None:
        self._fields[field][0] = value

    def write(self, x: np.ndarray, w: float, p: float, add: bool) -> np.ndarray:
        part: np.ndarray = np.multiply(x, w, dtype=np.float64).astype(self.row.dtype)
        if add:
            self.row += part
            self["p"] += p
        else:
            self.row[:] = part
            self["p"] = p
            self["replaced"] = 1
        self["filled"] = 1
        self["transfers"] += 1
        return part

    def empty(self) -> None:
        self.row[:] = 0
        self["p"] = self["transfers"] = self["replaced"] = self["filled"] = 0


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that only one thread is in at a time: the main one, or a `Helper`."""

    @wraps(method)
    def alone(self: Any, *args: Any) -> Any:
        with _LOCK:
            return method(self, *args)

    return alone


class _Port:
    """What `_records.Port` does, on memory that only this process uses."""

    def __init__(
        self,
        me: int,
        count: int,
        single: bool,
        patience: float,
        value: np.ndarray,
        scratch: np.ndarray,
        ins: Sequence[np.ndarray],
        outs: Sequence[np.ndarray],
        sources: Sequence[np.ndarray | None],
    ):
        dtype = np.dtype(np.float32 if single else np.float64)
        self._value, *rest = (_Record(memory, count, dtype) for memory in (value, *ins, *outs))
        self._ins, self._outs = rest[: len(ins)], rest[len(ins) :]
        self._sources = [
            None if memory is None else _Record(memory, count, dtype) for memory in sources
        ]
        self._dtype = dtype

    def _row(self, data: Any) -> np.ndarray:
        return np.frombuffer(data, self._dtype)

    @_alone
    def send(self, x: Any, weights: Weights, own: float | None, add: bool) -> None:
        value = self._value
        row = value.row if x is None else self._row(x)
        total = sum(w for w in weights if w is not None)
        rest = (
            own is not None and np.may_share_memory(row, value.row) and abs(own + total - 1) < 1e-12
        )
        p, gone, sent = float(value["p"]), 0.0, np.zeros_like(value.row) if rest else None
        for slot, w in zip(self._outs, weights):
            if w is not None:
                part = slot.write(row, w, w * p, add)
                gone += w * p
                if sent is not None:
                    sent += part
        if sent is not None:
            value.row -= sent
            value["p"] = p - gone
        elif own is not None:
            value.row[:] = np.multiply(value.row, own, dtype=np.float64) if own else 0
            value["p"] = p * own
        if own is not None:
            value["fresh"] = 1

    @_alone
    def update(self, own: float, weights: Weights, reset: bool) -> None:
        value = self._value
        value.row[:] = np.multiply(value.row, own, dtype=np.float64) if own else 0
        value["p"] = value["p"] * own
        value["fresh"] = 1
        for slot, w in zip(self._ins, weights):
            if not slot["filled"]:
                continue
            if w is not None:
                value.row[:] = value.row + np.multiply(slot.row, w, dtype=np.float64)
                value["p"] += w * slot["p"]
                if reset:
                    slot.empty()
            slot["transfers"] = 0

    @_alone
    def get(self, k: int, w: float) -> None:
        source = self._sources[k]
        if source is None:
            raise TypeError("get takes the number of a neighbour on this node, and a factor")
        self._ins[k].write(source.row, w, w * source["p"], False)

    @_alone
    def arrive(self, k: int, row: Any, w: float, p: float, transfers: int, replaced: bool) -> None:
        self._ins[k].write(self._row(row), w, w * p, not replaced)
        self._ins[k]["transfers"] += transfers - 1

    def _copy(self, record: _Record, into: np.ndarray, emptied: bool) -> tuple[float, int, int]:
        into[:] = record.row
        about = float(record["p"]), int(record["transfers"]), int(record["replaced"])
        if emptied:
            record.empty()
        return about

    @_alone
    def leave(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return self._copy(self._outs[k], into, True)

    @_alone
    def read(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return self._copy(self._value if k < 0 else self._ins[k], into, False)

    @_alone
    def take(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return self._copy(self._ins[k], into, True)

    @_alone
    def set(self, row: Any) -> None:
        self._value.row[:] = self._row(row)
        self._value["fresh"] = 1

    @_alone
    def shown(self) -> None:
        self._value["fresh"] = 0

    @_alone
    def look(
        self, k: int, shown: np.ndarray, row: np.ndarray, into: np.ndarray
    ) -> tuple[float, int]:
        record = self._value if k == -1 else self._sources[k]
        if record is None:
            raise ValueError("the arguments of look do not fit together")
        fresh = int(record["fresh"])
        if fresh:
            row[:] = record.row
        else:
            into[:] = shown
        return float(record["p"]), fresh

    @_alone
    def fill(self) -> None:
        for slot in self._ins:
            slot.row[:] = self._value.row
            slot["filled"] = 1

    def versions(self) -> list[int]:
        return [int(slot["transfers"]) for slot in self._ins]

    def waiting(self, k: int) -> int:
        return int(self._outs[k]["transfers"])

    @property
    def p(self) -> float:
        return float(self._value["p"])

    @p.setter
    def p(self, value: float) -> None:
        self._value["p"] = value


def _try_mutex(memory: np.ndarray, rank: int) -> int:
    mutex = memory[:HEADER].view(_MUTEX)
    if mutex["owner"][0] not in (0, rank + 1):
        return int(mutex["owner"][0]) - 1
    mutex["owner"], mutex["since"] = rank + 1, time.monotonic()
    memory[HEADER:].view(np.uint64)[rank] = 0
    return -1


def _await_mutex(memory: np.ndarray, rank: int) -> None:
    memory[HEADER:].view(np.uint64)[rank] = 1


def _leave_mutex(memory: np.ndarray, rank: int) -> bool:
    waits = memory[HEADER:].view(np.uint64)
    waited, waits[rank] = bool(waits[rank]), 0
    return waited


def _release_mutex(memory: np.ndarray, rank: int) -> bool:
    mutex, waits = memory[:HEADER].view(_MUTEX), memory[HEADER:].view(np.uint64)
    if mutex["owner"][0] != rank + 1:
        return False
    others = np.roll(np.arange(len(waits)), -rank - 1)[:-1]
    following = next((int(other) for other in others if waits[other]), -1)
    if following >= 0:
        waits[following] = 0
    mutex["owner"] = following + 1
    return True


def _doze_mutex(memory: np.ndarray, rank: int) -> None:
    time.sleep(5e-4)


def _held_mutex(memory: np.ndarray, rank: int) -> float:
    return float(time.monotonic() - memory[:HEADER].view(_MUTEX)["since"][0])


def _swap(memory: np.ndarray, k: int, before: int, after: int) -> bool:
    words = memory.view(np.uint64).ravel()
    if words[k] != before:
        return False
    words[k] = after
    return True


COMPILED = _records is not None
Port: Any = _Port if _records is None else _records.Port
Block: Any = None if _records is None else _records.Block  # (file, size, own): that file in memory
try_mutex: Any = _try_mutex if _records is None else _records.try_mutex
await_mutex: Any = _await_mutex if _records is None else _records.await_mutex
leave_mutex: Any = _leave_mutex if _records is None else _records.leave_mutex
release_mutex: Any = _release_mutex if _records is None else _records.release_mutex
doze_mutex: Any = _doze_mutex if _records is None else _records.doze_mutex
held_mutex: Any = _held_mutex if _records is None else _records.held_mutex
swap: Any = _swap if _records is None else _records.swap
