"""The interface of all transports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from ..runtime import Request


@lru_cache
def words(shape: tuple[int, ...]) -> str:
    """Describe the shape of a row, for messages.

    Examples
    --------
    >>> words((3,)), words((2, 3)), words(())
    ('3', '2 x 3', 'scalar')
    """
    return " x ".join(map(str, shape)) or "scalar"


class Counters(Protocol):
    """Counts of what was sent: `runtime.node.Counts`, compiled or not."""

    rounds: int
    messages: int
    bytes: int


class Transport(ABC):
    """Carries the rows of one phase, to their halo or right into the sums.

    Attributes
    ----------
    in_place : bool
        Whether rows are read in the memory of the node; it sums up float64 and float32 only.
    """

    in_place = False

    @abstractmethod
    def start(self, rows: np.ndarray, target: np.ndarray, shape: str | None = None) -> Request:
        """Begin to fill `target` from the rows of this rank and of others.

        Parameters
        ----------
        rows : array (m, d)
            C-contiguous; must not change before the request has been waited for.
        target : array (k, d)
            C-contiguous: the halo, or the sums.
        shape : str, optional
            What a row was before it was flattened, as text, which must be the same on all ranks;
            `"d"` by default.
        """

    def mix(self, X: object, out: object, shape: str | None = None) -> np.ndarray | None:
        """`W X` in one call; None, and nothing has happened, if the arrays are not of the common
        kind or there is no such way.

        The common kind: `X`, and `out` unless it is None, are NumPy arrays (m, d) of float64 or
        float32 in C order.  `shape` is that of `start`.
        """
        return None

    @property
    def call(self) -> Callable[[object, object], np.ndarray | None]:
        """`mix` of plain matrices, compiled where it can be."""
        return self.mix

    def give_up(self, error: Exception) -> None:
        """Notify the neighbours that this rank withdraws from the operation that they begin."""

    def free(self) -> None:
        """Free what the transport holds; collective."""
