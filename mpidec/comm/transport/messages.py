"""Messages: rows along a route, point to point or by neighbourhood collectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

import numpy as np

from ..runtime import (
    MPI,
    Collectives,
    CommRequest,
    Communicator,
    DeviceRows,
    GroupComm,
    RowTypes,
    library,
    made,
    over_mpi,
    ranks,
    testall,
    wait_until,
)
from .plan import Route, Routes

RequestT = TypeVar("RequestT", bound=CommRequest)
# Rows that MPI reads or writes.
MessageRows = np.ndarray | DeviceRows
# Tags of rows, below those of message headers (`checks.messenger`).
_TAGS = 16000


class MessageRequest:
    """Messages under way.

    Parameters
    ----------
    requests : list of mpi4py.MPI.Request, or WireRequest
    sent, arrived : array
        What the messages read and write, kept alive.
    what : str or callable
        Text of what this rank waits for, for messages.
    ask : callable, optional
        Asks the other ranks where they are.
    interrupted : callable, optional
        Called with the exception that ends a wait.
    """

    def __init__(
        self,
        requests: Sequence[CommRequest],
        sent: Any,
        arrived: Any,
        what: str | Callable[[], str] = "messages",
        ask: Callable[[], None] | None = None,
        interrupted: Callable[[BaseException], None] | None = None,
    ):
        self._requests, self.sent, self.arrived = requests, sent, arrived
        self._what, self._ask, self._interrupted = what, ask, interrupted
        self._error: Exception | None = None
        self.done = not requests

    def test(self) -> bool:
        """Make progress; whether all messages have arrived."""
        # (MPICH 5: Testall fails for persistent collectives, Test does not).
        if not self.done:
            requests = self._requests
            self.done = requests[0].Test() if len(requests) == 1 else testall(requests)
        return self.done

    def wait(self) -> None:
        """Return when all messages have arrived; end the job when the time is over.  A wait that
        has failed fails again.
        """
        if self._error is not None:
            raise copy(self._error)
        try:
            if not self.done:
                wait_until(self.test, self._what, self._ask)
        except BaseException as error:
            # Without its frames, which hold the network.
            self._error = copy(error) if isinstance(error, Exception) else None
            if self._interrupted is not None:
                self._interrupted(error)
            raise


class HaloMessages(ABC):
    """Moves rows along routes of one plan.

    Parameters
    ----------
    row_type : RowTypes
    """

    def __init__(self, row_type: RowTypes):
        self._row_type = row_type

    @abstractmethod
    def post(
        self, route: Route, send: MessageRows, recv: MessageRows, nbytes: int, kind: int = 0
    ) -> list[CommRequest]:
        """Send the rows `send`, of `nbytes` bytes each, in the order of the route, and receive
        `recv`.

        `kind` is a fingerprint of the rows, so that rows of different kinds do not match.
        """

    def free(self) -> None:
        """Free the communicator; collective."""


class PointToPoint(HaloMessages):
    """A message per neighbouring rank.

    No communicator of its own, so that random graphs cost nothing; tags keep the messages of
    different graphs and kinds apart.
    """

    def __init__(self, comm: Communicator, row_type: RowTypes, plan: Routes):
        super().__init__(row_type)
        self.comm = comm
        # Requests that are made once, and started at every mixing.
        self.persistent = not isinstance(comm, GroupComm)
        self._fingerprint = plan.topology.fingerprint()

    def post(
        self, route: Route, send: MessageRows, recv: MessageRows, nbytes: int, kind: int = 0
    ) -> list[CommRequest]:
        return self._begin(self.comm.Irecv, route.arriving, recv, nbytes, kind) + self._begin(
            self.comm.Isend, route.leaving, send, nbytes, kind
        )

    def bind_receives(
        self, route: Route, recv: MessageRows, nbytes: int, kind: int = 0
    ) -> list[MPI.Prequest]:
        """Return the persistent requests that receive."""
        comm = over_mpi(self.comm, "persistent requests")
        return self._begin(comm.Recv_init, route.arriving, recv, nbytes, kind)

    def bind_sends(
        self, route: Route, send: MessageRows, nbytes: int, kind: int = 0
    ) -> list[MPI.Prequest]:
        """Return the persistent requests that send."""
        comm = over_mpi(self.comm, "persistent requests")
        return self._begin(comm.Send_init, route.leaving, send, nbytes, kind)

    def _begin(
        self,
        begin: Callable[[Any, int, int], RequestT],
        parts: list[tuple[int, int, int]],
        rows: MessageRows,
        nbytes: int,
        kind: int,
    ) -> list[RequestT]:
        """Return a request for each rank and its rows."""
        row, tag = self._row_type(nbytes), (self._fingerprint + kind) % _TAGS
        return [
            begin([rows[start:stop], stop - start, row], rank, tag) for rank, start, stop in parts
        ]


class NeighborCollective(HaloMessages):
    """Neighbourhood collectives on a distributed-graph communicator of the ranks.

    Nonblocking ones only: they do not match persistent ones, and ranks may mix the same rows by
    `W(X)` and by `W.start(X)`.
    """

    def __init__(self, comm: MPI.Intracomm, row_type: RowTypes, route: Route):
        super().__init__(row_type)
        ends = route.sources.tolist(), route.dests.tolist()
        self.comm = made(comm, lambda: comm.Create_dist_graph_adjacent(*ends, reorder=False))

    def post(
        self, route: Route, send: MessageRows, recv: MessageRows, nbytes: int, kind: int = 0
    ) -> list[CommRequest]:
        row = self._row_type(nbytes)
        return [
            self.comm.Ineighbor_alltoallv(
                [send, (route.send_counts, route.send_starts), row],
                [recv, (route.recv_counts, route.recv_starts), row],
            )
        ]

    def free(self) -> None:
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()


def neighbor_collectives(
    comm: Communicator, row_type: RowTypes, plans: Sequence[Routes]
) -> list[HaloMessages]:
    """Return the messages of these plans, by neighbourhood collectives wherever these work;
    collective.

    Notes
    -----
    A small reduction, so that the ranks wait for one another with an end, and a communicator for
    each plan.
    """
    comm = over_mpi(comm, 'transport="neighbor"')
    routes = [plan.halo_route for plan in plans]
    works = np.array(
        [
            "Open MPI" not in library() or min(len(route.sources), len(route.dests)) > 0
            for route in routes
        ]
    )
    # Open MPI 5.0 with no neighbour on one side: the blocking allgather never returns, alltoall
    # reports MPI_ERR_TRUNCATE
    # (open-mpi/ompi#14452), and the persistent ones are refused (#12037, in 5.0.0).
    everywhere = Collectives(comm).minimum(works.astype(np.int8), "net.mixer")
    return [
        NeighborCollective(comm, row_type, route) if usable else PointToPoint(comm, row_type, plan)
        for plan, route, usable in zip(plans, routes, everywhere)
    ]


def waiting_for(sources: Sequence[int], where: str) -> str:
    """Describe what a rank waits for."""
    return f"messages of {ranks(sources)} in {where}"
