"""The slowest mode of a linear system that its initial states excite and its outputs show."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # real or complex

# Singular values of J - I, relative to the largest, of what may be conserved; components that are
# rounding, and directions.
CONSERVED, ROUNDING, RANK = 1e-11, 1e-9, 1e-13


class Starts(NamedTuple):
    """A linear system with its initial states and outputs.

    Attributes
    ----------
    J : array (N, N)
    C : array (p, N)
        What is seen of a state.
    V : array (N, q)
        States from which runs begin, in its columns.
    limits : array (l, N)
        A fixed point z of J is the limit of runs if `limits @ z` vanishes; each is if there are no
        rows.
    """

    J: Array
    C: Array
    V: Array
    limits: Array


def radius(J: Array, C: Array, V: Array, limits: Array) -> float:
    r"""Return the largest modulus of an eigenvalue of J whose mode a run excites and shows, not
    counting the limit of the run; see `Starts`.

    What J conserves is taken off first: the limits, and what no run has, or shows.  There,
    rounding errors make an eigenvalue 1, and of a Jordan block :math:`1 \pm 10^{-8}`.
    """
    if not (np.isfinite(J).all() and np.isfinite(V).all()):
        return math.inf
    # Left eigenvectors of 1 are conserved quantities.  Subtract the limits that belong to their
    # values, and project onto the states in which the rest of them is zero.
    while (left := _fixed(J.conj().T)).shape[1]:
        ends = _null(np.vstack([J - np.eye(len(J)), limits]))
        held = left.conj().T @ V
        V = V - ends @ (_inverse(left.conj().T @ ends) @ held)
        Q = _without(left @ _vanishing(left.conj().T @ V, V))
        if Q.shape[1] == len(J):
            break
        J, C, V, limits = Q.conj().T @ J @ Q, C @ Q, Q.conj().T @ V, limits @ Q
    # Right eigenvectors of 1 are states that stay: drop those that the output does not show.
    while (right := _fixed(J)).shape[1]:
        Q = _without(right @ _vanishing((C @ right).conj().T, C))
        if Q.shape[1] == len(J):
            break
        J, C, V = Q.conj().T @ J @ Q, C @ Q, Q.conj().T @ V
    # What remains is restricted to the reachable states, then to the observable ones, as in the
    # minimal realization of a linear system.
    Q = _krylov(J, V)
    J, C = Q.conj().T @ J @ Q, C @ Q
    Q = _krylov(J.conj().T, C.conj().T)
    return float(max(abs(np.linalg.eigvals(Q.conj().T @ J @ Q)), default=0.0))


def _null(A: Array) -> Array:
    """Return an orthonormal basis of the vectors that A takes to about zero."""
    _, s, Vh = _svd(A)
    few = np.append(s, np.zeros(len(Vh) - len(s))) <= CONSERVED * max(s.max(initial=0.0), 1.0)
    basis: Array = Vh[few].conj().T
    return basis


def _fixed(J: Array) -> Array:
    return _null(J - np.eye(len(J)))


def _vanishing(G: Array, whole: Array) -> Array:
    """Return an orthonormal basis of the combinations of the rows of G that are rounding errors."""
    U, s, _ = _svd(G)
    sizes = np.append(s, np.zeros(len(U) - len(s)))
    basis: Array = U[:, sizes <= ROUNDING * np.linalg.norm(whole, 2)]
    return basis


def _inverse(A: Array) -> Array:
    """Return the pseudo-inverse of products of unit vectors."""
    U, s, Vh = _svd(A)
    few = int((s > RANK).sum())
    inverse: Array = (Vh[:few].conj().T / s[:few]) @ U[:, :few].conj().T
    return inverse


def _without(V: Array) -> Array:
    """Return an orthonormal basis of what is orthogonal to the orthonormal columns of V."""
    basis: Array = np.linalg.qr(V, mode="complete")[0][:, V.shape[1] :]
    return basis


def _span(V: Array) -> Array:
    """Return an orthonormal basis of the columns, whose sizes are at most about 1."""
    U, sizes, _ = _svd(V)
    basis: Array = U[:, : len(sizes)][:, sizes > RANK]
    return basis


def _krylov(J: Array, V: Array) -> Array:
    """Return an orthonormal basis of the columns of V, J V, J J V, ..."""
    J, V = (A / (np.linalg.norm(A) or 1.0) for A in (J, V))
    Q = V[:, :0]
    while V.shape[1]:
        for _ in range(2):
            V = V - Q @ (Q.conj().T @ V)
        V = _span(V)
        # Small ones are parallel to Q in part.
        V = np.linalg.qr(V - Q @ (Q.conj().T @ V))[0]
        Q, V = np.hstack([Q, V]), J @ V
    return Q


def _svd(A: Array) -> tuple[Array, Array, Array]:
    """Singular vectors, all of them, and values, also where the fast algorithm does not
    converge.
    """
    try:
        U, s, Vh = np.linalg.svd(A)
    except np.linalg.LinAlgError:
        from scipy.linalg import svd

        U, s, Vh = svd(A, lapack_driver="gesvd")
    return U, s, Vh
