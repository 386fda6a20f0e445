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
    """Records of the last operations of one rank.

    Attributes
    ----------
    registered : list of (int, PastOperation or None)
        Operations of all ranks that send no headers, each at its number modulo `REMEMBERED`.
    failures : dict of int to str
        Registered operations that another rank gave up, and why, until the waits for them ask.
    """

    def __init__(self) -> None:
        self._completed: OrderedDict[Key, PastOperation] = OrderedDict()
        self.registered: list[tuple[int, PastOperation | None]] = [(0, None)] * REMEMBERED
        self.failures: OrderedDict[int, str] = OrderedDict()

    def add(self, key: Key, record: PastOperation) -> None:
        """Add an operation that has completed or failed."""
        self._completed[key] = record
        if len(self._completed) > REMEMBERED:
            self._completed.popitem(last=False)

    def find(self, key: Key) -> PastOperation | None:
        """The record of an operation that is not under way with headers."""
        number, record = self.registered[key[0] % REMEMBERED]
        return record if number == key[0] and key[1] == -1 else self._completed.get(key)

    def fail(self, number: int, text: str) -> None:
        """Add a registered operation that another rank gave up."""
        self.failures[number] = text
        if len(self.failures) > REMEMBERED:
            self.failures.popitem(last=False)
