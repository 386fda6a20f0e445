"""Results of asynchronous runs, and the states of the agents as stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ..._complex import as_reals, from_reals, is_complex
from ...solvers.internals import PairwiseSolver, Place, PushSolver
from ...topology import Topology
from ..result import Result
from .draws import Gradient


class AgentState(Protocol):
    """The state of an agent, a dataclass: its iterate, its number of events, and what else the
    solver needs.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    x: np.ndarray
    k: int


class LocalAgents(NamedTuple):
    """States of the local agents, the stacks that their arrays are rows of, their neighbours,
    length and dtype of a message; complex rows are pairs of reals there.
    """

    states: list[AgentState]
    stacks: dict[str, np.ndarray]
    places: list[Place]
    width: int
    dtype: np.dtype[Any]
    complex: bool = False

    @property
    def X(self) -> np.ndarray:
        """The iterates."""
        X = self.stacks["x"]
        return from_reals(X) if self.complex else X

    def collected(self) -> SimpleNamespace:
        """Return the fields of all states (`collected`), complex rows as such."""
        found = collected(self.states, self.stacks)
        if self.complex:
            wide = self.stacks["x"].shape[1]
            for name, rows in vars(found).items():
                if isinstance(rows, np.ndarray) and rows.ndim > 1 and rows.shape[-1] == wide:
                    setattr(found, name, from_reals(rows))
        return found

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
        """Return the states at first."""
        places = [
            Place(
                i,
                topology.n,
                tuple(topology.in_neighbors(i).tolist()),
                tuple(topology.out_neighbors(i).tolist()),
            )
            for i in agents
        ]
        rows = as_reals(X)
        states = [solver.init(x, place) for x, place in zip(rows, places)]
        d = rows.shape[1]
        return cls(
            states,
            stacked(states) if states else {"x": np.empty((0, d), rows.dtype)},
            places,
            solver.width(d) if isinstance(solver, PushSolver) else d,
            rows.dtype,
            is_complex(X),
        )

    def recall(self, stored: Mapping[str, np.ndarray]) -> None:
        """Set the states to those of a checkpoint, named as by `collected`."""
        for name, values in stored.items():
            # A stack of rows has a capital letter, X, and the field of an agent a small one, x.
            stack = self.stacks.get(name[0].lower() + name[1:])
            if stack is not None:
                stack[:] = as_reals(values)
            else:
                for s, value in zip(self.states, values.tolist()):
                    setattr(s, name, value)


@dataclass(frozen=True, repr=False)
class AsyncResult(Result):
    """Result of an asynchronous run: that of a synchronous one, with what the agents have done.

    Attributes
    ----------
    X : array (n, d)
        The final iterates.
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
    idle : array (ranks,) or None
        On ranks: the share of the time in which each rank waited: its gradients for its averagings,
        or for something to read.

    left : array of int or None
        After deaths with `on_failure="drop"`: the agents that are left, whose rows and records the
        others are; `counts` is 0 of those that have died.
    lost_mass : float
        The mass that was lost with them, of n at first; see `mpidec.solve`.

    Notes
    -----
    The other attributes are those of `mpidec.Result`.  On ranks `X` and `state` have the local
    agents alone, and `staleness` counts how many messages of a sender a reading has found.
    """

    state: Any = None
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    averagings: Mapping[tuple[int, int], int] = field(default_factory=dict)
    staleness: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    solver: PairwiseSolver | PushSolver | None = None
    idle: np.ndarray | None = None
    left: np.ndarray | None = None
    lost_mass: float = 0.0

    def activity_arrays(self) -> dict[str, np.ndarray]:
        found = activity_arrays(self.counts, self.averagings, self.staleness, self.idle)
        if self.left is None:
            return found
        return found | {"left": self.left, "lost_mass": np.array(self.lost_mass)}

    @property
    def obstacle(self) -> str:
        """Why a file of this run cannot be resumed, or an empty string."""
        return "" if self.idle is None else cannot_resume(self.solver)


def cannot_resume(solver: object) -> str:
    """Return why runs of this solver, or class of solvers, on ranks cannot be resumed, or an empty
    string.

    Examples
    --------
    >>> import mpidec
    >>> cannot_resume(mpidec.solvers.RunningSumTracking), cannot_resume(mpidec.solvers.A2CiD2(0.1))
    ('', '')
    """
    kind = solver if isinstance(solver, type) else type(solver)
    if not issubclass(kind, PushSolver) or kind.accumulates:
        return ""
    if kind.last_message is not PushSolver.last_message:
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
    """Return what local agent i sends when it wakes up, of this dtype, if it has the length that
    the solver states.

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


def activity_arrays(
    counts: np.ndarray,
    averagings: Mapping[tuple[int, int], int],
    staleness: np.ndarray,
    idle: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Return what `Run.asynchronous` holds of a run; the parameters are fields of `AsyncResult`.

    Examples
    --------
    >>> activity_arrays(np.array([1, 2]), {(0, 1): 3}, np.array([], int), None)["averagings"].tolist()
    [3]
    """
    found = {"steps": counts}
    if averagings:
        edges = sorted(averagings)
        found["edges"] = np.array(edges, np.int64)
        found["averagings"] = np.array([averagings[edge] for edge in edges], np.int64)
    if len(staleness):
        found["staleness"] = staleness
    if idle is not None:
        found["idle"] = idle
    return found
