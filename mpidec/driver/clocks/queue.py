"""A queue of events: asynchronous agents in one process, whose run is a function of its
arguments.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ..._complex import is_complex
from ...exceptions import ResumeError
from ...problems.internals import of_one, real_view
from ...solvers.internals import PairwiseSolver, PushSolver
from ..answers import Errors, recall
from ..asynchronous.events import Events
from ..asynchronous.result import AsyncResult, LocalAgents, collected, histogram
from ..metrics import Metrics, of_events
from ..plan import Plan, State
from ..result import Result
from .clock import Arrays

if TYPE_CHECKING:
    from ...topology import Schedule, Topology


class Iterates(NamedTuple):
    """A state of which a record needs the iterates alone."""

    X: np.ndarray


class Simulated:
    """A simulation with one step size.

    Parameters
    ----------
    plan : Plan
    events : Events
        What happens.
    """

    name: ClassVar[str] = "simulated"
    function: ClassVar[str] = "simulate"
    disturbance: ClassVar[str] = ""

    def __init__(self, plan: Plan, events: Events):
        self._plan, self._events, self.errors = plan, events, Errors(plan.net)
        solver, oracle = plan.solver, plan.oracle
        if not isinstance(solver, (PairwiseSolver, PushSolver)):
            raise TypeError(f"{type(solver).__name__} is not asynchronous")
        self._solver = solver
        if oracle is not None and is_complex(plan.X):
            oracle = real_view(oracle)
        agents = range(plan.net.n)
        self._gradients = None if oracle is None else oracle.gradients(agents, plan.seed)
        gradient = None if self._gradients is None else of_one(self._gradients)
        self._agents = LocalAgents.of(solver, plan.topology.at(0), plan.X, agents)
        self._simulator = events.simulator(solver, self._agents, gradient)
        self._end = plan.steps * events.unit if events.end is None else events.end
        self._t, self._finished = 0.0, False
        self._undelivered: tuple[tuple[Any, ...], Arrays] | None = None

    mixer: ClassVar[None] = None

    @property
    def topology(self) -> Topology | Schedule:
        return self._plan.topology

    def limits(self, d: int) -> str:
        return self._solver.losing(self._plan.drop)

    def names(self, measure: Metrics) -> tuple[str, ...]:
        return measure.names_of_events()

    def conditions(self) -> dict[str, object]:
        plan = self._plan
        given = None if plan.clock is None else plan.clock.events
        return {
            "delay": plan.delay,
            "drop": plan.drop,
            "straggler": plan.straggler,
            "rates": plan.rates,
            "events": given,
        }

    def begin(self) -> State:
        return self._rows()

    def _rows(self) -> State:
        return Iterates(self._agents.X)

    def states(self, first: int, s: State) -> Iterator[tuple[int, State, bool]]:
        while self._t < self._end:
            self._t = self._next
            self._simulator.run(self._t)
            if self._t == self._end:
                self.finish()
            yield self._step(self._t), self._rows(), True

    @property
    def _next(self) -> float:
        """The time of the next record: a multiple of `every`, or the end.  Two records are not at
        times that rounding errors alone separate.
        """
        between = self._plan.every * self._events.unit
        t = (int(self._t / between + 1e-9) + 1) * between
        return t if t < self._end * (1 - 1e-12) else self._end

    def _step(self, t: float) -> int:
        return self._plan.steps if t >= self._end else int(t / self._events.unit + 1e-9)

    def repeats(self, k: int) -> bool:
        """A shorter run has a record of its end, which may be in the step of the next record."""
        return self._t < self._end and self._step(self._next) == k

    def moment(self, k: int) -> str:
        return f"at time {self._t:g}"

    def measured(self, measure: Metrics, k: int, s: State, seconds: float) -> dict[str, float]:
        simulator = self._simulator
        return of_events(
            measure.at(k)(s.X),
            k,
            self._t,
            events=simulator.events,
            gradients=simulator.gradients,
            messages=simulator.messages,
            message_bytes=self._agents.message_bytes,
        )

    # -- checkpoints -------------------------------------------------------------------------------

    def stored(self, s: State) -> tuple[Any, ...]:
        return self._undelivered[0] if self._undelivered else self._stored()

    def _stored(self) -> tuple[Any, ...]:
        """Copies of the fields of all agents' states; of ragged ones, `arrays` has the rows."""
        found = vars(self._agents.collected())
        fields = {name: np.array(a) for name, a in found.items() if isinstance(a, np.ndarray)}
        return namedtuple("State", fields)(**fields)

    def totals(self, seconds: float) -> list[float]:
        counted = self._simulator
        sent = self._agents.message_bytes * counted.messages
        return [self._t, counted.events, counted.messages, sent, counted.gradients]

    def memory(self) -> Arrays:
        return {} if self._gradients is None else self._gradients.memory()

    def arrays(self) -> Arrays:
        return self._undelivered[1] if self._undelivered else self._arrays()

    def _arrays(self) -> Arrays:
        facts, rows = self._simulator.pending()
        ragged = self._ragged()
        facts["unit"] = self._events.unit
        facts["ragged"] = {name: [len(row) for row in rows] for name, rows in ragged.items()}
        rows |= {name: np.concatenate(found) for name, found in ragged.items()}
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        return {"queue": text, **{f"queue.{name}": array for name, array in rows.items()}}

    def _ragged(self) -> dict[str, list[np.ndarray]]:
        """Return the fields with a row for each neighbour, where their numbers differ."""
        found = vars(collected(self._agents.states, self._agents.stacks))
        return {name: rows for name, rows in found.items() if isinstance(rows, list)}

    def recall(
        self, path: str, k: int, s: Any, totals: list[float], memory: Arrays, arrays: Arrays
    ) -> tuple[State, float]:
        if "queue" not in arrays:
            raise ResumeError(
                f"{path} was written by a run on ranks, in wall time: resume it there, with "
                "mpidec.solve and without clock"
            )
        facts = json.loads(arrays["queue"].tobytes())
        if facts["unit"] != self._events.unit:
            raise ResumeError(
                f"{path}: with other rates, stragglers or events a step takes another time, so "
                "that its records cannot go on: give those of the file, or begin a new run"
            )
        try:
            recall(self._gradients, memory, int(totals[-1]))  # the number of gradients
        except ResumeError as error:
            raise ResumeError(f"{path}: {error}") from error
        self._agents.recall(s._asdict())
        rows = {name[6:]: found for name, found in arrays.items() if name.startswith("queue.")}
        for name, lengths in facts["ragged"].items():
            parts = np.split(rows[name], np.cumsum(lengths)[:-1])
            for mine, part in zip(self._ragged()[name], parts):
                mine[:] = part
        self._simulator.recall(facts, rows)
        self._t = totals[0]
        if self._t >= self._end:
            self.finish()
        return self._rows(), 0.0

    def finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        # A longer run continues from what is on its way.
        if self._plan.record is not None:
            self._undelivered = self._stored(), self._arrays()
        self._simulator.finish()

    def result(self, result: Result) -> AsyncResult:
        simulator, states = self._simulator, self._agents.states
        return AsyncResult(
            **vars(result),
            state=self._agents.collected(),
            counts=np.array([s.k for s in states]),
            averagings=dict(simulator.averagings),
            staleness=histogram(simulator.staleness),
            solver=self._solver,
        )
