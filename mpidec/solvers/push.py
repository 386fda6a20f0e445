"""Push methods: column-stochastic `W`, for which an agent only needs to know its number of
out-neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Operator
from .base import Solver, zeros
from .needs import Needs
from .step_schedules import StepSize


@dataclass(frozen=True)
class PushSum(Solver):
    r"""Gradient push: gradients at the ratio of two quantities that are mixed alike.  With
    `step_size=0`, push-sum consensus.

    .. math::
        U^{k+1} &= W^k (U^k - \alpha \nabla F(X^k)), & U^0 &= X^0 \\
        w^{k+1} &= W^k w^k, & w^0 &= 1 \\
        X^{k+1} &= U^{k+1} / w^{k+1}

    Mixing preserves the sums of `U` and of `w` over all agents; the ratio removes the bias of a `W`
    that is not doubly stochastic.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; 0 for consensus.

    Notes
    -----
    Sent per step: one row, of :math:`U^k - \alpha \nabla F(X^k)`, and its weight :math:`w^k` to
    each out-neighbour, in one message.  `W`: column stochastic without negative entries, or doubly
    stochastic; directed or not, constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> W = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    >>> with mpidec.Network(3) as net:
    ...     mix = net.mixer(mpidec.topology.from_weights(W))
    ...     s = PushSum(0.0).init(np.array([[3.], [0.], [0.]]))
    ...     for k in range(60):
    ...         s = PushSum(0.0).step(s, 0, mix.at(k))
    >>> s.X.round(9).ravel().tolist()
    [1.0, 1.0, 1.0]

    References
    ----------
    A. Nedic, A. Olshevsky, "Distributed optimization over time-varying directed graphs", IEEE TAC
    60 (2015). Consensus: D. Kempe, A. Dobra, J. Gehrke, "Gossip-based computation of aggregate
    information", FOCS 2003. Random gradients: M. Assran, N. Loizou, N. Ballas, M. Rabbat,
    "Stochastic gradient push", ICML 2019.
    """

    needs: ClassVar = Needs(kinds=("doubly", "column"), positive=True, graph="exponential")
    keeps_rows: ClassVar = True
    exact: ClassVar = False
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        U: np.ndarray
        w: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, len(X), 1) + 1)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        U, w = W([descend(s.U, self.step_size, G), s.w])
        return self.State(U / w, U, w)


@dataclass(frozen=True)
class OSGP(Solver):
    r"""Overlap stochastic gradient push: `PushSum` whose messages arrive one step late.

    With the diagonal :math:`D^k` of :math:`W^k`,

    .. math::
        V^k &= U^k - \alpha \nabla F(X^k) \\
        U^{k+1} &= D^k V^k + (W^{k-1} - D^{k-1}) V^{k-1}, & U^0 &= X^0 \\
        w^{k+1} &= D^k w^k + (W^{k-1} - D^{k-1}) w^{k-1}, & w^0 &= 1 \\
        X^{k+1} &= U^{k+1} / w^{k+1}

    where nothing arrives in step 0.  What is on its way belongs to the sums of `U` and of `w` that
    mixing preserves.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: as by `PushSum`.  In a training (`mpidec.optim`, "osgp") the messages travel
    while the next gradients are computed; `mpidec.solve` takes the same steps without this
    overlap.  `W`: column (or doubly) stochastic with a diagonal :math:`> 0`, directed or not,
    constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> W = mpidec.topology.from_weights([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    >>> problem = mpidec.problems.LeastSquares(np.ones((3, 1, 1)), np.array([[1.], [2.], [6.]]))
    >>> mpidec.solve(problem, OSGP(0.1), W, steps=300).x.round(2).tolist()
    [3.0]

    References
    ----------
    M. Assran, N. Loizou, N. Ballas, M. Rabbat, "Stochastic gradient push", ICML 2019, with a delay
    of one step.
    """

    needs: ClassVar = Needs(kinds=("doubly", "column"), positive=True, graph="exponential")
    keeps_rows: ClassVar = True
    keeps_mean: ClassVar = False  # of what has arrived
    exact: ClassVar = False
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        U: np.ndarray
        w: np.ndarray
        # On its way: (W - D) V of the step before.
        Z: np.ndarray
        z: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        m = len(X)
        return self.State(X, X, zeros(X, m, 1) + 1, zeros(X, *X.shape), zeros(X, m, 1))

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        V = descend(s.U, self.step_size, G)
        WV, Ww = W([V, s.w])
        DV, Dw = W.own(V), W.own(s.w)
        U, w = DV + s.Z, Dw + s.z
        return self.State(U / w, U, w, WV - DV, Ww - Dw)


@dataclass(frozen=True)
class PushDIGing(Solver):
    r"""Push-DIGing: gradient tracking over directed, time-varying graphs.

    .. math::
        U^{k+1} &= W^k (U^k - \alpha Y^k), & U^0 &= X^0 \\
        w^{k+1} &= W^k w^k, & w^0 &= 1 \\
        X^{k+1} &= U^{k+1} / w^{k+1} \\
        Y^{k+1} &= W^k Y^k + \nabla F(X^{k+1}) - \nabla F(X^k), & Y^0 &= \nabla F(X^0)

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: two rows, of :math:`U^k - \alpha Y^k` and :math:`Y^k`, and the weight :math:`w^k`
    to each out-neighbour, in one message.  `W`: column stochastic without negative entries, or
    doubly stochastic; directed or not, constant or varying.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((3, 1, 1)), np.array([[1.], [2.], [6.]]))
    >>> W = mpidec.topology.from_weights([[0.5, 0, 1/3], [0.5, 0.5, 1/3], [0, 0.5, 1/3]])
    >>> mpidec.solve(problem, PushDIGing(0.2), W, steps=300).X.round(9).ravel().tolist()
    [3.0, 3.0, 3.0]

    References
    ----------
    A. Nedic, A. Olshevsky, W. Shi, "Achieving geometric convergence for distributed optimization
    over time-varying graphs", SIAM J. Optim. 27 (2017).
    """

    needs: ClassVar = Needs(
        kinds=("doubly", "column"), positive=True, least_delta=0.9999, graph="exponential"
    )
    keeps_rows: ClassVar = True
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        U: np.ndarray
        w: np.ndarray
        WY: np.ndarray  # of the step before
        G: np.ndarray

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        zero = zeros(X, *X.shape)
        return self.State(X, X, zeros(X, len(X), 1) + 1, zero, zero)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        Y = s.WY + G - s.G
        U, w, WY = W([descend(s.U, self.step_size, Y), s.w, Y])
        return self.State(U / w, U, w, WY, G)
