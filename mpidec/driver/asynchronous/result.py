"""Results of asynchronous runs, and the states of the agents as stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ...record.reader import last_values
from ...solvers.asynchronous import PairwiseSolver, Place, PushSolver
from ...solvers.step_schedules import StepSize
from ...topology import Topology
from ..outcome import Outcome
from ..result import Fitted
from ..stepsize import Choice
from ..verdict import verdict
from .clocks import Gradient

SIMULATED = "a simulated run cannot be resumed: repeat it"


class AgentState(Protocol):
    """The state of an agent, a dataclass: its iterate, its number of events, and what else the
    solver needs.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    x: np.ndarray
    k: int


class LocalAgents(NamedTuple):
    """States of the local agents, the stacks that their arrays are rows of, their neighbours,
    length and dtype of a message.
    """

    states: list[AgentState]
    stacks: dict[str, np.ndarray]
    places: list[Place]
    width: int
    dtype: np.dtype[Any]

    @property
    def message_bytes(self) -> int:
        """Bytes of a message."""
        return self.width * self.dtype.itemsize

    @classmethod
    def of(
        cls,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        X: np.ndarray,
        agents: Iterable[int],
    ) -> LocalAgents:
        """The states at first."""
        places = [
            Place(
                i,
                topology.n,
                tuple(topology.in_neighbors(i).tolist()),
                tuple(topology.out_neighbors(i).tolist()),
            )
            for i in agents
        ]
        states = [solver.init(x, place) for x, place in zip(X, places)]
        d = X.shape[1]
        return cls(
            states,
            stacked(states) if states else {"x": np.empty((0, d), X.dtype)},
            places,
            solver.width(d) if isinstance(solver, PushSolver) else d,
            X.dtype,
        )


@dataclass(frozen=True, repr=False)
class AsyncResult(Fitted):
    """Result of an asynchronous run.

    Attributes
    ----------
    X : array (n, d)
        The final iterates.
    x : array (d,)
        Their average.
    outcome : Outcome
        "completed", "stopped" (by `stop`), "missed" (`stop` not reached), "diverged" or
        "interrupted" (in `mpidec.Interrupted.result`); compares equal to the plain string.  Runs on
        ranks end after `steps` steps: "completed" if their last record has reached `stop`.
    steps : int
        Wake-ups, or gradients, of an agent on average.
    metrics : dict of arrays
        One entry per record: the counters `step` (events of an agent on average), `time`, `events`,
        `gradients`, `messages` and `bytes` (of all agents); `consensus`; and, if the problem
        provides them, `gradient_norm`, `objective`, `error`, `error_rms` and `error_max`; see
        `mpidec.driver.metrics.Metrics`.
    state : namespace
        The fields of the solver's states, as stacks with a row per agent: `X`, and, for example,
        `X_tilde`; numbers as arrays `(n,)` under their small names; of fields with a row per
        neighbour, lists if the numbers of neighbours differ.
    counts : array (n,)
        Wake-ups, or gradients, of each agent.
    averagings : dict
        Averagings of each edge, `{(i, j): number}` with i < j; empty for push methods.
    staleness : array of int
        Histogram of the ages of messages when they are read, in units of time rounded down; empty
        for pairwise methods.
    solver : Solver
        The solver with numbers for the parameters that the run has found.
    reason : str
        For a diverged run what happened, for a missed target the last value; else empty.
    agent : int or None
        For a diverged run, the first agent whose iterate was not finite, or the one farthest from
        zero.
    idle : array (ranks,) or None
        On ranks: the share of the time in which each rank waited: its gradients for its averagings,
        or for something to read.
    choice : Choice or None
        How the step size was found, if it was "auto" or "safe".
    problem : problem or None
        That of the local agents.

    Notes
    -----
    On ranks `X` and `state` have the local agents alone, and `staleness` counts how many messages
    of a sender a reading has found.
    """

    X: np.ndarray
    x: np.ndarray
    outcome: Outcome
    steps: int
    metrics: dict[str, np.ndarray]
    state: Any
    counts: np.ndarray
    averagings: Mapping[tuple[int, int], int]
    staleness: np.ndarray
    solver: PairwiseSolver | PushSolver | None = None
    reason: str = ""
    agent: int | None = None
    idle: np.ndarray | None = None
    choice: Choice | None = None
    problem: object = None

    @property
    def verdict(self) -> str:
        """How the agents' error developed, as in "error_rms has plateaued at 0.13 since step 600";
        see `mpidec.driver.verdict`.
        """
        return verdict(self.metrics)

    def __repr__(self) -> str:
        told = self.reason or (self.verdict if self.outcome is Outcome.COMPLETED else "")
        size = (
            f", step size {self.step_size:.4g}" if isinstance(self.step_size, (int, float)) else ""
        )
        return (
            f"AsyncResult({self.outcome} after {self.steps} "
            f"steps{size}{last_values(self.metrics)}; X {self.X.shape}, "
            f"x {self.x.shape}, records: "
            f"{len(self.metrics.get('step', ()))}{f'; {told}' if told else ''})"
        )

    @property
    def step_size(self) -> StepSize | None:
        """The step size of the run: the number that "auto" or "safe" became, or the schedule;
        None without one.
        """
        return getattr(self.solver, "step_size", None)

    @property
    def obstacle(self) -> str:
        """Why a file of this run cannot be resumed, or an empty string."""
        if self.idle is None:
            return SIMULATED
        return cannot_resume(self.solver)


def cannot_resume(solver: object) -> str:
    """Why runs of this solver, or class of solvers, on ranks cannot be resumed, or an empty string.

    Examples
    --------
    >>> import mpidec
    >>> cannot_resume(mpidec.solvers.RunningSumTracking), cannot_resume(mpidec.solvers.A2CiD2(0.1))
    ('', '')
    """
    kind: Any = solver if isinstance(solver, type) else type(solver)
    if getattr(kind, "accumulates", True) or kind.last_message is not PushSolver.last_message:
        return ""
    return (
        f"{kind.__name__} cannot be resumed: its messages replace each other, and it has no method "
        "last_message"
    )


def wake(
    solver: PushSolver,
    s: AgentState,
    i: int,
    received: np.ndarray | None,
    gradient: Gradient | None,
    width: int,
    dtype: np.dtype[Any],
) -> np.ndarray | None:
    """What local agent i sends when it wakes up, of this dtype, if it has the length that the
    solver states.

    Raises
    ------
    ValueError
    """
    k = s.k
    own = None if gradient is None else lambda x: gradient(i, x, k)
    sent = solver.wake(s, received, own)
    if sent is not None and (np.ndim(sent) not in (1, 2) or np.shape(sent)[-1] != width):
        raise ValueError(
            f"{type(solver).__name__}.wake returned an array of shape {np.shape(sent)}, expected "
            "rows of width(d) = "
            f"{width} numbers"
        )
    return None if sent is None else np.asarray(sent, dtype)


def stacked(states: Sequence[AgentState]) -> dict[str, np.ndarray]:
    """Make the array fields of the states rows of one stack each, and return the stacks; fields of
    different shapes stay alone.

    Examples
    --------
    >>> import mpidec
    >>> states = [mpidec.solvers.PairwiseGossip().init(np.full(2, float(i))) for i in range(2)]
    >>> X = stacked(states)["x"]
    >>> states[1].x += 1
    >>> X
    array([[0., 0.],
           [2., 2.]])
    """
    stacks = {}
    for name in (f.name for f in fields(states[0])):
        rows = [getattr(s, name) for s in states]
        if isinstance(rows[0], np.ndarray) and len({row.shape for row in rows}) == 1:
            stacks[name] = np.array(rows)
            for s, row in zip(states, stacks[name]):
                setattr(s, name, row)
    return stacks


def collected(states: Sequence[AgentState], stacks: Mapping[str, np.ndarray]) -> SimpleNamespace:
    """Return the fields of all states: stacks under capital letters (lists, if shapes differ),
    numbers as arrays.

    Examples
    --------
    >>> import mpidec
    >>> states = [mpidec.solvers.PairwiseGossip().init(np.full(2, float(i))) for i in range(2)]
    >>> state = collected(states, stacked(states))
    >>> state.X[1], state.k
    (array([1., 1.]), array([0, 0]))
    """
    found: dict[str, Any] = {}
    for name in (f.name for f in fields(states[0])):
        rows = [getattr(s, name) for s in states]
        if isinstance(rows[0], np.ndarray):
            if name in stacks and not all(np.may_share_memory(row, stacks[name]) for row in rows):
                raise ValueError(
                    f"an event has assigned s.{name}, expected changes in place: s.{name} -= ..., "
                    f"s.{name}[:] = ..."
                )
            found[name[0].upper() + name[1:]] = stacks.get(name, rows)
        else:
            found[name] = np.array(rows)
    return SimpleNamespace(**found)


def histogram(counts: Mapping[int, int]) -> np.ndarray:
    """Return the number of messages of each age."""
    ages = np.zeros(max(counts, default=-1) + 1, np.int64)
    ages[list(counts)] = list(counts.values())
    return ages
