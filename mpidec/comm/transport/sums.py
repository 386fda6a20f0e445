"""Weighted sums of rows in one process, over messages, and over messages and the memory of the node together."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TypeGuard

import numpy as np

from ...exceptions import RankMismatchError
from ..checks.history import PastOperation
from ..kernels.weighted import Runs, weighted_sum
from ..runtime.context import Context
from ..runtime.memory import empty
from ..runtime.mpi import MPI
from ..runtime.progress import CROWDED, Request, abandon, wait_until
from .base import Transport
from .halo import HaloExchange, Kind, fingerprint
from .messages import MessageRequest, PointToPoint, waiting_for
from .node_reader import NodeReader
from .persistent import PersistentExchange
from .plan import Plan

_KINDS = 8  # shapes of rows whose persistent requests are kept
_TURNS, _SPINS = 1000, 100  # tests before a clock is read, and before the processor is yielded


def average(plan: Plan, rows: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
    """`out = W X`, from the rows of the local agents and those of the halo."""
    weights = plan.weights
    return (
        weights.sum(rows, out)
        if isinstance(weights, Runs)
        else weighted_sum(weights, rows, halo, out)
    )


def common(X: object, m: int) -> TypeGuard[np.ndarray]:
    """Whether `X` is a NumPy array (m, d) of float64 or float32 in C order."""
    if type(X) is not np.ndarray or X.dtype.char not in "fd" or X.ndim != 2 or len(X) != m:
        return False
    return X.dtype.isnative and X.flags.c_contiguous and X.flags.aligned


def fits(out: object, X: np.ndarray) -> TypeGuard[np.ndarray]:
    """Whether `out` can take what becomes of `X`, which is of the common kind."""
    return (
        type(out) is np.ndarray
        and out.dtype == X.dtype
        and out.shape == X.shape
        and out.flags.carray
        and not np.may_share_memory(out, X)
    )


def _like(X: np.ndarray) -> np.ndarray | None:
    """An array like `X`; None if there is no memory for it, which `start` then finds, too, and tells the other ranks."""
    try:
        return empty(X.shape, X.dtype)
    except MemoryError:
        return None


class DeferredSum(Request):
    """A sum that is formed when its halo is there, or at once."""

    def __init__(self, form: Callable[[], object], arriving: Request | None = None):
        self._form, self._arriving = form, arriving
        self._done = False

    def test(self) -> bool:
        return self._done or self._arriving is None or self._arriving.test()

    def wait(self) -> None:
        if not self._done:
            if self._arriving is not None:
                self._arriving.wait()
            self._form()
            self._done = True


class LocalSum(Transport):
    """The sums of one process, which has all rows."""

    def __init__(self, plan: Plan, count: Callable[[int], None]):
        self._plan, self._count = plan, count

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Form the sums when they are waited for."""
        self._count(rows.itemsize * rows.shape[1])
        return DeferredSum(lambda: average(self._plan, rows, rows[:0], target))

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of arrays of the common kind."""
        if not common(X, self._plan.m):
            return None
        target = empty(X.shape, X.dtype) if out is None else out if fits(out, X) else None
        if target is None:
            return None
        self._count(X.itemsize * X.shape[1])
        return average(self._plan, X, X[:0], target)


class _Persistent:
    """Persistent exchanges of one plan, by the kind of the rows, and the waiting for them.

    `before()` returns the mixings in shared memory that this rank has begun, for status queries.
    """

    def __init__(self, context: Context, exchange: HaloExchange, plan: Plan):
        self._context, self._exchange, self._plan = context, exchange, plan
        self._kept: dict[Kind, tuple[PersistentExchange, PastOperation]] = {}
        self._active: tuple[PersistentExchange, PastOperation, np.ndarray] | None = None

    def start(
        self, X: np.ndarray, kind: Kind
    ) -> tuple[PersistentExchange, list[MPI.Prequest], int, PastOperation] | None:
        """Begin an exchange; None if it has to be announced, or there are no persistent requests.

        From here on to the end of `wait`, exceptions must be handed to `fail`.
        """
        kept = self._kept.get(kind)
        if kept is None or not self._exchange.known(self._plan, kind):
            return None
        persistent, past = kept
        number = self._context.matching.register(past)
        self._active = persistent, past, X
        return persistent, persistent.start(X), number, past

    def wait(
        self,
        started: tuple[PersistentExchange, list[MPI.Prequest], int, PastOperation],
        before: int,
    ) -> np.ndarray:
        """The halo, when it is there."""
        persistent, requests, number, past = started
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
        self._active = None
        return persistent.halo

    def fail(self, error: BaseException) -> None:
        """Keep what MPI may still read or write if an exception has come amid an exchange."""
        if self._active is None:
            return
        persistent, past, _ = self._active
        persistent.abandon()
        abandon(self._active)
        self._kept = {kind: kept for kind, kept in self._kept.items() if kept[0] is not persistent}
        self._active = None
        if not isinstance(error, RankMismatchError):
            self._context.matching.interrupt(past.op, error)

    def make(self, X: np.ndarray, kind: Kind) -> None:
        """Make the requests for rows like `X`, which have just been exchanged without them."""
        plan, messages = self._plan, self._exchange.messages(self._plan)
        if (
            not isinstance(messages, PointToPoint)
            or not self._exchange.periodic
            or kind in self._kept
        ):
            return
        if len(self._kept) >= _KINDS:
            self._kept.pop(next(iter(self._kept)))[0].free()
        op, signature, dests, _ = self._exchange.describe(kind, plan.halo_route)
        self._kept[kind] = (
            PersistentExchange(
                messages, plan.halo_route, X.shape[1], len(plan.halo), X.dtype, fingerprint(kind)
            ),
            PastOperation(op, "", signature, dests, ""),
        )

    def free(self) -> None:
        """Free all requests."""
        while self._kept:
            self._kept.popitem()[1][0].free()


class MessageSum(Transport):
    """The sums of rows that come in messages."""

    def __init__(
        self, context: Context, exchange: HaloExchange, plan: Plan, count: Callable[[int], None]
    ):
        self._exchange, self._plan, self._count, self._engine = (
            exchange,
            plan,
            count,
            context.engine,
        )
        self._persistent = _Persistent(context, exchange, plan)

    def fetch(
        self, rows: np.ndarray, shape: str, op: str = "W(X)"
    ) -> tuple[MessageRequest, np.ndarray]:
        """Begin to fetch the halo: the messages, and where it will be."""
        halo = empty((len(self._plan.halo), rows.shape[1]), rows.dtype)
        self._count(rows.itemsize * rows.shape[1])
        return self._exchange.start(
            self._plan, self._plan.halo_route, rows, halo, (op, shape, rows.dtype)
        ), halo

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Begin to fetch the halo; the sums are formed when they are waited for."""
        arriving, halo = self.fetch(rows, str(rows.shape[1]) if shape is None else shape)
        return DeferredSum(lambda: average(self._plan, rows, halo, target), arriving)

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of arrays of the common kind."""
        if not common(X, self._plan.m):
            return None
        with self._engine:
            target = _like(X) if out is None else out if fits(out, X) else None
            if target is None:
                return None
            kind = "W(X)", shape or str(X.shape[1]), X.dtype
            try:
                started = self._persistent.start(X, kind)
                if started is not None:
                    self._count(X.itemsize * X.shape[1])
                    return average(self._plan, X, self._persistent.wait(started, 0), target)
            except BaseException as error:
                self._persistent.fail(error)
                raise
            arriving, halo = self.fetch(X, kind[1])
            arriving.wait()
            average(self._plan, X, halo, target)
            self._persistent.make(X, kind)
            return target

    def free(self) -> None:
        self._persistent.free()


class MixedSum(Transport):
    """The sums where several ranks share a node, and there are several nodes: rows of the node are read in place, others come in
    messages.

    Parameters
    ----------
    context : Context
    exchange : HaloExchange
    plan : Plan
        With the places of the rows of the other ranks on the node.
    reader : NodeReader
    """

    def __init__(self, context: Context, exchange: HaloExchange, plan: Plan, reader: NodeReader):
        self._context, self._exchange, self._plan, self._reader = context, exchange, plan, reader
        self._persistent = _Persistent(context, exchange, plan)

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Begin to fetch the halo, and publish the rows."""
        halo = empty((len(self._plan.halo), rows.shape[1]), rows.dtype)
        kind = "W(X)", str(rows.shape[1]) if shape is None else shape, rows.dtype
        arriving = self._exchange.start(self._plan, self._plan.halo_route, rows, halo, kind)
        return self._reader.start(rows, target, shape, halo, arriving)

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of arrays of the common kind."""
        if not common(X, self._plan.m):
            return None
        with self._context.engine:
            target = _like(X) if out is None else out if fits(out, X) else None
            if target is None:
                return None
            before, kind = self._context.mixings, ("W(X)", shape or str(X.shape[1]), X.dtype)
            try:
                started = self._persistent.start(X, kind)
                if started is not None:
                    self._reader.read_with(
                        X,
                        target,
                        kind[1],
                        started[0].halo,
                        lambda: self._persistent.wait(started, before),
                    )
                    return target
            except BaseException as error:
                self._persistent.fail(error)
                raise
            self.start(X, target, kind[1]).wait()
            self._persistent.make(X, kind)
            return target

    def give_up(self, error: Exception) -> None:
        self._reader.give_up(error)

    def free(self) -> None:
        self._persistent.free()
