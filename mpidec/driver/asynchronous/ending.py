"""The end of an asynchronous run, or of a part: everyone learns it without a barrier in the loop."""

from __future__ import annotations

import time
from typing import Any

from ...comm.rma.messenger import Kind, Message

COUNT, END = Kind.OTHER, Kind.OTHER + 1
PAUSED, ENOUGH, INTERRUPTED, DIVERGED = 1, 2, 3, 4  # why a run, or a part of it, has ended
_REASONS = 8
_EVENTS, _ENDED = 0, 1  # words of a rank
_SECONDS = 0.005  # between two messages about the number of events


class Ending:
    """Number of events of all agents, and whether the run has ended.

    Each rank counts its events in a word that the ranks of its node read.  Ranks elsewhere tell rank 0, at most 200 times a second,
    and are told the end by it.  A pause ends a part of the run; `go_on` begins the next one.

    Parameters
    ----------
    slots : Slots
    rank, size : int
    goal : int
        The number of events of all agents after which the run ends.
    """

    def __init__(self, slots: Any, rank: int, size: int, goal: int):
        self._slots, self._rank, self._size, self._goal = slots, rank, size, goal
        self._mine = slots.boards[rank][0]
        self._near = [board[0] for board in slots.boards.values()]
        self._single = len(self._near) == size
        self._far = [other for other in range(size) if other not in slots.boards]
        self._counts = dict.fromkeys(self._far, 0)
        self._next, self._part = 0.0, 0
        if goal <= 0:
            self._mine[_ENDED] = ENOUGH
        self.events = 0  # of this rank

    @property
    def total(self) -> int:
        """Events of all ranks, as far as this one knows; rank 0 knows those of other nodes a few milliseconds later."""
        return sum(int(words[_EVENTS]) for words in self._near) + sum(self._counts.values())

    def count(self, events: int = 1) -> None:
        """Add events of this rank."""
        self.events += events
        self._mine[_EVENTS] = self.events

    def end(self, reason: int = ENOUGH) -> None:
        """End the run, or this part of it, on all ranks; the largest of several reasons counts."""
        if reason > self._mine[_ENDED]:
            self._mine[_ENDED] = reason
            for rank in self._far:
                self._slots.tell(rank, END, self._rank, rank, _REASONS * self._part + reason)

    def go_on(self) -> None:
        """Begin another part after a pause; all ranks have ended the last one, and none begins the next one yet."""
        self._mine[_ENDED] = 0
        self._part += 1

    def receive(self, message: Message) -> None:
        """Take note of what another rank has counted, or that the run has ended."""
        if message.kind == COUNT:
            self._counts[message.source] = message.number
        elif message.number // _REASONS == self._part:  # else a pause that is over
            self._mine[_ENDED] = max(int(self._mine[_ENDED]), message.number % _REASONS)

    @property
    def reason(self) -> int:
        """Why the run has ended, 0 if it has not."""
        return max(int(words[_ENDED]) for words in self._near)

    @property
    def early(self) -> bool:
        """Whether the run has ended, or pauses, before there were enough events: no more averagings begin."""
        return self.reason not in (0, ENOUGH)

    def enough(self) -> bool:
        """Whether the run has ended, as far as the memory of this node tells: no messages."""
        return self.reached() if self._single else self.reason > 0

    def reached(self) -> bool:
        """Whether the run has ended."""
        near = sum([int(words[_EVENTS]) for words in self._near])
        if self._single:
            if near >= self._goal:
                self._mine[_ENDED] = max(int(self._mine[_ENDED]), ENOUGH)
            return self.reason > 0
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SECONDS
            if self._rank == 0 and near + sum(self._counts.values()) >= self._goal:
                self.end()
            elif self._rank > 0 and 0 not in self._slots.boards:
                self._slots.tell(0, COUNT, self._rank, 0, self.events)
        return self.reason > 0
