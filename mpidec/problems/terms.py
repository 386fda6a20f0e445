"""Terms without a gradient that are added to a cost: l1 norm, elastic net, box and simplex
constraints, with their prox.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._complex import doubled, is_complex, squares
from .._validation import Array
from .._words import Described

if TYPE_CHECKING:
    from scipy.sparse import csc_array


# Of the basis of a face, beyond which it is sparse.
ENTRIES = 2**22


class Face(NamedTuple):
    """Affine set near a point on which a term is smooth: x = point + basis @ u, with this slope
    and these curvatures; `bend`, (d, d), are those that hold near the point only.
    """

    basis: Array | csc_array
    slope: Array
    ridge: Array
    bend: Array | float = 0.0


class Faces(NamedTuple):
    """Faces of a term near several points: projectors onto their directions, (m, d, d), slopes
    and curvatures, (m, d), and `bend`, (m, d, d).
    """

    projector: Array
    slope: Array
    ridge: Array
    bend: Array | float = 0.0


class Term(Described, ABC):
    r"""Base class of terms r: convex functions with an inexpensive proximal operator.

    Every agent has the same term, :math:`f_i(x) = s_i(x) + r(x)` with a smooth :math:`s_i`. A
    problem with a term returns the gradient of :math:`s_i` from `grad`, and the value and the
    proximal point of :math:`f_i` from `value` and `prox`.

    Attributes
    ----------
    l2 : float
        Curvature on every face.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares, l1
    >>> problem = LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]], term=l1(0.5))
    >>> problem.solution().round(12)
    array([1.5])
    """

    l2: float = 0.0

    @abstractmethod
    def value(self, X: Array) -> Array:
        """Return r at every row, (m, d) -> (m,); constraints count as 0, whether they hold or
        not.
        """

    @abstractmethod
    def prox(self, V: Array, t: float | Array) -> Array:
        r"""Return :math:`\arg\min_x r(x) + \|x - v_i\|^2 / (2t)` at row i, (m, d) -> (m, d), for
        one t or one per row.
        """

    @abstractmethod
    def subgradient(self, X: Array) -> Array:
        """Return a subgradient of r at every row, (m, d) -> (m, d); a ValueError for
        constraints, which have none.
        """

    @abstractmethod
    def face(self, x: Array) -> Face:
        """Return the face of r that contains `x`, a proximal point, (d,)."""

    def faces(self, X: Array) -> Faces:
        """Return the faces of r that contain the rows of X, (m, d)."""
        faces = [self.face(x) for x in X]
        d = X.shape[1]
        projectors = np.array([face.basis @ face.basis.T for face in faces]).reshape(-1, d, d)
        slopes, ridges = (
            np.array(a).reshape(-1, d) for a in ([f.slope for f in faces], [f.ridge for f in faces])
        )
        bends = [face.bend for face in faces if np.ndim(face.bend)]
        return Faces(projectors, slopes, ridges, np.array(bends) if bends else 0.0)

    def within(self, X: Array, P: Array) -> Array:
        """Return the rows of X on the faces that contain those of P, with entries beyond an end
        of the face at that end.
        """
        return self.prox(X, 0.0)


@dataclass(frozen=True)
class Separable(Term):
    r"""Term of every entry on its own: l1 norm, ridge and bounds.

    .. math:: r(x) = \lambda_1 \|x\|_1 + \tfrac{\lambda_2}{2} \|x\|^2 \quad \text{subject to} \quad
              \text{lower} \le x_j \le \text{upper}

    Of complex rows, the norms are those of the moduli, and bounds are refused.

    Built by :func:`l1`, :func:`elastic_net` and :func:`box`.

    Parameters
    ----------
    l1, l2 : float
        :math:`\lambda_1, \lambda_2 \ge 0`.
    lower, upper : float
        Bounds of every entry; infinite by default.
    free : int
        Number of entries at the end that the term leaves alone (an intercept).

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Separable
    >>> Separable(l1=1.0, lower=0.0).prox(np.array([[-3.0, 0.5, 3.0]]), 1.0)
    array([[0., 0., 2.]])
    """

    l1: float = 0.0
    l2: float = 0.0
    lower: float = -math.inf
    upper: float = math.inf
    free: int = 0

    def __post_init__(self) -> None:
        check.number(self.l1, "l1", least=0)
        check.number(self.l2, "l2", least=0)
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if not check.is_number(bound):
                raise TypeError(f"{name} is {bound!r}, expected a number")
        if not self.lower < self.upper:
            raise ValueError(
                f"lower = {self.lower} and upper = {self.upper}, expected lower < upper"
            )

    @property
    def bounded(self) -> bool:
        """Whether some bound is finite."""
        return bool(np.isfinite([self.lower, self.upper]).any())

    def held(self, X: Array) -> Array:
        """Return the entries that the term concerns, a view."""
        return X[..., : X.shape[-1] - self.free]

    def value(self, X: Array) -> Array:
        """Return r at every row, (m, d) -> (m,); bounds count as 0, whether they hold or not."""
        Z = self.held(X)
        result: Array = self.l1 * np.abs(Z).sum(axis=-1) + 0.5 * self.l2 * squares(Z).sum(axis=-1)
        return result

    def prox(self, V: Array, t: float | Array) -> Array:
        r"""Return the soft threshold of row i, divided by :math:`1 + t \lambda_2` and clipped to
        the bounds, (m, d) -> (m, d).
        """
        t = np.asarray(t, dtype=np.float64)[..., None]
        X = np.array(V, dtype=doubled(V.dtype))
        Z = self.held(X)
        if self.bounded and is_complex(X):
            raise TypeError(NO_ORDER)
        if self.l1:
            Z[...] = np.sign(Z) * np.maximum(np.abs(Z) - t * self.l1, 0.0)
        if self.l2:
            Z /= 1 + t * self.l2
        if self.bounded:
            np.clip(Z, self.lower, self.upper, out=Z)
        return X.astype(V.dtype, copy=False)

    def subgradient(self, X: Array) -> Array:
        r"""Return :math:`\lambda_1\, \mathrm{sign}(x) + \lambda_2 x` at every row, (m, d) -> (m,
        d).

        Raises
        ------
        ValueError
            If there are bounds.
        """
        if self.bounded:
            raise ValueError(NO_SUBGRADIENT)
        G = np.zeros_like(X)
        self.held(G)[...] = self.l1 * np.sign(self.held(X)) + self.l2 * self.held(X)
        return G

    def face(self, x: Array) -> Face:
        """Return the face that contains `x`, (d,): entries at a bound or, with an l1 norm, at 0
        stay there.
        """
        moving, slope, ridge = self._around(x)
        return Face(_columns(np.flatnonzero(moving), len(x)), slope, ridge)

    def faces(self, X: Array) -> Faces:
        """Return the faces that contain the rows of X, (m, d)."""
        moving, slope, ridge = self._around(X)
        return Faces(moving[:, :, None] * np.eye(X.shape[1]), slope, ridge)

    def within(self, X: Array, P: Array) -> Array:
        """Return the rows of X, with the sign of those of P where there is an l1 norm, and
        within the bounds.
        """
        X = self.prox(X, 0.0) if self.bounded else X.copy()
        if self.l1:
            self.held(X)[self.held(X) * self.held(P) < 0] = 0.0
        return X

    def _around(self, X: Array) -> tuple[NDArray[np.bool_], Array, Array]:
        """Return which entries of X can move without leaving their faces, and the slopes and
        curvatures there.
        """
        at = self.held(X)
        moving, slope, ridge = np.ones(X.shape, bool), np.zeros_like(X), np.zeros_like(X)
        inside = (at > self.lower) & (at < self.upper)
        self.held(moving)[...] = inside & (at != 0) if self.l1 else inside
        self.held(slope)[...], self.held(ridge)[...] = self.l1 * np.sign(at), self.l2
        return moving, slope, ridge


@dataclass(frozen=True)
class Simplex(Term):
    r"""Simplex constraint: entries :math:`x_j \ge 0` with the sum `total`; built by
    :func:`simplex`.

    Parameters
    ----------
    total : float
        Sum of the entries, > 0.
    free : int
        Number of entries at the end that the constraint leaves alone (an intercept).

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Simplex
    >>> Simplex(1.0).prox(np.array([[0.5, 0.9, -3.0]]), 1.0).round(12)
    array([[0.3, 0.7, 0. ]])
    """

    total: float = 1.0
    free: int = 0

    def __post_init__(self) -> None:
        check.number(self.total, "simplex", above=0)

    def value(self, X: Array) -> Array:
        """Return zeros, (m, d) -> (m,)."""
        return np.zeros(X.shape[:-1])

    def prox(self, V: Array, t: float | Array) -> Array:
        """Return the projection of every row onto the simplex, (m, d) -> (m, d), by sorting; `t`
        has no effect.
        """
        if is_complex(V):
            raise TypeError(NO_ORDER)
        X = np.array(V, dtype=np.float64)
        Z = X[..., : X.shape[-1] - self.free]
        down = -np.sort(-Z, axis=-1)
        excess = (np.cumsum(down, axis=-1) - self.total) / np.arange(1, Z.shape[-1] + 1)
        last = (down > excess).sum(axis=-1, keepdims=True) - 1
        np.maximum(Z - np.take_along_axis(excess, last, axis=-1), 0.0, out=Z)
        return X.astype(V.dtype, copy=False)

    def subgradient(self, X: Array) -> Array:
        """Raise a ValueError: a constraint has no subgradient that leads back to it."""
        raise ValueError(NO_SUBGRADIENT)

    def face(self, x: Array) -> Face:
        """Return the face that contains `x`, (d,): zeros stay zero, and the sum stays the same."""
        held: NDArray[np.intp] = np.flatnonzero(x[: len(x) - self.free] > 0)
        rest = np.eye(len(x), self.free, self.free - len(x))
        basis = np.zeros((len(x), max(len(held) - 1, 0)))
        # Orthonormal directions in which the sum does not change.
        if len(held) > 1:
            basis[held] = np.linalg.qr(
                np.column_stack([np.ones(len(held)), np.eye(len(held))[:, 1:]])
            )[0][:, 1:]
        return Face(np.hstack([basis, rest]), np.zeros_like(x), np.zeros_like(x))


def checked_term(term: Term | None, dtype: np.dtype[Any]) -> Term | None:
    """Return a term, which may refuse the numbers of rows with this dtype.

    Raises
    ------
    TypeError
    """
    if term is not None and not isinstance(term, Term):
        raise TypeError(
            f"term is a {type(term).__name__}, expected problems.l1(...), elastic_net, box or "
            "simplex"
        )
    if term is not None and is_complex(dtype):
        term.prox(np.zeros((0, 1), dtype), 1.0)
    return term


def _columns(places: NDArray[np.intp], d: int) -> Array | csc_array:
    """Return these columns of the identity, (d, q), as an array if they have few entries."""
    q = len(places)
    if d * q <= ENTRIES:
        basis = np.zeros((d, q))
        basis[places, np.arange(q)] = 1.0
        return basis
    from scipy.sparse import csc_array

    return csc_array((np.ones(q), (places, np.arange(q))), shape=(d, q))


NO_ORDER = (
    "a box or a simplex bounds real numbers, got complex ones: bound their real and imaginary "
    "parts, mpidec.problems.RealView(problem), or take l1 or elastic_net"
)
NO_SUBGRADIENT = (
    "a box or a simplex has no subgradient, expected a solver with a proximal step, such as NIDS"
)


def l1(strength: float) -> Separable:
    r"""L1 norm, :math:`r(x) = \lambda_1 \|x\|_1`; its prox is the soft threshold.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import l1
    >>> l1(1.0).prox(np.array([[-3.0, 0.5]]), 2.0)
    array([[-1.,  0.]])
    """
    return Separable(l1=strength)


def elastic_net(l1: float, l2: float) -> Separable:
    r"""Elastic net, :math:`r(x) = \lambda_1 \|x\|_1 + \frac{\lambda_2}{2} \|x\|^2`.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import elastic_net
    >>> elastic_net(1.0, 1.0).prox(np.array([[-3.0, 0.5]]), 1.0)
    array([[-1.,  0.]])
    """
    return Separable(l1=l1, l2=l2)


def box(lower: float = -math.inf, upper: float = math.inf) -> Separable:
    r"""Box constraint, :math:`\text{lower} \le x_j \le \text{upper}`; its prox is the projection.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import box
    >>> box(0.0, 1.0).prox(np.array([[-3.0, 0.5, 3.0]]), 1.0)
    array([[0. , 0.5, 1. ]])
    """
    return Separable(lower=lower, upper=upper)


def simplex(total: float = 1.0) -> Simplex:
    r"""Simplex constraint, :math:`x_j \ge 0` and :math:`\sum_j x_j = \text{total}`; its prox is the
    projection.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import simplex
    >>> simplex(1.0).prox(np.array([[2.0, 0.0]]), 1.0)
    array([[1., 0.]])
    """
    return Simplex(total)


def term(
    *,
    l1: float = 0.0,
    lower: float | None = None,
    upper: float | None = None,
    simplex: float | None = None,
    free: int = 0,
) -> Term | None:
    """Return the term with these parameters, or None if none is given.

    Examples
    --------
    >>> from mpidec.problems import term
    >>> term(l1=0.5)
    Separable(l1=0.5, l2=0.0, lower=-inf, upper=inf, free=0)
    """
    given: dict[str, Any] = {
        name: bound for name, bound in (("lower", lower), ("upper", upper)) if bound is not None
    }
    if simplex is not None:
        if given or l1:
            raise ValueError(
                "simplex with l1, lower or upper: a point of the simplex has bounds and a fixed l1 "
                "norm already, "
                "expected simplex alone"
            )
        return Simplex(check.number(simplex, "simplex", above=0), free)
    l1 = check.number(l1, "l1", least=0)
    return Separable(l1=l1, free=free, **given) if l1 or given else None
