"""Records without a compiler: what `_records.c` does, on memory that only this process uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

HEADER = 64  # bytes before the row of a record
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
_LOCK = threading.RLock()
P = ParamSpec("P")
T = TypeVar("T")


class _Record:
    """A record as arrays."""

    def __init__(self, memory: np.ndarray, count: int, dtype: np.dtype):
        self.row = memory[HEADER : HEADER + count * dtype.itemsize].view(dtype)
        self.head = memory[:HEADER].view(_FIELDS)[0]

    def write(self, x: np.ndarray, w: float, p: float, add: bool) -> np.ndarray:
        part: np.ndarray = np.multiply(x, w, dtype=np.float64).astype(self.row.dtype)
        if add:
            self.row += part
            self.head["p"] += p
        else:
            self.row[:] = part
            self.head["p"] = p
            self.head["replaced"] = 1
        self.head["filled"] = 1
        self.head["transfers"] += 1
        return part

    def empty(self) -> None:
        self.row[:] = 0
        self.head["p"] = self.head["transfers"] = self.head["replaced"] = self.head["filled"] = 0


def _alone(method: Callable[P, T]) -> Callable[P, T]:
    """A method that only one thread is in at a time: the main one, or a `Helper`."""

    @wraps(method)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _LOCK:
            return method(*args, **kwargs)

    return alone


class AgentRecords:
    """All that one agent does with records."""

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

    def _row(self, data: np.ndarray) -> np.ndarray:
        return np.frombuffer(data, self._dtype)

    @_alone
    def send(
        self, x: np.ndarray | None, weights: list[float | None], own: float | None, add: bool
    ) -> None:
        value = self._value
        row = value.row if x is None else self._row(x)
        total = sum(w for w in weights if w is not None)
        rest = (
            own is not None and np.may_share_memory(row, value.row) and abs(own + total - 1) < 1e-12
        )
        p, gone, sent = float(value.head["p"]), 0.0, np.zeros_like(value.row) if rest else None
        for slot, w in zip(self._outs, weights):
            if w is not None:
                part = slot.write(row, w, w * p, add)
                gone += w * p
                if sent is not None:
                    sent += part
        if sent is not None:
            value.row -= sent
            value.head["p"] = p - gone
        elif own is not None:
            value.row[:] = np.multiply(value.row, own, dtype=np.float64) if own else 0
            value.head["p"] = p * own
        if own is not None:
            value.head["fresh"] = 1

    @_alone
    def update(self, own: float, weights: list[float | None], reset: bool) -> None:
        value = self._value
        value.row[:] = np.multiply(value.row, own, dtype=np.float64) if own else 0
        value.head["p"] = value.head["p"] * own
        value.head["fresh"] = 1
        for slot, w in zip(self._ins, weights):
            if not slot.head["filled"]:
                continue
            if w is not None:
                value.row[:] = value.row + np.multiply(slot.row, w, dtype=np.float64)
                value.head["p"] += w * slot.head["p"]
                if reset:
                    slot.empty()
            slot.head["transfers"] = 0

    @_alone
    def get(self, k: int, w: float) -> None:
        source = self._sources[k]
        if source is None:
            raise TypeError("get takes the number of a neighbour on this node, and a factor")
        self._ins[k].write(source.row, w, w * source.head["p"], False)

    @_alone
    def deliver(
        self, k: int, row: np.ndarray, w: float, p: float, transfers: int, replaced: bool
    ) -> None:
        self._ins[k].write(self._row(row), w, w * p, not replaced)
        self._ins[k].head["transfers"] += transfers - 1

    def _copy(self, record: _Record, into: np.ndarray, emptied: bool) -> tuple[float, int, int]:
        into[:] = record.row
        about = float(record.head["p"]), int(record.head["transfers"]), int(record.head["replaced"])
        if emptied:
            record.empty()
        return about

    @_alone
    def pop_outbox(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return self._copy(self._outs[k], into, True)

    @_alone
    def read(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return self._copy(self._value if k < 0 else self._ins[k], into, False)

    @_alone
    def take(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return self._copy(self._ins[k], into, True)

    @_alone
    def set(self, row: np.ndarray) -> None:
        self._value.row[:] = self._row(row)
        self._value.head["fresh"] = 1

    @_alone
    def shown(self) -> None:
        self._value.head["fresh"] = 0

    @_alone
    def look(
        self, k: int, shown: np.ndarray, row: np.ndarray, into: np.ndarray
    ) -> tuple[float, int]:
        record = self._value if k == -1 else self._sources[k]
        if record is None:
            raise ValueError("the arguments of look do not fit together")
        fresh = int(record.head["fresh"])
        if fresh:
            row[:] = record.row
        else:
            into[:] = shown
        return float(record.head["p"]), fresh

    @_alone
    def fill(self) -> None:
        for slot in self._ins:
            slot.row[:] = self._value.row
            slot.head["filled"] = 1

    def versions(self) -> list[int]:
        return [int(slot.head["transfers"]) for slot in self._ins]

    def unread(self, k: int) -> int:
        return int(self._outs[k].head["transfers"])

    @property
    def p(self) -> float:
        return float(self._value.head["p"])

    @p.setter
    def p(self, value: float) -> None:
        self._value.head["p"] = value


def try_mutex(memory: np.ndarray, rank: int) -> int:
    mutex = memory[:HEADER].view(_MUTEX)
    if mutex["owner"][0] not in (0, rank + 1):
        return int(mutex["owner"][0]) - 1
    mutex["owner"], mutex["since"] = rank + 1, time.monotonic()
    memory[HEADER:].view(np.uint64)[rank] = 0
    return -1


def await_mutex(memory: np.ndarray, rank: int) -> None:
    memory[HEADER:].view(np.uint64)[rank] = 1


def leave_mutex(memory: np.ndarray, rank: int) -> bool:
    waits = memory[HEADER:].view(np.uint64)
    waited, waits[rank] = bool(waits[rank]), 0
    return waited


def release_mutex(memory: np.ndarray, rank: int) -> bool:
    mutex, waits = memory[:HEADER].view(_MUTEX), memory[HEADER:].view(np.uint64)
    if mutex["owner"][0] != rank + 1:
        return False
    others = np.roll(np.arange(len(waits)), -rank - 1)[:-1]
    following = next((int(other) for other in others if waits[other]), -1)
    if following >= 0:
        waits[following] = 0
    mutex["owner"] = following + 1
    return True


def doze_mutex(memory: np.ndarray, rank: int) -> None:
    time.sleep(5e-4)


def held_mutex(memory: np.ndarray, rank: int) -> float:
    return float(time.monotonic() - memory[:HEADER].view(_MUTEX)["since"][0])


def swap(memory: np.ndarray, k: int, before: int, after: int) -> bool:
    words = memory.view(np.uint64).ravel()
    if words[k] != before:
        return False
    words[k] = after
    return True
