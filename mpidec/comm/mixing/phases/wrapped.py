"""Base class of the operators of mixers that are derived from another mixer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...arrays import as_rows, as_target
from ...runtime import Pending, Several, empty
from ..base.gradients import refuse_grad
from ..base.packing import RowsT, by_name
from ..base.step import StepOperator


class WrappedPhase(StepOperator):
    """The operator of one step of a wrapped mixer.

    Parameters
    ----------
    phase : StepOperator
        The operator of the mixer below.
    k : int
        The step.
    at : callable
        `at(k)` is the operator of step k of the wrapped mixer.
    """

    def __init__(
        self,
        phase: StepOperator,
        k: int,
        at: Callable[[int], StepOperator],
    ):
        self._phase, self._k, self._at = phase, k, at
        self.topology, self.n, self.m = phase.topology, phase.n, phase.m
        self.agents = phase.agents

    @property
    def next(self) -> StepOperator:
        """The operator of the following step."""
        return self._at(self._k + 1)

    def at(self, k: int) -> StepOperator:
        """Return the operator of step `k`."""
        return self._at(k)

    def gamma(self, d: int) -> float:
        """That of the operator below."""
        return self._phase.gamma(d)

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`; the arrays of a list, tuple or dict (these in the
        order of their names) as by one call each, but arrays of one dtype in one message.
        """
        if out is not None or isinstance(X, (Mapping, list, tuple)):
            result: RowsT = self.start(X, out).wait()
            return result
        with self._propagate_errors():
            given: Any = X
            if type(given) is not np.ndarray:
                refuse_grad(given)
            rows, restore = as_rows(given, self.m)
        mixed: RowsT = restore(self.mix_all([rows])[0])
        return mixed

    def mix_all(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        mixed: list[np.ndarray] = self.start_all(arrays).wait()
        return mixed

    def start(self, X: Any, out: Any = None) -> Pending:
        """Begin to mix `X`; `wait()` on the result returns the mixed rows."""
        if isinstance(X, (Mapping, list, tuple)):
            return self._start_many(X, out)
        with self._propagate_errors():
            refuse_grad(X, out)
            rows, restore = as_rows(X, self.m)
            target = None
            if out is not None:
                target, restore = as_target(out, X, rows)
        pending = self.start_all([rows], target)
        return Pending(pending, lambda: restore(pending.wait()[0]))

    def _start_many(self, X: Mapping[Any, Any] | Sequence[Any], out: object) -> Pending:
        with self._propagate_errors():
            if out is not None:
                raise TypeError("out is given, expected none when several arrays are mixed")
            refuse_grad(X)
            names = by_name(X) if isinstance(X, Mapping) else range(len(X))
            pairs = [as_rows(X[name], self.m) for name in names]
        if len({rows.dtype for rows, _ in pairs}) == 1:
            joint = self.start_all([rows for rows, _ in pairs])
            many = Pending(
                joint, lambda: [restore(Y) for Y, (_, restore) in zip(joint.wait(), pairs)]
            )
        else:
            separate = [self.start(X[name]) for name in names]
            many = Pending(Several(separate), lambda: [pending.wait() for pending in separate])
        return (
            Pending(many, lambda: dict(zip(names, many.wait()))) if isinstance(X, Mapping) else many
        )

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        self._phase.abort_operation(error, op)

    @abstractmethod
    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending: ...

    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """Return the sender's row for each edge out of the local agents; see `Phase.to_edges`."""
        return self._phase.to_edges(X)

    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent; see `Phase.sum_edges`."""
        return self._phase.sum_edges(M)

    def own(self, X: np.ndarray) -> np.ndarray:
        """Return the rows times the agents' weights for themselves; see `Phase.own`."""
        return self._phase.own(X)

    @property
    def in_edges(self) -> int:
        """Number of edges into the local agents."""
        return self._phase.in_edges


def targets(arrays: list[np.ndarray], out: np.ndarray | None) -> list[np.ndarray]:
    """Return where the results of some arrays go; of a single one to `out`, if that is given."""
    return [out] if out is not None else [empty(X.shape, X.dtype) for X in arrays]
