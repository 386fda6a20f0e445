"""History of one rank's operations: records that answer the queries of other ranks."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

REMEMBERED = 4096  # operations of each kind

Key = tuple[int, int]  # number, and the peer of an operation of two ranks (-1: of all ranks)


class PastOperation(NamedTuple):
    """Record of an operation that has completed or failed, or that sends no headers.

    Attributes
    ----------
    op, mode, signature : str
        As in `header.Subject`.
    receivers : frozenset of int
        The ranks that got something.
    error : str
        Why this rank gave up; empty if it did not.
    """

    op: str
    mode: str
    signature: str
    receivers: frozenset[int]
    error: str


class History:
    """Records of the last operations of one rank."""

    def __init__(self) -> None:
        self._completed: OrderedDict[Key, PastOperation] = OrderedDict()
        self._registered: list[tuple[int, PastOperation | None]] = [(0, None)] * REMEMBERED
        self.failures: OrderedDict[int, str] = OrderedDict()

    def add(self, key: Key, record: PastOperation) -> None:
        """Add an operation that has completed or failed."""
        self._completed[key] = record
        if len(self._completed) > REMEMBERED:
            self._completed.popitem(last=False)

    def register(self, number: int, record: PastOperation) -> None:
        """Add an operation of all ranks that sends no headers, or replace its record."""
        self._registered[number % REMEMBERED] = number, record

    def find(self, key: Key) -> PastOperation | None:
        """The record of an operation that is not under way with headers."""
        number, record = self._registered[key[0] % REMEMBERED]
        return record if number == key[0] and key[1] == -1 else self._completed.get(key)

    def fail(self, number: int, text: str) -> None:
        """Remember that another rank gave up a registered operation, until the wait for that operation asks."""
        self.failures[number] = text
        if len(self.failures) > REMEMBERED:
            self.failures.popitem(last=False)
