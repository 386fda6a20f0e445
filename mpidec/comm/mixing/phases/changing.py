"""The operator of a step whose graph is returned by a function, in one process."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ....topology.internals import DENSE
from ...kernels import COLUMNS, POSITIVE, ROWS, Room, Weights, room_for
from ...transport import LocalSum
from ..base.packing import RowsT
from .phase import OneCall, Phase

if TYPE_CHECKING:
    from ....topology import Changing, Topology

_BOOL, _FLOAT = np.dtype(bool), np.dtype(np.float64)


class ChangingPhase(Phase):
    """The operator of a step with a given matrix: it sums the matrix's terms; the topology and the
    other members of a phase are built on request.

    One that is made of the schedule is the pattern of those of the steps.
    """

    def _begin(self) -> None:
        schedule: Changing = self.__dict__.pop("topology")
        self._schedule, self._shape, self._given = schedule, (self.n, self.n), None
        sums = {"row": ROWS, "doubly": ROWS | COLUMNS}[schedule.kind]
        self._checks = sums if schedule.signed else sums | POSITIVE
        self._room = room_for(self.n, self.n**2) if self.n <= DENSE else None

    def sums(self, k: int, room: Room | None = None) -> LocalSum | None:
        """Return the sums of step `k`, their terms in a given `room`; None if it takes its topology
        to tell the terms, or what is wrong.
        """
        A: Any = self._schedule.given(k)
        if type(A) is not np.ndarray or A.shape != self._shape:
            return None
        weights = None
        if A.dtype == _FLOAT:
            weights = Weights.of_dense(A, 0, self._checks, room=room)
        elif A.dtype == _BOOL and self._schedule.gamma is not None:
            weights = Weights.metropolis(A, self._schedule.gamma, room)
        if weights is None:
            return None
        return LocalSum(self.n, weights, len(weights.w), self._counts)

    def mix_once(self, k: int, X: RowsT, out: RowsT | None) -> RowsT | None:
        """`W X` of step `k`, which is not kept; None likewise, or if `X` takes another way."""
        sums = self.sums(k, self._room)
        return None if sums is None else cast("RowsT | None", sums.mix(X, out))

    def step(self, k: int) -> ChangingPhase | None:
        """Return the operator of step `k`, or None likewise."""
        sums = self.sums(k)
        if sums is None:
            return None
        made = object.__new__(ChangingPhase)
        made.__dict__ = self.__dict__.copy()
        made._k, made._over = k, f" over {self._schedule.name}, step {k}"
        made._given = self._schedule.given(k)
        made._transport, made.mix = sums, cast(OneCall, sums.mix)
        return made

    @cached_property
    def topology(self) -> Topology:  # type: ignore[override]
        """The topology of the step."""
        return self._schedule.topology(self._k, self._given)
