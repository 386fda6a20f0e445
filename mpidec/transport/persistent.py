"""The common mixing by messages, prepared: requests that are bound to where the rows lie, and a sum that knows its arguments."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from mpi4py import MPI

from ..checks.history import PastOperation
from ..runtime.buffers import Buffers
from .messages import PointToPoint, arriving, leaving
from ..runtime.waiting import CROWDED, abandon, ranks, wait_until

if TYPE_CHECKING:
    from ..mixing.phase import Phase

_PLACES = 4                                         # places of rows whose requests are kept
_TURNS, _SPINS = 1000, 100                          # looks at messages before a clock is read, and before others may run


class Lane:
    """Mixings of rows (m, d) of float64 by point-to-point messages, one at a time.

    Persistent requests send the rows from where they lie; those of the last few places are kept, since a program mixes the same
    few arrays over and over.  They match the messages of `PointToPoint` in any mixture.

    Parameters
    ----------
    phase : Phase
    wire : PointToPoint
    d : int
    """

    def __init__(self, phase: Phase, wire: PointToPoint, d: int):
        plan, dtype = phase.plan, np.dtype(np.float64)
        route = plan.halo_route
        self._phase, self._comm, self._tag, self._row = phase, wire.comm, wire.tag, phase.net.row_type(8 * d)
        self._route = route
        self.kind = ("W(X)", (d,), dtype)
        op, mark, dests, self._sources = phase.courier.words(self.kind, route)
        self._past = PastOperation(op, "", mark, dests, "")
        self._halo = Buffers.aligned((len(plan.halo), d), dtype)
        self._sent = None if route.send is None else Buffers.aligned((len(route.send), d), dtype)
        self._arriving = [self._comm.Recv_init([rows, len(rows), self._row], rank, self._tag)
                          for rows, rank in arriving(route, self._halo)]
        self._requests: OrderedDict[int, list[Any]] = OrderedDict()
        self._free = weakref.finalize(self, _free, self._arriving, self._requests)

    def mix(self, X: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, after the neighbours have been found to do the same."""
        phase = self._phase
        number = phase.net.matching.register(self._past)
        phase.count(8 * X.shape[1])
        sent = X if self._sent is None else X.take(cast(np.ndarray, self._route.send), 0, out=self._sent, mode="clip")
        requests = self._requests.get(MPI.Get_address(sent)) or self._bind(sent)
        MPI.Prequest.Startall(requests)
        complete, turns = MPI.Request.Testall, _TURNS
        while not (complete(requests) or complete(requests)):
            turns -= 1
            if not turns:
                self._wait(requests, number)
                break
            if CROWDED or turns < _TURNS - _SPINS:
                os.sched_yield()
        return phase.average(X, self._halo, out)

    def _wait(self, requests: list[Any], number: int) -> None:
        op, _, mark, _, _ = self._past
        matching = self._phase.net.matching
        who = f"messages of {ranks(self._sources)} in {op}"
        try:
            wait_until(lambda: MPI.Request.Testall(requests), who, lambda: matching.ask(self._sources, number, op, mark, 0))
        except BaseException:
            self._free.detach()
            abandon(self)                           # its requests are under way
            raise

    def _bind(self, sent: np.ndarray) -> list[Any]:
        """Requests for rows at a place; they do not keep the array alive, and are started for an array at that place alone."""
        address = MPI.Get_address(sent)
        if len(self._requests) >= _PLACES:
            for request in self._requests.popitem(last=False)[1][len(self._arriving):]:
                request.Free()
        size = self._row.Get_size()
        requests = list(self._arriving)
        for rows, rank in leaving(self._route, sent):
            place = MPI.buffer.fromaddress(MPI.Get_address(rows), len(rows) * size)
            requests.append(self._comm.Send_init([place, len(rows), self._row], rank, self._tag))
        self._requests[address] = requests
        return requests

    def free(self) -> None:
        """Free the requests."""
        self._free()


def _free(some: list[Any], sending: OrderedDict[int, list[Any]]) -> None:
    if not MPI.Is_finalized():
        for requests in [some, *(requests[len(some):] for requests in sending.values())]:
            for request in requests:
                request.Free()
    some.clear()
    sending.clear()
