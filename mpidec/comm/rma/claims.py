"""Claims: a word of each agent in its rank's memory, which agents take by compare-and-swap."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import records
from .post import Kind, Message
from .slots import Slots


class Claims:
    """Who has an agent: nobody, or one agent, which may be that agent itself.

    Parameters
    ----------
    slots : Slots
        Whose boards hold the words: 0, or the number of the agent that has this one, plus one.
    partition : Partition
        Agents over ranks.
    """

    def __init__(self, slots: Slots, partition: Any):
        self._slots, self._partition = slots, partition

    def is_near(self, agent: int) -> bool:
        """Whether this rank reads and writes the word of an agent."""
        return self._owner(agent) in self._slots.boards

    def take(self, agent: int, by: int) -> bool:
        """Take a near agent, if nobody has it."""
        return self.pass_on(agent, -1, by)

    def pass_on(self, agent: int, by: int, to: int) -> bool:
        """Let `to` have a near agent, if `by` has it; -1 is nobody."""
        rank = self._owner(agent)
        return bool(
            records.swap(
                self._slots.boards[rank],
                8 * (1 + agent - self._partition.bounds(rank)[0]),
                by + 1,
                to + 1,
            )
        )

    def holder(self, agent: int) -> int:
        """Who has a near agent; -1: nobody."""
        rank = self._owner(agent)
        return int(self._slots.boards[rank][1 + agent - self._partition.bounds(rank)[0], 0]) - 1

    def ask(self, agent: int, by: int) -> None:
        """Ask for an agent that is not near; a message `Kind.TAKEN` answers, whose number is 1 or 0."""
        self._slots.tell(self._owner(agent), Kind.TAKE, by, agent)

    def free(self, agent: int, by: int) -> None:
        """Let an agent go, if `by` has it."""
        if self.is_near(agent):
            self.pass_on(agent, by, -1)
        else:
            self._slots.tell(self._owner(agent), Kind.FREE, by, agent)

    def receive(self, rank: int, message: Message) -> None:
        """Answer `ask` or `free` of another rank."""
        if message.kind == Kind.TAKE:
            self._slots.tell(
                rank,
                Kind.TAKEN,
                message.dest,
                message.source,
                int(self.take(message.dest, message.source)),
            )
        else:
            self.free(message.dest, message.source)

    def _owner(self, agent: int) -> int:
        return int(self._partition.owner(np.array(agent)))
