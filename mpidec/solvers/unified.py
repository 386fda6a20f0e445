"""The decentralized methods whose matrices are polynomials in W, as one recursion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.polynomial import polynomial

from .. import _validation as check
from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import Solver, disagreement, name_of, zeros
from .step_schedules import StepSize

Polynomial = tuple[float, ...]


@dataclass(frozen=True)
class SUDA(Solver):
    r"""SUDA, the unified decentralized algorithm: a primal-dual method with matrices A, B and C
    that are polynomials in W.

    .. math::
        X^{k+1} &= A (C X^k - \alpha \nabla F(X^k)) - B Y^k \\
        Y^{k+1} &= Y^k + B X^{k+1}

    Only :math:`B^2` is needed.  The default is exact diffusion; other choices give other methods of
    the catalogue:

    ====================================  ====================  ====================  ====================
    method                                :math:`A`             :math:`B^2`           :math:`C`
    ====================================  ====================  ====================  ====================
    `ExactDiffusion`, `NIDS`              :math:`(I + W) / 2`   :math:`(I - W) / 2`   :math:`I`
    `D2`                                  :math:`W`             :math:`I - W`         :math:`I`
    `EXTRA`, `PGEXTRA`                    :math:`I`             :math:`(I - W) / 2`   :math:`(I + W) / 2`
    `GradientTracking` (atc)              :math:`W^2`           :math:`(I - W)^2`     :math:`I`
    `GradientTracking` (semi-atc)         :math:`W`             :math:`(I - W)^2`     :math:`W`
    `GradientTracking` (diging)           :math:`I`             :math:`(I - W)^2`     :math:`W^2`
    ====================================  ====================  ====================  ====================

    The steps are computed in the form without Y, which needs the fewest mixings,

    .. math::
        X^{k+1} = (I + A C - B^2) X^k - A C X^{k-1} - A (\alpha \nabla F(X^k) - \alpha \nabla F(X^{k-1})),

    with :math:`X^{-1} = X^0` and 0 in place of :math:`\nabla F(X^{-1})`.  From equal rows of
    :math:`X^0`, they are those of the named method (of gradient tracking in the order atc with
    :math:`Y^0 = W \nabla F(X^0)`).

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    A, B2, C : tuple of float
        The polynomials A, :math:`B^2` and C: coefficients of :math:`I, W, W^2, \dots`.  Those of A
        and C sum to 1, those of :math:`B^2` to 0.

    Notes
    -----
    Sent per step: one row for each power of `W` in the polynomials of the form above: one for exact
    diffusion, D2 and EXTRA, two for gradient tracking.  `W`: symmetric, doubly stochastic, constant
    in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> extra = SUDA(0.3, A=(1,), B2=(0.5, -0.5), C=(0.5, 0.5))
    >>> mpidec.solve(problem, extra, "ring", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    S. Alghunaim, K. Yuan, "A unified and refined convergence analysis for non-convex decentralized
    learning", IEEE TSP 70 (2022), Section II.  With a term: S. Alghunaim, E. Ryu, K. Yuan, A.
    Sayed, "Decentralized proximal gradient algorithms with linear convergence rates", IEEE TAC 66
    (2021).
    """

    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"
    A: Polynomial = (0.5, 0.5)
    B2: Polynomial = (0.5, -0.5)
    C: Polynomial = (1.0,)

    class State(NamedTuple):
        X: np.ndarray
        before: np.ndarray  # X^{k-1}
        # -alpha times the gradient at X^{k-1}.
        D: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, total in (("A", 1), ("B2", 0), ("C", 1)):
            object.__setattr__(self, field, _coefficients(self, field, total))

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        D = descend(zeros(G, *G.shape), self.step_size, G)
        rows = (s.X, s.before, D - s.D)
        highest, *others = reversed(list(zip(*_second_order(self.A, self.B2, self.C))))
        X = _combined(highest, rows)
        for power in others:  # Horner's scheme
            X = W(X) + _combined(power, rows) if any(power) else W(X)
        return self.State(X, s.X, D)

    def unstable(self, topology: Graph) -> str:
        P, Q, _ = _second_order(self.A, self.B2, self.C)
        return disagreement(
            self,
            topology,
            lambda lam: [1, -polynomial.polyval(lam, P), -polynomial.polyval(lam, Q)],
            "the lazy (W + I)/2 has no negative eigenvalues: topology.from_weights((W + I)/2)",
        )


def _coefficients(solver: Solver, field: str, total: int) -> Polynomial:
    """Return the coefficients of a polynomial, checked."""
    what = f"{name_of(solver)}: {field}"
    given = getattr(solver, field)
    if not isinstance(given, (tuple, list)) or not given:
        raise TypeError(
            f"{what} is {given!r}, expected the coefficients of I, W, W^2, ... as a tuple"
        )
    found = tuple(check.number(c, f"{what}[{j}]") for j, c in enumerate(given))
    if abs(sum(found) - total) > 1e-9:
        raise ValueError(f"{what} is {found}, expected coefficients whose sum is {total}")
    return tuple(polynomial.polytrim(found).tolist())


@cache
def _second_order(A: Polynomial, B2: Polynomial, C: Polynomial) -> tuple[Polynomial, ...]:
    """Return the polynomials I + A C - B^2, -A C and A, with equally many coefficients."""
    AC = polynomial.polymul(A, C)
    three = (polynomial.polysub(polynomial.polyadd([1.0], AC), B2), -AC, np.asarray(A))
    most = max(map(len, three))
    return tuple(tuple(np.pad(one, (0, most - len(one))).tolist()) for one in three)


def _combined(coefficients: Polynomial, rows: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the sum of the stacks of rows times a number each."""
    terms = [c * X for c, X in zip(coefficients, rows) if c]
    combined: np.ndarray = sum(terms[1:], start=terms[0])
    return combined
