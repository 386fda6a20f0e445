"""Slots of agents: for each directed edge of a graph a record at the receiver that the sender
writes to.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import flat_dtype, narrow, widen
from ..runtime import Collectives, Context, Partition, progress, wait_until
from . import records
from .block_layout import BlockLayout
from .carriers.carrier import Carrier, Mutexes, Records, Weights, Words
from .carriers.messages import Messages
from .carriers.mpi_memory import Ended, MPIMemory
from .carriers.mutex import Mutex
from .carriers.one_sided import OneSided, OneSidedWords
from .carriers.plan import OneSidedPlan
from .carriers.queue_mutex import QueueMutex
from .carriers.shared_memory import SharedMemory, SharedWords
from .connections import Connections, neighbours
from .messenger import Kind, Message, WindowMessenger

if TYPE_CHECKING:
    from ...topology import Topology


class Slots:
    r"""Values and slots of the local agents of a graph.

    An agent i writes :math:`w x` to its slot at an out-neighbour j, or adds it to what is there,
    and combines its own slots with its value, at any time and without waiting for anybody.  Where i
    can write to the memory of j, it does so.  Elsewhere rows go into an outbox, which is sent when
    the row before has arrived: rows that wait there are added up, or replaced by a newer one, so
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
        The format of 16-bit numbers that users see instead of `values`: these are then float32, and
        renewed from them.
    transport : {"auto", "shared", "messages", "rma"}
        How rows travel: through memory that the ranks of a node map, in messages, or by MPI's
        one-sided calls (one agent on each rank); "auto": the last for several nodes whose adapters
        perform such calls, else the first on a node and the second between nodes.
    ended : Ended, optional
        Takes memory of one-sided calls at the end; without it there are none.

    Attributes
    ----------
    half : HalfRows or None
        With 16-bit numbers, what users see instead of `values`.
    values : array (m, count)
        The rows of the local agents, where neighbours read them.
    agents : list of AgentRecords
        Of the local agents.
    senders, receivers : list of list of int
        The in- and out-neighbours of each local agent, ascending; the order of the slots.
    mutex : Mutex
        One on each rank.
    words : Words
        8 of each rank and 8 of each of its agents, for what is built on slots.
    control_words : dict of int to array (1 + agents, 8) of uint64
        Those of the ranks whose memory this one maps, itself included.
    carrier : Carrier or None
        What moves the rows to and from the ranks whose memory this one does not map; None if it
        maps that of all.
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
        transport: str = "auto",
        ended: Ended | None = None,
    ):
        self._messenger = messenger
        count, dtype = X.shape[1], X.dtype
        self._one_sided = one_sided = OneSidedPlan(context, together, transport, ended, what)
        layout = BlockLayout(
            ranks=context.size,
            most=max(context.partition.counts()),
            count=count,
            dtype=dtype,
            half=half,
            front=one_sided.front,
            mailbox=one_sided.mailbox(count, dtype),
        )
        lo, hi = context.partition.bounds(context.rank)
        self.senders, self.receivers = neighbours(topology, lo, hi)
        slots = sum(map(len, self.senders))
        shared = SharedMemory(
            context,
            together,
            size=layout.size(len(X), slots),
            prepare=lambda block: self._prepare(layout, block, X),
            what=what,
            alone=transport == "messages" or one_sided.used,
            allocate=one_sided.allocate,
        )
        if transport == "shared" and not shared.complete:
            raise ValueError(
                f"{what}: transport is 'shared', but not all ranks map the memory of each other "
                "(other nodes, containers, or no "
                "compiled modules): expected auto, messages or rma"
            )
        self.control_words = {
            rank: layout.control_words(block) for rank, block in shared.blocks.items()
        }
        memory = one_sided.memory()
        self.mutex, self.words = self._mutex_and_words(context.rank, layout, shared.blocks, memory)
        self._connections = connections = Connections(
            context, topology, layout, shared.blocks, self.senders, self.receivers
        )
        if self.half is not None:
            self.half.near = connections.shown
        self.others: Callable[[int, Message], None] = _unexpected
        self.closed = False
        self.number = 0 if messenger is None else messenger.register(self._receive)
        self.agents = connections.agents
        self.carrier: Carrier | None = None
        if memory is not None:
            self.carrier = OneSided(
                memory,
                me=context.rank,
                outgoing=connections.outgoing,
                incoming=connections.incoming,
                count=count,
                dtype=dtype,
                half=half,
                unaided=one_sided.unaided,
            )
        elif messenger is not None and not shared.complete:
            self.carrier = self._by_messages(messenger, context.partition, lo)
        if self.carrier is not None and messenger is not None:
            self.agents = [self.carrier.guard(agent) for agent in self.agents]
            messenger.engine.add(self.send_outboxes)

    def _prepare(self, layout: BlockLayout, block: np.ndarray, X: np.ndarray) -> None:
        """Write the values to the block of this rank."""
        mine = layout.records(block)[: len(X)]
        mine[:, : records.HEADER].view(np.float64)[:, 2] = 1.0  # p
        self.values = layout.rows(mine)
        self.values[:] = X
        self.half = (
            HalfRows(layout.half, list(layout.shown(block)[: len(X)])) if layout.half else None
        )
        if self.half is not None:
            self.half.copy(X)

    def _mutex_and_words(
        self, me: int, layout: BlockLayout, blocks: dict[int, np.ndarray], memory: MPIMemory | None
    ) -> tuple[Mutexes, Words]:
        lock: AbstractContextManager[object] = (
            nullcontext() if self._messenger is None else self._messenger.lock
        )
        if memory is not None:
            return QueueMutex(memory, me, lock), OneSidedWords(memory, lock)
        mutexes = {rank: layout.mutex(block) for rank, block in blocks.items()}

        def ask(rank: int, kind: Kind, number: int) -> None:
            self.tell(rank, kind, me, rank, number)

        return Mutex(mutexes, me, ask, lock), SharedWords(self.control_words)

    def _by_messages(self, messenger: WindowMessenger, partition: Partition, lo: int) -> Messages:
        return Messages(
            self,
            messenger,
            edges=list(self._connections.edges.values()),
            owner=lambda agent: int(partition.owner(np.array([agent]))[0]),
            lo=lo,
            count=self.values.shape[1],
            dtype=self.values.dtype,
        )

    @property
    def near(self) -> list[list[bool]]:
        """Whether this rank maps the memory of each in-neighbour of its agents."""
        return self._connections.near

    @property
    def unaided(self) -> bool:
        """Return whether no rank ever needs the help of another one, so that no messages must be
        polled.
        """
        return self.carrier is None or self.carrier.unaided

    # Messages

    def send_outboxes(self) -> None:
        """Progress the rows in the outboxes, and grant the mutex to waiting ranks, unless another
        thread does so.
        """
        if self._messenger is None or self.carrier is None or not self._messenger.handling.begin():
            return
        if self.take():  # before values that were asked for later
            self.carrier.ship()
        self.mutex.serve()
        self._messenger.handling.end()

    def take(self, wait: bool = False) -> bool:
        """Move all rows that senders have published to the slots; False if another thread does
        so (unless `wait`), or none can.
        """
        if (
            self._messenger is None
            or self.carrier is None
            or not self._messenger.taking.begin(wait)
        ):
            return False
        self.carrier.take()
        self._messenger.taking.end()
        return True

    def poll(self) -> None:
        """Handle messages, unless another thread does so; any thread may call this."""
        if self.carrier is not None and self._messenger is not None:
            if not self.carrier.unaided:
                self._messenger.poll()
            self.send_outboxes()

    def _receive(self, rank: int, message: Message) -> None:
        kind = message.kind
        if kind <= Kind.VALUE and self.carrier is not None:
            self.carrier.receive(rank, message)
        elif kind <= Kind.UNLOCK:
            self.mutex.receive(rank, message)
        else:
            self.others(rank, message)

    def value(self, place: int, k: int) -> tuple[np.ndarray, float]:
        """Return a copy of the value of a local agent (k = -1), or, with `half`, of its k-th
        in-neighbour on this node; its `p`.
        """
        row = np.empty(self.values.shape[1], self.values.dtype)
        if self.half is not None:
            return self.half.value(place, k, self.agents[place], row)
        p, _, _ = self.agents[place].read(-1, row)
        return row, p

    def tell(self, rank: int, kind: int, source: int, dest: int, number: int = 0) -> None:
        """Send a message without a row to a rank whose memory this one does not share."""
        if self._messenger is not None:
            self._messenger.send(rank, Message(self.number, kind, source, dest, number=number))

    def get(self, place: int, weights: Weights) -> GetRequest | None:
        """Read the values of in-neighbours of a local agent, times weights that are not None, into
        their slots; None if they are there already.
        """
        request, near = GetRequest(self), self._connections.near[place]
        for k, w in enumerate(weights):
            if w is None:
                continue
            if not near[k] and self.carrier is not None:
                self._fetch(self.carrier, request, place, k, w)
            elif self.half is not None:
                row, p = self.value(place, k)
                self.agents[place].deliver(k, row, w, p, 1, True)
            else:
                self.agents[place].get(k, w)
        return request if request.sources else None

    def _fetch(self, carrier: Carrier, request: GetRequest, place: int, k: int, w: float) -> None:
        source = self.senders[place][k]
        request.sources.append(source)

        def deliver(row: np.ndarray, p: float) -> None:
            self.agents[place].deliver(k, row, w, p, 1, True)
            request.sources.remove(source)

        with nullcontext() if self._messenger is None else self._messenger.lock:
            carrier.fetch(place, k, deliver)

    def unread(self, place: int, k: int) -> int:
        """Transfers to the k-th receiver of a local agent that it has not taken; on other nodes,
        that have not arrived.

        The outbox is counted first: what has left it by then is under way.
        """
        edge = self._connections.edges.get((place, k))
        return int(self.agents[place].unread(k)) + (edge is not None and edge.under_way)

    def retractable(self, place: int, dead: Container[int]) -> list[int]:
        """Return the receivers of a local agent (k) to which rows can be taken back: those that
        are `dead` on this node, and all on other nodes, whose rows may be in the outbox.
        """
        return [
            k
            for k, agent in enumerate(self.receivers[place])
            if (place, k) in self._connections.edges or agent in dead
        ]

    @property
    def empty(self) -> bool:
        """Whether all rows that this rank has sent are in their slots."""
        return not any(self.unread(edge.place, edge.k) for edge in self._connections.edges.values())

    def test(self) -> bool:
        """Make progress; whether all rows that this rank has sent are in their slots."""
        self.poll()
        return self.empty

    def wait(self) -> None:
        """Return when all rows that this rank has sent are in their slots."""
        if not self.empty:
            wait_until(self.test, self._receivers_in_words)

    def _receivers_in_words(self) -> str:
        late = [
            edge for edge in self._connections.edges.values() if self.unread(edge.place, edge.k)
        ]
        return "rows of a window to arrive at agents " + ", ".join(str(edge.dest) for edge in late)

    def close(self) -> None:
        """Release everything; all ranks have reached this call."""
        self.closed = True
        if self._messenger is not None:
            self._messenger.engine.remove(self.send_outboxes)
            self._messenger.forget(self.number)
        if self.carrier is not None:
            self.carrier.close()
            self.carrier = None
        self.agents.clear()
        self.values = np.array(self.values)  # the memory is freed
        if self.half is not None:
            self.half.close()
        self.mutex.close()
        self.control_words.clear()
        self._connections.close()
        self._one_sided.end()


class HalfRows:
    """16-bit numbers that users see in place of the rows of float32, beside which they lie.

    Parameters
    ----------
    format : str
    own : list of array
        Of each local agent, where neighbours read them.

    Attributes
    ----------
    near : dict of (int, int) to array
        Those of in-neighbours in memory that this rank maps, by local agent and slot.
    """

    def __init__(self, format: str, own: list[np.ndarray]):
        self._format, self.own = format, own
        self.near: dict[tuple[int, int], np.ndarray] = {}

    def copy(self, values: np.ndarray) -> None:
        """Copy rows of the local agents."""
        for shown, value in zip(self.own, values):
            shown[:] = narrow(value, self._format)

    def value(
        self, place: int, k: int, agent: Records, row: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Return what `Slots.value` does; `row` is room for it."""
        shown = self.own[place] if k < 0 else self.near[place, k]
        into = np.empty(row.shape, flat_dtype(self._format))
        p, fresh = agent.look(k, shown, row, into)
        return row if fresh else widen(into, self._format), p

    def renew(self, agents: Sequence[Records]) -> None:
        """Copy what the user has written to the rows of the local agents."""
        for agent, shown in zip(agents, self.own):
            agent.set(widen(shown, self._format))
            agent.shown()

    def show(self, agents: Sequence[Records], values: np.ndarray) -> None:
        """Copy the rows of the local agents."""
        for agent, shown, value in zip(agents, self.own, values):
            shown[:] = narrow(value, self._format)
            agent.shown()

    def close(self) -> None:
        """Forget the memory."""
        self.own.clear()
        self.near.clear()


class GetRequest:
    """Values on their way to slots."""

    def __init__(self, slots: Slots):
        self._slots = slots
        # Agents whose values have not arrived.
        self.sources: list[int] = []

    def test(self) -> bool:
        """Return whether all are there; makes progress."""
        if self.sources:
            self._slots.poll()
            progress()
            if self._slots.closed:
                raise RuntimeError(
                    "the window is closed, and the values that were asked for before have not "
                    "arrived: wait for "
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
