"""Simulators of agents on a queue of events: pairwise methods and push methods."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from ...solvers.internals import PairwiseSolver, Place, PushSolver
from .draws import GRADIENT, DelayOf, Delays, Event, Gradient, Losses, LossOf
from .result import AgentState, wake

Facts = dict[str, Any]  # what JSON can hold
Rows = dict[str, np.ndarray]


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
        self._held: list[Event] = []  # the first event after the last run
        self._in_flight: list[Any] = []

    def _due(self, until: float) -> Iterator[Event]:
        """The events up to the time `until`, included; what arrives before each of them, and
        then until `until`, is delivered.
        """
        held, self._held = self._held, []
        for event in chain(held, self._source):
            t = event[0]
            if t > until:
                self._held = [event]
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

    def pending(self) -> tuple[Facts, Rows]:
        """Return what a restart needs beside the states of the agents: what JSON can hold, and
        rows.
        """
        *heads, rows = zip(*self._in_flight) if self._in_flight else ((), ())
        facts = {
            "events": self.events,
            "gradients": self.gradients,
            "messages": self.messages,
            "averagings": [[i, j, number] for (i, j), number in self.averagings.items()],
            "staleness": list(self.staleness.items()),
            "in_flight": list(zip(*heads)),
            "delays": self.delay.state() if isinstance(self.delay, Delays) else {},
            "losses": self.lost.state() if isinstance(self.lost, Losses) else {},
        }
        return facts, {"in_flight": np.array(rows)}

    def recall(self, facts: Facts, rows: Rows) -> None:
        """Continue with what `pending` has returned."""
        self.events, self.gradients = facts["events"], facts["gradients"]
        self.messages = facts["messages"]
        self.averagings.update({(i, j): number for i, j, number in facts["averagings"]})
        self.staleness.update(dict(facts["staleness"]))
        self._in_flight = [(*head, row) for head, row in zip(facts["in_flight"], rows["in_flight"])]
        for faults, state in (self.delay, facts["delays"]), (self.lost, facts["losses"]):
            if isinstance(faults, (Delays, Losses)):
                faults.recall(state)
        # The source is a function of the seed, or a table, and its draws are not stored: it begins
        # anew, and the events that have happened are skipped by their number.  `_held` is one that
        # has not happened, and comes again.
        next(islice(self._source, self.events, self.events), None)


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
        # The loss is drawn before it is known whether an agent is busy: what agent i draws then
        # depends on its own meetings alone, so that runs with other delays lose the same ones.
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
            heapq.heappush(
                # The number of the event comes before the rows: of equal times the earlier event
                # is first, and rows are never compared.
                self._in_flight,
                (t + self.delay(i, j), self.events, i, j, (mine, theirs)),
            )

    def _deliver(self, until: float) -> None:
        """End the averagings that end up to the time `until`."""
        in_flight, solver = self._in_flight, self.solver
        while in_flight and in_flight[0][0] <= until:
            t, _, i, j, (mine, theirs) = heapq.heappop(in_flight)
            solver.average(self.states[i], mine, theirs, t)
            solver.average(self.states[j], theirs, mine, t)
            self._busy -= {i, j}

    def recall(self, facts: Facts, rows: Rows) -> None:
        super().recall(facts, rows)
        self._busy = {agent for _, _, i, j, _ in self._in_flight for agent in (i, j)}


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
        elif number > self._arrived.get((j, slot), 0):
            # Random delays let messages overtake each other: an older one is dropped, as on ranks,
            # where a slot holds the last row that its sender has published.
            self._arrived[j, slot] = number
            box[slot] = message
            self._ages[j][slot] = sent

    def _deliver(self, until: float) -> None:
        """Deliver the messages that arrive up to the time `until`."""
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= until:
            _, number, j, slot, sent, message = heapq.heappop(in_flight)
            self._arrive(sent, number, j, slot, message)

    def pending(self) -> tuple[Facts, Rows]:
        facts, rows = super().pending()
        held = [np.atleast_2d(box) for box in self._box if box is not None]
        facts |= {
            "sent": self._sent,
            "ages": self._ages,
            "arrived": [[*place, number] for place, number in self._arrived.items()],
            "boxes": [-1 if box is None else len(np.atleast_2d(box)) for box in self._box],
        }
        return facts, {**rows, "boxes": np.concatenate(held) if held else np.zeros((0, 0))}

    def recall(self, facts: Facts, rows: Rows) -> None:
        super().recall(facts, rows)
        self._sent, self._ages = facts["sent"], facts["ages"]
        self._arrived = {(j, slot): number for j, slot, number in facts["arrived"]}
        ends = np.cumsum([max(length, 0) for length in facts["boxes"]])
        for i, (length, end) in enumerate(zip(facts["boxes"], ends)):
            box = rows["boxes"][end - max(length, 0) : end]
            one = box[0] if self.solver.accumulates and length > 0 else box
            self._box[i] = None if length < 0 else one
