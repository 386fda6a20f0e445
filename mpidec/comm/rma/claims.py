"""Claims: a word of each agent in its rank's memory, which agents take by compare-and-swap;
locks of ranks made of them.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable

import numpy as np

from ..runtime import Context, Partition, wait_until
from .messenger import Kind, Message
from .slots import Slots


class Claims:
    """Ownership of agents: an agent is free, or owned by exactly one agent, possibly itself.

    Parameters
    ----------
    slots : Slots
        Whose `words` these are: 0, or the number of the agent that has this one, plus one.
    partition : Partition
        Agents over ranks.
    """

    def __init__(self, slots: Slots, partition: Partition):
        self._slots, self._partition = slots, partition

    def is_near(self, agent: int) -> bool:
        """Return whether this rank reads and writes the word of an agent."""
        return self._slots.words.reaches(self._owner(agent))

    def take(self, agent: int, by: int) -> bool:
        """Take a near agent, if it is free."""
        return self.pass_on(agent, -1, by)

    def pass_on(self, agent: int, by: int, to: int) -> bool:
        """Pass a near agent on to `to`, if `by` has it; -1: it is free."""
        rank = self._owner(agent)
        return self._slots.words.swap(rank, self._place(agent, rank), by + 1, to + 1)

    def holder(self, agent: int) -> int:
        """Return the owner of a near agent; -1: it is free."""
        rank = self._owner(agent)
        return self._slots.words.read(rank, self._place(agent, rank)) - 1

    def ask(self, agent: int, by: int) -> None:
        """Ask for an agent that is not near; a message `Kind.TAKEN` answers, whose number is 1
        or 0.
        """
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

    def _place(self, agent: int, rank: int) -> int:
        return 8 * (1 + agent - self._partition.bounds(rank)[0])

    def _owner(self, agent: int) -> int:
        return int(self._partition.owner(np.array(agent)))


class RankLocks:
    """Try-locks that their targets release: two ranks can reserve a row until the target has
    applied the other's update.

    Parameters
    ----------
    context : Context
    slots : Slots
        One agent on each rank.
    require_open : callable
        Raises an exception if the window is closed, or out of step.
    """

    def __init__(self, context: Context, slots: Slots, require_open: Callable[[], None]):
        self._engine, self._me, self._require_open = context.engine, context.rank, require_open
        self._slots, self._claims = slots, Claims(slots, context.partition)
        self._neighbors = sorted({context.rank, *slots.senders[0], *slots.receivers[0]})
        self._asked, self._answer = -1, False  # the rank whose answer is awaited

    def try_lock(self, rank: int) -> bool:
        """Take the lock of a rank if it is free: no other rank can take it until that rank calls
        `unlock`.

        Parameters
        ----------
        rank : int
            An in- or out-neighbour, or this rank.

        Returns
        -------
        bool
            Whether it was free.

        Notes
        -----
        Communicates with that rank only.  On a node it does not wait; ranks elsewhere answer when
        they make a call of this package.
        """
        with self._engine:
            self._require_open()
            if not is_rank(rank) or rank not in self._neighbors:
                raise ValueError(
                    f"lock of rank {rank!r}, expected this rank or one of its neighbours "
                    f"{[one for one in self._neighbors if one != self._me]}"
                )
            rank = int(rank)
            if self._claims.is_near(rank):
                return self._claims.take(rank, self._me)
            self._asked = rank
            self._claims.ask(rank, self._me)

            def answered() -> bool:
                self._slots.poll()
                return self._asked < 0

            try:
                wait_until(
                    answered, f"rank {rank}, whose lock is tried, to look after its messages"
                )
            finally:
                self._asked = -1
            return self._answer

    @property
    def owner(self) -> int | None:
        """The rank that has the lock of this one, if one has."""
        with self._engine:
            self._require_open()
            self._slots.poll()
            owner = self._claims.holder(self._me)
            return None if owner < 0 else owner

    def unlock(self, hand_over: bool = False) -> None:
        """Release this rank's lock; with `hand_over`, acquire it for this rank."""
        with self._engine:
            self._require_open()
            to = self._me if hand_over else -1
            while not self._claims.pass_on(self._me, self._claims.holder(self._me), to):
                pass  # taken at this moment

    def receive(self, rank: int, message: Message) -> None:
        """Take an answer, or answer another rank; this may be the helper's thread."""
        if message.kind != Kind.TAKEN:
            self._claims.receive(rank, message)
        elif message.source == self._asked:
            self._answer = bool(message.number)
            # Last, since the main thread waits for it.
            self._asked = -1
        elif message.number:
            # The wait for it has ended with an exception.
            self._claims.free(message.source, self._me)


def is_rank(rank: object) -> bool:
    """Return whether a rank is a whole number."""
    return type(rank) is int or (isinstance(rank, numbers.Integral) and not isinstance(rank, bool))
