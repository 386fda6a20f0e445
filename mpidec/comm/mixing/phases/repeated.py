"""The operator of one step in which a mixer mixes several times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...runtime import Pending
from ..base.step import StepOperator
from .wrapped import WrappedPhase


class RepeatedPhase(WrappedPhase):
    """The operator of one step of a `Repeated` mixer: a product.

    Parameters
    ----------
    phases : list of StepOperator
        The factors, the one that comes first first.
    k, at
        See `WrappedPhase`.
    """

    def __init__(
        self,
        phases: list[StepOperator],
        k: int,
        at: Callable[[int], StepOperator],
    ):
        super().__init__(phases[0], k, at)
        self._phases = phases

    @property
    def C(self) -> StepOperator:
        """The product of the column-stochastic operators of pairs; of any other `W`, itself."""
        if self._phase.C is self._phase:
            return self
        parts = [phase.C for phase in self._phases]
        return RepeatedPhase(parts, self._k, lambda k: self._at(k).C)

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        for phase in self._phases[:-1]:
            arrays = phase.mix_all(arrays)
        return self._phases[-1].start_all(arrays, out)

    def mix_all(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for phase in self._phases:
            arrays = phase.mix_all(arrays)
        return arrays

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Raise: only averages can be repeated.

        Raises
        ------
        ValueError
        """
        raise ValueError(
            "a mixer that mixes several times in one step computes averages only, and this solver "
            "sends a different row to "
            "each neighbour: give it the mixer without repeat"
        )

    def own(self, X: np.ndarray) -> np.ndarray:
        """Raise: the diagonal of a product of matrices would need communication.

        Raises
        ------
        ValueError
        """
        raise ValueError(
            "a mixer that mixes several times in one step does not know the diagonal of the "
            "product, which this solver "
            "needs: give it the mixer without repeat"
        )
