"""Asynchronous runs in which ranks die: the agents of the others go on without theirs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..._words import warn
from ...comm.mixing import Network
from ...comm.mixing.internals import lost_networks
from ...comm.runtime import Survivors, over_mpi, surviving
from ...exceptions import RanksLost
from ...solvers.internals import step_size_of
from ...topology.internals import TopologyLike, restricted
from ..arguments import as_topology
from ..plan import Plan
from ..stepsize import requested_rule, with_size
from .files import ResumedTotals, Snapshots
from .prepared import as_asynchronous, checked_rates, pauses
from .result import AsyncResult, LocalAgents
from .runner import Runner

if TYPE_CHECKING:
    from ...topology import Topology


@dataclass(frozen=True)
class Part:
    """A part of a run, which ends when ranks die, on this rank.

    Attributes
    ----------
    n : int
        The number of agents at the beginning of the run.
    numbers : sequence of int
        The agents of all ranks, by their numbers there.
    mine : range
        Those of this rank.
    plan : Plan
    agents : LocalAgents
    runner : Runner
    snapshots : Snapshots
        Of all parts.
    before : ResumedTotals
        Of the run before its first part.
    begun : float
        When the first part has begun.
    scale : float
        The factor by which all masses have been multiplied since then.
    lost : float
        The mass that was lost, in units of the first part.
    averagings : tuple of (i, j, number)
        Of former parts.
    """

    n: int
    numbers: Sequence[int]
    mine: range
    plan: Plan
    agents: LocalAgents
    runner: Runner
    snapshots: Snapshots
    before: ResumedTotals
    begun: float
    scale: float = 1.0
    lost: float = 0.0
    averagings: tuple[tuple[int, int, int], ...] = ()

    @property
    def masses(self) -> list[float]:
        """The masses of the local agents."""
        solver = as_asynchronous(self.plan.solver)
        return [solver.mass(s) for s in self.agents.states]

    def named(self, pairs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Return averagings with the numbers of the agents at the beginning."""
        return [(self.numbers[i], self.numbers[j], number) for i, j, number in pairs]

    def of_all(self, counts: np.ndarray) -> np.ndarray:
        """Return the counts of all agents, 0 of those that have died."""
        found = np.zeros(self.n, counts.dtype)
        found[[*self.numbers]] = counts
        return found

    def without(self, numbers: Sequence[int], mass: float) -> Part:
        """Return this part as the agents that are left, with a `mass`, go on from it."""
        before, left = self.before, len(numbers)
        mine = self.named(self.runner.averaging_counts())
        # Others report those with agents of smaller numbers, unless these have died.
        reported = [pair for pair in mine if pair[0] < pair[1] or pair[1] not in numbers]
        ordered = tuple((min(i, j), max(i, j), number) for i, j, number in reported)
        return replace(
            self,
            numbers=numbers,
            before=before._replace(counters=(*before.counters[:3], float(before.step * left))),
            scale=self.scale * left / mass,
            lost=self.lost + (len(self.numbers) - mass) / self.scale,
            averagings=self.averagings + ordered,
        )


class Dropping:
    r"""The parts of a run whose agents die with their ranks.

    The agents L that are left take what has arrived at them, and take back what the dead have not
    read.  With M the sum of their masses w then, they go on with

    .. math:: w_i \leftarrow \frac{|L|}{M} w_i

    and the mass that is lost is that of all agents before, minus M.

    Parameters
    ----------
    plan : Plan
    given : topology
        As given by the user: of a name, or a function of n, the graph of those that are left is
        made anew, otherwise it has the edges between them.

    Raises
    ------
    ValueError
        The job ends when a rank dies.

    Notes
    -----
    Collective.
    """

    def __init__(self, plan: Plan, given: TopologyLike):
        self._plan, self._given = plan, given
        self._ranks = Survivors(over_mpi(plan.net.comm, 'on_failure="drop"'))
        self._record = plan.record and replace(plan.record, lost=self._ranks.going_on)
        # The last part, which has begun on all ranks.
        self._last: Part | None = None
        # That one, as the next one goes on from it.
        self.former: Part | None = None
        self._factor = 1.0
        self._rescued: Part | None = None

    def __call__(self, run: Callable[[Plan, Dropping], AsyncResult]) -> AsyncResult:
        """Return the result of `run(plan, self)`, which is called again when ranks have died."""

        def attempt(ranks: Survivors) -> AsyncResult:
            if not ranks.lost:
                return run(replace(self._plan, record=self._record), self)
            last = self._last
            # Some may have begun a part, and others not.
            everywhere = ranks.comm.allgather(last and (last.mine, last.masses))
            if last is None or None in everywhere:
                raise RanksLost(
                    f"{ranks.lost[-1]}: it died before the agents began: begin the run again"
                )
            numbers = [number for mine, _ in everywhere for number in mine]
            mass = math.fsum(some for _, masses in everywhere for some in masses)
            self._factor, self.former = len(numbers) / mass, last.without(numbers, mass)
            if ranks.comm.rank == 0:
                dead = [str(i) for i in last.numbers if i not in numbers]
                who = f"agent {dead[0]} has" if len(dead) == 1 else f"agents {', '.join(dead)} have"
                share = mass / len(last.numbers)
                warn(f"{ranks.lost[-1]}: {who} died, {share:.1%} of the mass remain")
            with Network(len(numbers), ranks.comm) as net, net.raising_together():
                return run(self._next(self.former, net), self)

        return surviving(attempt, self._ranks, self._leaving)

    def hand_over(self, agents: LocalAgents) -> None:
        """Set the states of a part, at their beginning, to what stays of those of the former."""
        if self.former is not None:
            solver = as_asynchronous(self.former.plan.solver)
            for s, before in zip(agents.states, self.former.agents.states):
                solver.go_on(s, before, self._factor)

    def forget(self) -> None:
        """The run begins anew, with another step size."""
        self._last = None

    def begin(self, part: Part) -> None:
        """A part of the run begins, on all ranks or on none."""
        self._ranks.agree()
        self._last = part

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Context in which the dead are left out; at its end nobody sends any more."""
        with lost_networks():
            yield
            last = self._last
            if last is not None and last is not self._rescued:
                last.runner.rescue(self._dead(last.plan.net))
                self._rescued = last  # its memory is released now

    def _dead(self, net: Network) -> list[int]:
        """Return the agents of a network that have died."""
        living = self._ranks.comm.group
        before = over_mpi(net.comm, 'on_failure="drop"').group
        left = living.Translate_ranks(range(living.size), before)
        owners = net.partition.owner(np.arange(net.n)).tolist()
        return [i for i, rank in enumerate(owners) if rank not in left]

    def _next(self, former: Part, net: Network) -> Plan:
        """Return the plan of the part that follows."""
        plan, numbers = self._plan, [*former.numbers]
        solver = plan.solver
        if requested_rule(solver) is not None and plan.oracle is not None:
            solver = with_size(solver, step_size_of(former.plan.solver))
        sleeps = pauses(plan.straggler, former.n)
        return replace(
            plan,
            net=net,
            solver=solver,
            topology=self._graph(numbers),
            X=np.array(former.agents.X),
            straggler={k: sleeps[i] for k, i in enumerate(numbers) if i in sleeps},
            rates=checked_rates(plan.rates, former.n)[numbers],
            record=self._record,
        )

    def _graph(self, numbers: Sequence[int]) -> Topology:
        given, solver = self._given, self._plan.solver
        if given is None or isinstance(given, str) or inspect.isroutine(given):
            return as_topology(given, len(numbers), solver=solver).at(0)
        return restricted(self._plan.topology.at(0), numbers)
