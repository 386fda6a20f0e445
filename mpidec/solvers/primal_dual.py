"""Exact methods of primal-dual form: EXTRA, exact diffusion, D2, Wang-Elia, ProxSkip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from .. import _validation as check
from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import Solver, disagreement, name_of, zeros
from .needs import Needs, Within
from .step_schedules import StepSize


class Cumulative(Solver):
    """Solver that subtracts the sum of all past disagreements, D: `EXTRA`, `PGEXTRA`."""

    keeps_rows: ClassVar = True

    class State(NamedTuple):
        X: np.ndarray
        D: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape))

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -1 - lam, (1 + lam) / 2],
            "the lazy (W + I)/2 has no such eigenvalue: topology.from_weights((W + I)/2)",
        )


@dataclass(frozen=True)
class EXTRA(Cumulative):
    r"""EXTRA, the exact first-order algorithm: DGD plus the sum of all past disagreements.

    .. math::
        X^{k+1} &= W X^k - \alpha \nabla F(X^k) - D^k \\
        D^{k+1} &= D^k + (X^k - W X^k) / 2, \qquad D^0 = 0

    This is the cumulative form; subtracting two steps gives the usual :math:`X^{k+2} = (I + W)
    X^{k+1} - \tfrac{I + W}{2} X^k - \alpha (\nabla F(X^{k+1}) - \nabla F(X^k))`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha < (1 + \lambda_{\min}(W)) / L` in the paper's theorem; that of Li and Yan has
        :math:`(5 + 3 \lambda_{\min}(W)) / (4 L)`.

    Notes
    -----
    Sent per step: one row, of :math:`X^k`, to each neighbour; both equations use the same :math:`W
    X^k`.  `W`: symmetric, doubly stochastic; constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, EXTRA(0.3), "ring", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    W. Shi, Q. Ling, G. Wu, W. Yin, "EXTRA: an exact first-order algorithm for decentralized
    consensus optimization", SIAM J. Optim. 25 (2015). Larger steps: Y. Li, M. Yan, "On the linear
    convergence of two decentralized algorithms", J. Optim. Theory Appl. 189 (2021).
    """

    needs: ClassVar = Needs(least_delta=0.6)
    step_size: StepSize = "auto"

    def step(self, s: Cumulative.State, G: np.ndarray, W: Operator) -> Cumulative.State:
        WX = W(s.X)
        return self.State(descend(WX, self.step_size, G) - s.D, s.D + (s.X - WX) / 2)


@dataclass(frozen=True)
class ExactDiffusion(Solver):
    r"""Exact diffusion: adapt, correct, combine.

    .. math::
        \Psi^{k+1} &= X^k - \alpha \nabla F(X^k) \\
        \Phi^{k+1} &= \Psi^{k+1} + X^k - \Psi^k, \qquad \Psi^0 = X^0 \\
        X^{k+1} &= \tfrac{1}{2} (I + W) \Phi^{k+1}

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; stable up to about 1 / L on any symmetric `W`.

    Notes
    -----
    Sent per step: one row, of :math:`\Phi^{k+1}`, to each neighbour.  `W`: symmetric, doubly
    stochastic; constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, ExactDiffusion(0.5), "ring", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    K. Yuan, B. Ying, X. Zhao, A. Sayed, "Exact diffusion for distributed optimization and learning,
    part I", IEEE TSP 67 (2019).
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(least_delta=0.6)
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        Psi: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        Psi = descend(s.X, self.step_size, G)
        Phi = Psi + s.X - s.Psi
        return self.State((Phi + W(Phi)) / 2, Psi)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -1 - lam, (1 + lam) / 2],
            "it needs a symmetric W, such as topology.ring(n)",
        )


@dataclass(frozen=True)
class D2(ExactDiffusion):
    r"""D2, decentralized training over decentralized data: exact diffusion with `W` in place of (I
    + W)/2.

    .. math::
        \Psi^{k+1} &= X^k - \alpha \nabla F(X^k), \qquad \Psi^0 = X^0 \\
        X^{k+1} &= W (\Psi^{k+1} + X^k - \Psi^k)

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: one row, of :math:`\Psi^{k+1} + X^k - \Psi^k`, to each neighbour.  `W`:
    symmetric, doubly stochastic, constant in time, with :math:`\lambda_{\min}(W) > -1/3`; a `W`
    that fails this condition causes a warning.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, D2(0.5), mpidec.topology.star(4), steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    H. Tang, X. Lian, M. Yan, C. Zhang, J. Liu, "D2: decentralized training over decentralized
    data", ICML 2018.
    """

    needs: ClassVar = Needs(least_delta=0.6, graph="ring")

    def step(self, s: ExactDiffusion.State, G: np.ndarray, W: Operator) -> ExactDiffusion.State:
        Psi = descend(s.X, self.step_size, G)
        return self.State(W(Psi + s.X - s.Psi), Psi)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -2 * lam, lam],
            "D2 needs lambda_min(W) > -1/3: use ExactDiffusion, which is D2 with (W + I)/2",
        )


@dataclass(frozen=True)
class WangElia(Solver):
    r"""Wang and Elia's method: gradient descent with proportional and integral feedback of the
    disagreement.

    .. math::
        X^{k+1} &= X^k - K (X^k + Z^k) - \alpha \nabla F(X^k), \qquad K = \tfrac12 (I - W) \\
        Z^{k+1} &= Z^k + K X^k, \qquad Z^0 = 0

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: two rows, of :math:`X^k` and :math:`Z^k`, to each neighbour in one message.  `W`:
    symmetric, doubly stochastic, constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, WangElia(0.2), "ring", steps=500).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    J. Wang, N. Elia, "Control approach to distributed optimization", Allerton 2010, in discrete
    time.
    """

    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        Z: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        WX, WZ = W([s.X, s.Z])
        KX, KZ = (s.X - WX) / 2, (s.Z - WZ) / 2
        return self.State(descend(s.X, self.step_size, G) - KX - KZ, s.Z + KX)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -(3 + lam) / 2, (1 + lam) / 2 + (1 - lam) ** 2 / 4],
            "it needs a symmetric W, such as topology.ring(n)",
        )


@dataclass(frozen=True)
class Skipping(Solver):
    """Solver that communicates with probability p, of a corrected gradient step: `ProxSkip`,
    `MGSkip`.
    """

    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"
    probability: Annotated[float, Within(above=0.0, most=1.0)] = 0.5
    chi: Annotated[float, Within(least=1.0)] = 1.0
    dual_step: Annotated[float | None, Within(above=0.0)] = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.integer(self.seed, f"{name_of(self)}: seed", least=0)

    class State(NamedTuple):
        X: np.ndarray
        Y: np.ndarray
        k: int
        mixings: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape), 0, 0)

    def _communicated(self, s: State, Z: np.ndarray, W: Operator) -> State:
        """Return the state with `Z` mixed, with probability p, in place of X."""
        if np.random.default_rng([self.seed, s.k]).random() >= self.probability:
            return self.State(Z, s.Y, s.k + 1, s.mixings)
        D = (Z - W.at(s.mixings)(Z)) / (2 * self.chi)
        beta = self.probability if self.dual_step is None else self.dual_step
        return self.State(Z - D, s.Y + beta * D, s.k + 1, s.mixings + 1)

    def unstable(self, topology: Graph) -> str:
        def roots(lam: complex) -> list[complex]:
            w = 1 - (1 - lam) / (2 * self.chi)
            beta = self.probability if self.dual_step is None else self.dual_step
            return [1, -(w + 1 - beta * (1 - w)), w]

        return disagreement(
            self, topology, roots, "it needs a symmetric W, such as topology.ring(n)"
        )


@dataclass(frozen=True)
class ProxSkip(Skipping):
    r"""ProxSkip on a network: corrected gradient steps that communicate with probability p only.

    .. math::
        Z^k &= X^k - \alpha \nabla F(X^k) - Y^k \\
        X^{k+1} &= \tilde W Z^k, \quad Y^{k+1} = Y^k + \beta (Z^k - X^{k+1})
                   && \text{with probability } p \\
        X^{k+1} &= Z^k, \quad Y^{k+1} = Y^k && \text{otherwise}

    with :math:`\tilde W = I - \frac{1}{2 \chi} (I - W)` and :math:`Y^0 = 0`.  All agents toss the
    same coin, a function of `seed` and k.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    probability : float
        p, in (0, 1].
    chi : float
        :math:`\chi \ge 1`
    dual_step : float, optional
        :math:`\beta > 0`, by default p.
    seed : int
        Seed of the coin.

    Notes
    -----
    Sent per step, p times on average: one row, of :math:`Z^k`, to each neighbour.  `W`: symmetric,
    doubly stochastic, constant in time.  With p = 1 this is exact diffusion.  With several rounds
    of gossip for each communication, `W.accelerate(K)`, it is `MGSkip` without a term.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> result = mpidec.solve(problem, ProxSkip(0.3, probability=0.4), "ring", steps=600)
    >>> result.X.round(9).ravel().tolist(), int(result.metrics["rounds"][-1])
    ([2.0, 2.0, 2.0, 2.0], 236)

    References
    ----------
    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, "ProxSkip: yes! local gradient steps
    provably lead to communication acceleration! finally!", ICML 2022. L. Guo, S. Alghunaim, K.
    Yuan, L. Condat, J. Cao, "Revisiting decentralized ProxSkip: achieving linear speedup", arXiv
    2310.07983.
    """

    def step(self, s: Skipping.State, G: np.ndarray, W: Operator) -> Skipping.State:
        return self._communicated(s, descend(s.X, self.step_size, G) - s.Y, W)
