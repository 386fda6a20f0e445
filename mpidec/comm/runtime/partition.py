"""Partition of agents over ranks: blocks of consecutive agents, as equal as possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Partition:
    """Partition of `n` agents into `size` blocks, as by `numpy.array_split`: the first `n % size`
    ranks host one more agent.

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
        """Bounds `(lo, hi)` of a block: rank `rank` hosts the agents `lo:hi`."""
        q, r = divmod(self.n, self.size)
        return rank * q + min(rank, r), (rank + 1) * q + min(rank + 1, r)

    def owner(self, agents: np.ndarray) -> np.ndarray:
        """Return the rank that hosts each agent."""
        q, r = divmod(self.n, self.size)
        cut = r * (q + 1)
        return np.where(agents < cut, agents // (q + 1), r + (agents - cut) // max(q, 1))

    def counts(self) -> np.ndarray:
        """Number of agents of each rank, shape `(size,)`."""
        q, r = divmod(self.n, self.size)
        return np.full(self.size, q) + (np.arange(self.size) < r)
