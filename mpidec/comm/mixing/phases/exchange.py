"""Rows along the edges of one step: unmixed halo rows, and a different row over each edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import BFLOAT16, ArrayT, Restore, narrow, row_bytes, to_host, widen
from ...kernels import difference, weighted_sum
from ...runtime import Context, Pending, Several, empty
from ...transport import (
    Counters,
    Ending,
    HaloExchange,
    HaloMessages,
    Kinds,
    NodeReader,
    Routes,
    start_moved,
    words,
)
from ..base.edges import LocalEdges
from ..base.gradients import refuse_grad
from ..base.packing import joined, split
from ..base.step import EdgeOperator
from ..codecs.base import bytes_of

if TYPE_CHECKING:
    from ....topology import Topology


class EdgeExchange(EdgeOperator):
    """Communication over the edges of one step without mixing: unchanged rows of the halo, and a
    different row for each edge.

    Parameters
    ----------
    context : Context
    topology : Topology
    over : str
        Text of the step, for messages.
    counts : Counters
        Counters of what is sent.
    periodic : bool
        Whether the step comes again.
    kinds : dict
        The kinds of the last exchanges over steps that do not come again.
    """

    def __init__(
        self,
        context: Context,
        topology: Topology,
        over: str,
        counts: Counters,
        periodic: bool,
        kinds: Kinds,
    ):
        self._context, self._over, self._counts = context, over, counts
        lo, hi = context.partition.bounds(context.rank)
        self.topology, self.n, self.m = topology, topology.n, hi - lo
        self.agents = range(lo, hi)
        self._periodic, self._kinds = periodic, kinds
        self._alone = context.size == 1
        self._single_node = context.memory is not None and context.memory.single_node

    @cached_property
    def _exchange(self) -> HaloExchange:
        fingerprint = self.topology.fingerprint()
        return HaloExchange(self._context, self._over, fingerprint, self._periodic, self._kinds)

    @cached_property
    def plan(self) -> Routes:
        """The plan in which all rows of other ranks belong to the halo."""
        return Routes(self.topology, self._context.partition, self._context.rank)

    def use(self, messages: HaloMessages) -> None:
        """Exchange rows by these messages, made of `plan`, instead of point to point."""
        self._exchange.use(self.plan, messages)

    @cached_property
    def _node_plan(self) -> Routes:
        """The plan in which the rows of other ranks of the node are read in place."""
        context = self._context
        near = context.memory.near if context.memory is not None else np.empty(0, np.int64)
        return Routes(self.topology, context.partition, context.rank, near[near != context.rank])

    def fetch(self, rows: np.ndarray) -> Pending:
        """Begin to fetch the unmixed rows of the neighbours on other ranks; `wait()` returns them.

        Parameters
        ----------
        rows : array (m, ...), C-contiguous
            Rows of the local agents, of any dtype.

        Returns
        -------
        Pending
            Of an array (len(halo), ...): the rows of the agents `halo`.
        """
        with self._context.engine, self._propagate_errors("fetch"):
            rows = np.ascontiguousarray(rows)
            flat, shape = rows.reshape(self.m, math.prod(rows.shape[1:])), rows.shape[1:]
            halo = empty((len(self.halo), flat.shape[1]), flat.dtype)
            if self._single_node:
                return Pending(
                    self._halo_reader.start(bytes_of(flat), bytes_of(halo), _kind(rows)),
                    lambda: halo.reshape(len(halo), *shape),
                )
            self._count(row_bytes(flat))
            arriving = self._exchange.start(
                self.plan, self.plan.halo_route, flat, halo, ("fetch", words(shape), flat.dtype)
            )
        return Pending(arriving, lambda: halo.reshape(len(halo), *shape))

    def fetch_moved(
        self, arrays: list[np.ndarray], moved: list[np.ndarray], halos: list[np.ndarray]
    ) -> Pending:
        """Begin to fetch the neighbours' rows of several arrays (m, d), of which only those that
        have `moved` are sent, and counted.

        Parameters
        ----------
        moved : list of array (m,) of bool
            For each array.
        halos : list of array (len(halo), d)
            The neighbours' rows of the last call, for each array; they are brought up to date.

        Returns
        -------
        Pending
            Of the new halos.
        """
        with self._context.engine, self._propagate_errors("fetch"):
            if self._single_node:
                whole = self.fetch(joined(arrays))
                arriving = Pending(whole, lambda: split(whole.wait(), arrays))
                self._count_edges(-1, -self.plan.edges, sum(map(row_bytes, arrays)))
            else:
                parts = [self._start_moved(*each) for each in zip(arrays, moved, halos)]
                arriving = Pending(Several(parts), lambda: [part.wait() for part in parts])
        degrees = self.edges.degrees
        self._count_edges(1, int(degrees[np.any(moved, axis=0)].sum()), 0)
        for X, some in zip(arrays, moved):
            self._counts.bytes += int(degrees[some].sum()) * row_bytes(X)
        return arriving

    def _start_moved(self, rows: np.ndarray, moved: np.ndarray, halo: np.ndarray) -> Pending:
        if self._alone:
            return Pending(None, lambda: halo)
        kind = "fetch", f"{rows.shape[1]} that have moved", rows.dtype
        return start_moved(self._exchange, self._point_to_point, rows, moved, halo, kind)

    @cached_property
    def _point_to_point(self) -> Routes:
        """The same plan, which `use` does not set collectives for: these fix the lengths of
        messages.
        """
        return copy(self.plan)

    @cached_property
    def _halo_reader(self) -> NodeReader:
        return NodeReader.halo(
            self._context, "fetch" + self._over, self._counts, self._node_plan, self.plan
        )

    @cached_property
    def _edge_reader(self) -> NodeReader:
        return NodeReader.edges(
            self._context, "W.exchange(M)" + self._over, self._counts, self._node_plan, self.plan
        )

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        if self._context.size == 1:
            return
        with self._context.engine:
            if self._single_node:
                (self._halo_reader if op == "fetch" else self._edge_reader).give_up(error)
            else:
                self._withdraw(error, op)

    def _withdraw(self, error: Exception, op: str) -> None:
        """Withdraw from the messages of an operation."""
        route = self.plan.edge_route[0] if op == "W.exchange(M)" else self.plan.halo_route
        self._context.matching.withdraw(
            op + self._over, error, {*route.dests.tolist(), *route.sources.tolist()}
        )

    @property
    def halo(self) -> np.ndarray:
        """The agents on other ranks whose rows the local sums read, ascending."""
        return self.plan.halo

    def average(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, from the rows of the local agents and those that `fetch` brought: `(m,
        d)`, `(len(halo), d)`, `(m, d)`.
        """
        return weighted_sum(self.plan.weights, own, halo, out)

    def difference(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = (W - I) X` of float32 or float64, with rounding errors of the size of `out`,
        not of `X`; see `average`.
        """
        return difference(self.plan.weights, own, halo, out)

    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """Return the sender's row for each edge out of the local agents, sorted by sender, then
        receiver: `(m, ...) -> (edges, ...)`.
        """
        rows: np.ndarray = X[self.plan.senders]
        return rows

    def edge_rows(self, M: ArrayT) -> tuple[np.ndarray, str, Restore[ArrayT]]:
        with self._context.engine, self._propagate_errors("W.exchange(M)"):
            return self._checked_messages(M)

    def _checked_messages(self, M: ArrayT) -> tuple[np.ndarray, str, Restore[ArrayT]]:
        """Return the messages as a NumPy array in C order, its format, and what makes the kind of
        `M` of a result.
        """
        if isinstance(M, (list, tuple)) or np.shape(M) == ():
            raise TypeError(
                f"messages are {type(M).__name__}, expected an array with one row for each out-edge"
            )
        if isinstance(M.dtype, np.dtype) and M.dtype.hasobject:
            raise TypeError(
                f"messages are of dtype {M.dtype}, expected numbers: objects cannot be sent"
            )
        if len(M) != len(self.plan.senders):
            raise ValueError(
                f"messages have shape {M.shape}, expected ({len(self.plan.senders)}, ...): one row "
                "for each out-edge"
            )
        refuse_grad(M)
        rows, format, restore = to_host(M)
        return np.ascontiguousarray(rows), format, restore

    def carry(self, rows: np.ndarray) -> np.ndarray:
        arrived: np.ndarray = self.start_carry(rows).wait()
        return arrived

    def start_carry(self, rows: np.ndarray) -> Pending:
        if self._alone:
            self._count(row_bytes(rows))
            return Pending(None, lambda: rows[self.edges.turned])
        with self._context.engine, self._propagate_errors("W.exchange(M)"):
            arrived = np.empty((self.in_edges, *rows.shape[1:]), rows.dtype)
            if self._single_node:
                reading = self._edge_reader.start(bytes_of(rows), bytes_of(arrived), _kind(rows))
                return Pending(reading, lambda: arrived)
            route, arrival = self.plan.edge_route
            self._count(row_bytes(rows))
            kind = "W.exchange(M)", words(rows.shape[1:]), rows.dtype
            request = self._exchange.start(self.plan, route, rows, arrived, kind)
        if route.own is not None:
            arrived[route.own[1]] = request.sent[route.own[0]]

        def sorted_() -> np.ndarray:
            result = np.empty_like(arrived)
            result[arrival] = arrived
            return result

        return Pending(request, sorted_)

    def sum_edges(self, M: ArrayT) -> ArrayT:
        """Sum over the edges into each local agent, in ascending order of the senders: `(edges,
        ...) -> (m, ...)`.
        """
        refuse_grad(M)
        rows, format, restore = to_host(M)
        rows = widen(rows, format) if format == BFLOAT16 else rows
        total = np.zeros((self.m, *rows.shape[1:]), rows.dtype)
        np.add.at(total, self.plan.receivers, rows)
        result: ArrayT = restore(narrow(total, format) if format == BFLOAT16 else total, format)
        return result

    def own(self, X: ArrayT) -> ArrayT:
        """Return the rows times the agents' weights for themselves: `D X`, with the diagonal D of
        `W`; no communication.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(2, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.from_weights([[0.25, 0.5], [0.75, 0.5]]))
        ...     W.at(0).own(np.eye(2)).tolist()
        [[0.25, 0.0], [0.0, 0.5]]
        """
        refuse_grad(X)
        return scaled(X, self.diagonal)

    @cached_property
    def edges(self) -> LocalEdges:
        """The edges of the local agents."""
        return LocalEdges(self.topology, self.agents)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """The agents' weights for themselves."""
        lo, hi = self._context.partition.bounds(self._context.rank)
        return np.asarray(self.topology.rows(lo, hi).diagonal(lo))

    @property
    def in_edges(self) -> int:
        """Edges into the local agents: the rows that `exchange` returns."""
        return len(self.plan.receivers)

    def _count(self, row_bytes: int) -> None:
        """Count rows of `row_bytes` bytes that have been sent over all edges."""
        self._count_edges(1, self.plan.edges, row_bytes)

    def _count_edges(self, rounds: int, edges: int, row_bytes: int) -> None:
        counts = self._counts
        counts.rounds += rounds
        counts.messages += edges
        counts.bytes += edges * row_bytes

    def free(self, ends: Ending = "complete") -> None:
        """Free requests and communicators; collective.  See `HaloExchange.free`."""
        if "_exchange" in self.__dict__:
            self._exchange.free(ends)


def scaled(X: ArrayT, weights: np.ndarray) -> ArrayT:
    """Return the rows of `X` times a number each, in the type of `X`."""
    return mapped(
        X, lambda rows: weights.astype(rows.dtype).reshape(-1, *[1] * (rows.ndim - 1)) * rows
    )


def mapped(X: ArrayT, f: Callable[[np.ndarray], np.ndarray]) -> ArrayT:
    """`f` of the rows of `X` as an array of NumPy, in the type of `X`."""
    rows, format, restore = to_host(X)
    result = f(widen(rows, format) if format == BFLOAT16 else rows)
    made: ArrayT = restore(narrow(result, format) if format == BFLOAT16 else result, format)
    return made


def _kind(rows: np.ndarray) -> str:
    """Return the kind of rows that travel as bytes, for comparison between ranks."""
    return f"{words(rows.shape[1:])} {rows.dtype}"
