"""What all codecs share: the protocol, their random numbers, and the checks of their parameters."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

Agents = Sequence[int] | np.ndarray
AGENTS, SHARED = 3, 4                               # streams of random numbers; the oracles of a problem have 1 and 2


class Codec:
    r"""The protocol of a codec: rows to bytes, a fixed number of them for each row, and back.

    A codec is a frozen dataclass of its parameters and knows nothing of MPI.  With :math:`C(x)` the row that is decoded,

    .. math::
        E \|x - C(x)\|^2 \le (1 - \delta) \|x\|^2 \quad \text{(contractive)}, \qquad \text{or} \qquad
        E\, C(x) = x, \; E \|x - C(x)\|^2 \le \omega \|x\|^2 \quad \text{(unbiased)};

    of an unbiased codec, :math:`C / (1 + \omega)` is contractive with :math:`\delta = 1 / (1 + \omega)`.

    Attributes
    ----------
    unbiased : bool
        Whether :math:`E\, C(x) = x`.
    feedback : bool
        Whether it takes error feedback to be of use: most of a row is missing in what is decoded.

    Notes
    -----
    Rows are float32 or float64.  What is infinite or not a number in a row does not disappear: it, or the block around it, is
    infinite or not a number in the decoded row, too, so that diverging iterates are seen to diverge.
    """

    unbiased: ClassVar[bool] = False
    feedback: ClassVar[bool] = False

    def wire(self, d: int, dtype: Any) -> int:
        """Bytes of an encoded row of `d` entries."""
        raise NotImplementedError

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        """The rows `X` (m, d) of the given agents as bytes, uint8 (m, wire); random numbers belong to seed, agent and step."""
        raise NotImplementedError

    def decode(self, rows: np.ndarray, d: int, dtype: Any, step: int, agents: Agents) -> np.ndarray:
        """The rows (m, d) that these bytes, uint8 (m, wire), stand for."""
        raise NotImplementedError

    def add(self, rows: np.ndarray, X: np.ndarray, step: int, agents: Agents, scale: float = 1.0) -> None:
        """Add the decoded rows, times `scale`, to the rows `X`."""
        Q = self.decode(rows, X.shape[1], X.dtype, step, agents)
        X += Q if scale == 1 else scale * Q

    def delta(self, d: int) -> float:
        r""":math:`\delta`, in (0, 1], for rows of `d` entries; :math:`1 / (1 + \omega)` if unbiased."""
        raise NotImplementedError


class Streams:
    """Random numbers that belong to (seed, agent, step), on whatever rank and in whatever order they are drawn.

    Philox with the key (seed, agent) and the counter (0, step, purpose, 0): 2**64 blocks for each step, so that steps never
    overlap.
    """

    def __init__(self, seed: int, purpose: int):
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._state["state"]["counter"][:] = 0, 0, purpose, 0
        self._state["state"]["key"][0] = seed

    def at(self, agent: int, step: int) -> np.random.Generator:
        """The generator of an agent at a step; valid until the next one is asked for."""
        words = self._state["state"]
        words["key"][1], words["counter"][1] = agent, step
        self._bits.state = self._state              # 1 microsecond; a new Philox costs 10
        return self._generator


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
    """`count` numbers of each row of bytes from place `start` on, shape (m, count)."""
    dtype = np.dtype(dtype)
    part = np.ascontiguousarray(rows[:, start:start + count * dtype.itemsize])
    return part.reshape(part.size).view(dtype).reshape(len(rows), count)
