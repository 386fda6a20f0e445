"""Methods for functions with a nonsmooth term: NIDS, PG-EXTRA, proximal gradient tracking, all
exact, and proximal diffusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Functions, Graph, Operator
from .base import FunctionSolver, disagreement, zeros
from .needs import Needs
from .primal_dual import Cumulative, Skipping
from .step_schedules import StepSize


@dataclass(frozen=True)
class NIDS(FunctionSolver):
    r"""NIDS, a network-independent step size algorithm: exact diffusion with a proximal step.

    .. math::
        Z^{k+1} &= Z^k - X^k + \tfrac{1}{2} (I + W)
                   \bigl(2 X^k - X^{k-1} - \alpha (\nabla S(X^k) - \nabla S(X^{k-1}))\bigr) \\
        X^{k+1} &= \mathrm{prox}_{\alpha r}(Z^{k+1}), \qquad Z^1 = X^0 - \alpha \nabla S(X^0)

    for :math:`f_i = s_i + r` with smooth :math:`s_i` and a term r (an l1 norm, a box) whose
    proximal point is inexpensive.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha < 2 / L` on any symmetric `W`, with the largest L of any agent.

    Notes
    -----
    Sent per step: one row to each neighbour, nothing in step 0.  `W`: symmetric, doubly stochastic;
    constant in time.  The paper's :math:`\tilde W = I - c \alpha (I - W)` has c = 1 / (2 alpha).
    Without a term, the steps are those of `ExactDiffusion` but for the first.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.problems import LeastSquares, l1
    >>> problem = LeastSquares(np.ones((4, 1, 1)), [[1.], [3.], [0.], [4.]], term=l1(0.5))
    >>> mpidec.solve(problem, NIDS(0.5), "ring", steps=300).X.round(9).ravel().tolist()
    [1.5, 1.5, 1.5, 1.5]

    References
    ----------
    Z. Li, W. Shi, M. Yan, "A decentralized proximal-gradient method with network independent
    step-sizes and separated convergence rates", IEEE TSP 67 (2019).
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(functions=("grad", "prox"), least_delta=0.6)
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        Z: np.ndarray
        # X^{k-1} - step_size * (gradient at X^{k-1}).
        V: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, X, 0)

    def step(self, s: State, F: Functions, W: Operator) -> State:
        Z = V = descend(s.X, self.step_size, F.grad(s.X))
        if s.k > 0:
            Y = s.X + V - s.V
            Z = s.Z - s.X + (Y + W(Y)) / 2
        return self.State(F.prox(Z, self.step_size), Z, V, s.k + 1)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -1 - lam, (1 + lam) / 2],
            "it needs a symmetric W, such as topology.ring(n)",
        )


@dataclass(frozen=True)
class PGEXTRA(FunctionSolver, Cumulative):
    r"""PG-EXTRA: EXTRA with a proximal step.

    .. math::
        Z^{k+1} &= W X^k - \alpha \nabla S(X^k) - D^k \\
        X^{k+1} &= \mathrm{prox}_{\alpha r}(Z^{k+1}) \\
        D^{k+1} &= D^k + (X^k - W X^k) / 2, \qquad D^0 = 0

    for :math:`f_i = s_i + r` with smooth :math:`s_i` and a term r.  This is the cumulative form;
    subtracting two steps gives the usual :math:`Z^{k+2} = W X^{k+1} + Z^{k+1} - \tfrac{I + W}{2}
    X^k - \alpha (\nabla S(X^{k+1}) - \nabla S(X^k))`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha < (1 + \lambda_{\min}(W)) / L`.

    Notes
    -----
    Sent per step: one row, of :math:`X^k`, to each neighbour.  `W`: symmetric, doubly stochastic;
    constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.problems import LeastSquares, box
    >>> problem = LeastSquares(np.ones((4, 1, 1)), [[1.], [3.], [0.], [4.]], term=box(upper=1.0))
    >>> mpidec.solve(problem, PGEXTRA(0.3), "ring", steps=300).X.round(9).ravel().tolist()
    [1.0, 1.0, 1.0, 1.0]

    References
    ----------
    W. Shi, Q. Ling, G. Wu, W. Yin, "A proximal gradient algorithm for decentralized composite
    optimization", IEEE TSP 63 (2015).
    """

    needs: ClassVar = Needs(functions=("grad", "prox"), least_delta=0.6)
    step_size: StepSize = "auto"

    def step(self, s: Cumulative.State, F: Functions, W: Operator) -> Cumulative.State:
        WX = W(s.X)
        Z = descend(WX, self.step_size, F.grad(s.X)) - s.D
        return self.State(F.prox(Z, self.step_size), s.D + (s.X - WX) / 2)


@dataclass(frozen=True)
class ProximalGradientTracking(FunctionSolver):
    r"""Proximal gradient tracking: SONATA with linear surrogates.

    .. math::
        X^{k+1} &= W^k\, \mathrm{prox}_{\alpha r}(X^k - \alpha Y^k) \\
        Y^{k+1} &= W^{k+1} (Y^k + \nabla S(X^{k+1}) - \nabla S(X^k)), \qquad Y^0 = \nabla S(X^0)

    for :math:`f_i = s_i + r` with smooth :math:`s_i` and a term r.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: two rows to each neighbour: of :math:`Y^{k-1} + \nabla S(X^k) - \nabla
    S(X^{k-1})`, and then the proximal points (only these in step 0).  `W`: doubly stochastic,
    directed or not, constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.problems import LeastSquares, l1
    >>> problem = LeastSquares(np.ones((4, 1, 1)), [[1.], [3.], [0.], [4.]], term=l1(0.5))
    >>> solver = ProximalGradientTracking(0.2)
    >>> mpidec.solve(problem, solver, "one_peer_exponential", steps=300).X.round(9).ravel().tolist()
    [1.5, 1.5, 1.5, 1.5]

    References
    ----------
    Y. Sun, G. Scutari, A. Daneshmand, "Distributed optimization based on gradient tracking
    revisited: enhancing convergence rate via surrogation", SIAM J. Optim. 32 (2022), with a linear
    surrogate and the step 1.
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(functions=("grad", "prox"), graph="exponential")
    step_size: StepSize = "auto"

    class State(NamedTuple):  # X^k, Y^{k-1}, the gradient at X^{k-1}, k
        X: np.ndarray
        Y: np.ndarray
        G: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        zero = zeros(X, *X.shape)
        return self.State(X, zero, zero, 0)

    def step(self, s: State, F: Functions, W: Operator) -> State:
        G = F.grad(s.X)
        Y = s.Y + G - s.G
        if s.k > 0:
            Y = W(Y)
        P = F.prox(descend(s.X, self.step_size, Y), self.step_size)
        return self.State(W(P), Y, G, s.k + 1)


@dataclass(frozen=True)
class ProximalDiffusion(FunctionSolver):
    r"""Proximal diffusion: adapt, combine, then take the proximal point of the term.

    .. math::
        \Psi^k = X^k - \alpha \nabla S(X^k), \qquad \Phi^k = W^k \Psi^k, \qquad
        X^{k+1} = \mathrm{prox}_{\alpha r}(\Phi^k)

    for :math:`f_i = s_i + r` with smooth :math:`s_i` and a term r: an l1 norm, a box.  With a
    constant step size the agents end near the minimizer, at a distance proportional to `step_size`;
    without a term, these are the steps of `Diffusion`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: one row, of :math:`\Psi^k`, to each neighbour.  `W`: doubly or row stochastic,
    constant or varying in time, see `DGD`.  In place of exact gradients those of a `Stream`: the
    limit of exact methods is as near to the minimizer as the noise of the samples lets it be, and
    this one needs half of their communication.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.problems import LeastSquares, l1
    >>> problem = LeastSquares(np.ones((4, 1, 1)), [[1.], [3.], [0.], [4.]], term=l1(0.5))
    >>> X = mpidec.solve(problem, ProximalDiffusion(0.001), "ring", steps=9000).X
    >>> X.round(2).ravel().tolist()
    [1.5, 1.5, 1.5, 1.5]

    References
    ----------
    R. Nassif, C. Richard, A. Ferrari, A. H. Sayed, "Proximal multitask learning over networks with
    sparsity-inducing coregularization", IEEE TSP 64 (2016), with a single task, and a term of each
    agent in place of that between clusters.
    """

    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False
    exact: ClassVar = False
    needs: ClassVar = Needs(
        functions=("grad", "prox"), kinds=("row", "doubly"), graph="exponential"
    )
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X)

    def step(self, s: State, F: Functions, W: Operator) -> State:
        Phi = W(descend(s.X, self.step_size, F.grad(s.X)))
        return self.State(F.prox(Phi, self.step_size))


@dataclass(frozen=True)
class MGSkip(FunctionSolver, Skipping):
    r"""MG-Skip, multi-gossip skip: `ProxSkip` with a proximal step, over several rounds of gossip.

    .. math::
        Z^k &= X^k - \alpha \nabla S(X^k) - Y^k \\
        V^k &= \tilde W Z^k, \quad Y^{k+1} = Y^k + \beta (Z^k - V^k)
               && \text{with probability } p \\
        V^k &= Z^k, \quad Y^{k+1} = Y^k && \text{otherwise} \\
        X^{k+1} &= \mathrm{prox}_{\alpha r}(V^k)

    with :math:`\tilde W = I - \frac{1}{2 \chi} (I - W)` and :math:`Y^0 = 0`, for
    :math:`f_i = s_i + r` with smooth :math:`s_i` and a term r.

    Parameters
    ----------
    step_size, probability, chi, dual_step, seed
        As of `ProxSkip`.

    Notes
    -----
    Sent per step, p times on average: one row, of :math:`Z^k`, to each neighbour, in each round of
    gossip.  The rounds are those of the mixer: ``mixing=lambda W: W.accelerate(K)`` (Chebyshev, K
    about one over the square root of the spectral gap) or ``W.repeat(K)``; in experiments,
    `mixing.accelerate`.  `W`: symmetric, doubly stochastic, constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpidec.problems import LeastSquares, l1
    >>> problem = LeastSquares(np.ones((4, 1, 1)), [[1.], [3.], [0.], [4.]], term=l1(0.5))
    >>> result = mpidec.solve(
    ...     problem, MGSkip(0.3, 0.4), "ring", steps=600, mixing=lambda W: W.accelerate(2)
    ... )
    >>> result.X.round(9).ravel().tolist()
    [1.5, 1.5, 1.5, 1.5]

    References
    ----------
    L. Guo, X. Shi, L. Wang, J. Cao, "A proximal gradient method with probabilistic multi-gossip
    communications for decentralized composite optimization", arXiv 2312.11861.
    """

    needs: ClassVar = Needs(functions=("grad", "prox"))

    def step(self, s: Skipping.State, F: Functions, W: Operator) -> Skipping.State:
        Z = descend(s.X, self.step_size, F.grad(s.X)) - s.Y
        t = self._communicated(s, Z, W)
        return t._replace(X=F.prox(t.X, self.step_size))
