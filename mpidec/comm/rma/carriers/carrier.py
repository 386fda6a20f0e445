"""Interface of the carriers between ranks without shared memory: messages and MPI's one-sided
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from ..messenger import Message

CARRIERS = ("auto", "shared", "messages", "rma")  #: how rows of a window travel
Weights = list[float | None]


class Records(Protocol):
    """The value, the slots and the outboxes of one agent; `AgentRecords` of `records`, or one
    that guards it.
    """

    p: float

    def send(
        self, x: np.ndarray | None, weights: Weights, own: float | None, add: bool, /
    ) -> None: ...
    def update(self, own: float, weights: Weights, reset: bool, /) -> None: ...
    def get(self, k: int, w: float, /) -> None: ...
    def deliver(
        self, k: int, row: np.ndarray, w: float, p: float, transfers: int, replaced: bool, /
    ) -> None: ...
    def pop_outbox(self, k: int, into: np.ndarray, /) -> tuple[float, int, int]: ...
    def read(self, k: int, into: np.ndarray, /) -> tuple[float, int, int]: ...
    def take(self, k: int, into: np.ndarray, /) -> tuple[float, int, int]: ...
    def set(self, row: np.ndarray, /) -> None: ...
    def shown(self) -> None: ...
    def look(
        self, k: int, shown: np.ndarray, row: np.ndarray, into: np.ndarray, /
    ) -> tuple[float, int]: ...
    def fill(self) -> None: ...
    def versions(self) -> list[int]: ...
    def unread(self, k: int, /) -> int: ...


class Edge:
    """A directed edge from a local agent to one of another rank, whose slot this one does not
    map: the k-th of its outboxes.
    """

    __slots__ = ("agent", "dest", "k", "place", "rank", "under_way")

    def __init__(self, place: int, k: int, agent: int, dest: int, rank: int):
        self.place, self.k, self.agent, self.dest, self.rank = place, k, agent, dest, rank
        # Whether a row of it has left the outbox and is not in its slot.
        self.under_way = False


class Mutexes(Protocol):
    """Mutual exclusion: one mutex on each rank."""

    def held(
        self,
        ranks: Sequence[int],
        patience: float | None,
        poll: Callable[[], None],
        check: Callable[[], None],
    ) -> AbstractContextManager[None]:
        """Hold those of some ranks; see `mutex.Mutex.held`."""

    def receive(self, rank: int, message: Message) -> None:
        """Handle a request or an answer of another rank."""

    def serve(self) -> None:
        """Grant the mutex to the rank whose turn it is."""

    def close(self) -> None:
        """Forget the memory."""


class Words(Protocol):
    """Words of ranks, 8 of each rank and 8 of each of its agents, zeros at first."""

    def reaches(self, rank: int) -> bool:
        """Return whether this rank accesses the words of another one directly, instead of by
        messages.
        """

    def swap(self, rank: int, k: int, before: int, after: int) -> bool:
        """Set the k-th word to `after` if it is `before`; return whether it was."""

    def read(self, rank: int, k: int) -> int:
        """Return the k-th one."""


class Carrier(Protocol):
    """Moves rows from outboxes to slots of other ranks, and values of other ranks to slots of this
    one.

    Attributes
    ----------
    name : {"messages", "rma"}
    unaided : bool
        Whether all its calls end without any help of the other ranks: nobody need look after
        messages.
    """

    name: str
    unaided: bool

    def guard(self, agent: Records) -> Records:
        """Return the records of a local agent, guarded against concurrent access by other ranks."""

    def take(self) -> None:
        """Move arrived rows to the slots.  Never waits for another rank."""

    def ship(self) -> None:
        """Progress transfers: rows from outboxes, and values that were requested."""

    def fetch(self, place: int, k: int, deliver: Callable[[np.ndarray, float], None]) -> None:
        """Begin to read the value of the k-th in-neighbour of a local agent; `ship` hands it,
        with its `p`, to `deliver`.
        """

    def receive(self, rank: int, message: Message) -> None:
        """Take a message of this carrier on another rank."""

    def close(self) -> None:
        """Release everything; all ranks have reached this call."""
