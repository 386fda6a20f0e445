"""Adaptive step sizes: each agent finds its own during the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from .._complex import squares
from ..protocols import Graph, Operator
from .base import Solver, zeros
from .needs import Needs, Positive

# Largest imaginary part of an eigenvalue of W with which adaptive step sizes converged in
# experiments.
TURN = 0.6
# Agents up to which eigenvalues are computed.
_LARGE = 500


@dataclass(frozen=True)
class AdaptiveGradientTracking(Solver):
    r"""Gradient tracking with step sizes that each agent adapts to the local curvature, estimated
    from its iterates and trackers.

    .. math::
        X^{k+1} &= W (X^k - \eta^k \circ Y^k), \qquad
        Y^{k+1} = W (Y^k + \nabla F(X^{k+1}) - \nabla F(X^k)), \\
        \eta_i^{k+1} &= \min \Bigl\{ \sqrt{1 + \eta_i^k / \eta_i^{k-1}} \; \eta_i^k, \;
                        \frac{\|x_i^{k+1} - x_i^k\|}{2 \|y_i^{k+1} - y_i^k\|} \Bigr\}

    with :math:`Y^0 = \nabla F(X^0)` and :math:`\eta^1 = \eta^0`: the rule of adaptive gradient
    descent, with trackers in place of gradients.  Nothing is known before the run, neither
    smoothness constants nor the graph, and no sum over all agents is taken.

    Parameters
    ----------
    step_size : float
        :math:`\eta^0` of each agent, to begin with.  It grows by up to 1.6 in each step, and is
        soon forgotten: take it small.

    Notes
    -----
    Sent per step: two rows to each neighbour, as by `GradientTracking` (atc).  `W`: doubly
    stochastic and constant; the paper assumes an undirected graph.  Measured: directed graphs do
    where the eigenvalues :math:`\lambda \ne 1` of W have :math:`|\operatorname{Im} \lambda| \le 1 -
    \operatorname{Re} \lambda` and :math:`|\operatorname{Im} \lambda| \le 0.6`, as those of
    exponential graphs, and sparse ones with Sinkhorn weights.  On directed rings it diverges: a
    slow mode of disagreement turns, and the step sizes, which curvatures alone limit, make it grow;
    it warns there.  An agent of which an iterate or a tracker has not moved keeps its step size.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> result = mpidec.solve(problem, AdaptiveGradientTracking(), "ring", steps=200)
    >>> result.X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    Z. Chen, Y. Wang, "Automating stepsizes for decentralized optimization and learning with
    geometric convergence", with one round of consensus, as in the authors' programs.  The rule of a
    single agent: Y. Malitsky, K. Mishchenko, "Adaptive gradient descent without descent", ICML
    2020.
    """

    keeps_rows: ClassVar = True
    columnwise: ClassVar = False
    keeps_mean: ClassVar = False  # the agents' step sizes differ
    needs: ClassVar = Needs(graph="exponential")
    adaptive: ClassVar = True
    step_size: Positive = 1e-6

    class State(NamedTuple):
        X: np.ndarray  # X^k
        Y: np.ndarray  # Y^{k-1}
        G: np.ndarray  # the gradient at X^{k-1}
        moved: np.ndarray  # ||x_i^k - x_i^{k-1}||, (m, 1)
        eta: np.ndarray  # eta^{k-1}, (m, 1)
        ratio: np.ndarray  # eta^{k-1} / eta^{k-2}, (m, 1)
        k: int

    def unstable(self, topology: Graph) -> str:
        if topology.period != 1 or not 1 < topology.n <= _LARGE or not topology.directed:
            return ""
        lams = np.linalg.eigvals(topology.at(0).W.toarray())
        lams = np.delete(lams, np.argmin(abs(lams - 1)))
        worst = max(lams, key=lambda lam: max(abs(lam.imag) - (1 - lam.real), abs(lam.imag) - TURN))
        if abs(worst.imag) <= min(1 - worst.real, TURN):
            return ""
        return (
            "AdaptiveGradientTracking is made for undirected graphs, and diverges on the "
            f"{topology.name} topology: W has the "
            f"eigenvalue {worst:.3g}, expected imaginary parts of at most 1 minus the real part, "
            f"and {TURN:g}; use an undirected "
            "graph, such as topology.ring(n), the exponential one, or GradientTracking, which "
            "converges on this one"
        )

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        zero = zeros(X, *X.shape)
        column = _norms(zero)
        return self.State(
            X, zero, zero, moved=column, eta=column + self.step_size, ratio=column + 1, k=0
        )

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        Y, eta, ratio = s.Y + G - s.G, s.eta, s.ratio
        if s.k > 0:
            Y = W(Y)
        if s.k > 1:
            eta = _adapted(eta, ratio, s.moved, _norms(Y - s.Y))
            ratio = eta / s.eta
        X = W(s.X - eta * Y)
        return self.State(X, Y, G, moved=_norms(X - s.X), eta=eta, ratio=ratio, k=s.k + 1)


def _norms(D: np.ndarray) -> np.ndarray:
    """Return the norms of the rows, (m, 1)."""
    total: np.ndarray = squares(D).sum(axis=1, keepdims=True)
    return total**0.5


def _adapted(
    eta: np.ndarray, ratio: np.ndarray, moved: np.ndarray, turned: np.ndarray
) -> np.ndarray:
    """Return the next step size of each agent, from the norms by which its iterate and its tracker
    have changed.
    """
    known = (moved > 0) & (turned > 0)
    largest, limit = (1 + ratio) ** 0.5 * eta, moved / (2 * (turned + ~known))
    less = known & (limit < largest)
    adapted: np.ndarray = limit * less + largest * (known & ~less) + eta * ~known
    return adapted
