r"""Weighted sums of rows: the arithmetic of every mixer.

.. math::
    Y_i = X_i + \sum_{j \ne i} W_{ij} (X_j - X_i) \;\text{ where row i of W sums to one,}\qquad
    Y_i = \sum_j W_{ij} X_j \;\text{ elsewhere.}

Both are `W X`.  The first form is exact where agents agree, so that a thousand mixings keep the average to the last digits,
which sums of products do not.  The sum over j is taken in ascending order of the agents, and each operation is rounded by
itself: the result has the same bits on any number of ranks, and with the compiled kernel (`_kernel.c`) as without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import _sparsetools, csr_array

try:
    from . import _kernel
except ImportError:                                 # no compiler where the package was installed
    _kernel = None  # type: ignore[assignment]

COMPILED = _kernel is not None
_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Weights:
    """The rows of `W` of the local agents, in CSR: the places of the rows to be summed, in ascending order of the agents.

    Attributes
    ----------
    indptr, indices, data : array of int64, int32, float
    unit : array (m,) of uint8
        Whether the row of W sums to one.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, rows: csr_array, places: np.ndarray, kind: str) -> Weights:
        """From rows of a matrix that is `kind` stochastic, and the places of its columns."""
        unit = np.ones(rows.shape[0], np.uint8)
        if kind == "column":
            unit[:] = abs(rows.sum(axis=1) - 1) <= 8 * np.finfo(float).eps * np.maximum(np.diff(rows.indptr), 1)
        return cls(rows.indptr.astype(np.int64), places.astype(np.int32, copy=False), rows.data, unit)

    @lru_cache(maxsize=4)
    def astype(self, dtype: np.dtype) -> Weights:
        """The same weights in the precision of the rows."""
        return Weights(self.indptr, self.indices, self.data.astype(dtype), self.unit)

    @lru_cache(maxsize=1)
    def slots(self, first: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each t, the agents that have a t-th row to be added, its place, and its weight."""
        agent = np.repeat(np.arange(len(self.unit)), np.diff(self.indptr))
        added = (self.unit[agent] == 0) | (self.indices != agent + first)
        agent, places, data = agent[added], self.indices[added], self.data[added]
        turn = np.arange(len(agent)) - np.searchsorted(agent, agent)
        return [(agent[turn == t], places[turn == t], data[turn == t]) for t in range(turn.max(initial=-1) + 1)]


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

    def sum(self, X: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, both of shape `(n, d)` and C-contiguous; every row of W sums to one."""
        if out.dtype.kind == "c":
            self.sum(X.view(out.real.dtype), out.view(out.real.dtype))
        elif _kernel is not None and out.dtype.char in "df":
            for start, stop, shifts, weights in self.runs:
                _kernel.run(start, stop, shifts, weights.astype(out.dtype, copy=False), X, out)
        else:
            out[...] = X
            for start, stop, shifts, weights in self.runs:
                for shift, weight in zip(shifts, weights.astype(out.dtype)):
                    out[start:stop] += weight * (X[start + shift:stop + shift] - X[start:stop])
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
        w = weights if weights.data.dtype == out.dtype else weights.astype(out.dtype)
        _kernel.mix(w.indptr, w.indices, w.data, w.unit, first, len(X), X, halo, out)
    else:
        _weighted_sum(weights.astype(out.dtype), X, halo, out, first)
    return out


def _weighted_sum(w: Weights, X: np.ndarray, halo: np.ndarray, out: np.ndarray, first: int) -> None:
    """The same in NumPy, one neighbour of every agent at a time."""
    base = np.where(w.unit[:, None], X[first:first + len(out)], 0)
    out[...] = base
    for agents, places, weight in w.slots(first):
        near = places < len(X)
        term = np.empty((len(agents), out.shape[1]), out.dtype)
        term[near] = X[places[near]]
        term[~near] = halo[places[~near] - len(X)]
        term -= base[agents]
        term *= weight[:, None]
        out[agents] += term


def ordered_sum(Z: np.ndarray) -> np.ndarray:
    """Sum over the rows of `Z`, in blocks of 256 and then over the blocks: the same bits for any number of columns."""
    Z = np.ascontiguousarray(Z)
    while True:
        indptr = np.append(np.arange(0, len(Z), _BLOCK, dtype=np.int32), np.int32(len(Z)))
        out = np.zeros((len(indptr) - 1, Z.shape[1]), Z.dtype)
        _sparsetools.csr_matvecs(len(out), len(Z), Z.shape[1], indptr, np.arange(len(Z), dtype=np.int32),
                                 np.ones(len(Z), Z.dtype), Z.reshape(-1), out.reshape(-1))
        if len(out) <= 1:
            return out.sum(axis=0)
        Z = out
