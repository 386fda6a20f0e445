"""Adapt, then combine, or while combining: one average of the parameters in a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from ...comm.mixing import Network
from ...comm.mixing.internals import StepOperator
from ...comm.runtime import Pending
from ..rows import Bucket
from ..scaling import Scaled
from .base import Method, Mixer, Rows, divided


class AdaptThenCombine(Method):
    r"""Adapt, then combine: :math:`X^{k+1} = W^k (X^k + u(X^k))`."""

    by_bucket: ClassVar = True

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        # None of a bucket that is not to be shown.
        self._mixed: Sequence[torch.Tensor | None] = []
        self._under_way: deque[list[Pending]] = deque()
        self._operators: Mapping[int, StepOperator] = {}
        # The rows that are mixed are never changed afterwards.
        self._mix = net.keeping(lambda X, _, W: W(X))
        self._start = net.keeping(lambda X, _, W: W.start(X))

    def after(self, k: int) -> None:
        self._mixed = self._combined(k)

    def depart(self, i: int, k: int) -> None:
        if i == 0:
            self._operators = self._operators_of(k)
        bucket = self._buckets[i]
        rows = bucket.mixable if len(self._mixers) == 1 else bucket.rows
        self._under_way.append(self._left(bucket, rows, self._operators))

    def arrive(self, i: int) -> None:
        arrived = self._whole(self._buckets[i], self._under_way.popleft())
        self._mixed = [*self._mixed, *[None] * (i - len(self._mixed)), arrived]

    def _combined(self, k: int) -> Sequence[torch.Tensor]:
        """Return the rows of the buckets, mixed by the operators of step `k`."""
        if len(self._mixers) == 1:
            return self._by_one(self._mixers[0].at(k), [each.mixable for each in self._buckets])
        return self._joined(self._begun(k))

    def _by_one(self, W: StepOperator, rows: Sequence[Rows]) -> list[torch.Tensor]:
        """Return the rows of all buckets, mixed by one operator."""
        if len(rows) == 1:
            return [torch.as_tensor(self._mix(rows[0], None, W))]
        started = [self._start(X, None, W) for X in rows]
        return [torch.as_tensor(each.wait()) for each in started]

    def _begun(self, k: int, rows: Sequence[torch.Tensor] | None = None) -> list[list[Pending]]:
        """Begin to mix each part of the buckets' rows, or of others like them, by its own
        operator of step `k`.
        """
        if len(self._mixers) == 1:
            W = self._mixers[0].at(k)
            return [
                [self._start(X, None, W)] for X in rows or [each.mixable for each in self._buckets]
            ]
        operators = self._operators_of(k)
        given = rows or [each.rows for each in self._buckets]
        return [self._left(*each, operators) for each in zip(self._buckets, given)]

    def _operators_of(self, k: int) -> dict[int, StepOperator]:
        """Return the operators of step `k`, by the `id` of their mixers."""
        return {id(mixer): mixer.at(k) for mixer in self._mixers}

    def _left(self, bucket: Bucket, rows: Any, W: Mapping[int, StepOperator]) -> list[Pending]:
        """Begin to mix each part of the rows of a bucket by its own operator."""
        if len(self._mixers) == 1:
            return [self._start(rows, None, W[id(self._mixers[0])])]
        return [
            self._start(rows[:, columns], None, W[id(mixer)])
            for _, columns, mixer in divided([bucket], self._mixers)
        ]

    def _joined(self, pending: Iterable[list[Pending]]) -> list[torch.Tensor]:
        """Return the rows of the buckets, of the mixed parts that `_begun` returned."""
        if len(self._mixers) == 1:
            return [torch.as_tensor(each.wait()) for (each,) in pending]
        return [self._whole(*each) for each in zip(self._buckets, pending)]

    def _whole(self, bucket: Bucket, pending: list[Pending]) -> torch.Tensor:
        """Return the rows of a bucket, of their mixed parts."""
        if len(self._mixers) == 1:
            return torch.as_tensor(pending[0].wait())
        Y: torch.Tensor = self._net.empty(bucket.d, like=bucket.rows)
        for (_, columns, _), each in zip(divided([bucket], self._mixers), pending):
            Y[:, columns] = each.wait()
        return Y

    def show(self) -> None:
        for bucket, Y in zip(self._buckets, self._mixed):
            if Y is not None:
                bucket.show(Y)
        self._mixed = []

    def complete(self) -> None:
        while self._under_way:
            for pending in self._under_way.popleft():
                pending.wait()

    @property
    def extra(self) -> int:
        return sum(bucket.bytes for bucket in self._buckets)


class AdaptWhileCombine(AdaptThenCombine):
    r"""Adapt while combining: :math:`X^{k+1} = W^k X^k + u(X^k)`; the rows travel while the
    gradients are computed.
    """

    of_gradients: ClassVar = True
    overlaps: ClassVar = True
    by_bucket: ClassVar = False

    def before(self, k: int, scaled: Scaled) -> bool:
        if self.travelling:
            self._mixed = self._joined(self._under_way)
            self._under_way.clear()
            self.travelling = False
        else:
            self._mixed = self._combined(k)
        return False

    def after(self, k: int) -> None:
        # What it remembers would be ahead of the parameters when saved.
        if self.ahead:
            for bucket in self._buckets:
                bucket.depart()
            self._under_way.extend(self._begun(k + 1))
            self.travelling = True

    def depart(self, i: int, k: int) -> None:
        self._buckets[i].depart()
        super().depart(i, k)
        self.travelling = True

    @property
    def ahead(self) -> bool:
        return not any(mixer.feedback for mixer in self._mixers)

    def complete(self) -> None:
        super().complete()
        self.travelling = False


class Hierarchical(AdaptThenCombine):
    """Adapt, then average within machines, then combine between machines, by two mixers one
    after the other.
    """

    by_bucket: ClassVar = False

    def after(self, k: int) -> None:
        self._mixed = [bucket.rows for bucket in self._buckets]
        for mixer in self._mixers:
            self._mixed = self._by_one(mixer.at(k), self._mixed)

    def mixings(self) -> list[tuple[str, Bucket, slice, Mixer]]:
        return [("W", *part) for mixer in self._mixers for part in divided(self._buckets, [mixer])]


class AdaptiveAverage(AdaptThenCombine):
    r"""Adapt, then combine; every H-th time average over all agents, with an H that grows as the
    loss falls (gossip-AGA).

    .. math:: H \leftarrow \lceil H_0 \, F_0 / F(x^k) \rceil

    at each global average, with the mean loss F of all workers' last batches; during the first
    steps, `warmup`, H stays :math:`H_0` and :math:`F_0 \leftarrow (F_0 + F) / 2`.

    Parameters
    ----------
    mixers : list of mixers
        Those of the topologies, and last the average over all agents.
    period : int
        :math:`H_0`.
    warmup : int
    """

    by_bucket: ClassVar = False

    def __init__(
        self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer], period: int, warmup: int
    ):
        super().__init__(net, buckets, mixers[:-1])
        self._average, self._initial, self._warmup = mixers[-1], period, warmup
        self._period, self._count, self._first_loss = period, 0, 0.0

    def after(self, k: int) -> None:
        self._count += 1
        if self._count < self._period:
            super().after(k)
            return
        self._mixed = self._by_one(self._average.at(k), [each.mixable for each in self._buckets])
        loss = float(self._net.mean(np.full((self._net.m, 1), self._own_loss()))[0])
        self._count = 0
        # A batch that a GradScaler leaves out.
        if not math.isfinite(loss):
            return
        if k < self._warmup:
            self._first_loss = (self._first_loss + loss) / 2 if self._first_loss else loss
        elif self._first_loss and loss > 0:
            self._period = max(1, math.ceil(self._first_loss / loss * self._initial))

    def _own_loss(self) -> float:
        if self.loss is None:
            raise RuntimeError(
                "the period adapts to the loss, which is not known: call optimizer.observe(loss) "
                "before each step, "
                "or step with a closure"
            )
        return float(torch.as_tensor(self.loss).float().mean())

    def mixings(self) -> list[tuple[str, Bucket, slice, Mixer]]:
        return super().mixings() + [
            ("J", *part) for part in divided(self._buckets, [self._average])
        ]

    def state(self) -> list[dict[str, Any]]:
        numbers = {"period": self._period, "count": self._count, "first_loss": self._first_loss}
        return [numbers for _ in self.parts()]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        for saved in state:
            self._period, self._count = saved["period"], saved["count"]
            self._first_loss = saved["first_loss"]
