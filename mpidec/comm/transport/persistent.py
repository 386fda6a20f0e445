"""The persistent exchange: requests that are made once for rows of one kind, and started at
every mixing.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from itertools import chain
from typing import Any, cast

import numpy as np

from ..runtime import MPI, empty
from .messages import PointToPoint
from .plan import Route

# Places of rows whose requests are kept.
_PLACES = 4


class PersistentExchange:
    """The halo of rows (m, d) of one dtype by persistent point-to-point requests, in one exchange
    at a time.

    Rows are sent from where they lie; the requests of the last few places are kept, since a program
    mixes the same few arrays over and over.  Rows that do not lie in the order of the route are
    sent from a buffer.  Persistent requests match messages that are sent without them.

    Parameters
    ----------
    messages : PointToPoint
    route : Route
    d : int
    places : int
        Rows of the halo.
    dtype : dtype
    kind : int
        Fingerprint of the rows; see `Messages.post`.

    Attributes
    ----------
    halo : array (places, d)
    free : callable
        Frees the requests, all of which have ended.
    """

    def __init__(
        self,
        messages: PointToPoint,
        route: Route,
        d: int,
        places: int,
        dtype: np.dtype,
        kind: int = 0,
    ):
        self._messages, self._route, self._kind = messages, route, kind
        self._nbytes = d * dtype.itemsize
        self.halo = empty((places, d), dtype)
        self._sent = None if route.send is None else empty((len(route.send), d), dtype)
        self._receives = messages.bind_receives(route, self.halo, self._nbytes, kind)
        self._sends: OrderedDict[int, list[Any]] = OrderedDict()
        self.free = weakref.finalize(self, _free, self._receives, self._sends)

    def start(self, X: np.ndarray) -> list[Any]:
        """Begin to send the rows `X` and to receive `halo`: the requests, which have been
        started.
        """
        sent = X
        if self._sent is not None:
            sent = self._sent
            X.take(cast(np.ndarray, self._route.send), 0, sent, "clip")
        address = MPI.Get_address(sent)
        sends = self._sends.get(address)
        requests = self._receives + (self._bind(address, len(sent)) if sends is None else sends)
        MPI.Prequest.Startall(requests)
        return requests

    def _bind(self, address: int, count: int) -> list[Any]:
        """Requests for rows at a place; they do not keep the array alive, and are only started
        for an array at that place.
        """
        if len(self._sends) >= _PLACES:
            for request in self._sends.popitem(last=False)[1]:
                request.Free()
        place = MPI.buffer.fromaddress(address, count * self._nbytes)
        rows = np.ndarray((count, self._nbytes), np.uint8, cast(memoryview, place))
        self._sends[address] = self._messages.bind_sends(
            self._route, rows, self._nbytes, self._kind
        )
        return self._sends[address]

    def abandon(self) -> None:
        """Abandon requests in progress for which no caller will wait."""
        self.free.detach()


def _free(receives: list[Any], sends: OrderedDict[int, list[Any]]) -> None:
    """Free requests that have ended; those of a finalized library are gone already."""
    if not MPI.Is_finalized():
        for request in chain(receives, *sends.values()):
            request.Free()
