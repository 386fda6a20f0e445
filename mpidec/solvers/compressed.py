"""Methods with compressed communication: their codec and their memory are those of the mixer,
`W.compress(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from .._complex import width
from ..comm.kernels import descend
from ..protocols import Operator
from .base import Solver, zeros
from .needs import Needs, Within
from .step_schedules import StepSize


@dataclass(frozen=True)
class CHOCO(Solver):
    r"""CHOCO-SGD: a gradient step, and gossip of compressed differences.

    .. math::
        X^{k+1/2} &= X^k - \alpha \nabla F(X^k) \\
        \hat X^{k+1} &= \hat X^k + C(X^{k+1/2} - \hat X^k), \qquad \hat X^0 = 0 \\
        X^{k+1} &= X^{k+1/2} + \gamma (W - I) \hat X^{k+1}

    The last two lines are what a mixer with error feedback computes from :math:`X^{k+1/2}`; with
    another mixer this is DGD (atc), whose bias CHOCO keeps, for :math:`I + \gamma (W - I)`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: the encoded row of :math:`X^{k+1/2} - \hat X^k` to each neighbour.  C and
    :math:`\gamma`: `solve(..., mixing=lambda W: W.compress("top_k", fraction=0.2))`.  `W`: doubly
    stochastic; constant in time with feedback.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(
    ...     np.tile(np.eye(5), (4, 1, 1)), np.arange(20.0).reshape(4, 5)
    ... )
    >>> codec = lambda W: W.compress("top_k", fraction=0.2)
    >>> mpidec.solve(problem, CHOCO(0.01), "ring", steps=800, mixing=codec).x.round(2).tolist()
    [7.5, 8.5, 9.5, 10.5, 11.5]

    References
    ----------
    A. Koloskova, S. U. Stich, M. Jaggi, "Decentralized stochastic optimization and gossip
    algorithms with compressed communication", ICML 2019.
    """

    keeps_rows: ClassVar = True
    exact: ClassVar = False
    needs: ClassVar = Needs(uncompressed="DGD (atc)")
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        return self.State(W(descend(s.X, self.step_size, G)))


@dataclass(frozen=True)
class BEER(Solver):
    r"""BEER: gradient tracking with compressed differences of the iterates and of the trackers.

    .. math::
        X^{k+1} &= X^k + \gamma (W - I) H^k - \alpha V^k, & H^{k+1} &= H^k + C(X^{k+1} - H^k) \\
        V^{k+1} &= V^k + \gamma (W - I) Z^k + G^{k+1} - G^k, & Z^{k+1} &= Z^k + C(V^{k+1} - Z^k)

    with :math:`G^k = \nabla F(X^k)`, :math:`V^0 = G^0`, :math:`H^0 = C(X^0)` and :math:`Z^0 =
    C(V^0)`.  A mixer with error feedback computes :math:`X^k + \gamma (W - I) H^k` and :math:`V^k +
    \gamma (W - I) Z^k`, and has a memory for each; with another mixer this is `GradientTracking` of
    variant diging, in two messages.  Exact with any contractive codec, for any heterogeneity.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: two encoded rows to each neighbour, one after the other.  C and :math:`\gamma`:
    `solve(..., mixing=lambda W: W.compress("top_k", fraction=0.2))`.  In the paper :math:`H^0 = Z^0
    = 0`: here nothing is lost in step 0.  C-GT differs by a memory that moves by a part of the
    difference.  `W`: doubly stochastic; constant in time with feedback.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(
    ...     np.tile(np.eye(5), (4, 1, 1)), np.arange(20.0).reshape(4, 5)
    ... )
    >>> codec = lambda W: W.compress("top_k", fraction=0.2)
    >>> mpidec.solve(problem, BEER(0.05), "ring", steps=2000, mixing=codec).X[0].round(9).tolist()
    [7.5, 8.5, 9.5, 10.5, 11.5]

    References
    ----------
    H. Zhao, B. Li, Z. Li, P. Richtarik, Y. Chi, "BEER: fast O(1/T) rate for decentralized nonconvex
    optimization with communication compression", NeurIPS 2022. Y. Liao, Z. Li, K. Huang, S. Pu, "A
    compressed gradient tracking method for decentralized optimization with linear convergence",
    IEEE TAC 67 (2022): C-GT.
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(uncompressed="gradient tracking (diging)")
    step_size: StepSize = "auto"

    class State(NamedTuple):  # X^k, V^{k-1} + gamma (W - I) Z^{k-1}, the gradient at X^{k-1}
        X: np.ndarray
        WV: np.ndarray
        G: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape), zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        V = s.WV + G - s.G
        return self.State(descend(W(s.X), self.step_size, V), W(V), G)


@dataclass(frozen=True)
class MoTEF(Solver):
    r"""MoTEF, momentum tracking with error feedback: BEER that tracks a moving average M of the
    gradients.

    .. math::
        M^{k+1} &= (1 - \lambda) M^k + \lambda \nabla F(X^{k+1}), \qquad M^0 = \nabla F(X^0) \\
        X^{k+1} &= X^k + \gamma (W - I) H^k - \alpha V^k, \qquad H^{k+1} = H^k + C(X^{k+1} - H^k) \\
        V^{k+1} &= V^k + \gamma (W - I) Z^k + M^{k+1} - M^k, \qquad Z^{k+1} = Z^k + C(V^{k+1} - Z^k)

    with :math:`V^0 = M^0`, and H and Z as in `BEER`, which is :math:`\lambda = 1`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    momentum : float
        :math:`\lambda`, in (0, 1]: the part of the newest gradient.  The smaller it is, the less
        noise of the gradients remains, and the more steps exact gradients take.

    Notes
    -----
    Sent per step, and `W`: as for `BEER`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(
    ...     np.tile(np.eye(5), (4, 1, 1)), np.arange(20.0).reshape(4, 5)
    ... )
    >>> codec = lambda W: W.compress("top_k", fraction=0.2)
    >>> mpidec.solve(problem, MoTEF(0.05), "ring", steps=2000, mixing=codec).X[0].round(9).tolist()
    [7.5, 8.5, 9.5, 10.5, 11.5]

    References
    ----------
    R. Islamov, Y. Gao, S. U. Stich, "Towards faster decentralized stochastic optimization with
    communication compression", ICLR 2025.
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(uncompressed="gradient tracking with a moving average of the gradients")
    step_size: StepSize = "auto"
    momentum: Annotated[float, Within(above=0.0, most=1.0)] = 0.2

    class State(NamedTuple):  # X^k, V^{k-1} + gamma (W - I) Z^{k-1}, M^{k-1}, k
        X: np.ndarray
        WV: np.ndarray
        M: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape), zeros(X, *X.shape), 0)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        M = s.M + self.momentum * (G - s.M) if s.k else G
        V = s.WV + M - s.M
        return self.State(descend(W(s.X), self.step_size, V), W(V), M, s.k + 1)


@dataclass(frozen=True)
class LEAD(Solver):
    r"""LEAD, linear convergent algorithm with compression: exact, with one compressed row per step.

    .. math::
        Y^k &= X^k - \alpha \nabla F(X^k) - \alpha D^k, \qquad D^0 = 0 \\
        \hat Y^k &= \hat Y^{k-1} + C(Y^k - \hat Y^{k-1}) \\
        X^{k+1} &= Y^k - \tfrac{\gamma}{2} (I - W) \hat Y^k \\
        D^{k+1} &= D^k + \beta \tfrac{\gamma}{2 \alpha} (I - W) \hat Y^k

    The second line is the memory of a mixer with error feedback, which returns :math:`Y^k + \gamma
    (W - I) \hat Y^k`; with another mixer this is `ExactDiffusion`, also known as NIDS, in other
    variables.  The method of the paper is :math:`\beta = 1`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; about 1 / L
    dual : float, optional
        :math:`\beta`, in (0, 1]; by default :math:`\gamma`, which is 1 without a codec.
        :math:`\hat Y` follows Y within about :math:`1 / \delta` steps, during which D goes on
        growing: with :math:`\beta = 1` and a biased codec such as top_k, only curvature times step
        size damps that, so that small steps and flat functions diverge.

    Notes
    -----
    Sent per step: one encoded row, of :math:`Y^k - \hat Y^{k-1}`, to each neighbour.  C and
    :math:`\gamma`: `solve(..., mixing=lambda W: W.compress("top_k", fraction=0.2))`.  The theory is
    for :math:`\beta = 1` and unbiased codecs, for which the mixer takes :math:`C / (1 + \omega)`.
    With an estimate that moves by a part :math:`\delta` of the difference in each step, the agents'
    disagreement about linear functions falls if :math:`\beta < \delta / (1 - \delta)`, about twice
    the default or more.  `W`: symmetric, doubly stochastic; constant in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(
    ...     np.tile(np.eye(5), (4, 1, 1)), np.arange(20.0).reshape(4, 5)
    ... )
    >>> codec = lambda W: W.compress("qsgd", feedback=True)
    >>> mpidec.solve(problem, LEAD(0.5), "ring", steps=300, mixing=codec).X[0].round(9).tolist()
    [7.5, 8.5, 9.5, 10.5, 11.5]

    References
    ----------
    X. Liu, Y. Li, R. Wang, J. Tang, M. Yan, "Linear convergent decentralized optimization with
    compression", ICLR 2021, with its memory step equal to 1.
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(uncompressed="exact diffusion")
    step_size: StepSize = "auto"
    dual: Annotated[float | None, Within(above=0.0, most=1.0)] = None

    class State(NamedTuple):
        X: np.ndarray
        D: np.ndarray  # alpha D

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        Y = descend(s.X, self.step_size, G) - s.D
        M = (Y - W(Y)) / 2
        beta = W.gamma(width(Y)) if self.dual is None else self.dual
        return self.State(Y - M, s.D + beta * M)
