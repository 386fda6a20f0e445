"""Protocols of the asynchronous solvers: events on one agent, which a driver calls in simulated
or in real time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._words import settings
from ..protocols import Graph, Operator
from .base import Solver, name_of, number
from .needs import Within

Gradient = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Place:
    """Place of an agent in the network, passed to `init` of an asynchronous solver.

    Parameters
    ----------
    agent, n : int
        Number of the agent, and number of agents.
    senders, receivers : tuple of int
        The agents that it receives from and those that it sends to, ascending.

    Examples
    --------
    >>> Place(0, 3, senders=(1, 2), receivers=(2,)).receivers
    (2,)
    """

    agent: int
    n: int
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


class Asynchronous(Solver, ABC):
    r"""Base class of the asynchronous solvers: frozen dataclasses of hyper-parameters, with events
    on the state of one agent.

    A state is an object with array fields that the events change in place (they may be rows of
    stacks, one row per agent), numbers, and the agent's own count `k` of gradients or wake-ups.
    Its field `x` is the iterate.

    Attributes
    ----------
    safe : float
        "safe" stands for the step size `safe` / L with the largest smoothness constant L of any
        agent.
    needs_problem : bool
        Whether there must be a problem; without one, the other solvers compute the average.
    """

    keeps_rows: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    safe: ClassVar[float] = 0.1
    needs_problem: ClassVar[bool] = False

    @abstractmethod
    def init(self, x: np.ndarray, place: Place | None = None) -> Any:
        """Return the state at time 0 of the agent at `place` that starts at `x`, shape `(d,)`,
        which is copied.
        """

    def step(self, s: Any, G: np.ndarray, W: Operator) -> Any:
        """Raise NotImplementedError: an asynchronous solver has no synchronous step."""
        raise NotImplementedError(
            f"{name_of(self)} has no synchronous steps: run it with "
            "mpidec.simulate(problem, solver, "
            "topology, "
            "steps=...)"
        )

    def size(self, k: int) -> Any:
        """Step size of the agent's own step k: a number, or an array with one number per column,
        when "auto" tries many at once.
        """
        return self.step_size(k) if callable(self.step_size) else self.step_size

    def losing(self, drop: float) -> str:
        """What messages that are lost with probability `drop` do to the limit, with a remedy, or
        "".
        """
        return ""

    def mass(self, s: Any) -> float:
        """Return the push-sum weight of an agent; 1 if the solver has none."""
        return 1.0

    def go_on(self, s: Any, before: Any, scale: float) -> None:
        r"""Go on when other agents have died: take over in `s`, which `init` has made of the
        iterate of this agent, what else stays of its state `before`.

        `scale` is the number of agents that are left over the sum of their masses.  By default only
        the count k stays: what the agent knows of its neighbours begins anew.
        """
        s.k = before.k

    def check(self, topology: Graph) -> None:
        """Refuse a schedule, and a graph that is not (strongly) connected."""
        if topology.period != 1:
            raise ValueError(
                f"{name_of(self)} needs a constant graph, {topology.name} varies with the step; "
                "use a topology such "
                "as topology.ring(n)"
            )
        if not topology.at(0).connected:
            raise ValueError(
                f"{name_of(self)} needs a connected graph, some agents of the {topology.name} "
                "topology are not "
                "reached by others; add edges, or use topology.ring(n)"
            )


def is_asynchronous(solver: Solver | type[Solver]) -> bool:
    """Return whether a solver, or a class of solvers, consists of events on single agents."""
    return issubclass(solver if isinstance(solver, type) else type(solver), Asynchronous)


class PushSolver(Asynchronous):
    r"""Base class of push methods: an agent that wakes up sends vectors of fixed length and never
    waits for an answer.

    .. code-block:: python

        s = solver.init(x, place)
        # At each activation:
        messages = solver.wake(s, received, gradient)
        # When nothing is under way, at the end and before a checkpoint:
        solver.collect(s, received)

    Attributes
    ----------
    accumulates : bool
        How a message joins what has not been read yet.  True: it is added.  False: it replaces the
        earlier one of its sender, and a message that is overtaken by a later one is ignored.
        Messages are cast to the dtype of the iterates, float32 or float64.
    """

    accumulates: ClassVar[bool]

    def losing(self, drop: float) -> str:
        if not (drop and self.accumulates):
            return ""
        return (
            f"{name_of(self)} loses mass with each lost message (drop={drop}), and ends at a "
            "wrong point: use RunningSumTracking"
        )

    @abstractmethod
    def width(self, d: int) -> int:
        """Length of a message for rows of length `d`."""

    @abstractmethod
    def wake(
        self, s: Any, received: np.ndarray | None, gradient: Gradient | None
    ) -> np.ndarray | None:
        """One activation: take what has arrived, descend, and return what is sent.

        Parameters
        ----------
        s : State
            Changed in place.
        received : array or None
            If the solver accumulates: the sum of the messages since the last activation, shape
            `(width,)`, None if there are none. Otherwise the latest message of each sender, shape
            `(len(senders), width)`, zeros before the first one.
        gradient : callable or None
            `gradient(x)` is the gradient of this agent; None if there is no problem.

        Returns
        -------
        array or None
            One new vector for all receivers, shape `(width,)`, or one each, shape `(len(receivers),
            width)`; None: nothing is sent.
        """

    def collect(self, s: Any, received: np.ndarray | None) -> None:
        """Take what has arrived when no message is in transit; nothing is sent."""

    def last_message(self, s: Any) -> np.ndarray | None:
        """Return the last message of an agent that has woken up, from its state; None if the state
        does not hold it.

        Where messages replace each other, a resumed run begins with these; without them it is
        refused.
        """
        return None


class PairwiseSolver(Asynchronous):
    r"""Base class of pairwise methods: gradient events of one agent, averaging events of two
    neighbours.

    .. code-block:: python

        s = solver.prepared(constants).init(x, place)

        # A gradient event begins at time t, and ends, perhaps later:
        x = solver.gradient_point(s, t)
        solver.descend(s, gradient(x), t)

        # An averaging event sends an offer to the partner, and ends, perhaps later, with the
        # partner's:
        mine = solver.offer(s, t)
        solver.average(s, mine, theirs, t)

    Time is counted in gradients: in the mean, an agent computes one gradient in a unit of time.

    Attributes
    ----------
    rate : float, dict or matrix
        Averagings of each agent in a unit of time, or the rates of the edges; see
        `mpidec.topology.mixing_constants`.
    """

    rate: Any

    def go_on(self, s: Any, before: Any, scale: float) -> None:
        mine = settings(s)
        for name, value in settings(before).items():
            own = mine[name]
            if isinstance(own, np.ndarray):
                own[:] = value
            elif name != "t":
                setattr(s, name, value)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rate, dict) and not hasattr(self.rate, "shape"):
            number(self, "rate", Within(above=0.0))

    def prepared(self, constants: Callable[[Any], tuple[float, float]]) -> PairwiseSolver:
        r"""Return the solver with numbers for the parameters that depend on the graph.

        Parameters
        ----------
        constants : callable
            `constants(rate)` returns :math:`(\chi_1, \chi_2)`; called only if a parameter depends
            on them.
        """
        return self

    @abstractmethod
    def gradient_point(self, s: Any, t: float) -> np.ndarray:
        """Return the point at which the gradient is taken in an event that begins at time `t`: the
        iterate itself, not a copy.
        """

    @abstractmethod
    def descend(self, s: Any, g: np.ndarray, t: float) -> None:
        """End of a gradient event at time `t`."""

    @abstractmethod
    def offer(self, s: Any, t: float) -> np.ndarray:
        """Return what is sent to the partner in an averaging event that begins at time `t`: a new
        vector, shape `(d,)`.
        """

    @abstractmethod
    def average(self, s: Any, mine: np.ndarray, theirs: np.ndarray, t: float) -> None:
        """End of an averaging event at time `t`, with the offers of this agent and of its
        partner.
        """

    def check(self, topology: Graph) -> None:
        """Refuse a schedule, and a graph that is not connected or directed."""
        super().check(topology)
        if topology.directed:
            raise ValueError(
                f"{name_of(self)} needs an undirected graph, the {topology.name} topology is "
                "directed: two "
                "neighbours exchange; use topology.ring(n) or symmetric_exponential(n)"
            )
