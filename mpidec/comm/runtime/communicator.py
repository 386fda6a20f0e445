"""The communicator of a network: MPI's, or one over a process group of PyTorch.

Code that serves both names no constant of MPI, which would load it: it calls the methods that both
have, and the functions of this module where the two differ.  Code for one-sided transfers, memory of
the node and MPI's own neighbourhood collectives takes MPI's communicator alone, from `over_mpi`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, Union, cast

import numpy as np

from .group import ALONE, GroupComm, of_group
from .mpi import MPI, available
from .survivors import living, made, node_of, reduced

Communicator: TypeAlias = Union["MPI.Intracomm", GroupComm]
"""The ranks of a network."""


class CommRequest(Protocol):
    """A message or a collective call under way."""

    def Test(self) -> bool: ...
    def Wait(self) -> object: ...


def communicator(comm: object, process_group: object) -> Communicator:
    """Return the communicator of the arguments of `Network`.

    Raises
    ------
    TypeError
        They are none, or both are given.
    """
    if process_group is not None:
        if comm is not None:
            raise TypeError("Network: comm and process_group are given, expected one of them")
        return of_group(process_group)
    if isinstance(comm, GroupComm):
        return comm
    if comm is None:
        return world()
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise TypeError(
            f"Network: comm is {_named(comm)}, expected an intracommunicator such as MPI.COMM_WORLD"
        )
    return comm


def world() -> Communicator:
    """Return the communicator of all ranks that MPI has started, without those that have died; of
    this process alone where there is no MPI.
    """
    return living() if available() else ALONE


def over_mpi(comm: Communicator, what: str) -> MPI.Intracomm:
    """Return MPI's communicator.

    Raises
    ------
    ValueError
        The network works over a process group, where there is no `what`.
    """
    if isinstance(comm, GroupComm):
        raise ValueError(
            f"{what} over a process group: gloo and NCCL have no one-sided transfers; start the "
            "program with mpirun, and make the network without process_group"
        )
    return comm


def start_minimum(comm: Communicator, mine: np.ndarray, least: np.ndarray) -> CommRequest:
    """Begin to find the least of the arrays of all ranks, entry by entry."""
    if isinstance(comm, GroupComm):
        return comm.start_minimum(mine, least)
    return comm.Iallreduce(mine, least, MPI.MIN)


def next_message(comm: Communicator, tag: int) -> tuple[int, np.ndarray] | None:
    """Return the source and the bytes of the next message with a tag, if one has arrived."""
    if isinstance(comm, GroupComm):
        return comm.next(tag)
    status = MPI.Status()
    message = comm.Improbe(MPI.ANY_SOURCE, tag, status)
    if message is None:
        return None
    raw = np.empty(status.Get_count(MPI.BYTE), np.uint8)
    message.Recv([raw, MPI.BYTE])
    return status.Get_source(), raw


def lost(comm: Communicator) -> dict[int, str]:
    """Return the ranks that have ended, and what is said of them; MPI ends the job instead."""
    return comm.lost if isinstance(comm, GroupComm) else {}


def byte(comm: Communicator) -> Any:
    """Return the type of a byte in a message."""
    return 1 if isinstance(comm, GroupComm) else MPI.BYTE


def testall(requests: Sequence[Any]) -> bool:
    """Return whether all of these requests, of one communicator, are complete; makes progress."""
    return not requests or bool(type(requests[0]).Testall(requests))


class Together:
    """Several messages of one communicator under way, as one request."""

    def __init__(self, requests: Sequence[CommRequest]):
        self._requests = requests

    def Test(self) -> bool:
        """Make progress; whether all are complete."""
        return testall(self._requests)

    def Wait(self) -> None:
        """Return when all are complete."""
        for request in self._requests:
            request.Wait()


def of_node(comm: Communicator) -> Communicator:
    """Return the ranks on the node of this one; collective."""
    if isinstance(comm, GroupComm):
        return comm.of_node()
    return node_of(comm)


def total(comm: Communicator, number: float) -> float:
    """Return the sum of a number of each rank; collective."""
    if isinstance(comm, GroupComm):
        return cast(float, comm.allreduce(number))
    return reduced(comm, number, MPI.SUM)


def split(comm: Communicator, color: int) -> Communicator:
    """Return the ranks of the same color, in place of `comm`; collective."""
    part: Communicator
    if isinstance(comm, GroupComm):
        part = comm.Split(color, comm.rank)
    else:
        part = cast("MPI.Intracomm", made(comm, partial(comm.Split, color, comm.rank)))
    comm.Free()
    return part


def duplicated(comm: Communicator) -> Communicator:
    """Return a communicator of the same ranks whose messages never meet those of this one;
    collective.
    """
    return comm.Dup() if isinstance(comm, GroupComm) else made(comm, comm.Dup)


def _named(comm: object) -> str:
    if not isinstance(comm, MPI.Comm):
        return f"{comm!r:.60}"
    return "MPI.COMM_NULL" if comm == MPI.COMM_NULL else "an intercommunicator"
