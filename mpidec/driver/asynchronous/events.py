"""What happens in an asynchronous run: events by clocks, from a table, or like those on ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ...topology import Topology, edge_rates
from ..arguments import Delay
from .clocks import DelayOf, Event, Gradient, LossOf, delays, losses, meetings, replayed
from .result import LocalAgents
from .simulator import PairwiseSimulator, PushSimulator

NOMINAL = 1e-4  # seconds of a quick event on ranks, in which delays and pauses are counted


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
    """

    source: Callable[[], Iterable[Event]]
    delay: Callable[[], DelayOf | None]
    lost: Callable[[], LossOf | None]
    unit: float = 1.0

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
        return cls(lambda: replayed(table), lambda: delays(delay, seed), lambda: losses(drop, seed))

    @classmethod
    def of_ranks(
        cls,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        pauses: Mapping[int, float],
        delay: Delay | None,
        drop: float,
        seed: int,
    ) -> Events:
        """Events that stand for those on ranks, where an event is taken to last `NOMINAL` seconds.

        An agent that sleeps s seconds at each event has the rate 1 / (1 + s / NOMINAL), and a
        message that is held back for s seconds arrives s / NOMINAL units later.
        """
        rates = np.array([1 / (1 + pauses.get(i, 0.0) / NOMINAL) for i in range(topology.n)])
        held = delays(delay, seed)
        in_units: Delay | None = None
        if held is not None:

            def in_units(rng: np.random.Generator, i: int, j: int) -> float:
                return held(i, j) / NOMINAL

        return cls.of_clocks(solver, topology, rates, in_units, drop, seed)

    def simulator(
        self,
        solver: PairwiseSolver | PushSolver,
        agents: LocalAgents,
        gradient: Gradient | None,
    ) -> PairwiseSimulator | PushSimulator:
        """A simulator of all agents, to which the events happen."""
        common, delay, lost = (agents.states, self.source(), gradient), self.delay(), self.lost()
        if isinstance(solver, PairwiseSolver):
            return PairwiseSimulator(solver, *common, delay, lost)
        d = agents.stacks["x"].shape[1]
        return PushSimulator(solver, *common, agents.places, d, delay, lost)
