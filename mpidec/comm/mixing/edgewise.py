"""Bases of the mixers that change rows on their way over the edges, or what is made of them: attacked, noisy and robust ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from ..runtime.pending import Pending
from .edges import edges_into
from .operator import Operator, StepOperator
from .packing import Empty
from .striped import StripedPhase
from .wrapped import Wrapped, WrappedPhase

MAX_CALLS = 1 << 6  # per step: each call has random numbers of its own


def returned(row: object, of: str, like: np.ndarray, number: bool = False) -> Any:
    """The row like `like` (or a `number`) that a function has returned; an array would take None for undefined numbers.

    Raises
    ------
    ValueError
    """
    if row is None:
        raise ValueError(f"{of} returned None, expected a row: is a return missing?")
    shape = np.shape(row)  # type: ignore[call-overload]
    if shape != like.shape and not (number and shape == ()):
        raise ValueError(
            f"{of} returned an array of shape {shape}, expected that of a row, {like.shape}"
        )
    return row


class EdgewisePhase(WrappedPhase):
    """The operator of one step, whose averages are those of the rows that `exchange` brings; it counts its calls.

    Parameters
    ----------
    phase, k, at, empty
        See `WrappedPhase`.
    agents : range
        The agents on this rank.
    stripe : int
        Number of the graph among those that a row is divided among.
    calls : iterator of int
        Numbers of the calls, shared by both operators of a pair.
    """

    def __init__(
        self,
        phase: StepOperator,
        k: int,
        at: Callable[[int], StepOperator],
        empty: Empty,
        agents: range,
        stripe: int,
        calls: Iterator[int],
    ):
        super().__init__(phase, k, at, empty)
        self._agents, self._stripe, self._calls = agents, stripe, calls
        self._into = edges_into(self.topology, agents.start, agents.stop)

    @abstractmethod
    def _like(self, phase: StepOperator, at: Callable[[int], StepOperator]) -> StepOperator:
        """The same operator, of another one."""

    @property
    def C(self) -> StepOperator:
        """The column-stochastic operator of a pair, changed in the same way; of any other `W`, itself."""
        C = self._phase.C
        return self if C is self._phase else self._like(C, lambda k: self._at(k).C)

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        super().abort_operation(error, "W.exchange(M)" if op == "W(X)" else op)

    def _begin(self, rows: np.ndarray, target: np.ndarray) -> Pending:
        arrived = self.exchange(self.to_edges(rows))
        arrived *= self._into.weights.astype(rows.dtype)[:, None]
        np.add(self.own(rows), self.sum_edges(arrived), out=target)
        self._towards(target, rows)
        return Pending(None, lambda: target)

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge; see `Phase.exchange`."""
        return self._phase.exchange(M)


class Edgewise(Wrapped[StepOperator]):
    """A mixer that changes rows on their way over the edges, or what is made of them.

    Parameters
    ----------
    W : Operator
    """

    def __init__(self, W: Operator[StepOperator]):
        super().__init__(W)
        self._stripes = len(W.at(0).parts)

    @abstractmethod
    def _part(self, phase: StepOperator, k: int, stripe: int, calls: Iterator[int]) -> StepOperator:
        """The operator of step `k` on one of the graphs that a row is divided among."""

    def at(self, k: int) -> StepOperator:
        """The operator of step `k`; its calls are counted from zero."""
        parts = [
            self._part(part, k, stripe, count()) for stripe, part in enumerate(self.W.at(k).parts)
        ]
        if self._stripes == 1:
            return parts[0]
        return StripedPhase(parts, k, self.at, self.empty, self.agents)
