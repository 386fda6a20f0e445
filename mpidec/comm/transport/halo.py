"""The halo exchange: rows between ranks in messages, after a check that the ranks make the
same exchange.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from ...exceptions import RankMismatchError
from ..checks import PastOperation
from ..runtime import Context, abandon, empty
from .messages import HaloMessages, MessageRequest, NeighborCollective, PointToPoint, waiting_for
from .plan import Route, Routes

Ending = Literal["complete", "left", "broken"]
# The operation, the shape of a row as text, its dtype.
Kind = tuple[str, str, np.dtype]
Kinds = dict["Routes | None", set[Kind]]  # of a step; of all steps that do not come again
# Requests from which on those are looked for that have ended.
_UNDER_WAY = 16
_BRIEFLY = 0.1  # seconds


class HaloExchange:
    """The messages of one phase, numbered, so that other ranks may ask for them.

    Parameters
    ----------
    context : Context
    over : str
        Text of the phase, for messages.
    signature : int
        Its fingerprint.
    periodic : bool
        Whether the phase comes again.
    kinds : dict
        The kinds of exchanges over phases that do not come again.
    """

    def __init__(
        self,
        context: Context,
        over: str,
        signature: int,
        periodic: bool,
        kinds: Kinds,
    ):
        self._context, self._over, self._signature = context, over, signature
        self.periodic = periodic
        self._kinds: Kinds = {} if periodic else kinds
        self._calls: dict[Kind, tuple[PastOperation, list[int]]] = {}
        self._messages: dict[Routes, HaloMessages] = {}
        self._under_way: set[MessageRequest] = set()

    def start(
        self, plan: Routes, route: Route, rows: np.ndarray, arrived: np.ndarray, kind: Kind
    ) -> MessageRequest:
        """Begin to send `rows` (m, ...) along a route and to receive `arrived` (places, ...);
        both C-contiguous.
        """
        sent = rows
        if route.send is not None:
            sent = empty((len(route.send), *rows.shape[1:]), rows.dtype)
            rows.take(route.send, 0, sent, "clip")
        if self._context.size == 1:
            return MessageRequest([], sent, arrived)
        ask = self.announce(plan, route, kind)
        nbytes = rows.itemsize * int(np.prod(rows.shape[1:]))
        where = kind[0] + self._over
        what = partial(waiting_for, route.sources.tolist(), where)
        try:
            requests = self.messages(plan).post(route, sent, arrived, nbytes, fingerprint(kind))
            request = MessageRequest(
                requests, sent, arrived, what, ask, partial(self._interrupted, where)
            )
            if len(self._under_way) >= _UNDER_WAY:
                self._under_way = {some for some in self._under_way if not some.test()}
            if not request.done:
                # A request that is dropped still reads and writes.
                self._under_way.add(request)
            return request
        except BaseException:  # of a signal handler, amid the posts
            abandon((sent, arrived))
            raise

    def messages(self, plan: Routes) -> HaloMessages:
        """Return the messages of a plan: point to point, unless `use` has set others."""
        if plan not in self._messages:
            self._messages[plan] = PointToPoint(self._context.comm, self._context.row_type, plan)
        return self._messages[plan]

    def use(self, plan: Routes, messages: HaloMessages) -> None:
        """Exchange the rows of a plan by these messages."""
        self._messages[plan] = messages

    def announce(self, plan: Routes, route: Route, kind: Kind) -> Callable[[], None]:
        """Number an exchange; before the first one of a kind, find out whether the neighbours make
        the same one.

        Returns the function that asks them where they are.
        """
        matching, before = self._context.matching, self._context.mixings
        call, sources = self.describe(kind, route)
        known = self._kinds.setdefault(plan if self.periodic else None, set())
        if matching.check and kind not in known:
            number = matching.verify(call.op, call.signature, call.receivers, sources)
        else:
            number = matching.register(call)
        # No tags tell the kinds apart: any change is verified.
        if isinstance(self._messages.get(plan), NeighborCollective):
            known.clear()
        known.add(kind)
        return partial(matching.ask, sources, number, call.op, call.signature, before)

    def describe(self, kind: Kind, route: Route) -> tuple[PastOperation, list[int]]:
        """Return what an exchange is called, what must be the same on both sides, and who receives;
        who sends.
        """
        if kind not in self._calls:
            signature = f"rows of {kind[1]} {kind[2]}, topology #{self._signature & 0xFFFFFFFF:08x}"
            dests = frozenset(route.dests.tolist())
            call = PastOperation(kind[0] + self._over, "", signature, dests, "")
            self._calls[kind] = call, route.sources.tolist()
        return self._calls[kind]

    def known(self, plan: Routes, kind: Kind) -> bool:
        """Return whether an exchange need not be announced."""
        return self.periodic and kind in self._kinds.get(plan, ())

    def _interrupted(self, where: str, error: BaseException) -> None:
        if not isinstance(error, RankMismatchError):
            self._context.matching.interrupt(where, error)

    def free(self, ends: Ending = "complete") -> None:
        """Free the communicators; collective.

        `ends` says what becomes of messages under way: they "complete"; all ranks have "left" them,
        and those that do not complete soon are abandoned; or the ranks are "broken" out of step,
        and communicators with collectives are kept, too.
        """
        unfinished = []
        for request in self._under_way:
            if ends == "complete":
                request.wait()
            elif not _completes(request):
                unfinished.append(request)
        self._under_way = set()
        for some in self._messages.values():
            if ends == "complete" or (
                isinstance(some, PointToPoint) or (ends == "left" and not unfinished)
            ):
                some.free()
            else:
                abandon(some)
        for request in unfinished:
            abandon(request)
        self._messages.clear()


def fingerprint(kind: Kind) -> int:
    """Return a number for a kind of rows, the same on all ranks."""
    return zlib.crc32(repr((kind[0], kind[1], kind[2].str)).encode())


def _completes(request: MessageRequest) -> bool:
    """Return whether a request will end without further calls of other ranks, which have made
    theirs.
    """
    until = time.monotonic() + _BRIEFLY
    while not request.test() and time.monotonic() < until:
        os.sched_yield()
    return request.done
