"""Consistency of a training: what must be the same on all ranks, compared in some of its steps."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from .._words import warn
from ..comm.mixing import Network
from ..comm.runtime import ranks, start_minimum
from ..exceptions import mark
from .methods import Method, mean
from .model import Model, digest
from .rows import Bucket

_CALL = "comparison of hyper-parameters"
# Steps between two comparisons, after those of steps 0, 1, 2, 4, ..., 64.
PERIOD = 100
# Updates of one step may be rounded differently on each rank; a random walk of such roundings.
_ROUNDING = 4.0
_REMEDIES = {
    "optimizer": "make the same optimizer on every rank",
    "group": "set it alike on every rank; a schedule that follows a loss, such as "
    "ReduceLROnPlateau, needs the same loss on all ranks, float(net.mean([[loss]])[0]) "
    "(check=False goes on)",
    "frozen": "freeze the same parameters on every rank (check=False goes on)",
    "replaced": "close the wrapper, change the model on every rank, and wrap the optimizer again",
    "module": "build the same model on every rank (check=False goes on)",
    "mode": "call train() or eval() on every rank (check=False goes on)",
}


class Consistency:
    """Comparison of the ranks' optimizers, hyper-parameters and modules; with "allreduce" of
    their parameters, too, which nothing would make equal again.

    Parameters
    ----------
    net : Network
    model : Model
    buckets : list of Bucket
    method : Method
        Without its `checked` nothing is compared.
    """

    def __init__(self, net: Network, model: Model, buckets: Sequence[Bucket], method: Method):
        self._net, self._model, self._buckets, self._method = net, model, buckets, method
        self._steps, self._warned = 0, False

    def _due(self, k: int) -> bool:
        """Whether the ranks compare in a step: not where workers do not wait."""
        return not self._method.asynchronous and not (k % PERIOD if k >= PERIOD else k & (k - 1))

    def restart(self) -> None:
        """Count the steps from now on, when a state has been loaded."""
        self._steps = 0

    def follow(self, step: int) -> None:
        """Count a step that begins, and compare if it is due."""
        due, self._steps = self._due(self._steps), self._steps + 1
        if due:
            self.compare(step)

    def withdraw(self, error: Exception) -> bool:
        """Withdraw from a comparison that comes before the others wait for rows of this rank, and
        tell them why; return whether there is one.
        """
        first = self._steps
        comes = self._compares and any(
            self._due(k) for k in range(first, first + max(self._method.delay, 1))
        )
        if comes:
            self._net.withdraw(_CALL, error)
        return comes

    @property
    def _compares(self) -> bool:
        return self._method.checked and self._net.n > 1

    def compare(self, step: int, rates: bool = True, call: str = _CALL) -> None:
        """Raise on all ranks, naming the first difference between them.  Collective.

        Parameters
        ----------
        step : int
        rates : bool
            Whether hyper-parameters are compared, too.
        call : str
            What all ranks are in.

        Raises
        ------
        ValueError
        RuntimeError
            If the model has other parameters than those that are trained.
        """
        if self._compares:
            # Ranks of several agents have a Stacked, next to plain models of ranks of one.
            alike = self._net.n % self._net.size == 0
            settings = self._model.settings(rates, self._method.asynchronous, alike)
            sums = self._sums() if self._method.averages_gradients else [0]
            setting = zlib.crc32(repr(settings).encode())
            mine = np.array([setting, -setting, min(sums), -max(sums)])
            least = np.empty_like(mine)
            self._net.operation(call)(lambda: start_minimum(self._net.comm, mine, least))
            if least[0] != -least[1]:
                self._refuse_settings(settings)
            if least[2] != -least[3]:
                self._refuse_parameters(step)
        self._model.check_replaced()

    def _sums(self) -> list[int]:
        """Return a checksum of the parameters of each agent of this rank."""
        sums = [0] * self._net.m
        for bucket in self._buckets:
            bucket.settle()
            rows = bucket.rows.detach().cpu().view(torch.uint8).numpy()
            sums = [zlib.crc32(row, before) for row, before in zip(rows, sums)]
        return sums

    def _refuse_settings(self, mine: dict[tuple[str, str], str]) -> None:
        table = self._net.comm.allgather(mine)
        for kind, what in dict.fromkeys(key for settings in table for key in settings):
            values = [settings.get((kind, what), "missing") for settings in table]
            if len(set(values)) > 1:
                raise _on_all_ranks(f"{what} is {spread(values)}: {_REMEDIES[kind]}")

    def _refuse_parameters(self, step: int) -> None:
        """Raise for parameters that differ by more than rounding; else warn, once."""
        far, over = self._distance(), 0.0
        for distance, bucket in zip(far, self._buckets):
            over = max(over, distance / torch.finfo(bucket.rows.dtype).eps)
        if over <= _ROUNDING * math.sqrt(step + 1):
            if self._net.rank == 0 and not self._warned:
                warn(
                    f"step {step}: the parameters of the ranks differ by {max(far):.1e} of their "
                    'norm, as if rounded differently, which "allreduce" does not undo: give all '
                    "ranks the same processors, devices, versions and numbers of threads, or use "
                    'an algorithm that averages parameters, such as "atc"'
                )
            self._warned = True
            return
        mine = {
            name: [digest(row) for row in part]
            for bucket in self._buckets
            for (name, _), part in zip(bucket.named, bucket.parts(bucket.rows))
        }
        table = self._net.comm.allgather(mine)
        for name in mine:
            values = [value for rank in table for value in rank[name]]
            usual = max(values, key=values.count)
            if odd := [worker for worker, value in enumerate(values) if value != usual]:
                raise _on_all_ranks(
                    f"step {step}: parameter {name} of worker{'s' * (len(odd) > 1)} "
                    f"{', '.join(map(str, odd))} differs from that of the others, which "
                    '"allreduce" does not undo: load, initialize and change the model and the '
                    "optimizer's state alike on every rank, or call "
                    "mpidec.optim.broadcast_parameters(model)"
                )

    def _distance(self) -> list[float]:
        """Return the largest distance of an agent from the average of each bucket, relative to
        that average's norm.  Collective.
        """
        far = np.zeros(len(self._buckets))
        for place, bucket in enumerate(self._buckets):
            average = mean(self._net, bucket.rows)
            norm = max(float(average.norm()), torch.finfo(bucket.rows.dtype).tiny)
            far[place] = max(float((row - average).norm()) for row in bucket.rows) / norm
        largest = np.nan_to_num(far, nan=np.inf)
        least = self._net.collectives.minimum(-largest, "comparison of parameters")
        return [-float(each) for each in least]


def spread(values: Sequence[str]) -> str:
    """Describe which ranks have which values.

    Examples
    --------
    >>> spread(["0.1", "0.1", "0.2"])
    '0.1 on ranks 0, 1 and 0.2 on rank 2'
    """
    having: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        having.setdefault(value, []).append(rank)
    first, *others = [f"{value} on {ranks(some)}" for value, some in having.items()]
    return " and ".join([first, *others[:1]]) + (", and others" if others[1:] else "")


def _on_all_ranks(message: str) -> ValueError:
    error = ValueError(message)
    mark(error, on_all_ranks=True)
    return error
