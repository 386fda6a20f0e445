"""Base class of the codecs, checks of their parameters, and views of rows as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ...._words import Described, Drawing

Agents = Sequence[int] | np.ndarray


class Codec(Described, Drawing):
    r"""Base class of codecs: conversion of rows to bytes and back; all rows of one length have
    encodings of the same size.

    A codec is a frozen dataclass of its parameters, independent of MPI.  Let :math:`C(x)` be the
    decoded row; then

    .. math::
        & E \|x - C(x)\|^2 \le (1 - \delta) \|x\|^2 & \text{(contractive), or} \\
        & E\, C(x) = x, \; E \|x - C(x)\|^2 \le \omega \|x\|^2 & \text{(unbiased)}.

    If a codec is unbiased, :math:`C / (1 + \omega)` is contractive with :math:`\delta = 1 / (1 +
    \omega)`.

    Attributes
    ----------
    unbiased : bool
        Whether :math:`E\, C(x) = x`.
    lossy : bool
        Whether a decoded row may differ from the row: mixing over a static graph then uses error
        feedback by default.
    feedback : bool
        Whether mixing needs error feedback, because the decoded row lacks most of the entries.
    draws : bool
        Whether it draws random numbers, so that another seed gives other rows; by default, whether
        it has a parameter `seed`.

    Notes
    -----
    Rows are float32 or float64.  An infinite or NaN entry is still infinite or NaN in the decoded
    row, possibly with the whole block around it, so that divergence is detected.
    """

    unbiased: ClassVar[bool] = False
    lossy: ClassVar[bool] = True
    feedback: ClassVar[bool] = False

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        """Size of an encoded row of `d` entries in bytes."""
        raise NotImplementedError

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        """Encode the rows `X` (m, d) of the given agents: uint8 (m, nbytes).

        Random numbers are determined by seed, agent and step.
        """
        raise NotImplementedError

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        """Decode rows of bytes, uint8 (m, nbytes): array (m, d)."""
        raise NotImplementedError

    def add(
        self, rows: np.ndarray, X: np.ndarray, step: int, agents: Agents, scale: float = 1.0
    ) -> None:
        """Add the decoded rows, times `scale`, to `X`."""
        Q = decode(self, rows, X.shape[1], X.dtype, step, agents)
        X += Q if scale == 1 else scale * Q

    def delta(self, d: int) -> float:
        r"""Return the contraction parameter :math:`\delta`, in (0, 1], for rows of `d` entries;
        :math:`1 / (1 + \omega)` if unbiased.
        """
        raise NotImplementedError


def encode(codec: Codec, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
    """Return the rows `X` encoded by a codec, which may be user-defined and cannot change them:
    uint8 (m, nbytes).

    Raises
    ------
    ValueError
    """
    X = X.view()
    X.flags.writeable = False
    made = codec.encode(X, step, agents)
    return _checked(codec, "encode", made, (len(X), codec.nbytes(X.shape[1], X.dtype)), np.uint8)


def decode(
    codec: Codec, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
) -> np.ndarray:
    """Return the rows of `d` numbers decoded from rows of bytes, as a new array.

    Raises
    ------
    ValueError
    """
    made = _checked(
        codec, "decode", codec.decode(rows, d, dtype, step, agents), (len(rows), d), dtype
    )
    return made if type(codec).__module__.startswith("mpidec.") else made.copy()


def _checked(
    codec: Codec, method: str, made: object, shape: tuple[int, int], dtype: DTypeLike
) -> np.ndarray:
    if not isinstance(made, np.ndarray) or made.shape != shape or made.dtype != dtype:
        got = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else f"{made!r:.60}"
        raise ValueError(
            f"{type(codec).__name__}.{method} returned {got}, expected an array "
            f"{np.dtype(dtype)} {shape}"
        )
    return made


def bytes_of(Z: np.ndarray) -> np.ndarray:
    """Return the rows of `Z` as bytes: uint8 (m, width)."""
    Z = np.ascontiguousarray(Z)
    return Z.reshape(Z.size).view(np.uint8).reshape(len(Z), Z.itemsize * math.prod(Z.shape[1:]))


def numbers_of(rows: np.ndarray, start: int, count: int, dtype: DTypeLike) -> np.ndarray:
    """Return the `count` numbers of each row of bytes that begin at byte `start`: array (m,
    count).
    """
    dtype = np.dtype(dtype)
    part = np.ascontiguousarray(rows[:, start : start + count * dtype.itemsize])
    result: np.ndarray = part.reshape(part.size).view(dtype).reshape(len(rows), count)
    return result
