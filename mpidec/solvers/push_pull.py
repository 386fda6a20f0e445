"""Gradient tracking on directed graphs, with a row- and a column-stochastic matrix in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Operator
from .base import Solver, zeros
from .needs import Needs, OneOf
from .step_schedules import StepSize


@dataclass(frozen=True)
class PushPull(Solver):
    r"""Push-Pull, also AB: iterates are pulled by a row-stochastic `R`, trackers of the gradient
    pushed by a column-stochastic `C`.

    .. math::
        \text{atc}:\; X^{k+1} &= R^k (X^k - \alpha Y^k), & Y^{k+1} &= C^k Y^k + \nabla F(X^{k+1}) - \nabla F(X^k) \\
        \text{ab}:\;  X^{k+1} &= R^k X^k - \alpha Y^k,   & Y^{k+1} &= C^k Y^k + \nabla F(X^{k+1}) - \nabla F(X^k)

    with :math:`Y^0 = \nabla F(X^0)`.  `R` alone would agree on a weighted average, with the weights
    u of its left eigenvector; `C` keeps the sum of the rows of `Y`, which is that of the gradients,
    at every step.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; the average moves by :math:`u^T v \, \alpha` times the sum of the gradients,
        with the right eigenvector v of `C`.
    variant : {"atc", "ab"}

    Notes
    -----
    Sent per step: one row over each edge of `R`, of :math:`X^k - \alpha Y^k` (atc) or :math:`X^k`
    (ab), and one over each edge of `C`, of :math:`Y^k`.  `W`: a pair, of any strongly connected
    digraph with `weights="push-pull"`, or of two matrices by `topology.push_pull(R, C)`; or doubly
    stochastic, where both are `W` and atc is `GradientTracking` of variant semi-atc; constant or
    varying in time (a schedule of pairs :math:`R^k`, :math:`C^k`: TV-AB).

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> W = mpidec.topology.star(4, weights="push-pull")
    >>> mpidec.solve(problem, PushPull(0.3), W, steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    atc: S. Pu, W. Shi, J. Xu, A. Nedic, "Push-pull gradient methods for distributed optimization in
    networks", IEEE TAC 66 (2021). ab: R. Xin, U. Khan, "A linear algorithm for optimization over
    directed graphs with geometric convergence", IEEE Control Systems Letters 2 (2018). Varying in
    time: F. Saadatniaki, R. Xin, U. Khan, "Decentralized optimization over time-varying directed
    graphs with row and column-stochastic matrices", IEEE TAC 65 (2020).
    """

    needs: ClassVar = Needs(kinds=("doubly", "pair"), graph="exponential")
    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"
    variant: Annotated[str, OneOf("atc", "ab")] = "atc"

    class State(NamedTuple):  # X^k, C^{k-1} Y^{k-1}, the gradient at X^{k-1}
        X: np.ndarray
        CY: np.ndarray
        G: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape), zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        Y = s.CY + G - s.G
        if self.variant == "atc":
            X = W.R(descend(s.X, self.step_size, Y))
        else:
            X = descend(W.R(s.X), self.step_size, Y)
        return self.State(X, W.C(Y), G)
