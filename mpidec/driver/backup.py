"""Copies of a run in the memory of its ranks, each with a partner on another node if there is one:
what the ranks that are left go on from when some have died.
"""

from __future__ import annotations

import pickle
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ..comm.mixing import Network
from ..comm.runtime import MPI, Communicator, over_mpi, ranks_of_node, testall

# Part of the time of the steps that copies may take.
_SHARE = 0.02
# Seconds between two copies at least.  Finding a death and loading its data takes as long.
_LEAST = 0.5
# Bytes of which a message counts the multiples: counts stay below 2**31.
_UNIT = 1024
_TAG = 1
Buffer = np.ndarray | list[Any]  # of MPI
_OF: weakref.WeakKeyDictionary[Network, Backup] = weakref.WeakKeyDictionary()


class Key(NamedTuple):
    """The name of a copy: the attempt that has made it, its step, and the number of ranks."""

    attempt: int
    step: int
    size: int


@dataclass(frozen=True)
class Held:
    """What this rank holds of a copy.

    Attributes
    ----------
    rank : int
        This rank, when the copy was made.
    failed : int
        How many step sizes had failed.
    parts : dict of bytes
        The parts of this rank and of its partner, by rank.
    """

    rank: int
    failed: int
    parts: dict[int, bytes]


class Backup:
    """The last two copies of a run, and its records so far, which every rank has.

    Attributes
    ----------
    records : list of dict
        The metrics of all records.
    sizes : list of float
        Their norms of the iterates.
    failed : int
        How many step sizes have failed before the present one.
    key : Key or None
        The copy to go on from.

    Notes
    -----
    A copy is made after the record of its step.  Ranks begin one after all of them have completed
    the one before, in the decision to make it: when a rank dies, the last one or the one before is
    complete, unless its partner dies, too.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []
        self.sizes: list[float] = []
        self.failed = 0
        self.key: Key | None = None
        self._held: dict[Key, Held] = {}
        self._attempt = 0
        self._comm: MPI.Intracomm
        self._partner = self._ward = 0
        self._provided: list[int] = []
        self._made, self._cost = time.monotonic(), 0.0

    @classmethod
    def of(cls, net: Network) -> Backup | None:
        """Return the copies of the run on a network, if there are any."""
        return _OF.get(net)

    def serve(self, net: Network) -> None:
        """Let the run on this network make copies, and go on from the present one."""
        _OF[net] = self

    def meet(self, comm: Communicator) -> None:
        """Begin an attempt of the ranks that are left, from the last copy of which they have all
        parts, if there is one; collective.
        """
        self._comm = comm = over_mpi(comm, "a copy in memory")
        node = ranks_of_node(comm)
        first_there = node.bcast(comm.rank)
        node.Free()
        mine = {key: [*held.parts] for key, held in self._held.items()}
        everywhere = comm.allgather((self._attempt, first_there, mine))
        attempts, nodes, held = zip(*everywhere)
        self._attempt = max(attempts) + 1
        common = set.intersection(*map(set, held))
        complete = [
            key for key in common if {*range(key.size)} == {i for has in held for i in has[key]}
        ]
        self.key = max(complete, default=None)
        self._held = {} if self.key is None else {self.key: self._held[self.key]}
        if self.key is not None:
            first = {i: rank for rank, has in reversed([*enumerate(held)]) for i in has[self.key]}
            self._provided = [i for i, rank in first.items() if rank == comm.rank]
            self.failed = self._held[self.key].failed
        # Half the ranks away in the order of the nodes: no node has more, if that can be.
        order = sorted(range(comm.size), key=nodes.__getitem__)
        at = order.index(comm.rank)
        self._partner = order[(at + comm.size // 2) % comm.size]
        self._ward = order[(at - comm.size // 2) % comm.size]

    def begin(self, step: int) -> None:
        """Forget the records from `step` on, and the copies, too, if that is the first one."""
        kept = sum(record["step"] < step for record in self.records)
        del self.records[kept:], self.sizes[kept:]
        if step == 0:
            self._held.clear()

    @property
    def due(self) -> bool:
        """Whether it is time for a copy."""
        pause = max(_LEAST, self._cost / _SHARE)
        return self._comm.size > 1 and time.monotonic() - self._made >= pause

    def keep(
        self,
        net: Network,
        step: int,
        found: Mapping[str, Any],
        counts: Mapping[str, np.ndarray],
        common: tuple[Any, ...],
    ) -> None:
        """Make a copy; collective.

        Parameters
        ----------
        net : Network
        step : int
        found : dict
            Rows of this rank, and numbers that are the same on all ranks.
        counts : dict of arrays
            The numbers of rows on each rank, where they are not those of the agents.
        common : tuple
            What else is the same on all ranks.
        """
        if net.size == 1:
            return
        begun = time.monotonic()
        rows, alone = {}, {name: value for name, value in found.items() if np.ndim(value) == 0}
        for name in found.keys() - alone.keys():
            each = counts.get(name, net.partition.counts())
            rows[name] = int(each[: net.rank].sum()), found[name]
        data = pickle.dumps((rows, alone, common), pickle.HIGHEST_PROTOCOL)
        data += bytes(-len(data) % _UNIT)
        parts = {net.rank: data, self._ward: self._swapped(net, data)}
        self._held[Key(self._attempt, step, net.size)] = Held(net.rank, self.failed, parts)
        for old in sorted(self._held)[:-2]:
            del self._held[old]
        self._made = time.monotonic()
        self._cost = self._made - begun

    def _swapped(self, net: Network, data: bytes) -> bytes:
        """Give data to the partner, and return that of the rank whose partner this one is."""
        length = np.array([0])
        self._exchange(net, np.array([len(data)]), length)
        theirs, unit = bytearray(int(length[0])), net.context.row_type(_UNIT)
        self._exchange(net, [data, len(data) // _UNIT, unit], [theirs, len(theirs) // _UNIT, unit])
        return bytes(theirs)

    def _exchange(self, net: Network, mine: Buffer, theirs: Buffer) -> None:
        requests = [
            self._comm.Irecv(theirs, self._ward, _TAG),
            self._comm.Isend(mine, self._partner, _TAG),
        ]
        net.collectives.complete(lambda: testall(requests), "a copy")

    def recall(
        self, net: Network, counts: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return `found` and `common` of the copy `key` on this rank, once; collective."""
        if self.key is None:
            raise RuntimeError("there is no copy to go on from")
        held, self.key = self._held[self.key], None
        _, alone, common = pickle.loads(held.parts[held.rank])
        sent: list[dict[str, list[tuple[int, np.ndarray]]]] = [{} for _ in range(net.size)]
        for i in self._provided:
            for name, (start, rows) in pickle.loads(held.parts[i])[0].items():
                each = counts.get(name, net.partition.counts()).tolist()
                for rank, (end, count) in enumerate(zip(accumulate(each), each)):
                    low, high = max(end - count, start), min(end, start + len(rows))
                    if low < high or (count == 0 and start == 0):
                        part = rows[low - start : max(high - start, low - start)]
                        sent[rank].setdefault(name, []).append((low, part))
        found: dict[str, list[tuple[int, np.ndarray]]] = {}
        for received in self._comm.alltoall(sent):
            for name, parts in received.items():
                found.setdefault(name, []).extend(parts)
        stacked = {
            name: np.concatenate([rows for _, rows in sorted(parts, key=lambda part: part[0])])
            for name, parts in found.items()
        }
        return alone | stacked, common
