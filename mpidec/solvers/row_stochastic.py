"""Gradient tracking with a row-stochastic `W` alone: agents know the weights of what they
receive, but not their receivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import REMEDIES, Solver, name_of, needed, zeros
from .needs import Needs, OneOf
from .step_schedules import StepSize


@dataclass(frozen=True)
class FROST(Solver):
    r"""FROST: gradient tracking with a row-stochastic `W`, whose left eigenvector the agents
    estimate during the run.

    .. math::
        \text{atc}:\; X^{k+1} &= W (X^k - \alpha Z^k), \qquad \text{frost}:\; X^{k+1} = W X^k - \alpha Z^k \\
        Y^{k+1} &= W Y^k, \qquad Y^0 = I_n \\
        Z^{k+1} &= W Z^k + H^{k+1} - H^k, \qquad H_i^k = \frac{\nabla f_i(X_i^k)}{n\, Y_{ii}^k}, \quad Z^0 = H^0

    `W` alone would agree on an average with the weights :math:`\pi` of its left eigenvector,
    :math:`\pi^T W = \pi^T`.  The rows of `Y` tend to :math:`\pi^T`, so that agent i divides its
    gradient by its own weight.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, n times the paper's: the average with the weights :math:`\pi` moves by
        :math:`\alpha` times the mean of the gradients.
    variant : {"atc", "frost"}
        "frost" is the paper's order; "atc" is stable with several times larger step sizes.

    Notes
    -----
    Sent per step: two rows, of :math:`X^k - \alpha Z^k` (atc) or :math:`X^k`, and of :math:`Z^k`,
    and the n numbers of :math:`Y_i^k` to each out-neighbour, in one message.  Every agent knows n,
    and its own number.  `W`: row stochastic without negative entries, or doubly stochastic, with a
    positive diagonal; directed or not, constant in time: `weights="uniform"` on any strongly
    connected digraph, which each agent can choose by itself.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> W = mpidec.topology.star(4, weights="uniform")
    >>> mpidec.solve(problem, FROST(0.2), W, steps=300).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    R. Xin, C. Xi, U. Khan, "FROST: fast row-stochastic optimization with uncoordinated step-sizes",
    EURASIP J. Adv. Signal Process. 2019, Algorithm 1.  With one step size: C. Xi, V. Mai, R. Xin,
    E. Abed, U. Khan, "Linear convergence in optimization over directed graphs with row-stochastic
    matrices", IEEE TAC 63 (2018).
    """

    needs: ClassVar = Needs(kinds=("doubly", "row"), positive=True, graph="exponential")
    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False  # before Y has settled
    step_size: StepSize = "auto"
    variant: Annotated[str, OneOf("atc", "frost")] = "atc"

    class State(NamedTuple):  # X^k, W Z^{k-1}, H^{k-1}, Y^k as an array (m, n, 1)
        X: np.ndarray
        WZ: np.ndarray
        H: np.ndarray
        Y: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        W = needed(self, W, "numbers the agents")
        Y = zeros(X, W.m, W.n, 1)
        for row, agent in enumerate(W.agents):
            Y[row, agent] = 1
        return self.State(X, zeros(X, *X.shape), zeros(X, *X.shape), Y)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        H = G / (W.n * s.Y[range(W.m), W.agents])
        Z = s.WZ + H - s.H
        if self.variant == "atc":
            X, WZ, Y = W([descend(s.X, self.step_size, Z), Z, s.Y])
        else:
            WX, WZ, Y = W([s.X, Z, s.Y])
            X = descend(WX, self.step_size, Z)
        return self.State(X, WZ, H, Y)

    def check(self, topology: Graph) -> None:
        super().check(topology)
        graphs = (topology.at(k) for k in range(topology.period or 1))
        if min(graph.W.toarray().diagonal().min() for graph in graphs) <= 0:
            raise ValueError(
                f"{name_of(self)} divides by powers of W on the diagonal, the {topology.name} "
                "topology has an agent "
                f"without a weight for itself; {REMEDIES['row']}"
            )
