"""Rows between ranks: two ways to carry out a `Route`."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from mpi4py import MPI

from .plan import Route


class RowTypes:
    """MPI datatypes 'one row of so many bytes': counts are then counts of rows, and stay below 2**31."""

    def __init__(self) -> None:
        self._types: dict[int, MPI.Datatype] = {}

    def __call__(self, nbytes: int) -> MPI.Datatype:
        if nbytes not in self._types:
            self._types[nbytes] = MPI.BYTE.Create_contiguous(nbytes).Commit()
        return self._types[nbytes]

    def free(self) -> None:
        while self._types:
            self._types.popitem()[1].Free()


class Transport(Protocol):
    """Carries the rows of a route between ranks; `start` returns the requests to wait for."""

    def start(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Request]: ...

    def free(self) -> None: ...


class Neighbor:
    """A nonblocking neighbourhood collective on the distributed-graph communicator of the ranks.

    `Ineighbor_alltoallv` is used because it is the one that both MPICH and Open MPI carry out rightly when a rank has no
    neighbour on one side.
    """

    def __init__(self, comm: MPI.Intracomm, route: Route):
        self._comm = comm.Create_dist_graph_adjacent(route.sources.tolist(), route.dests.tolist(), reorder=False)

    def start(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Request]:
        return [self._comm.Ineighbor_alltoallv([send, (route.send_counts, route.send_starts), row],
                                               [recv, (route.recv_counts, route.recv_starts), row])]

    def free(self) -> None:
        self._comm.Free()


class PointToPoint:
    """One `Irecv` and one `Isend` per neighbouring rank; no communicator of its own, so that random graphs cost nothing."""

    def __init__(self, comm: MPI.Intracomm):
        self._comm = comm

    def start(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Request]:
        arriving = zip(route.sources.tolist(), route.recv_starts.tolist(), route.recv_counts.tolist())
        leaving = zip(route.dests.tolist(), route.send_starts.tolist(), route.send_counts.tolist())
        return [self._comm.Irecv([recv[start:start + count], count, row], rank) for rank, start, count in arriving] \
            + [self._comm.Isend([send[start:start + count], count, row], rank) for rank, start, count in leaving]

    def free(self) -> None:
        pass
