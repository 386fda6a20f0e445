"""Agents over ranks: blocks of consecutive agents, as even as can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Partition:
    """`n` agents in `size` blocks, cut as `numpy.array_split` cuts: the first `n % size` ranks host one more.

    Examples
    --------
    >>> blocks = Partition(n=10, size=4)
    >>> [blocks.bounds(rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    >>> blocks.owner(np.array([0, 5, 9])).tolist()
    [0, 1, 3]
    """

    n: int
    size: int

    def bounds(self, rank: int) -> tuple[int, int]:
        """`(lo, hi)`: rank `rank` hosts the agents `lo:hi`."""
        q, r = divmod(self.n, self.size)
        return rank * q + min(rank, r), (rank + 1) * q + min(rank + 1, r)

    def owner(self, agents: np.ndarray) -> np.ndarray:
        """The rank that hosts each agent."""
        q, r = divmod(self.n, self.size)
        cut = r * (q + 1)
        return np.where(agents < cut, agents // (q + 1), r + (agents - cut) // max(q, 1))

    def counts(self) -> np.ndarray:
        """Agents of each rank, shape `(size,)`."""
        q, r = divmod(self.n, self.size)
        return np.full(self.size, q) + (np.arange(self.size) < r)
