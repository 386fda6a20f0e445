"""The guard of a training: rows that are not finite end it before they reach the neighbours."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch

from ..comm.mixing import Network
from ..comm.runtime import COMPILED, watch
from .methods import Method, Mixer
from .rows import Bucket, refuse_infinite


class TrainingGuard:
    """Checks the rows that a worker sends, once the sums of mixings have detected numbers that are
    not finite; where they cannot detect them, in each step.

    Parameters
    ----------
    net : Network
    method : Method
    mixers : list of mixers
    buckets : list of Bucket
    """

    def __init__(
        self, net: Network, method: Method, mixers: Sequence[Mixer], buckets: Sequence[Bucket]
    ):
        self._net, self._method, self._mixers, self._buckets = net, method, mixers, buckets
        self._infected = False
        if method.checked:
            watch(1)
            weakref.finalize(self, watch, -1)
        self._unwatched = (
            not COMPILED
            or net.n == 1
            or method.edgewise
            or any(mixer.feedback for mixer in mixers)
            or any(bucket.rows.device.type != "cpu" for bucket in buckets)
        )

    def look(self, step: int) -> None:
        """Raise if the rows are not finite."""
        for bucket in self._buckets:
            refuse_infinite(self._net.lo, bucket, bucket.rows, step)

    def show(self, k: int, step: int, every: int, withdraw: Callable[[Exception], bool]) -> None:
        """Show the results of mixing `k`; raise, and notify the neighbours, if this worker's own
        rows were not finite.

        Parameters
        ----------
        k, step, every : int
        withdraw : callable
            Withdraws from the next comparison of all ranks; returns whether one comes first.
        """
        looks = self._method.checked and (watch() or self._unwatched) and not self._infected
        if looks:
            late = 0 if self._unwatched else self._method.late * every
            try:
                self.look(step - late)
            except ValueError as error:
                self.withdraw(error, k + 1, withdraw)
                raise
        self._method.show()
        # The worker that it comes from raises.
        if looks:
            self._infected = any(not torch.isfinite(each.rows).all() for each in self._buckets)

    def refuse(
        self, bucket: Bucket, k: int, step: int, withdraw: Callable[[Exception], bool]
    ) -> None:
        """Raise, and notify the neighbours, if the rows of a bucket are not finite, before they
        leave in mixing `k`.
        """
        if self._method.checked:
            try:
                refuse_infinite(self._net.lo, bucket, bucket.rows, step)
            except ValueError as error:
                self.withdraw(error, k, withdraw)
                raise

    def withdraw(self, error: Exception, k: int, withdraw: Callable[[Exception], bool]) -> None:
        """Tell the neighbours that this worker takes no part in mixing `k`."""
        call = "W.exchange(M)" if self._method.edgewise else "W(X)"
        for mixer in () if withdraw(error) else self._mixers:
            mixer.at(k).abort_operation(error, call)
