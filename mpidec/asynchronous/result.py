"""Results of asynchronous runs, and the states of the agents as stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..endings import Outcome


@dataclass(frozen=True)
class AsyncResult:
    """Result of an asynchronous run.

    Attributes
    ----------
    X : array (n, d)
        The final iterates.
    x : array (d,)
        Their average.
    outcome : Outcome
        "completed", "stopped" (by `stop`), "missed" (`stop` not reached) or "diverged"; compares equal to the plain string.
    steps : int
        Wake-ups, or gradients, of an agent in the mean.
    metrics : dict of arrays
        One entry per record: the counters `step` (events of an agent in the mean), `time`, `events`, `gradients`, `messages` and
        `bytes` (of all agents); `consensus`; and, if the problem provides them, `gradient_norm`, `objective`, `error`, `error_rms`
        and `error_max`; see `mpidec.metrics.Metrics`.
    state : namespace
        The fields of the solver's states, as stacks with a row per agent: `X`, and, for example, `X_tilde`; numbers as arrays
        `(n,)` under their small names; of fields with a row per neighbour, lists if the numbers of neighbours differ.
    counts : array (n,)
        Wake-ups, or gradients, of each agent.
    averagings : dict
        Averagings of each edge, `{(i, j): number}` with i < j; empty for push methods.
    staleness : array of int
        Histogram of the ages of messages when they are read, in units of time rounded down; empty for pairwise methods.
    solver : Solver
        The solver with numbers for the parameters that the run has found.
    reason : str
        For a diverged run what happened, for a missed target the last value; else empty.
    agent : int or None
        For a diverged run, the first agent whose iterate was not finite, or the one farthest from zero.
    idle : array (ranks,) or None
        On ranks: the share of the time in which the gradients of each rank waited for its averagings.

    Notes
    -----
    On ranks `X` and `state` have the local agents alone, and `staleness` counts how many messages of a sender a reading has found.
    """

    X: np.ndarray
    x: np.ndarray
    outcome: Outcome
    steps: int
    metrics: dict[str, np.ndarray] = field(repr=False)
    state: Any = field(repr=False)
    counts: np.ndarray = field(repr=False)
    averagings: Mapping[tuple[int, int], int] = field(repr=False)
    staleness: np.ndarray = field(repr=False)
    solver: Any = None
    reason: str = ""
    agent: int | None = None
    idle: np.ndarray | None = field(default=None, repr=False)


def stacked(states: Sequence[Any]) -> dict[str, np.ndarray]:
    """Make the array fields of the states rows of one stack each, and return the stacks; fields of different shapes stay alone.

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


def collected(states: Sequence[Any], stacks: Mapping[str, np.ndarray]) -> SimpleNamespace:
    """Return the fields of all states: stacks under capital letters (lists, if shapes differ), numbers as arrays.

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
            found[name[0].upper() + name[1:]] = stacks.get(name, rows)
        else:
            found[name] = np.array(rows)
    return SimpleNamespace(**found)
