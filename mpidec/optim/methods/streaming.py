"""Outer steps by fragments of the parameters, which travel while the workers go on training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..._words import warn
from ...comm.mixing import Network
from ...comm.mixing.internals import StepOperator
from ...comm.runtime import Pending
from ...solvers.internals import averages
from ..rows import Bucket, refuse_infinite
from .base import Method, Mixer

# Above it the workers of a sparse graph are far from each other: see the warning.
MOST = 0.5


class StreamingUpdate(Method):
    r"""Streaming DiLoCo over a graph: every H steps an outer step of each fragment, whose row
    travels during :math:`\tau` steps of the base optimizer.

    Fragment p of P, :math:`X` the parameters and :math:`\Theta` the anchors.  It departs after step
    :math:`k = (r + 1) H + \lfloor p H / P \rfloor`, r = 0, 1, ...,

    .. math::
        Q &= \Theta - X, \qquad M \leftarrow \mu M + Q \\
        Z &= \Theta - \eta (Q + \mu M)

    and arrives after step :math:`k + \tau`:

    .. math::
        \Theta \leftarrow W^r Z, \qquad X \leftarrow (1 - \alpha) X + \alpha \Theta

    With `outer="noloco"`, :math:`Z = \eta X` at the departure, and at the arrival

    .. math:: M \leftarrow \mu M + W^r Z - \eta \Theta, \qquad \Theta \leftarrow \Theta + M

    Parameters
    ----------
    mixers : list of mixers
        Of one topology, one for each fragment, so that the memories of their codecs are separate.
    every : int
        H
    delay : int
        :math:`\tau < H`
    blend : float
        :math:`\alpha`, in (0, 1].
    outer_step : float
        :math:`\eta > 0`
    momentum : float, optional
        :math:`\mu`, in [0, 1): by default 0.9 for "diloco" if W is the exact average, else 0.5.
    outer : {"diloco", "noloco"}

    Notes
    -----
    Sent per H steps: one row, of :math:`Z`, to each neighbour, in P messages.  Two rows,
    :math:`\Theta` and :math:`Q`, whose averages are used in :math:`\Theta \leftarrow W \Theta -
    \eta (W Q + \mu M)`, :math:`M \leftarrow \mu M + W Q`, are the same iteration for a W that is
    constant in time, of which :math:`M` is W times the one here: they would double the bytes.
    """

    overlaps: ClassVar = True
    scheduled: ClassVar = True

    def __init__(
        self,
        net: Network,
        buckets: list[Bucket],
        mixers: Sequence[Mixer],
        every: int,
        delay: int,
        blend: float,
        outer_step: float,
        momentum: float | None,
        outer: str,
    ):
        super().__init__(net, buckets, mixers)
        self._every, self.delay, self._blend = every, delay, blend
        self._eta, self._noloco = outer_step, outer == "noloco"
        self._mu = self._momentum(momentum)
        for what, value, most in (
            ("delay", delay, every - 1),
            ("fragments", len(mixers), every),
        ):
            if value > most:
                raise ValueError(
                    f"streaming_diloco: {what} is {value}, expected at most {most} with every={every}"
                    ": a fragment arrives before it departs again, and fragments depart one by one"
                )
        self._anchors = [bucket.rows.clone() for bucket in buckets]
        self._momenta = [torch.zeros_like(bucket.rows) for bucket in buckets]
        self._fragments = _cut(buckets, len(mixers))
        self._start = net.keeping(lambda Z, _, W: W.start(Z))
        self._under_way: dict[int, Pending] = {}
        self._arrived: list[int] = []

    def _momentum(self, given: float | None) -> float:
        graph = self._mixers[0].topology
        exact = averages(graph)
        if given is None:
            return 0.9 if exact and not self._noloco else MOST
        if given > MOST and not (exact or self._noloco):
            warn(
                f"streaming_diloco: momentum is {given:g} on the {graph.name} topology, which "
                "averages with neighbours only: the movements in which the workers differ add up "
                f"to 1 / (1 - momentum) = {1 / (1 - given):.3g} times their size, so that workers "
                f"with different data are that far from each other; expected at most {MOST}, or "
                "the complete graph"
            )
        return given

    def after(self, k: int) -> None:
        self._arrived = []
        for p, mixer in enumerate(self._mixers):
            r, phase = divmod(k + 1 - self._every * p // len(self._mixers), self._every)
            if phase == 0 and r > 0:
                self._depart(p, mixer.at(r - 1), k)
            if phase == self.delay and r > 0:
                self._receive(p)
                self._arrived.append(p)

    def _depart(self, p: int, W: StepOperator, k: int) -> None:
        """Take the outer step of a fragment, and begin to mix its result."""
        try:
            for bucket in self._buckets if self.checked else ():
                refuse_infinite(self._net.lo, bucket, bucket.rows, k)
        except ValueError as error:
            W.abort_operation(error)
            raise
        rows = []
        for place, columns in self._fragments[p]:
            X = self._buckets[place].rows[:, columns]
            Z = self._net.empty(X.shape[1], like=X)
            if self._noloco:
                torch.mul(X, self._eta, out=Z)
            else:
                anchors, M = self._anchors[place][:, columns], self._momenta[place][:, columns]
                Q = anchors - X
                M.mul_(self._mu).add_(Q)
                torch.sub(anchors, Q.add_(M, alpha=self._mu), alpha=self._eta, out=Z)
            rows.append(Z)
        if rows:
            self._under_way[p] = self._start(rows, None, W)

    def _receive(self, p: int) -> None:
        """Wait for a fragment if it is under way, and take its anchors."""
        pending = self._under_way.pop(p, None)
        for (place, columns), Y in zip(self._fragments[p], pending.wait() if pending else ()):
            anchors, M = self._anchors[place][:, columns], self._momenta[place][:, columns]
            if self._noloco:
                M.mul_(self._mu).add_(torch.as_tensor(Y)).sub_(anchors, alpha=self._eta)
                anchors.add_(M)
            else:
                anchors.copy_(torch.as_tensor(Y))

    def show(self) -> None:
        for p in self._arrived:
            for place, columns in self._fragments[p]:
                self._buckets[place].rows[:, columns].lerp_(
                    self._anchors[place][:, columns], self._blend
                )
        self._arrived = []

    def complete(self) -> None:
        # Between departure and arrival nothing else needs the anchors: they are those of the
        # arrival already, and the parameters follow at their step.
        for p in list(self._under_way):
            self._receive(p)

    def parts(self) -> list[tuple[Bucket, slice, Mixer]]:
        return [(bucket, slice(0, bucket.d), self._mixers[0]) for bucket in self._buckets]

    def mixings(self) -> list[tuple[str, Bucket, slice, Mixer]]:
        return [
            ("W", self._buckets[place], columns, mixer)
            for pieces, mixer in zip(self._fragments, self._mixers)
            for place, columns in pieces
        ]

    def state(self) -> list[dict[str, Any]]:
        self.complete()
        return [
            {"anchors": anchors.clone(), "momenta": M.clone()}
            for anchors, M in zip(self._anchors, self._momenta)
        ]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        for saved, anchors, M in zip(state, self._anchors, self._momenta):
            anchors.copy_(saved["anchors"])
            M.copy_(saved["momenta"])

    @property
    def extra(self) -> int:
        return 2 * sum(bucket.bytes for bucket in self._buckets)


def _cut(buckets: Sequence[Bucket], parts: int) -> list[list[tuple[int, slice]]]:
    """Cut the columns of all buckets into equal parts, which do not depend on the size of the
    buckets: for each part the places of its buckets, and the columns in them.
    """
    width, fragments = sum(bucket.d for bucket in buckets), []
    for p in range(parts):
        pieces, start = [], 0
        for place, bucket in enumerate(buckets):
            a = max(width * p // parts - start, 0)
            b = min(width * (p + 1) // parts - start, bucket.d)
            start += bucket.d
            if a < b:
                pieces.append((place, slice(a, b)))
        fragments.append(pieces)
    return fragments
