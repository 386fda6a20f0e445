"""The persistent exchange: requests that are made once for rows of one kind, and started at every mixing."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import numpy as np
from mpi4py import MPI

from ..runtime.memory import empty
from .messages import Messages, PointToPoint, free_requests
from .plan import Route

_PLACES = 4                                         # places of rows whose requests are kept


class PersistentExchange:
    """The halo of rows (m, d) of one dtype, in one exchange at a time.

    Point-to-point requests send rows from where they lie; those of the last few places are kept, since a program mixes the same few
    arrays over and over.  A collective, which all ranks must make in the same order, sends from a buffer.  Both match messages
    that are sent without persistent requests.

    Parameters
    ----------
    messages : Messages
    route : Route
    m, d : int
    places : int
        Rows of the halo.
    dtype : dtype
    """

    def __init__(self, messages: Messages, route: Route, m: int, d: int, places: int, dtype: np.dtype):
        self._messages, self._route, self._nbytes = messages, route, d * dtype.itemsize
        self.halo = empty((places, d), dtype)
        self._in_place = isinstance(messages, PointToPoint) and route.send is None
        count = m if route.send is None else len(route.send)
        self._sent = None if self._in_place else empty((count, d), dtype)
        self._receives: list[Any] = []
        self._sends: OrderedDict[int, list[Any]] = OrderedDict()
        self._requests: list[Any] = []
        if isinstance(messages, PointToPoint):
            self._receives = messages.bind_receives(route, self.halo, self._nbytes)
        if not self._in_place:
            self._requests = messages.bind(route, self._sent, self.halo, self._nbytes) if not isinstance(messages, PointToPoint) else \
                self._receives + messages.bind_sends(route, self._sent, self._nbytes)
            if isinstance(messages, PointToPoint):
                self._sends[0] = self._requests[len(self._receives):]
            else:
                self._receives = self._requests
        self._free = weakref.finalize(self, _free, self._receives, self._sends)

    def start(self, X: np.ndarray) -> list[Any]:
        """Begin to send the rows `X` and to receive `halo`: the requests, which have been started."""
        requests = self._requests
        if self._in_place:
            address = MPI.Get_address(X)
            sends = self._sends.get(address)
            if sends is None:
                sends = self._bind(X, address)
            requests = self._receives + sends
        elif self._route.send is None:
            np.copyto(self._sent, X)                # type: ignore[arg-type]
        else:
            X.take(self._route.send, 0, self._sent, "clip")
        MPI.Prequest.Startall(requests)
        return requests

    def _bind(self, X: np.ndarray, address: int) -> list[Any]:
        """Requests for rows at a place; they do not keep the array alive, and are only started for an array at that place."""
        if len(self._sends) >= _PLACES:
            free_requests(self._sends.popitem(last=False)[1])
        rows = _Place(address, self._nbytes)
        self._sends[address] = self._messages.bind_sends(self._route, rows, self._nbytes)  # type: ignore[attr-defined]
        return self._sends[address]

    def abandon(self) -> None:
        """Leave requests alone that are under way and will not be waited for."""
        self._free.detach()

    def free(self) -> None:
        """Free the requests, all of which have ended."""
        self._free()


class _Place:
    """Rows of so many bytes from an address on."""

    def __init__(self, address: int, nbytes: int):
        self._address, self._nbytes = address, nbytes

    def __getitem__(self, rows: slice) -> Any:
        return MPI.buffer.fromaddress(self._address + rows.start * self._nbytes, (rows.stop - rows.start) * self._nbytes)


def _free(receives: list[Any], sends: OrderedDict[int, list[Any]]) -> None:
    while sends:
        free_requests(sends.popitem()[1])
    free_requests(receives)
