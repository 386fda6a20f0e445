"""Rows between ranks: two ways to carry out a `Route`, and the memory that messages arrive in.

Small rows travel through buffers of the wire's own, which persistent requests are bound to once and for all: a copy in and a
copy out cost less than to set up a message.  Large rows are sent from where they lie, into memory that has been used before.
"""

from __future__ import annotations

import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from ..runtime.buffers import Buffers, RowTypes
from ..runtime.launch import library
from .plan import Plan, Route
from ..runtime.waiting import wait_until

SMALL = 1 << 14                                     # bytes of a rank's rows up to which they travel through a slot
_SLOTS = 2                                          # small mixings of one shape under way, each with buffers of its own
_SHAPES = 8                                         # shapes of small rows whose slots are kept
_FLYING = 16                                        # messages under way from which on forgotten ones are looked for
_TAGS = 16000                                       # tags below those of letters
_TURNS = 200                                        # looks at messages before a clock is read


class Flight:
    """The messages of one exchange; `sent` are the rows by their places on the wire."""

    __slots__ = ("__weakref__", "_arrived", "_requests", "_single", "_wire", "done", "sent", "slot")

    def __init__(self, requests: list[MPI.Request], sent: np.ndarray, arrived: np.ndarray, wire: Wire | None = None,
                 slot: Slot | None = None):
        self._requests, self.sent, self._arrived, self._wire, self.slot = requests, sent, arrived, wire, slot
        self._single = len(requests) == 1           # MPICH 5: Testall fails for persistent collectives, Test does not
        self.done = not requests and slot is None

    def test(self) -> bool:
        """Whether all have arrived; gives MPI the chance to make progress."""
        if not self.done and (self._requests[0].Test() if self._single else MPI.Request.Testall(self._requests)):
            self._land()
        return self.done

    def poll(self, turns: int) -> bool:
        """Whether all have arrived: looks so many times at most, and lets other processes run in between."""
        if not self.done:
            requests: Any = self._requests[0] if self._single else self._requests
            complete: Any = MPI.Request.Test if self._single else MPI.Request.Testall
            rest = os.sched_yield
            while not (complete(requests) or complete(requests) or complete(requests) or complete(requests)):
                turns -= 1
                if not turns:
                    return False
                rest()
            self._land()
        return True

    def _land(self) -> None:
        self.done = True
        if self.slot is not None:
            np.copyto(self._arrived, self.slot.recv)
            self.slot.flight = None
        elif self._wire is not None:
            self._wire.flying.discard(self)


class Slot:
    """Buffers of a wire, and the persistent requests that are bound to them."""

    def __init__(self, send: np.ndarray, recv: np.ndarray, requests: list[MPI.Prequest]):
        self.send, self.recv, self.requests = send, recv, requests
        self.flight: Flight | None = None


class Wire:
    """Carries the rows of one plan between ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    row_type : RowTypes
    buffers : Buffers
    small : int
        Bytes of a row up to which rows travel through slots; the same on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, row_type: RowTypes, buffers: Buffers, small: int):
        self.comm, self._row_type, self._buffers, self._small = comm, row_type, buffers, small
        self._slots: OrderedDict[Any, list[Any]] = OrderedDict()    # (route, shape of a row, dtype): [exchanges so far, slots]
        self._free_slots = weakref.finalize(self, _free, self._slots)
        self.flying: set[Flight] = set()

    def start(self, route: Route, rows: np.ndarray, arrived: np.ndarray) -> Flight:
        """Begin to send `rows` (m, ...) along a route, and to receive `arrived` (places, ...); both C-contiguous.

        Notes
        -----
        All ranks start their exchanges in the same order, and complete them in any.
        """
        nbytes = rows.itemsize * math.prod(rows.shape[1:])
        if nbytes <= self._small:
            slot = self._slot(route, rows, arrived, nbytes)
            if slot is not None:
                if route.send is None:
                    np.copyto(slot.send, rows)
                else:
                    rows.take(route.send, 0, slot.send, "clip")
                MPI.Prequest.Startall(slot.requests)
                if route.own is not None:
                    slot.recv[route.own[1]] = slot.send[route.own[0]]
                slot.flight = Flight(slot.requests, slot.send, arrived, slot=slot)  # type: ignore[arg-type]
                return slot.flight
        sent = rows
        if route.send is not None:
            sent = self._buffers.empty((len(route.send), *rows.shape[1:]), rows.dtype)
            rows.take(route.send, 0, sent, "clip")
        flight = Flight(self._post(route, sent, arrived, self._row_type(nbytes)), sent, arrived, self)
        if not flight.done:
            if len(self.flying) >= _FLYING:
                for other in list(self.flying):
                    other.test()
            self.flying.add(flight)
        return flight

    def _slot(self, route: Route, rows: np.ndarray, arrived: np.ndarray, nbytes: int) -> Slot | None:
        """The slot whose turn it is; None if the rows have to travel without one."""
        key = route, rows.shape[1:], rows.dtype
        turns = self._slots.get(key)
        if turns is None:
            if len(self._slots) >= _SHAPES:
                self._forget(self._slots.popitem(last=False)[1][1])
            turns = self._slots[key] = [0, []]
        elif len(self._slots) > 1:
            self._slots.move_to_end(key)
        turn, slots = turns
        turns[0] = turn + 1
        if turn < _SLOTS:
            places = len(rows) if route.send is None else len(route.send)
            send = self._buffers.aligned((places, *rows.shape[1:]), rows.dtype)
            recv = self._buffers.aligned(arrived.shape, arrived.dtype)
            slots.append(Slot(send, recv, self._bind(route, send, recv, self._row_type(nbytes))))
            return slots[-1]
        slot: Slot = slots[turn % _SLOTS]
        return slot if slot.flight is None or self._vacate(slot.flight) else None

    def _forget(self, slots: list[Slot]) -> None:
        for slot in slots:
            if slot.flight is not None:
                _land(slot.flight)
            for request in slot.requests:
                request.Free()

    def _bind(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Prequest]:
        raise NotImplementedError

    def _post(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Request]:
        raise NotImplementedError

    def _vacate(self, flight: Flight) -> bool:
        """Whether the slot of an earlier exchange can be had."""
        raise NotImplementedError

    def free(self) -> None:
        """Complete what is under way, and free all requests."""
        for _, slots in self._slots.values():
            self._forget(slots)
        self._slots.clear()


class Neighbor(Wire):
    """Neighbourhood collectives on the distributed-graph communicator of the ranks: `Neighbor_alltoallv_init` and
    `Ineighbor_alltoallv`.

    Requests of collectives are made and started in the same order on all ranks, so that slots take turns whoever has waited
    for what, and an exchange that is in the way is completed first.  A library without persistent collectives gets the
    nonblocking one for all rows.
    """

    def __init__(self, comm: MPI.Intracomm, route: Route, row_type: RowTypes, buffers: Buffers, small: int):
        graph = comm.Create_dist_graph_adjacent(route.sources.tolist(), route.dests.tolist(), reorder=False)
        super().__init__(graph, row_type, buffers, small if persistent_collectives() else -1)

    def _bind(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Prequest]:
        return [self.comm.Neighbor_alltoallv_init(*_arguments(route, send, recv, row))]  # type: ignore[attr-defined]

    def _post(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Request]:
        return [self.comm.Ineighbor_alltoallv(*_arguments(route, send, recv, row))]  # type: ignore[attr-defined]

    def _vacate(self, flight: Flight) -> bool:
        _land(flight)
        return True

    def free(self) -> None:
        super().free()
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()


class PointToPoint(Wire):
    """A message per neighbouring rank: `Send_init` and `Recv_init`, `Isend` and `Irecv`, which match each other in any mixture.

    No communicator of its own, so that random graphs cost nothing; tags keep the messages of different graphs apart.
    """

    def __init__(self, comm: MPI.Intracomm, plan: Plan, row_type: RowTypes, buffers: Buffers, small: int):
        super().__init__(comm, row_type, buffers, small)
        self.tag = plan.topology.fingerprint() % _TAGS

    def _bind(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Prequest]:
        return [self.comm.Recv_init([rows, len(rows), row], rank, self.tag) for rows, rank in arriving(route, recv)] \
            + [self.comm.Send_init([rows, len(rows), row], rank, self.tag) for rows, rank in leaving(route, send)]

    def _post(self, route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> list[MPI.Request]:
        return [self.comm.Irecv([rows, len(rows), row], rank, self.tag) for rows, rank in arriving(route, recv)] \
            + [self.comm.Isend([rows, len(rows), row], rank, self.tag) for rows, rank in leaving(route, send)]

    def _vacate(self, flight: Flight) -> bool:
        return flight.test()


def wire(comm: MPI.Intracomm, plan: Plan, transport: str, row_type: RowTypes, buffers: Buffers, periodic: bool) -> Wire:
    """The wire of a plan; `periodic` says that the plan will come again.

    Notes
    -----
    Collective if `transport` is "neighbor" and the plan is periodic; no communication otherwise.
    """
    if not periodic:                                # a communicator, or requests, would be made for one use
        return PointToPoint(comm, plan, row_type, buffers, -1)
    route, small = plan.halo_route, SMALL // -(-plan.partition.n // plan.partition.size)
    edge = not (len(route.sources) and len(route.dests))
    if transport == "neighbor" and not (_breaks_at_the_edge() and comm.allreduce(edge, MPI.LOR)):
        return Neighbor(comm, route, row_type, buffers, small)
    return PointToPoint(comm, plan, row_type, buffers, small)


def _breaks_at_the_edge() -> bool:
    """Whether neighbourhood collectives are known to fail where a rank has no neighbour on one side.

    Open MPI 5.0: the blocking allgather waits for ever, alltoall reports MPI_ERR_TRUNCATE (open-mpi/ompi#14452), and the
    persistent ones refuse to be made (#12037, in 5.0.0).
    """
    return "Open MPI" in library()


@cache
def persistent_collectives() -> bool:
    """Whether the library has them: MPI 4, and Open MPI 5."""
    graph = MPI.COMM_SELF.Create_dist_graph_adjacent([0], [0])
    send, recv = ([np.zeros(1), ([1], [0]), MPI.DOUBLE] for _ in range(2))
    try:
        graph.Neighbor_alltoallv_init(send, recv).Free()
    except (NotImplementedError, MPI.Exception):
        return False
    finally:
        graph.Free()
    return True


def _arguments(route: Route, send: np.ndarray, recv: np.ndarray, row: MPI.Datatype) -> tuple[list[Any], list[Any]]:
    return [send, (route.send_counts, route.send_starts), row], [recv, (route.recv_counts, route.recv_starts), row]


def arriving(route: Route, recv: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """The rows that come from each rank."""
    for rank, start, count in zip(route.sources.tolist(), route.recv_starts.tolist(), route.recv_counts.tolist()):
        yield recv[start:start + count], rank


def leaving(route: Route, send: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """The rows that go to each rank."""
    for rank, start, count in zip(route.dests.tolist(), route.send_starts.tolist(), route.send_counts.tolist()):
        yield send[start:start + count], rank


def _land(flight: Flight) -> None:
    if not flight.poll(_TURNS):
        wait_until(flight.test, "messages of its neighbours in an earlier mixing that nobody has waited for yet")


def _free(slots: OrderedDict[Any, list[Any]]) -> None:
    """Free the requests of a wire that was never closed, before MPI complains of them, as far as they are complete."""
    if not MPI.Is_finalized():
        for _, some in slots.values():
            for slot in some:
                if slot.flight is None or slot.flight.test():
                    for request in slot.requests:
                        request.Free()
    slots.clear()
