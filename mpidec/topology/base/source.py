"""Sources of mixing matrices, read by blocks of rows or columns."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Run = tuple[int, int, NDArray[np.int64], NDArray[np.float64]]
Table = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[np.float64]]]

# Tolerance on the row and column sums of a user's matrix, for their rounding errors.
TOLERANCE = 1e-10


class EdgeBlock(NamedTuple):
    """Block of rows in CSR form, with sorted and distinct columns; plain arrays, because SciPy
    is slow to import.
    """

    data: NDArray[np.float64]
    indices: NDArray[Any]
    indptr: NDArray[Any]
    n: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and n."""
        return len(self.indptr) - 1, self.n

    @property
    def csr(self) -> csr_array:
        """The block as a SciPy array, without a copy."""
        from scipy.sparse import csr_array

        W = csr_array((self.data, self.indices, self.indptr), shape=self.shape, copy=False)
        W.has_sorted_indices = True
        W.has_canonical_format = True
        return W


class Source(ABC):
    """Mixing matrix W that can be read by blocks of rows and of columns.

    The attributes `kind`, `directed`, `symmetric` and `connected` describe the numerical entries of
    W.  `group` is the row-major shape of the n agents as a product of cyclic groups over which W is
    a convolution, or None if there is no such shape; with it, a Fourier transform gives the
    spectrum of W (see `spectra`).
    """

    n: int
    kind: str
    directed: bool
    symmetric: bool
    connected: bool
    group: tuple[int, ...] | None = None
    # All of W, rows of sum 1, where it is there.
    dense: NDArray[np.float64] | None = None
    places: NDArray[np.float64] | None = None  # of the agents in the plane, where the graph has any
    # Whether it was given entry by entry, or as a graph.
    explicit = False

    @property
    @abstractmethod
    def arcs(self) -> int:
        """Number of ordered pairs i != j with W[i, j] != 0."""

    @abstractmethod
    def rows(self, lo: int, hi: int) -> EdgeBlock:
        """Return W[lo:hi], shape (hi - lo, n)."""

    @abstractmethod
    def columns(self, lo: int, hi: int) -> EdgeBlock:
        """Return W[:, lo:hi].T, shape (hi - lo, n)."""

    def runs(self) -> Iterator[Run] | None:
        """Return an iterator over runs of rows with the same pattern, or None if W has no such
        structure.

        A run `(start, stop, shifts, weights)` means W[i, i + shifts[t]] = weights[t] for start <= i
        < stop; the shifts ascend.
        """
        return None

    def matrix(self) -> csr_array:
        """Return W as a read-only sparse array."""
        return frozen(self.rows(0, self.n).csr)

    @abstractmethod
    def token(self) -> bytes:
        """Return bytes that identify W, for fingerprints."""


class Computed(Source):
    """Mixing matrix whose rows and columns are computed from the agents' numbers, in O(degree)
    memory each.

    A table has a line per agent, with columns of W and the weights there; those of weight 0 do not
    count, and the agent itself is one of the columns.
    """

    kind = "doubly"

    @abstractmethod
    def senders(self, agents: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the table of the rows of W: whom each agent receives from, and the weights."""

    def receivers(self, agents: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the table of the columns of W: whom each agent sends to; of a symmetric W by
        default.
        """
        return self.senders(agents)

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self._block(self.senders, lo, hi)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return self._block(self.receivers, lo, hi)

    def token(self) -> bytes:
        return repr(self).encode()

    def _block(self, table: Table, lo: int, hi: int) -> EdgeBlock:
        columns, weights = table(np.arange(lo, hi))
        kind = index_type(self.n, columns.size)
        order = np.argsort(columns, axis=1)
        columns, weights = (np.take_along_axis(part, order, axis=1) for part in (columns, weights))
        used = weights != 0
        indptr = np.zeros(hi - lo + 1, kind)
        np.cumsum(used.sum(axis=1), out=indptr[1:])
        return EdgeBlock(weights[used], columns[used].astype(kind), indptr, self.n)


class Stored(Source):
    """Mixing matrix stored entry by entry, checked by the caller or computed from a stored
    graph.
    """

    def __init__(self, W: csr_array, kind: str = "") -> None:
        self.W = canonical(W)
        self.n = W.shape[0]
        rows, columns = (bool(np.all(np.abs(self.W.sum(axis=a) - 1) <= TOLERANCE)) for a in (1, 0))
        self.kind = kind or ("doubly" if rows and columns else "row" if rows else "column")
        self.WT = canonical(self.W.T.tocsr())
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        pattern, transposed = (
            csr_array((np.ones(M.nnz, np.int8), M.indices, M.indptr), M.shape)
            for M in (self.W, self.WT)
        )
        self.directed = (pattern != transposed).nnz > 0
        self.symmetric = not self.directed and bool(
            np.allclose(self.W.data, self.WT.data, rtol=0, atol=1e-12)
        )
        self.parts = connected_components(self.W, self.directed, "strong")
        self.connected = bool(self.parts[0] == 1)

    @property
    def arcs(self) -> int:
        return int(self.W.nnz - np.count_nonzero(self.W.diagonal()))

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return _cut(self.W, lo, hi)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return _cut(self.WT, lo, hi)

    def matrix(self) -> csr_array:
        return self.W

    def token(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.W.indptr, self.W.indices):
            digest.update(array.astype("<i8").tobytes())
        digest.update(self.W.data.astype("<f8").tobytes())
        return digest.digest() + b" any" * (self.kind == "any")

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.W, self.kind)


class Pair(Source):
    """A row-stochastic matrix R and a column-stochastic matrix C; as a matrix it is R."""

    kind, symmetric = "pair", False

    def __init__(self, R: Source, C: Source) -> None:
        self.R, self.C, self.n = R, C, R.n
        self.directed = R.directed or C.directed

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self.R.connected and self.C.connected

    @property
    def arcs(self) -> int:
        return self.R.arcs

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self.R.rows(lo, hi)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return self.R.columns(lo, hi)

    def token(self) -> bytes:
        return b"R " + self.R.token() + b" C " + self.C.token()


def _cut(W: csr_array, lo: int, hi: int) -> EdgeBlock:
    part = slice(W.indptr[lo], W.indptr[hi])
    return EdgeBlock(
        W.data[part].copy(),
        W.indices[part].copy(),
        W.indptr[lo : hi + 1] - W.indptr[lo],
        W.shape[1],
    )


def block_of(A: NDArray[Any]) -> EdgeBlock:
    """Return the entries of a dense matrix that are not zero."""
    m, n = A.shape
    kind = index_type(n, A.size)
    place = np.flatnonzero(A if A.dtype == bool else A != 0)
    row = place // n
    indptr = np.searchsorted(row, np.arange(m + 1)).astype(kind)
    return EdgeBlock(A.ravel()[place], (place - row * n).astype(kind), indptr, n)


def canonical(W: csr_array) -> csr_array:
    """Return W with sorted columns, duplicates summed, no stored zeros, the smallest index type,
    and read-only.
    """
    from scipy.sparse import csr_array

    W = csr_array(W, dtype=np.float64, copy=True)
    W.sum_duplicates()
    W.eliminate_zeros()
    kind = index_type(W.shape[1], W.nnz)
    return frozen(
        EdgeBlock(
            W.data,
            W.indices.astype(kind, copy=False),
            W.indptr.astype(kind, copy=False),
            W.shape[1],
        ).csr
    )


def frozen(W: csr_array) -> csr_array:
    """Return W with its three arrays made read-only."""
    for array in (W.data, W.indices, W.indptr):
        array.flags.writeable = False
    return W


def sealed(block: EdgeBlock) -> EdgeBlock:
    """Return a block with its three arrays made read-only."""
    for array in block[:3]:
        array.flags.writeable = False
    return block


def index_type(n: int, entries: int) -> type[np.signedinteger[Any]]:
    """Return int32 if it holds every column number and every offset, else int64."""
    return np.int32 if max(n, entries) <= np.iinfo(np.int32).max else np.int64
