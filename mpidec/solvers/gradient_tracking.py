"""Gradient tracking: consensus on iterates, dynamic consensus on gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .base import Solver, one_of


@dataclass(frozen=True)
class GradientTracking(Solver):
    r"""Gradient tracking in its three orders: each agent follows a running estimate `Y` of the average gradient.

    .. math::
        \text{atc}:\;      X^{k+1} &= W (X^k - \alpha Y^k), & Y^{k+1} &= W (Y^k + \nabla F(X^{k+1}) - \nabla F(X^k)) \\
        \text{semi-atc}:\; X^{k+1} &= W (X^k - \alpha Y^k), & Y^{k+1} &= W Y^k + \nabla F(X^{k+1}) - \nabla F(X^k) \\
        \text{diging}:\;   X^{k+1} &= W X^k - \alpha Y^k,   & Y^{k+1} &= W Y^k + \nabla F(X^{k+1}) - \nabla F(X^k)

    with :math:`Y^0 = \nabla F(X^0)`.  The average of the rows of `Y` is the average of the gradients at every step.

    Parameters
    ----------
    step_size : float
        :math:`\alpha`; of the order of (1 - sigma_2)^2 / L in theory, often 1/(2 L) to 1/(10 L) in practice.
    variant : {"atc", "semi-atc", "diging"}

    Notes
    -----
    Sent per step: two rows to each neighbour (in one message for semi-atc and diging).  `W`: doubly stochastic, directed or
    not, constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]]))
    >>> solver = GradientTracking(0.2, variant="diging")
    >>> mpidec.solve(problem, solver, mpidec.topology.one_peer_exponential(4), steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    atc: J. Xu, S. Zhu, Y. Soh, L. Xie, "Augmented distributed gradient methods", IEEE CDC 2015, eq. (9).
    diging: A. Nedic, A. Olshevsky, W. Shi, "Achieving geometric convergence for distributed optimization over time-varying
    graphs", SIAM J. Optim. 27 (2017), Algorithm 1.
    semi-atc: G. Qu, N. Li, "Harnessing smoothness to accelerate distributed optimization", IEEE TCNS 5 (2018), Section III.
    """

    step_size: float
    variant: str = "atc"

    class State(NamedTuple):
        X: np.ndarray
        V: np.ndarray                                # what Y was before the change of gradient: Y for atc, else W Y
        G: np.ndarray
        k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "variant", ("atc", "semi-atc", "diging"))

    def init(self, X: np.ndarray, W: Any = None) -> State:
        return self.State(X, np.zeros_like(X), np.zeros_like(X), 0)

    def step(self, s: State, G: np.ndarray, W: Any) -> State:
        Y = s.V + G - s.G
        if self.variant == "atc":
            Y = W(Y) if s.k else Y
            return self.State(W(s.X - self.step_size * Y), Y, G, s.k + 1)
        if self.variant == "semi-atc":
            X, V = W([s.X - self.step_size * Y, Y])
        else:
            X, V = W([s.X, Y])
            X -= self.step_size * Y
        return self.State(X, V, G, s.k + 1)
