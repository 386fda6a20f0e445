"""Accelerated methods: steps in proportion to the square root of the condition number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Operator
from .base import Solver, zeros
from .needs import Within
from .step_schedules import StepSize


@dataclass(frozen=True)
class AccDNGD(Solver):
    r"""Accelerated gradient tracking (Acc-DNGD-SC): Nesterov's method with mixing, along tracked
    gradients.

    .. math::
        X^{k+1} &= W Y^k - \alpha S^k \\
        V^{k+1} &= (1 - \theta) W V^k + \theta W Y^k - \tfrac{\alpha}{\theta} S^k \\
        Y^{k+1} &= (X^{k+1} + \theta V^{k+1}) / (1 + \theta) \\
        S^{k+1} &= W S^k + \nabla F(Y^{k+1}) - \nabla F(Y^k)

    with :math:`V^0 = Y^0 = X^0` and :math:`S^0 = \nabla F(Y^0)`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    momentum : float
        :math:`\theta = \sqrt{\mu \alpha}`, in (0, 1), for functions of strong convexity
        :math:`\mu`: about one over the square root of the condition number times a small factor.

    Notes
    -----
    Sent per step: three rows to each neighbour, of :math:`Y^k`, :math:`V^k` and :math:`S^k`, in one
    message.  `W`: symmetric, doubly stochastic, constant in time; the more it mixes the larger
    :math:`\alpha` may be: `mixing.accelerate`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, AccDNGD(0.05), "ring", steps=800).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    G. Qu, N. Li, "Accelerated distributed Nesterov gradient descent", IEEE TAC 65 (2020),
    Acc-DNGD-SC.
    """

    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"
    momentum: Annotated[float, Within(above=0.0, below=1.0)] = 0.1

    class State(NamedTuple):  # X^k, Y^k, V^k, W S^{k-1}, the gradient at Y^{k-1}
        X: np.ndarray
        Y: np.ndarray
        V: np.ndarray
        WS: np.ndarray
        G: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        zero = zeros(X, *X.shape)
        return self.State(X, X, X, zero, zero)

    def point(self, s: State) -> np.ndarray:
        return s.Y

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        theta, S = self.momentum, s.WS + G - s.G
        WY, WV, WS = W([s.Y, s.V, S])
        X = descend(WY, self.step_size, S)
        V = (1 - theta) * WV + theta * WY + (X - WY) / theta
        return self.State(X, (X + theta * V) / (1 + theta), V, WS, G)


@dataclass(frozen=True)
class OPAPC(Solver):
    r"""Accelerated proximal alternating predictor-corrector method: APAPC, and over Chebyshev
    mixing the optimal OPAPC.

    .. math::
        X_g^k &= \tau X^k + (1 - \tau) X_f^k, \qquad \eta = \alpha / \tau, \quad \mu = \tau^2 / (\chi \alpha) \\
        P^k &= X^k - \eta (\nabla F(X_g^k) - \mu X_g^k) \\
        Y^{k+1} &= Y^k + \tfrac{1}{2} (I - W) \frac{P^k - Y^k}{1 + \eta \mu}, \qquad Y^0 = 0 \\
        X^{k+1} &= (P^k - Y^{k+1}) / (1 + \eta \mu) \\
        X_f^{k+1} &= X_g^k + \tfrac{2 \tau}{2 - \tau} (X^{k+1} - X^k)

    where Y is :math:`\eta` times the dual variable of the paper, and :math:`\theta = 1 / (2 \eta)`
    there.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha = 1 / (4 L)` in theory, with the smoothness constant L of all agents.
    momentum : float
        :math:`\tau = \min(1, \tfrac{1}{2} \sqrt{\chi \mu / L})`, in (0, 1], for functions of strong
        convexity :math:`\mu`.
    chi : float
        Condition number of :math:`I - W` without its eigenvalue 0, at least 1; close to 1 over
        Chebyshev mixing, `mixing=lambda W: W.accelerate(K)` with K about one over the square root
        of the spectral gap.

    Notes
    -----
    Sent per step: one row, of :math:`(P^k - Y^k) / (1 + \eta \mu)`, to each neighbour.  `W`:
    symmetric, doubly stochastic, constant in time.  With Chebyshev mixing the gradients, and the
    messages, reach the lower bounds for decentralized first-order methods, of the order of
    :math:`\sqrt{L / \mu}` and :math:`\sqrt{L / (\mu\,\text{gap})}`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> solver = OPAPC(0.25, momentum=0.5)
    >>> mpidec.solve(problem, solver, "ring", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    D. Kovalev, A. Salim, P. Richtarik, "Optimal and practical algorithms for smooth and strongly
    convex decentralized optimization", NeurIPS 2020.
    """

    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"
    momentum: Annotated[float, Within(above=0.0, most=1.0)] = 0.2
    chi: Annotated[float, Within(least=1.0)] = 1.0

    class State(NamedTuple):
        X: np.ndarray
        Xf: np.ndarray
        Y: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape))

    def point(self, s: State) -> np.ndarray:
        return self.momentum * s.X + (1 - self.momentum) * s.Xf

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        tau, eta_mu, Xg = self.momentum, self.momentum / self.chi, self.point(s)
        # A number by now, or one per column.
        alpha: Any = self.step_size
        P = descend(s.X + eta_mu * Xg, alpha / tau, G)
        Q = (P - s.Y) / (1 + eta_mu)
        Y = s.Y + (Q - W(Q)) / 2
        X = (P - Y) / (1 + eta_mu)
        return self.State(X, Xg + 2 * tau / (2 - tau) * (X - s.X), Y)
