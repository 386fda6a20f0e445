"""What one room needs of another, as structural types: `mpidec.Network` is a `Reductions`, and so is one process alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

T = TypeVar("T")


class Collectives(Protocol):
    """Small collective operations of all ranks; `what` names them in the error of a rank that waits too long."""

    def minimum(
        self, mine: np.ndarray, what: str, ask: Callable[[], None] | None = None
    ) -> np.ndarray:
        """The least of the arrays of all ranks, entry by entry."""

    def gather_all(self, mine: np.ndarray, what: str) -> np.ndarray:
        """The arrays of all ranks, shape `(size, ...)`."""

    def broadcast(self, thing: T, root: int, what: str) -> T:
        """An object of rank `root`, on all ranks."""


class Reductions(Protocol):
    """n agents over the ranks of a job, and sums over them: all that the loops around solvers need of a network.

    This rank hosts the `m` agents `lo:hi`; it is rank `rank` of `size`.
    """

    @property
    def n(self) -> int: ...
    @property
    def m(self) -> int: ...
    @property
    def lo(self) -> int: ...
    @property
    def hi(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def collectives(self) -> Collectives: ...

    def sum(self, X: np.ndarray) -> np.ndarray:
        """The sum of the rows of all agents, on every rank: the same bits for any number of ranks."""

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The average of the rows of all agents, likewise."""

    def gather(self, X: np.ndarray) -> np.ndarray | None:
        """The rows of all agents, shape `(n, ...)`, on rank 0; None on the others."""

    def agree(self, error: Exception | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank."""
