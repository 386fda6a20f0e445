"""Minimization of one smooth, strongly convex function per agent plus a term with a prox, of all
agents at once.

Newton's method on the face of the term that a proximal gradient step of the quadratic model
reaches; where that does not help, the proximal gradient step itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .._validation import Array
from .products import times
from .terms import Term

# Residuals, relative to the terms that cancel in them.
GOAL, ACCEPTED = 1e-14, 1e-11
HELPS = (
    0.5  # a step of Newton's method is taken if it leaves at most this part of the least residual
)
# Otherwise, these parts of it are tried.
PARTS = (1.0, 0.5, 0.25, 0.1, 0.03)
# Steps; faces that are tried in each.
ROUNDS, CHANGES = 20, 8

Rows = NDArray[np.intp]


def minimize(
    value: Callable[[Array, Rows], Array],
    grad: Callable[[Array, Rows], tuple[Array, Array]],
    hess: Callable[[Array, Rows], Array],
    smoothness: Array,
    term: Term | None,
    X0: Array,
) -> tuple[Array, NDArray[np.bool_]]:
    r"""Return the minimizers of :math:`s_i(x) + r(x)`, one per row, and which of them are accurate
    to rounding errors.

    Parameters
    ----------
    value : callable
        ``value(X, rows)``: the values of the functions of these agents, with the term, (k, d) ->
        (k,).
    grad : callable
        ``grad(X, rows)``: the gradients of the s_i of these agents, (k, d), and the sizes of what
        cancels in each, (k,).
    hess : callable
        ``hess(X, rows)``: their Hessians, (k, d, d).
    smoothness : (m,) array
        Upper bounds of their curvatures.
    term : Term or None
        The term r of every agent.
    X0 : (m, d) array
        Starting points.

    Notes
    -----
    The result of an agent has the same bits, whichever others are minimized with it.

    Examples
    --------
    The l1 norm moves the minimizers of :math:`\|x - c_i\|^2 / 2` by 2 towards zero:

    >>> from mpidec.problems import l1
    >>> C = np.array([[1.0, 3.0], [-5.0, 0.0]])
    >>> X, found = minimize(
    ...     lambda X, rows: ((X - C[rows]) ** 2).sum(axis=1) / 2 + 2 * np.abs(X).sum(axis=1),
    ...     lambda X, rows: (X - C[rows], np.ones(len(X))),
    ...     lambda X, rows: np.tile(np.eye(2), (len(X), 1, 1)),
    ...     np.ones(2),
    ...     l1(2.0),
    ...     np.zeros((2, 2)),
    ... )
    >>> X.tolist(), found.tolist()
    ([[0.0, 1.0], [-3.0, 0.0]], [True, True])
    """
    best, least = X0.copy(), np.full(len(X0), np.inf)
    rows, X = np.arange(len(X0)), X0

    def residuals(X: Array, rows: Rows) -> tuple[Array, Array, Array]:
        """Gradients, proximal gradient steps, and their lengths relative to the terms that
        cancel in them.
        """
        G, size = grad(X, rows)
        t = 1 / smoothness[rows, None]
        P = _prox(term, X - t * G, t)
        size = size * t[:, 0] + _norms(X)
        return G, P, np.where(size > 0, _norms(X - P) / np.where(size > 0, size, 1.0), 0.0)

    with np.errstate(all="ignore"):
        G, P, residual = residuals(X, rows)
        for _ in range(ROUNDS):
            # An agent ends at its goal, or, once its residual is acceptable, when a step no longer
            # helps: rounding errors have been reached.
            stuck = ~(residual <= HELPS * least[rows]) & (least[rows] <= ACCEPTED)
            better = residual < least[rows]
            best[rows[better]], least[rows[better]] = X[better], residual[better]
            going = (residual > GOAL) & ~stuck
            if not going.all():
                rows, X, P, G = rows[going], X[going], P[going], G[going]
            if not len(rows):
                break
            Y = _newton(term, hess(X, rows), X, G, P, 1 / smoothness[rows, None])
            G, following, residual = residuals(Y, rows)
            # Where Newton's step has not reduced the residual, search for a lower value on the
            # segment to it from the proximal gradient step, which always descends.
            worse = ~(residual <= HELPS * least[rows]) & ~(least[rows] <= ACCEPTED)
            if worse.any():
                some = rows[worse]
                Y[worse] = _descended(value, some, P[worse], Y[worse])
                G[worse], following[worse], residual[worse] = residuals(Y[worse], some)
            X, P = Y, following
    return best, least <= ACCEPTED


def _norms(X: Array) -> Array:
    return np.asarray(np.sqrt((X * X).sum(axis=1)))


def _descended(value: Callable[[Array, Rows], Array], rows: Rows, P: Array, Y: Array) -> Array:
    """Return the points of least value on the segment from P, where the value has decreased, to
    Y.
    """
    best: Array = P.copy()
    least = value(P, rows)
    for part in PARTS:
        X = P + part * (Y - P)
        found = value(X, rows)
        better = found < least
        best[better], least[better] = X[better], found[better]
    return best


def _prox(term: Term | None, V: Array, t: Array) -> Array:
    return V if term is None else term.prox(V, t[:, 0])


def _newton(term: Term | None, H: Array, X: Array, G: Array, P: Array, t: Array) -> Array:
    """Return the minimizers of the quadratic models at `X` with the term, from the proximal
    gradient steps to `P` on.
    """
    if term is None:
        return X - _solved(H, G)
    end: Array = P.copy()
    rows, unit = np.arange(len(X)), np.eye(X.shape[1])
    for _ in range(CHANGES):
        # A step of the projected Newton method: minimize the model on the face of P, clip to the
        # ends of the face, and take a proximal gradient step, which finds the next face.
        Z, slope, ridge, bend = term.faces(P)
        slopes = G + _times(H, P - X) + slope + ridge * P
        # Z projects onto the face; the identity off it makes the matrix regular.
        inside = Z @ (H + ridge[:, :, None] * unit + bend) @ Z + unit - Z
        Y = term.within(P - _times(Z, _solved(inside, _times(Z, slopes))), P)
        P = end[rows] = term.prox(Y - t * (G + _times(H, Y - X)), t[:, 0])
        left = (term.faces(P).projector != Z).any(axis=(1, 2))
        if not left.any():
            break
        rows, H, X, G, P, t = rows[left], H[left], X[left], G[left], P[left], t[left]
    return end


def _times(H: Array, X: Array) -> Array:
    return times(H, X[:, :, None])[:, :, 0]


def _solved(H: Array, B: Array) -> Array:
    """Return the solutions of H_i x = b_i, and 0 where H_i is singular."""
    try:
        # One call for all; it raises if a single matrix is singular, so that then each
        # is tried alone.
        return np.asarray(np.linalg.solve(H, B[:, :, None])[:, :, 0])
    except np.linalg.LinAlgError:
        if len(H) == 1:
            return np.zeros_like(B)
        return np.concatenate([_solved(H[i : i + 1], B[i : i + 1]) for i in range(len(H))])
