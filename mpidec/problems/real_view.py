"""Complex problems as real ones of rows twice as long: pairs of real and imaginary parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from .._complex import as_reals, from_reals, is_complex, squares
from .._validation import Array
from .._words import Described
from .agents import by_agents
from .base import Problem
from .members import is_checked, term_of, x_star_of
from .oracles import Gradients, Oracle, OracleLike, adapted
from .terms import Face, Separable, Term


class RealView(Described):
    r"""A complex problem as a real one, of rows :math:`(\mathrm{Re}\, x_1, \mathrm{Im}\, x_1,
    \mathrm{Re}\, x_2, \dots)`.

    With gradients g of the convention :math:`f(x + h) = f(x) + \mathrm{Re}\, g^* h + \dots`, the
    parts of g are the gradient with respect to those of x, so that both problems have the same
    iterates.  For what knows real rows only, such as `mpidec.simulate`; ``result.X.view(complex)``
    are the rows.

    Parameters
    ----------
    problem : Problem
        Complex: of d complex numbers.  The view of a `Stream`, or of another problem that is an
        oracle, too, is an oracle of the same samples; of other oracles, take those of the view,
        as in ``MiniBatch(RealView(problem), 8)``.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares, RealView
    >>> problem = RealView(LeastSquares([[[1j]]], [[2.0]]))
    >>> problem.d, problem.grad(np.zeros((1, 2)))
    (2, array([[0., 2.]]))
    """

    def __new__(cls, problem: Problem | None = None) -> RealView:
        return super().__new__(_RealStream if isinstance(problem, OracleLike) else cls)

    def __init__(self, problem: Problem) -> None:
        self._of, self.m, self.d = problem, problem.m, 2 * problem.d
        self.check = is_checked(problem)
        term = term_of(problem)
        self.term = None if term is None else _Pairs(term)
        self._some = by_agents(problem.grad, problem.m)

    def _extent(self) -> dict[str, object]:
        return {"m": self.m, "d": self.d}

    def __getattr__(self, name: str) -> Any:
        """Constants of the problem that are those of the view, such as `smoothness` and `n`."""
        if name not in (
            "n",
            "smoothness",
            "strong_convexity",
            "A",
            "y",
            "mask",
            "counts",
            "p",
            "sampled",
        ):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._of, name)

    @property
    def x_star(self) -> Any:
        """That of the problem, (2 d,), or the function of the step."""
        known: Any = getattr(self._of, "x_star", None)
        if callable(known):
            return lambda k: as_reals(np.asarray(x_star_of(self._of, k), complex))
        return None if known is None else as_reals(np.asarray(known, complex))

    def value(self, X: Array) -> Array:
        """Return f_i at row i, (m, 2 d) -> (m,)."""
        return self._of.value(from_reals(X))

    def grad(self, X: Array, agents: Sequence[int] | None = None) -> Array:
        """Return the gradient of f_i at row i, (m, 2 d) -> (m, 2 d); with `agents`, of these local
        agents.
        """
        Z = from_reals(X)
        G = self._of.grad(Z) if agents is None else self._some(Z, agents=agents)
        return _pairs(G, Z)

    @property
    def prox(self) -> Callable[..., Array]:
        """The proximal points of the functions, ``prox(V, t, start)``, if the problem has them."""
        inner: Callable[..., Array] = self._of.prox  # type: ignore[attr-defined]
        starts = "start" in inspect.signature(inner).parameters

        def prox(V: Array, t: float | Array, start: Array | None = None) -> Array:
            known = {"start": from_reals(start)} if starts and start is not None else {}
            return as_reals(inner(from_reals(V), t, **known))

        return prox

    def sample_grad(
        self, X: Array, rows: Array, weight: Array, agents: Sequence[int] | None = None
    ) -> Array:
        """Return a weighted gradient over selected samples, as `LinearModel.sample_grad`."""
        sample_grad: Callable[..., Array] = self._of.sample_grad  # type: ignore[attr-defined]
        return as_reals(sample_grad(from_reals(X), rows, weight, agents))


def _pairs(G: Array, Z: Array) -> Array:
    """Gradients at complex rows Z as pairs of reals, also those whose imaginary parts are zero."""
    return as_reals(np.asarray(G).astype(Z.dtype, copy=False))


def _real_gradients(source: Oracle, agents: Sequence[int], seed: int) -> Gradients:
    """Return the gradients of an oracle as pairs of reals."""
    inner = source.gradients(agents, seed)

    def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
        Z = from_reals(X)
        return _pairs(inner(Z, k, agents), Z)

    return Gradients(gradient, source.problem.m, inner)


class _RealStream(RealView):
    """A problem whose data arrive while it is solved: an oracle, and its own problem."""

    @property
    def problem(self) -> Problem:
        return self

    def start(self, agents: Sequence[int], seed: int) -> Gradients:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        return _real_gradients(adapted(self._of), agents, seed)


class _RealOracle(Oracle):
    """An oracle of complex gradients as one of their real and imaginary parts."""

    def __init__(self, source: OracleLike) -> None:
        self._inner = inner = adapted(source)
        self.problem = RealView(inner.problem)
        self.random, self.smooth = inner.random, inner.smooth
        self._term = None if inner.term is None else self.problem.term
        self.batches = None if inner.batches is None else _RealOracle(inner.batches)

    @property
    def term(self) -> Term | None:
        return self._term

    def start(self, agents: Sequence[int], seed: int) -> Gradients:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        return _real_gradients(self._inner, agents, seed)

    def layers(self) -> list[object]:
        """Return the oracles around the problem as they were given."""
        return self._inner.layers()


@overload
def real_view(given: OracleLike) -> Oracle: ...
@overload
def real_view(given: Problem) -> Problem: ...
def real_view(given: Problem | OracleLike) -> Problem | Oracle:
    """Return a complex problem as a real one, see `RealView`; and likewise an oracle of its
    gradients.

    Examples
    --------
    >>> from mpidec.problems import LeastSquares, Noisy
    >>> real_view(Noisy(LeastSquares([[[1j]]], [[2.0]]), 0.1)).problem.d
    2
    """
    return _RealOracle(given) if isinstance(given, OracleLike) else RealView(given)


def seen(problem: Problem | None, like: object) -> Problem | None:
    """Return the problem for callers that support real rows only: a `RealView` if the iterates
    `like` are complex.
    """
    return problem if problem is None or not is_complex(like) else RealView(problem)


@dataclass(frozen=True)
class _Pairs(Term):
    """A term of complex rows, at their real and imaginary parts."""

    term: Term

    @property
    def l2(self) -> float:  # type: ignore[override]
        return self.term.l2

    def value(self, X: Array) -> Array:
        return self.term.value(from_reals(X))

    def prox(self, V: Array, t: float | Array) -> Array:
        return as_reals(self.term.prox(from_reals(V), t))

    def subgradient(self, X: Array) -> Array:
        return as_reals(self.term.subgradient(from_reals(X)))

    def face(self, x: Array) -> Face:
        r"""Return the face that contains `x`: complex entries at 0 stay there; at others,
        :math:`\lambda_1 |x_j|` has the gradient :math:`\lambda_1 x_j / |x_j|`, and the curvature
        :math:`\lambda_1 / |x_j|` across it.
        """
        z, d = from_reals(x), len(x)
        held = np.zeros(len(z), bool)
        l1 = l2 = 0.0
        if isinstance(self.term, Separable):
            l1, l2 = self.term.l1, self.term.l2
            held[: len(z) - self.term.free] = True
        size = np.sqrt(squares(z))
        bent = held & (size > 0) & (l1 > 0)
        unit = np.where(bent, z / np.where(bent, size, 1.0), 0.0)
        across = np.zeros((len(z), d))
        across.reshape(len(z), len(z), 2)[np.arange(len(z)), np.arange(len(z))] = as_reals(
            1j * unit
        ).reshape(-1, 2)
        bend = across.T @ (across * np.where(bent, l1 / np.where(bent, size, 1.0), 0.0)[:, None])
        moving = np.repeat(~held | (size > 0) | (l1 == 0), 2)
        return Face(
            np.eye(d)[:, moving], l1 * as_reals(unit), np.repeat(held * l2, 2).astype(float), bend
        )

    def within(self, X: Array, P: Array) -> Array:
        """Return the rows of X, without the entries that point away from those of P."""
        Z = from_reals(X).copy()
        if isinstance(self.term, Separable) and self.term.l1:
            there = self.term.held(Z)
            there[(there * self.term.held(from_reals(P)).conj()).real < 0] = 0.0
        return as_reals(Z)
