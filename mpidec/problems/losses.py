"""Losses: least squares, logistic, softmax (cross entropy) and Huber."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._complex import as_reals, double, from_reals, is_complex, squares
from .._sparse import SparseSamples, is_sparse, parts_of, smallest_eigenvalue
from .._validation import Array
from ..protocols import Sample
from .base import DENSE, LinearModel, rank_tolerance
from .products import adjoint, times
from .real_view import RealView
from .terms import Term


class LeastSquares(LinearModel):
    r"""Linear least squares.

    .. math:: f_i(x) = \tfrac12 \|A_i x - b_i\|^2 + \tfrac{\lambda}{2} \|x\|^2, \qquad
              \nabla f_i(x) = A_i^* (A_i x - b_i) + \lambda x

    Samples and targets may be complex, and then x is: :math:`A_i^*` is the conjugate transpose, and
    the gradient g that with :math:`f_i(x + h) = f_i(x) + \mathrm{Re}\, g^* h + \dots`

    Parameters
    ----------
    A : (m, p, d) array, or sparse (see :class:`LinearModel`)
        Samples of the local agents; not copied if contiguous, float32 or float64 (complex64 or
        complex128), and without a mask.
    b : (m, p) array
        Targets.
    l2 : float
        Ridge :math:`\lambda \ge 0` of every agent (n agents together have n times as much, see
        :class:`LinearModel`).
    mask : (m, p) array, optional
        True for samples, False for padding (of agents with fewer samples than `p`).
    x_star : (d,) array, optional
        Minimizer of the average over all agents, if it is known.
    weight, term, intercept
        Factor of the loss, nonsmooth term, and whether the last feature is an intercept; see
        :class:`LinearModel`.

    Raises
    ------
    ValueError, TypeError
        If shapes do not match, or a number is not finite.

    Notes
    -----
    Nothing is communicated.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares
    >>> problem = LeastSquares(np.ones((2, 3, 1)), [[1, 2, 3], [4, 5, 6]])
    >>> problem.grad(np.zeros((2, 1))).ravel()
    array([ -6., -15.])
    >>> problem.solution()
    array([3.5])
    >>> LeastSquares([[[1 + 1j]]], [[4.0]]).solution().round(9)
    array([2.-2.j])
    """

    bound = 1.0
    targets_name = "b"
    complex_too = True

    def __init__(
        self,
        A: ArrayLike,
        b: ArrayLike,
        l2: float = 0.0,
        *,
        mask: ArrayLike | None = None,
        x_star: ArrayLike | None = None,
        weight: float = 1.0,
        term: Term | None = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(
            A, b, mask=mask, x_star=x_star, l2=l2, weight=weight, term=term, intercept=intercept
        )

    @property
    def b(self) -> Array:
        """Targets, (m, p)."""
        return self.y

    def sample(self, rows: NDArray[np.intp] | None = None) -> Sample:
        """Return the samples as measurements y = A x + v with noise of the variance 1 / weight:
        those of the numbers `rows`, (m, B), or all.

        Raises
        ------
        ValueError
            If there is a ridge, which is no sample.
        """
        if self.l2:
            raise ValueError(
                f"LeastSquares: l2 is {self.l2:g}, which is no sample: take l2=0, and the "
                "parameter regularization of the solver"
            )
        A, b = self.A, self.y
        if not isinstance(A, np.ndarray):
            raise ValueError("LeastSquares: A is sparse, expected dense samples: A.toarray()")
        if rows is not None:
            some = np.arange(self.m)[:, None]
            A, b = A[some, rows], b[some, rows]
        p = A.shape[1]
        return Sample(A, b, np.tile(np.eye(p) / self.weight, (self.m, 1, 1)))

    def _loss(self, T: Array, Y: Array) -> Array:
        R = (T - Y)[..., 0]
        return 0.5 * squares(R) if is_complex(R) else 0.5 * R * R

    def _slope(self, T: Array, Y: Array) -> Array:
        T -= Y
        return T

    def _slope_terms(self, T: Array, Y: Array) -> Array:
        # Targets that are met exactly leave a difference of rounding errors.
        return np.asarray(np.abs(T) + np.abs(Y))

    def _curvature(self, T: Array, Y: Array) -> Array:
        return np.ones((*T.shape, 1))

    @property
    def strong_convexity(self) -> Array:
        r"""Smallest curvatures :math:`\mu_i = w \lambda_{\min}(A_i^* A_i) + \lambda`, (m,), or
        without :math:`\lambda`; of sparse samples with more than 2,000 features,
        :math:`\lambda`.
        """
        least = np.zeros(self.m)
        if self.features <= self.p and isinstance(self.A, np.ndarray):
            least = self._spectrum[:, 0].clip(min=0.0)
        elif self.features <= min(self.p, DENSE):
            least = np.array([smallest_eigenvalue(one) for one in self.A]).clip(min=0.0)
        return np.asarray(self.weight * least + (0.0 if self.intercept else self.l2))

    @cached_property
    def _view(self) -> LeastSquares:
        """The same functions of real and imaginary parts, as `RealView`."""
        term = None if self.term is None else RealView(self).term
        view = LeastSquares(
            parts_of(self.A),
            as_reals(self.y),
            self.l2,
            weight=self.weight,
        )
        view.term, view.intercept = term, self.intercept
        view._penalty = np.repeat(self._penalty, 2) if np.ndim(self._penalty) else self._penalty
        return view

    def solution(self) -> Array:
        """Return the minimizer (of least norm) of the average of the local f_i, (d,), by
        scipy.linalg.lstsq.
        """
        from scipy.linalg import lstsq

        if self.term is not None:
            return from_reals(self._view.solution()) if is_complex(self.A) else super().solution()
        A, b = self._pooled()
        if is_sparse(A):
            return from_reals(self._view.solution()) if is_complex(A) else super().solution()
        if self.l2:
            A = np.vstack([A, np.sqrt(self.m * self._penalty / self.weight) * np.eye(self.d)])
            b = np.vstack([b, np.zeros((self.d, 1))])
        # scipy's default, eps, takes rounding errors for curvature.
        cond = rank_tolerance(A)
        if np.linalg.norm(A.conj().T @ b) <= cond * np.linalg.norm(np.abs(A.T) @ np.abs(b)):
            return np.zeros(self.d, A.dtype)  # where the gradient vanishes up to rounding
        x = lstsq(A, b, cond)[0]
        x += lstsq(A, b - A @ x, cond)[0]  # one step of iterative refinement
        return np.asarray(x[:, 0])

    @cached_property
    def _factors(self) -> tuple[Array, Array, Array]:
        U, S, Vt = np.linalg.svd(double(np.asarray(self.A)), full_matrices=False)
        return S, Vt, S * adjoint(U, double(self._Y))[..., 0]

    def prox(self, V: Array, t: float | Array, start: Array | None = None) -> Array:
        r"""Return :math:`(A_i^* A_i + (\lambda + 1/t) I)^{-1} (A_i^* b_i + v_i / t)` at row i, (m,
        d) -> (m, d).

        `t` > 0 is one number or one per local agent, (m,). The singular value decomposition is
        computed once; of sparse samples there is none, and the points are found as those of other
        losses.
        """
        if (
            self.term is not None
            or (self.intercept and self.l2)
            or isinstance(self.A, SparseSamples)
        ):
            if is_complex(self.A):
                begin = None if start is None else as_reals(start)
                return from_reals(self._view.prox(as_reals(V), t, begin))
            return super().prox(V, t, start)
        t = self._steps(t)[:, None] * self.weight
        S, Vt, Sb = self._factors
        ridge, pull = self.l2 / self.weight + 1 / t, V / t
        inside = times(Vt, pull[:, :, None])[..., 0]
        coordinates = (Sb + inside) / (S * S + ridge)
        # Component of v_i outside the row space of A_i.
        if self.features > self.p:
            coordinates -= inside / ridge
        X: Array = adjoint(Vt, coordinates[:, :, None])[..., 0]
        if self.features > self.p:
            X += pull / ridge
        return X.astype(V.dtype, copy=False)


class LogisticRegression(LinearModel):
    r"""Logistic regression for labels -1 and +1.

    .. math:: f_i(x) = \sum_s \log(1 + e^{-y_{is} a_{is}^T x}) + \tfrac{\lambda}{2} \|x\|^2

    There is no intercept. To include one, append a column of ones to `A` and pass
    ``intercept=True``.

    Parameters
    ----------
    A : (m, p, d) array, or sparse (see :class:`LinearModel`)
        Samples of the local agents; not copied if contiguous, float32 or float64, and without a
        mask.
    y : (m, p) array
        Labels, -1 or +1; :func:`mpidec.problems.signs` converts any two values.
    l2 : float
        Ridge :math:`\lambda \ge 0` of every agent (n agents together have n times as much, see
        :class:`LinearModel`).
    mask : (m, p) array, optional
        True for samples, False for padding (of agents with fewer samples than `p`).
    x_star : (d,) array, optional
        Minimizer of the average over all agents, if it is known.
    weight, term, intercept
        Factor of the loss, nonsmooth term, and whether the last feature is an intercept; see
        :class:`LinearModel`.

    Raises
    ------
    ValueError, TypeError
        If shapes do not match, a number is not finite, or a label is neither -1 nor +1.

    Notes
    -----
    Nothing is communicated. :math:`L_i = \lambda_{\max}(A_i^T A_i) / 4 + \lambda`.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LogisticRegression
    >>> problem = LogisticRegression([[[1.0], [2.0]]], [[-1, 1]], l2=0.1)
    >>> problem.grad(np.zeros((1, 1)))
    array([[-0.5]])
    """

    bound = 0.25
    labels = "signs"

    def __init__(
        self,
        A: ArrayLike,
        y: ArrayLike,
        l2: float = 0.0,
        *,
        mask: ArrayLike | None = None,
        x_star: ArrayLike | None = None,
        weight: float = 1.0,
        term: Term | None = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(
            A, y, mask=mask, x_star=x_star, l2=l2, weight=weight, term=term, intercept=intercept
        )

    def _encode(self, y: Array) -> Array:
        wrong = (np.abs(y) != 1.0) if self.mask is None else (np.abs(y) != 1.0) & self.mask
        if wrong.any():
            i, s = np.argwhere(wrong)[0]
            raise ValueError(
                f"y has the label {y[i, s]:g} at local agent {i}, row {s}, expected -1 and +1 (the "
                "labels "
                f"are {check.some(np.unique(y))}; problems.signs(y) converts any two values, "
                "Softmax "
                "accepts more)"
            )
        return -y[:, :, None]

    def _loss(self, T: Array, Y: Array) -> Array:
        return np.logaddexp(0.0, (T * Y)[..., 0])

    def _slope(self, T: Array, Y: Array) -> Array:
        from scipy.special import expit  # imported on use: it takes 0.1 s

        T *= Y
        expit(T, out=T)
        T *= Y
        return T

    def _curvature(self, T: Array, Y: Array) -> Array:
        from scipy.special import expit

        return np.asarray((expit(T) * expit(-T))[:, :, None])


class Softmax(LinearModel):
    r"""Multinomial logistic regression (cross entropy of a softmax).

    .. math:: f_i(x) = \sum_s \Bigl(\log \sum_c e^{a_{is}^T x_c} - a_{is}^T x_{y_{is}}\Bigr)
              + \tfrac{\lambda}{2} \|x\|^2

    A row of X is the flattened (features, classes) matrix of the :math:`x_c`. There is no
    intercept.

    Parameters
    ----------
    A : (m, p, features) array, or sparse (see :class:`LinearModel`)
        Samples of the local agents; not copied if contiguous, float32 or float64, and without a
        mask.
    y : (m, p) array of int
        Class numbers, 0 .. `classes` - 1; :func:`mpidec.problems.class_numbers` converts any
        values.
    classes : int, optional
        Number of classes. By default the largest label present plus one, at least 2; pass it if a
        process holds only some of the agents.
    l2 : float
        Ridge :math:`\lambda \ge 0` of every agent (n agents together have n times as much). Without
        a ridge, the minimizer is unique only up to adding the same vector to all :math:`x_c`, and
        with one the intercepts are, up to adding the same number to all; :meth:`solution` returns
        the one with :math:`\sum_c x_c = 0` there, a property that gradient iterations from zero
        preserve.
    mask : (m, p) array, optional
        True for samples, False for padding (of agents with fewer samples than `p`).
    x_star : (d,) array, optional
        Minimizer of the average over all agents, if it is known.
    weight, term, intercept
        Factor of the loss, nonsmooth term, and whether the last feature is an intercept; see
        :class:`LinearModel`.

    Raises
    ------
    ValueError, TypeError
        If shapes do not match, a number is not finite, or a label is not a class number.

    Notes
    -----
    Nothing is communicated. :math:`L_i = \lambda_{\max}(A_i^T A_i) / 2 + \lambda`.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Softmax
    >>> problem = Softmax(np.ones((1, 2, 1)), [[0, 2]], classes=3)
    >>> problem.d, problem.value(np.zeros((1, 3))).round(3)
    (3, array([2.197]))
    """

    bound = 0.5
    labels = "classes"

    def __init__(
        self,
        A: ArrayLike,
        y: ArrayLike,
        classes: int | None = None,
        l2: float = 0.0,
        *,
        mask: ArrayLike | None = None,
        x_star: ArrayLike | None = None,
        weight: float = 1.0,
        term: Term | None = None,
        intercept: bool = False,
    ) -> None:
        self.classes = None if classes is None else check.integer(classes, "classes", least=2)
        super().__init__(
            A, y, mask=mask, x_star=x_star, l2=l2, weight=weight, term=term, intercept=intercept
        )
        self.options["classes"] = self.classes

    def solution(self) -> Array:
        """Return the minimizer of the average of the local f_i, (d,), with sum_c x_c = 0 in the
        features without a penalty.

        Raises
        ------
        ValueError
            If there are no local agents, or there is no finite minimizer.
        """
        X = super().solution().reshape(self.features, -1)
        free = (np.broadcast_to(self._penalty, self.d).reshape(X.shape) == 0).all(axis=1)
        if self.term is not None:  # it leaves the intercept alone
            free[: self.features - self.intercept] = False
        X[free] -= X[free].mean(axis=1, keepdims=True)
        return X.ravel()

    def _encode(self, y: Array) -> Array:
        if self.classes is None:
            if not y.size:
                raise ValueError(
                    "the number of classes is unknown without samples, expected the argument "
                    "classes=C"
                )
            self.classes = max(int(y.max()) + 1, 2)
        wrong = (y != np.floor(y)) | (y < 0) | (y >= self.classes)
        if wrong.any():
            i, s = np.argwhere(wrong)[0]
            raise ValueError(
                f"y has the label {y[i, s]:g} at local agent {i}, row {s}, expected integers "
                f"0 .. {self.classes - 1} (problems.class_numbers(y) converts any values)"
            )
        return np.asarray(y[:, :, None] == np.arange(self.classes), dtype=self.A.dtype)

    def _loss(self, T: Array, Y: Array) -> Array:
        top = T.max(axis=-1)
        T = T - top[..., None]
        return np.asarray(np.log(np.exp(T).sum(axis=-1)) - (T * Y).sum(axis=-1))

    def _slope(self, T: Array, Y: Array) -> Array:
        T -= T.max(axis=-1, keepdims=True)
        np.exp(T, out=T)
        T /= T.sum(axis=-1, keepdims=True)
        T -= Y
        return T

    def _curvature(self, T: Array, Y: Array) -> Array:
        P = self._slope(T, np.zeros(1))
        return P[:, :, None] * (np.eye(P.shape[1]) - P[:, None, :])


class Huber(LinearModel):
    r"""Linear regression with the Huber loss: quadratic near zero, linear for outliers.

    .. math:: f_i(x) = \sum_s h_\delta(a_{is}^T x - b_{is}) + \tfrac{\lambda}{2} \|x\|^2, \qquad
              h_\delta(r) = \begin{cases} r^2/2 & |r| \le \delta \\ \delta |r| - \delta^2/2 & |r| > \delta\end{cases}

    Parameters
    ----------
    A : (m, p, d) array, or sparse (see :class:`LinearModel`)
        Samples of the local agents; not copied if contiguous, float32 or float64, and without a
        mask.
    b : (m, p) array
        Targets.
    delta : float
        Residual, > 0, beyond which the loss is linear, in the units of `b`.
    l2 : float
        Ridge :math:`\lambda \ge 0` of every agent (n agents together have n times as much, see
        :class:`LinearModel`).
    mask : (m, p) array, optional
        True for samples, False for padding (of agents with fewer samples than `p`).
    x_star : (d,) array, optional
        Minimizer of the average over all agents, if it is known.
    weight, term, intercept
        Factor of the loss, nonsmooth term, and whether the last feature is an intercept; see
        :class:`LinearModel`.

    Raises
    ------
    ValueError, TypeError
        If shapes do not match, a number is not finite, or `delta` is not > 0.

    Notes
    -----
    Nothing is communicated. :math:`L_i = \lambda_{\max}(A_i^T A_i) + \lambda`.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Huber
    >>> Huber(np.ones((1, 3, 1)), [[0.5, -0.5, 9.0]]).grad(np.zeros((1, 1)))
    array([[-1.]])
    """

    bound = 1.0
    targets_name = "b"

    def __init__(
        self,
        A: ArrayLike,
        b: ArrayLike,
        delta: float = 1.0,
        l2: float = 0.0,
        *,
        mask: ArrayLike | None = None,
        x_star: ArrayLike | None = None,
        weight: float = 1.0,
        term: Term | None = None,
        intercept: bool = False,
    ) -> None:
        self.delta = check.number(delta, "delta", above=0)
        super().__init__(
            A,
            b,
            mask=mask,
            x_star=x_star,
            l2=l2,
            weight=weight,
            term=term,
            intercept=intercept,
            delta=self.delta,
        )

    @property
    def b(self) -> Array:
        """Targets, (m, p)."""
        return self.y

    def _loss(self, T: Array, Y: Array) -> Array:
        R = (T - Y)[..., 0]
        # h(r) = c (r - c/2) with c = clip(r).
        C = R.clip(-self.delta, self.delta)
        return C * (R - 0.5 * C)

    def _slope(self, T: Array, Y: Array) -> Array:
        T -= Y
        return np.clip(T, -self.delta, self.delta, out=T)

    def _curvature(self, T: Array, Y: Array) -> Array:
        return (np.abs(T - Y) <= self.delta).astype(np.float64)[:, :, None]
