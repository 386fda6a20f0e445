"""Weighted sums of rows in one process, over messages, and over messages and the memory of the
node together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np

from ...exceptions import RankMismatchError
from ..checks import PastOperation
from ..kernels import Runs, Weights, weighted_sum
from ..runtime import CROWDED, MPI, Context, Pending, Request, abandon, empty, wait_until
from .base import Counters, Transport
from .halo import HaloExchange, Kind, fingerprint
from .messages import MessageRequest, PointToPoint, waiting_for
from .node_reader import NodeReader
from .persistent import PersistentExchange
from .plan import Routes

# Shapes of rows whose persistent requests are kept.
_KINDS = 8
# Tests before a clock is read, and before the processor is yielded.
_TURNS, _SPINS = 1000, 100


def matrices(X: object, out: object, m: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the arrays of a mixing of the common kind, and a new one if `out` is None.

    None if one of them is of another kind, or if there is no memory, which `start` then finds, too,
    and tells the other ranks.
    """
    if type(X) is not np.ndarray or X.dtype.char not in "fd" or X.ndim != 2 or len(X) != m:
        return None
    if not (X.dtype.isnative and X.flags.c_contiguous and X.flags.aligned):
        return None
    if out is None:
        try:
            return X, empty(X.shape, X.dtype)
        except MemoryError:
            return None
    if type(out) is not np.ndarray or out.dtype != X.dtype or out.shape != X.shape:
        return None
    return (X, out) if out.flags.carray and not np.may_share_memory(out, X) else None


class LocalSum(Transport):
    """The sums of one process, which has all rows of the `n` agents."""

    def __init__(self, n: int, weights: Weights | Runs, edges: int, counts: Counters):
        self._n, self._weights, self._edges, self._counts = n, weights, edges, counts

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Form the sums when they are waited for."""
        self._count(rows)
        return Pending(None, lambda: weighted_sum(self._weights, rows, rows[:0], target))

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of arrays of the common kind."""
        arrays = matrices(X, out, self._n)
        if arrays is None:
            return None
        rows, target = arrays
        self._count(rows)
        return weighted_sum(self._weights, rows, rows[:0], target)

    def _count(self, rows: np.ndarray) -> None:
        counts, edges = self._counts, self._edges
        counts.rounds += 1
        counts.messages += edges
        counts.bytes += edges * rows.itemsize * rows.shape[1]


class MessageSum(Transport):
    """The sums of rows that come in messages.

    Rows (m, d) of a kind that comes again are exchanged by persistent requests, from its second
    mixing on.
    """

    def __init__(
        self, context: Context, exchange: HaloExchange, plan: Routes, count: Callable[[int], None]
    ):
        self._context, self._exchange, self._plan, self._count = context, exchange, plan, count
        self._kept: dict[Kind, tuple[PersistentExchange, PastOperation]] = {}
        self._keeps = exchange.periodic  # whether requests are kept
        # Whether an exchange by persistent requests is.
        self._under_way = False

    def fetch(self, rows: np.ndarray, shape: str | None) -> tuple[MessageRequest, np.ndarray]:
        """Begin to fetch the halo: the messages, and where it will be."""
        halo = empty((len(self._plan.halo), rows.shape[1]), rows.dtype)
        self._count(rows.itemsize * rows.shape[1])
        kind = self._context.mixing, str(rows.shape[1]) if shape is None else shape, rows.dtype
        return self._exchange.start(self._plan, self._plan.halo_route, rows, halo, kind), halo

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Begin to fetch the halo; the sums are formed when they are waited for."""
        arriving, halo = self.fetch(rows, shape)
        return Pending(arriving, lambda: weighted_sum(self._plan.weights, rows, halo, target))

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of arrays of the common kind."""
        arrays = matrices(X, out, self._plan.m)
        if arrays is None:
            return None
        rows, target = arrays
        with self._context.engine:
            kind = self._context.mixing, shape or str(rows.shape[1]), rows.dtype
            kept = self._kept.get(kind)
            if kept is not None and self._exchange.known(self._plan, kind):
                self._mix_again(rows, target, kind, *kept)
            else:
                self.start(rows, target, kind[1]).wait()
                if self._keeps and kept is None:
                    self._keep(kind, rows.shape[1])
        return target

    def _mix_again(
        self,
        rows: np.ndarray,
        target: np.ndarray,
        kind: Kind,
        persistent: PersistentExchange,
        past: PastOperation,
    ) -> None:
        """Mix rows whose halo comes by persistent requests."""
        matching, before = self._context.matching, self._context.mixings
        number = matching.register(past)
        self._under_way = True
        try:
            arrive = partial(self._arrive, persistent.start(rows), number, past, before)
            self._sum(rows, target, kind[1], persistent.halo, arrive)
        except BaseException as error:
            # Keep what MPI may still read or write.
            if self._under_way:
                self._under_way = False
                persistent.abandon()
                abandon((persistent, rows))
                del self._kept[kind]
                if not isinstance(error, RankMismatchError):
                    matching.interrupt(past.op, error)
            raise

    def _arrive(
        self, requests: list[MPI.Prequest], number: int, past: PastOperation, before: int
    ) -> None:
        """Wait for the halo; `before`: the mixings in shared memory that this rank had begun."""
        test, turns = MPI.Request.Testall, _TURNS
        while not (test(requests) or test(requests)):
            turns -= 1
            if not turns:
                sources, ask = self._plan.halo_route.sources.tolist(), self._context.matching.ask
                wait_until(
                    partial(test, requests),
                    partial(waiting_for, sources, past.op),
                    partial(ask, sources, number, past.op, past.signature, before),
                )
                break
            if CROWDED or turns < _TURNS - _SPINS:
                os.sched_yield()
        self._under_way = False

    def _sum(
        self,
        rows: np.ndarray,
        target: np.ndarray,
        shape: str,
        halo: np.ndarray,
        arrive: Callable[[], None],
    ) -> None:
        """Form the sums, with the halo that is there when `arrive()` returns."""
        self._count(rows.itemsize * rows.shape[1])
        arrive()
        weighted_sum(self._plan.weights, rows, halo, target)

    def _keep(self, kind: Kind, d: int) -> None:
        """Make the requests for rows (m, d) of a kind that have just been exchanged without
        them.
        """
        plan, messages = self._plan, self._exchange.messages(self._plan)
        self._keeps = isinstance(messages, PointToPoint) and messages.persistent
        if not (isinstance(messages, PointToPoint) and messages.persistent):
            return
        if len(self._kept) >= _KINDS:
            self._kept.pop(next(iter(self._kept)))[0].free()
        call, _ = self._exchange.describe(kind, plan.halo_route)
        persistent = PersistentExchange(
            messages, plan.halo_route, d, len(plan.halo), kind[2], fingerprint(kind)
        )
        self._kept[kind] = persistent, call

    def free(self) -> None:
        while self._kept:
            self._kept.popitem()[1][0].free()


class MixedSum(MessageSum):
    """The sums where several ranks share a node, and there are several nodes: rows of the node are
    read in place, others come in
    messages.

    Parameters
    ----------
    context : Context
    exchange : HaloExchange
    plan : Plan
        With the places of the rows of the other ranks on the node.
    reader : NodeReader
        It counts what is sent, too.
    """

    in_place = True

    def __init__(self, context: Context, exchange: HaloExchange, plan: Routes, reader: NodeReader):
        super().__init__(context, exchange, plan, lambda row_bytes: None)
        self._reader = reader

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Begin to fetch the halo, and publish the rows."""
        arriving, halo = self.fetch(rows, shape)
        return self._reader.start(rows, target, shape, halo, arriving)

    def _sum(
        self,
        rows: np.ndarray,
        target: np.ndarray,
        shape: str,
        halo: np.ndarray,
        arrive: Callable[[], None],
    ) -> None:
        self._reader.read_with(rows, target, shape, halo, arrive)

    def give_up(self, error: Exception) -> None:
        self._reader.give_up(error)
