"""The equations of a solver, with the base optimizer's update in place of its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from ...comm.mixing import Network
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


class SolverUpdate(Method):
    r"""A solver of `mpidec.solvers`, with the base optimizer's update in place of :math:`-\alpha
    G`.

    Parameters
    ----------
    solver : Solver
        With the step size 1, and :math:`G = -u`.
    """

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
        for bucket, columns, mixer in divided(buckets, mixers):
            X = net.empty(columns.stop - columns.start, like=bucket.rows)
            X.copy_(bucket.rows[:, columns])
            self._parts.append(Part(bucket, columns, mixer, solver.init(X, mixer.at(0))))
        self.show()

    def after(self, k: int) -> None:
        operators = {id(part.mixer): part.mixer.at(k) for part in self._parts}
        for place, (bucket, columns, mixer, s) in enumerate(self._parts):
            rate = (bucket.lr or 1.0) if self.by_rate else 1.0
            solver = with_step_size(self._solver, bucket.lr if self.by_rate else 1.0)
            step = self._net.keeping(solver.step) if solver.keeps_rows else solver.step
            G = self._solver.point(s) - bucket.rows[:, columns]
            if rate != 1:
                G /= rate
            self._parts[place] = Part(bucket, columns, mixer, step(s, G, operators[id(mixer)]))

    def show(self) -> None:
        """Copy the points at which the gradients are needed next to the parameters."""
        for part in self._parts:
            part.bucket.rows[:, part.columns].copy_(self._solver.point(part.state))

    def iterates(self) -> list[torch.Tensor]:
        parts = iter(self._parts)
        return [
            torch.cat([next(parts).state.X for _ in range(min(len(self._mixers), bucket.d))], dim=1)
            for bucket in self._buckets
        ]

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
