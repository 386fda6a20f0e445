r"""Weighted sums of rows: the arithmetic of every mixer.

.. math:: Y_i = X_i + \sum_{j \ne i} (W_{ij} X_j - V_{ij} X_i)

This is `W X`, with :math:`V_{ij} = W_{ij}` if the rows of W sum to one, and :math:`V_{ij} = W_{ji}`
(the weight of what i sends to j) if only its columns do; without such sums j = i is a term with
:math:`V_{ii} = 1`, and the other :math:`V_{ij}` are 0.  In this form equal rows stay unchanged to
the last bit, and what one agent loses another one gains: averages and sums survive thousands of
mixings up to the last digits, unlike with plain sums of products.

The sum over j is taken in ascending order of the agents, and each operation is rounded separately:
the result is bit-identical on any number of ranks, with and without the compiled kernel
(`_kernel.c`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...topology.internals import TOLERANCE

if TYPE_CHECKING:
    from ...topology.internals import EdgeBlock

try:
    _kernel: Any = import_module("._kernel", __package__)
except ImportError:  # installed without a C compiler
    _kernel = None

COMPILED = _kernel is not None
_dense = _kernel.dense if COMPILED else None
_metropolis = _kernel.metropolis if COMPILED else None
# Checks of dense rows: sums of one, and weights >= 0.
ROWS, COLUMNS, POSITIVE = 1, 2, 4
_FIRST = np.zeros(1, np.int64)
_BITS = {"f": 20, "d": 40}  # s in `difference`


Room = tuple[np.ndarray, np.ndarray, np.ndarray]


class Entries(NamedTuple):
    """Off-diagonal entries of rows of `W` in CSR form: their columns, and the locations of the rows
    that they multiply.
    """

    begin: np.ndarray
    agents: np.ndarray
    places: np.ndarray


@dataclass(eq=False)
class Weights:
    r"""Terms of the weighted sums of the local agents in CSR form, in ascending order of the
    agents.

    Attributes
    ----------
    indptr, indices : array of int64, int32
        For each agent, the indices of the rows that are added: first the rows of the stack, then
        those of the halo.
    w, v : array of float
        The weights :math:`W_{ij}` and :math:`V_{ij}` of the terms.
    """

    indptr: np.ndarray
    indices: np.ndarray
    w: np.ndarray
    v: np.ndarray

    @classmethod
    def of(
        cls,
        lo: int,
        rows: EdgeBlock,
        places: np.ndarray,
        columns: EdgeBlock | None,
        filter: bool = False,
    ) -> Weights:
        """Weights of the agents from `lo` on.

        Parameters
        ----------
        lo : int
        rows : Block
            Their rows of `W`.
        places : array of int
            The index of the row that belongs to each entry of `rows`.
        columns : Block or None
            Their columns of `W`, as rows; given if only the columns of `W` sum to one.
        filter : bool
            Whether no sums of `W` are one: the diagonal is a term, with V_ii = 1.
        """
        m, n = rows.shape
        if columns is None and not filter and m * n < 2**31:  # without the numbers of pairs
            agent = np.repeat(np.arange(lo, lo + m), np.diff(rows.indptr))
            other = rows.indices != agent
            before = np.concatenate([_FIRST, np.cumsum(other)])
            w = rows.data[other]
            return cls(before[rows.indptr], places[other].astype(np.int32), w, w)
        pairs, w = _pairs(rows), rows.data
        v = w
        if columns is not None:
            into, out = pairs, _pairs(columns)
            pairs = np.union1d(into, out)
            w, v = _values(pairs, into, rows.data), _values(pairs, out, columns.data)
            places = np.where(np.isin(pairs, into), _values(pairs, into, places), pairs // n)
        if filter:
            into, own = pairs, np.arange(m) * np.int64(n + 1) + lo
            pairs = np.union1d(into, own)
            w, v = _values(pairs, into, w), _values(pairs, own, np.ones(m))
            places = np.where(v != 0, np.cumsum(v != 0) - 1, _values(pairs, into, places))
        if len(places) and places.max() >= 2**31:
            raise ValueError(
                f"the rows that one rank reads are {places.max() + 1}, expected at most 2**31: use "
                "more ranks"
            )
        agent, other = pairs // n, (pairs % n != pairs // n + lo) | filter
        indptr = np.searchsorted(agent[other], np.arange(m + 1))
        return cls(indptr.astype(np.int64), places[other].astype(np.int32), w[other], v[other])

    @classmethod
    def of_dense(
        cls,
        rows: np.ndarray,
        lo: int,
        checks: int = 0,
        edges: Entries | None = None,
        room: Room | None = None,
    ) -> Weights | None:
        """Weights of the agents from `lo` on, from their rows of a dense `W`, float64 (m, n) in C
        order; zero weights are omitted.  They may be stored in a given `room`.

        None if one of the `checks` fails, or a weight is not on one of the `edges`.
        """
        m, n = rows.shape
        if _dense is not None:
            indptr, indices, w = room or room_for(m, len(edges.agents) if edges else rows.size)
            count = _dense(rows, lo, TOLERANCE, checks, edges, indptr, indices, w)
            return None if count < 0 else cls._cut(indptr, indices, w, count)
        if not _passes(rows, checks):
            return None
        # The diagonal is no term: it is one minus the sum of the others, which keeps sums exact.
        used = rows != 0
        used[np.arange(m), lo + np.arange(m)] = False
        receiver, sender = np.nonzero(used)
        w = rows[receiver, sender]
        indices = sender.astype(np.int32)
        if edges:
            known = np.repeat(np.arange(m), np.diff(edges.begin)) * n + edges.agents
            at = np.searchsorted(known, receiver * n + sender)
            if not np.array_equal(np.append(known, -1)[at], receiver * n + sender):
                return None
            indices = edges.places[at]
        return cls(np.searchsorted(receiver, np.arange(m + 1)), indices, w, w)

    @classmethod
    def metropolis(
        cls, edges: np.ndarray, gamma: float, room: Room | None = None
    ) -> Weights | None:
        r"""Weights :math:`W_{ij} = \gamma / (1 + \max(d_i, d_j))` of all agents, from an array of
        bools (n, n) in C order, whose diagonal does not count.

        None if the graph is directed, or the kernel is not compiled.
        """
        if _metropolis is None:
            return None
        indptr, indices, w = room or room_for(len(edges), edges.size)
        count = _metropolis(edges, gamma, indptr, indices, w)
        return None if count < 0 else cls._cut(indptr, indices, w, count)

    @classmethod
    def _cut(cls, indptr: np.ndarray, indices: np.ndarray, w: np.ndarray, count: int) -> Weights:
        if count < len(w):
            indices, w = indices[:count], w[:count]
        return cls(indptr, indices, w, w)

    @cached_property
    def _casts(self) -> dict[np.dtype, Weights]:
        return {}

    def astype(self, dtype: np.dtype) -> Weights:
        """Return the weights in the precision of the rows."""
        if dtype == self.w.dtype:
            return self
        if dtype not in self._casts:
            self._casts[dtype] = Weights(
                self.indptr, self.indices, self.w.astype(dtype), self.v.astype(dtype)
            )
        return self._casts[dtype]

    @cached_property
    def _scaled(self) -> dict[str, Weights]:
        return {}

    def scaled(self, dtype: np.dtype) -> Weights:
        """Return the weights in the precision of the rows, times :math:`2^s`; see `difference`."""
        dtype = np.dtype(dtype.char.lower())  # real, as the weights
        if dtype.char not in self._scaled:
            weights, factor = self.astype(dtype), dtype.type(2.0 ** _BITS[dtype.char])
            self._scaled[dtype.char] = Weights(
                self.indptr, self.indices, weights.w * factor, weights.v * factor
            )
        return self._scaled[dtype.char]

    @cached_property
    def slots(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each t, the agents that have a t-th term, and the position of that term in the
        arrays.
        """
        degree = np.diff(self.indptr)
        agents = [np.flatnonzero(degree > t) for t in range(degree.max(initial=0))]
        return [(having, self.indptr[having] + t) for t, having in enumerate(agents)]


@dataclass(frozen=True, eq=False)
class Runs:
    """All rows of a `W` that consists of runs of rows with one pattern each (a circulant, for
    example); no entries are stored.

    Attributes
    ----------
    runs : list of (start, stop, shifts, weights)
        The neighbours of row i, for `start <= i < stop`, are `i + shifts`, in ascending order and
        without i itself.
    """

    runs: list[tuple[int, int, np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int, np.ndarray, np.ndarray]]) -> Runs:
        """Return the same runs without the diagonal entries."""
        return cls(
            [
                (start, stop, shifts[shifts != 0], weights[shifts != 0])
                for start, stop, shifts, weights in runs
            ]
        )

    def scaled(self, dtype: np.dtype) -> Runs:
        """Return the runs with weights in the precision of the rows, times :math:`2^s`; see
        `difference`.
        """
        dtype = np.dtype(dtype.char.lower())  # real, as the weights
        factor = dtype.type(2.0 ** _BITS[dtype.char])
        return Runs(
            [
                (start, stop, shifts, weights.astype(dtype) * factor)
                for start, stop, shifts, weights in self.runs
            ]
        )

    def sum(self, X: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Compute `out = W X`; both arrays are C-contiguous of shape `(n, d)`, and every row of
        `W` sums to one.
        """
        if out.dtype.kind == "c":
            self.sum(X.view(out.real.dtype), out.view(out.real.dtype))
        elif _kernel is not None and out.dtype.char in "df":
            for start, stop, shifts, weights in self.runs:
                _kernel.run(start, stop, shifts, weights.astype(out.dtype, copy=False), X, out)
        else:
            total = np.zeros_like(out)
            for start, stop, shifts, weights in self.runs:
                for shift, weight in zip(shifts, weights.astype(out.dtype)):
                    total[start:stop] += (
                        weight * X[start + shift : stop + shift] - weight * X[start:stop]
                    )
            np.add(X, total, out=out)
            for start, stop, shifts, _ in self.runs:
                if not len(shifts):  # also the sign of their zeros
                    out[start:stop] = X[start:stop]
        return out


def room_for(m: int, most: int) -> Room:
    """Memory for `most` terms of `m` agents: the arrays `indptr`, `indices` and `w` of
    `Weights`.
    """
    return np.empty(m + 1, np.int64), np.empty(most, np.int32), np.empty(most)


def _passes(rows: np.ndarray, checks: int) -> bool:
    off = (rows.sum(axis=axis) - 1 for check, axis in ((ROWS, 1), (COLUMNS, 0)) if checks & check)
    return all((abs(sums) <= TOLERANCE).all() for sums in off) and not (
        checks & POSITIVE and (rows < 0).any()
    )


def weighted_sum(
    weights: Weights | Runs, X: np.ndarray, halo: np.ndarray, out: np.ndarray, first: int = 0
) -> np.ndarray:
    """Weighted sums of rows: `out[i]` is the sum for the agent whose own row is `X[first + i]`.

    Parameters
    ----------
    weights : Weights or Runs
        Indices of weights below `len(X)` refer to rows of `X`, the others to rows of `halo`.
    X, halo, out : array (rows, d), (others, d), (m, d)
        C-contiguous, of one floating-point dtype.
    first : int
    """
    if isinstance(weights, Runs):
        weights.sum(X, out)
    elif out.dtype.kind == "c":
        real = out.real.dtype
        weighted_sum(weights, X.view(real), halo.view(real), out.view(real), first)
    elif _kernel is not None and out.dtype.char in "df":
        w = weights if weights.w.dtype == out.dtype else weights.astype(out.dtype)
        _kernel.mix(w.indptr, w.indices, w.w, w.v, first, len(X), X, halo, out)
    else:
        _weighted_sum(weights.astype(out.dtype), X, halo, out, first)
    return out


def difference(
    weights: Weights | Runs, X: np.ndarray, halo: np.ndarray, out: np.ndarray
) -> np.ndarray:
    r"""Compute `out = (W - I) X` with rounding errors relative to the difference, which may be much
    smaller than `X`.

    .. math:: 2^{-s} \Big( \big(X_i + 2^s \sum_j (W_{ij} X_j - V_{ij} X_i)\big) - X_i \Big)

    Parameters
    ----------
    weights : Weights or Runs
    X, halo, out : array (m, d), (others, d), (m, d)
        As in `weighted_sum`, of dtype float32 (s = 20) or float64 (s = 40); the entries times
        :math:`2^s` must not overflow.
    """
    # (W - I) X = 2^-s ((X + 2^s (W - I) X) - X): the factor lifts the difference above X before the
    # sum is rounded, so that rounding errors are relative to the difference.
    weighted_sum(weights.scaled(out.dtype), X, halo, out)
    out -= X
    out *= 0.5 ** _BITS[out.dtype.char.lower()]
    return out


def _weighted_sum(
    weights: Weights, X: np.ndarray, halo: np.ndarray, out: np.ndarray, first: int
) -> None:
    """NumPy version of `weighted_sum`: one term of every agent at a time."""
    own = X[first : first + len(out)]
    total = np.zeros_like(out)
    for agents, entry in weights.slots:
        places = weights.indices[entry]
        local = places < len(X)
        rows = np.empty((len(agents), out.shape[1]), out.dtype)
        rows[local] = X[places[local]]
        rows[~local] = halo[places[~local] - len(X)]
        total[agents] += weights.w[entry, None] * rows - weights.v[entry, None] * own[agents]
    np.add(own, total, out=out)
    unchanged = np.diff(weights.indptr) == 0  # also the sign of their zeros
    out[unchanged] = own[unchanged]


def _pairs(rows: EdgeBlock) -> np.ndarray:
    """Linear indices of the entries, `row * n + column`, in ascending order."""
    result: np.ndarray = (
        np.repeat(np.arange(rows.shape[0]) * np.int64(rows.shape[1]), np.diff(rows.indptr))
        + rows.indices
    )
    return result


def _values(pairs: np.ndarray, subset: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the `values` of a subset of the `pairs`, extended by zeros to all pairs."""
    result = np.zeros(len(pairs), values.dtype)
    result[np.searchsorted(pairs, subset)] = values
    return result
