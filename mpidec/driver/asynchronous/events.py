"""What happens in an asynchronous run: events by clocks, from a table, or like those on ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ...solvers import Solver
from ...solvers.internals import PairwiseSolver, PushSolver
from ...topology import Topology, edge_rates
from ..arguments import Delay
from .draws import (
    AVERAGING,
    GRADIENT,
    DelayOf,
    Event,
    Gradient,
    LossOf,
    checked,
    delays,
    losses,
    meetings,
    replayed,
)
from .prepared import as_asynchronous, checked_rates, pauses, prepared
from .result import LocalAgents
from .simulator import PairwiseSimulator, PushSimulator

if TYPE_CHECKING:
    from ...problems import Problem

# Seconds of a quick event on ranks, in which delays and pauses are counted.
NOMINAL = 1e-4


@dataclass(frozen=True)
class Events:
    """What happens in a run, whatever its step size: each call gives the same events anew.

    Attributes
    ----------
    source : callable () -> iterable of Event
    delay, lost : callable () -> function, or None
        As for `PairwiseSimulator`.
    unit : float
        Time of a step.
    end : float, optional
        Time of the last event of a table.
    """

    source: Callable[[], Iterable[Event]]
    delay: Callable[[], DelayOf | None]
    lost: Callable[[], LossOf | None]
    unit: float = 1.0
    end: float | None = None

    @property
    def steps(self) -> int:
        """Steps until the end of a table, of which the last one may be a part."""
        return ceil((self.end or 0.0) / self.unit - 1e-9)

    @classmethod
    def of_queue(
        cls,
        solver: Solver,
        topology: Topology,
        events: np.ndarray | None,
        *,
        problem: Problem | None,
        rates: ArrayLike | None,
        straggler: Mapping[int, float] | None,
        delay: Delay | None,
        drop: float,
        seed: int,
    ) -> Events:
        """Return what happens on a queue: events by Poisson clocks, or those of a table.

        Raises
        ------
        ValueError, TypeError
            A wrong table, or arguments that exclude each other.
        """
        method, n = prepared(as_asynchronous(solver), topology), topology.n
        averaging = isinstance(method, PairwiseSolver) and problem is None
        given = {"rates": rates, "straggler": straggler or None}
        for name in (name for name, value in given.items() if value is not None):
            if events is not None:
                raise ValueError(
                    f"{name} and a table of events are given, expected one of them: the table says "
                    "which agent acts when"
                )
            if averaging:
                raise ValueError(
                    f"{name} is of gradients, but problem is None; the averagings have the rate of "
                    "the solver"
                )
        if events is None:
            pace = np.zeros(n) if averaging else checked_rates(rates, n)
            slept = np.array([pauses(straggler, n).get(i, 0.0) for i in range(n)])
            return cls.of_clocks(method, topology, pace / (1 + slept * pace), delay, drop, seed)
        kinds = (GRADIENT, AVERAGING) if isinstance(method, PairwiseSolver) else (GRADIENT,)
        told = type(method).__name__ + " without a problem" * (problem is None)
        table = checked(events, topology, (AVERAGING,) if averaging else kinds, told)
        return cls.of_table(table, delay, drop, seed)

    @classmethod
    def of_clocks(
        cls,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        rates: np.ndarray,
        delay: Delay | None,
        drop: float,
        seed: int,
    ) -> Events:
        """Events by Poisson clocks; `rates` are those of the agents' gradients, or wake-ups."""
        edges = edge_rates(topology, solver.rate) if isinstance(solver, PairwiseSolver) else None
        return cls(
            lambda: meetings(seed, rates, edges),
            lambda: delays(delay, seed),
            lambda: losses(drop, seed),
            1 / float(rates.mean()) if rates.any() else 1.0,
        )

    @classmethod
    def of_table(cls, table: np.ndarray, delay: Delay | None, drop: float, seed: int) -> Events:
        """Events of a checked table."""
        return cls(
            lambda: replayed(table),
            lambda: delays(delay, seed),
            lambda: losses(drop, seed),
            end=float(table["time"][-1]) if len(table) else 0.0,
        )

    @classmethod
    def of_ranks(
        cls,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        straggler: Mapping[int, float] | None,
        rates: ArrayLike | None,
        delay: Delay | None,
        drop: float,
        seed: int,
    ) -> Events:
        """Events that stand for those on ranks, where an event is taken to last `NOMINAL` seconds.

        An agent that sleeps s seconds at each event has the rate 1 / (1 + s / NOMINAL), and a
        message that is held back for s seconds arrives s / NOMINAL units later.
        """
        slept = pauses(straggler, topology.n)
        pace = checked_rates(rates, topology.n)
        seconds = np.array([slept.get(i, 0.0) for i in range(topology.n)])
        speed = pace / pace.max()
        paces = speed / (1 + speed * seconds / NOMINAL)
        held = delays(delay, seed)
        in_units: Delay | None = None
        if held is not None:

            def in_units(rng: np.random.Generator, i: int, j: int) -> float:
                return held(i, j) / NOMINAL

        return cls.of_clocks(solver, topology, paces, in_units, drop, seed)

    def simulator(
        self,
        solver: PairwiseSolver | PushSolver,
        agents: LocalAgents,
        gradient: Gradient | None,
    ) -> PairwiseSimulator | PushSimulator:
        """Return a simulator of all agents, to which the events happen."""
        common, delay, lost = (agents.states, self.source(), gradient), self.delay(), self.lost()
        if isinstance(solver, PairwiseSolver):
            return PairwiseSimulator(solver, *common, delay, lost)
        d = agents.stacks["x"].shape[1]
        return PushSimulator(solver, *common, agents.places, d, delay, lost)
