"""Rows in messages: one row per edge is in transit, and later ones are combined in
its outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ..messenger import Kind, Message, WindowMessenger
from .carrier import Edge, Records


class AgentSlots(Protocol):
    """Interface of `Slots` that a carrier uses."""

    number: int
    agents: list[Records]
    senders: list[list[int]]

    def value(self, place: int, k: int) -> tuple[np.ndarray, float]:
        """Return a copy of a value, and its `p`."""

    def tell(self, rank: int, kind: int, source: int, dest: int, number: int = 0) -> None:
        """Send a message without a row."""


class Messages:
    """Carries rows by `WindowMessenger`; see `Carrier`.

    Parameters
    ----------
    slots : AgentSlots
    messenger : WindowMessenger
    edges : sequence of Edge
        To the agents of other nodes.
    owner : callable (agent) -> rank
    lo, count, dtype : int, int, numpy.dtype
        The first local agent; the numbers of a row.
    """

    name, unaided = "messages", False

    def __init__(
        self,
        slots: AgentSlots,
        messenger: WindowMessenger,
        edges: Sequence[Edge],
        owner: Callable[[int], int],
        lo: int,
        count: int,
        dtype: np.dtype,
    ):
        self._slots, self._messenger, self._edges, self._owner = slots, messenger, edges, owner
        self._lo, self._size = lo, count * dtype.itemsize
        self._ends = {(edge.agent, edge.dest): edge for edge in edges}
        self._buffer = np.empty(count, dtype)
        self._asked: dict[tuple[int, int], list[Callable[[np.ndarray, float], None]]] = {}

    def guard(self, agent: Records) -> Records:
        """Return the records unguarded: no other rank writes to them."""
        return agent

    def take(self) -> None:
        """Do nothing: received rows are in their slots already."""

    def ship(self) -> None:
        """Send the rows in the outboxes whose rows before have arrived."""
        for edge in self._edges:
            agent = self._slots.agents[edge.place]
            if not edge.under_way and agent.unread(edge.k):
                edge.under_way = True  # before the outbox is empty: other threads look there first
                p, transfers, replaced = agent.pop_outbox(edge.k, self._buffer)
                self._messenger.send(
                    edge.rank,
                    Message(
                        self._slots.number,
                        Kind.ROW,
                        edge.agent,
                        edge.dest,
                        transfers=transfers,
                        replaced=replaced,
                        p=p,
                        row=self._buffer,
                    ),
                )

    def fetch(self, place: int, k: int, deliver: Callable[[np.ndarray, float], None]) -> None:
        """Ask for the value of an in-neighbour."""
        agent, source = self._lo + place, self._slots.senders[place][k]
        with self._messenger.lock:
            self._asked.setdefault((agent, source), []).append(deliver)
            self._slots.tell(self._owner(source), Kind.GET, agent, source)

    def receive(self, rank: int, message: Message) -> None:
        """Take a row, or answer."""
        kind, source, dest = message.kind, message.source, message.dest
        if kind == Kind.ROW:
            k = self._slots.senders[dest - self._lo].index(source)
            self._slots.agents[dest - self._lo].deliver(
                k,
                message.row[: self._size],
                1.0,
                message.p,
                message.transfers,
                bool(message.replaced),
            )
            self._slots.tell(rank, Kind.RECEIVED, dest, source)
        elif kind == Kind.RECEIVED:
            self._ends[dest, source].under_way = False
        elif kind == Kind.GET:
            row, p = self._slots.value(dest - self._lo, -1)
            answer = Message(self._slots.number, Kind.VALUE, dest, source, p=p, row=row)
            self._messenger.send(rank, answer)
        else:
            self._asked[dest, source].pop(0)(message.row[: self._size], message.p)

    def close(self) -> None:
        """Forget the edges."""
        self._ends.clear()
        self._edges = ()
