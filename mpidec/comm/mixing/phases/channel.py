"""The operator of one step whose rows are subject to faults on the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from ...._complex import width
from ...arrays import BFLOAT16, ArrayT, narrow, widen
from ...runtime import Pending
from ..base.step import EdgeOperator, StepOperator
from ..faults.faults import Faults, Round
from .exchange import scaled
from .wrapped import WrappedPhase, targets


class ChannelPhase(WrappedPhase):
    """The operator of one step of a `Channel`, on one graph; it counts its calls.

    Parameters
    ----------
    phase : EdgeOperator
        The operator that mixes and sends without faults.
    k, at
        See `WrappedPhase`.
    faults : Faults
    graph, graphs : int
        See `Round`.
    calls : iterator of int
        Numbers of the calls, shared by both operators of a pair.
    """

    _phase: EdgeOperator

    def __init__(
        self,
        phase: EdgeOperator,
        k: int,
        at: Callable[[int], StepOperator],
        faults: Faults,
        graph: int,
        graphs: int,
        calls: Iterator[int],
    ):
        super().__init__(phase, k, at)
        self._faults, self._calls, self._edges = faults, calls, phase.edges
        self._round = Round(k, phase.agents, phase.edges, graph, graphs)
        self._average = faults.average(phase.diagonal, self._round)

    @property
    def C(self) -> StepOperator:
        """The column-stochastic operator of a pair, with the same faults; of any other `W`,
        itself.
        """
        C = self._phase.C
        if not isinstance(C, EdgeOperator) or C is self._phase:
            return self
        here = self._round
        return ChannelPhase(
            C,
            self._k,
            lambda k: self._at(k).C,
            faults=self._faults,
            graph=here.graph,
            graphs=here.graphs,
            calls=self._calls,
        )

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        super().abort_operation(error, "W.exchange(M)" if op == "W(X)" else op)

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        made = targets(arrays, out)
        spread = self._phase.spread(arrays, self._leave)
        for X, Y, (Q, arrived) in zip(arrays, made, spread):
            self._mix(X, Q, self._arrive(arrived), Y)
        return Pending(None, lambda: made)

    def _mix(self, X: np.ndarray, Q: np.ndarray, arrived: np.ndarray, out: np.ndarray) -> None:
        """`A Q`, with the averages A, if X is sent as it is, else `X + gamma (A - I) Q`."""
        if Q is X:
            self._average.take(X, arrived, out)
            return
        self._average.difference(Q, arrived, out)
        out *= self.gamma(width(X))
        out += X

    def _leave(self, rows: np.ndarray) -> np.ndarray:
        with self._propagate_errors("W.exchange(M)"):
            for fault in self._faults.leaving:
                rows = fault.leave(rows, self._round)
        return rows

    def _arrive(self, rows: np.ndarray) -> np.ndarray:
        call = next(self._calls)
        for fault in self._faults.arriving:
            rows = fault.arrive(rows, self._round, call)
        if self._average.lost is not None:
            # Whatever was sent, also what is not finite.
            rows[self._average.lost] = 0
        return rows

    def exchange(self, M: ArrayT) -> ArrayT:
        """Send a different row over each edge, subject to the faults; a lost row arrives as zeros.

        Raises
        ------
        ValueError
            If a robust rule takes the place of averages.
        """
        if not self._average.weighted:
            raise ValueError(
                "a robust mixer computes averages only, and this solver sends a different row to "
                "each neighbour: give it the "
                "mixer without robust"
            )
        rows, format, restore = self._phase.edge_rows(M)
        half, shape = format == BFLOAT16, rows.shape[1:]
        rows = rows.reshape(len(rows), prod(shape))
        sent = self._leave(widen(rows, format) if half else rows)
        arrived = self._phase.carry(narrow(sent, format) if half else sent)
        arrived = self._arrive(widen(arrived, format) if half else arrived)
        arrived = arrived.reshape(len(arrived), *shape)
        return restore(narrow(arrived, format) if half else arrived, format)

    def own(self, X: ArrayT) -> ArrayT:
        """Return the rows times the agents' weights for themselves in the sum of what arrives; see
        `Phase.own`.
        """
        return scaled(X, self._average.own)
