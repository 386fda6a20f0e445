"""Agents of pairwise methods on the ranks of a network, in wall time: gradients and averagings
in two threads of each rank.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import numpy as np

from ...comm.mixing import Network
from ...comm.rma import Claims, Kind, Message, Slots
from ...comm.runtime import WaitMonitor
from ...solvers.internals import PairwiseSolver
from .draws import CHOICE, MEET, LossOf, generator
from .result import AgentState, LocalAgents
from .runner import ENOUGH, INTERRUPTED, FiniteGradient, MessageFaults, Runner, Termination, only

# Seconds between two looks of the thread that averages.
_LOOK = 5e-5
# Seconds after which Python lets the other thread run.
_SWITCH = 2e-4
# Averagings that an agent may be behind before its gradients wait.
_SLACK = 16


class _Clock:
    """Time of an agent in units of its own gradients: wall time over the running average of the
    time from one to the next.
    """

    def __init__(self) -> None:
        self._gradients = 0
        # The time at the last gradient, when that was, the mean; read by two threads.
        self._last = (
            0.0,
            time.perf_counter(),
            0.0,
        )

    def now(self) -> float:
        """Return the time; 0 until the first gradient has ended."""
        last, since, mean = self._last
        return last + (time.perf_counter() - since) / mean if mean else 0.0

    def gradient(self) -> None:
        """Take note of the end of a gradient."""
        last, since, mean = self._last
        now = time.perf_counter()
        self._gradients += 1
        self._last = (
            last + ((now - since) / mean if mean else 0.0),
            now,
            mean + (now - since - mean) / self._gradients,
        )


class _Requests:
    """Averagings that an agent is to begin, half as many as the rate; its neighbours begin the
    other half.
    """

    def __init__(self, number: int, neighbors: int, seed: int, rate: float):
        self._number, self._neighbors, self._rate = number, neighbors, rate
        self._numbers, self._choices = (
            generator(seed, number, purpose) for purpose in (MEET, CHOICE)
        )
        # one thread adds to those that are wanted, the other one to those that have begun
        self._wanted = self._begun = 0
        # the place of the neighbour to be asked, or -1; whether that averaging is lost on purpose
        self._next, self.drops = -1, False

    @property
    def behind(self) -> int:
        """The number of those that have not begun."""
        return self._wanted - self._begun

    def add(self) -> None:
        """After each gradient: some more."""
        if self._neighbors:
            self._wanted += int(self._numbers.poisson(self._rate / 2))

    def choose(self, lost: LossOf | None) -> int:
        """Return the neighbour of the next averaging, uniformly, until that has begun."""
        if self._next < 0:
            self._next = int(self._choices.integers(self._neighbors))
            self.drops = lost is not None and lost(self._number)
        return self._next

    def begin(self) -> None:
        """The next averaging begins, or is left out."""
        self._begun, self._next = self._begun + 1, -1

    def leave_out(self) -> None:
        """All are left out that have not begun."""
        self._begun = self._wanted


class _Agent:
    """A local agent: its state, and what it is doing."""

    def __init__(
        self, number: int, place: int, state: AgentState, slots: Slots, seed: int, rate: float
    ):
        self.number, self.state, self.port = number, state, slots.agents[place]
        self.neighbors: list[int] = slots.receivers[place]
        self.lock, self.clock = threading.Lock(), _Clock()
        self.requests = _Requests(number, len(self.neighbors), seed, rate)
        # places in `neighbors`: in an averaging; asked for
        self.partner = self.asked = -1
        # Its offer in an averaging that it has begun.
        self.mine: np.ndarray | None = None
        # When that leaves, if it has not left yet.
        self.due: float | None = None
        self.into = np.empty(slots.values.shape[1], slots.values.dtype)
        self.averagings = [0] * len(self.neighbors)

    @property
    def idle(self) -> bool:
        """Whether it neither averages nor has asked for an averaging."""
        return self.partner < 0 and self.asked < 0


class PairwiseRunner(Runner):
    r"""The local agents of a pairwise method.

    A thread that averages looks after messages and pairs agents without a coordinator.  Each agent
    has a word in the memory of its node: 0 if it is free.  After a gradient an agent asks for a
    Poisson number of averagings, `rate` / 2 on average, each with a neighbour that is chosen
    uniformly; the neighbours ask it as often, on average.  It takes both words, the lower agent's
    first, by compare-and-swap, and lets go if the second one is taken: nobody waits while it holds
    a word, so that there is no deadlock on any graph.  Then both send their offers, and average.
    An offer that is held back keeps its two agents busy, and nobody else: averagings with busy
    agents are then left out, as in the simulator, and are otherwise tried again.

    Parameters
    ----------
    solver : PairwiseSolver
        Prepared, with a number as its rate.
    agents, slots, gradient, termination, faults
        As for `Runner`.
    net : Network
    seed : int

    Notes
    -----
    The main thread computes gradients; `idle` are the seconds that it has waited for the other one.
    """

    def __init__(
        self,
        solver: PairwiseSolver,
        agents: LocalAgents,
        slots: Slots,
        gradient: FiniteGradient | None,
        termination: Termination,
        faults: MessageFaults,
        net: Network,
        seed: int,
    ):
        super().__init__(
            agents, slots, gradient, termination, ended=termination.enough, faults=faults, lo=net.lo
        )
        self.solver, self._engine, self._finish = solver, net.engine, net.comm.Ibarrier
        self._claims = Claims(slots, net.partition)
        self.agents = [
            _Agent(net.lo + place, place, s, slots, seed, solver.rate)
            for place, s in enumerate(agents.states)
        ]
        self._slack = _SLACK * max(1.0, solver.rate)
        self._stop = self._broken = False
        self._over = (
            False  # whether no more averagings begin in this part of the run, whatever follows
        )
        # Why the main thread wants the run, or this part of it, to end.
        self._early = 0
        self._error: BaseException | None = None
        slots.others = self.receive

    # Gradients: the main thread

    def averaging_counts(self) -> list[tuple[int, int, int]]:
        return [
            (agent.number, other, count)
            for agent in self.agents
            for other, count in zip(agent.neighbors, agent.averagings)
        ]

    def rescue(self, dead: Container[int]) -> None:
        """Complete the averagings whose other agent has answered, and forget the others."""
        for agent in [] if self.slots.closed else self.agents:
            k, mine = agent.partner, agent.mine
            if mine is not None and agent.port.versions()[k]:
                agent.port.take(k, agent.into)
                self.solver.average(agent.state, mine, agent.into, agent.clock.now())
                agent.averagings[k] += 1
            agent.partner, agent.mine, agent.due = -1, None, None

    def run(
        self,
        interrupted: Callable[[], bool],
        between_events: Callable[[], None],
        watch: Callable[[], None],
    ) -> None:
        """All events, until the run has ended, or pauses, and no averaging is under way on any
        rank.
        """
        self._stop, self._over, self._early = False, False, INTERRUPTED if interrupted() else 0
        thread = threading.Thread(
            target=self._averaging, args=(watch,), name="mpidec-averaging", daemon=True
        )
        interval = sys.getswitchinterval()
        sys.setswitchinterval(min(interval, _SWITCH))
        thread.start()
        started = time.perf_counter()
        try:
            self._take_turns(interrupted, between_events, self._raise_error)
        except BaseException:
            self._broken = True
            raise
        finally:
            self.total += time.perf_counter() - started
            self._stop = True
            thread.join()
            sys.setswitchinterval(interval)
        self._raise_error()

    def _raise_error(self) -> None:
        """Raise what the other thread has raised."""
        if self._error is not None:
            raise self._error

    def end(self, reason: int) -> None:
        self._early = max(self._early, reason)

    def _event(self, place: int) -> None:
        agent, solver, gradient = self.agents[place], self.solver, self.gradient
        s = agent.state
        if gradient is not None:
            with self._held(agent):
                x = solver.gradient_point(s, agent.clock.now()).copy()
            g = gradient(place, x, s.k)
            with self._held(agent):
                solver.descend(s, g, agent.clock.now())
        agent.clock.gradient()
        agent.requests.add()
        waited = time.perf_counter()
        while (
            agent.requests.behind > self._slack
            and not self.termination.reason
            and self._error is None
        ):
            time.sleep(_LOOK)
        self.idle += time.perf_counter() - waited

    @contextmanager
    def _held(self, agent: _Agent) -> Iterator[None]:
        """The lock of an agent; waiting for it is idle time."""
        if not agent.lock.acquire(blocking=False):
            waited = time.perf_counter()
            agent.lock.acquire()
            self.idle += time.perf_counter() - waited
        try:
            yield
        finally:
            agent.lock.release()

    def rows(self) -> np.ndarray:
        X = np.empty_like(self._X)
        for agent, row in zip(self.agents, X):
            with agent.lock:
                row[:] = agent.state.x
        return X

    # Averagings: a thread of its own

    def _averaging(self, watch: Callable[[], None]) -> None:
        try:
            finishing, patience = None, None
            while not self._broken:
                with self._engine:
                    self.slots.poll()
                    self._over = self._over or self.termination.reason not in (0, ENOUGH)
                    moved = sum(map(self._look, self.agents))
                    if self._early:
                        self.termination.end(self._early)
                    self.termination.reached()
                    if (
                        self._stop
                        and finishing is None
                        and all(self._is_done(agent) for agent in self.agents)
                    ):
                        # this rank begins no more averagings; others may still begin some with it
                        finishing = self._finish()
                        patience = WaitMonitor("all agents to end their averagings")
                    if finishing is not None and finishing.Test():
                        return
                    watch()
                    if patience is not None:
                        patience.poll()
                if not moved:
                    time.sleep(_LOOK)
        except BaseException as error:  # raised by the main thread
            self._error = error

    def _look(self, agent: _Agent) -> bool:
        """Go on with what an agent is doing; whether anything has happened."""
        moved = False
        for k, transfers in enumerate(agent.port.versions()):
            if transfers:
                agent.port.take(k, agent.into)
                self._arrive(agent, k)
                moved = True
        if agent.due is not None:
            # At the end nothing is held back.
            if agent.due <= time.monotonic() or self.termination.reason:
                agent.due = None
                self._send(agent, agent.partner, agent.mine)
                moved = True
            else:
                agent.requests.leave_out()
        if agent.idle and agent.requests.behind > 0 and not self._over:
            moved |= self._begin(agent)
        return moved

    def _is_done(self, agent: _Agent) -> bool:
        """Return whether an agent begins no more averagings, and has ended those it has begun."""
        return agent.idle and (self._over or agent.requests.behind <= 0)

    def _arrive(self, agent: _Agent, k: int) -> None:
        """The offer of a neighbour: the answer to this agent's own, or the beginning of an
        averaging.
        """
        solver, s = self.solver, agent.state
        with agent.lock:
            mine = agent.mine
            if k != agent.partner or mine is None:
                mine = solver.offer(s, agent.clock.now())
                self._send(agent, k, mine)
            solver.average(s, mine, agent.into, agent.clock.now())
        agent.averagings[k] += 1
        agent.mine, agent.partner = None, -1
        self._claims.free(agent.number, self._claims.holder(agent.number))

    def _begin(self, agent: _Agent) -> bool:
        """Try to take this agent and the neighbour that it has chosen."""
        k = agent.requests.choose(self.faults.lost)
        other = agent.neighbors[k]
        if agent.requests.drops:
            agent.requests.begin()
            return True
        if agent.number < other and not self._claims.take(agent.number, agent.number):
            return self._busy(agent)
        if self._claims.is_near(other):
            return self._took(agent, k, self._claims.take(other, agent.number))
        agent.asked = k
        self._claims.ask(other, agent.number)
        return True

    def _took(self, agent: _Agent, k: int, yes: bool) -> bool:
        """Begin the averaging if the neighbour was free (`yes`), else let go; return whether
        anything has happened.
        """
        other = agent.neighbors[k]
        agent.asked = -1
        if yes and other < agent.number and not self._claims.take(agent.number, agent.number):
            self._claims.free(other, agent.number)
            return self._busy(agent)
        if not yes and agent.number < other:
            self._claims.free(agent.number, agent.number)
        if not yes:
            return self._busy(agent)
        agent.partner = k
        agent.requests.begin()
        with agent.lock:
            agent.mine = self.solver.offer(agent.state, agent.clock.now())
        if self.faults.delay is None:
            self._send(agent, k, agent.mine)
        else:
            agent.due = time.monotonic() + self.faults.delay(agent.number, other)
        return True

    def _busy(self, agent: _Agent) -> bool:
        """One of the two is busy: the averaging is tried again, or left out if offers are held
        back, which may take long.
        """
        if self.faults.delay is None:
            return False
        agent.requests.begin()
        return True

    def _send(self, agent: _Agent, k: int, offer: np.ndarray | None) -> None:
        """Send the offer of an agent to a neighbour."""
        row = np.asarray(offer, self.slots.values.dtype)
        agent.port.send(row, only(k, agent.neighbors), None, False)
        self.messages += 1

    def receive(self, rank: int, message: Message) -> None:
        """Answer a neighbour on another node that asks for an agent of this rank, or take its
        answer.
        """
        if message.kind == Kind.TAKEN:
            agent = self.agents[message.dest - self.lo]
            self._took(agent, agent.asked, bool(message.number))
        elif message.kind < Kind.OTHER:
            self._claims.receive(rank, message)
        else:
            self.termination.receive(message)
