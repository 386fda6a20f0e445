"""Sampling: each rank draws its own part of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from ..protocols import Reductions


class AgentSampler(Sampler[int]):
    """Indices of the samples that the agents of a rank draw in an epoch; see `sampler`."""

    def __init__(self, data: Sized, net: Reductions, shuffle: bool, seed: int, drop_last: bool):
        self._net, self._shuffle, self._seed, self._epoch = net, shuffle, seed, 0
        self._samples = len(data)
        self._each = self._samples // net.n if drop_last else -(-self._samples // net.n)
        if not self._each:
            raise ValueError(
                f"the data set has {self._samples} samples for {net.n} workers, expected at least "
                "one "
                f"{'for each' if drop_last else 'sample'}"
            )

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch from now on: call it before each epoch, on every rank."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._each * (self._net.hi - self._net.lo)

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(self._samples)
        if self._shuffle:
            order = torch.randperm(
                self._samples, generator=torch.Generator().manual_seed(self._seed + self._epoch)
            )
        places = torch.arange(self._each * self._net.n) % self._samples
        return iter(
            order[places]
            .view(self._each, self._net.n)[:, self._net.lo : self._net.hi]
            .flatten()
            .tolist()
        )


def sampler(
    data: Sized, net: Reductions, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
) -> AgentSampler:
    """Return a torch sampler that gives each rank its own part of a data set, with equally many
    samples for every worker.

    Parameters
    ----------
    data : Dataset, or anything with a length
        The same on every rank.
    net : Network
    shuffle : bool
        Whether all ranks draw a common order of the samples, another one after each
        `set_epoch(epoch)`, and divide it.
    seed : int
        Of the orders; the same on every rank.
    drop_last : bool
        Where n does not divide the number of samples: leave out the last ones, fewer than n, so
        that the parts are disjoint; else as many of the first ones are drawn twice.

    Returns
    -------
    torch.utils.data.Sampler
        For `DataLoader(data, batch, sampler=...)`.  With `set_epoch(epoch)`, which begins another
        order.

    Raises
    ------
    TypeError
        If the data have no length.
    ValueError
        If there are no samples, or, with `drop_last`, fewer than workers.

    Notes
    -----
    With one worker per rank these are the samples of `torch.utils.data.DistributedSampler`.  The
    samples of the m workers of a rank take turns: a batch `x` of m B samples is `x.unflatten(0,
    (-1, m)).transpose(0, 1)`, of shape (m, B, ...), for `Stacked`.

    Examples
    --------
    >>> from types import SimpleNamespace as Net
    >>> [list(sampler(range(7), Net(n=3, lo=rank, hi=rank + 1), shuffle=False)) for rank in range(3)]
    [[0, 3, 6], [1, 4, 0], [2, 5, 1]]
    """
    if not hasattr(data, "__len__"):
        raise TypeError(
            f"the data set, a {type(data).__name__}, has no length, so that it cannot be divided: "
            "let each rank "
            "read its own part of it"
        )
    return AgentSampler(data, net, shuffle, seed, drop_last)
