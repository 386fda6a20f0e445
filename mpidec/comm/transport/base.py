"""The interface of all transports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..runtime.progress import Request


def words(shape: Sequence[int]) -> str:
    """The shape of a row, in words.

    Examples
    --------
    >>> words((3,)), words((2, 3)), words(())
    ('3', '2 x 3', 'scalar')
    """
    return " x ".join(map(str, shape)) or "scalar"


class Transport(ABC):
    """Carries the rows of one phase, to their halo or right into the sums."""

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
            What a row was before it was flattened, in words, which must be the same on all ranks; `"d"` by default.
        """

    def mix(self, X: Any, out: Any) -> np.ndarray | None:
        """`W X` in one call; None, and nothing has happened, if the arrays are not of the common kind or there is no such way.

        The common kind: `X`, and `out` unless it is None, are NumPy arrays (m, d) of float64 in C order.
        """
        return None

    def give_up(self, error: Exception) -> None:
        """Tell the neighbours that this rank takes no part in the operation that they begin."""

    def free(self) -> None:
        """Free what the transport holds; collective."""
