"""The context of a network: the interface that lower objects get, instead of the network itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from ..timeline import Timeline
from .communicator import Communicator
from .node import NodeMemory
from .partition import Partition
from .row_types import RowTypes
from .waiting import ProgressEngine

# Whether lists of ranks are compared.
Checked: TypeAlias = bool | Literal["all"]


class MatchedCalls(Protocol):
    """Matching of the calls of all ranks; see `checks.matching`."""

    check: Checked
    interrupted: str

    def require_in_step(self) -> None:
        """Raise a RuntimeError if an exception from outside has ended a call before."""

    def register(self, past: Any) -> int:
        """Number an operation that exchanges no headers."""

    def verify(self, op: str, signature: str, dests: Iterable[int], sources: Iterable[int]) -> int:
        """Number an operation after the neighbours have been found to begin the same one."""

    def agree(self, op: str, signature: str) -> int:
        """Number an operation after all ranks have reached the same one."""

    def ask(self, ranks: Iterable[int], number: int, op: str, signature: str, before: int) -> None:
        """Ask the ranks that an operation waits for where they are."""

    def ask_about_mixing(self, rank: int, number: int, op: str, before: int | None = None) -> None:
        """Ask a rank that a mixing in shared memory waits for where it is."""

    def look_for_leavers(self) -> None:
        """Raise the exception with which another rank has left."""

    def report(self, rank: int, text: str) -> None:
        """Raise a mismatch on another rank, in its next wait."""

    def interrupt(self, where: str, error: BaseException) -> None:
        """Refuse all further operations, since an exception has ended a wait."""

    def withdraw(self, op: str, error: Exception, concerned: Iterable[int]) -> None:
        """Tell the ranks concerned that this one takes no part in an operation."""


@dataclass(frozen=True)
class Context:
    """What a network hands to the objects below it.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm or GroupComm
    rank : int
    partition : Partition
        Agents over ranks.
    engine : ProgressEngine
    memory : NodeMemory or None
        None if rows only travel in messages.
    matching : MatchedCalls
    row_type : RowTypes
    transport : {"auto", "shared", "neighbor", "p2p"}
    timeline : Timeline or None
        What writes down all calls, if it is asked for.
    ranks_per_node : int or None
        Pretend that a node has so many ranks.
    mixing : str
        What mixings are called in messages and timelines.
    """

    comm: Communicator
    rank: int
    partition: Partition
    engine: ProgressEngine
    memory: NodeMemory | None
    matching: MatchedCalls
    row_type: RowTypes
    transport: str
    timeline: Timeline | None = None
    ranks_per_node: int | None = None
    mixing: str = "W(X)"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.partition.size

    @property
    def mixings(self) -> int:
        """Mixings in shared memory that this rank has begun."""
        return 0 if self.memory is None else self.memory.node.seq
