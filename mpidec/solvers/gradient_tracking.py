"""Gradient tracking: consensus on iterates, dynamic consensus on gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Operator
from .base import Solver, zeros
from .needs import Needs, OneOf
from .step_schedules import StepSize


@dataclass(frozen=True)
class GradientTracking(Solver):
    r"""Gradient tracking in its three orders: each agent descends along its estimate `Y` of the
    average gradient.

    .. math::
        \text{atc}:\;      X^{k+1} &= W^k (X^k - \alpha Y^k), & Y^{k+1} &= W^{k+1} (Y^k + G^{k+1} - G^k) \\
        \text{semi-atc}:\; X^{k+1} &= W^k (X^k - \alpha Y^k), & Y^{k+1} &= W^k Y^k + G^{k+1} - G^k \\
        \text{diging}:\;   X^{k+1} &= W^k X^k - \alpha Y^k,   & Y^{k+1} &= W^k Y^k + G^{k+1} - G^k

    with :math:`G^k = \nabla F(X^k)` and :math:`Y^0 = G^0`.  The average of the rows of `Y` is the
    average of the gradients at every step.

    Step k computes :math:`X^{k+1}` from the gradient at :math:`X^k` and communicates with
    :math:`W^k` alone.  In atc, :math:`Y^{k+1}` needs the gradient at :math:`X^{k+1}`, so it is
    mixed in step k + 1, with the operator of that step: hence :math:`W^{k+1}` above.  The paper of
    atc has a constant `W`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; of the order of (1 - sigma_2)^2 / L in theory, often 1/(2 L) to 1/(10 L) in
        practice.
    variant : {"atc", "semi-atc", "diging"}

    Notes
    -----
    Sent per step: two rows to each neighbour: of
    :math:`Y^{k-1} + \nabla F(X^k) - \nabla F(X^{k-1})` and then of
    :math:`X^k - \alpha Y^k` (atc; only the latter in step 0); of :math:`X^k - \alpha Y^k` and
    :math:`Y^k` in one message
    (semi-atc); of :math:`X^k` and :math:`Y^k` in one message (diging).  `W`: doubly stochastic,
    directed or not, constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> solver = GradientTracking(0.2, variant="diging")
    >>> mpidec.solve(problem, solver, "one_peer_exponential", steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    atc: J. Xu, S. Zhu, Y. Soh, L. Xie, "Augmented distributed gradient methods", IEEE CDC 2015.
    diging: A. Nedic, A. Olshevsky, W. Shi, "Achieving geometric convergence for distributed
    optimization over time-varying graphs", SIAM J. Optim. 27 (2017); G. Qu, N. Li, "Harnessing
    smoothness to accelerate distributed optimization", IEEE TCNS 5 (2018), Section III. semi-atc:
    P. Di Lorenzo, G. Scutari, "NEXT: in-network nonconvex optimization", IEEE TSIPN 2 (2016), with
    linearized functions.
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(graph="exponential")
    step_size: StepSize = "auto"
    variant: Annotated[str, OneOf("atc", "semi-atc", "diging")] = "atc"

    class State(NamedTuple):  # atc: X^k, Y^{k-1}, the gradient at X^{k-1}, k
        X: np.ndarray
        Y: np.ndarray
        G: np.ndarray
        k: int

    class MixedState(NamedTuple):  # semi-atc, diging: X^k, W^{k-1} Y^{k-1}, the gradient at X^{k-1}
        X: np.ndarray
        WY: np.ndarray
        G: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State | MixedState:
        zero = zeros(X, *X.shape)
        return (
            self.State(X, zero, zero, 0)
            if self.variant == "atc"
            else self.MixedState(X, zero, zero)
        )

    def step(self, s: Any, G: np.ndarray, W: Operator) -> State | MixedState:
        if self.variant == "atc":
            Y = s.Y + G - s.G
            if s.k > 0:
                Y = W(Y)
            return self.State(W(descend(s.X, self.step_size, Y)), Y, G, s.k + 1)
        Y = s.WY + G - s.G
        if self.variant == "semi-atc":
            X, WY = W([descend(s.X, self.step_size, Y), Y])
        else:
            WX, WY = W([s.X, Y])
            X = descend(WX, self.step_size, Y)
        return self.MixedState(X, WY, G)
