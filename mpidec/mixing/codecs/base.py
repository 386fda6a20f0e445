"""Base class of the codecs, checks of their parameters, and views of rows as bytes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

Agents = Sequence[int] | np.ndarray


class Codec:
    r"""Base class of codecs: rows to bytes, the same number for each row of one length, and back.

    A codec is a frozen dataclass of its parameters and knows nothing of MPI.  With :math:`C(x)` the decoded row,

    .. math::
        E \|x - C(x)\|^2 \le (1 - \delta) \|x\|^2 \quad \text{(contractive)}, \qquad \text{or} \qquad
        E\, C(x) = x, \; E \|x - C(x)\|^2 \le \omega \|x\|^2 \quad \text{(unbiased)};

    of an unbiased codec, :math:`C / (1 + \omega)` is contractive with :math:`\delta = 1 / (1 + \omega)`.

    Attributes
    ----------
    unbiased : bool
        Whether :math:`E\, C(x) = x`.
    feedback : bool
        Whether mixing needs error feedback by default: most of a row is missing from the decoded row.

    Notes
    -----
    Rows are float32 or float64.  Entries that are infinite or not a number stay so in the decoded row (they, or the block
    around them), so that divergence is detected.
    """

    unbiased: ClassVar[bool] = False
    feedback: ClassVar[bool] = False

    def nbytes(self, d: int, dtype: Any) -> int:
        """Bytes of an encoded row of `d` entries."""
        raise NotImplementedError

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        """The rows `X` (m, d) of the given agents as bytes, uint8 (m, nbytes); random numbers belong to seed, agent and step."""
        raise NotImplementedError

    def decode(self, rows: np.ndarray, d: int, dtype: Any, step: int, agents: Agents) -> np.ndarray:
        """The decoded rows (m, d) of these bytes, uint8 (m, nbytes)."""
        raise NotImplementedError

    def add(self, rows: np.ndarray, X: np.ndarray, step: int, agents: Agents, scale: float = 1.0) -> None:
        """Add the decoded rows, times `scale`, to the rows `X`."""
        Q = self.decode(rows, X.shape[1], X.dtype, step, agents)
        X += Q if scale == 1 else scale * Q

    def delta(self, d: int) -> float:
        r""":math:`\delta`, in (0, 1], for rows of `d` entries; :math:`1 / (1 + \omega)` if unbiased."""
        raise NotImplementedError


def whole(where: str, name: str, value: Any, least: int, most: int) -> int:
    """`value` as an int in `least`, ..., `most`.

    Raises
    ------
    ValueError
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most or isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{where}: {name} is {value!r}, expected a whole number from {least} to {most}")
    return number


def bytes_of(Z: np.ndarray) -> np.ndarray:
    """The rows of `Z` as bytes, uint8 (m, width)."""
    Z = np.ascontiguousarray(Z)
    return Z.reshape(Z.size).view(np.uint8).reshape(len(Z), Z.itemsize * math.prod(Z.shape[1:]))


def numbers_of(rows: np.ndarray, start: int, count: int, dtype: Any) -> np.ndarray:
    """`count` numbers of each row of bytes, from byte `start` on: shape (m, count)."""
    dtype = np.dtype(dtype)
    part = np.ascontiguousarray(rows[:, start:start + count * dtype.itemsize])
    return part.reshape(part.size).view(dtype).reshape(len(rows), count)
