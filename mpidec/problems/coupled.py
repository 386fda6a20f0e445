"""Problems with private variables of each agent and a shared constraint, solved by their dual."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .. import _validation as check
from .._complex import is_complex
from .._validation import Array
from .._words import Described
from .products import adjoint, times
from .terms import box


class ConstraintCoupled(Described):
    r"""Resource allocation by dual decomposition: private variables of each agent, and a common
    constraint.

    .. math:: \min_{x_1, \dots, x_n} \sum_i f_i(x_i) \quad \text{subject to} \quad \sum_i A_i x_i = \sum_i b_i
              \quad (\text{or} \le)

    The rows of a run are multipliers :math:`\lambda` of the constraint (its prices), one estimate
    per agent, on which the agents agree: the dual is a problem of consensus,

    .. math:: \min_\lambda \sum_i \varphi_i(\lambda), \qquad
              \varphi_i(\lambda) &= -\min_x \bigl[ f_i(x) + \lambda^T (A_i x - b_i) \bigr], \\
              \nabla \varphi_i(\lambda) &= b_i - A_i x_i(\lambda),

    whose gradients need the agent's own minimizer :math:`x_i(\lambda)` only.  Any exact solver
    solves it; with :math:`\le`, where :math:`\lambda \ge 0`, one that takes a term, such as
    `NIDS`.  :math:`f_i` must be strictly convex (strongly, for linear convergence); it may have
    constraints of its own.

    Parameters
    ----------
    argmin : callable
        ``argmin(C)``: the minimizers of :math:`f_i(x) + c_i^T x`, (m, p) -> (m, p): a formula, or
        any local optimizer.
    value : callable
        ``value(X)``: :math:`f_i(x_i)`, (m, p) -> (m,).
    A : (m, q, p) array
    b : (m, q) array
        Any shares of the right-hand side.
    inequality : bool
        Whether the constraint is :math:`\sum_i A_i x_i \le \sum_i b_i`.
    strong_convexity : float or (m,) array, optional
        :math:`\mu_i > 0` of the f_i, for ``step_size="safe"``.

    Raises
    ------
    ValueError, TypeError

    Notes
    -----
    Nothing is communicated, neither f_i nor x_i.

    Examples
    --------
    Three producers with the costs :math:`h_i x^2 / 2`, at most 3 units each, share a demand of 7
    units:

    >>> import mpidec, numpy as np
    >>> h = np.array([[1.0], [1.0], [4.0]])
    >>> problem = mpidec.problems.ConstraintCoupled(
    ...     lambda C: np.clip(-C / h, 0, 3),
    ...     lambda X: (h * X**2 / 2).sum(axis=1),
    ...     np.ones((3, 1, 1)),
    ...     np.full((3, 1), 7 / 3),
    ... )
    >>> result = mpidec.solve(problem, "exact_diffusion", "complete", steps=200)
    >>> problem.primal(result.X).round(6).ravel().tolist(), result.x.round(6).tolist()
    ([3.0, 3.0, 1.0], [-4.0])
    """

    def __init__(
        self,
        argmin: Callable[[Array], Array],
        value: Callable[[Array], Array],
        A: ArrayLike,
        b: ArrayLike,
        *,
        inequality: bool = False,
        strong_convexity: ArrayLike | None = None,
    ) -> None:
        check.takes(argmin, "ConstraintCoupled: argmin", "C")
        check.takes(value, "ConstraintCoupled: value", "X")
        self.A = check.data(A)
        self.b = check.floats(b, "b")
        self.m, self.d, self.p = self.A.shape
        if self.b.shape != (self.m, self.d):
            raise ValueError(
                f"b has shape {self.b.shape}, expected {(self.m, self.d)}, as A has rows"
            )
        check.finite(self.A, "A")
        check.finite(self.b, "b")
        self._argmin, self._value = argmin, value
        self.term = box(lower=0.0) if inequality else None
        self.x_star: Array | None = None
        if strong_convexity is not None:
            mu = np.broadcast_to(check.floats(strong_convexity, "strong_convexity"), (self.m,))
            if not (np.isfinite(mu) & (mu > 0)).all():
                raise ValueError(f"strong_convexity = {strong_convexity}, expected numbers > 0")
            self.smoothness = np.linalg.norm(self.A, ord=2, axis=(1, 2)) ** 2 / mu

    def _extent(self) -> dict[str, object]:
        return {"m": self.m, "d": self.d, "p": self.p}

    def primal(self, X: Array) -> Array:
        r"""Return :math:`x_i(\lambda_i)`, the agents' own variables, for their multipliers, (m,
        q) -> (m, p).
        """
        if is_complex(X):
            raise TypeError(f"multipliers are {X.dtype}, expected real numbers: take x0.real")
        C = adjoint(self.A, X[:, :, None])[:, :, 0]
        return check.returned(self._argmin(C), "argmin(C)", C.shape).astype(np.float64)

    def _excess(self, P: Array) -> Array:
        """Return :math:`A_i x_i - b_i`, (m, p) -> (m, q)."""
        excess: Array = times(self.A, P[:, :, None])[:, :, 0] - self.b
        return excess

    def value(self, X: Array) -> Array:
        r"""Return :math:`\varphi_i(\lambda_i)`, (m, q) -> (m,)."""
        P = self.primal(X)
        own = check.returned(self._value(P.copy()), "value(X)", P.shape[:1])
        total: Array = -own - (X * self._excess(P)).sum(axis=1)
        return total

    def grad(self, X: Array) -> Array:
        r"""Return :math:`b_i - A_i x_i(\lambda_i)`, (m, q) -> (m, q)."""
        return -self._excess(self.primal(X))
