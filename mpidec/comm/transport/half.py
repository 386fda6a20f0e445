"""Weighted sums of rows of 16-bit floats: they are taken in float32, and rounded once."""

from __future__ import annotations

import numpy as np

from ..arrays import BFLOAT16, narrow, row_bytes, widen
from ..kernels import weighted_sum
from ..runtime import Pending, Request, memory
from .base import Counters, Transport
from .plan import Routes
from .sums import MessageSum


class HalfSum(Transport):
    """The sums of rows of float16, or of the bits of bfloat16 as uint16.

    Parameters
    ----------
    plan : Plan
    counts : Counters
        Where what `carrier` counts is corrected.
    carrier : Transport or MessageSum
        What sums rows of float32 up, within a process or a node; or the messages, in which rows
        travel as they are.
    """

    def __init__(self, plan: Routes, counts: Counters, carrier: Transport):
        self._plan, self._counts, self._carrier = plan, counts, carrier

    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Begin to sum up `rows` into `target`, both of 16-bit numbers."""
        format, shape = _described(rows, shape)
        with memory():
            X = widen(rows, format)
            Y = np.empty_like(X)

        def finish() -> None:
            target[...] = narrow(Y, format)

        if not isinstance(self._carrier, MessageSum):
            arriving = self._carrier.start(X, Y, shape)
            self._correct(rows)
            return Pending(arriving, finish)
        messages, halo = self._carrier.fetch(rows, shape)

        def sum_up() -> None:
            weighted_sum(self._plan.weights, X, widen(halo, format), Y)
            finish()

        return Pending(messages, sum_up)

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` of a matrix of 16-bit numbers within a process or a node."""
        if not isinstance(X, np.ndarray) or isinstance(self._carrier, MessageSum):
            return None
        format, shape = _described(X, shape)
        with memory():
            wide = widen(X, format)
        Y = self._carrier.mix(wide, None, shape)
        if Y is None:
            return None
        self._correct(X)
        result = narrow(Y, format)
        if not isinstance(out, np.ndarray):
            return result
        out[...] = result
        return out

    def _correct(self, rows: np.ndarray) -> None:
        """Count half of the bytes that have been counted."""
        self._counts.bytes -= self._plan.edges * row_bytes(rows)


def _described(rows: np.ndarray, shape: str | None) -> tuple[str, str]:
    format = BFLOAT16 if rows.dtype == np.uint16 else rows.dtype.str
    return format, f"{rows.shape[1] if shape is None else shape} {format}"
