r"""Weighted sums of rows: the arithmetic of every mixer.

.. math:: Y_i = X_i + \sum_{j \ne i} (W_{ij} X_j - V_{ij} X_i)

This is `W X`, with :math:`V_{ij} = W_{ij}` if the rows of W sum to one, and :math:`V_{ij} = W_{ji}`, what i sends to j, if
only its columns do.  Written so, rows that agree stay as they are to the last bit, and what one agent gives away is what
another one gets: a thousand mixings keep averages and sums to the last digits, which sums of products do not.

The sum over j is taken in ascending order of the agents, and each operation is rounded by itself: the result has the same
bits on any number of ranks, and with the compiled kernel (`_kernel.c`) as without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..topology.source import Block

try:
    _kernel: Any = import_module("._kernel", __package__)
except ImportError:                                 # no compiler where the package was installed
    _kernel = None

COMPILED = _kernel is not None
_BLOCK = 256
_BITS = {"f": 20, "d": 40}                          # s of `difference`


@dataclass(frozen=True, eq=False)
class Weights:
    """The terms of the weighted sums of the local agents, in CSR, in ascending order of the agents.

    Attributes
    ----------
    indptr, indices : array of int64, int32
        The places of the rows that are added.
    w, v : array of float
        Their weights, and what they take of the agent's own row.
    """

    indptr: np.ndarray
    indices: np.ndarray
    w: np.ndarray
    v: np.ndarray

    @classmethod
    def of(cls, lo: int, rows: Block, places: np.ndarray, columns: Block | None) -> Weights:
        """From the rows of `W` of the agents from `lo` on, the places of their entries, and their columns (if only those
        sum to one)."""
        m, n = rows.shape
        pairs, w = _pairs(rows), rows.data
        v = w
        if columns is not None:
            into, out = pairs, _pairs(columns)
            pairs = np.union1d(into, out)
            w, v = _values(pairs, into, rows.data), _values(pairs, out, columns.data)
            places = np.where(np.isin(pairs, into), _values(pairs, into, places), pairs // n)
        if len(places) and places.max() >= 2**31:
            raise ValueError(f"the rows that one rank reads are {places.max() + 1}, expected at most 2**31: use more ranks")
        agent, other = pairs // n, pairs % n != pairs // n + lo
        indptr = np.searchsorted(agent[other], np.arange(m + 1))
        return cls(indptr.astype(np.int64), places[other].astype(np.int32), w[other], v[other])

    @cached_property
    def _casts(self) -> dict[np.dtype, Weights]:
        return {self.w.dtype: self}

    def astype(self, dtype: np.dtype) -> Weights:
        """The same weights in the precision of the rows."""
        if dtype not in self._casts:
            self._casts[dtype] = Weights(self.indptr, self.indices, self.w.astype(dtype), self.v.astype(dtype))
        return self._casts[dtype]

    @cached_property
    def _scaled(self) -> dict[str, Weights]:
        return {}

    def scaled(self, dtype: np.dtype) -> Weights:
        """The same weights in the precision of the rows, times a power of two; see `difference`."""
        if dtype.char not in self._scaled:
            weights, factor = self.astype(dtype), dtype.type(2.0 ** _BITS[dtype.char])
            self._scaled[dtype.char] = Weights(self.indptr, self.indices, weights.w * factor, weights.v * factor)
        return self._scaled[dtype.char]

    @cached_property
    def slots(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each t, the agents that have a t-th term, and where in the arrays it is."""
        degree = np.diff(self.indptr)
        agents = [np.flatnonzero(degree > t) for t in range(degree.max(initial=0))]
        return [(some, self.indptr[some] + t) for t, some in enumerate(agents)]


@dataclass(frozen=True, eq=False)
class Runs:
    """All rows of a `W` that consists of runs with one pattern each (a circulant): no entries are stored, none are read.

    Attributes
    ----------
    runs : list of (start, stop, shifts, weights)
        The neighbours of row i, but for itself, are `i + shifts`, ascending.
    """

    runs: list[tuple[int, int, np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int, np.ndarray, np.ndarray]]) -> Runs:
        return cls([(start, stop, shifts[shifts != 0], weights[shifts != 0]) for start, stop, shifts, weights in runs])

    def scaled(self, dtype: np.dtype) -> Runs:
        """The same runs, their weights in the precision of the rows, times a power of two; see `difference`."""
        factor = dtype.type(2.0 ** _BITS[dtype.char])
        return Runs([(start, stop, shifts, weights.astype(dtype) * factor) for start, stop, shifts, weights in self.runs])

    def sum(self, X: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, both of shape `(n, d)` and C-contiguous; every row of W sums to one."""
        if out.dtype.kind == "c":
            self.sum(X.view(out.real.dtype), out.view(out.real.dtype))
        elif _kernel is not None and out.dtype.char in "df":
            for start, stop, shifts, weights in self.runs:
                _kernel.run(start, stop, shifts, weights.astype(out.dtype, copy=False), X, out)
        else:
            total = np.zeros_like(out)
            for start, stop, shifts, weights in self.runs:
                for shift, weight in zip(shifts, weights.astype(out.dtype)):
                    total[start:stop] += weight * X[start + shift:stop + shift] - weight * X[start:stop]
            np.add(X, total, out=out)
            for start, stop, shifts, _ in self.runs:
                if not len(shifts):                 # also the sign of their zeros
                    out[start:stop] = X[start:stop]
        return out


def weighted_sum(weights: Weights, X: np.ndarray, halo: np.ndarray, out: np.ndarray, first: int = 0) -> np.ndarray:
    """`out[i]`: the weighted sum for the agent whose own row is `X[first + i]`.

    Parameters
    ----------
    weights : Weights
        Places below `len(X)` are rows of `X`, the others rows of `halo`.
    X, halo, out : array (places, d), (others, d), (m, d)
        C-contiguous, of one floating-point dtype, which is that of the weights.
    first : int
    """
    if out.dtype.kind == "c":
        real = out.real.dtype
        weighted_sum(weights, X.view(real), halo.view(real), out.view(real), first)
    elif _kernel is not None and out.dtype.char in "df":
        w = weights.astype(out.dtype)
        _kernel.mix(w.indptr, w.indices, w.w, w.v, first, len(X), X, halo, out)
    else:
        _weighted_sum(weights.astype(out.dtype), X, halo, out, first)
    return out


def difference(weights: Weights | Runs, X: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
    r"""`out = (W - I) X` in the precision of the difference, which may be much smaller than `X`: `out[i]` is
    :math:`2^{-s} ((X_i + 2^s \sum_j (W_{ij} X_j - V_{ij} X_i)) - X_i)`.

    Parameters
    ----------
    weights : Weights or Runs
    X, halo, out : array (m, d), (others, d), (m, d)
        As for `weighted_sum`, of float32 (s = 20) or float64 (s = 40), and of numbers that do not overflow times :math:`2^s`.
    """
    scaled = weights.scaled(out.dtype)
    if isinstance(scaled, Runs):
        scaled.sum(X, out)
    else:
        weighted_sum(scaled, X, halo, out)
    out -= X
    out *= out.dtype.type(0.5 ** _BITS[out.dtype.char])
    return out


def _weighted_sum(weights: Weights, X: np.ndarray, halo: np.ndarray, out: np.ndarray, first: int) -> None:
    """The same in NumPy, one term of every agent at a time."""
    own = X[first:first + len(out)]
    total = np.zeros_like(out)
    for agents, entry in weights.slots:
        places = weights.indices[entry]
        near = places < len(X)
        rows = np.empty((len(agents), out.shape[1]), out.dtype)
        rows[near] = X[places[near]]
        rows[~near] = halo[places[~near] - len(X)]
        total[agents] += weights.w[entry, None] * rows - weights.v[entry, None] * own[agents]
    np.add(own, total, out=out)
    unchanged = np.diff(weights.indptr) == 0        # also the sign of their zeros
    out[unchanged] = own[unchanged]


def _pairs(rows: Block) -> np.ndarray:
    """The entries as numbers `row * n + column`, ascending."""
    return np.repeat(np.arange(rows.shape[0]) * np.int64(rows.shape[1]), np.diff(rows.indptr)) + rows.indices


def _values(pairs: np.ndarray, some: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values at all `pairs`, of which `some` have one and the others 0."""
    result = np.zeros(len(pairs), values.dtype)
    result[np.searchsorted(pairs, some)] = values
    return result


def ordered_sum(Z: np.ndarray) -> np.ndarray:
    """Sum over the rows of `Z`, in blocks of 256 and then over the blocks: the same bits for any number of columns."""
    from scipy.sparse import _sparsetools
    Z = np.ascontiguousarray(Z)
    while True:
        indptr = np.append(np.arange(0, len(Z), _BLOCK, dtype=np.int32), np.int32(len(Z)))
        out = np.zeros((len(indptr) - 1, Z.shape[1]), Z.dtype)
        _sparsetools.csr_matvecs(len(out), len(Z), Z.shape[1], indptr, np.arange(len(Z), dtype=np.int32),
                                 np.ones(len(Z), Z.dtype), Z.reshape(-1), out.reshape(-1))
        if len(out) <= 1:
            return out.sum(axis=0)
        Z = out
