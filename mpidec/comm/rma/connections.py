"""Connections of the agents' records: to slots and values in memory that this rank maps, and to
outboxes and mailboxes elsewhere.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ..runtime import Context, timeout
from . import records
from .block_layout import BlockLayout
from .carriers.carrier import Edge, Records
from .carriers.one_sided import Incoming, Outgoing

if TYPE_CHECKING:
    from ...topology import Topology
    from ...topology.internals import EdgeBlock


class Connections:
    """The records of the local agents, and the edges to and from the ranks whose memory this one
    does not map.

    Parameters
    ----------
    context : Context
    topology : Topology
    layout : BlockLayout
    blocks : dict of int to array of uint8
        Of the ranks whose memory this one maps, itself included.
    senders, receivers : list of list of int
        The in- and out-neighbours of each local agent; see `neighbours`.

    Attributes
    ----------
    near : list of list of bool
        Whether this rank maps the memory of each in-neighbour.
    agents : list of Records
    edges : dict of (int, int) to Edge
        To agents whose slots this rank does not map, by local agent and outbox.
    outgoing : list of Outgoing
        With mailboxes, their senders' ends.
    incoming : dict of int to Incoming
        With mailboxes, the in-neighbours of the one agent by their slots.
    shown : dict of (int, int) to array
        With 16-bit rows, those of the in-neighbours in memory that this rank maps, by local agent
        and slot.
    """

    def __init__(
        self,
        context: Context,
        topology: Topology,
        layout: BlockLayout,
        blocks: dict[int, np.ndarray],
        senders: list[list[int]],
        receivers: list[list[int]],
    ):
        self._partition, self._topology, self._me = context.partition, topology, context.rank
        self._layout, self._blocks = layout, blocks
        self._parts = {rank: layout.records(block) for rank, block in blocks.items()}
        self._places: dict[int, dict[tuple[int, int], int]] = {}
        self._senders, self._receivers = senders, receivers
        self.near = [[rank in blocks for _, rank in self._owners(some)] for some in senders]
        self.edges: dict[tuple[int, int], Edge] = {}
        self.outgoing: list[Outgoing] = []
        self.incoming: dict[int, Incoming] = {}
        self.shown: dict[tuple[int, int], np.ndarray] = {}
        lo, hi = context.partition.bounds(context.rank)
        self.agents = [self._connect(place, lo + place) for place in range(hi - lo)]
        self._places.clear()  # many, and needed no more

    def close(self) -> None:
        """Forget the edges and the memory; all ranks have reached this call."""
        self.agents.clear()
        self.edges.clear()
        self.shown.clear()
        self._parts.clear()
        self._blocks.clear()

    def _owners(self, agents: list[int]) -> list[tuple[int, int]]:
        return list(zip(agents, self._partition.owner(np.array(agents, np.int64)).tolist()))

    def _connect(self, place: int, agent: int) -> Records:
        """Return the records of a local agent."""
        mine, m = self._parts[self._me], len(self._senders)
        senders = self._owners(self._senders[place])
        agents: Records = records.native.AgentRecords(
            self._me,
            self._layout.count,
            self._layout.dtype == np.float32,
            timeout(),
            mine[place],
            mine[m],
            [self._slot(sender, agent, self._me) for sender, _ in senders],
            [
                self._outbox(place, k, agent, receiver, rank)
                for k, (receiver, rank) in enumerate(self._owners(self._receivers[place]))
            ],
            [
                self._source(place, k, agent, sender, rank)
                for k, (sender, rank) in enumerate(senders)
            ],
        )
        return agents

    def _source(self, place: int, k: int, agent: int, sender: int, rank: int) -> np.ndarray | None:
        """Return the record of the value of the k-th in-neighbour of a local agent, if this rank
        maps it.
        """
        layout, there = self._layout, sender - self._partition.bounds(rank)[0]
        if rank in self._parts:
            if layout.half:
                self.shown[place, k] = layout.shown(self._blocks[rank])[there]
            value: np.ndarray = self._parts[rank][there]
            return value
        if layout.mailbox:
            at = self._mailbox(sender, agent, self._me)
            self.incoming[k] = Incoming(rank, at, layout.record_at(there), layout.shown_at(there))
        return None

    def _outbox(self, place: int, k: int, agent: int, receiver: int, rank: int) -> np.ndarray:
        """Return the slot of a local agent at its k-th out-neighbour, or a record of its own if
        this rank does not map that one.
        """
        if rank in self._parts:
            return self._slot(agent, receiver, rank)
        edge, layout = Edge(place, k, agent, receiver, rank), self._layout
        self.edges[place, k] = edge
        if layout.mailbox:
            at = self._mailbox(agent, receiver, rank)
            self.outgoing.append(Outgoing(edge, at, layout.count, layout.dtype))
        return _aligned(layout.step)

    def _slot(self, sender: int, receiver: int, rank: int) -> np.ndarray:
        place = self._slots(rank)[sender, receiver]
        slot: np.ndarray = self._parts[rank][self._agents(rank) + 1 + place]
        return slot

    def _mailbox(self, sender: int, receiver: int, rank: int) -> int:
        slots = self._slots(rank)
        return self._layout.mailbox_at(self._agents(rank), len(slots), slots[sender, receiver])

    def _agents(self, rank: int) -> int:
        first, last = self._partition.bounds(rank)
        return last - first

    def _slots(self, rank: int) -> dict[tuple[int, int], int]:
        """Return the places of the slots of a rank, by sender and receiver."""
        if rank not in self._places:
            first, last = self._partition.bounds(rank)
            some = _others(self._topology.rows(first, last), first)
            edges = [(j, first + i) for i, senders in enumerate(some) for j in senders]
            self._places[rank] = {edge: k for k, edge in enumerate(edges)}
        return self._places[rank]


def neighbours(topology: Topology, lo: int, hi: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the in- and out-neighbours of each of some agents, ascending: the order of slots and
    outboxes.
    """
    return _others(topology.rows(lo, hi), lo), _others(topology.columns(lo, hi), lo)


def _others(rows: EdgeBlock, lo: int) -> list[list[int]]:
    """Return the agents in each row of a CSR matrix, but for that of the row itself."""
    ends = rows.indptr.tolist()
    return [
        sorted(j for j in rows.indices[start:stop].tolist() if j != lo + i)
        for i, (start, stop) in enumerate(itertools.pairwise(ends))
    ]


def _aligned(size: int) -> np.ndarray:
    """Zeros at an address that is a multiple of that of a cache line."""
    memory = np.zeros(size + records.ALIGNED, np.uint8)
    start = -memory.ctypes.data % records.ALIGNED
    return memory[start : start + size]
