"""Guard of a run with a step size from the linear model, which may not hold far from the
minimizer.
"""

from __future__ import annotations

import sys

import numpy as np

from ...protocols import Reductions
from .tuning import TUNING

NEVER = sys.maxsize


class Retry(Exception):
    """The run does not converge: begin again, with a smaller step size; raised on every rank."""


class Guard:
    r"""Checks of the distance to the estimated minimizer, at few steps of a run.

    Parameters
    ----------
    net : Network
    point : array (d,)
        The estimated minimizer.
    X0 : array (m, d)
        The initial points of the local agents.
    steps : int
        Steps of the run.
    halfway : int
        The step after which half of the way should be made; 0 if none is known.
    away : float
        :math:`\sqrt{\tfrac{1}{n} \sum_i \|\nabla f_i(\hat x)\|^2} / L`, how far the agents' own
        gradients lead from the estimated minimizer: the scale of distances where that is zero, or
        zero up to rounding.
    left : float
        Part of the first distance that may be left there.

    Attributes
    ----------
    point, away
        As given.
    next : int
        The step after which the next check is due.
    """

    def __init__(
        self,
        net: Reductions,
        point: np.ndarray,
        X0: np.ndarray,
        steps: int,
        halfway: int = 0,
        away: float = 0.0,
        left: float = 1.0,
    ):
        self._net, self.point, self.away = net, point, away
        size = max(float(np.linalg.norm(point)) or 1.0, away)
        start, scale = self._distance(X0), np.sqrt(net.n) * size
        self._start = start
        self._far, self._near = (
            TUNING.explosion * max(start, scale),
            left * max(start, TUNING.at_minimizer * scale),
        )
        self._half = halfway
        powers = (TUNING.first_check << j for j in range(35))
        marks = {k for k in powers if k <= steps} | {halfway} - {0}
        self._marks = sorted(marks, reverse=True)
        self.next = self._marks[-1] if self._marks else NEVER

    def check(self, k: int, X: np.ndarray) -> None:
        """Check the iterates after step `k`; collective.

        Raises
        ------
        Retry
            If they have exploded, or are not so much closer to the minimizer than at the start when
            half of the way should be made.
        """
        distance, half = self._distance(X), k == self._half
        while self._marks and k >= self._marks[-1]:
            half |= self._marks.pop() == self._half
        self.next = self._marks[-1] if self._marks else NEVER
        if not distance <= self._far or (half and not distance < self._near):
            raise Retry(
                f"distance {distance:.2g} from the point of the linear model after {k} steps"
            )

    def skip(self, k: int) -> None:
        """Leave out the checks up to step `k`, after which the run goes on."""
        self._marks = [mark for mark in self._marks if mark > k]
        self.next = self._marks[-1] if self._marks else NEVER

    def far(self, X: np.ndarray, strict: bool) -> str:
        """Return what is wrong with the last iterates if they are much farther from the minimizer
        than the initial points, or "".

        If `strict`, they must be closer than those.  Collective.
        """
        distance, limit = (
            self._distance(X),
            self._near if strict else TUNING.farther / TUNING.explosion * self._far,
        )
        return (
            ""
            if distance < limit
            else f"distance {distance:.2g} from the point of the linear model, {self._start:.2g} "
            "at the start"
        )

    def _distance(self, X: np.ndarray) -> float:
        return float(np.sqrt(self._net.sum(((X - self.point) ** 2).sum(axis=1, keepdims=True))[0]))
