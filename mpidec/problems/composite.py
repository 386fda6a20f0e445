"""Minimization of a smooth convex function plus a term with a prox, to rounding accuracy.

Accelerated proximal gradient steps find the face of the term that holds the minimizer (which
entries are 0, at a bound, or free); Newton's method finds the minimizer on that face; the
optimality condition of the whole problem is then checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .._sparse import is_sparse
from .._validation import Array
from . import newton
from .terms import Face, Term

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

ACCEPTED = 1e-10
# Dimensions of a face up to which products of the Hessian with all of them are taken.
DENSE = 200
# Rounds of proximal gradient steps, more and more between two attempts.
ROUNDS, FEWEST, MOST = (
    80,
    10,
    150,
)


def minimize(
    value: Callable[[Array], float],
    grad: Callable[[Array], Array],
    hess: Callable[[Array], Array | LinearOperator],
    scale: Callable[[Array], float],
    x0: Array,
    smoothness: float,
    term: Term,
    factor: float,
) -> Array:
    r"""Return the minimizer of s(x) + `factor` r(x) with a smooth convex s and a term r.

    Parameters
    ----------
    value, grad, hess, scale, x0
        The function s, as for :func:`mpidec.problems.newton.minimize`.
    smoothness : float
        Upper bound of the curvature of s.
    term : Term
        The term r.
    factor : float
        Factor of the term, > 0.

    Raises
    ------
    ValueError
        If no minimizer is found to a relative accuracy of 1e-10.

    Examples
    --------
    The l1 norm moves the minimizer of :math:`\|x - (1, 3)\|^2 / 2` by 2 towards zero:

    >>> from mpidec.problems import l1
    >>> c = np.array([1.0, 3.0])
    >>> minimize(
    ...     lambda x: float((x - c) @ (x - c) / 2),
    ...     lambda x: x - c,
    ...     lambda x: np.eye(2),
    ...     lambda x: 1.0,
    ...     np.zeros(2),
    ...     1.0,
    ...     l1(2.0),
    ...     1.0,
    ... ).round(12)
    array([0., 1.])
    """
    t = 1 / smoothness if smoothness > 0 else 1.0

    def prox(v: Array) -> Array:
        return np.asarray(term.prox(v[None], t * factor)[0])

    def residual(x: Array) -> float:
        """Size of the fixed-point residual of a proximal gradient step, relative to the terms
        that cancel in it.
        """
        size = scale(x) + float(np.linalg.norm(x)) / t
        return float(np.linalg.norm(x - prox(x - t * grad(x)))) / t / size if size > 0 else 0.0

    x = y = prox(x0)
    momentum, best, error = 1.0, x, np.inf
    face: Face | None = None
    with np.errstate(all="ignore"):
        for k in range(ROUNDS):
            # FISTA with restarts, longer in each round, until the face settles.
            for _ in range(min(FEWEST + 2 * k * k, MOST)):
                following = prox(y - t * grad(y))
                # Momentum points uphill: begin again.
                if (y - following) @ (following - x) > 0:
                    momentum = 1.0
                grown = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
                x, y, momentum = (
                    following,
                    following + (momentum - 1) / grown * (following - x),
                    grown,
                )
            face, former = term.face(x), face
            if former is None or face.basis.shape != former.basis.shape:
                # Not settled yet: Newton's method would be wasted.
                continue
            trial = _on_face(value, grad, hess, scale=scale, x=x, face=face, factor=factor)
            if trial is not None and (size := residual(trial)) < error:
                best, error = trial, size
            if error <= ACCEPTED:
                break
        if not error <= ACCEPTED and (size := residual(x)) < error:
            best, error = x, size
    if not error <= ACCEPTED:
        raise ValueError(
            f"no finite minimizer found (relative residual {error:.1e}): the data may be "
            "separable, or the "
            "minimum is not attained; set l2 > 0"
        )
    return best


def _on_face(
    value: Callable[[Array], float],
    grad: Callable[[Array], Array],
    hess: Callable[[Array], Array | LinearOperator],
    scale: Callable[[Array], float],
    x: Array,
    face: Face,
    factor: float,
) -> Array | None:
    """Return the minimizer on the face that contains `x`, or None if there is none."""
    Z, slope, ridge = face.basis, factor * face.slope, factor * face.ridge
    if not Z.shape[1]:
        return x

    bend = factor * np.asarray(face.bend)
    bent = Z.T @ bend @ Z if bend.ndim else bend

    def at(u: Array) -> Array:
        return x + Z @ u

    def reduced(u: Array) -> Array | LinearOperator:
        H, q = hess(at(u)), Z.shape[1]
        if not isinstance(H, np.ndarray) and q > DENSE:
            return newton.operator(q, lambda v: Z.T @ (H @ (Z @ v) + ridge * (Z @ v)) + bent * v)
        D = Z.toarray() if is_sparse(Z) else Z
        HZ = H @ D if isinstance(H, np.ndarray) else H.matmat(D)
        return np.asarray(D.T @ (HZ + ridge[:, None] * D)) + bent

    try:
        u = newton.minimize(
            lambda u: (
                value(at(u))
                + float(slope @ at(u) + 0.5 * ridge @ at(u) ** 2 + 0.5 * u @ np.dot(bent, u))
            ),
            lambda u: Z.T @ (grad(at(u)) + slope + ridge * at(u)) + np.dot(bent, u),
            reduced,
            lambda u: scale(at(u)) + float(np.linalg.norm(slope)),
            np.zeros(Z.shape[1]),
        )
    except ValueError:
        return None
    return at(u)
