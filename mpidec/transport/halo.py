"""The halo exchange: rows between ranks in messages, after the ranks have been found to make the same exchange."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..checks.history import PastOperation
from ..runtime.context import Context
from ..runtime.memory import empty
from ..runtime.progress import abandon
from .messages import MessageRequest, Messages, messages, waiting_for
from .plan import Plan, Route

Kind = tuple[str, str, np.dtype]        # the operation, the shape of a row in words, its dtype
_UNDER_WAY = 16                                     # requests from which on those are looked for that have ended


class HaloExchange:
    """The messages of one phase, numbered, so that other ranks may ask for them.

    Parameters
    ----------
    context : Context
    over : str
        The phase in words.
    signature : int
        Its fingerprint.
    periodic : bool
        Whether the phase comes again.
    kinds : dict
        The kinds of the last exchanges over phases that do not come again.
    """

    def __init__(self, context: Context, over: str, signature: int, periodic: bool, kinds: dict[Any, Kind]):
        self._context, self._over, self._signature, self.periodic = context, over, signature, periodic
        self._kinds: dict[Any, Kind] = {} if periodic else kinds
        self._words: dict[Kind, tuple[str, str, frozenset[int], list[int]]] = {}
        self._messages: dict[Plan, Messages] = {}
        self._under_way: set[MessageRequest] = set()

    def start(self, plan: Plan, route: Route, rows: np.ndarray, arrived: np.ndarray, kind: Kind) -> MessageRequest:
        """Begin to send `rows` (m, ...) along a route and to receive `arrived` (places, ...); both C-contiguous."""
        sent = rows
        if route.send is not None:
            sent = empty((len(route.send), *rows.shape[1:]), rows.dtype)
            rows.take(route.send, 0, sent, "clip")
        if self._context.size == 1:
            return MessageRequest([], sent, arrived)
        ask = self.announce(plan, route, kind)
        nbytes = rows.itemsize * int(np.prod(rows.shape[1:]))
        requests = self.messages(plan).post(route, sent, arrived, nbytes)
        what = partial(waiting_for, route.sources.tolist(), kind[0] + self._over)
        request = MessageRequest(requests, sent, arrived, what, ask)
        if len(self._under_way) >= _UNDER_WAY:
            self._under_way = {some for some in self._under_way if not some.test()}
        if not request.done:
            self._under_way.add(request)            # a request that is dropped still reads and writes
        return request

    def messages(self, plan: Plan) -> Messages:
        """The messages of a plan, made when they are first used."""
        if plan not in self._messages:
            context = self._context
            self._messages[plan] = messages(context.comm, context.row_type, plan, context.transport, self.periodic)
        return self._messages[plan]

    def announce(self, plan: Plan, route: Route, kind: Kind) -> Callable[[], None]:
        """Number an exchange; unless it is of the same kind as the last one, find out first whether the neighbours agree.

        Returns the function that asks them where they are.
        """
        context, matching, before = self._context, self._context.matching, self._context.mixings
        op, signature, dests, sources = self.describe(kind, route)
        key = plan if self.periodic else None
        if context.transport == "neighbor" and self.periodic and plan not in self._messages:
            number = matching.agree(op, signature, dests)       # what follows is collective
        elif matching.check and self._kinds.get(key) != kind:
            number = matching.verify(op, signature, dests, sources)
        else:
            number = matching.register(PastOperation(op, "", signature, dests, ""))
        self._kinds[key] = kind
        return partial(matching.ask, sources, number, op, signature, before)

    def describe(self, kind: Kind, route: Route) -> tuple[str, str, frozenset[int], list[int]]:
        """What an exchange is called, what must be the same on both sides, and who receives and sends."""
        if kind not in self._words:
            signature = f"rows of {kind[1]} {kind[2]}, topology #{self._signature & 0xFFFFFFFF:08x}"
            self._words[kind] = kind[0] + self._over, signature, frozenset(route.dests.tolist()), route.sources.tolist()
        return self._words[kind]

    def last(self, plan: Plan) -> Kind | None:
        """The kind of the last exchange of a plan that comes again."""
        return self._kinds.get(plan) if self.periodic else None

    def free(self, out_of_step: bool = False) -> None:
        """Free the communicators; collective.  `out_of_step`: messages that will never be waited for may be under way."""
        while self._messages:
            some = self._messages.popitem()[1]
            if out_of_step:
                abandon((some, self._under_way))
            else:
                for request in self._under_way:
                    request.wait()
                some.free()
        self._under_way = set()
