"""Sparse samples: only numbers that are not zero are stored and multiplied (CSR format)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _validation as check
from ._complex import as_reals, double, doubled
from ._validation import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array as csr_array

# Up to so many rows or columns, the largest eigenvalue is that of a dense matrix A A^* or A^* A.
GRAM = 100
# Relative residual of the largest eigenvalue, whose error is of the order of its square.
RESIDUAL = 1e-9
# Largest dense array of samples, in bytes.
MEMORY = 2**33
# Up to so many entries, a reference solution is that of the dense matrix (8 MiB).
SMALL = 2**20


class SparseSamples:
    r"""Samples of m agents, p of each with d features, like an array (m, p, d).

    The samples of all agents are the rows of one matrix in CSR format: sample s of agent i has the
    numbers `data[k]` of the features `indices[k]`, with k from `indptr[i p + s]` to `indptr[i p + s
    + 1] - 1`; padding has none.  A product of agent i takes its own numbers alone, in their order,
    so that its bits do not depend on the other agents of a process.

    Parameters
    ----------
    data, indices, indptr : array
        Not copied; of the arrays of more agents, too, if `indptr` is that of some.
    shape : (m, p, d)

    Notes
    -----
    NumPy's functions take it as a dense array, if that has at most 8 GiB.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> rows = csr_array([[0.0, 2.0], [0.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    >>> samples = SparseSamples.of_rows(rows, p=2)
    >>> samples.shape, samples.times(np.ones((2, 2, 1))).ravel()
    ((2, 2, 2), array([2., 0., 3., 1.]))
    >>> samples[1].toarray().tolist(), samples[[1]].shape
    ([[3.0, 0.0], [0.0, 1.0]], (1, 2, 2))
    """

    ndim = 3

    def __init__(
        self,
        data: Array,
        indices: NDArray[np.intp],
        indptr: NDArray[np.intp],
        shape: tuple[int, int, int],
    ) -> None:
        self.data, self.indices, self.indptr, self.shape = data, indices, indptr, shape

    @classmethod
    def of_rows(cls, rows: csr_array, p: int) -> SparseSamples:
        """Return the samples of agents that have p rows of a matrix (m p, d) each."""
        shape = rows.shape[0] // p, p, rows.shape[1]
        return cls(rows.data, rows.indices, rows.indptr, shape)

    @classmethod
    def of(cls, agents: Sequence[Any], complex_too: bool = False) -> SparseSamples:
        """Return the samples of agents that have a sparse matrix (p, d) each.

        Raises
        ------
        TypeError, ValueError
            If their shapes differ, or entries are no numbers.
        """
        from scipy.sparse import vstack

        shapes = {one.shape for one in agents}
        if len(shapes) > 1 or len(agents[0].shape) != 2 or 0 in agents[0].shape:
            raise ValueError(
                f"A has sparse matrices of shapes {', '.join(map(str, sorted(shapes)))}, expected "
                "one (p, d) of each local agent (problems.stack(A, y, parts, lo, hi) pads them)"
            )
        every = vstack([matrix(one, "A", complex_too) for one in agents], format="csr")
        return cls.of_rows(every, agents[0].shape[0])

    @classmethod
    def split(
        cls, data: Array, indices: NDArray[np.intp], lengths: NDArray[np.intp], d: int
    ) -> SparseSamples:
        """Return samples from their numbers, the features of these, and how many each has, (m,
        p).
        """
        ends = np.append(0, np.cumsum(lengths.ravel()))
        return cls.of_rows(assembled(data, indices, ends, d), lengths.shape[1])

    @cached_property
    def rows(self) -> csr_array:
        """The samples of all agents, one below the other: a matrix (m p, d)."""
        from scipy.sparse import csr_array

        first, last = self.indptr[[0, -1]]
        parts = self.data[first:last], self.indices[first:last], self.indptr - first
        return csr_array(parts, shape=(self.shape[0] * self.shape[1], self.shape[2]))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers."""
        kind: np.dtype[Any] = self.data.dtype
        return kind

    @property
    def lengths(self) -> NDArray[np.intp]:
        """How many numbers each sample has, (m, p)."""
        return np.asarray(np.diff(self.indptr).reshape(self.shape[:2]))

    def __iter__(self) -> Iterator[csr_array]:
        return map(self.__getitem__, range(len(self)))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Any) -> Any:
        """Samples as of an array: ``[i]`` those of an agent, a matrix (p, d); ``[agents]`` those of
        some; ``[agents[:, None], rows]`` chosen samples of each.  Slices are views.
        """
        m, p, d = self.shape
        if isinstance(at, (int, np.integer)):
            agent = range(m)[at]
            return self[agent : agent + 1].rows
        if isinstance(at, slice) and at.step in (None, 1):
            first, stop, _ = at.indices(m)
            stop = max(first, stop)
            indptr = self.indptr[first * p : stop * p + 1]
            return SparseSamples(self.data, self.indices, indptr, (stop - first, p, d))
        at = np.arange(m)[at] if isinstance(at, slice) else at
        agents, chosen = at if isinstance(at, tuple) and len(at) == 2 else (at, None)
        agents = np.asarray(agents[0] if isinstance(agents, tuple) else agents, np.intp)
        places = agents[:, None] * p + np.arange(p) if chosen is None else agents * p + chosen
        return SparseSamples.of_rows(self.rows[places.ravel()], places.shape[1])

    def astype(self, dtype: DTypeLike, copy: bool = True) -> SparseSamples:
        """Samples of another type; themselves, if they are so and no copy is wanted."""
        if self.dtype == dtype and not copy:
            return self
        data = self.data.astype(dtype, copy=copy)
        return SparseSamples(data, self.indices, self.indptr, self.shape)

    def toarray(self) -> Array:
        """Dense samples, (m, p, d).

        Raises
        ------
        ValueError
            If they would take more than 8 GiB.
        """
        if (size := math.prod(self.shape) * self.dtype.itemsize) > MEMORY:
            raise ValueError(
                f"sparse samples {self.shape} would take {size / 1e9:.3g} GB as an array, expected "
                "at most 8.6 GB: a loss derived from problems.LinearModel takes them as they are"
            )
        return np.asarray(self.rows.toarray()).reshape(self.shape)

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.float64]:
        """Dense samples, for functions of NumPy; see `toarray`."""
        return self.toarray().astype(dtype or self.dtype, copy=False)

    def times(self, X: Array) -> Array:
        """Return A_i X_i, (m, d, c) -> (m, p, c)."""
        from scipy.sparse import _sparsetools as tools

        (m, p, d), c = self.shape, X.shape[2]
        dtype = np.result_type(self.data, X)
        data, X = self.data.astype(dtype, copy=False), np.ascontiguousarray(X, dtype)
        T = np.zeros((m, p, c), dtype)
        for i in range(m):
            matrix = self.indptr[i * p : (i + 1) * p + 1], self.indices, data
            if c == 1:
                tools.csr_matvec(p, d, *matrix, X[i].reshape(-1), T[i].reshape(-1))
            else:
                tools.csr_matvecs(p, d, c, *matrix, X[i].reshape(-1), T[i].reshape(-1))
        return T

    def adjoint(self, R: Array, onto: Array | None = None) -> Array:
        """Return A_i^* R_i, (m, p, c) -> (m, d, c); with `onto`, add them to this array."""
        from scipy.sparse import _sparsetools as tools

        (m, p, d), c = self.shape, R.shape[2]
        G = np.zeros((m, d, c), np.result_type(self.data, R)) if onto is None else onto
        data = self.data.conj().astype(G.dtype, copy=False)
        R = np.ascontiguousarray(R, G.dtype)
        # A in CSR format is the transpose of A in CSC format.
        for i in range(m):
            matrix = self.indptr[i * p : (i + 1) * p + 1], self.indices, data
            if c == 1:
                tools.csc_matvec(d, p, *matrix, R[i].reshape(-1), G[i].reshape(-1))
            else:
                tools.csc_matvecs(d, p, c, *matrix, R[i].reshape(-1), G[i].reshape(-1))
        return G


AXES = "local agent", "row", "column"
Samples = Array | SparseSamples


def is_sparse(A: object) -> TypeGuard[csr_array]:
    """Return whether `A` is a sparse matrix of scipy.

    Examples
    --------
    >>> from scipy.sparse import coo_array
    >>> is_sparse(coo_array(np.eye(2))), is_sparse(np.eye(2))
    (True, False)
    """
    return hasattr(A, "tocsr")


def matrix(A: Any, name: str, complex_too: bool = False) -> csr_array:
    """Return a sparse matrix of scipy in CSR format without duplicates, float32 if it is so, else
    float64 (complex64 or complex128 if `complex_too`).

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> from scipy.sparse import coo_array
    >>> matrix(coo_array(([1, 2], ([0, 0], [1, 1])), shape=(1, 2)), "A").data
    array([3.])
    """
    from scipy.sparse import csr_array

    if A.dtype.kind not in ("biufc" if complex_too else "biuf"):
        remedy = check.COMPLEX if A.dtype.kind == "c" else ""
        raise TypeError(f"{name} has dtype {A.dtype}, expected real numbers{remedy}")
    found = csr_array(A)
    if found.nnz and not 0 <= found.indices.min() <= found.indices.max() < found.shape[1]:
        raise ValueError(
            f"{name} has the columns {found.indices.min()} to {found.indices.max()}, expected 0 to "
            f"{found.shape[1] - 1}"
        )
    found = found.astype(check.precision(found), copy=False)
    if not found.has_canonical_format:
        found = found.copy()
        found.sum_duplicates()
    return found


def samples(A: ArrayLike | Samples | Sequence[csr_array], y: ArrayLike | None = None) -> Samples:
    """Return the local agents' samples, (m, p, d): an array as `check.data`; of `SparseSamples`, or
    of a sparse matrix (p, d) of each agent, `SparseSamples`.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> samples([csr_array(np.eye(2)), csr_array(np.ones((2, 2)))]).shape
    (2, 2, 2)
    """
    if is_sparse(A):
        raise ValueError(
            f"A is a sparse matrix of shape {A.shape}, expected one (p, d) of each local agent: a "
            "list of them, or what problems.stack(A, y, parts, lo, hi) makes"
        )
    found: object = A
    if isinstance(A, (list, tuple)) and A and all(map(is_sparse, A)):
        found = SparseSamples.of(A, y is not None)
    if not isinstance(found, SparseSamples):
        return check.data(A, y)
    if y is None and found.dtype.kind == "c":
        raise TypeError(f"A has dtype {found.dtype}, expected real numbers{check.COMPLEX}")
    given = [np.complex64] if y is not None and np.iscomplexobj(y) else []
    return found.astype(np.result_type(found.dtype, *given), copy=False)


def together(parts: Sequence[Samples]) -> Samples:
    """Return the samples of the agents of all parts, in order."""
    from scipy.sparse import vstack

    if not any(isinstance(part, SparseSamples) for part in parts):
        return np.concatenate([np.asarray(part) for part in parts])
    rows = [
        part.rows if isinstance(part, SparseSamples) else part.reshape(-1, part.shape[2])
        for part in parts
    ]
    return SparseSamples.of_rows(vstack(rows, format="csr"), parts[0].shape[1])


def dealt(A: Array | csr_array, parts: Sequence[NDArray[np.intp]], width: int) -> Samples:
    """Return the samples of agents, (m, width, d), of which agent i has the rows parts[i] of `A`,
    and zeros after them.

    Examples
    --------
    >>> dealt(np.array([[5.0], [6.0], [7.0]]), [np.array([2, 0]), np.array([1])], 2).tolist()
    [[[7.0], [5.0]], [[6.0], [0.0]]]
    """
    if not is_sparse(A):
        stack = np.zeros((len(parts), width, A.shape[1]), A.dtype)
        for own, part in zip(stack, parts):
            own[: len(part)] = A[part]
        return stack
    rows = A[np.concatenate([np.empty(0, np.intp), *parts])]
    lengths = np.zeros((len(parts), width), np.intp)
    ends = np.cumsum([len(part) for part in parts])
    for own, some in zip(lengths, np.split(np.diff(rows.indptr), ends[:-1])):
        own[: len(some)] = some
    return SparseSamples.split(rows.data, rows.indices, lengths, A.shape[1])


def parts_of(A: Samples) -> Samples:
    """Return the samples of the real and imaginary parts of complex unknowns, (m, p, d) -> (m, 2 p,
    2 d): each number a becomes the block ((Re a, -Im a), (Im a, Re a)).

    Examples
    --------
    >>> parts_of(np.array([[[1 + 2j]]])).tolist()
    [[[1.0, -2.0], [2.0, 1.0]]]
    """
    m, p, d = A.shape
    if not isinstance(A, SparseSamples):
        parts = as_reals(np.stack([A, 1j * A], axis=-1).reshape(m, p, 2 * d))
        blocks = parts.reshape(m, p, d, 2, 2).transpose(0, 1, 4, 2, 3)
        return np.asarray(blocks.reshape(m, 2 * p, 2 * d))
    from scipy.sparse import bsr_array

    a, indices, indptr = A.rows.data, A.rows.indices, A.rows.indptr
    blocks = np.stack([a.real, -a.imag, a.imag, a.real], axis=1).reshape(-1, 2, 2)
    pairs = bsr_array((blocks, indices, indptr), shape=(2 * m * p, 2 * d))
    return SparseSamples.of_rows(pairs.tocsr(), 2 * p)


def zeroed(A: Samples, mask: NDArray[np.bool_]) -> Samples:
    """Return samples (m, p, d) that are zero where the mask (m, p) is False."""
    if not isinstance(A, SparseSamples):
        return np.where(mask[:, :, None], A, 0.0)
    lengths = A.lengths
    if not lengths[~mask].any():
        return A
    kept = np.repeat(mask.ravel(), lengths.ravel())
    return SparseSamples.split(
        A.rows.data[kept], A.rows.indices[kept], np.where(mask, lengths, 0), A.shape[2]
    )


def check_finite(A: Samples | csr_array, name: str) -> None:
    """Raise an error that names the place if a number of samples, (m, p, d) or (N, d), is not
    finite.
    """
    axes = AXES[3 - A.ndim :]
    if isinstance(A, np.ndarray):
        check.finite(A, name, axes)
        return
    rows = A.rows if isinstance(A, SparseSamples) else A
    wrong = ~np.isfinite(rows.data)
    if wrong.any():
        k = int(wrong.argmax())
        row = int(np.searchsorted(rows.indptr, k, side="right")) - 1
        place = [*(divmod(row, A.shape[1]) if A.ndim == 3 else [row]), int(rows.indices[k])]
        check.refuse_value(rows.data[k], name, dict(zip(axes, place)))


def assembled(data: Array, indices: NDArray[np.intp], ends: NDArray[np.intp], d: int) -> csr_array:
    """Return the matrix of d columns whose row s has the numbers ends[s] .. ends[s + 1] - 1.

    Examples
    --------
    >>> assembled(np.array([5.0, 6.0]), np.array([1, 0]), np.array([0, 1, 2]), 2).toarray()
    array([[0., 5.],
           [6., 0.]])
    """
    from scipy.sparse import csr_array

    # 32 bits, where they suffice, save memory and time.
    kind = np.int32 if max(len(data), d) < 2**31 else np.int64
    parts = data, indices.astype(kind, copy=False), ends.astype(kind, copy=False)
    return csr_array(parts, shape=(len(ends) - 1, d))


def with_data(A: csr_array, data: Array) -> csr_array:
    """Return a matrix with other numbers at the same places."""
    from scipy.sparse import csr_array

    return csr_array((data, A.indices, A.indptr), shape=A.shape)


def numbers_of(A: Array | csr_array) -> list[NDArray[Any]]:
    """Return the arrays that determine samples: an array itself, or the parts of a sparse matrix
    in types that do not depend on its size.
    """
    if not is_sparse(A):
        return [A]
    return [A.data, A.indices.astype(np.int64), A.indptr.astype(np.int64)]


def samples_by_name(name: str, A: Array | csr_array) -> dict[str, NDArray[Any]]:
    """Return the arrays of samples (N, d), by names that begin with `name`, for a file."""
    if not is_sparse(A):
        return {name: A}
    parts = {"data": A.data, "indices": A.indices, "indptr": A.indptr, "shape": np.array(A.shape)}
    return {f"{name}_{part}": array for part, array in parts.items()}


def restored_samples(name: str, arrays: Mapping[str, NDArray[Any]]) -> Array | csr_array | None:
    """Return the samples of the arrays that `samples_by_name` has returned, or None.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> restored_samples("A", samples_by_name("A", csr_array(np.eye(2)))).toarray().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    from scipy.sparse import csr_array

    if f"{name}_shape" not in arrays:
        return arrays.get(name)
    data, indices, indptr, shape = (
        arrays[f"{name}_{part}"] for part in ("data", "indices", "indptr", "shape")
    )
    return csr_array((data, indices, indptr), shape=tuple(shape.tolist()))


def with_ones(A: Array | csr_array) -> Array | csr_array:
    """Append a column of ones, (N, d) -> (N, d + 1); a sparse matrix remains sparse.

    Examples
    --------
    >>> with_ones(np.zeros((2, 1))).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    ones = np.ones((A.shape[0], 1), A.dtype)
    if not is_sparse(A):
        return np.hstack([A, ones])
    from scipy.sparse import csr_array, hstack

    return hstack([A, csr_array(ones)], format="csr")


def alike(A: Array | csr_array, other: Array | csr_array) -> Array | csr_array:
    """Return samples (N, d) as a sparse matrix, if the others are one, and else as an array.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> alike(csr_array(np.eye(2)), np.eye(3)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not is_sparse(other):
        return A.toarray() if is_sparse(A) else A
    from scipy.sparse import csr_array

    return csr_array(A)


def widened(A: Array | csr_array, width: int) -> Array | csr_array:
    """Append columns of zeros, (N, d) -> (N, width).

    Examples
    --------
    >>> widened(np.ones((1, 1)), 3).tolist()
    [[1.0, 0.0, 0.0]]
    """
    if not is_sparse(A):
        return np.pad(A, [(0, 0), (0, width - A.shape[1])])
    wide = A.copy()
    wide.resize(A.shape[0], width)
    return wide


def column_sizes(A: Array | csr_array) -> Array:
    """Return the largest modulus of each column, (d,).

    Examples
    --------
    >>> column_sizes(np.array([[1.0, 0.0], [-3.0, 0.0]]))
    array([3., 0.])
    """
    if not is_sparse(A):
        return np.asarray(np.abs(double(A)).max(axis=0))
    sizes = np.zeros(A.shape[1])
    np.maximum.at(sizes, A.indices, np.abs(double(A.data)))
    return sizes


def weighted_gram(A: Array | csr_array, weights: Array) -> Array:
    """Return A^T diag(weights) A, (N, d), (N,) -> (d, d).

    Examples
    --------
    >>> weighted_gram(np.ones((2, 1)), np.array([1.0, 2.0]))
    array([[3.]])
    """
    if not is_sparse(A):
        return np.asarray(A.T @ (weights[:, None] * A))
    return np.asarray((A.T @ A.multiply(weights[:, None]).tocsr()).toarray())


def smallest_eigenvalue(A: csr_array) -> float:
    """Return the smallest eigenvalue of A^* A, for a sparse matrix of few features.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> smallest_eigenvalue(csr_array(np.diag([1.0, 3.0])))
    1.0
    """
    A = A.astype(doubled(A.dtype), copy=False)
    return float(np.linalg.eigvalsh((A.conj().T @ A).toarray())[0])


def largest_eigenvalue(A: csr_array) -> float:
    """Return the largest eigenvalue of A^* A, for a sparse matrix (N, d), by Lanczos' method.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> largest_eigenvalue(csr_array(np.diag([1.0, 3.0])))
    9.0
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    A = A.astype(doubled(A.dtype), copy=False)
    if not A.data.any():
        return 0.0
    # The smaller one of A^* A and A A^*.
    first, last = (A, A.conj().T) if A.shape[1] <= A.shape[0] else (A.conj().T, A)
    size = min(A.shape)
    if size <= GRAM:
        return float(np.linalg.eigvalsh((last @ first).toarray())[-1])
    product = LinearOperator((size, size), lambda v: last @ (first @ v), dtype=A.dtype)
    start = np.random.default_rng(0).standard_normal(size).astype(A.dtype)
    found = eigsh(product, 1, which="LA", v0=start, tol=RESIDUAL, return_eigenvectors=False)
    return float(found[0])
