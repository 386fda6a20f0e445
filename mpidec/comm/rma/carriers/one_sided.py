"""Rows by MPI's one-sided calls: a sender writes to a mailbox of three buffers, and neither end
ever waits for the other.

A mailbox lies at the receiver: the number of the buffer that holds its contents, or 0, and three
buffers.  The sender writes to one that is neither published nor was taken last, and publishes it by
an atomic exchange; the receiver takes the contents by another one, and copies them to its slot.  So
a row, its `p` and the number of its transfers appear in one instant, without a lock that a process
could hold while it is stopped.  What has not been taken is joined with what follows: it is written
again, as a whole.

A value is protected by a counter that is odd while the value changes (a sequence lock): a reader
that sees the same even number before and after reading has a consistent row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from ...arrays import flat_dtype, widen
from ...runtime import MPI, progress
from .. import records
from ..messenger import Message
from .carrier import Edge, Records, Weights
from .mpi_memory import WORD, MPIMemory

# Bytes before the rows of mails, and before the buffers of mailboxes: a cache line.
HEADER = 64
COUNTER, READERS, TAIL, HOLDER = range(4)  # words at the beginning of a block
# Words before those of the mutexes: these four, and 16 for claims.
FIRST = 24
CLAIMS = 8
# Buffers of a mailbox: one is published, the receiver may be copying another one, so the sender
# needs a third.  Failed reads of a changing value after which its owner is asked to pause, and for
# how long (seconds).
_MAILS, _PATIENT, _PAUSE = 3, 8, 0.05
_TOTAL, _REPLACED, _P = range(3)  # words of a mail


class Turn(Enum):
    """Conditions other than requests for which a step waits."""

    NEXT = auto()  # a later call
    # The rows that have been written to be there.
    FLUSHED = auto()


Steps = Generator["MPI.Request | Turn", None, None]


def front(size: int) -> int:
    """Bytes at the beginning of the block of each of `size` ranks."""
    return -(-WORD * (FIRST + 2 * size) // HEADER) * HEADER


def mail(count: int, dtype: np.dtype) -> int:
    """Bytes of a mail with a row of `count` numbers."""
    return HEADER + -(-count * dtype.itemsize // HEADER) * HEADER


def mailbox(count: int, dtype: np.dtype) -> int:
    """Bytes of a mailbox."""
    return HEADER + _MAILS * mail(count, dtype)


class Mail:
    """A row with its push-sum weight, and all transfers of its edge up to then."""

    def __init__(self, data: np.ndarray, count: int, dtype: np.dtype):
        self.data = data
        self.words, self.p = data[:HEADER].view(np.int64), data[:HEADER].view(np.float64)[_P:]
        self.row = data[HEADER : HEADER + count * dtype.itemsize].view(dtype)


@dataclass(frozen=True)
class Incoming:
    """An in-neighbour whose rows come by one-sided calls.

    Attributes
    ----------
    rank : int
    mailbox : int
        The offset of its mailbox in this rank's block.
    record, shown : int
        Those of its value, and of 16-bit numbers beside that, in its own block.
    """

    rank: int
    mailbox: int
    record: int
    shown: int


class Outgoing:
    """The sender's end of a mailbox."""

    def __init__(self, edge: Edge, at: int, count: int, dtype: np.dtype):
        self.edge, self.at, self._size = edge, at, mail(count, dtype)
        self.new, self.last, self.joined = (
            Mail(np.zeros(self._size, np.uint8), count, dtype) for _ in range(3)
        )
        # The buffers published and taken last.
        self.total, self.published, self.taken = 0, -1, -1
        self.old, self.word = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.task: WindowTask | None = None

    @property
    def written(self) -> bool:
        """Return whether it has written a row, and waits for a flush."""
        return self.task is not None and self.task.awaited is Turn.FLUSHED

    def buffer(self, k: int) -> int:
        """Return the offset of a buffer."""
        return self.at + HEADER + k * self._size

    def note_taken(self) -> None:
        """The receiver has taken what was published last."""
        self.taken, self.published = self.published, -1

    def fill(self, p: float, transfers: int, replaced: int) -> None:
        """Complete the new mail, whose row is there."""
        self.total += transfers
        self.new.words[_TOTAL], self.new.words[_REPLACED], self.new.p[0] = self.total, replaced, p

    def join(self) -> None:
        """The new mail, added to the last one."""
        self.joined.data[:] = self.new.data
        self.joined.words[_REPLACED] |= self.last.words[_REPLACED]
        self.joined.p[0] += self.last.p[0]
        self.joined.row += self.last.row


class Inbox:
    """The receiver's end of a mailbox, for the slot `k`."""

    def __init__(self, k: int, at: int, block: np.ndarray, count: int, dtype: np.dtype):
        self.k, self.at, self.seen, size = k, at, 0, mail(count, dtype)
        self.state: np.ndarray = block[at : at + WORD].view(np.int64)
        starts = [at + HEADER + which * size for which in range(_MAILS)]
        self.mails = [Mail(block[start : start + size], count, dtype) for start in starts]


class WindowTask:
    """Sequence of steps; each begins when the previous request is complete, or at the turn it waits
    for.

    Attributes
    ----------
    awaited : Turn or mpi4py.MPI.Request
    """

    def __init__(self, steps: Steps):
        self._steps = steps
        self.awaited: MPI.Request | Turn = Turn.NEXT

    def move_on(self) -> bool:
        """Execute as many steps as possible; return whether the end has been reached."""
        while isinstance(self.awaited, Turn) or self.awaited.Test():
            try:
                self.awaited = next(self._steps)
            except StopIteration:
                return True
            if isinstance(self.awaited, Turn):
                return False
        return False


class GuardedRecords:
    """The records of an agent whose value other ranks read while this one changes it; see
    `Records`.

    Parameters
    ----------
    agent : Records
    words : array of int64
        Those at the beginning of this rank's block.
    sync : callable
        Orders the accesses to memory.
    """

    def __init__(self, agent: Records, words: np.ndarray, sync: Callable[[], None]):
        self._agent, self._words, self._sync, self._known = agent, words, sync, 0
        self.get, self.deliver, self.pop_outbox, self.read, self.take, self.look = (
            agent.get,
            agent.deliver,
            agent.pop_outbox,
            agent.read,
            agent.take,
            agent.look,
        )
        self.fill, self.versions, self.unread = agent.fill, agent.versions, agent.unread

    def __enter__(self) -> None:
        readers = int(self._words[READERS])
        if readers and readers != self._known:
            self._let_read(readers)
        self._words[COUNTER] += 1
        self._sync()

    def __exit__(self, *_: object) -> None:
        self._sync()
        self._words[COUNTER] += 1

    def _let_read(self, readers: int) -> None:
        """Pause before changing the value, if other ranks have repeatedly failed to read it."""
        until = time.monotonic() + _PAUSE
        while self._words[READERS] == readers and time.monotonic() < until:
            progress()
            time.sleep(0)
            self._sync()
        self._known = int(self._words[READERS])

    def send(self, x: np.ndarray | None, weights: Weights, own: float | None, add: bool) -> None:
        if own is None:
            self._agent.send(x, weights, own, add)
        else:
            with self:
                self._agent.send(x, weights, own, add)

    def update(self, own: float, weights: Weights, reset: bool) -> None:
        with self:
            self._agent.update(own, weights, reset)

    def set(self, row: np.ndarray) -> None:
        with self:
            self._agent.set(row)

    def shown(self) -> None:
        with self:
            self._agent.shown()

    @property
    def p(self) -> float:
        return self._agent.p

    @p.setter
    def p(self, p: float) -> None:
        with self:
            self._agent.p = p


class OneSided:
    """Carries rows by one-sided calls; see `Carrier`.

    Parameters
    ----------
    memory : MPIMemory
    me : int
        This rank.
    agent : Records
        Of the one agent of this rank.
    outgoing : sequence of Outgoing
    incoming : dict of int to Incoming
        By the numbers of their slots.
    count, dtype : int, numpy.dtype
        Of a row.
    half : str
        The format of 16-bit numbers beside the values, if there are any.
    unaided : bool
        Whether MPI performs these calls without the other rank.
    """

    name = "rma"

    def __init__(
        self,
        memory: MPIMemory,
        me: int,
        outgoing: Sequence[Outgoing],
        incoming: dict[int, Incoming],
        count: int,
        dtype: np.dtype,
        half: str,
        unaided: bool,
    ):
        self.memory, self._me, self.unaided = memory, me, unaided
        self._outgoing, self._sources = list(outgoing), incoming
        self._count, self._dtype, self._half = count, dtype, half
        block = memory.block
        self._words: np.ndarray = block[: front(0)].view(np.int64)
        self._inboxes = [
            Inbox(k, source.mailbox, block, count, dtype) for k, source in incoming.items()
        ]
        # Of each value, in their order.
        self._reads: dict[int, list[WindowTask]] = {k: [] for k in incoming}

    def guard(self, agent: Records) -> Records:
        """Return the records of the agent, which others read."""
        self._agent: Records = GuardedRecords(agent, self._words, self.memory.sync)
        return self._agent

    def take(self) -> None:
        """Empty the mailboxes into their slots."""
        self.memory.sync()
        for inbox in self._inboxes:
            if inbox.state[0]:
                self._take(inbox)

    def ship(self) -> None:
        """Move on what is under way."""
        for post in self._outgoing:
            if post.task is None and self._agent.unread(post.edge.k):
                post.edge.under_way = True  # before the outbox is empty
                post.task = WindowTask(self._post(post))
        moving = [post for post in self._outgoing if post.task is not None]
        while moving:
            self._flush([post for post in moving if post.written])
            for post in moving:
                self._move_on(post)
            moving = [post for post in moving if post.written]
        for reads in self._reads.values():
            while reads and reads[0].move_on():
                del reads[0]

    def _move_on(self, post: Outgoing) -> None:
        """Move on what is sent."""
        if post.task is not None and post.task.move_on():
            post.task, post.edge.under_way = None, False

    def _flush(self, written: Sequence[Outgoing]) -> None:
        """All rows first, then one flush if no rank has to help, since in each one MPI may give
        the core to another process.
        """
        if self.unaided and written:
            self.memory.flush_all()
        else:
            for post in written:
                self.memory.flush(post.edge.rank)

    def _take(self, inbox: Inbox) -> None:
        """Empty a mailbox into its slot."""
        old = self.memory.exchange(self._me, inbox.at, 0)
        self.memory.sync()
        come = inbox.mails[old - 1]
        total, p = int(come.words[_TOTAL]), float(come.p[0])
        replaced, transfers = bool(come.words[_REPLACED]), total - inbox.seen
        self._agent.deliver(inbox.k, come.row, 1.0, p, transfers, replaced)
        inbox.seen = total

    def _post(self, post: Outgoing) -> Steps:
        """Send what is in an outbox."""
        memory, rank = self.memory, post.edge.rank
        p, transfers, replaced = self._agent.pop_outbox(post.edge.k, post.new.row)
        post.fill(p, transfers, replaced)
        if post.published >= 0 and not replaced:
            yield memory.get(post.old, rank, post.at)
            if not post.old[0]:
                post.note_taken()
        while True:
            # The receiver may still be copying the buffer that it took last; the published one may
            # be taken at any time.  The third one is free.
            to = next(k for k in range(_MAILS) if k not in (post.published, post.taken))
            joins = post.published >= 0 and not replaced
            if joins:
                post.join()
            yield memory.put((post.joined if joins else post.new).data, rank, post.buffer(to))
            yield Turn.FLUSHED
            if not joins:
                post.word[0] = to + 1
                yield memory.swap(post.word, post.old, rank, post.at)
                if post.published >= 0 and not post.old[0]:
                    post.note_taken()
                post.new, post.last = post.last, post.new
                break
            # The joined row replaces the published one only if that has not been taken meanwhile.
            if memory.compare(rank, post.at, post.published + 1, to + 1):
                post.joined, post.last = post.last, post.joined
                break
            post.note_taken()  # in the meantime: what is new goes alone
        post.published = to

    def fetch(self, place: int, k: int, deliver: Callable[[np.ndarray, float], None]) -> None:
        """Begin to read a value."""
        self._reads[k].append(WindowTask(self._read(self._sources[k], deliver)))

    def _read(self, source: Incoming, deliver: Callable[[np.ndarray, float], None]) -> Steps:
        memory, rank = self.memory, source.rank
        before, after, one = (np.ones(1, np.int64) for _ in range(3))
        found = np.empty(records.stride(self._count, self._dtype), np.uint8)
        shown = np.empty(-(-2 * self._count // WORD) * WORD if self._half else 0, np.uint8)
        tries = 0
        while True:
            # A sequence lock: equal even numbers before and after mean that the row did not change.
            yield memory.get(before, rank, WORD * COUNTER)
            if not before[0] % 2:
                yield memory.get(found, rank, source.record)
                if len(shown):
                    yield memory.get(shown, rank, source.shown)
                yield memory.get(after, rank, WORD * COUNTER)
                if after[0] == before[0]:
                    break
            tries += 1
            if tries == _PATIENT:
                yield memory.add(one, after, rank, WORD * READERS)
            yield Turn.NEXT
        if tries >= _PATIENT:
            one[0] = -1
            yield memory.add(one, after, rank, WORD * READERS)
        head = found[: records.HEADER].view(np.int64)
        row = found[records.HEADER :].view(self._dtype)[: self._count]
        if len(shown) and not head[5]:
            row = widen(shown[: 2 * self._count].view(flat_dtype(self._half)), self._half)
        deliver(row, float(head[2:3].view(np.float64)[0]))

    def receive(self, rank: int, message: Message) -> None:
        """Do nothing: this carrier sends no such messages."""
        raise RuntimeError(f"an unexpected message of rank {rank}: {message}")

    def close(self) -> None:
        """Forget the memory."""
        self._outgoing.clear()
        self._reads.clear()
        self._inboxes.clear()
        del self._words, self._agent


class OneSidedWords:
    """Words of all ranks by one-sided calls; see `Words`."""

    def __init__(self, memory: MPIMemory, lock: AbstractContextManager[object]):
        self._memory, self._lock = memory, lock

    def reaches(self, rank: int) -> bool:
        """Every one."""
        return True

    def swap(self, rank: int, k: int, before: int, after: int) -> bool:
        """Set the k-th one to `after` if it is `before`; whether it was."""
        with self._lock:
            return self._memory.compare(rank, WORD * (CLAIMS + k), before, after) == before

    def read(self, rank: int, k: int) -> int:
        """Return the k-th one."""
        with self._lock:
            return self._memory.fetch(rank, WORD * (CLAIMS + k))
