"""The node reader: rows are read where they lie in the memory of the node."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np

from ...exceptions import RankMismatchError
from ..checks import gave_up
from ..kernels import Weights
from ..runtime import Context, NodeMemory, Request, WaitMonitor, describe_tag, progress, shared
from .base import Counters, Transport
from .plan import Routes

_ALL = 0xFFFFFFFFFFFFFFFF
# Seconds after which a message of another rank has arrived.
_SEEN = 0.3


class NodeReports:
    """Replies of one operation to a wait that takes long, and to a mismatch.

    Parameters
    ----------
    context : Context
    where : str
        Text of the operation, for messages.
    signature : int
        Its fingerprint.
    floats : bool
        Whether rows are numbers, not bytes.
    """

    def __init__(self, context: Context, where: str, signature: int, floats: bool):
        self._context, self._memory = context, cast(NodeMemory, context.memory)
        self._where, self._signature, self._floats = where, signature, floats
        self._patience: tuple[int, int, WaitMonitor] | None = None
        #: the wait in which the other rank has been found to be out of step, and when
        self._refused: tuple[tuple[int, int], float] | None = None

    def __call__(self, answer: int, seq: int) -> None:
        """Make progress elsewhere, query a late rank for its position, and raise mismatches."""
        what, index = answer >> 32, answer & 0xFFFFFFFF
        other = int(self._memory.near[index])
        if what in (shared.OTHER_TAG, shared.REFUSED):
            raise RankMismatchError(self._mismatch(index, other, seq))
        late = what == shared.LATE_POST
        progress()
        self._context.matching.look_for_leavers()
        self._look_for_refusals(index, other, (answer, seq))
        if self._patience is None or self._patience[:2] != (answer, seq):
            doing = "to begin" if late else "to read the rows of this rank in"
            matching = self._context.matching
            ask = (
                partial(matching.ask_about_mixing, other, seq, self._where)
                if late
                else matching.look_for_leavers
            )
            self._patience = (
                answer,
                seq,
                WaitMonitor(f"rank {other} {doing} mixing {seq} ({self._where})", ask),
            )
        self._patience[2].poll()

    def _look_for_refusals(self, index: int, other: int, wait: tuple[int, int]) -> None:
        """Raise if a rank that is waited for has refused mixings for a while: what it did and
        sent before is seen by now.
        """
        refusal, now = self._memory.node.out_of_step(index), time.monotonic()
        if refusal is None:
            self._refused = None
        elif self._refused is None or self._refused[0] != wait:
            self._refused = wait, now
        elif now - self._refused[1] > _SEEN:
            first = refusal if refusal.startswith("rank ") else f"rank {other}: {refusal}"
            self._memory.node.refuse(first)  # also for those that wait for this rank
            raise RuntimeError(
                f"rank {other} is out of step ({refusal}), and does not come to mixing {wait[1]} "
                f"({self._where}): "
                "close the network and make a new one"
            )

    def _mismatch(self, index: int, other: int, seq: int) -> str:
        """Describe what this rank and another one mix."""
        me, node = self._context.rank, self._memory.node
        if node.tag(index, seq) ^ self._signature == shared.GAVE_UP:
            reason = node.note(index, seq) or "its arguments were wrong"
            return gave_up(other, f"mixing {seq}, {self._where} on rank {me}", reason)
        ours, theirs = (
            node.note(place, seq)
            or describe_tag(node.tag(place, seq), self._signature, self._floats)
            for place in (self._memory.me, index)
        )
        return (
            f"rank {me} and rank {other} mix different things in mixing {seq}: {ours} in "
            f"{self._where} on rank {me}, {theirs} "
            f"on rank {other}; every rank must call the same operation with rows of one shape and "
            "dtype"
        )


class NodeReader(Transport):
    """What one rank reads on its node in one phase: weighted sums of rows, or rows as they are.

    Parameters
    ----------
    context : Context
    where : str
        Text of the operation, for messages.
    counts : Counters
    plan : Plan
        With the places of the rows of the other ranks on the node.
    signature : int
        Fingerprint of the operation, the same on all ranks that make the same one.
    source, row : array of int
        Of each term (or row that is copied): 0 for an own row, 1... for one of the ranks
        `plan.ins`, the next number for a row of the halo; and which row there.
    terms : Weights, optional
        The weights of the terms.
    """

    in_place = True

    def __init__(
        self,
        context: Context,
        where: str,
        counts: Counters,
        plan: Routes,
        signature: int,
        source: np.ndarray,
        row: np.ndarray,
        terms: Weights | None = None,
    ):
        self._memory = cast(NodeMemory, context.memory)
        # Without weights each place of the target is one row that is copied.
        indptr = np.arange(len(row) + 1, dtype=np.int64)
        weights: tuple[np.ndarray | None, ...] = (None,) * 4
        if terms is not None:
            narrow = terms.astype(np.dtype(np.float32))
            indptr, weights = terms.indptr, (terms.w, terms.v, narrow.w, narrow.v)
        report = NodeReports(context, where, signature & _ALL, terms is not None)
        self._reader = shared.Reader(
            self._memory.node,
            counts,
            report,
            signature & _ALL,
            plan.edges,
            (
                indptr,
                source.astype(np.int32),
                row.astype(np.int32),
                *weights,
                np.searchsorted(self._memory.near, plan.ins),
                np.searchsorted(self._memory.near, plan.outs),
            ),
        )

    @classmethod
    def sums(cls, context: Context, where: str, counts: Counters, plan: Routes) -> NodeReader:
        """Return the weighted sums of a mixing."""
        signature, (source, row) = plan.topology.fingerprint(), plan.sources()
        return cls(
            context, where, counts, plan, signature, source=source, row=row, terms=plan.terms
        )

    @classmethod
    def halo(
        cls, context: Context, where: str, counts: Counters, plan: Routes, whole: Routes
    ) -> NodeReader:
        """Return the rows of the agents `whole.halo`, all of which live on the node."""
        # Sums, halos and edges of one graph are different operations: a bit of the signature of
        # each tells ranks apart that mix them up.
        owner = plan.partition.owner(whole.halo)
        first = np.array([plan.partition.bounds(rank)[0] for rank in plan.ins.tolist()], np.int64)
        source = np.searchsorted(plan.ins, owner)
        return cls(
            context,
            where,
            counts,
            plan,
            plan.topology.fingerprint() ^ 1 << 62,
            source=source + 1,
            row=whole.halo - first[source],
        )

    @classmethod
    def edges(
        cls, context: Context, where: str, counts: Counters, plan: Routes, whole: Routes
    ) -> NodeReader:
        """Return a row for each edge into the local agents, from the rows for the edges out of
        other agents.
        """
        signature, (source, row) = (
            plan.topology.fingerprint() ^ 1 << 61,
            whole.edge_places(plan.ins),
        )
        return cls(context, where, counts, plan, signature, source=source, row=row)

    def start(
        self,
        rows: np.ndarray,
        target: np.ndarray,
        shape: str | None = None,
        halo: np.ndarray | None = None,
        arriving: Request | None = None,
    ) -> NodeRequest:
        """Publish `rows`, or a copy of them, and begin to fill `target`.

        Parameters
        ----------
        rows, target, shape
            See `Transport.start`; float64 or float32 if they are summed (pairs of them for complex
            rows), else bytes.
        halo : array (others, d), optional
            The rows of agents on other nodes.
        arriving : Request, optional
            Fills the halo.
        """
        d = rows.shape[1]
        number, note = (0, None) if shape is None else _shaped(shape, d, rows.dtype)
        self._memory.complete_overdue()
        seq = self._reader.post(rows, d, number, note)
        halo = rows[:0] if halo is None else halo
        read = partial(self._reader.read, seq, rows, halo, target, d, number)
        return NodeRequest(self._memory, self._reader, seq, read, rows, arriving)

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of arrays of the common kind."""
        if shape is None or not isinstance(X, np.ndarray):
            return self.call(X, out)
        return cast("np.ndarray | None", self._reader(X, out, *_shaped(shape, X.shape[1], X.dtype)))

    @property
    def call(self) -> Callable[[object, object], np.ndarray | None]:
        """A whole mixing in one compiled call."""
        return cast("Callable[[object, object], np.ndarray | None]", self._reader)

    def read_with(
        self,
        rows: np.ndarray,
        target: np.ndarray,
        shape: str,
        halo: np.ndarray,
        arrive: Callable[[], object],
    ) -> None:
        """A whole mixing, whose halo is there when `arrive()` returns."""
        d = rows.shape[1]
        number, note = _shaped(shape, d, rows.dtype)
        # The rows of the node are published first: its ranks can read them while the halo arrives.
        self._memory.complete_overdue()
        seq = self._reader.post(rows, d, number, note)
        arrive()
        self._reader.read(seq, rows, halo, target, d, number)
        self._reader.leave(seq, rows)

    def give_up(self, error: Exception) -> None:
        """Take part in a mixing without rows, so that the neighbours do not wait for them."""
        self._memory.complete_overdue()
        self._reader.give_up(f"{type(error).__name__}: {error}")


@lru_cache
def _shaped(shape: str, d: int, dtype: np.dtype) -> tuple[int, str | None]:
    """Return a fingerprint of what rows of `d` numbers were before they were flattened, and a note
    for ranks with other rows.
    """
    if shape == str(d):
        return 0, None
    return zlib.crc32(shape.encode()) << 16 | 1 << 60, (
        f"rows of {shape}" if dtype == np.uint8 else f"rows of {shape} {dtype}"
    )


class NodeRequest:
    """An operation under way in shared memory.

    Parameters
    ----------
    memory : NodeMemory
    reader : shared.Reader
    seq : int
        The number of the operation.
    read : callable
        Reads what the other ranks have published, when all of it is there; its result is the
        attribute `result`.
    rows : array, optional
        That the others read: they may be changed when `wait` returns.
    arriving : Request, optional
        What must be there before.
    """

    def __init__(
        self,
        memory: NodeMemory,
        reader: Any,
        seq: int,
        read: Callable[[], Any],
        rows: np.ndarray | None = None,
        arriving: Request | None = None,
    ):
        self.seq = seq
        self._memory, self._reader, self._read = memory, reader, read
        self._rows, self._arriving = rows, arriving
        self._ended = self._reading = False
        self._error: Exception | None = None
        memory.under_way.append(self)

    def test(self) -> bool:
        """Read if all is there; whether `wait` would return, or raise, at once."""
        return self.complete(False)

    def complete(self, wait: bool = True) -> bool:
        """Read when all is there, or if it is; whether the operation has ended.  Errors are
        those of `wait`.
        """
        if self._ended or self._reading:
            return self._ended
        self._reading = True
        try:
            arriving = self._arriving
            if wait or ((arriving is None or arriving.test()) and self._reader.ready(self.seq)):
                if arriving is not None:
                    arriving.wait()
                self.result = self._read()
                self._ended = True
        except Exception as error:
            self._ended, self._error = True, error
        finally:
            self._reading = False
        if self._ended and self in self._memory.under_way:
            self._memory.under_way.remove(self)
        return self._ended

    def wait(self) -> None:
        """Read when all is there, and return when the rows of this rank may be changed."""
        with self._memory.engine:
            self.complete()
            if self._error is not None:
                raise self._error
            if self._rows is not None:
                rows, self._rows = self._rows, None
                self._reader.leave(self.seq, rows)
