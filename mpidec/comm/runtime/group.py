"""Communicators over PyTorch's process groups: the calls of mpi4py's communicators that this package
uses.
"""

from __future__ import annotations

import hashlib
import operator
import pickle
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, Protocol, TypeAlias

import numpy as np

from .device_group import DeviceGroup
from .job import launched_as
from .tree import tree
from .waiting import wait_until
from .wire import Bytes, KeyValueStore, Wire, WireRequest

# An array, [array, bytes of an item], [array, count, bytes of an item], or
# [array, (counts, starts), bytes of an item].
Buffer: TypeAlias = Any
Steps: TypeAlias = Iterator[Sequence[WireRequest]]
# Tags of collective calls begin here: above all others.
_COLLECTIVE = 1 << 32


class ProcessGroup(Protocol):
    """What is used of torch.distributed.ProcessGroup."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def get_group_store(self) -> KeyValueStore: ...


class Collective:
    """A collective call under way: it progresses in every poll, since others may wait for it."""

    def __init__(self, wire: Wire | None, steps: Steps):
        self._wire, self._steps = wire, steps
        self._awaited: Sequence[WireRequest] = ()
        self._error: RuntimeError | None = None
        self.done = False
        if wire is None:
            self._advance()
        else:
            wire.progress.append(self._advance)
            wire.poll()

    def _advance(self) -> None:
        try:
            while WireRequest.Testall(self._awaited):
                self._awaited = next(self._steps)
            return
        except StopIteration:
            self.done = True
        except RuntimeError as error:
            self._error = error
        if self._wire is not None:
            self._wire.progress.remove(self._advance)

    def Test(self) -> bool:
        """Make progress; whether the call is complete on this rank.

        Raises
        ------
        RuntimeError
            Another rank has ended.
        """
        if not self.done and self._wire is not None:
            self._wire.poll()
        if self._error is not None:
            raise self._error
        return self.done

    def Wait(self) -> None:
        """Return when the call is complete on this rank."""
        wait_until(self.Test, "all ranks in a collective call")

    @staticmethod
    def Testall(requests: Sequence[Collective]) -> bool:
        """Make progress; whether all are complete."""
        complete = [request.Test() for request in requests]  # each makes progress
        return all(complete)


class GroupComm:
    """Ranks of a process group, or one rank `ALONE`, with the names of mpi4py.

    Parameters
    ----------
    wire : Wire or None
        None for one rank alone.
    members : sequence of int
        The ranks of the wire that belong to it.
    number : int
        The same on its ranks, and different from every other communicator's.
    process_group : ProcessGroup, optional
        Its backend moves tensors on devices.

    Attributes
    ----------
    devices : DeviceGroup or None
        What does so.
    """

    def __init__(
        self,
        wire: Wire | None,
        members: Sequence[int] = (0,),
        number: int = 0,
        process_group: ProcessGroup | None = None,
    ):
        self._wire, self._members, self._number = wire, tuple(members), number
        self._process_group = process_group
        self.devices = None if process_group is None else DeviceGroup(process_group)
        self._places = {member: rank for rank, member in enumerate(members)}
        self.rank = 0 if wire is None else self._places[wire.rank]
        self.size = len(self._members)
        self._made = self._calls = 0

    def __repr__(self) -> str:
        return f"GroupComm(rank {self.rank} of {self.size})"

    # Communicators

    def Dup(self) -> GroupComm:
        """Return a communicator of the same ranks whose messages never meet those of this one."""
        return self._part(self._members, "")

    def Split(self, color: int, key: int = 0) -> GroupComm:
        """Return the communicator of the ranks of the same color, in the order of their keys."""
        colors = self.allgather((color, key))
        ranks = sorted((its[1], rank) for rank, its in enumerate(colors) if its[0] == color)
        return self._part([self._members[rank] for _, rank in ranks], str(color))

    def of_node(self) -> GroupComm:
        """Return the communicator of the ranks on this host."""
        hosts = self.allgather(socket.gethostname())
        return self.Split(hosts.index(hosts[self.rank]), self.rank)

    def _part(self, members: Sequence[int], color: str) -> GroupComm:
        self._made += 1
        text = f"{self._number} {self._made} {color}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return GroupComm(self._wire, members, number, self._process_group)

    def Free(self) -> None:
        """Discard what still comes."""
        if self.devices is not None:
            self.devices.free()
        if self._wire is not None:
            self._wire.free(self._number)

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that have ended, and what is said of them."""
        if self._wire is None or not self._wire.gone:
            return {}
        gone = self._wire.gone
        return {rank: gone[member] for member, rank in self._places.items() if member in gone}

    # Messages

    def Isend(self, buf: Buffer, dest: int, tag: int = 0) -> WireRequest:
        return self._send(dest, tag, _bytes(buf))

    def Issend(self, buf: Buffer, dest: int, tag: int = 0) -> WireRequest:
        return self._send(dest, tag, _bytes(buf), synchronous=True)

    def Irecv(self, buf: Buffer, source: int, tag: int = 0) -> WireRequest:
        return self._receive(source, tag, _bytes(buf))

    def Send(self, buf: Buffer, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).Wait()

    def Recv(self, buf: Buffer, source: int, tag: int = 0) -> None:
        self.Irecv(buf, source, tag).Wait()

    def next(self, tag: int) -> tuple[int, np.ndarray] | None:
        """Return the source and the bytes of the next message with a tag, if one has arrived."""
        if self._wire is None or (found := self._wire.next((self._number, tag))) is None:
            return None
        return self._places[found[0]], found[1]

    @property
    def _connected(self) -> Wire:
        if self._wire is None:
            raise ValueError("messages of one rank that is alone, expected several ranks")
        return self._wire

    def _send(self, dest: int, tag: int, data: Bytes, synchronous: bool = False) -> WireRequest:
        return self._connected.send(self._members[dest], (self._number, tag), data, synchronous)

    def _receive(self, source: int, tag: int, into: np.ndarray) -> WireRequest:
        return self._connected.receive(self._members[source], (self._number, tag), into)

    # Collective calls on arrays

    def start_minimum(self, mine: np.ndarray, least: np.ndarray) -> Collective:
        """Begin to find the least of the arrays of all ranks, entry by entry."""
        return Collective(self._wire, self._minimum(self._tag(), mine, least))

    def Ibarrier(self) -> Collective:
        return self.start_minimum(np.zeros(1), np.zeros(1))

    def Ibcast(self, buf: Buffer, root: int = 0) -> Collective:
        return Collective(self._wire, self._broadcast(self._tag(), _bytes(buf), root))

    def Iallgather(self, mine: Buffer, all_: np.ndarray) -> Collective:
        size = all_.nbytes // self.size
        layout = np.full(self.size, size), size * np.arange(self.size)
        return self.Iallgatherv(mine, [all_, layout, 1])

    def Iallgatherv(self, mine: Buffer, all_: Buffer) -> Collective:
        out, into = [_bytes(mine)] * self.size, _parts(all_)
        return Collective(self._wire, self._exchange(self._tag(), out, into))

    def Ialltoallv(self, out: Buffer, into: Buffer) -> Collective:
        return Collective(self._wire, self._exchange(self._tag(), _parts(out), _parts(into)))

    def Igatherv(self, mine: Buffer, all_: Buffer, root: int = 0) -> Collective:
        out = [_bytes(mine) if rank == root else _NOTHING for rank in range(self.size)]
        into = _parts(all_) if self.rank == root else [_NOTHING] * self.size
        return Collective(self._wire, self._exchange(self._tag(), out, into))

    def Iscatterv(self, all_: Buffer, mine: Buffer, root: int = 0) -> Collective:
        out = _parts(all_) if self.rank == root else [_NOTHING] * self.size
        into = [_bytes(mine) if rank == root else _NOTHING for rank in range(self.size)]
        return Collective(self._wire, self._exchange(self._tag(), out, into))

    def _tag(self) -> int:
        self._calls += 1
        return _COLLECTIVE + self._calls

    def _minimum(self, tag: int, mine: np.ndarray, least: np.ndarray) -> Steps:
        parent, children = tree(self.rank, self.size)
        parts = [np.empty_like(least) for _ in children]
        least[...] = mine
        yield [self._receive(child, tag, _bytes(part)) for child, part in zip(children, parts)]
        for part in parts:
            np.minimum(least, part, least)
        if parent is not None:
            yield [self._send(parent, tag, _bytes(least.copy()))]
            yield [self._receive(parent, tag, _bytes(least))]
        yield [self._send(child, tag, _bytes(least)) for child in children]

    def _broadcast(self, tag: int, data: np.ndarray, root: int) -> Steps:
        parent, children = tree(self.rank, self.size, root)
        if parent is not None:
            yield [self._receive(parent, tag, data)]
        yield [self._send(child, tag, data) for child in children]

    def _exchange(self, tag: int, out: Sequence[Bytes], into: Sequence[np.ndarray]) -> Steps:
        """Send each rank its bytes, and receive those of each; none travel where there are none."""
        into[self.rank][:] = np.frombuffer(out[self.rank], np.uint8)
        others = [rank for rank in range(self.size) if rank != self.rank]
        yield [
            *(self._receive(rank, tag, into[rank]) for rank in others if len(into[rank])),
            *(self._send(rank, tag, out[rank]) for rank in others if len(out[rank])),
        ]

    # Collective calls on objects

    def Barrier(self) -> None:
        self.Ibarrier().Wait()

    barrier = Barrier

    def bcast(self, thing: object, root: int = 0) -> Any:
        """Return an object of rank `root`, on all ranks."""
        data = _pickled(thing) if self.rank == root else _NOTHING
        length = np.array([len(data)])
        self.Ibcast(length, root).Wait()
        if self.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self.Ibcast(data, root).Wait()
        return thing if self.rank == root else _unpickled(data)

    def allgather(self, thing: object) -> list[Any]:
        """Return the objects of all ranks."""
        data, lengths = _pickled(thing), np.empty(self.size, np.int64)
        self.Iallgather(np.array([len(data)]), lengths).Wait()
        all_, starts = np.empty(int(lengths.sum()), np.uint8), np.cumsum(lengths) - lengths
        self.Iallgatherv(data, [all_, (lengths, starts), 1]).Wait()
        return [_unpickled(part) for part in _parts([all_, (lengths, starts), 1])]

    def gather(self, thing: object, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks on rank `root`."""
        things = self.allgather(thing)
        return things if self.rank == root else None

    def scatter(self, things: Sequence[Any] | None, root: int = 0) -> Any:
        """Return this rank's of the objects of rank `root`."""
        parts = [_pickled(thing) for thing in things or ()] if self.rank == root else []
        lengths = np.array(self.bcast([len(part) for part in parts], root))
        mine = np.empty(int(lengths[self.rank]), np.uint8)
        starts = np.cumsum(lengths) - lengths
        whole = [np.concatenate(parts), (lengths, starts), 1] if self.rank == root else None
        self.Iscatterv(whole, mine, root).Wait()
        return _unpickled(mine)

    def allreduce(self, thing: object, op: Callable[[Any, Any], Any] = operator.add) -> Any:
        """Return the sum of the objects of all ranks, or what `op` makes of two at a time."""
        return reduce(op, self.allgather(thing))


_NOTHING = np.empty(0, np.uint8)
ALONE = GroupComm(None)
_WIRES: weakref.WeakKeyDictionary[ProcessGroup, GroupComm] = weakref.WeakKeyDictionary()


def of_group(process_group: object) -> GroupComm:
    """Return the communicator of a process group, the same one at each call.

    Raises
    ------
    TypeError
        It is none, or this rank does not belong to it.
    """
    import torch.distributed as dist

    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise TypeError(
            "Network: this rank is no member of the process group: make the network on its members "
            "only"
        )
    if not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            f"Network: process_group is {process_group!r:.60}, expected a process group, such as "
            "torch.distributed.group.WORLD after torch.distributed.init_process_group()"
        )
    if process_group not in _WIRES:
        launched_as(dist.get_rank(), dist.get_world_size())
        rank, size = process_group.rank(), process_group.size()
        wire = Wire(process_group.get_group_store(), rank, size) if size > 1 else None
        _WIRES[process_group] = GroupComm(wire, range(size), 1, process_group)
    return _WIRES[process_group]


def _bytes(buf: Buffer) -> np.ndarray:
    """Return the memory of a buffer as bytes."""
    array = buf[0] if isinstance(buf, list) else buf
    if isinstance(array, bytes):
        return np.frombuffer(array, np.uint8)
    if not array.nbytes:
        return _NOTHING
    if not array.flags.c_contiguous:
        raise ValueError("messages are sent from and to memory in C order")
    data: np.ndarray = array.reshape(-1).view(np.uint8)
    return data if len(buf) != 3 or not isinstance(buf, list) else data[: buf[1] * buf[2]]


def _parts(buf: Buffer) -> list[np.ndarray]:
    """Return the part of each rank of a buffer `[array, (counts, starts), bytes of an item]`."""
    array, (counts, starts), size = buf
    data = _bytes(array)
    ends = (np.asarray(starts) + counts) * size
    return [
        data[start * size : end] for start, end in zip(np.asarray(starts).tolist(), ends.tolist())
    ]


def _pickled(thing: object) -> np.ndarray:
    return np.frombuffer(pickle.dumps(thing), np.uint8)


def _unpickled(data: np.ndarray) -> Any:
    return pickle.loads(data.tobytes())
