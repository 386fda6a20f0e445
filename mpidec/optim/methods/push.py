"""Overlapped push-sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ...comm.mixing import Network
from ...comm.runtime import Pending
from ..rows import Bucket
from .base import Method, Mixer, divided


class OverlapPush(Method):
    r"""Overlapped push-sum: rows sent in one step travel while the next gradients are computed, and
    arrive after them.

    With the diagonal D of W,

    .. math::
        V^k &= U^k + u(X^k) \\
        U^{k+1} &= D^k V^k + (W^{k-1} - D^{k-1}) V^{k-1}, & U^0 &= X^0 \\
        w^{k+1} &= D^k w^k + (W^{k-1} - D^{k-1}) w^{k-1}, & w^0 &= 1 \\
        X^{k+1} &= U^{k+1} / w^{k+1}

    References
    ----------
    M. Assran, N. Loizou, N. Ballas, M. Rabbat, "Stochastic gradient push", ICML 2019, with a delay
    of one step.
    """

    overlaps: ClassVar = True
    late = 1

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        rows = [bucket.rows[:, columns] for bucket, columns, _ in divided(buckets, mixers)]
        self._sums = [(X.clone(), torch.ones_like(X[:, :1])) for X in rows]
        self._under_way: list[tuple[Pending, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._arrived = [(torch.zeros_like(U), torch.zeros_like(w)) for U, w in self._sums]

    def after(self, k: int) -> None:
        self._arrive()
        operators = {id(mixer): mixer.at(k) for mixer in self._mixers}
        start = self._net.keeping(lambda V, w, W: W.start([V, w]))
        parts = divided(self._buckets, self._mixers)
        for place, ((bucket, columns, mixer), (U, w), (A, a)) in enumerate(
            zip(parts, self._sums, self._arrived)
        ):
            W = operators[id(mixer)]
            D = torch.from_numpy(
                W.topology.rows(self._net.lo, self._net.hi).diagonal(self._net.lo)[:, None]
            )
            V, own = bucket.rows[:, columns].addcmul_(U, 1 - 1 / w), D.to(U)
            self._under_way.append((start(V, w, W), V, w, own))
            self._sums[place] = A.addcmul_(V, own), a.addcmul_(w, own)
        self._arrived = []

    def _arrive(self) -> None:
        """Wait for the rows that were sent in the last step."""
        for pending, V, w, own in self._under_way:
            Y, y = pending.wait()
            self._arrived.append((Y.addcmul_(V, own, value=-1), y.addcmul_(w, own, value=-1)))
        self._under_way = []

    def show(self) -> None:
        points = {
            id(bucket): self._net.empty(bucket.d, like=bucket.rows) for bucket in self._buckets
        }
        for (bucket, columns, _), (U, w) in zip(divided(self._buckets, self._mixers), self._sums):
            torch.div(U, w, out=points[id(bucket)][:, columns])
        for bucket in self._buckets:
            bucket.show(points[id(bucket)])

    def complete(self) -> None:
        self._arrive()

    def state(self) -> list[dict[str, Any]]:
        self._arrive()
        return [
            {"U": U.clone(), "w": w.clone(), "arrived": A.clone(), "arrived_w": a.clone()}
            for (U, w), (A, a) in zip(self._sums, self._arrived)
        ]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._sums = [(saved["U"], saved["w"]) for saved in state]
        self._arrived = [(saved["arrived"], saved["arrived_w"]) for saved in state]

    @property
    def extra(self) -> int:
        return 3 * sum(bucket.bytes for bucket in self._buckets)
