"""Sampling: each rank draws its own part of a data set."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import DistributedSampler

from ..protocols import Reductions


class Epochs:
    """Epochs of the samplers of a network, in this process.

    Attributes
    ----------
    begun : int
        How many have begun.
    divided_before : int
        Those up to which some rank had begun its own when others died: they keep the division of
        that time, so that all ranks take equally many batches.
    """

    def __init__(self) -> None:
        self.begun = self.divided_before = 0


# By the `id` of their networks, which live as long as the samplers.
_OF: weakref.WeakValueDictionary[int, Epochs] = weakref.WeakValueDictionary()


def epochs_of(net: Reductions) -> Epochs:
    """Return those of a network, for one that keeps the network, too."""
    return _OF.setdefault(id(net), Epochs())


class AgentSampler(DistributedSampler[int]):
    """Indices of the samples that the agents of a rank draw in an epoch; see `sampler`.

    By its class, trainers know that the data are divided already.
    """

    def __init__(self, data: Sized, net: Reductions, shuffle: bool, seed: int, drop_last: bool):
        if len(data) < (net.n if drop_last else 1):
            raise ValueError(
                f"the data set has {len(data)} samples for {net.n} workers, expected at least "
                f"one {'for each' if drop_last else 'sample'}"
            )
        self._net, self._epochs = net, epochs_of(net)
        self._options = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
        self._divide(data)

    def _divide(self, data: Sized) -> None:
        """Divide the data among the agents that the network has now."""
        self._n, self._lo, self._hi = self._net.n, self._net.lo, self._net.hi
        first = min(self._lo, self._n - 1)  # a rank without agents begins after the last one
        super().__init__(data, self._n, first, **self._options)

    def __len__(self) -> int:
        return int(self.num_samples) * (self._hi - self._lo)

    def __iter__(self) -> Iterator[int]:
        epochs = self._epochs
        epochs.begun += 1
        if epochs.begun > epochs.divided_before and self._n != self._net.n:
            epoch = int(self.epoch)
            self._divide(self.dataset)
            self.set_epoch(epoch)
        samples = len(self.dataset)
        order = torch.arange(samples)
        if self.shuffle:
            order = torch.randperm(
                samples, generator=torch.Generator().manual_seed(self.seed + self.epoch)
            )
        places = torch.arange(self.num_samples * self._n) % samples
        return iter(
            order[places].view(self.num_samples, self._n)[:, self._lo : self._hi].flatten().tolist()
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
    torch.utils.data.DistributedSampler
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
    Data of workers that have died (`Decentralized(on_failure="drop")`) are shared out among the
    others from the next epoch on.

    With one worker per rank these are the samples of a plain `DistributedSampler`.  The samples of
    the m workers of a rank take turns: a batch `x` of m B samples is `x.unflatten(0, (-1,
    m)).transpose(0, 1)`, of shape (m, B, ...), for `Stacked`.

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
