"""Geometry of one phase on one rank: the rows that the local sums read, and the rows that other
ranks read.  No communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from ..kernels import POSITIVE, ROWS, Entries, Runs, Weights
from ..runtime import Partition

if TYPE_CHECKING:
    from ...topology import Topology
    from ...topology.internals import EdgeBlock

_NO_RANKS = np.empty(0, np.int64)
# Least number of agents, and largest mean degree, for which runs are used.
_MANY, _SPARSE = (
    1024,
    64,
)


@dataclass(frozen=True, eq=False)
class Route:
    """Rows of one exchange, grouped by rank in ascending order.

    Attributes
    ----------
    send : array of int or None
        The local rows in the order of sending; None if the rows for each rank are adjacent, and are
        sent from where they are.
    dests, send_counts, send_starts : array of int
        Rank `dests[i]` receives `send_counts[i]` rows, starting at position `send_starts[i]` of
        `send` (or of the local rows).
    sources, recv_counts, recv_starts : array of int
        The same for the rows that arrive.
    own : (slice, slice) or None
        Positions of the rows that stay on this rank, among those sent and those received, if there
        are any.
    """

    send: np.ndarray | None
    dests: np.ndarray
    send_counts: np.ndarray
    send_starts: np.ndarray
    sources: np.ndarray
    recv_counts: np.ndarray
    recv_starts: np.ndarray
    own: tuple[slice, slice] | None

    @cached_property
    def leaving(self) -> list[tuple[int, int, int]]:
        """Each rank that receives rows, and where they begin and end among those sent."""
        stops = self.send_starts + self.send_counts
        return list(zip(self.dests.tolist(), self.send_starts.tolist(), stops.tolist()))

    @cached_property
    def arriving(self) -> list[tuple[int, int, int]]:
        """Each rank that sends rows, and where they begin and end among those received."""
        stops = self.recv_starts + self.recv_counts
        return list(zip(self.sources.tolist(), self.recv_starts.tolist(), stops.tolist()))

    @classmethod
    def of(cls, send: np.ndarray, to: np.ndarray, source: np.ndarray, rank: int) -> Route:
        """Route of the local rows `send` to the ranks `to`, and of arriving rows from the ranks
        `source` (both ascending).
        """
        out, into = _segments(to, rank), _segments(source, rank)
        if out[3] is None and all(
            np.all(np.diff(part) == 1) for part in np.split(send, out[2][1:])
        ):
            return cls(None, out[0], out[1], send[out[2]], *into[:3], None)
        own = (out[3], into[3]) if out[3] is not None and into[3] is not None else None
        return cls(send, *out[:3], *into[:3], own)


class Routes:
    """Rows `lo:hi` of one mixing matrix, prepared for the rank that hosts these agents.

    The rows that the sums read are numbered: first the rows of this rank, then those of other ranks
    of the node, which are read in place, then the halo, which arrives in messages.  The terms of a
    sum are in ascending order of the agents, independent of this numbering, so that the order of
    summation is the same on any number of ranks.

    Parameters
    ----------
    topology : Topology
    partition : Partition
    rank : int
    on_node : array of int
        Other ranks of the node, whose rows are read in place.

    Attributes
    ----------
    ins : array of int
        The ranks of the node whose rows this rank reads.
    halo : array of int
        The agents whose rows arrive in messages.
    weights : Weights or Runs
        The terms of the sums.
    """

    def __init__(
        self, topology: Topology, partition: Partition, rank: int, on_node: np.ndarray = _NO_RANKS
    ):
        self.topology, self.partition, self.rank = topology, partition, rank
        self.lo, self.hi = partition.bounds(rank)
        self.m = self.hi - self.lo
        self._on_node, self.ins, self.halo = on_node, _NO_RANKS, _NO_RANKS
        self.weights: Weights | Runs
        worthwhile = (
            partition.size == 1 and self.m >= _MANY and topology.source.arcs <= _SPARSE * self.m
        )
        runs = topology.source.runs() if worthwhile else None
        if runs is not None:
            self.weights = Runs.of(runs)
            return
        if partition.size == 1 and (A := topology.source.dense) is not None:
            self.weights = cast("Weights", Weights.of_dense(A, 0))
            return
        places = self._rows.indices
        if partition.size > 1:
            places = self._places(places.astype(np.int64))
        columns = topology.source.columns(self.lo, self.hi) if topology.kind == "column" else None
        self.weights = Weights.of(self.lo, self._rows, places, columns, topology.kind == "any")

    def _places(self, agents: np.ndarray) -> np.ndarray:
        """Return the numbers of these agents' rows; sets `ins` and `halo`."""
        owner = self.partition.owner(agents)
        on_node = np.isin(owner, self._on_node)
        self.ins = np.unique(owner[on_node])
        self.halo = np.unique(agents[(owner != self.rank) & ~on_node])
        held = self.partition.counts()[self.ins]
        starts = self.m + np.cumsum(held) - held
        first = np.array([self.partition.bounds(rank)[0] for rank in self.ins.tolist()], np.int64)
        places = np.where(
            owner == self.rank,
            agents - self.lo,
            self.m + held.sum() + np.searchsorted(self.halo, agents),
        )
        at = np.searchsorted(self.ins, owner[on_node])
        places[on_node] = starts[at] + agents[on_node] - first[at]
        return places

    def reweighted(self, rows: np.ndarray) -> Routes | None:
        """Return the same plan with other weights, those of the dense local rows (m, n) of a
        matrix.

        None if they do not sum to one, are not >= 0, or lie beside the edges.
        """
        weights, _ = Weights.of_dense(rows, self.lo, ROWS | POSITIVE, self.entries), self.edges
        if weights is None:
            return None
        made = object.__new__(Routes)
        made.__dict__ = self.__dict__.copy()
        made.weights = weights
        return made

    @cached_property
    def entries(self) -> Entries:
        """The edges into the local agents, and where the rows are that they bring."""
        known = self.weights
        if isinstance(known, Runs):
            known = Weights.of(self.lo, self._rows, self._rows.indices, None)
        return Entries(known.indptr, self._in[1], known.indices)

    @cached_property
    def outs(self) -> np.ndarray:
        """The ranks of the node that read rows of this rank."""
        to = self.partition.owner(self._out[1])
        return np.unique(to[np.isin(to, self._on_node)])

    @property
    def terms(self) -> Weights:
        """The weights in CSR form."""
        if isinstance(self.weights, Runs):
            raise TypeError("the plan stores runs of rows, which have no weights in CSR form")
        return self.weights

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """Location of the row of each term.

        Returns
        -------
        source : array of int
            0 for this rank, 1, 2, ... for the ranks `ins`, and the next number for the halo.
        row : array of int
            The row there.
        """
        indices = self.terms.indices
        held = self.partition.counts()[self.ins]
        starts = np.concatenate([[0], self.m + np.cumsum(held) - held, [self.m + held.sum()]])
        source = np.searchsorted(starts, indices, "right") - 1
        source = np.where(indices < self.m, 0, source)
        return source, indices - starts[source]

    @cached_property
    def _rows(self) -> EdgeBlock:
        return self.topology.source.rows(self.lo, self.hi)

    @cached_property
    def _out(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges out of the local agents as arrays `(agent, receiver)`, sorted by agent, then
        receiver; without self-loops.
        """
        return _edges(self.topology.source.columns(self.lo, self.hi), self.lo)

    @cached_property
    def _in(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges into the local agents as arrays `(agent, sender)`, sorted by agent, then sender;
        without self-loops.
        """
        return _edges(self._rows, self.lo)

    @cached_property
    def edges(self) -> int:
        """Number of edges out of the local agents: rows that they send in one mixing."""
        if self.partition.size > 1:
            return len(self._out[0])
        if isinstance(self.weights, Weights) and self.topology.kind in ("doubly", "row"):
            return len(self.weights.w)
        return self.topology.source.arcs

    @cached_property
    def halo_route(self) -> Route:
        """Route of the halo: a neighbouring rank receives each row once, even if several of its
        agents read it.
        """
        agent, receiver = self._out
        to = self.partition.owner(receiver)
        remote = (to != self.rank) & ~np.isin(to, self._on_node)
        # (receiving rank, agent) as one number: sorted by rank, and each row once per rank.
        pairs = np.unique(to[remote] * self.partition.n + agent[remote])
        return Route.of(
            pairs % self.partition.n - self.lo,
            pairs // self.partition.n,
            self.partition.owner(self.halo),
            self.rank,
        )

    @cached_property
    def edge_route(self) -> tuple[Route, np.ndarray]:
        """Route of one row per edge (edges within this rank included), and the in-edge that each
        arriving row belongs to.
        """
        to = self.partition.owner(self._out[1])
        # Sent by receiving rank, then in the order of the out-edges (sender, receiver); the
        # arriving rows of a rank are in that same order, which `arrival` maps to the in-edges.
        order = np.argsort(to, kind="stable")
        receiver, sender = self._in
        source = self.partition.owner(sender)
        arrival = np.lexsort((receiver, sender, source))
        return Route.of(order, to[order], source[arrival], self.rank), arrival

    def edge_places(self, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Location of the row of each in-edge: 0 for this rank, 1, 2, ... for `ranks`; and its
        number among the out-edges there.
        """
        receiver, sender = self._in
        owner = self.partition.owner(sender)
        source, row = (
            np.where(owner == self.rank, 0, 1 + np.searchsorted(ranks, owner)),
            np.zeros(len(receiver), np.int64),
        )
        for number, rank in enumerate([self.rank, *ranks.tolist()]):
            lo, hi = self.partition.bounds(rank)
            out = np.array(_edges(self.topology.source.columns(lo, hi), lo))
            mine = source == number
            row[mine] = np.searchsorted(
                out[0] * self.partition.n + out[1], sender[mine] * self.partition.n + receiver[mine]
            )
        return source, row

    @property
    def senders(self) -> np.ndarray:
        """The local row of the sender of each out-edge."""
        return self._out[0] - self.lo

    @property
    def receivers(self) -> np.ndarray:
        """The local row of the receiver of each in-edge."""
        return self._in[0] - self.lo


def _edges(rows: EdgeBlock, lo: int) -> tuple[np.ndarray, np.ndarray]:
    agent = lo + np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    other = rows.indices.astype(np.int64)
    proper = agent != other
    return agent[proper], other[proper]


def _segments(
    ranks: np.ndarray, own: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, slice | None]:
    """Segments of equal ranks: `(rank, count, start)` for the other ranks, and a slice for this
    rank (`own`), if it occurs.
    """
    rank, start, count = np.unique(ranks, return_index=True, return_counts=True)
    other = rank != own
    own_segment = (
        None if other.all() else slice(int(start[~other][0]), int((start + count)[~other][0]))
    )
    return rank[other], count[other], start[other], own_segment
