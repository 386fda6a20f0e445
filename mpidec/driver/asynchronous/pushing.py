"""Agents of push methods on the ranks of a network, in wall time."""

from __future__ import annotations

import heapq
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .ending import DIVERGED, INTERRUPTED, PAUSED, Ending
from .finite import FiniteGradient
from .result import message
from .snapshots import Snapshots

_SLICE, _SHORT = 0.004, 1e-3  # seconds: about a time slice of the scheduler; a short event
_MOST = 64


class Pushing:
    """The local agents of a push method, which take turns.

    Parameters
    ----------
    solver : PushSolver
    states : sequence of State
        Of the local agents.
    slots : Slots
        Of rows of the solver's width.
    gradient : FiniteGradient or None
    ending : Ending
    snapshots : Snapshots
    pause : sequence of float
        Seconds that each local agent sleeps at each event.
    delay : callable or None
        `delay(i, j)`: seconds before the next message of agent i leaves.
    lost : callable or None
        `lost(i)`: whether the next message of agent i is lost.
    lo : int
        The first local agent.
    """

    def __init__(
        self,
        solver: Any,
        states: Sequence[Any],
        slots: Any,
        gradient: FiniteGradient | None,
        ending: Ending,
        snapshots: Snapshots,
        pause: Sequence[float],
        delay: Callable[[int, int], float] | None,
        lost: Callable[[int], bool] | None,
        lo: int,
    ):
        self.solver, self.states, self.slots, self.gradient, self.ending = (
            solver,
            states,
            slots,
            gradient,
            ending,
        )
        self.snapshots, self.pause, self.delay, self.lost, self.lo = (
            snapshots,
            pause,
            delay,
            lost,
            lo,
        )
        self.messages = 0
        self.idle = self.total = 0.0
        self.staleness: dict[int, int] = defaultdict(int)
        self._turn = 0  # the local agent whose turn it is
        self._absent: list[dict[int, list[int]]] = [{} for _ in states]
        self._work = 0.0  # seconds in events, without waiting
        self._latest = [np.zeros((len(some), slots.values.shape[1])) for some in slots.senders]
        self._waiting: list[tuple[float, int, int, int, np.ndarray]] = []
        self._sent = 0
        self._released: dict[tuple[int, int], float] = {}

    def pairs(self) -> list[tuple[int, int, int]]:
        """Averagings with other agents: none."""
        return []

    def run(
        self,
        interrupted: Callable[[], bool],
        between_events: Callable[[], None],
        watch: Callable[[], None],
    ) -> None:
        """All events, until the run has ended, or pauses.

        Parameters
        ----------
        interrupted : callable () -> bool
            Whether Ctrl-C was pressed.
        between_events : callable () -> None
            Called after each event.
        watch : callable () -> None
            Raises what another rank has raised.
        """
        ending, slots = self.ending, self.slots
        if interrupted():
            ending.end(INTERRUPTED)
        while not ending.reached():
            for i in range(self._turn, len(self.states)):
                self._turn = i + 1
                if self.pause[i]:
                    time.sleep(self.pause[i])
                self._wake(i)
                ending.count()
                self._release(time.monotonic())
                slots.poll()
                between_events()
                if self.gradient is not None and self.gradient.found is not None:
                    ending.end(DIVERGED)
                if ending.reached():
                    break
            self._turn %= max(len(self.states), 1)
            watch()
            if interrupted():
                ending.end(INTERRUPTED)
            if not self.states:
                slots.poll()
                between_events()
                time.sleep(1e-3)
        self._release(float("inf"))

    def rest(self) -> None:
        """End this part of the run on all ranks; between two events."""
        self.ending.end(PAUSED)

    def send_again(self) -> None:
        """At the beginning of a resumed run: send the last messages, which the file does not hold."""
        for s, port, receivers in zip(self.states, self.slots.ports, self.slots.receivers):
            sent = self.solver.last_message(s) if s.k else None
            if sent is not None:
                port.send(sent, [1.0] * len(receivers), None, False)

    def collect(self) -> None:
        """Take what has arrived when nothing is under way any more."""
        for i, s in enumerate(self.states):
            self.solver.collect(s, self._received(i))

    def _received(self, i: int) -> np.ndarray | None:
        """What has arrived."""
        port = self.slots.ports[i]
        found = port.versions()
        if self._work < _SHORT * self.ending.events:
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
        """Where events are short, let the neighbours have theirs.

        Otherwise a rank that shares its core would have hundreds of events in its time slice, without news.  A neighbour that does
        not send in the meantime is not waited for in the next 1, 2, 4, ..., 64 events: nobody waits for a straggler.
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
        while not all(found[k] for k in awaited) and not self.ending.reason:
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
        s, gradient = self.states[i], self.gradient
        received = self._received(i)
        begun = time.perf_counter()
        if gradient is None:
            sent = self.solver.wake(s, received, None)
        else:
            k = s.k
            sent = self.solver.wake(s, received, lambda x: gradient(i, x, k))
        self._work += time.perf_counter() - begun
        if sent is None:
            return
        sent = message(self.solver, sent, self.slots.values.shape[1])
        receivers, port = self.slots.receivers[i], self.slots.ports[i]
        every = sent.ndim == 1 and self.delay is None and self.lost is None
        if every:
            port.send(sent, [1.0] * len(receivers), None, self.solver.accumulates)
            self.messages += len(receivers)
            return
        for k, j in enumerate(receivers):
            self.messages += 1
            if self.lost is not None and self.lost(self.lo + i):
                continue
            row = sent if sent.ndim == 1 else sent[k]
            if self.delay is None:
                self._send(i, k, row)
            else:
                self._sent += 1
                due = time.monotonic() + self.delay(self.lo + i, j)
                heapq.heappush(self._waiting, (due, self._sent, i, k, row))

    def _release(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, _, i, k, row = heapq.heappop(self._waiting)
            self._send(i, k, row)

    def _send(self, i: int, k: int, row: np.ndarray) -> None:
        if not self.solver.accumulates:  # a later message may have left before
            if row[-1] < self._released.get((i, k), 0.0):
                return
            self._released[i, k] = float(row[-1])
        weights: list[float | None] = [None] * len(self.slots.receivers[i])
        weights[k] = 1.0
        self.slots.ports[i].send(row, weights, None, self.solver.accumulates)
