"""Agents of push methods on the ranks of a network, in wall time."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Container
from typing import Any

import numpy as np

from ...comm.rma import Slots
from ...solvers.internals import PushSolver
from .result import LocalAgents, wake
from .runner import INTERRUPTED, FiniteGradient, MessageFaults, Runner, Termination, only

# Seconds: about a time slice of the scheduler; a short event.
_SLICE, _SHORT = 0.004, 1e-3
_MOST = 64


class PushRunner(Runner):
    """The local agents of a push method.

    Parameters
    ----------
    solver : PushSolver
    agents, slots, gradient, termination, faults, lo
        As for `Runner`.
    """

    def __init__(
        self,
        solver: PushSolver,
        agents: LocalAgents,
        slots: Slots,
        gradient: FiniteGradient | None,
        termination: Termination,
        faults: MessageFaults,
        lo: int,
    ):
        super().__init__(
            agents, slots, gradient, termination, ended=termination.reached, faults=faults, lo=lo
        )
        self.solver, self._message = solver, (agents.width, agents.dtype)
        self._absent: list[dict[int, list[int]]] = [{} for _ in agents.states]
        # Seconds in events, without waiting.
        self._work = 0.0
        self._latest = [np.zeros((len(some), agents.width), agents.dtype) for some in slots.senders]
        self._waiting: list[tuple[float, int, int, int, np.ndarray]] = []  # due, number, ...
        self._sent = 0
        self._released: dict[tuple[int, int], int] = {}  # numbers of messages
        slots.others = lambda rank, message: termination.receive(message)

    def run(
        self,
        interrupted: Callable[[], bool],
        between_events: Callable[[], None],
        watch: Callable[[], None],
    ) -> None:
        def after_turns() -> None:
            if not self.states:
                self.slots.poll()
            watch()

        if interrupted():
            self.end(INTERRUPTED)
        self._take_turns(interrupted, between_events, after_turns)
        self._release(float("inf"))

    def end(self, reason: int) -> None:
        self.termination.end(reason)

    def _event(self, place: int) -> None:
        self._wake(place)
        if self._waiting:
            self._release(time.monotonic())
        self.slots.poll()

    def send_again(self) -> None:
        """At the beginning of a resumed run: send the last messages, which the file does not
        hold.
        """
        for s, port, receivers in zip(self.states, self.slots.agents, self.slots.receivers):
            sent = self.solver.last_message(s) if s.k else None
            if sent is not None:
                port.send(np.asarray(sent, self._message[1]), [1.0] * len(receivers), None, False)

    def collect(self) -> None:
        for i, s in enumerate(self.states):
            self.solver.collect(s, self._received(i))

    def rescue(self, dead: Container[int]) -> None:
        """Take the mass that has arrived, and take back what was held back, what has not left this
        rank, and what lies in mailboxes of the dead on this node.
        """
        if not self.solver.accumulates or self.slots.closed:
            return
        for i, (s, port) in enumerate(zip(self.states, self.slots.agents)):
            if any(port.versions()):
                port.update(0.0, [1.0] * len(self.slots.senders[i]), True)
                self.solver.collect(s, self.slots.values[i])
            for k in self.slots.retractable(i, dead):
                row = np.empty(*self._message)
                if port.pop_outbox(k, row)[1]:
                    self.solver.collect(s, row)
        for _, _, i, _, row in self._waiting:
            self.solver.collect(self.states[i], row)
        self._waiting.clear()

    def _received(self, i: int) -> np.ndarray | None:
        """Return what has arrived."""
        port = self.slots.agents[i]
        found = port.versions()
        if self._work < _SHORT * self.termination.events:
            begun = time.monotonic()
            found = self._after_others(port, found, self._absent[i])
            self.idle += time.monotonic() - begun
        for transfers in found:
            self.staleness[transfers] += 1
        if self.solver.accumulates:
            if not any(found):
                return None
            port.update(0.0, [1.0] * len(self.slots.senders[i]), True)
            row: np.ndarray = self.slots.values[i]
            return row
        for k, row in enumerate(self._latest[i]):
            port.read(k, row)
        port.update(1.0, [None] * len(self.slots.senders[i]), False)  # counts transfers anew
        return self._latest[i]

    def _after_others(self, port: Any, found: list[int], absent: dict[int, list[int]]) -> list[int]:
        """Return how many messages each neighbour has sent; where events are short, give the
        neighbours a time slice for theirs.

        Otherwise a rank that shares its core would have hundreds of events in its time slice,
        without news.  A neighbour that does not send in the meantime is not waited for in the next
        1, 2, 4, ..., 64 events: nobody waits for a straggler.
        """
        awaited = []
        for k, transfers in enumerate(found):
            if transfers:
                absent.pop(k, None)
            elif k not in absent or not absent[k][0]:
                awaited.append(k)
            else:
                absent[k][0] -= 1
        until = time.monotonic() + _SLICE
        while not all(found[k] for k in awaited) and not self.termination.reason:
            if time.monotonic() > until:
                for k in awaited:
                    if not found[k]:
                        pause = min(2 * absent.get(k, (0, 0))[1], _MOST) or 1
                        absent[k] = [pause, pause]
                break
            os.sched_yield()
            self.slots.poll()
            found = port.versions()
        return found

    def _wake(self, i: int) -> None:
        received, (width, dtype) = self._received(i), self._message
        begun = time.perf_counter()
        sent = wake(
            self.solver,
            self.states[i],
            i,
            received=received,
            gradient=self.gradient,
            width=width,
            dtype=dtype,
        )
        self._work += time.perf_counter() - begun
        if sent is None:
            return
        receivers, port = self.slots.receivers[i], self.slots.agents[i]
        every = sent.ndim == 1 and self.faults.delay is None and self.faults.lost is None
        if every:
            port.send(sent, [1.0] * len(receivers), None, self.solver.accumulates)
            self.messages += len(receivers)
            return
        for k, j in enumerate(receivers):
            self.messages += 1
            if self.faults.lost is not None and self.faults.lost(self.lo + i):
                continue
            row = sent if sent.ndim == 1 else sent[k]
            self._sent += 1
            if self.faults.delay is None:
                self._send(i, k, self._sent, row)
            else:
                due = time.monotonic() + self.faults.delay(self.lo + i, j)
                heapq.heappush(self._waiting, (due, self._sent, i, k, row))

    def _release(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, number, i, k, row = heapq.heappop(self._waiting)
            self._send(i, k, number, row)

    def _send(self, i: int, k: int, number: int, row: np.ndarray) -> None:
        # A later message may have left before.
        if not self.solver.accumulates:
            if number < self._released.get((i, k), 0):
                return
            self._released[i, k] = number
        weights = only(k, self.slots.receivers[i])
        self.slots.agents[i].send(row, weights, None, self.solver.accumulates)
