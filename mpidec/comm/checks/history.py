"""History of one rank's operations: records that answer the queries of other ranks."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from ...exceptions import RankMismatchError
from ..runtime import died

REMEMBERED = 4096  # operations of each kind

# Number, and the peer of an operation of two ranks (-1: of all ranks).
Key = tuple[int, int]


class PastOperation(NamedTuple):
    """Record of an operation that has completed or failed, or that sends no headers; it answers
    queries.

    Attributes
    ----------
    op, mode, signature : str
        As in `header.Subject`.
    receivers : collection of int
        The ranks that got something.
    error : str
        Why this rank gave up; empty if it did not.
    """

    op: str
    mode: str
    signature: str
    receivers: Collection[int]
    error: str


class History:
    """Numbers and records of the last operations of one rank.

    Parameters
    ----------
    mixings : callable
        How many mixings in shared memory it has begun; those are numbered separately.

    Attributes
    ----------
    count : int
        The operations of all ranks that it has begun.
    registered : list of (int, PastOperation or None)
        Operations of all ranks that send no headers, each at its number modulo `REMEMBERED`.
    failures : dict of int to str
        Registered operations that another rank gave up, and why, until the waits for them ask.
    """

    def __init__(self, mixings: Callable[[], int] = int) -> None:
        self.mixings, self.count = mixings, 0
        self._pairs: Counter[int] = Counter()
        self._completed: OrderedDict[Key, PastOperation] = OrderedDict()
        self.registered: list[tuple[int, PastOperation | None]] = [(0, None)] * REMEMBERED
        self.failures: OrderedDict[int, str] = OrderedDict()

    def begin(self, peer: int | None = None) -> int:
        """Return the number of a new operation, of all ranks or with one other."""
        if peer is None:
            self.count += 1
            return self.count
        self._pairs[peer] += 1
        return self._pairs[peer]

    def last(self, source: int, pair: bool) -> int:
        """Return the number of the last operation of all ranks, or of the pair with one other."""
        return self._pairs[source] if pair else self.count

    def add(self, key: Key, record: PastOperation) -> None:
        """Add an operation that has completed or failed."""
        self._completed[key] = record
        if len(self._completed) > REMEMBERED:
            self._completed.popitem(last=False)

    def find(self, key: Key) -> PastOperation | None:
        """Return the record of an operation that has ended, or that sends no headers."""
        number, record = self.registered[key[0] % REMEMBERED]
        return record if number == key[0] and key[1] == -1 else self._completed.get(key)

    def fail(self, number: int, text: str) -> None:
        """Add a registered operation that another rank gave up."""
        self.failures[number] = text
        if len(self.failures) > REMEMBERED:
            self.failures.popitem(last=False)


class Findings:
    """Mismatches found after their operation had ended: the next wait raises them.

    Parameters
    ----------
    refusal : callable
        A mismatch in shared memory that was reported to this rank and has not been raised, or None.

    Attributes
    ----------
    errors : list of Exception
    reported : bool
        Whether any mismatch has been raised on this rank, or reported to another one.
    """

    def __init__(self, refusal: Callable[[], Exception | None]):
        self.errors: list[Exception] = []
        self.reported, self._refusal = False, refusal

    def add(self, text: str) -> None:
        """Add a mismatch."""
        self.errors.append(RankMismatchError(text))

    def raise_first(self) -> None:
        """Raise the first one."""
        if self.errors:
            self.reported = True
            raise self.errors.pop(0)

    def raise_death(self) -> None:
        """Raise what MPI says of a rank that has died, for which nobody can wait."""
        for error in self.errors:
            if died(error):
                raise error

    def raise_refusal(self) -> None:
        """Raise a mismatch in shared memory, if there is no other one."""
        if not self.errors and (refusal := self._refusal()) is not None:
            raise refusal
