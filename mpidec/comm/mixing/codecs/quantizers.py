"""Quantizers: codecs that send every entry of a row in fewer bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from .... import _validation as check
from ...._random import Streams
from ...arrays import BFLOAT16, narrow, widen
from .base import Agents, Codec, bytes_of, numbers_of

_TINY = float(np.finfo(np.float32).tiny)
# Entries of a row processed at a time, so that they fit in the cache.
_SLAB = 1 << 15


@dataclass(frozen=True)
class Identity(Codec):
    """Identity: rows are sent unchanged.

    Examples
    --------
    >>> Identity().nbytes(100, "f8")
    800
    """

    unbiased: ClassVar[bool] = True
    lossy: ClassVar[bool] = False

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        nbytes: int = d * np.dtype(dtype).itemsize
        return nbytes

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        return bytes_of(X)

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        return numbers_of(rows, 0, d, dtype)

    def delta(self, d: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Float16(Codec):
    r"""Half precision, scaled by a power of two per row so that nothing overflows: 2 d + 2 bytes,
    11 significant bits.

    Rounding to nearest: :math:`\delta = 1 - 2^{-21}`.  Entries smaller than :math:`2^{-29}` times
    the largest one lose bits, and those smaller than :math:`2^{-40}` times the largest one become
    zero.

    Examples
    --------
    >>> X = np.array([[1e-300, 3e-300, -7e-301]])
    >>> (Float16().decode(Float16().encode(X, 0, [0]), 3, X.dtype, 0, [0]) / 1e-300).round(2).tolist()
    [[1.0, 3.0, -0.7]]
    """

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        return 2 * d + 2

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        exponent = np.frexp(_largest(X))[1]
        exponent = np.maximum(exponent, -1000 if X.itemsize == 8 else -100).astype(np.int16)
        rows, scale = (
            np.empty((len(X), self.nbytes(X.shape[1], X.dtype)), np.uint8),
            _power(15 - exponent, X.dtype),
        )
        rows[:, :2] = bytes_of(exponent[:, None])
        with np.errstate(over="ignore"):
            for a, b in _slabs(X.shape[1]):
                rows[:, 2 + 2 * a : 2 + 2 * b] = bytes_of((X[:, a:b] * scale).astype(np.float16))
        return rows

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        exponent = numbers_of(rows, 0, 1, np.int16)[:, 0]
        X = numbers_of(rows, 2, d, np.float16).astype(dtype)
        X *= _power(exponent - 15, X.dtype)
        return X

    def delta(self, d: int) -> float:
        return 1 - 2.0**-21


@dataclass(frozen=True)
class BFloat16(Codec):
    r"""Upper half of single precision: 2 d bytes, 8 significant bits, the exponent range of
    float32.

    Rounding to nearest, ties to even: :math:`\delta = 1 - 2^{-15}`.  Entries larger than 3.39e38
    become infinite.

    Examples
    --------
    >>> X = np.array([[1.0, 3.14159, -1e30]])
    >>> BFloat16().decode(BFloat16().encode(X, 0, [0]), 3, X.dtype, 0, [0])[0, :2].tolist()
    [1.0, 3.140625]
    """

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        return 2 * d

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        rows = np.empty((len(X), self.nbytes(X.shape[1], X.dtype)), np.uint8)
        for a, b in _slabs(X.shape[1]):
            with np.errstate(over="ignore"):
                rows[:, 2 * a : 2 * b] = bytes_of(narrow(X[:, a:b], BFLOAT16))
        return rows

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        return widen(numbers_of(rows, 0, d, np.uint16), BFLOAT16).astype(dtype, copy=False)

    def delta(self, d: int) -> float:
        return 1 - 2.0**-15


@dataclass(frozen=True)
class Blockwise8(Codec):
    r"""8-bit integers with a scale per block of a row: d bytes, and 4 bytes per block.

    With :math:`a = \max_i |x_i| / 127` over a block of B entries, :math:`C(x)_i = a
    \,\mathrm{round}(x_i / a)`, with an error of at most :math:`a / 2`: :math:`\delta = 1 - B / (4
    \cdot 127^2)` (0.93 for the default).

    Parameters
    ----------
    block : int
        B, up to 32768.

    Notes
    -----
    The scale is a float32: a block whose largest entry is below 1e-36 becomes zero, and one whose
    largest entry is above 4e40 becomes NaN.

    References
    ----------
    T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, "8-bit optimizers via block-wise
    quantization", ICLR 2022.

    Examples
    --------
    >>> X = np.array([[1.27, -0.5, 0.001]])
    >>> Blockwise8().decode(Blockwise8().encode(X, 0, [0]), 3, X.dtype, 0, [0]).round(6).tolist()
    [[1.27, -0.5, 0.0]]
    """

    block: int = 4096

    def __post_init__(self) -> None:
        check.integer(self.block, "blockwise8: block", least=1, most=1 << 15)

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        return 4 * -(-d // self.block) + d

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        m, d = X.shape
        count = -(-d // self.block)
        rows, scales = (
            np.empty((m, self.nbytes(d, X.dtype)), np.uint8),
            np.empty((m, count), np.float32),
        )
        for a, b in _slabs(d, self.block):
            V = _blocks(X[:, a:b], self.block)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                scale = (_largest(V) / 127).astype(np.float32)
                scale[scale < _TINY] = 0
                scale[~np.isfinite(scale)] = np.nan
                V = V * np.where(scale > 0, 1 / scale.astype(X.dtype), 0)[..., None]
                levels = np.rint(V, out=V).astype(np.int8)
            scales[:, a // self.block : -(-b // self.block)] = scale
            rows[:, 4 * count + a : 4 * count + b] = levels.view(np.uint8).reshape(
                m, V.shape[1] * V.shape[2]
            )[:, : b - a]
        rows[:, : 4 * count] = bytes_of(scales)
        return rows

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        count = -(-d // self.block)
        scale = numbers_of(rows, 0, count, np.float32)
        return _scaled(numbers_of(rows, 4 * count, d, np.int8), scale, self.block, dtype)

    def delta(self, d: int) -> float:
        return 1 - min(self.block, d) / (4 * 127**2)


@dataclass(frozen=True)
class QSGD(Codec):
    r"""Unbiased random rounding to s levels between 0 and the norm of a bucket.

    .. math:: C(x)_i = \frac{\|x\|}{s} \lfloor s x_i / \|x\| + u_i \rfloor, \qquad u_i \sim U[0, 1)

    for each bucket of B entries: unbiased with :math:`\omega = \min(B / s^2, \sqrt{B} / s)` (0.57
    for the default). :math:`\lceil \log_2 (2 s + 1) \rceil` bits per entry and 4 bytes per bucket:
    5.25 bits per entry for the default.

    Parameters
    ----------
    levels : int
        s, up to 127.
    bucket : int
        B, a multiple of 8.
    seed : int
        Seed of the :math:`u_i`, which are drawn independently for each agent and step.

    Notes
    -----
    The norm is a float32, rounded up: a bucket whose norm is below 1e-38 becomes zero, and one
    whose norm is above 3e38 becomes NaN.

    References
    ----------
    D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: communication-efficient SGD via
    gradient quantization and encoding", NeurIPS 2017.

    Examples
    --------
    >>> QSGD(levels=7).nbytes(1024, "f8")              # 4 bits per entry, 8 buckets
    544
    """

    unbiased: ClassVar[bool] = True
    levels: int = 15
    bucket: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        check.integer(self.levels, "qsgd: levels", least=1, most=127)
        check.integer(self.seed, "qsgd: seed", least=0, most=2**64 - 1)
        if check.integer(self.bucket, "qsgd: bucket", least=8, most=1 << 20) % 8:
            raise ValueError(
                f"qsgd: bucket is {self.bucket}, expected a multiple of 8 (e.g. "
                f"{self.bucket // 8 * 8})"
            )

    @cached_property
    def _bits(self) -> int:
        return (2 * self.levels).bit_length()

    @cached_property
    def _streams(self) -> Streams:
        return Streams(self.seed, "rounding")

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        return 4 * -(-d // self.bucket) + self._bits * -(-d // 8)

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        m, d = X.shape
        count, slabs = -(-d // self.bucket), list(_slabs(d, self.bucket))
        rows, norms = (
            np.empty((m, self.nbytes(d, X.dtype)), np.uint8),
            np.empty((m, count), np.float32),
        )
        draws = (
            [self._streams.at(agent, step).random(d, np.float32) for agent in agents]
            if len(slabs) == 1
            else []
        )
        for part in [slice(0, m)] if len(slabs) <= 1 else [slice(i, i + 1) for i in range(m)]:
            stream = self._streams.at(agents[part.start], step) if len(slabs) > 1 else None
            for a, b in slabs:
                U = (
                    np.array(draws).reshape(m, d)
                    if stream is None
                    else stream.random((1, b - a), np.float32)
                )
                norm, levels = self._rounded(X[part, a:b], U)
                norms[part, a // self.bucket : -(-b // self.bucket)] = norm
                start = 4 * count + a // 8 * self._bits
                rows[part, start : start + levels.shape[1] // 8 * self._bits] = _pack(
                    levels, self._bits
                )
        rows[:, : 4 * count] = bytes_of(norms)
        return rows

    def _rounded(self, X: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the norms of the buckets, and the levels of their entries, shifted by s to start
        at 0.
        """
        s, V, d = self.levels, _blocks(X, self.bucket), X.shape[1]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            norm = np.sqrt(np.square(V).sum(axis=-1)).astype(np.float32)
            norm = np.where(norm < _TINY, np.float32(0), np.nextafter(norm, np.float32(np.inf)))
            norm[~np.isfinite(norm)] = np.nan
            V = (V * np.where(norm > 0, s / norm.astype(X.dtype), 0)[..., None]).reshape(
                len(X), V.shape[1] * V.shape[2]
            )
            V[:, :d] += U
            V = np.floor(V[:, : -(-d // 8) * 8])
            V += s
            # Rounding may have lifted the sum to the level above the largest.
            np.clip(V, 0, 2 * s, out=V)
            return norm, V.astype(np.uint8)

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        count = -(-d // self.bucket)
        norm = numbers_of(rows, 0, count, np.float32)
        levels = _unpack(rows[:, 4 * count :], self._bits)[:, :d].view(np.int8) - np.int8(
            self.levels
        )
        return _scaled(levels, norm / np.float32(self.levels), self.bucket, dtype)

    def delta(self, d: int) -> float:
        bucket = min(self.bucket, d)
        return 1 / (1 + min(bucket / self.levels**2, math.sqrt(bucket) / self.levels))


def _largest(V: np.ndarray) -> np.ndarray:
    """Largest magnitude along the last axis; 0 for an empty axis."""
    result: np.ndarray = np.maximum(V.max(axis=-1, initial=0), -V.min(axis=-1, initial=0))
    return result


def _power(exponent: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the column `2**exponent`."""
    result: np.ndarray = np.ldexp(dtype.type(1), exponent.astype(np.int32))[:, None].astype(dtype)
    return result


def _blocks(X: np.ndarray, size: int) -> np.ndarray:
    """Rows split into blocks: (m, d) -> (m, blocks, size).

    The last block is padded with zeros; a single block is only padded to a multiple of 8 entries.
    """
    m, d = X.shape
    size = min(size, -(-d // 8) * 8) or size
    count = -(-d // size)
    if count * size != d:
        X = np.concatenate([X, np.zeros((m, count * size - d), X.dtype)], axis=1)
    return X.reshape(m, count, size)


def _scaled(levels: np.ndarray, scale: np.ndarray, size: int, dtype: DTypeLike) -> np.ndarray:
    """Integers (m, d) times the scale of their block."""
    m, d = levels.shape
    X = np.empty((m, d), dtype)
    for a, b in _slabs(d, size):
        V = _blocks(levels[:, a:b].astype(dtype), size)
        V *= scale[:, a // size : -(-b // size), None].astype(dtype)
        X[:, a:b] = V.reshape(m, V.shape[1] * V.shape[2])[:, : b - a]
    return X


def _slabs(d: int, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Bounds of the slabs of a row; all slabs but the last are multiples of `unit` entries."""
    size = unit * max(1, _SLAB // unit)
    return ((a, min(a + size, d)) for a in range(0, d, size))


def _pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Numbers below 2**bits, packed eight at a time into `bits` bytes: uint8 (m, 8 c) -> (m,
    bits c).
    """
    words = np.zeros((len(values), values.shape[1] // 8), "<u8")
    for t in range(8):
        words |= values[:, t::8].astype(np.uint64) << np.uint64(t * bits)
    bytes_ = words.reshape(*words.shape, 1).view(np.uint8)
    return bytes_[..., :bits].reshape(len(values), bits * words.shape[1])


def _unpack(rows: np.ndarray, bits: int) -> np.ndarray:
    """Inverse of `_pack`."""
    m, count = len(rows), rows.shape[1] // bits
    padded = np.zeros((m, count, 8), np.uint8)
    padded[..., :bits] = rows.reshape(m, count, bits)
    words = padded.reshape(-1).view("<u8").reshape(m, count)
    values = np.empty((m, count, 8), np.uint8)
    for t in range(8):
        values[..., t] = (words >> np.uint64(t * bits)) & np.uint64((1 << bits) - 1)
    return values.reshape(m, count * 8)
