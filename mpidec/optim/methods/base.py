"""The interface of all methods: communication before and after the base optimizer's update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from ...comm.mixing import Network
from ...comm.mixing.internals import Operator, StepOperator
from ..departures import Departures
from ..rows import Bucket
from ..scaling import Scaled

Mixer = Operator[StepOperator]
Rows: TypeAlias = "np.ndarray | torch.Tensor"


class Method(ABC):
    """Abstract base of the methods; `u` is the update that the base optimizer makes of the
    gradients at `X`.

    Parameters
    ----------
    net : Network
    buckets : list of Bucket
    mixers : list of mixers
        One; several divide the columns of the rows among them, see `divided`.

    Attributes
    ----------
    of_gradients : bool
        Whether it does something before the update, and so in each step.
    averages_gradients : bool
        Whether this is to average them over all workers, without mixers.
    overlaps : bool
        Whether rows travel while the gradients are computed.
    by_rate : bool
        Whether it uses the learning rate.
    own_momentum : bool
        Whether it takes the place of the optimizer's momentum.
    edgewise : bool
        Whether rows travel otherwise than in sums of the mixer.
    asynchronous : bool
        Whether no worker waits for another one.
    by_bucket : bool
        Whether each bucket may leave by itself: `depart` and `arrive` in place of `after`.
    scheduled : bool
        Whether it communicates at moments of its own within `every` steps, a further argument, so
        that `after` is called in each step.
    """

    of_gradients: ClassVar[bool] = False
    averages_gradients: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    by_rate: ClassVar[bool] = False
    own_momentum: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    by_bucket: ClassVar[bool] = False
    # What lets buckets leave during the backward pass.
    departures: Departures | None = None
    scheduled: ClassVar[bool] = False
    edgewise = False
    # Whether numbers that are not finite end the training.
    checked = False
    # Mixings between the one that begins in `after` and the one that ends there.
    late = 0
    # Steps from the departure of rows to the wait for them.
    delay = 0
    loss: Any = None  # of the last batch, as the caller told
    # Whether the parameters' rows are on their way to the neighbours.
    travelling = False
    # What the workers of this rank have sent otherwise than by mixers.
    bytes = 0
    # How often workers that make different steps have saved their states together.
    saves = 0

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        self._net, self._buckets, self._mixers = net, buckets, mixers

    def before(self, k: int, scaled: Scaled) -> bool:
        """Do the communication before the base optimizer's update in step `k`; `show` follows.

        Returns whether all workers leave the update out.
        """
        return False

    def average(self, k: int, scaled: Scaled) -> bool:
        """Average the gradients of step `k`, of methods that do so; return as `before` does."""
        return False

    def forget(self) -> None:
        """Forget averages of gradients taken before the step: the next ones are averaged in any
        case.
        """

    @abstractmethod
    def after(self, k: int) -> None:
        """Do the communication after the base optimizer's update in step `k`; `show` follows."""

    @property
    def ahead(self) -> bool:
        """Whether the rows of the next mixing leave before the next step."""
        return False

    def depart(self, i: int, k: int) -> None:
        """Begin the communication of bucket `i` in mixing `k`, after its update; the buckets depart
        in their order.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depart")

    def arrive(self, i: int) -> None:
        """Complete the communication of bucket `i`; they arrive in their order, and `show`
        follows.
        """
        raise NotImplementedError(f"{type(self).__name__} has no arrive")

    def show(self) -> None:
        """Copy the results to the parameters, which until then hold the update's own result."""

    def iterates(self) -> list[torch.Tensor]:
        """Return the iterates, rows (m, d) of each bucket; the parameters themselves except where
        gradients are taken elsewhere.
        """
        return [bucket.rows for bucket in self._buckets]

    def shares(self, X: list[torch.Tensor]) -> list[torch.Tensor]:
        """Rows whose average over all workers is that of the workers, from the `iterates`;
        collective.
        """
        return X

    def withdraw(self, error: Exception) -> None:
        """Tell all ranks that this one takes no part in what precedes the next update."""

    def advance(self) -> None:
        """Make progress beyond that of MPI with what is under way; in any thread."""

    def complete(self) -> None:
        """Complete communication in progress."""

    def drain(self, k: int) -> None:
        """Complete also what has left for step `k`, which is not taken.  Collective."""
        if self.departures is not None and self.departures.begun:
            left = np.array([float(self.departures.left)])
            request = self._net.row_sums.start(left)
            self._wait = self._net.messages("end of departures")
            self._wait(request)
            for i in range(self.departures.left, len(self._buckets) if left[0] else 0):
                self.depart(i, k)
            self.departures.begin()
        self.complete()

    def close(self) -> None:
        """Complete communication in progress, and free resources.  Collective."""
        self.complete()

    def parts(self) -> list[tuple[Bucket, slice, Mixer]]:
        """The columns of the buckets that the dicts of `state` belong to."""
        return divided(self._buckets, self._mixers)

    def mixings(self) -> list[tuple[str, Bucket, slice, Mixer]]:
        """Which columns a step mixes, in this order, each with a name for what the mixer
        remembers of them.
        """
        return [("W", *part) for part in divided(self._buckets, self._mixers)]

    def state(self) -> list[dict[str, Any]]:
        """All that a restart needs beside the parameters: for each of the `parts` tensors and
        numbers by name; tensors whose last dimension is that of the columns are cut to the
        parameters, see `States`.
        """
        return []

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continue with what `state` returned, with tensors of the same shapes, at the parameters
        as they are now.
        """

    @property
    def extra(self) -> int:
        """Bytes of memory beyond parameters, gradients and the base optimizer's state, between
        two steps.
        """
        return 0


def divided(
    buckets: Sequence[Bucket], mixers: Sequence[Mixer]
) -> list[tuple[Bucket, slice, Mixer]]:
    """Return the columns of each bucket in equal parts, one for each mixer, in the order of the
    buckets.
    """
    parts = []
    for bucket in buckets if mixers else ():
        cuts = [bucket.d * i // len(mixers) for i in range(len(mixers) + 1)]
        parts += [
            (bucket, slice(a, b), mixer) for a, b, mixer in zip(cuts, cuts[1:], mixers) if a < b
        ]
    return parts


def mean(net: Network, rows: torch.Tensor) -> torch.Tensor:
    """Average of the rows of all agents, a row (d,) of the kind of `rows`."""
    host = rows.detach().cpu()
    wide = host.float() if host.dtype == torch.bfloat16 else host
    return torch.from_numpy(net.mean(wide.numpy())).to(rows.device, rows.dtype)
