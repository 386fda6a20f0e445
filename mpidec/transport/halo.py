"""The messages of one phase: sent when it is clear that the neighbours do the same, and numbered, so that others may ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks.history import PastOperation
from .plan import Plan, Route
from .messages import Flight, Wire
from ..runtime.waiting import Exchange, abandon

if TYPE_CHECKING:
    from ..mixing.network import Network

Kind = tuple[str, tuple[Any, ...], np.dtype]        # what is done, the shape of a row, its dtype


class Courier:
    """Carries rows between ranks in one phase.

    Parameters
    ----------
    net : Network
    over : str
        The phase in words.
    mark : int
        Its fingerprint.
    periodic : bool
        Whether the phase comes again; the kinds of what goes over others are remembered in `kinds`.
    kinds : dict
    """

    def __init__(self, net: Network, over: str, mark: int, periodic: bool, kinds: dict[Any, Kind]):
        self._net, self._over, self._mark, self._periodic = net, over, mark, periodic
        self._kinds: dict[Any, Kind] = {} if periodic else kinds
        self._marks: dict[Kind, tuple[str, str, frozenset[int], list[int]]] = {}
        self.wires: dict[Plan, Wire] = {}

    def exchange(self, plan: Plan, route: Route, rows: np.ndarray, arrived: np.ndarray, kind: Kind) -> Exchange:
        """Begin to move rows along a route, once it is clear that the neighbours do the same."""
        if self._net.size == 1:
            sent = rows if route.send is None else rows[route.send]
            return Exchange(Flight([], sent, arrived), kind[0], sent)
        ask = self.announce(plan, route, kind)
        flight = self.wire(plan).start(route, rows, arrived)
        return Exchange(flight, kind[0] + self._over, flight.sent, ask, route.sources.tolist())

    def wire(self, plan: Plan) -> Wire:
        """The wire of a plan, made when it is first used."""
        if plan not in self.wires:
            self.wires[plan] = self._net.wire(plan, self._periodic)
        return self.wires[plan]

    def announce(self, plan: Plan, route: Route, kind: Kind) -> Callable[[], None]:
        """Number an exchange; unless it is of the same kind as the last one, find out first whether the neighbours agree.

        Returns what is to be asked when they do not come.
        """
        net, periodic = self._net, self._periodic
        matching, before = net.matching, net._begun()
        op, mark, dests, sources = self.words(kind, route)
        kinds, key = self._kinds, plan if periodic else None
        if net.transport == "neighbor" and periodic and plan not in self.wires:
            number = matching.agree(op, mark, dests)      # what follows is collective
        elif net.check and kinds.get(key) != kind:
            number = matching.verify(op, mark, dests, sources)
        else:
            number = matching.register(PastOperation(op, "", mark, dests, ""))
        kinds[key] = kind
        return partial(matching.ask, sources, number, op, mark, before)

    def words(self, kind: Kind, route: Route) -> tuple[str, str, frozenset[int], list[int]]:
        """What an exchange is called, what must be the same on both sides, and who sends to whom."""
        if kind not in self._marks:
            mark = f"rows of {' x '.join(map(str, kind[1]))} {kind[2]}, topology #{self._mark & 0xFFFFFFFF:08x}"
            self._marks[kind] = kind[0] + self._over, mark, frozenset(route.dests.tolist()), route.sources.tolist()
        return self._marks[kind]

    def last(self, plan: Plan) -> Kind | None:
        """What was exchanged last over the wire of a plan that comes again."""
        return self._kinds.get(plan) if self._periodic else None

    def free(self) -> None:
        """Free the communicator; collective."""
        while self.wires:
            wire = self.wires.popitem()[1]
            if self._net.out_of_step:
                abandon(wire)
            else:
                wire.free()
