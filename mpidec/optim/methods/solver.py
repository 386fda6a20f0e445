"""The equations of a solver, with the base optimizer's update in place of its gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import torch

from ...comm.mixing import Network
from ...comm.mixing.internals import StepOperator
from ...comm.runtime import Pending
from ...solvers import Solver
from ...solvers.internals import with_step_size
from ..rows import Bucket
from .base import Method, Mixer, divided


class Part(NamedTuple):
    """Columns of a bucket with their solver's state."""

    bucket: Bucket
    columns: slice
    mixer: Mixer
    state: Any


class RowsLeft(Exception):
    """The rows of a solver's step have left."""


class Departed:
    """The operator of a solver's step that is taken twice with the same numbers: first until its
    rows leave, which `RowsLeft` ends, and again when these have arrived.

    Parameters
    ----------
    operator : StepOperator
    whole : Departed, optional
        That of a pair, of which this is one.
    """

    def __init__(self, operator: StepOperator, whole: Departed | None = None):
        self._operator, self._whole = operator, whole or self
        self._pending: Pending | None = None
        self._arrived = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    @property
    def R(self) -> Departed:
        """That of the row-stochastic operator of a pair."""
        return Departed(self._operator.R, self._whole)

    @property
    def C(self) -> Departed:
        """That of the column-stochastic operator of a pair."""
        return Departed(self._operator.C, self._whole)

    def __call__(self, X: Any) -> Any:
        return self._whole.rows(X, self._operator, self._operator.start)

    def exchange(self, M: Any) -> Any:
        """Send a different row over each edge, as the operator does."""
        return self._whole.rows(M, self._operator.exchange, self._operator.start_exchange)

    def rows(self, X: Any, call: Callable[[Any], Any], start: Callable[[Any], Pending]) -> Any:
        """Return what `call(X)` does, or end the step once it has started."""
        if self._pending is None:
            self._pending = start(X)
            raise RowsLeft
        if self._arrived:
            return call(X)
        self._arrived = True
        return self._pending.wait()

    def wait(self) -> None:
        """Wait for rows that nobody needs."""
        if self._pending is not None:
            self._pending.wait()


class SolverUpdate(Method):
    r"""A solver of `mpidec.solvers`, with the base optimizer's update in place of :math:`-\alpha
    G`.

    Parameters
    ----------
    solver : Solver
        With the step size 1, and :math:`G = -u`.
    """

    by_bucket: ClassVar = True

    def __init__(
        self,
        net: Network,
        buckets: list[Bucket],
        mixers: Sequence[Mixer],
        solver: Solver,
    ):
        super().__init__(net, buckets, mixers)
        self._solver, self.edgewise = solver, solver.needs.exchange
        self._parts: list[Part] = []
        self._operators: dict[int, StepOperator] = {}
        # Steps whose rows have left: place of the part, step, gradient, operator.
        self._steps: deque[tuple[int, Callable[..., Any], torch.Tensor, Departed]] = deque()
        for bucket, columns, mixer in divided(buckets, mixers):
            X = net.empty(columns.stop - columns.start, like=bucket.rows)
            X.copy_(bucket.rows[:, columns])
            self._parts.append(Part(bucket, columns, mixer, solver.init(X, mixer.at(0))))
        self.show()

    def after(self, k: int) -> None:
        operators = {id(part.mixer): part.mixer.at(k) for part in self._parts}
        for place, part in enumerate(self._parts):
            step, G = self._next(part)
            self._parts[place] = part._replace(state=step(part.state, G, operators[id(part.mixer)]))

    def _next(self, part: Part) -> tuple[Callable[..., Any], torch.Tensor]:
        """Return the solver's step for a part, and the gradient that stands for the update."""
        bucket, columns, _, s = part
        rate = (bucket.lr or 1.0) if self.by_rate else 1.0
        solver = with_step_size(self._solver, bucket.lr if self.by_rate else 1.0)
        step = self._net.keeping(solver.step) if solver.keeps_rows else solver.step
        G = self._solver.point(s) - bucket.rows[:, columns]
        if rate != 1:
            G /= rate
        return step, G

    def depart(self, i: int, k: int) -> None:
        if i == 0:
            self._operators = {id(mixer): mixer.at(k) for mixer in self._mixers}
        bucket = self._buckets[i]
        for place, part in enumerate(self._parts):
            if part.bucket is bucket:
                step, G = self._next(part)
                W = Departed(self._operators[id(part.mixer)])
                with suppress(RowsLeft):
                    step(part.state, G, W)
                self._steps.append((place, step, G, W))

    def arrive(self, i: int) -> None:
        bucket = self._buckets[i]
        while self._steps and self._parts[self._steps[0][0]].bucket is bucket:
            place, step, G, W = self._steps.popleft()
            part = self._parts[place]
            self._parts[place] = part._replace(state=step(part.state, G, W))

    def complete(self) -> None:
        while self._steps:
            self._steps.popleft()[-1].wait()

    def show(self) -> None:
        """Copy the points at which the gradients are needed next to the parameters."""
        for part in self._parts:
            part.bucket.rows[:, part.columns].copy_(self._solver.point(part.state))

    def iterates(self) -> list[torch.Tensor]:
        parts = iter(self._parts)
        return [
            torch.cat(
                [self._moved(next(parts)) for _ in range(min(len(self._mixers), bucket.d))], 1
            )
            for bucket in self._buckets
        ]

    def _moved(self, part: Part) -> torch.Tensor:
        """The iterates, moved as far as the parameters have since the last step of the solver."""
        rows, X = part.bucket.rows[:, part.columns], part.state.X
        point = self._solver.point(part.state)
        return rows if point is X else X + (rows - point)

    def state(self) -> list[dict[str, Any]]:
        return [
            {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in part.state._asdict().items()
            }
            for part in self._parts
        ]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        for place, (part, saved) in enumerate(zip(self._parts, state)):
            self._parts[place] = part._replace(state=type(part.state)(**saved))

    @property
    def extra(self) -> int:
        held = {
            value.data_ptr(): value.numel() * value.element_size()
            for part in self._parts
            for value in part.state
            if isinstance(value, torch.Tensor)
        }
        return sum(held.values())


class ByRate(SolverUpdate):
    """A solver that also uses the step size elsewhere: it is the learning rate of the group, and
    :math:`G = -u / lr`.
    """

    by_rate: ClassVar = True


class MomentumUpdate(ByRate):
    """A solver with momentum, in place of the base optimizer's."""

    own_momentum: ClassVar = True
