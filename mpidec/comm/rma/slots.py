"""Slots of agents: for each directed edge of a graph a record at the receiver that the sender writes to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ..arrays.formats import flat_dtype, narrow, widen
from ..runtime.collectives import Collectives
from ..runtime.context import Context
from ..runtime.progress import progress, timeout, wait_until
from . import records
from .messenger import Kind, Message, WindowMessenger
from .mutex import Mutex
from .region import Region

if TYPE_CHECKING:
    from ...topology import Topology
    from ...topology.source import Block


class RemoteEdge:
    """An edge from a local agent to one that is reached by messages: one row in flight at a time."""

    __slots__ = ("dest", "k", "place", "rank", "under_way")

    def __init__(self, place: int, k: int, dest: int, rank: int):
        self.place, self.k, self.dest, self.rank, self.under_way = place, k, dest, rank, False


class Slots:
    r"""Values and slots of the local agents of a graph.

    An agent i writes :math:`w x` to its slot at an out-neighbour j, or adds it to what is there, and combines its own slots with
    its value, at any time and without waiting for anybody.  Where i can write to the memory of j, it does so.  Elsewhere rows go
    into an outbox, which is sent when the row before has arrived: rows that wait there are added up, or replaced by a newer one, so
    that a receiver that does not look for a long time costs neither memory nor waiting.

    Parameters
    ----------
    context : Context
    together : Collectives
    messenger : WindowMessenger or None
        None if there is one rank.
    topology : Topology
        Of the agents.
    X : array (m, count)
        The values at first, float32 or float64.
    what : str
        The call, for messages.
    half : str, optional
        The format of 16-bit numbers that users see instead of `values`: these are then float32, and renewed from them.

    Attributes
    ----------
    shown : list of array
        With `half`, the 16-bit numbers of each local agent, where neighbours read them.
    values : array (m, count)
        The rows of the local agents, where neighbours read them.
    agents : list of AgentRecords
        Of the local agents.
    senders, receivers : list of list of int
        The in- and out-neighbours of each local agent, ascending; the order of the slots.
    mutex : Mutex
        One on each rank.
    control_words : dict of int to array (1 + agents, 8) of uint64
        Words of the ranks whose memory this one reads and writes, itself included: 8 of the rank and 8 of each of its agents, zeros
        at first, for what is built on slots; `records.native.swap` changes one of them if no other rank has.
    others : callable (rank, message) -> None
        Receives messages of other kinds.

    Notes
    -----
    Collective.
    """

    def __init__(
        self,
        context: Context,
        together: Collectives,
        messenger: WindowMessenger | None,
        topology: Topology,
        X: np.ndarray,
        what: str,
        half: str = "",
    ):
        self._context, self._messenger, self._half = context, messenger, half
        lo, hi = context.partition.bounds(context.rank)
        m, self._count = X.shape
        self._dtype = X.dtype
        step = records.stride(self._count, X.dtype)
        self.senders = _others(topology.rows(lo, hi), lo)
        self.receivers = _others(topology.columns(lo, hi), lo)
        # A block: the mutex, control words, with `half` 16-bit rows, and records: values, a buffer, slots.
        most = max(context.partition.counts())
        words = records.HEADER + -(-8 * context.size // records.ALIGNED) * records.ALIGNED
        halves = words + records.ALIGNED * (1 + most)
        width = -(-2 * self._count // records.ALIGNED) * records.ALIGNED if half else 0
        values = halves + width * most
        size = values + step * (m + 1 + sum(map(len, self.senders)))

        def shown_in(block: np.ndarray) -> np.ndarray:
            rows = block[halves:values].reshape(most, -1)
            return rows[:, : 2 * self._count].view(flat_dtype(half))

        def prepare(block: np.ndarray) -> None:
            mine = block[values:].reshape(-1, step)[:m]
            mine[:, : records.HEADER].view(np.float64)[:, 2] = 1.0  # p
            stop = records.HEADER + self._count * X.dtype.itemsize
            self.values = mine[:, records.HEADER : stop].view(X.dtype)
            self.values[:] = X
            self.shown = list(shown_in(block)[:m]) if half else []
            for shown, x in zip(self.shown, X):
                shown[:] = narrow(x, half)

        region = Region(context, together, size, prepare, what)
        self._blocks = blocks = region.blocks
        self.mutex = Mutex(
            {rank: block[:words] for rank, block in blocks.items()},
            context.rank,
            self._ask,
            nullcontext() if messenger is None else messenger.lock,
        )
        self.control_words = {
            rank: block[words:halves].view(np.uint64).reshape(-1, 8)
            for rank, block in blocks.items()
        }
        self.others: Callable[[int, Message], None] = _unexpected
        parts = {rank: block[values:].reshape(-1, step) for rank, block in blocks.items()}
        places: dict[int, dict[tuple[int, int], int]] = {}  # of the slots of each rank

        def slot_of(sender: int, receiver: int, rank: int) -> np.ndarray:
            if rank not in places:
                first, last = context.partition.bounds(rank)
                rows = topology.rows(first, last)
                theirs = self.senders if rank == context.rank else _others(rows, first)
                edges = [(j, first + i) for i, some in enumerate(theirs) for j in some]
                places[rank] = {edge: last - first + 1 + k for k, edge in enumerate(edges)}
            part: np.ndarray = parts[rank][places[rank][sender, receiver]]
            return part

        self.agents: list[records.native.AgentRecords] = []
        self._shown: dict[tuple[int, int], np.ndarray] = {}  # of in-neighbours on this node
        self._remote: dict[tuple[int, int], RemoteEdge] = {}
        self._asked: dict[tuple[int, int], list[Callable[[np.ndarray, float], None]]] = {}
        mine, patience = parts[context.rank], timeout()
        for place, agent in enumerate(range(lo, hi)):
            ins, outs, sources = [], [], []
            for k, (sender, rank) in enumerate(self._owners(self.senders[place])):
                ins.append(slot_of(sender, agent, context.rank))
                there = sender - context.partition.bounds(rank)[0]
                sources.append(parts[rank][there] if rank in parts else None)
                if half and rank in parts:
                    self._shown[place, k] = shown_in(blocks[rank])[there]
            for k, (receiver, rank) in enumerate(self._owners(self.receivers[place])):
                if rank in parts:
                    outs.append(slot_of(agent, receiver, rank))
                else:
                    outs.append(_aligned(step))
                    self._remote[agent, receiver] = RemoteEdge(place, k, receiver, rank)
            self.agents.append(
                records.native.AgentRecords(
                    context.rank,
                    self._count,
                    X.dtype == np.float32,
                    patience,
                    mine[place],
                    mine[m],
                    ins,
                    outs,
                    sources,
                )
            )
        self._lo, self._buffer = lo, np.empty(self._count, X.dtype)
        self.near = [[rank in blocks for _, rank in self._owners(some)] for some in self.senders]
        self.quiet = region.complete  # no messages ever
        self.closed = False
        self.number = 0 if messenger is None else messenger.register(self._receive)
        if not self.quiet:
            context.engine.add(self.send_outboxes)

    def _owners(self, agents: list[int]) -> list[tuple[int, int]]:
        return list(zip(agents, self._context.partition.owner(np.array(agents, np.int64)).tolist()))

    # Messages

    def send_outboxes(self) -> None:
        """Send the rows in the outboxes whose rows before have arrived, and answer who waits for the mutex."""
        if self._messenger is None or not self._messenger.begin():
            return
        for (agent, _), edge in self._remote.items():
            if not edge.under_way and self.agents[edge.place].unread(edge.k):
                edge.under_way = True  # before the outbox is empty: other threads look there first
                p, transfers, replaced = self.agents[edge.place].pop_outbox(edge.k, self._buffer)
                self._messenger.send(
                    edge.rank,
                    Message(
                        self.number,
                        Kind.ROW,
                        agent,
                        edge.dest,
                        transfers,
                        replaced,
                        0,
                        p,
                        self._buffer,
                    ),
                )
        self.mutex.serve()
        self._messenger.end()

    def poll(self) -> None:
        """Look after messages, unless another thread does so; any thread may call this."""
        if not self.quiet and self._messenger is not None:
            self._messenger.poll()
            self.send_outboxes()

    def _receive(self, rank: int, message: Message) -> None:
        if self._messenger is None:
            return
        kind, source, dest, size = (
            message.kind,
            message.source,
            message.dest,
            self._count * self._dtype.itemsize,
        )
        if kind == Kind.ROW:
            k = self.senders[dest - self._lo].index(source)
            self.agents[dest - self._lo].deliver(
                k, message.row[:size], 1.0, message.p, message.transfers, bool(message.replaced)
            )
            self._messenger.send(rank, Message(self.number, Kind.RECEIVED, dest, source))
        elif kind == Kind.RECEIVED:
            self._remote[dest, source].under_way = False
        elif kind == Kind.GET:
            row, p = self._value(dest - self._lo, -1)
            self._messenger.send(rank, Message(self.number, Kind.VALUE, dest, source, p=p, row=row))
        elif kind == Kind.VALUE:
            self._asked[dest, source].pop(0)(message.row[:size], message.p)
        elif kind <= Kind.UNLOCK:
            self.mutex.receive(rank, message)
        else:
            self.others(rank, message)

    def _value(self, place: int, k: int) -> tuple[np.ndarray, float]:
        """A copy of the value of a local agent (k = -1), or, with `half`, of its k-th in-neighbour on this node; its `p`."""
        row = np.empty(self._count, self._dtype)
        if not self._half:
            p, _, _ = self.agents[place].read(-1, row)
            return row, p
        shown = self.shown[place] if k < 0 else self._shown[place, k]
        into = np.empty(self._count, flat_dtype(self._half))
        p, fresh = self.agents[place].look(k, shown, row, into)
        return row if fresh else widen(into, self._half), p

    def renew(self) -> None:
        """With `half`: take over what users have written."""
        for port, shown in zip(self.agents, self.shown):
            port.set(widen(shown, self._half))
            port.shown()

    def show(self) -> None:
        """With `half`: show users the values."""
        for port, shown, value in zip(self.agents, self.shown, self.values):
            shown[:] = narrow(value, self._half)
            port.shown()

    def tell(self, rank: int, kind: int, source: int, dest: int, number: int = 0) -> None:
        """Send a message without a row to a rank whose memory this one does not share."""
        if self._messenger is not None:
            self._messenger.send(rank, Message(self.number, kind, source, dest, number=number))

    def _ask(self, rank: int, kind: Kind, number: int) -> None:
        self.tell(rank, kind, self._context.rank, rank, number)

    def get(self, agent: int, weights: records.Weights) -> GetRequest | None:
        """Read the values of in-neighbours, times weights that are not None, into their slots; None if they are there already."""
        place = agent - self._lo
        request = GetRequest(self)
        for k, w in enumerate(weights):
            if w is None:
                continue
            if not self.near[place][k] and self._messenger is not None:
                self._ask_for_value(self._messenger, request, agent, k, w)
            elif self._half:
                row, p = self._value(place, k)
                self.agents[place].deliver(k, row, w, p, 1, True)
            else:
                self.agents[place].get(k, w)
        return request if request.sources else None

    def _ask_for_value(
        self, messenger: WindowMessenger, request: GetRequest, agent: int, k: int, w: float
    ) -> None:
        place = agent - self._lo
        source = self.senders[place][k]
        request.sources.append(source)

        def deliver(row: np.ndarray, p: float) -> None:
            self.agents[place].deliver(k, row, w, p, 1, True)
            request.sources.remove(source)

        rank = int(self._context.partition.owner(np.array([source]))[0])
        with messenger.lock:
            self._asked.setdefault((agent, source), []).append(deliver)
            messenger.send(rank, Message(self.number, Kind.GET, agent, source))

    def unread(self, place: int, k: int) -> int:
        """Transfers to the k-th receiver of a local agent that it has not taken; on other nodes, that have not arrived.

        The outbox first: what is not there any more is under edge.
        """
        edge = self._remote.get((self._lo + place, self.receivers[place][k]))
        return int(self.agents[place].unread(k)) + (edge is not None and edge.under_way)

    @property
    def empty(self) -> bool:
        """Whether all rows that this rank has sent are in their slots."""
        return not any(self.unread(edge.place, edge.k) for edge in self._remote.values())

    def test(self) -> bool:
        """Make progress; whether all rows that this rank has sent are in their slots."""
        self.poll()
        return self.empty

    def wait(self) -> None:
        """Return when all rows that this rank has sent are in their slots."""
        if not self.empty:
            wait_until(self.test, self._receivers_in_words)

    def _receivers_in_words(self) -> str:
        late = [edge for edge in self._remote.values() if self.unread(edge.place, edge.k)]
        return "rows of a window to arrive at agents " + ", ".join(str(edge.dest) for edge in late)

    def close(self) -> None:
        """Forget everything; all ranks have come here."""
        self.closed = True
        self._context.engine.remove(self.send_outboxes)
        if self._messenger is not None:
            self._messenger.forget(self.number)
        self._remote.clear()
        self.agents.clear()
        self.values = np.array(self.values)  # the memory is freed
        self.shown.clear()
        self._shown.clear()
        self.mutex.close()
        self._blocks.clear()
        self.control_words.clear()


class GetRequest:
    """Values on their way to slots."""

    def __init__(self, slots: Slots):
        self._slots = slots
        self.sources: list[int] = []  # agents whose values have not arrived

    def test(self) -> bool:
        """Whether all are there; makes progress."""
        if self.sources:
            self._slots.poll()
            progress()
            if self._slots.closed:
                raise RuntimeError(
                    "the window is closed, and the values that were asked for before have not arrived: wait for "
                    "them earlier"
                )
        return not self.sources

    def wait(self) -> None:
        """Return when all are there."""
        agents = ", ".join(map(str, self.sources))
        wait_until(
            self.test, f"agents {agents}, whose values were asked for, to look after their messages"
        )


def _unexpected(rank: int, message: Message) -> None:
    raise RuntimeError(f"an unexpected message of rank {rank}: {message}")


def _others(rows: Block, lo: int) -> list[list[int]]:
    """The agents in each row of a CSR matrix, but for that of the row itself."""
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
