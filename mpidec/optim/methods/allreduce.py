"""The average of all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from ...comm.mixing import Network
from ...comm.runtime import Request
from ..rows import Bucket, refuse_infinite
from ..scaling import Scaled
from .base import Method, Mixer

_CALL = "sum of gradients"


class Sum(NamedTuple):
    """The gradients of a bucket on their way to the sum over all ranks."""

    # (m, d + count): gradients, and which parameters have one
    rows: torch.Tensor
    total: torch.Tensor
    request: Request


class AllReduce(Method):
    r"""The base optimizer's update with the average of all gradients, which has the same bits on
    all ranks.

    Buckets leave during the backward pass, on a network of their own, since ranks may make these
    calls at different places among those of the program.  In the step all ranks learn which
    buckets have changed since, and send these again.
    """

    of_gradients: ClassVar = True
    averages_gradients: ClassVar = True

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        self._averaged = False  # before the step
        # What has left, by bucket, and what was wrong with it.
        self._sums: dict[int, Sum] = {}
        self._errors: dict[int, ValueError] = {}
        # Of gradients before a step: that of the last one, which a `GradScaler` rarely changes.
        self._scale: torch.Tensor | None = None
        self._own = net.duplicate("p2p") if net.size > 1 else net

    def before(self, k: int, scaled: Scaled) -> bool:
        if not (self._averaged and all(bucket.has_gradients() for bucket in self._buckets)):
            left_out = self.average(k, scaled)
        else:
            left_out = scaled.found is not None and self._told(scaled)[0] > 0
        errors = [] if left_out else [error for _, error in sorted(self._errors.items())]
        self.forget()
        if errors:
            raise errors[0]
        return bool(left_out)

    def average(self, k: int, scaled: Scaled) -> bool:
        """Replace the gradients by their averages over all agents; return whether all workers
        leave the step out instead.
        """
        departures, places = self.departures, range(len(self._buckets))
        early, self._scale = 0 if departures is None else departures.left, None
        told = self._told(
            scaled,
            [self._changed(i) for i in places[:early]],
            lambda: self._depart(places[early:], k),
        )
        again = told[1:].nonzero()[0].tolist()
        left_out = bool(told[0])
        averages = [self._arrived(i) for i in places]
        if not left_out:
            self._depart(again, k)
            for i in again:
                averages[i] = self._arrived(i)
            for bucket, average in zip(self._buckets, averages):
                bucket.set_gradients(average[:, : bucket.d], average[0, bucket.d :])
            self._averaged = True
        self._scale = scaled.scale
        if departures is not None:
            departures.begin(bool(again))
        return left_out

    def _told(
        self,
        scaled: Scaled,
        changed: Sequence[bool] = (),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> np.ndarray:
        """Return how many ranks tell that the step is left out, and for each bucket, that its
        gradients have changed since it left.
        """
        told = np.zeros(1 + len(self._buckets))
        told[0], told[1 : 1 + len(changed)] = bool(scaled.found), changed
        # Ahead of the buckets that leave now.
        request = self._net.row_sums.start(told)
        meanwhile()
        lengths = ", ".join(f"{bucket.d} {bucket.rows.dtype}" for bucket in self._buckets)
        self._wait = self._net.messages(_CALL, lengths)
        self._wait(request)
        return told

    def _depart(self, some: Sequence[int], k: int) -> None:
        for i in some:
            self.depart(i, k)

    def depart(self, i: int, k: int) -> None:
        bucket = self._buckets[i]
        self.bytes += bucket.bytes
        rows = self._net.empty(bucket.d + bucket.count, like=bucket.rows)
        self._fill(bucket, rows)
        self._errors.pop(i, None)
        try:
            if self.checked:
                refuse_infinite(self._net.lo, bucket, rows[:, : bucket.d], k, "gradient")
        except ValueError as error:
            self._errors[i] = error
        total = (rows.sum(dim=0) if len(rows) > 1 else rows[0].clone()).detach().cpu().contiguous()
        self._sums[i] = Sum(rows, total, self._own.row_sums.start(_stored(total)))

    def _fill(self, bucket: Bucket, rows: torch.Tensor) -> None:
        """Copy the gradients of a bucket to rows (m, d + count), and which parameters have one."""
        bucket.gradients(rows[:, : bucket.d])
        rows[:, bucket.d :] = bucket.used()
        if self._scale is not None:
            rows[:, : bucket.d] /= self._scale.to(rows.device)

    def _changed(self, i: int) -> bool:
        """Return whether the gradients of a bucket have changed since it left."""
        rows = self._sums[i].rows
        now = torch.empty_like(rows)
        self._fill(self._buckets[i], now)
        return not torch.equal(now, rows)

    def _arrived(self, i: int) -> torch.Tensor:
        """Wait for the sum of a bucket; return the average of all agents, for the local ones."""
        rows, total, request = self._sums.pop(i)
        self._wait(request)
        return rows.copy_(total.to(rows.device).div_(self._net.n).expand_as(rows))

    def withdraw(self, error: Exception) -> None:
        self._net.withdraw(_CALL, error)

    def advance(self) -> None:
        self._own.row_sums.progress()

    def forget(self) -> None:
        self._averaged = False
        self._errors.clear()

    def complete(self) -> None:
        for i in sorted(self._sums):
            self._arrived(i)
        self.forget()

    def after(self, k: int) -> None:
        pass


def _stored(row: torch.Tensor) -> np.ndarray:
    """The memory of a row, the bits of bfloat16 as uint16."""
    bits = row.view(torch.int16) if row.dtype == torch.bfloat16 else row
    array: np.ndarray = bits.numpy()
    return array.view(np.uint16) if row.dtype == torch.bfloat16 else array
