"""Agents on the ranks of a network: what pairwise and push methods share, the faults that are
injected, and how a run ends.
"""

from __future__ import annotations

import numbers
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np

from ...comm.rma import Kind, Message, Slots
from ...comm.runtime import MPI, on_all_ranks
from ...solvers.internals import PairwiseSolver, PushSolver
from ..plan import Plan
from .draws import DelayOf, Gradient, LossOf, delays, losses
from .prepared import checked_rates, pauses
from .result import LocalAgents

COUNT, END = Kind.OTHER, Kind.OTHER + 1
# why a run, or a part of it, has ended: the largest of several reasons counts
PAUSED, ENOUGH, REACHED, INTERRUPTED, DIVERGED = 1, 2, 3, 4, 5
_REASONS = 8
_EVENTS, _ENDED = 0, 1  # words of a rank
# Seconds between two messages of a rank about the number of its events, for so many ranks of other
# nodes: what rank 0 receives does not grow with their number.
_SECONDS, _RANKS = 0.005, 64


class Termination:
    """Distributed termination of an asynchronous run, or of a part of it, without a barrier: the
    events of all agents, and the end.

    Each rank counts its events in a word that the ranks of its node read.  Ranks elsewhere send
    their number to rank 0, at most 200 times a second, more rarely where they are many, which sends
    them the end.  A pause ends a part of the run; `go_on` begins the next one.

    Parameters
    ----------
    slots : Slots
    rank, size : int
    goal : int
        The number of events of all agents after which the run ends.
    """

    def __init__(self, slots: Slots, rank: int, size: int, goal: int):
        self._slots, self._rank, self._size, self._goal = slots, rank, size, goal
        self._mine = slots.control_words[rank][0]
        self._near = [board[0] for board in slots.control_words.values()]
        self._single = len(self._near) == size
        self._far = [other for other in range(size) if other not in slots.control_words]
        self._counts = dict.fromkeys(self._far, 0)
        self._next, self._part = 0.0, 0
        self._seconds = _SECONDS * max(1.0, size / _RANKS)
        if goal <= 0:
            self._mine[_ENDED] = ENOUGH
        self.events = 0  # of this rank

    @property
    def total(self) -> int:
        """Events of all ranks, as far as this one knows; rank 0 knows those of other nodes a few
        milliseconds later.
        """
        return sum(int(words[_EVENTS]) for words in self._near) + sum(self._counts.values())

    def count(self, events: int = 1) -> None:
        """Add events of this rank."""
        self.events += events
        self._mine[_EVENTS] = self.events

    def end(self, reason: int = ENOUGH) -> None:
        """End the run, or this part of it, on all ranks; the largest of several reasons counts."""
        if reason > self._mine[_ENDED]:
            self._mine[_ENDED] = reason
            for rank in self._far:
                self._slots.tell(rank, END, self._rank, rank, _REASONS * self._part + reason)

    def go_on(self) -> None:
        """Begin another part after a pause; all ranks have ended the last one, and none begins
        the next one yet.
        """
        self._mine[_ENDED] = 0
        self._part += 1

    def receive(self, message: Message) -> None:
        """Take note of what another rank has counted, or that the run has ended."""
        if message.kind == COUNT:
            self._counts[message.source] = message.number
        elif message.number // _REASONS == self._part:  # else a pause that is over
            self._mine[_ENDED] = max(int(self._mine[_ENDED]), message.number % _REASONS)

    @property
    def reason(self) -> int:
        """Why the run has ended, 0 if it has not."""
        return max(int(words[_ENDED]) for words in self._near)

    def enough(self) -> bool:
        """Return whether the run has ended, as far as this node's memory tells: no messages."""
        return self.reached() if self._single else self.reason > 0

    def reached(self) -> bool:
        """Return whether the run has ended."""
        near = sum([int(words[_EVENTS]) for words in self._near])
        if self._single:
            if near >= self._goal:
                self._mine[_ENDED] = max(int(self._mine[_ENDED]), ENOUGH)
            return self.reason > 0
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._seconds
            if self._rank == 0 and near + sum(self._counts.values()) >= self._goal:
                self.end()
            elif self._rank > 0 and 0 not in self._slots.control_words:
                self._slots.tell(0, COUNT, self._rank, 0, self.events)
        return self.reason > 0


class FiniteGradient:
    """A gradient of local agents that takes note of the first one that is not finite.

    Parameters
    ----------
    gradient : callable
        `gradient(i, x, k)`: the gradient of local agent i at `x` for its own step k.
    lo : int
        The first local agent.

    Attributes
    ----------
    found : tuple (spread, agent, k, entry) or None
        `spread`: the point was already not finite, so the value may come from a neighbour.

    Examples
    --------
    >>> gradient = FiniteGradient(lambda i, x, k: x / k, lo=4)
    >>> _, _ = gradient(0, np.ones(2), 1), gradient(1, np.full(2, np.nan), 2)
    >>> gradient.found
    (True, 5, 2, nan)
    """

    def __init__(self, gradient: Gradient, lo: int):
        self._gradient, self._lo = gradient, lo
        self.found: tuple[bool, int, int, float] | None = None

    def __call__(self, i: int, x: np.ndarray, k: int) -> np.ndarray:
        g = self._gradient(i, x, k)
        if self.found is None:
            finite = np.isfinite(g)
            if not finite.all():
                self.found = not np.isfinite(x).all(), self._lo + i, k, float(g[~finite][0])
        return g


class MessageFaults(NamedTuple):
    """Injected faults: message delays, message losses, seconds that each local agent sleeps at each
    event, and how long it sleeps in units of what the event takes.
    """

    delay: DelayOf | None
    lost: LossOf | None
    pause: list[float]
    slower: list[float]

    @classmethod
    def checked(cls, plan: Plan, solver: PairwiseSolver | PushSolver) -> MessageFaults:
        """Refuse wrong arguments on all ranks."""
        net = plan.net
        with on_all_ranks(net):
            sleeps, pace = pauses(plan.straggler, net.n), checked_rates(plan.rates, net.n)
            if not pace.all():
                raise ValueError(
                    f"rates is {plan.rates!r:.60}, expected numbers > 0: on ranks all agents "
                    "take steps; mpidec.simulate takes rates of 0"
                )
            faults = cls(
                delays(plan.delay, plan.seed),
                losses(plan.drop, plan.seed),
                [sleeps.get(i, 0.0) for i in net.agents],
                (pace.max() / pace - 1).tolist()[net.lo : net.hi],
            )
            if isinstance(solver, PairwiseSolver) and not isinstance(solver.rate, numbers.Real):
                raise ValueError(
                    f"{type(solver).__name__}: rate is a {type(solver.rate).__name__}, expected a "
                    "number on ranks; "
                    "mpidec.simulate takes rates of edges"
                )
            if (
                isinstance(solver, PairwiseSolver)
                and net.size > 1
                and MPI.Query_thread() < MPI.THREAD_SERIALIZED
            ):
                raise RuntimeError(
                    "MPI was initialized without threads, expected MPI_THREAD_SERIALIZED or more: "
                    "gradients and "
                    "averagings are in two threads"
                )
        return faults


def only(k: int, neighbors: Sequence[int]) -> list[float | None]:
    """Weights of a message to the k-th neighbour alone."""
    return [1.0 if place == k else None for place in range(len(neighbors))]


class Runner(ABC):
    """The local agents of an asynchronous method, which take turns.

    Parameters
    ----------
    agents : LocalAgents
    slots : Slots
        Of rows of the solver's width.
    gradient : FiniteGradient or None
    termination : Termination
    ended : callable () -> bool
        Whether the run has ended, or pauses, asked between two events.
    faults : MessageFaults
    lo : int
        The first local agent.

    Attributes
    ----------
    messages : int
        That the local agents have sent.
    idle, total : float
        Seconds that events have waited, and all; a total of 0 is the time of the run.
    staleness : dict
        How often a reading has found so many messages of a sender.
    """

    def __init__(
        self,
        agents: LocalAgents,
        slots: Slots,
        gradient: FiniteGradient | None,
        termination: Termination,
        ended: Callable[[], bool],
        faults: MessageFaults,
        lo: int,
    ):
        self.states, self.slots, self.gradient = agents.states, slots, gradient
        self.termination, self.faults, self.lo = termination, faults, lo
        self.messages = 0
        self.idle = self.total = 0.0
        self.staleness: dict[int, int] = defaultdict(int)
        self._X, self._ended = agents.stacks["x"], ended
        self._turn = 0  # the local agent whose turn it is

    @abstractmethod
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

    @abstractmethod
    def end(self, reason: int) -> None:
        """End the run, or this part of it, on all ranks; between two events."""

    @abstractmethod
    def _event(self, place: int) -> None:
        """The next event of a local agent."""

    def _take_turns(
        self,
        interrupted: Callable[[], bool],
        between_events: Callable[[], None],
        after_turns: Callable[[], None],
    ) -> None:
        """Events of all local agents in turn; `after_turns` is called when each has had one."""
        pause, slower = self.faults.pause, self.faults.slower
        gradient, count = self.gradient, self.termination.count
        while not self._ended():
            for place in range(self._turn, len(self.states)):
                self._turn = place + 1
                if pause[place]:
                    time.sleep(pause[place])
                begun = time.perf_counter() if slower[place] else 0.0
                self._event(place)
                if slower[place]:
                    time.sleep(slower[place] * (time.perf_counter() - begun))
                count()
                between_events()
                if gradient is not None and gradient.found is not None:
                    self.end(DIVERGED)
                if self._ended():
                    break
            self._turn %= max(len(self.states), 1)
            after_turns()
            if interrupted():
                self.end(INTERRUPTED)
            if not self.states:
                between_events()
                time.sleep(1e-3)

    def collect(self) -> None:
        """Take what has arrived, when nothing is under way."""

    def rows(self) -> np.ndarray:
        """Return a copy of the iterates of the local agents."""
        return np.array(self._X)

    def averaging_counts(self) -> list[tuple[int, int, int]]:
        """Averagings of the local agents with their neighbours: (i, j, number)."""
        return []

    def rescue(self, dead: Container[int]) -> None:
        """Take what has arrived, and end what is under way, when the agents `dead` have died and
        nobody sends any more; without communication.
        """

    def follow(self, former: Runner) -> None:
        """Go on counting where a former part of the run has ended."""
        self.messages, self.idle, self.total = former.messages, former.idle, former.total
        self.staleness = former.staleness
        self.termination.count(former.termination.events)
