"""Edges of a graph into and out of some agents, in the order of `W.exchange`."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...kernels import Weights

if TYPE_CHECKING:
    from ....topology import Topology
    from ....topology.internals import EdgeBlock


class Edges(NamedTuple):
    """Edges as arrays of the same length: the agents at both ends, and the weight W[receiver,
    sender].  Read-only, since all mixers of equal graphs share them.
    """

    receivers: np.ndarray
    senders: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=64)
def edges_into(topology: Topology, lo: int, hi: int) -> Edges:
    """Return the edges into the agents `lo:hi`, sorted by receiver, then sender.

    Examples
    --------
    >>> from mpidec.topology import chain
    >>> edges = edges_into(chain(3), 0, 2)
    >>> edges.receivers.tolist(), edges.senders.tolist()
    ([0, 1, 1], [1, 0, 2])
    """
    return Edges(*_entries(topology.source.rows(lo, hi), lo))


@lru_cache(maxsize=64)
def edges_out_of(topology: Topology, lo: int, hi: int) -> Edges:
    """Return the edges out of the agents `lo:hi`, sorted by sender, then receiver."""
    senders, receivers, weights = _entries(topology.source.columns(lo, hi), lo)
    return Edges(receivers, senders, weights)


class LocalEdges:
    """The edges of a graph into and out of the agents of a rank, found when they are needed.

    Parameters
    ----------
    topology : Topology
    agents : range
    """

    def __init__(self, topology: Topology, agents: range):
        self._topology, self._agents = topology, agents

    @cached_property
    def into(self) -> Edges:
        """The edges into the agents; see `edges_into`."""
        return edges_into(self._topology, self._agents.start, self._agents.stop)

    @cached_property
    def out_of(self) -> Edges:
        """The edges out of the agents; see `edges_out_of`."""
        return edges_out_of(self._topology, self._agents.start, self._agents.stop)

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """For each agent, where its edges among those into all agents begin and end."""
        bounds = np.searchsorted(self.into.receivers, [*self._agents, self._agents.stop]).tolist()
        return list(pairwise(bounds))

    @cached_property
    def senders(self) -> np.ndarray:
        """The senders of the edges out of the agents, counted from the first agent."""
        return self.out_of.senders - self._agents.start

    @cached_property
    def degrees(self) -> np.ndarray:
        """The number of edges out of each agent."""
        return np.bincount(self.senders, minlength=len(self._agents))

    @cached_property
    def turned(self) -> np.ndarray:
        """Where each edge into the agents is among those out of them, if they are all agents."""
        return np.lexsort((self.out_of.senders, self.out_of.receivers))

    @cached_property
    def places(self) -> np.ndarray:
        """The receivers of the edges into the agents, counted from the first agent."""
        return self.into.receivers - self._agents.start

    @cached_property
    def terms(self) -> Weights:
        """The terms of the agents' sums, of their own rows and of those of the edges into them."""
        graph, (lo, hi) = self._topology, (self._agents.start, self._agents.stop)
        rows = graph.source.rows(lo, hi)
        own = rows.indices == lo + np.repeat(np.arange(hi - lo), np.diff(rows.indptr))
        places = np.where(own, rows.indices - lo, hi - lo + np.cumsum(~own) - 1)
        columns = graph.source.columns(lo, hi) if graph.kind == "column" else None
        return Weights.of(lo, rows, places, columns)

    def sum(self, rows: np.ndarray) -> np.ndarray:
        """Return the sum over the edges into each agent, in ascending order of the senders."""
        total = np.zeros((len(self._agents), *rows.shape[1:]), rows.dtype)
        np.add.at(total, self.places, rows)
        return total


def _entries(block: EdgeBlock, lo: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of the entries of a block of a matrix that are not on its
    diagonal.
    """
    row = lo + np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    column = block.indices.astype(np.int64)
    others = row != column
    entries = row[others], column[others], block.data[others]
    for array in entries:
        array.flags.writeable = False
    return entries
