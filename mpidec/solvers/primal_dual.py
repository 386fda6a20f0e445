"""Exact methods with one mixing a step: EXTRA, exact diffusion, D2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..comm.kernels.descent import descend
from ..protocols import Graph, Operator
from .base import Solver, disagreement, zeros
from .step_schedules import StepSize


@dataclass(frozen=True)
class EXTRA(Solver):
    r"""EXTRA, the exact first-order algorithm: DGD plus the sum of all past disagreements.

    .. math::
        X^{k+1} &= W X^k - \alpha \nabla F(X^k) - D^k \\
        D^{k+1} &= D^k + (X^k - W X^k) / 2, \qquad D^0 = 0

    This is the cumulative form; subtracting two steps gives the usual
    :math:`X^{k+2} = (I + W) X^{k+1} - \tfrac{I + W}{2} X^k - \alpha (\nabla F(X^{k+1}) - \nabla F(X^k))`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha < (1 + \lambda_{\min}(W)) / L`.

    Notes
    -----
    Sent per step: one row, of :math:`X^k`, to each neighbour; both equations use the same :math:`W X^k`.  `W`: symmetric,
    doubly stochastic; constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]]))
    >>> mpidec.solve(problem, EXTRA(0.3), mpidec.topology.ring(4), steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    W. Shi, Q. Ling, G. Wu, W. Yin, "EXTRA: an exact first-order algorithm for decentralized consensus optimization",
    SIAM J. Optim. 25 (2015), eqs. (2.13), (2.14).
    """

    keeps_rows: ClassVar = True
    least_delta: ClassVar = 0.6
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        D: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        WX = W(s.X)
        return self.State(descend(WX, self.step_size, G) - s.D, s.D + (s.X - WX) / 2)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -1 - lam, (1 + lam) / 2],
            "the lazy (W + I)/2 has no such eigenvalue: topology.from_weights((W + I)/2)",
        )


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
    Sent per step: one row, of :math:`\Phi^{k+1}`, to each neighbour.  `W`: symmetric, doubly stochastic; constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]]))
    >>> mpidec.solve(problem, ExactDiffusion(0.5), mpidec.topology.ring(4), steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    K. Yuan, B. Ying, X. Zhao, A. Sayed, "Exact diffusion for distributed optimization and learning, part I", IEEE TSP 67
    (2019), Algorithm 1.
    """

    keeps_rows: ClassVar = True
    least_delta: ClassVar = 0.6
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
    r"""D2, decentralized training over decentralized data: exact diffusion with `W` in place of (I + W)/2.

    .. math::
        \Psi^{k+1} &= X^k - \alpha \nabla F(X^k), \qquad \Psi^0 = X^0 \\
        X^{k+1} &= W (\Psi^{k+1} + X^k - \Psi^k)

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: one row, of :math:`\Psi^{k+1} + X^k - \Psi^k`, to each neighbour.  `W`: symmetric, doubly stochastic,
    constant in time, with :math:`\lambda_{\min}(W) > -1/3`; a `W` that fails this condition causes a warning.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]]))
    >>> mpidec.solve(problem, D2(0.5), mpidec.topology.star(4), steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    H. Tang, X. Lian, M. Yan, C. Zhang, J. Liu, "D2: decentralized training over decentralized data", ICML 2018, Algorithm 1.
    """

    graph: ClassVar = "ring"

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
