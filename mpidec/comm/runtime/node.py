"""The node: ranks that can read one another's memory, and this rank's operations in progress
there.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .arena import arena, shared
from .communicator import Communicator, of_node, split
from .cores import cores
from .mpi import MPI
from .survivors import reduced
from .waiting import ProgressEngine, wait_for_other_nodes

# Tests before a rank that has a core to itself yields it.
_SPINS = 2000


class _Counts:
    """Counters of what was sent, where there are no compiled ones."""

    def __init__(self) -> None:
        self.rounds = self.messages = self.bytes = 0


Counts: Any = _Counts if shared is None else shared.Counts


class NodeMemory:
    """The memory that the ranks of a node share, seen from one of them.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    engine : ProgressEngine
        Moves on the mixings under way, and keeps other threads out.
    ranks_per_node : int, optional
        Pretend that a node has so many ranks.

    Attributes
    ----------
    near : array of int
        The ranks of `comm` on this node, this one included; only this one where memory cannot be
        shared.
    me : int
        The place of this rank among them.
    single_node, useful : bool
        Whether all ranks are on one node; whether any two are.
    node : _shared.Node or None
        None where memory cannot be shared.
    engine : ProgressEngine
    under_way : list of NodeRequest
        Mixings that were started and have not ended, in their order.
    """

    def __init__(
        self, comm: MPI.Intracomm, engine: ProgressEngine, ranks_per_node: int | None = None
    ):
        local = ranks_of_node(comm, ranks_per_node)
        self.node = self._meet(local, engine)
        works = reduced(comm, self.node is not None, MPI.LAND)
        if not works:
            self.close()
        self.near = np.array(local.allgather(comm.rank)) if works else np.array([comm.rank])
        self.me = local.rank if works else 0
        self.single_node = bool(reduced(comm, len(self.near) == comm.size, MPI.LAND))
        if not self.single_node:
            wait_for_other_nodes()
        self.useful = bool(reduced(comm, len(self.near) > 1, MPI.LOR))
        self.under_way: list[Any] = []
        local.Free()
        self.engine = engine
        if self.useful:
            engine.add(self.poll)
            engine.on_interrupt(self._refuse)

    def _meet(self, local: Communicator, engine: ProgressEngine) -> Any:
        """Return the node with the headers of all its ranks; None if this rank cannot read those of
        another one.
        """
        mine = arena()
        node, place = None, (0, 0, 0, 0, 0)
        if mine is not None:
            spins = _SPINS if local.size <= len(cores()) else 0
            node = shared.Node(
                local.rank, local.size, spins, np.ndarray, np.empty_like, engine.lock
            )
            file, size = mine
            place = os.getpid(), file, os.fstat(file).st_ino, size, node.offset
        for rank, (pid, file, inode, size, offset) in enumerate(local.allgather(place)):
            if node is not None and rank != local.rank:
                try:
                    node.connect(
                        rank, f"/proc/{pid}/fd/{file}" if size else "", inode, size, offset
                    )
                except (
                    OSError,
                    ValueError,
                ):  # another pid namespace or user, hidepid, no compiler there
                    node.close()
                    node = None
        return node

    def complete_overdue(self) -> None:
        """Complete the mixings under way whose slots are used again by the next one."""
        if self.under_way:
            oldest = self.node.seq + 1 - shared.SLOTS
            for request in [one for one in self.under_way if one.seq <= oldest]:
                request.complete()

    def poll(self) -> None:
        """Progress mixings, and release rows that have been read."""
        for request in list(self.under_way):
            request.test()

    def _refuse(self, reason: str) -> None:
        self.node.refuse(reason)

    def refusal(self) -> Exception | None:
        """Return the mismatch in an earlier mixing that has not been raised yet."""
        try:
            self.node.release()
        except ValueError as error:
            return error
        return None

    def close(self) -> None:
        """Release everything; all ranks have reached this call.  Safe to repeat."""
        if self.node is not None:
            self.node.close()


def ranks_of_node(comm: Communicator, ranks_per_node: int | None = None) -> Communicator:
    """Return the ranks on the node of this one, or those of a pretended node of so many ranks;
    collective.
    """
    node = of_node(comm)
    if ranks_per_node:
        node = split(node, node.rank // ranks_per_node)
    return node


def cores_of_node(comm: Communicator) -> tuple[int, int]:
    """Return the number of ranks of `comm` on this node, and of the cores that they may use
    together; collective.

    Examples
    --------
    >>> cores_of_node(MPI.COMM_SELF) == (1, len(cores()))
    True
    """
    local = ranks_of_node(comm)
    ranks, together = local.size, frozenset[int]().union(*local.allgather(cores()))
    local.Free()
    return ranks, len(together)


def describe_tag(tag: int, signature: int, floats: bool) -> str:
    """Describe a published tag relative to the signature of an operation, for messages."""
    difference = tag ^ signature
    if difference >> 40:
        return "other rows, or another step or topology"
    return f"rows of {difference >> 1} " + (
        f"float{64 if difference & 1 else 32}" if floats else "bytes"
    )
