"""Minimization of a smooth convex function to rounding accuracy: scipy's trust-region Newton,
then Newton steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .._validation import Array

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

GOAL, ACCEPTED = 1e-15, 1e-11
# Of a Hessian with vectors in one Newton step: minutes, for millions of samples.
PRODUCTS = 10_000


def minimize(
    value: Callable[[Array], float],
    grad: Callable[[Array], Array],
    hess: Callable[[Array], Array | LinearOperator],
    scale: Callable[[Array], float],
    x0: Array,
) -> Array:
    r"""Return the minimizer of a smooth convex function, to :math:`\|\nabla f(x)\| \le 10^{-11}\,
    s(x)` or better.

    Parameters
    ----------
    value, grad, hess : callable
        Function of `x`, shape (d,); its gradient, (d,); its Hessian, a dense (d, d) array or a
        LinearOperator.
    scale : callable
        Size :math:`s(x)` of the terms that cancel in the gradient at the solution.
    x0 : (d,) array
        Starting point.

    Raises
    ------
    ValueError
        If there is no finite minimizer (separable labels without regularization).

    Examples
    --------
    >>> minimize(lambda x: float(x @ x / 2 - x.sum()), lambda x: x - 1, lambda x: np.eye(2), lambda x: 1.0, np.zeros(2)).round(12)
    array([1., 1.])
    """
    import scipy.optimize  # imported on use: it takes 0.3 s

    def relative_gradient(x: Array) -> float:
        size = scale(x)
        return float(np.linalg.norm(grad(x))) / size if size > 0 else 0.0

    x = x0
    with np.errstate(all="ignore"):
        # The trust region globalizes; it ends at 1e-10, where differences of function values are
        # rounding.
        if relative_gradient(x) > 1e-10:
            dense = isinstance(hess(x), np.ndarray)
            how = (
                {"method": "trust-exact", "hess": hess}
                if dense
                # Without the memory for a basis, which trust-krylov reserves: up to 8 GB.
                else {"method": "trust-ncg", "hessp": lambda x, v: hess(x) @ v}
            )
            options = {"gtol": 1e-10 * scale(x), "maxiter": 500, "max_trust_radius": 1e6}
            x = scipy.optimize.minimize(value, x, jac=grad, options=options, **how).x
        best = relative_gradient(x)
        # Function values are too coarse for further progress.
        for _ in range(30):
            if best <= GOAL or not np.isfinite(best):
                break
            trial = x - _solve(hess(x), grad(x))
            if not (size := relative_gradient(trial)) < best:
                break
            x, best = trial, size
    if not best <= ACCEPTED:
        raise ValueError(
            f"no finite minimizer found (relative gradient norm {best:.1e}): the data may be "
            "separable, "
            "or the minimum is not attained; set l2 > 0"
        )
    return x


def operator(size: int, product: Callable[[Array], Array]) -> LinearOperator:
    """Return a Hessian that is only applied to vectors, (size,) -> (size,).

    Examples
    --------
    >>> operator(2, lambda v: 3 * v) @ np.ones(2)
    array([3., 3.])
    """
    from scipy.sparse.linalg import LinearOperator

    return LinearOperator((size, size), dtype=np.float64, matvec=lambda v: product(v.ravel()))


def _solve(H: Array | LinearOperator, g: Array) -> Array:
    import scipy.linalg
    from scipy.sparse.linalg import minres

    if not isinstance(H, np.ndarray):
        return np.asarray(minres(H, g, rtol=1e-10, maxiter=min(5 * len(g), PRODUCTS))[0])
    if not np.isfinite(H).all():
        return np.full_like(g, np.nan)
    try:
        return np.asarray(scipy.linalg.cho_solve(scipy.linalg.cho_factor(H), g))
    except np.linalg.LinAlgError:
        return np.asarray(scipy.linalg.lstsq(H, g)[0])
