"""Python version of `_records.c`, for memory that only this process uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

HEADER = 64  # bytes before the row of a record
_HEAD = ["lock", "transfers", "p", "replaced", "filled", "fresh", "unused", "unused too"]
# Words before those of the ranks that wait for a mutex.
_WAITS = 8
_LOCK = threading.RLock()
P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method that only one thread is in at a time: the main one, or a `Helper`."""

    @wraps(method)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _LOCK:
            return method(*args, **kwargs)

    return alone


class AgentRecords:
    """Operations of one agent on its records."""

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
        self._dtype = np.dtype(np.float32 if single else np.float64)
        head = [(name, "f8" if name == "p" else "u8") for name in _HEAD]
        form = np.dtype([*head, ("row", self._dtype, (count,))])

        def record(memory: np.ndarray) -> np.void:
            part: np.void = memory[: form.itemsize].view(form)[0]
            return part

        self._value, self._ins, self._outs = (
            record(value),
            [*map(record, ins)],
            [*map(record, outs)],
        )
        self._sources: list[Any] = [None if one is None else record(one) for one in sources]

    def _row(self, data: np.ndarray) -> np.ndarray:
        return np.frombuffer(data, self._dtype)

    def _write(self, slot: np.void, x: np.ndarray, w: float, p: float, add: bool) -> np.ndarray:
        part: np.ndarray = np.multiply(x, w, dtype=np.float64).astype(self._dtype)
        slot["row"] = slot["row"] + part if add else part
        slot["p"] = slot["p"] + p if add else p
        slot["replaced"] = slot["replaced"] or not add
        slot["filled"] = 1
        slot["transfers"] += 1
        return part

    def _scale(self, own: float) -> None:
        value = self._value
        value["row"] = np.multiply(value["row"], own, dtype=np.float64) if own else 0
        value["p"] *= own

    @_alone
    def send(
        self, x: np.ndarray | None, weights: list[float | None], own: float | None, add: bool
    ) -> None:
        value = self._value
        row = value["row"] if x is None else self._row(x)
        total = sum(w for w in weights if w is not None)
        same = np.may_share_memory(row, value["row"])
        rest = own is not None and same and abs(own + total - 1) < 1e-12
        p, gone, sent = float(value["p"]), 0.0, np.zeros_like(row)
        for slot, w in zip(self._outs, weights):
            if w is not None:
                sent += self._write(slot, row, w, w * p, add)
                gone += w * p
        if rest:
            value["row"] -= sent
            value["p"] = p - gone
        elif own is not None:
            self._scale(own)
        if own is not None:
            value["fresh"] = 1

    @_alone
    def update(self, own: float, weights: list[float | None], reset: bool) -> None:
        value = self._value
        self._scale(own)
        value["fresh"] = 1
        for slot, w in zip(self._ins, weights):
            if not slot["filled"]:
                continue
            if w is not None:
                value["row"] = value["row"] + np.multiply(slot["row"], w, dtype=np.float64)
                value["p"] += w * slot["p"]
                if reset:
                    _empty(slot)
            slot["transfers"] = 0

    @_alone
    def get(self, k: int, w: float) -> None:
        source = self._sources[k]
        self._write(self._ins[k], source["row"], w, w * source["p"], False)

    @_alone
    def deliver(
        self, k: int, row: np.ndarray, w: float, p: float, transfers: int, replaced: bool
    ) -> None:
        self._write(self._ins[k], self._row(row), w, w * p, not replaced)
        self._ins[k]["transfers"] += transfers - 1

    @_alone
    def pop_outbox(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return _copy(self._outs[k], into, True)

    @_alone
    def read(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return _copy(self._value if k < 0 else self._ins[k], into, False)

    @_alone
    def take(self, k: int, into: np.ndarray) -> tuple[float, int, int]:
        return _copy(self._ins[k], into, True)

    @_alone
    def set(self, row: np.ndarray) -> None:
        self._value["row"] = self._row(row)
        self._value["fresh"] = 1

    @_alone
    def shown(self) -> None:
        self._value["fresh"] = 0

    @_alone
    def look(
        self, k: int, shown: np.ndarray, row: np.ndarray, into: np.ndarray
    ) -> tuple[float, int]:
        record = self._value if k == -1 else self._sources[k]
        fresh = int(record["fresh"])
        if fresh:
            row[:] = record["row"]
        else:
            into[:] = shown
        return float(record["p"]), fresh

    @_alone
    def fill(self) -> None:
        for slot in self._ins:
            slot["row"] = self._value["row"]
            slot["filled"] = 1

    def versions(self) -> list[int]:
        return [int(slot["transfers"]) for slot in self._ins]

    def unread(self, k: int) -> int:
        return int(self._outs[k]["transfers"])

    @property
    def p(self) -> float:
        return float(self._value["p"])

    @p.setter
    def p(self, value: float) -> None:
        self._value["p"] = value


def _empty(record: np.void) -> None:
    for name in ("row", "p", "transfers", "replaced", "filled"):
        record[name] = 0


def _copy(record: np.void, into: np.ndarray, emptied: bool) -> tuple[float, int, int]:
    into[:] = record["row"]
    about = float(record["p"]), int(record["transfers"]), int(record["replaced"])
    if emptied:
        _empty(record)
    return about


def try_mutex(memory: np.ndarray, rank: int) -> int:
    # Owner plus one, when it was taken, and whether each rank waits.
    words = memory.view(np.uint64)
    if words[0] not in (0, rank + 1):
        return int(words[0]) - 1
    words[0], words[_WAITS + rank], memory.view(np.float64)[1] = rank + 1, 0, time.monotonic()
    return -1


def await_mutex(memory: np.ndarray, rank: int) -> None:
    memory.view(np.uint64)[_WAITS + rank] = 1


def leave_mutex(memory: np.ndarray, rank: int) -> bool:
    return swap(memory, _WAITS + rank, 1, 0)


def release_mutex(memory: np.ndarray, rank: int) -> bool:
    words = memory.view(np.uint64)
    if words[0] != rank + 1:
        return False
    others = np.roll(np.arange(len(words) - _WAITS), -rank - 1)[:-1].tolist()
    words[0] = 1 + next((other for other in others if leave_mutex(memory, other)), -1)
    return True


def doze_mutex(memory: np.ndarray, rank: int) -> None:
    time.sleep(5e-4)


def held_mutex(memory: np.ndarray, rank: int) -> float:
    return float(time.monotonic() - memory.view(np.float64)[1])


def swap(memory: np.ndarray, k: int, before: int, after: int) -> bool:
    words = memory.view(np.uint64).ravel()
    if words[k] != before:
        return False
    words[k] = after
    return True
