"""Spectra of W and of graph Laplacians: Fourier transforms of convolutions, dense for small n,
else Lanczos or Arnoldi.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .source import Pair, Source

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Largest number of agents for dense matrices.
DENSE = 600
# Contraction factor below which averaging counts as exact: what rounding leaves of zero.
EXACT = 1e-13


def gap(factors: Sequence[Source], kind: str) -> float:
    """Return 1 - rho^(1/T) with the contraction factor rho of a product of T mixing matrices,
    applied in the given order.

    rho is the second largest singular value if `kind` is "doubly", else the second largest modulus
    of an eigenvalue, and for pairs the larger one of R and C.
    """
    if kind == "any":
        raise ValueError(
            "spectral_gap: a graph filter (kind 'any') averages nothing, expected rows or columns "
            "that sum to 1: np.linalg.eigvals(topology.W.toarray()) is its spectrum"
        )
    if kind == "pair":
        parts = [(W.R, W.C) if isinstance(W, Pair) else (W, W) for W in factors]
        return min(gap(R_or_C, "row") for R_or_C in zip(*parts))
    n = factors[0].n
    if n == 1:
        return 1.0
    group = factors[0].group
    # Convolutions over one group commute, and the Fourier transform of their first column has the
    # eigenvalues; entry 0 belongs to the average, and is 1.
    if group is not None and all(W.group == group for W in factors):
        product = np.ones(group, complex)
        for W in factors:
            product *= np.fft.fftn(W.columns(0, 1).csr.toarray().reshape(group))
        rho = float(np.max(np.abs(product).ravel()[1:]))
    else:
        matrices = [W.rows(0, n).csr for W in factors]
        rho = _singular(matrices) if kind == "doubly" else _eigen(matrices)
    if rho < EXACT:
        return 1.0
    value = 1 - rho ** (1 / len(factors))
    return 0.0 if abs(value) < EXACT else value


def gap_of_draws(matrices: Iterable[NDArray[np.float64]], kind: str) -> float:
    r"""Return :math:`1 - \sqrt{\rho(E[W^T W] - \tfrac1n 1 1^T)}` of drawn mixing matrices, with
    averages of columns or rows removed of those that are not doubly stochastic.
    """
    total, count = np.zeros(()), 0
    for W in matrices:
        D = W - (W.mean(axis=1, keepdims=True) if kind != "column" else W.mean(axis=0))
        total, count = total + D.T @ D, count + 1
    return 1 - math.sqrt(float(np.linalg.norm(total / count, 2)))


def laplacian(adjacency: csr_array) -> tuple[float, float]:
    """Return the largest and the second smallest eigenvalue of an undirected graph's Laplacian,
    for n >= 2.
    """
    from scipy.sparse import csr_array

    n = adjacency.shape[0]
    A = csr_array((np.ones(adjacency.nnz), adjacency.indices, adjacency.indptr), adjacency.shape)
    degree = A.sum(axis=1)
    if n <= DENSE:
        values = np.linalg.eigvalsh(np.diag(degree) - A.toarray())
        return float(values[-1]), float(values[1])
    largest = _lanczos(lambda x: degree * x - A @ x, n, "LA")
    # The second smallest eigenvalue is the largest of (largest I - L) off the average: Lanczos
    # converges at the upper end of a spectrum.
    rest = _lanczos(lambda x: largest * (x - x.mean()) - degree * x + A @ x, n, "LA")
    return largest, largest - rest


def laplacian_of_group(
    group: tuple[int, ...], neighbors: NDArray[np.integer]
) -> tuple[float, float]:
    """Return the same from the neighbours of agent 0 and the group (see `source.Source`)."""
    adjacent = np.zeros(math.prod(group))
    adjacent[neighbors] = 1
    values = np.sort((len(neighbors) - np.fft.fftn(adjacent.reshape(group)).real).ravel())
    return float(values[-1]), float(values[1])


def _singular(matrices: Sequence[csr_array]) -> float:
    n = matrices[0].shape[0]
    if n <= DENSE:
        product = np.eye(n)
        for W in matrices:
            product = W @ product
        return float(np.linalg.norm(product - 1 / n, 2))
    single = matrices[0] if len(matrices) == 1 else None
    if single is not None and abs(single - single.T).max() < 1e-15:
        return abs(_lanczos(lambda x: single @ x - x.mean(), n, "LM"))

    # The singular values of the product P off the average are the roots of the eigenvalues of P^T
    # P.
    def gram(x: NDArray[np.float64]) -> NDArray[np.float64]:
        y = x - x.mean()
        for W in matrices:
            y = W @ y
        for W in reversed(matrices):
            y = W.T @ y
        result: NDArray[np.float64] = y - y.mean()
        return result

    return math.sqrt(max(_lanczos(gram, n, "LA"), 0.0))


def _eigen(matrices: Sequence[csr_array]) -> float:
    n = matrices[0].shape[0]
    if n <= DENSE:
        product = np.eye(n)
        for W in matrices:
            product = W @ product
        return float(np.sort(np.abs(np.linalg.eigvals(product)))[-2])

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        for W in matrices:
            x = W @ x
        return x

    import scipy.sparse.linalg as sla

    operator = sla.LinearOperator((n, n), matvec=apply, dtype=np.float64)
    values = sla.eigs(operator, k=2, which="LM", v0=_start(n), return_eigenvectors=False)
    return float(np.min(np.abs(values)))


def _lanczos(apply: object, n: int, which: str) -> float:
    import scipy.sparse.linalg as sla

    operator = sla.LinearOperator((n, n), matvec=apply, dtype=np.float64)
    return float(
        sla.eigsh(
            operator,
            k=1,
            which=which,
            v0=_start(n),
            ncv=min(n, 40),
            maxiter=100 * n,
            return_eigenvectors=False,
        )[0]
    )


def _start(n: int) -> NDArray[np.float64]:
    return np.random.Generator(np.random.Philox(key=n)).standard_normal(n)  # the same on every rank
