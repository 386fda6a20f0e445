"""Geometry of one phase on one rank: which rows come from where, and which of ours go to whom.  No communication."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.weighted import Runs, Weights
from ..runtime.partition import Partition

if TYPE_CHECKING:
    from ..topology import Topology
    from ..topology.source import Block

_NOBODY = np.empty(0, np.int64)
_MANY, _SPARSE = 1024, 64                           # agents from which on, and degree up to which, runs of rows pay


@dataclass(frozen=True, eq=False)
class Route:
    """Rows of one exchange, grouped by rank in ascending order.

    `send[t]` is the local row that takes place t on the wire; None if the rows for each rank lie side by side anyway, and the
    places are those of the local rows.  Rank `dests[i]` gets `send_counts[i]` rows from place
    `send_starts[i]` on, and so for what arrives.  `own` names the places of the rows that stay on this rank, if any.
    """

    send: np.ndarray | None
    dests: np.ndarray
    send_counts: np.ndarray
    send_starts: np.ndarray
    sources: np.ndarray
    recv_counts: np.ndarray
    recv_starts: np.ndarray
    own: tuple[slice, slice] | None

    @classmethod
    def of(cls, send: np.ndarray, to: np.ndarray, source: np.ndarray, rank: int) -> Route:
        """The route of the rows `send`, going to the ranks `to` and arriving from the ranks `source` (both ascending)."""
        out, into = _segments(to, rank), _segments(source, rank)
        if out[3] is None and all(np.all(np.diff(part) == 1) for part in np.split(send, out[2][1:])):
            return cls(None, out[0], out[1], send[out[2]], *into[:3], None)
        own = (out[3], into[3]) if out[3] is not None and into[3] is not None else None
        return cls(send, *out[:3], *into[:3], own)


class Plan:
    """Rows `lo:hi` of one mixing matrix, cut for the rank that hosts those agents.

    The rows that a sum reads have places: first the own rows, then those of other ranks of the node, which are read where they lie,
    then the halo, which comes in messages.  The terms of a sum keep the ascending order of the agents whatever their places,
    so that each sum is taken in the same order on any number of ranks.

    Parameters
    ----------
    topology : Topology
    partition : Partition
    rank : int
    on_node : array of int
        Other ranks whose rows need no messages.
    """

    def __init__(self, topology: Topology, partition: Partition, rank: int, on_node: np.ndarray = _NOBODY):
        self.topology, self.partition, self.rank = topology, partition, rank
        self.lo, self.hi = partition.bounds(rank)
        self.m = self.hi - self.lo
        self._on_node, self.ins, self.halo = on_node, _NOBODY, _NOBODY
        self.weights: Weights | Runs
        worthwhile = partition.size == 1 and self.m >= _MANY and topology.source.arcs <= _SPARSE * self.m
        runs = topology.source.runs() if worthwhile else None
        if runs is not None:
            self.weights = Runs.of(runs)
            return
        places = self._rows.indices
        if partition.size > 1:
            places = self._places(places.astype(np.int64))
        columns = topology.source.columns(self.lo, self.hi) if topology.kind == "column" else None
        self.weights = Weights.of(self.lo, self._rows, places, columns)

    def _places(self, agents: np.ndarray) -> np.ndarray:
        owner = self.partition.owner(agents)
        near = np.isin(owner, self._on_node)
        self.ins = np.unique(owner[near])
        self.halo = np.unique(agents[(owner != self.rank) & ~near])
        held = self.partition.counts()[self.ins]
        starts = self.m + np.cumsum(held) - held
        first = np.array([self.partition.bounds(rank)[0] for rank in self.ins.tolist()], np.int64)
        places = np.where(owner == self.rank, agents - self.lo, self.m + held.sum() + np.searchsorted(self.halo, agents))
        at = np.searchsorted(self.ins, owner[near])
        places[near] = starts[at] + agents[near] - first[at]
        return places

    @cached_property
    def outs(self) -> np.ndarray:
        """The ranks of the node that read rows of this one."""
        to = self.partition.owner(self._out[1])
        return np.unique(to[np.isin(to, self._on_node)])

    @property
    def terms(self) -> Weights:
        """The weights, one by one."""
        if isinstance(self.weights, Runs):
            raise TypeError("runs of rows have no terms of their own")
        return self.weights

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """For each term, where its row is: 0 for the own rows, 1... for the ranks `ins`, then the halo; and which row there."""
        indices = self.terms.indices
        held = self.partition.counts()[self.ins]
        starts = np.concatenate([[0], self.m + np.cumsum(held) - held, [self.m + held.sum()]])
        source = np.searchsorted(starts, indices, "right") - 1
        source = np.where(indices < self.m, 0, source)
        return source, indices - starts[source]

    @cached_property
    def _rows(self) -> Block:
        return self.topology.source.rows(self.lo, self.hi)

    @cached_property
    def _out(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges out of the local agents, `(agent, receiver)`, sorted by agent, then receiver; no self-loops."""
        return _edges(self.topology.source.columns(self.lo, self.hi), self.lo)

    @cached_property
    def _in(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges into the local agents, `(agent, sender)`, sorted by agent, then sender; no self-loops."""
        return _edges(self._rows, self.lo)

    @cached_property
    def edges(self) -> int:
        """Messages that the local agents send in one mixing."""
        return self.topology.source.arcs if self.partition.size == 1 else len(self._out[0])

    @cached_property
    def halo_route(self) -> Route:
        """Each neighbouring rank gets every row that it reads once, however many of its agents read it."""
        agent, receiver = self._out
        to = self.partition.owner(receiver)
        remote = (to != self.rank) & ~np.isin(to, self._on_node)
        pairs = np.unique(to[remote] * self.partition.n + agent[remote])
        return Route.of(pairs % self.partition.n - self.lo, pairs // self.partition.n, self.partition.owner(self.halo), self.rank)

    @cached_property
    def edge_route(self) -> tuple[Route, np.ndarray]:
        """A row per edge: the route (this rank's own edges included), and the in-edge that each arriving row belongs to."""
        to = self.partition.owner(self._out[1])
        wire = np.argsort(to, kind="stable")
        home, sender = self._in
        source = self.partition.owner(sender)
        arrival = np.lexsort((home, sender, source))
        return Route.of(wire, to[wire], source[arrival], self.rank), arrival

    def edge_places(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each in-edge, where its row is: 0 for this rank, 1... for `ranks`; and its place among the out-edges there."""
        home, sender = self._in
        owner = self.partition.owner(sender)
        source, row = np.where(owner == self.rank, 0, 1 + np.searchsorted(ranks, owner)), np.zeros(len(home), np.int64)
        for number, rank in enumerate([self.rank, *ranks.tolist()]):
            lo, hi = self.partition.bounds(rank)
            out = np.array(_edges(self.topology.source.columns(lo, hi), lo))
            mine = source == number
            row[mine] = np.searchsorted(out[0] * self.partition.n + out[1], sender[mine] * self.partition.n + home[mine])
        return source, row

    @property
    def senders(self) -> np.ndarray:
        """Local row of the sender of each out-edge."""
        return self._out[0] - self.lo

    @property
    def receivers(self) -> np.ndarray:
        """Local row of the receiver of each in-edge."""
        return self._in[0] - self.lo


def _edges(rows: Block, lo: int) -> tuple[np.ndarray, np.ndarray]:
    agent = lo + np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    other = rows.indices.astype(np.int64)
    proper = agent != other
    return agent[proper], other[proper]


def _segments(ranks: np.ndarray, own: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, slice | None]:
    """`(rank, count, start)` of each run of equal ranks except the own one, and the own one as a slice."""
    rank, start, count = np.unique(ranks, return_index=True, return_counts=True)
    other = rank != own
    mine = None if other.all() else slice(int(start[~other][0]), int((start + count)[~other][0]))
    return rank[other], count[other], start[other], mine
