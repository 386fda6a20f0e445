"""Simulators of agents on a queue of events: pairwise methods and push methods."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ...solvers.asynchronous import PairwiseSolver, Place, PushSolver
from .clocks import GRADIENT, DelayOf, Event, Gradient, LossOf
from .result import AgentState, wake


class EventSimulator(ABC):
    """Agents to which events happen, with messages on their way."""

    def __init__(
        self,
        states: Sequence[AgentState],
        events: Iterable[Event],
        gradient: Gradient | None,
        delay: DelayOf | None,
        lost: LossOf | None,
    ):
        self.states, self.gradient, self.delay, self.lost = states, gradient, delay, lost
        self.events = self.gradients = self.messages = 0
        self.averagings: dict[tuple[int, int], int] = defaultdict(int)
        self.staleness: dict[int, int] = defaultdict(int)
        self._source: Iterator[Event] = iter(events)
        self._in_flight: list[Any] = []

    def _due(self, until: float) -> Iterator[Event]:
        """The events up to the time `until`, included; what arrives before each of them, and
        then until `until`, is delivered.
        """
        for event in self._source:
            t = event[0]
            if t > until:
                self._source = chain([event], self._source)
                break
            if self._in_flight:
                self._deliver(t)
            self.events += 1
            yield event
        self._deliver(until)

    @abstractmethod
    def run(self, until: float) -> None:
        """All events up to the time `until`, included."""

    def finish(self) -> None:
        """End what is on its way."""
        self._deliver(np.inf)

    @abstractmethod
    def _deliver(self, until: float) -> None:
        """End what is on its way up to the time `until`."""


class PairwiseSimulator(EventSimulator):
    """Agents of a pairwise method.

    Parameters
    ----------
    solver : PairwiseSolver
        Prepared.
    states : sequence of State
    events : iterable of Event
        In the order of time.
    gradient : callable or None
        `gradient(i, x, k)`: the gradient of agent i at `x` for its own step k.
    delay : callable or None
        `delay(i, j)`: the time between the exchange of i and j and the end of their averaging;
        until then they are busy.
    lost : callable or None
        `lost(i)`: whether the next averaging that agent i begins fails, for both.
    """

    def __init__(
        self,
        solver: PairwiseSolver,
        states: Sequence[AgentState],
        events: Iterable[Event],
        gradient: Gradient | None,
        delay: DelayOf | None,
        lost: LossOf | None,
    ):
        super().__init__(states, events, gradient, delay, lost)
        self.solver = solver
        self._busy: set[int] = set()

    def run(self, until: float) -> None:
        states, gradient, solver = self.states, self.gradient, self.solver
        point, descend = solver.gradient_point, solver.descend
        for t, kind, i, j in self._due(until):
            if kind != GRADIENT:
                self._meet(t, i, j)
            elif gradient is not None:
                s = states[i]
                self.gradients += 1
                descend(s, gradient(i, point(s, t), s.k), t)

    def _meet(self, t: float, i: int, j: int) -> None:
        busy = self._busy
        if (self.lost is not None and self.lost(i)) or (busy and (i in busy or j in busy)):
            return
        solver, a, b = self.solver, self.states[i], self.states[j]
        mine, theirs = solver.offer(a, t), solver.offer(b, t)
        self.messages += 2
        self.averagings[(i, j) if i < j else (j, i)] += 1
        if self.delay is None:
            solver.average(a, mine, theirs, t)
            solver.average(b, theirs, mine, t)
        else:
            busy |= {i, j}
            heapq.heappush(self._in_flight, (t + self.delay(i, j), self.events, i, j, mine, theirs))

    def _deliver(self, until: float) -> None:
        """End the averagings that end up to the time `until`."""
        in_flight, solver = self._in_flight, self.solver
        while in_flight and in_flight[0][0] <= until:
            t, _, i, j, mine, theirs = heapq.heappop(in_flight)
            solver.average(self.states[i], mine, theirs, t)
            solver.average(self.states[j], theirs, mine, t)
            self._busy -= {i, j}


class PushSimulator(EventSimulator):
    """Agents of a push method.

    Parameters
    ----------
    solver : PushSolver
    states, events, gradient
        As for `PairwiseSimulator`.
    places : sequence of Place
        Senders and receivers of each agent.
    d : int
        Length of a row.
    delay : callable or None
        `delay(i, j)`: the time that the next message from i to j is on its way.
    lost : callable or None
        `lost(i)`: whether the next message of agent i is lost.
    """

    def __init__(
        self,
        solver: PushSolver,
        states: Sequence[AgentState],
        events: Iterable[Event],
        gradient: Gradient | None,
        places: Sequence[Place],
        d: int,
        delay: DelayOf | None,
        lost: LossOf | None,
    ):
        super().__init__(states, events, gradient, delay, lost)
        self.solver = solver
        self._sent = 0
        slots = [{j: slot for slot, j in enumerate(place.senders)} for place in places]
        self._receivers = [
            [(j, slots[j][i]) for j in place.receivers] for i, place in enumerate(places)
        ]
        self._width, self._dtype = solver.width(d), states[0].x.dtype
        self._box: list[Any] = [
            None if solver.accumulates else np.zeros((len(place.senders), self._width), self._dtype)
            for place in places
        ]
        self._ages: list[list[float]] = [
            [] if solver.accumulates else [np.nan] * len(place.senders) for place in places
        ]
        self._arrived: dict[
            tuple[int, int], int
        ] = {}  # the number of the message that is in a slot

    def run(self, until: float) -> None:
        for t, _, i, _ in self._due(until):
            self._wake(t, i)

    def finish(self) -> None:
        """Deliver the messages that are on their way, and let the agents take them."""
        super().finish()
        for i, s in enumerate(self.states):
            self.solver.collect(s, self._box[i])
            if self.solver.accumulates:
                self._box[i] = None

    def _wake(self, t: float, i: int) -> None:
        solver, s, gradient, ages = self.solver, self.states[i], self.gradient, self._ages[i]
        for sent in ages:
            if sent == sent:  # NaN: nothing has arrived yet
                self.staleness[int(t - sent)] += 1
        received = self._box[i]
        if solver.accumulates:
            self._box[i] = None
            ages.clear()
        self.gradients += gradient is not None
        messages = wake(
            solver, s, i, received=received, gradient=gradient, width=self._width, dtype=self._dtype
        )
        if messages is not None:
            self._send(t, i, messages)

    def _send(self, t: float, i: int, messages: np.ndarray) -> None:
        one = messages.ndim == 1
        for place, (j, slot) in enumerate(self._receivers[i]):
            self.messages += 1
            if self.lost is not None and self.lost(i):
                continue
            row = messages if one else messages[place]
            self._sent += 1
            if self.delay is None:
                self._arrive(t, self._sent, j, slot, row)
            else:
                heapq.heappush(self._in_flight, (t + self.delay(i, j), self._sent, j, slot, t, row))

    def _arrive(self, sent: float, number: int, j: int, slot: int, message: np.ndarray) -> None:
        box = self._box[j]
        if self.solver.accumulates:
            self._box[j] = message if box is None else box + message
            self._ages[j].append(sent)
        elif number > self._arrived.get(
            (j, slot), 0
        ):  # else it is older than the one that has arrived
            self._arrived[j, slot] = number
            box[slot] = message
            self._ages[j][slot] = sent

    def _deliver(self, until: float) -> None:
        """Deliver the messages that arrive up to the time `until`."""
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= until:
            _, number, j, slot, sent, message = heapq.heappop(in_flight)
            self._arrive(sent, number, j, slot, message)
