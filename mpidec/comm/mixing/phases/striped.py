"""Mixers of several graphs at once, each of which mixes its own columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...arrays import BFLOAT16, ArrayT, narrow, to_host, widen
from ...runtime import Pending, Several
from ..base.edges import edges_into, edges_out_of
from ..base.step import StepOperator
from .wrapped import WrappedPhase, targets

if TYPE_CHECKING:
    from ....topology import Topology


class StripedPhase(WrappedPhase):
    """The operator of several graphs at once: column c of a row travels over graph c mod K.

    Edges are sorted by receiver (those out of an agent by sender), then graph, then the other end.

    Parameters
    ----------
    parts : list of StepOperator
        The operators of the graphs.
    k, at
        See `WrappedPhase`.
    agents : range
        The agents on this rank.
    """

    def __init__(
        self,
        parts: Sequence[StepOperator],
        k: int,
        at: Callable[[int], StepOperator],
        agents: range,
    ):
        super().__init__(parts[0], k, at)
        self._parts, self.agents = parts, agents

    @property
    def parts(self) -> Sequence[StepOperator]:
        """The operators of the graphs."""
        return self._parts

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        for part in self._parts:
            part.abort_operation(error, op)

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        """Begin to mix the columns of each array, all arrays over one graph in one message."""
        K = len(self._parts)
        started = []
        for stripe, part in enumerate(self._parts):
            wide = [X for X in arrays if X.shape[1] > stripe]
            if wide:
                columns = [np.ascontiguousarray(X[:, stripe::K]) for X in wide]
                started.append(part.start_all(columns))

        def collect() -> list[np.ndarray]:
            mixed = targets(arrays, out)
            for stripe, pending in enumerate(started):
                wide = [Y for Y in mixed if Y.shape[1] > stripe]
                for Y, columns in zip(wide, pending.wait()):
                    Y[:, stripe::K] = columns
            return mixed

        return Pending(Several(started), collect)

    @cached_property
    def _order(self) -> Order:
        graphs = tuple(part.topology for part in self._parts)
        return _order(graphs, self.agents.start, self.agents.stop)

    @property
    def in_edges(self) -> int:
        """Number of edges into the local agents, of all graphs."""
        return len(self._order.arriving)

    def to_edges(self, X: ArrayT) -> ArrayT:
        """Return the sender's row for each edge out of the local agents; of each row, only the
        columns of its graph travel.
        """
        rows, format, restore = to_host(X)
        sent: ArrayT = restore(rows[self._order.senders], format)
        return sent

    def exchange(self, M: ArrayT) -> ArrayT:
        """Send a different row over each edge; zeros arrive in the columns of other graphs."""
        made: ArrayT = self.start_exchange(M).wait()
        return made

    def start_exchange(self, M: ArrayT) -> Pending:
        order, K = self._order, len(self._parts)
        rows, format, restore = to_host(M)
        arriving = [
            part.start_exchange(np.ascontiguousarray(rows[order.out_of(stripe), stripe::K]))
            for stripe, part in enumerate(self._parts)
        ]

        def collect() -> ArrayT:
            arrived = np.zeros((self.in_edges, *rows.shape[1:]), rows.dtype)
            for stripe, pending in enumerate(arriving):
                arrived[order.into(stripe), stripe::K] = pending.wait()
            made: ArrayT = restore(arrived, format)
            return made

        return Pending(Several(arriving), collect)

    def sum_edges(self, M: ArrayT) -> ArrayT:
        """Sum over the edges into each local agent, in each column over those of its graph."""
        order = self._order
        return self._columns(M, lambda part, stripe, rows: part.sum_edges(rows[order.into(stripe)]))

    def own(self, X: ArrayT) -> ArrayT:
        """Return the rows times the agents' weights for themselves; see `Phase.own`."""
        return self._columns(X, lambda part, stripe, rows: part.own(rows))

    def _columns(
        self, X: ArrayT, act: Callable[[StepOperator, int, np.ndarray], np.ndarray]
    ) -> ArrayT:
        """Return the rows of the local agents that each graph makes of its columns."""
        K, (rows, format, restore) = len(self._parts), to_host(X)
        rows = widen(rows, format) if format == BFLOAT16 else rows
        result = np.empty((self.m, *rows.shape[1:]), rows.dtype)
        for stripe, part in enumerate(self._parts):
            result[:, stripe::K] = act(part, stripe, rows[:, stripe::K])
        made: ArrayT = restore(narrow(result, format) if format == BFLOAT16 else result, format)
        return made


class Order(NamedTuple):
    """Edges of several graphs in common order."""

    senders: np.ndarray  # of the edges out of the local agents, counted from the first local agent
    # The graph of each edge out of the local agents.
    leaving: np.ndarray
    arriving: np.ndarray  # and into them

    def out_of(self, stripe: int) -> np.ndarray:
        """Return the edges of a graph among those out of the local agents, in its own order."""
        return np.flatnonzero(self.leaving == stripe)

    def into(self, stripe: int) -> np.ndarray:
        """Return the edges of a graph among those into the local agents, in its own order."""
        return np.flatnonzero(self.arriving == stripe)


@lru_cache(maxsize=16)
def _order(graphs: tuple[Topology, ...], lo: int, hi: int) -> Order:
    ends = [
        [edges_out_of(graph, lo, hi).senders for graph in graphs],
        [edges_into(graph, lo, hi).receivers for graph in graphs],
    ]
    (senders, leaving), (_, arriving) = (
        (
            np.sort(np.concatenate(agents)),
            np.repeat(np.arange(len(graphs)), [len(some) for some in agents])[
                np.argsort(np.concatenate(agents), kind="stable")
            ],
        )
        for agents in ends
    )
    return Order(senders - lo, leaving, arriving)
