"""Sparsifiers: codecs that send a few entries of each row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from .... import _validation as check
from ...._random import Streams
from .base import Agents, Codec, bytes_of, numbers_of

# A 16-bit index counts from the start of its part of the row.
_PART = 1 << 16
# Length up to which rows are sorted in full.
_SHORT = 1 << 10


@dataclass(frozen=True)
class _Sparse(Codec):
    """Base class of codecs that send k entries of each row: a given number, or a fraction of the
    row (at least one entry).
    """

    feedback: ClassVar[bool] = True
    fraction: float = 0.01
    k: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.k is not None:
            check.integer(self.k, f"{name}: k", most=2**63 - 1)
        check.number(self.fraction, f"{name}: fraction", above=0, most=1)

    def kept(self, d: int) -> int:
        """Number of entries sent for a row of `d` entries."""
        return min(d, max(1, round(self.fraction * d)) if self.k is None else self.k)

    def delta(self, d: int) -> float:
        return self.kept(d) / d if d else 1.0

    def decode(
        self, rows: np.ndarray, d: int, dtype: DTypeLike, step: int, agents: Agents
    ) -> np.ndarray:
        X = np.zeros((len(rows), d), dtype)
        self.add(rows, X, step, agents)
        return X


@dataclass(frozen=True)
class TopK(_Sparse):
    r"""The k entries of largest magnitude, in full precision; the others are decoded as zero.

    Contractive with :math:`\delta = k / d`, and much better for rows with few large entries.  Among
    equal magnitudes the first ones are chosen; NaN counts as the largest magnitude.

    Parameters
    ----------
    fraction : float
        :math:`k / d`, by default 0.01.
    k : int, optional
        Number of entries, overrides `fraction`; rows with fewer entries are sent in full.

    Notes
    -----
    An encoded row contains the values in full precision, the lower 16 bits of their indices, and
    the number of values in each part of 65536 entries: 1.25 % of a float64 row for the default.

    References
    ----------
    S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018.

    Examples
    --------
    >>> X = np.array([[1., -5., 0., 3.]])
    >>> TopK(k=2).decode(TopK(k=2).encode(X, 0, [0]), 4, X.dtype, 0, [0]).tolist()
    [[0.0, -5.0, 0.0, 3.0]]
    """

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        nbytes: int = self.kept(d) * (np.dtype(dtype).itemsize + 2) + 4 * -(-d // _PART)
        return nbytes

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        m, d = X.shape
        indices = _largest(X, self.kept(d))
        parts = -(-d // _PART)
        counts = np.zeros((m, parts), np.uint32)
        for i in range(m):
            counts[i] = np.bincount(indices[i] // _PART, minlength=parts)
        values = np.take_along_axis(X, indices, axis=1)
        return np.concatenate(
            [bytes_of(values), bytes_of(counts), bytes_of((indices % _PART).astype(np.uint16))],
            axis=1,
        )

    def add(
        self, rows: np.ndarray, X: np.ndarray, step: int, agents: Agents, scale: float = 1.0
    ) -> None:
        m, d = X.shape
        k, parts, item = self.kept(d), -(-d // _PART), X.itemsize
        counts = numbers_of(rows, k * item, parts, np.uint32)
        indices = np.repeat(np.tile(np.arange(parts) * _PART, m), counts.reshape(-1)).reshape(m, k)
        indices += numbers_of(rows, k * item + 4 * parts, k, np.uint16)
        X[np.arange(m)[:, None], indices] += scale * numbers_of(rows, 0, k, X.dtype)


@dataclass(frozen=True)
class RandK(_Sparse):
    r"""Random k entries, the same indices for all agents in a step; the others are decoded as zero.

    Every rank draws the indices from the seed and the step, so that only the values are sent:
    :math:`k / d` of the row. :math:`E \|x - C(x)\|^2 = (1 - k / d) \|x\|^2`, that is :math:`\delta
    = k / d`; and :math:`\tfrac{d}{k} C` is unbiased. Since all agents send the same entries, mixing
    without feedback averages these entries and leaves the others unchanged.

    Parameters
    ----------
    fraction : float
        :math:`k / d`, by default 0.01.
    k : int, optional
        Number of entries, overrides `fraction`; rows with fewer entries are sent in full.
    seed : int
        Seed of the indices.

    References
    ----------
    S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018.

    Examples
    --------
    >>> X = np.arange(1., 9.).reshape(1, 8)
    >>> sum(
    ...     RandK(k=4).decode(RandK(k=4).encode(X, step, [0]), 8, X.dtype, step, [0])
    ...     for step in range(1000)
    ... ).argmax()
    np.int64(7)
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer(self.seed, "RandK: seed", least=0, most=2**64 - 1)

    def nbytes(self, d: int, dtype: DTypeLike) -> int:
        nbytes: int = self.kept(d) * np.dtype(dtype).itemsize
        return nbytes

    def encode(self, X: np.ndarray, step: int, agents: Agents) -> np.ndarray:
        return bytes_of(X[:, _drawn(self.seed, X.shape[1], self.kept(X.shape[1]), step)])

    def add(
        self, rows: np.ndarray, X: np.ndarray, step: int, agents: Agents, scale: float = 1.0
    ) -> None:
        d = X.shape[1]
        X[:, _drawn(self.seed, d, self.kept(d), step)] += scale * numbers_of(
            rows, 0, self.kept(d), X.dtype
        )


@lru_cache(maxsize=4)
def _drawn(seed: int, d: int, k: int, step: int) -> np.ndarray:
    indices = (
        Streams(seed, "coordinates").at(0, step).choice(d, k, replace=False, shuffle=False)
        if d
        else np.empty(0, np.int64)
    )
    indices.sort()
    indices.flags.writeable = False  # the same array for all that ask
    return indices


def _largest(X: np.ndarray, k: int) -> np.ndarray:
    """Indices of the `k` largest magnitudes of each row, in ascending order; among equal
    magnitudes the first ones.
    """
    m, d = X.shape
    if k == d:
        return np.tile(np.arange(d), (m, 1))
    if d <= _SHORT:
        size = np.abs(X)
        size[np.isnan(size)] = np.inf
        return np.sort(np.argsort(-size, axis=1, kind="stable")[:, :k], axis=1)
    return np.array([_largest_of(row, k) for row in X], np.int64).reshape(m, k)


def _largest_of(x: np.ndarray, k: int) -> np.ndarray:
    candidates = _candidates(x, k)
    size = np.abs(x if candidates is None else x[candidates])
    size[np.isnan(size)] = np.inf
    least = np.partition(size, len(size) - k)[len(size) - k]
    indices = np.flatnonzero(size >= least)
    if len(indices) > k:
        equal = np.flatnonzero(size[indices] == least)
        indices = np.delete(indices, equal[k - len(indices) :])
    return indices if candidates is None else candidates[indices]


def _candidates(x: np.ndarray, k: int) -> np.ndarray | None:
    """Ascending indices that include those of the k largest magnitudes (about a third more than k),
    found with a lower bound from
    a sample; None if the sample is too small for a bound."""
    stride = k // 256 | 1
    sample = np.abs(x[::stride])
    # The expected number of the k largest in the sample, and four standard deviations: the bound is
    # almost surely below the k-th largest, and the result is checked.
    rank = int(k / stride + 4 * np.sqrt(k / stride)) + 8
    if stride == 1 or rank >= len(sample):
        return None
    bound = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    indices = [
        start + np.flatnonzero(~(np.abs(x[start : start + _PART]) < bound))
        for start in range(0, len(x), _PART)
    ]
    found = np.concatenate(indices)
    return found if len(found) >= k else None
