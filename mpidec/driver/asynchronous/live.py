"""Records during a run on ranks, for which no rank waits for another one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...comm.runtime.mpi import MPI
from ...comm.runtime.progress import wait_until
from ..metrics import Metrics
from .snapshots import Snapshots

_SHARE = 0.02  # of the run so far: the least time between two records
_LOOK = 5e-5  # seconds between two looks for the other thread to leave MPI

Write = Callable[[float, int, int, dict[str, float], Any], None]


class Live:
    """Metrics of all agents at moments that all ranks know beforehand, by nonblocking reductions.

    Each rank takes part in a record when it comes between two of its events, however late, with the rows that it had at the moment
    of the record.

    Parameters
    ----------
    net : Network
    measure : Metrics
    snapshots : Snapshots
        Rows, events and messages of this rank.
    seconds : float
        Between two records; more in a long run, the same on all ranks.
    trajectory : bool
        Whether rank 0 is sent the rows of all agents.
    write : callable (time, events, messages, metrics, X)
        Takes a record on rank 0; `X` are the rows of all agents, or None.

    Notes
    -----
    The constructor and `finish` are collective.
    """

    def __init__(
        self,
        net: Any,
        measure: Metrics,
        snapshots: Snapshots,
        seconds: float,
        trajectory: bool,
        write: Write,
    ):
        self._net, self._measure, self._snapshots, self._write = net, measure, snapshots, write
        self._seconds, self._trajectory = seconds, trajectory
        self._comm, self._next, self._begun = net.comm.Dup(), seconds, 0
        self._parts: Iterator[list[MPI.Request]] | None = None
        self._requests: list[MPI.Request] = []

    def look(self, now: float) -> None:
        """Begin a record if it is time to, or go on with the one under way; returns at once."""
        if self._parts is None:
            if now < self._next:
                return
            self._parts = self._record(self._next)
            self._begun += 1
            self._next += max(self._seconds, _SHARE * self._next)
        elif not self._have_ended():
            return
        try:
            self._requests = next(self._parts)
        except StopIteration:
            self._parts, self._requests = None, []

    def finish(self) -> None:
        """Complete all records that any rank has begun."""
        most = -int(
            self._net.collectives.minimum(np.array([-self._begun]), "the end of the run")[0]
        )

        def complete() -> bool:
            self.look(math.inf if self._begun < most else -math.inf)
            return self._parts is None and self._begun >= most

        wait_until(complete, "all ranks to complete the last record")
        self._comm.Free()

    def _record(self, t: float) -> Iterator[list[MPI.Request]]:
        """Parts of a record, each with the requests that must end before the next part."""
        X, *counts = self._snapshots.at(t)
        net, measure, d = self._net, self._measure, X.shape[1]
        mine = np.concatenate([X.sum(axis=0), np.array(counts, float)])
        sums = np.empty_like(mine)
        with self._turn():
            requests = [self._comm.Iallreduce(mine, sums)]
        yield requests
        mean = sums[:d] / net.n
        terms, far = measure.terms(X, mean).sum(axis=0), np.array([measure.distance(X)])
        if measure.error is not None:
            raise measure.error
        total, worst = np.empty_like(terms), np.empty_like(far)
        stack = np.empty((net.n, d)) if self._trajectory and net.rank == 0 else None
        with self._turn():
            requests = [self._comm.Ireduce(terms, total), self._comm.Ireduce(far, worst, MPI.MAX)]
            if self._trajectory:
                row, held = net.context.row_type(8 * d), net.partition.counts()
                into = None if stack is None else [stack, (held, np.cumsum(held) - held), row]
                requests.append(self._comm.Igatherv([X, len(X), row], into))
        yield requests
        if net.rank == 0:
            events, messages = map(int, sums[d:].tolist())
            self._write(t, events, messages, measure.of(mean, total, float(worst[0])), stack)

    def _have_ended(self) -> bool:
        if self._net.engine.lock.acquire(True) <= 0:  # the thread that averages is in MPI
            return False
        try:
            return bool(MPI.Request.Testall(self._requests))
        finally:
            self._net.engine.lock.release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """A context in which no other thread is in MPI."""
        while self._net.engine.lock.acquire(True) <= 0:
            time.sleep(_LOOK)
        try:
            yield
        finally:
            self._net.engine.lock.release()
