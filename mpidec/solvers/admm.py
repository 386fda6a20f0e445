"""ADMM for consensus, and methods derived from it: linearized, with local steps, with tracked
gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Functions, Graph, Operator
from .base import FunctionSolver, LocalSolver, Solver, disagreement, needed, zeros
from .needs import Needs, Positive, Within
from .step_schedules import StepSize


def _degrees(X: np.ndarray, W: Operator) -> np.ndarray:
    """Return the weights of all neighbours of each agent, 1 - w_ii, as a column."""
    ones = zeros(X, len(X), 1) + 1
    degrees: np.ndarray = ones - W.own(ones)
    return degrees


@dataclass(frozen=True)
class ADMM(FunctionSolver):
    r"""Consensus ADMM: each agent minimizes its function with a penalty on the distances to its
    neighbours.

    .. math::
        X_i^{k+1} &= \arg\min_x\; \alpha f_i(x) + \langle P_i^k, x \rangle
                     + \tfrac12 \sum_{j \ne i} w_{ij} \bigl\| x - \tfrac12 (X_i^k + X_j^k) \bigr\|^2 \\
        P^{k+1} &= P^k + \tfrac12 (I - W) X^{k+1}, \qquad P^0 = 0

    The minimizer is a proximal point of :math:`f_i` (`problem.prox`), also of a function with a
    term.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`: any number > 0 converges.

    Notes
    -----
    Sent per step: one row, of :math:`X^{k+1}`, to each neighbour.  `W`: symmetric, doubly
    stochastic, no negative weights; constant in time.  The penalty of an edge is :math:`c_{ij} =
    w_{ij} / (2 \alpha)`; the paper has one c for all edges, which is that of
    ``weights="best_constant"``.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, ADMM(0.5), "ring", steps=100).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    W. Shi, Q. Ling, K. Yuan, G. Wu, W. Yin, "On the linear convergence of the ADMM in decentralized
    consensus optimization", IEEE TSP 62 (2014).
    """

    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False
    needs: ClassVar = Needs(functions=("argmin",))
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        WX: np.ndarray
        P: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        W = needed(self, W, "mixes X^0 first")
        return self.State(X, W(X), zeros(X, *X.shape))

    def step(self, s: State, F: Functions, W: Operator) -> State:
        degrees, zero = _degrees(s.X, W), zeros(s.X, *s.X.shape)
        degrees = degrees + (degrees == 0)  # one agent alone
        V = s.X - ((s.X - s.WX) / 2 + s.P) / degrees
        X = F.argmin(V, descend(zero, self.step_size, zero - 1 / degrees), s.X)
        WX = W.next(X)
        return self.State(X, WX, s.P + (X - WX) / 2)


@dataclass(frozen=True)
class DLM(Solver):
    r"""DLM, decentralized linearized ADMM: a gradient step in place of the minimization.

    .. math::
        X_i^{k+1} &= X_i^k - \frac{\alpha \nabla f_i(X_i^k) + \kappa \sum_j w_{ij} (X_i^k - X_j^k) + P_i^k}
                                  {1 + 2 \kappa (1 - w_{ii})} \\
        P^{k+1} &= P^k + \kappa (I - W) X^{k+1}, \qquad P^0 = 0

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, the paper's :math:`1 / \rho`.
    penalty : float
        :math:`\kappa`: the paper's penalty of an edge is :math:`c_{ij} = \kappa w_{ij} / \alpha`,
        one c for all edges with ``weights="best_constant"``.

    Notes
    -----
    Sent per step: one row, of :math:`X^{k+1}`, to each neighbour.  `W`: symmetric, doubly
    stochastic, no negative weights; constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, DLM(0.5), "ring", steps=200).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    Q. Ling, W. Shi, G. Wu, A. Ribeiro, "DLM: decentralized linearized alternating direction method
    of multipliers", IEEE TSP 63 (2015).
    """

    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False
    step_size: StepSize = "auto"
    penalty: Positive = 1.0

    class State(NamedTuple):
        X: np.ndarray
        WX: np.ndarray
        P: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        W = needed(self, W, "mixes X^0 first")
        return self.State(X, W(X), zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        kappa, scale = self.penalty, 1 + 2 * self.penalty * _degrees(s.X, W)
        X = (
            s.X
            - (kappa * (s.X - s.WX) + s.P - descend(zeros(G, *G.shape), self.step_size, G)) / scale
        )
        WX = W.next(X)
        return self.State(X, WX, s.P + kappa * (X - WX))


class _Rounds(LocalSolver):
    """Solver of rounds of local steps, each of which begins with a mixing of X."""

    class State(NamedTuple):
        X: np.ndarray
        P: np.ndarray
        C: np.ndarray  # constant in a round
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        zero = zeros(X, *X.shape)
        return self.State(X, zero, zero, 0)

    def _mixed(self, s: State, W: Operator) -> np.ndarray | None:
        """Return the mixed rows at the begin of a round, None within it; by the operator of the
        mixing's own number.
        """
        H = self.local_steps
        return None if s.k % H else W(s.X) if H == 1 else W.at(s.k // H)(s.X)


@dataclass(frozen=True)
class DiNNO(_Rounds):
    r"""DiNNO, distributed neural network optimization: consensus ADMM with H gradient steps in
    place of the minimization.

    .. math::
        P^{t+1} &= P^t + \kappa (I - W) X^t, \qquad P^0 = 0 \\
        Y_i &\leftarrow Y_i - \alpha \nabla f_i(Y_i) - P_i^{t+1} - 2 \kappa \sum_{j \ne i} w_{ij}
               \bigl(Y_i - \tfrac12 (X_i^t + X_j^t)\bigr) \\
        X^{t+1} &= Y

    where the second line is taken H times, from :math:`Y = X^t`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps.
    local_steps : int
        H
    penalty : float
        :math:`\kappa < 1`: the paper's penalty of an edge is :math:`\rho_{ij} = \kappa w_{ij} /
        \alpha`, one for all edges with ``weights="best_constant"``.

    Notes
    -----
    Sent per H steps: one row, of `X`, to each neighbour.  `W`: symmetric, doubly stochastic,
    constant in time.  The paper's local optimizer may be another one, such as Adam.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> result = mpidec.solve(problem, DiNNO(0.2, local_steps=3), "ring", steps=900)
    >>> result.X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    J. Yu, J. Vincent, M. Schwager, "DiNNO: distributed neural network optimization for multi-robot
    collaborative learning", IEEE RA-L 7 (2022).
    """

    keeps_mean: ClassVar = False
    step_size: StepSize = "auto"
    local_steps: int = 5
    penalty: Annotated[float, Within(above=0.0, below=1.0)] = 0.25

    def step(self, s: _Rounds.State, G: np.ndarray, W: Operator) -> _Rounds.State:
        P, C, kappa, WX = s.P, s.C, self.penalty, self._mixed(s, W)
        if WX is not None:
            P = P + kappa * (s.X - WX)
            C = P - kappa * (s.X + WX - 2 * W.own(s.X))
        X = descend(s.X, self.step_size, G) - C - 2 * kappa * (s.X - W.own(s.X))
        return self.State(X, P, C, s.k + 1)


@dataclass(frozen=True)
class LTADMM(_Rounds):
    r"""LT-ADMM, local training ADMM: gradient steps with a constant correction from the multipliers
    of consensus ADMM.

    .. math::
        P^{t+1} &= P^t + \tfrac12 (I - W) X^t, \qquad P^0 = 0 \\
        Y &\leftarrow Y - \alpha \nabla F(Y) - \beta \bigl(\tfrac12 (I - W) X^t + P^{t+1}\bigr) \quad H \text{ times},
             \text{ from } Y = X^t \\
        X^{t+1} &= Y

    This is the paper's recursion with a row for each edge, summed over the neighbours: with
    :math:`z_{ij}^{t+1} = \tfrac12 (z_{ij}^t - z_{ji}^t) + w_{ij} X_j^{t+1}`, the bracket is
    :math:`\sum_j (w_{ij} X_i - z_{ij})`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps.
    local_steps : int
        H
    dual_step : float, optional
        :math:`\beta > 0`, by default 1 / H; the paper's is divided by the penalty :math:`\rho`.

    Notes
    -----
    Sent per H steps: one row, of `X`, to each neighbour.  `W`: symmetric, doubly stochastic,
    constant in time; the penalty of an edge is proportional to its weight, and the same for all
    edges with ``weights="best_constant"``.  With gradients of reduced variance (`problems.SAGA`),
    this is LT-ADMM-VR.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> result = mpidec.solve(problem, LTADMM(0.1, local_steps=3), "ring", steps=900)
    >>> result.X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    X. Ren, N. Bastianello, K. Johansson, T. Parisini, "Communication-efficient stochastic
    distributed learning", arXiv 2501.13516.
    """

    step_size: StepSize = "auto"
    local_steps: int = 5
    dual_step: Annotated[float | None, Within(above=0.0)] = None

    @property
    def _beta(self) -> float:
        return 1 / self.local_steps if self.dual_step is None else self.dual_step

    def step(self, s: _Rounds.State, G: np.ndarray, W: Operator) -> _Rounds.State:
        P, C, WX = s.P, s.C, self._mixed(s, W)
        if WX is not None:
            D = (s.X - WX) / 2
            P = P + D
            C = self._beta * (D + P)
        return self.State(descend(s.X, self.step_size, G) - C, P, C, s.k + 1)

    def unstable(self, topology: Graph) -> str:
        h = self.local_steps * self._beta
        return disagreement(
            self,
            topology,
            lambda lam: [1, -2 + h * (1 - lam), 1 - h * (1 - lam) / 2],
            "it needs a symmetric W with eigenvalues above -1/3 for the default dual_step, or a "
            "smaller dual_step",
        )


@dataclass(frozen=True)
class ATG(Solver):
    r"""ATG, ADMM-tracking gradient: consensus ADMM tracks the averages of the iterates and of the
    gradients.

    .. math::
        (Y, S)_i^k &= \frac{(X, \nabla F(X))_i^k + \rho\, U_i^k}{1 + \rho (1 - w_{ii})} \\
        X^{k+1} &= X^k + \gamma (Y^k - \alpha S^k - X^k) \\
        U_i^{k+1} &= P_i^k + \sum_{j \ne i} w_{ij} (Y, S)_j^k, \qquad P^{k+1} = P^k - \tfrac12 (I - W) (Y, S)^k

    with :math:`P^0 = 0`, and :math:`U^0` such that :math:`Y^0 = X^0`. From equal rows of
    :math:`X^0` this is the paper's recursion with a row for each edge, summed over the neighbours;
    from other rows the iterates differ from it, and the limit is the same minimizer.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, the paper's :math:`\delta`.
    penalty : float
        :math:`\rho`
    mixing : float
        :math:`\gamma`, in (0, 1].

    Notes
    -----
    Sent per step: two rows, of `Y` and `S`, to each neighbour in one message.  `W`: symmetric,
    doubly stochastic, constant in time; the penalty of an edge is :math:`\rho w_{ij}`, the same for
    all edges with ``weights="best_constant"``.  The paper's relaxation is 1/2 here, that of ADMM.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, ATG(0.3), "ring", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    G. Carnevale, N. Bastianello, G. Notarstefano, R. Carli, "ADMM-tracking gradient for distributed
    optimization over asynchronous and unreliable networks", IEEE TAC 70 (2025).
    """

    needs: ClassVar = Needs(symmetric=True)
    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False
    step_size: StepSize = "auto"
    penalty: Positive = 1.0
    mixing: Annotated[float, Within(above=0.0, most=1.0)] = 1.0

    class State(NamedTuple):  # U and P: of the iterates, and of the gradients
        X: np.ndarray
        UX: np.ndarray
        PX: np.ndarray
        UG: np.ndarray
        PG: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        W = needed(self, W, "begins with Y = X")
        zero = zeros(X, *X.shape)
        return self.State(X, X - W.own(X), zero, zero, zero)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        rho, scale = self.penalty, 1 + self.penalty * _degrees(s.X, W)
        Y, S = (s.X + rho * s.UX) / scale, (G + rho * s.UG) / scale
        WY, WS = W([Y, S])
        X = s.X + self.mixing * (descend(Y, self.step_size, S) - s.X)
        return self.State(
            X,
            s.PX + WY - W.own(Y),
            s.PX - (Y - WY) / 2,
            s.PG + WS - W.own(S),
            s.PG - (S - WS) / 2,
        )
