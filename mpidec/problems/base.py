"""Problem protocol, and base class of the losses of linear models on the local agents' samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._complex import double, is_complex, squares
from .._predictions import AS_THEY_ARE, Given, LinearPredictor, decide
from .._sparse import (
    SMALL,
    Samples,
    SparseSamples,
    check_finite,
    is_sparse,
    largest_eigenvalue,
    samples,
    together,
    weighted_gram,
    zeroed,
)
from .._validation import Array
from .._words import Described, describe
from . import composite, newton, proximal
from .products import adjoint, times
from .terms import Term, checked_term

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator

ENTRIES = 2**22  # of the Hessians that are formed at once
# Largest number of unknowns for which the Hessian is formed.
DENSE = 2000
Model = TypeVar("Model", bound="LinearModel")


def rank_tolerance(A: Array) -> float:
    """Return the size, relative to the largest, up to which singular values of A are rounding
    errors of zero.

    Examples
    --------
    >>> rank_tolerance(np.ones((4, 2))) / 2.0**-52
    4.0
    """
    return float(max(A.shape) * np.finfo(np.float64).eps)


def row_space(A: Array) -> Array | None:
    """Return an orthonormal basis of the row space of A, (d, r), or None if the columns are
    linearly independent.

    Examples
    --------
    >>> row_space(np.ones((3, 2))).shape, row_space(np.eye(3, 2)) is None
    ((2, 1), True)
    """
    from scipy.linalg import qr

    R = qr(A, mode="r")[0][: A.shape[1]] if A.shape[0] > A.shape[1] else A
    S, Vt = np.linalg.svd(R, full_matrices=False)[1:]
    rank = np.count_nonzero(rank_tolerance(A) * S.max(initial=0.0) < S)
    return None if rank == A.shape[1] else np.asarray(Vt[:rank].T)


class Problem(Protocol):
    """Functions f_i of the local agents; row i of `X` is the point of local agent i.

    Optional members: ``smoothness`` (m,), ``strong_convexity`` (m,), ``prox(V, t)``,
    ``solution()``, ``concatenate(parts)``, ``term`` (a nonsmooth part of every f_i, whose gradient
    `grad` leaves out), ``metrics`` (a mapping of those that runs record beside the usual ones, see
    the argument of `mpidec.solve`), and ``grad(X, agents)``, the gradients of some local agents,
    one row of `X` for each, which asynchronous runs call with one agent at a time (without it, they
    evaluate the gradients of all local agents and take one row; see `mpidec.problems.agents`), and
    ``check``: False if `grad` is not to be compared with differences of `value` before a run.
    """

    def __repr__(self) -> str:
        return describe(self)

    @property
    def m(self) -> int:
        """Number of local agents; may be 0."""

    @property
    def d(self) -> int:
        """Length of a row of X."""

    @property
    def x_star(self) -> Array | Callable[[int], ArrayLike] | None:
        """Minimizer of the average of all agents' functions, shape (d,), or None if it is not
        known; a function of the step, if it moves.
        """

    def value(self, X: Array) -> Array:
        """Return f_i at row i, (m, d) -> (m,)."""

    def grad(self, X: Array) -> Array:
        """Return the gradient of f_i at row i, (m, d) -> (m, d)."""


class _Single:
    """Samples and targets of single agents, as views, which events ask for again and again."""

    def __init__(self) -> None:
        self._of: Samples | None = None  # the samples whose views are kept
        self._views: dict[int, tuple[Samples, Array]] = {}

    def of(self, agent: int, A: Samples, Y: Array) -> tuple[Samples, Array]:
        """Return those of one agent, of all `A` and `Y`."""
        if self._of is not A:
            self._of, self._views = A, {}
        if agent not in self._views:
            one = slice(agent, agent + 1)
            self._views[agent] = A[one], Y[one]
        return self._views[agent]


class LinearModel(Described):
    r"""Base class of all losses: a loss of a linear model, summed over each agent's samples, with a
    ridge.

    .. math:: f_i(x) = w \sum_s \ell(a_{is}^T x;\, y_{is}) + \frac{\lambda}{2} \|x\|^2 + r(x)

    A subclass defines `_loss`, `_slope` and `_curvature` as functions of the scores :math:`T = A
    x`, shape (m, p, c) with c = 1 except for Softmax (c classes), and `bound`, an upper bound of
    the curvature. `labels` says what targets it takes: "numbers", "signs" (-1 and +1) or "classes"
    (0, 1, 2, ...).

    Parameters
    ----------
    A, y : (m, p, features) and (m, p) arrays
        Samples and targets of the local agents.  `A` may be sparse, and remains so: a matrix (p,
        features) of scipy.sparse for each agent, in a list, or what `stack` makes of one.
    l2 : float
        Ridge :math:`\lambda \ge 0` of every agent. All n agents together have n times as much, so a
        given `l2` means another problem for another n; `load_problem(..., l2_total=...)` divides a
        total by n.
    mask : (m, p) array, optional
        True for samples, False for padding.
    x_star : (d,) array, optional
        Minimizer of the average over all agents.
    weight : float
        Factor :math:`w > 0` of the loss; n / N for N samples in all makes the average cost a mean
        over the samples.
    term : Term, optional
        Nonsmooth term r of every agent, such as `problems.l1(0.1)`. `grad` leaves it out; `value`,
        `prox` and `solution` include it.
    intercept : bool
        Whether the last feature is an intercept (a column of ones), which neither the ridge nor the
        term concerns.

    Notes
    -----
    All arithmetic is batched over the leading axis, one agent after the other, so an agent's
    results are bit-identical whichever other agents the process holds. Nothing is communicated.

    Data in float32 stay so: gradients and proximal points at float32 rows are float32, and `solve`
    iterates and sends float32. Values are summed in float64; minimizers and constants are computed
    in float64, and `solve` evaluates metrics at float64 points.  Complex data, which `LeastSquares`
    takes, stay complex64 or complex128 likewise.

    Examples
    --------
    A loss of your own, :math:`\sqrt{1 + r^2}`; ``load_problem("mine.csv", n=16, problem=Absolute)``
    fills it with data:

    >>> class Absolute(LinearModel):
    ...     bound = 1.0
    ...     def _loss(self, T, Y):
    ...         return np.sqrt(1 + (T - Y)[..., 0] ** 2)
    ...     def _slope(self, T, Y):
    ...         return (T - Y) / np.sqrt(1 + (T - Y) ** 2)
    ...     def _curvature(self, T, Y):
    ...         return ((1 + (T - Y) ** 2) ** -1.5)[:, :, None]
    >>> Absolute(np.ones((1, 3, 1)), [[0.0, 1.0, 2.0]]).solution().round(12)
    array([1.])
    """

    bound: ClassVar[float]
    targets_name: ClassVar[str] = "y"
    labels: ClassVar[str] = "numbers"
    # Whether samples and targets may be complex.
    complex_too: ClassVar[bool] = False
    given: Given = AS_THEY_ARE

    def __init__(
        self,
        A: ArrayLike,
        y: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        x_star: ArrayLike | None = None,
        l2: float = 0.0,
        weight: float = 1.0,
        term: Term | None = None,
        intercept: bool = False,
        **options: Any,
    ) -> None:
        self.A: Samples = samples(A, y if self.complex_too else None)
        self.y = check.targets(y, self.targets_name, self.A)
        self.mask = check.valid(mask, self.A)
        # Zero rows, so that padding adds nothing to any product.
        if self.mask is not None:
            self.A = zeroed(self.A, self.mask)
            self.y = np.where(self.mask, self.y, 0.0)
        check_finite(self.A, "A")
        check.finite(self.y, self.targets_name)
        self.l2 = check.number(l2, "l2", least=0)
        self.weight = check.number(weight, "weight", above=0)
        checked_term(term, self.A.dtype)
        self.intercept = bool(intercept)
        self._Y = self._encode(self.y)
        self._single = _Single()
        self.m, _, self.features = self.A.shape
        self.d = self.features * self._Y.shape[2]
        free = self._Y.shape[2] if self.intercept else 0
        self.term = replace(term, free=free) if free and term is not None else term  # type: ignore[type-var]
        self.options: dict[str, Any] = {
            "l2": self.l2,
            "weight": self.weight,
            "term": self.term,
            "intercept": self.intercept,
            **options,
        }
        self._penalty: float | Array = (
            self.l2 * (np.arange(self.d) < self.d - free) if free else self.l2
        )
        self.x_star = check.minimizer(x_star, self.d, is_complex(self.A))

    def _extent(self) -> dict[str, object]:
        few, many = (self.counts.min(), self.counts.max()) if self.m else (0, 0)
        samples = f"{few} to {many}" if few < many else self.p
        usual = {"l2": 0.0, "weight": 1.0, "term": None, "intercept": False, "dtype": np.float64}
        given = {**self.options, "dtype": self.dtype}
        others = {name: value for name, value in given.items() if value != usual.get(name)}
        return {"m": self.m, "p": samples, "d": self.d, **others}

    def _encode(self, y: Array) -> Array:
        """Return the targets as an array that matches the scores, (m, p) -> (m, p, c)."""
        return y[:, :, None]

    def _loss(self, T: Array, Y: Array) -> Array:
        """Return the loss of each sample, (..., c) -> (...)."""
        raise NotImplementedError

    def _slope(self, T: Array, Y: Array) -> Array:
        """Return the derivative of the loss with respect to the scores, (..., c) -> (..., c);
        may overwrite `T`.
        """
        raise NotImplementedError

    def _slope_terms(self, T: Array, Y: Array) -> Array:
        """Return the size of what rounding errors of `_slope` are relative to, (N, c) -> (N, c);
        may overwrite `T`.
        """
        return np.abs(self._slope(T, Y))

    def _curvature(self, T: Array, Y: Array) -> Array:
        """Return the second derivative of the loss with respect to the scores, (N, c) -> (N, c,
        c).
        """
        raise NotImplementedError

    @property
    def p(self) -> int:
        """Samples of an agent, with padding."""
        return int(self.A.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the data, float32 or float64 (complex64 or complex128 of complex data),
        which that of the iterates in `solve` follows.
        """
        return self.A.dtype

    # -- values and gradients ----------------------------------------------------------------------

    def _columns(self, X: Array, m: int | None = None) -> Array:
        m = self.m if m is None else m
        if X.shape != (m, self.d):
            raise ValueError(
                f"X has shape {X.shape}, expected {(m, self.d)}: one row per local agent"
            )
        return (
            X.reshape(m, self.features, -1) if m else X.reshape(0, self.features, self._Y.shape[2])
        )

    def value(self, X: Array) -> Array:
        """Return f_i at row i, (m, d) -> (m,)."""
        loss = self._loss(times(self.A, self._columns(X)), self._Y)
        if self.mask is not None:
            loss *= self.mask
        # A buffered sum depends on the row's place.
        total: Array = double(loss).sum(axis=1)
        if self.weight != 1:
            total *= self.weight
        if self.l2:
            X2 = squares(double(X))
            total = total + (
                0.5 * (self._penalty * X2).sum(axis=1)
                if self.intercept
                else 0.5 * self.l2 * X2.sum(axis=1)
            )
        return total if self.term is None else total + self.term.value(X)

    def grad(self, X: Array, agents: Sequence[int] | None = None) -> Array:
        """Return the gradient of f_i (without its term) at row i, (m, d) -> (m, d).

        With `agents`, local indices i: the gradients of these agents alone, one row of `X` for
        each.
        """
        if agents is None:
            return self._grad(X, self.A, self._Y, None)
        if len(agents) == 1:
            return self._grad(X, *self._single.of(agents[0], self.A, self._Y), None)
        some = list(agents)
        return self._grad(X, self.A[some], self._Y[some], None)

    def sample_grad(
        self, X: Array, rows: NDArray[np.intp], weight: Array, agents: Sequence[int] | None = None
    ) -> Array:
        r"""Return a weighted gradient over selected samples, :math:`w_i \sum_{s \in S_i} \nabla
        \ell_s(x_i) + \lambda x_i`.

        Parameters
        ----------
        X : (m, d) array
            One point per local agent.
        rows : (m, B) array of int
            Sample numbers of each agent, in 0..p-1.
        weight : (m,) array
            Factor :math:`w_i`. With the number of samples of the agent divided by B, the
            expectation over uniform draws is the full gradient.
        agents : sequence of int, optional
            The local agents that the rows of the other arguments belong to; by default all of them.
        """
        some = np.arange(self.m)[:, None] if agents is None else np.asarray(agents)[:, None]
        rows = np.ascontiguousarray(rows)  # the layout of what they select
        return self._grad(X, self.A[some, rows], self._Y[some, rows], weight)

    def slopes(
        self,
        X: Array,
        rows: NDArray[np.intp] | None = None,
        agents: Sequence[int] | None = None,
    ) -> Array:
        r"""Return the derivatives of the losses of selected samples with respect to their scores,
        (m, d) -> (m, B, c).

        The arguments are those of `sample_grad`; without `rows`, of all samples.  `from_slopes`
        makes gradients of them.
        """
        A, Y = self._selected(rows, agents)
        R = self._slope(times(A, self._columns(X, len(A))), Y)
        return R if self.weight == 1 else R * self.weight

    def from_slopes(
        self,
        R: Array,
        rows: NDArray[np.intp] | None = None,
        agents: Sequence[int] | None = None,
    ) -> Array:
        r"""Return :math:`A_i^* R_i`, (m, B, c) -> (m, d): of the derivatives of all samples, the
        gradient without the ridge.
        """
        A = self._selected(rows, agents)[0]
        return np.asarray(adjoint(A, R).reshape(len(A), self.d))

    def _selected(
        self, rows: NDArray[np.intp] | None, agents: Sequence[int] | None
    ) -> tuple[Samples, Array]:
        if rows is None and agents is None:
            return self.A, self._Y
        some = np.arange(self.m) if agents is None else np.asarray(agents)
        at = (some,) if rows is None else (some[:, None], rows)
        return self.A[at], self._Y[at]

    def ridge_grad(self, X: Array) -> Array:
        r"""Return the gradient of the ridge at every row, :math:`\lambda x`, (m, d) -> (m, d)."""
        return np.asarray(self._penalty * X) if self.l2 else np.zeros_like(X)

    def _grad(self, X: Array, A: Samples, Y: Array, weight: Array | None) -> Array:
        if isinstance(A, SparseSamples):
            self._columns(X, len(A))
            return self._sparse_grad(X, A, Y, weight)
        R = self._slope(times(A, self._columns(X, len(A))), Y)
        if weight is not None or self.weight != 1:
            R = self._scaled(R, weight)
        G = adjoint(A, R).reshape(X.shape)
        if self.l2:
            G += self._penalty * X
        return G

    def _sparse_grad(self, X: Array, A: SparseSamples, Y: Array, weight: Array | None) -> Array:
        """As `_grad`, one agent after the other, so that its rows of X and G stay in the cache."""
        G = np.empty(X.shape, np.result_type(X, A.dtype))
        A = A.astype(G.dtype, copy=False)
        for i in range(len(A)):
            one = slice(i, i + 1)
            if self.l2:
                np.multiply(self._penalty, X[one], out=G[one])
            else:
                G[one] = 0.0
            own = None if weight is None else weight[one]
            R = self._slope(times(A[one], self._columns(X[one], 1)), Y[one])
            A[one].adjoint(self._scaled(R, own), self._columns(G[one], 1))
        return G

    def _scaled(self, R: Array, weight: Array | None) -> Array:
        """Multiply the derivatives with respect to the scores by the factors of the losses."""
        if weight is not None:
            R *= weight[:, None, None]
        if self.weight != 1:
            R *= self.weight
        return R

    # -- predictions -------------------------------------------------------------------------------

    @property
    def predictor(self) -> LinearPredictor:
        """The model, but for its unknowns."""
        return LinearPredictor(
            self.labels, self.features, self.intercept, self.complex_too, self.given
        )

    @cached_property
    def test(self) -> LinearModel | None:
        """The functions of the held-out samples, as those of one agent."""
        if self.given.test is None:
            return None
        A, y = self.given.test
        S = self.samples(A)
        return type(self)([S] if is_sparse(S) else S[None], y[None], **self.options)

    @property
    def held_out(self) -> tuple[Array | csr_array, NDArray[Any]] | None:
        """The held-out samples and their targets, or labels, as given; None without any."""
        return self.predictor.held_out

    def samples(self, A: ArrayLike | csr_array) -> Array | csr_array:
        """Return samples as given as those of the problem: scaled, and with the intercept, whose
        column of ones may be left out, (N, features or one less) -> (N, features).  Sparse ones
        remain sparse.
        """
        return self.predictor.samples(A)

    def predict(self, x: Array, A: ArrayLike | csr_array) -> NDArray[Any]:
        """Return what the model `x` predicts for samples as given: targets, or labels as given,
        (d,), (N, features) -> (N,).

        Raises
        ------
        ValueError
            If the samples have other features.

        Examples
        --------
        >>> from mpidec.problems import load_problem
        >>> problem = load_problem(
        ...     ([[0.0], [1.0], [3.0]], ["ill", "ill", "well"]), n=1, intercept=True, l2=0.01
        ... )
        >>> problem.predict(problem.x_star, [[0.5], [2.5]]).tolist()
        ['ill', 'well']
        """
        return self.predictor.predict(x, A)

    def score(self, x: Array, A: ArrayLike | csr_array, y: ArrayLike) -> float:
        r"""Return the accuracy of `predict`, or the :math:`R^2` of targets that are no labels,

        .. math:: 1 - \textstyle\sum_s |y_s - \hat y_s|^2 \,/\, \sum_s |y_s - \bar y|^2.

        Raises
        ------
        ValueError
            If there is not one target per sample, or none, or names of classes stand for numbers.
        """
        return self.predictor.score(x, A, y)

    @property
    def metrics(self) -> dict[str, Callable[[Array, range, int], Array]]:
        """Of each agent's model on the held-out samples, if there are some: the mean loss, and the
        accuracy of labels, by name.
        """
        test = self.test
        if test is None:
            return {}

        def scores(X: Array) -> Iterator[Array]:
            return (test.A[0] @ x.reshape(test.features, -1) for x in X)

        def loss(X: Array, agents: range, k: int) -> Array:
            return np.array([test._loss(T, test._Y[0]).mean() for T in scores(X)])

        def accuracy(X: Array, agents: range, k: int) -> Array:
            return np.array([(decide(T, self.labels) == test.y[0]).mean() for T in scores(X)])

        named = {} if self.labels == "numbers" else {"accuracy": accuracy}
        return {**named, "test_loss": loss}

    # -- constants ---------------------------------------------------------------------------------

    @property
    def counts(self) -> NDArray[np.intp]:
        """Number of samples of each local agent, (m,)."""
        return np.full(self.m, self.p) if self.mask is None else self.mask.sum(axis=1)

    @cached_property
    def _spectrum(self) -> Array:
        """Largest min(p, features) eigenvalues of each A_i^* A_i, ascending (all others are 0), of
        dense samples.
        """
        A = double(np.asarray(self.A))
        if self.features <= self.p:
            return np.asarray(np.linalg.eigvalsh(adjoint(A, A)))
        return np.asarray(np.linalg.eigvalsh(times(A, A.conj().transpose(0, 2, 1))))

    @cached_property
    def _largest(self) -> Array:
        """Largest eigenvalue of each A_i^* A_i, (m,)."""
        if isinstance(A := self.A, SparseSamples):
            return np.array([largest_eigenvalue(one) for one in A])
        return np.asarray(self._spectrum[:, -1])

    @property
    def smoothness(self) -> Array:
        r"""Smoothness constants :math:`L_i = \beta\, \lambda_{\max}(A_i^T A_i) + \lambda`, (m,)."""
        return self.weight * self.bound * self._largest + self.l2

    @property
    def strong_convexity(self) -> Array:
        r"""Lower bounds :math:`\mu_i` of the curvature of f_i, (m,): the ridge :math:`\lambda`,
        or 0 with an intercept.
        """
        return np.full(self.m, 0.0 if self.intercept else self.l2)

    # -- minimizers --------------------------------------------------------------------------------

    def solution(self) -> Array:
        """Return the minimizer of the average of the local f_i, (d,), computed by scipy to rounding
        accuracy.

        If columns of the data are linearly dependent, and there is neither a ridge nor a term, it
        lies in the row space of the data, as the iterates of gradient methods from zero do: of the
        minimizers with these scores, it has the least norm.

        Of sparse samples with more than 2^20 entries, zeros included, it is the limit of a Krylov
        method from zero, which takes products with the samples alone.

        Raises
        ------
        ValueError
            If there are no local agents, or there is no finite minimizer.
        """
        A, Y = self._pooled()
        unique = self.l2 or self.term is not None or is_sparse(A)
        V = None if unique else row_space(A)
        if V is None:
            x0 = np.zeros(self.d)
            return self._minimize(A, Y, self.m * self._penalty, x0, x0, self.m)
        z0 = np.zeros(V.shape[1] * Y.shape[1])
        z = self._minimize(A @ V, Y, 0.0, z0, z0, self.m)
        return np.asarray(V @ z.reshape(V.shape[1], -1)).ravel()  # x = V z

    def _pooled(self) -> tuple[Array | csr_array, Array]:
        """Return the samples and targets of all local agents together, for a solution; sparse
        samples only if they are large.
        """
        if not self.m:
            raise ValueError(
                "no local agents, so there is no solution: concatenate the problems of all ranks "
                "first"
            )
        Y = double(self._Y.reshape(-1, self._Y.shape[2]))
        if isinstance(self.A, SparseSamples) and self.m * self.p * self.features > SMALL:
            return double(self.A.rows), Y
        A = self.A.toarray() if isinstance(self.A, SparseSamples) else self.A
        return double(A.reshape(-1, self.features)), Y

    def prox(self, V: Array, t: float | Array, start: Array | None = None) -> Array:
        r"""Return :math:`\arg\min_x f_i(x) + \|x - v_i\|^2 / (2t)` at row i, (m, d) -> (m, d), by
        Newton's method.

        `t` > 0 is one number or one per local agent, (m,).  The method begins at `start`, (m, d),
        or else at `V`.
        """
        t = self._steps(t)
        X, V = np.empty_like(V), V.astype(np.float64, copy=False)
        start = V if start is None else start.astype(np.float64, copy=False)
        A, Y = self.A.astype(np.float64, copy=False), self._Y.astype(np.float64, copy=False)
        found = np.zeros(self.m, bool)
        few = self.d <= DENSE and (isinstance(A, np.ndarray) or self.p * self.features <= SMALL)
        many = max(1, ENTRIES // self.d**2) if few else 0
        for first in range(0, self.m if many else 0, many or 1):
            some = slice(first, first + many)
            dense = A[some].toarray() if isinstance(A, SparseSamples) else A[some]
            X[some], found[some] = self._proximal(
                dense, Y[some], V[some], t[some], self._largest[some], start[some]
            )
        for i in np.flatnonzero(~found):
            X[i] = self._minimize(A[i].copy(), Y[i], self._penalty + 1 / t[i], V[i] / t[i], V[i], 1)
        return X

    def _proximal(
        self, A: Array, Y: Array, V: Array, t: Array, largest: Array, start: Array
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return the proximal points of some agents, and which of them are accurate."""
        ridge, pull, w = self._penalty + 1 / t[:, None], V / t[:, None], self.weight
        classes = Y.shape[2]

        def value(X: Array, rows: NDArray[np.intp]) -> Array:
            loss = self._loss(times(A[rows], X.reshape(len(X), -1, classes)), Y[rows]).sum(axis=1)
            total: Array = w * loss + (X * (0.5 * ridge[rows] * X - pull[rows])).sum(axis=1)
            return total if self.term is None else total + self.term.value(X)

        def grad(X: Array, rows: NDArray[np.intp]) -> tuple[Array, Array]:
            At = A[rows]
            R = self._slope(times(At, X.reshape(len(X), -1, classes)), Y[rows])
            G = w * adjoint(At, R).reshape(X.shape)
            parts = np.stack([G, ridge[rows] * X, -pull[rows]])
            return parts.sum(axis=0), np.sqrt((parts * parts).sum(axis=2)).sum(axis=0)

        def hess(X: Array, rows: NDArray[np.intp]) -> Array:
            At = A[rows]
            T = times(At, X.reshape(len(X), -1, classes))
            C = self._curvature(T.reshape(-1, classes), Y[rows].reshape(-1, classes))
            C = w * C.reshape(*T.shape, classes)
            k, d = len(X), X.shape[1]
            H: Array = np.empty((k, self.features, classes, self.features, classes))
            for c in range(classes):
                for e in range(c + 1):
                    H[:, :, c, :, e] = H[:, :, e, :, c] = adjoint(At, C[:, :, c, e, None] * At)
            return H.reshape(k, d, d) + ridge[rows][:, :, None] * np.eye(d)

        bound = w * self.bound * largest + np.max(self._penalty) + 1 / t
        return proximal.minimize(value, grad, hess, bound, self.term, start)

    def _steps(self, t: float | Array) -> Array:
        t = np.broadcast_to(np.asarray(t, dtype=np.float64), (self.m,))
        if not (t > 0).all():
            raise ValueError(f"t = {t}, expected numbers > 0")
        return t

    def _minimize(
        self,
        A: Array | csr_array,
        Y: Array,
        ridge: float | Array,
        pull: Array,
        x0: Array,
        agents: int,
    ) -> Array:
        """Minimize weight sum_s loss(a_s x; y_s) + x^T diag(ridge) x / 2 - <pull, x> + agents *
        term(x), A (N, features).
        """
        size, shape = abs(A.T), (A.shape[1], Y.shape[1])
        if self.weight != 1:
            ridge, pull = ridge / self.weight, pull / self.weight

        def scores(x: Array) -> Array:
            return np.asarray(A @ x.reshape(shape))

        def value(x: Array) -> float:
            squares = 0.5 * ridge * (x @ x) if np.ndim(ridge) == 0 else 0.5 * (ridge * x) @ x
            return float(self._loss(scores(x), Y).sum() + squares - pull @ x)

        def grad(x: Array) -> Array:
            return np.asarray((A.T @ self._slope(scores(x), Y)).ravel() + ridge * x - pull)

        def hess(x: Array) -> Array | LinearOperator:
            C = self._curvature(scores(x), Y)
            # With many unknowns the Hessian is only applied to vectors, and where sparse samples
            # alone determine it, so that the method stays in their row space.
            if x.size > DENSE or (is_sparse(A) and not np.any(ridge)):
                return newton.operator(
                    x.size,
                    lambda v: (A.T @ np.einsum("sce,se->sc", C, scores(v))).ravel() + ridge * v,
                )
            H = np.empty((*shape, *shape))
            for c in range(shape[1]):
                for e in range(c + 1):
                    H[:, c, :, e] = H[:, e, :, c] = weighted_gram(A, C[:, c, e])
            return np.asarray(H.reshape(x.size, x.size) + ridge * np.eye(x.size))

        # The size of the terms that cancel in the gradient: rounding errors are relative to it.
        def scale(x: Array) -> float:
            terms = (
                (size @ self._slope_terms(scores(x), Y)).ravel() + ridge * np.abs(x) + np.abs(pull)
            )
            return float(np.linalg.norm(terms))

        if self.term is None:
            return newton.minimize(value, grad, hess, scale, x0)
        norm2 = largest_eigenvalue(A) if is_sparse(A) else float(np.linalg.norm(A, 2)) ** 2
        largest = self.bound * norm2 + float(np.max(ridge))
        return composite.minimize(
            value, grad, hess, scale, x0, largest, term=self.term, factor=agents / self.weight
        )

    # -- several processes -------------------------------------------------------------------------

    @classmethod
    def concatenate(cls: type[Model], parts: Sequence[Model]) -> Model:
        """Return a single problem with the agents of all `parts`, in order (for example, parts from
        several ranks).

        Raises
        ------
        ValueError
            If `parts` is empty, or they differ in samples per agent, features or parameters.
        """
        if not parts:
            raise ValueError("concatenate needs at least one problem")
        first = parts[0]
        for r, part in enumerate(parts):
            mine, theirs = (first.A.shape[1:], first.options), (part.A.shape[1:], part.options)
            if mine != theirs:
                raise ValueError(
                    f"part {r} has samples and features {theirs[0]} and parameters {theirs[1]}, "
                    f"expected {mine[0]} and {mine[1]} as in part 0"
                )
        masks = [np.ones(part.y.shape, bool) if part.mask is None else part.mask for part in parts]
        mask = None if all(part.mask is None for part in parts) else np.concatenate(masks)
        return cls(
            together([part.A for part in parts]),
            np.concatenate([part.y for part in parts]),
            mask=mask,
            x_star=first.x_star,
            **first.options,
        )
