"""The average of all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from ...comm.mixing import Network
from ..rows import Bucket, refuse_infinite
from .base import Method, Mixer


class AllReduce(Method):
    r"""The base optimizer's update with the average of all gradients, which has the same bits on
    all ranks.
    """

    of_gradients: ClassVar = True
    averages_gradients: ClassVar = True

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        self._averaged = False  # before the step; then also what was wrong with the gradients
        self._error: ValueError | None = None

    def before(self, k: int) -> None:
        if not (self._averaged and all(bucket.has_gradients() for bucket in self._buckets)):
            self.average(k)
        error = self._error
        self.complete()
        if error is not None:
            raise error

    def average(self, k: int) -> None:
        """Replace the gradients by their averages over all agents."""
        self._error, sums = None, []
        for bucket in self._buckets:
            self.bytes += bucket.bytes
            # gradients, and which parameters have one
            rows = self._net.empty(bucket.d + bucket.count, like=bucket.rows)
            G = rows[:, : bucket.d]
            bucket.gradients(G)
            rows[:, bucket.d :] = bucket.used()
            try:
                if self.checked:
                    refuse_infinite(self._net.lo, bucket, G, k, "gradient")
            except ValueError as error:
                self._error = self._error or error
            total = rows.sum(dim=0) if len(rows) > 1 else rows[0]
            host = total.detach().cpu().contiguous()
            sums.append((rows, host, self._net.row_sums.start(_stored(host))))
        lengths = ", ".join(f"{len(host)} {host.dtype}" for _, host, _ in sums)
        wait = self._net.messages("sum of gradients", lengths)
        for bucket, (rows, host, each) in zip(self._buckets, sums):
            wait(each)
            rows.copy_(host.to(rows.device).div_(self._net.n).expand_as(rows))
            bucket.set_gradients(rows[:, : bucket.d], rows[0, bucket.d :])
        self._averaged = True

    def complete(self) -> None:
        """Discard averages taken before the step, so that the next gradients are averaged in any
        case.
        """
        self._averaged, self._error = False, None

    def after(self, k: int) -> None:
        pass


def _stored(row: torch.Tensor) -> np.ndarray:
    """The memory of a row, the bits of bfloat16 as uint16."""
    bits = row.view(torch.int16) if row.dtype == torch.bfloat16 else row
    array: np.ndarray = bits.numpy()
    return array.view(np.uint16) if row.dtype == torch.bfloat16 else array
