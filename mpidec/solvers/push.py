"""Push methods: column-stochastic `W`, so that an agent need only know how many it sends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .base import Solver


@dataclass(frozen=True)
class PushSum(Solver):
    r"""Gradient push: descend at the ratio of two quantities that are pushed alike.  With `step_size=0`, push-sum consensus.

    .. math::
        U^{k+1} = W (U^k - \alpha \nabla F(X^k)), \qquad
        w^{k+1} = W w^k, \qquad X^{k+1} = U^{k+1} / w^{k+1}, \qquad w^0 = 1

    The sums of `U` (without gradients) and of `w` over all agents never change; the ratio takes out the bias of a `W` that
    is not doubly stochastic.

    Parameters
    ----------
    step_size : float
        :math:`\alpha`; 0 for consensus.

    Notes
    -----
    Sent per step: one row and its weight to each out-neighbour, in one message.  `W`: column (or doubly) stochastic,
    directed or not, constant or varying in time.  The gradient is taken at the ratio `X`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> W = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    >>> with mpidec.Network(3) as net:
    ...     mix = net.mixer(mpidec.topology.from_weights(W))
    ...     s = PushSum().init(np.array([[3.], [0.], [0.]]))
    ...     for k in range(60):
    ...         s = PushSum().step(s, 0, mix.at(k))
    >>> s.X.round(9).ravel().tolist()
    [1.0, 1.0, 1.0]

    References
    ----------
    D. Kempe, A. Dobra, J. Gehrke, "Gossip-based computation of aggregate information", FOCS 2003, Protocol 1.
    M. Assran, N. Loizou, N. Ballas, M. Rabbat, "Stochastic gradient push", ICML 2019, Algorithm 1.
    """

    kinds: ClassVar = ("doubly", "column")
    step_size: float = 0.0

    class State(NamedTuple):
        X: np.ndarray
        U: np.ndarray
        w: np.ndarray

    def init(self, X: np.ndarray, W: Any = None) -> State:
        return self.State(X, X, np.ones((len(X), 1), X.dtype))

    def step(self, s: State, G: np.ndarray, W: Any) -> State:
        U, w = W([s.U - self.step_size * G, s.w])
        return self.State(U / w, U, w)


@dataclass(frozen=True)
class PushDIGing(Solver):
    r"""Push-DIGing: gradient tracking over directed, time-varying graphs.

    .. math::
        U^{k+1} &= W (U^k - \alpha Y^k), \qquad w^{k+1} = W w^k, \qquad X^{k+1} = U^{k+1} / w^{k+1} \\
        Y^{k+1} &= W Y^k + \nabla F(X^{k+1}) - \nabla F(X^k), \qquad Y^0 = \nabla F(X^0)

    Parameters
    ----------
    step_size : float
        :math:`\alpha`

    Notes
    -----
    Sent per step: two rows and a weight to each out-neighbour, in one message.  `W`: column (or doubly) stochastic,
    directed or not, constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((3, 1, 1)), np.array([[1.], [2.], [6.]]))
    >>> W = mpidec.topology.from_weights([[0.5, 0, 1/3], [0.5, 0.5, 1/3], [0, 0.5, 1/3]])
    >>> mpidec.solve(problem, PushDIGing(0.2), W, steps=300).X.round(9).ravel().tolist()
    [3.0, 3.0, 3.0]

    References
    ----------
    A. Nedic, A. Olshevsky, W. Shi, "Achieving geometric convergence for distributed optimization over time-varying graphs",
    SIAM J. Optim. 27 (2017), Algorithm 2.
    """

    kinds: ClassVar = ("doubly", "column")
    step_size: float

    class State(NamedTuple):
        X: np.ndarray
        U: np.ndarray
        w: np.ndarray
        V: np.ndarray                                # W Y of the step before
        G: np.ndarray

    def init(self, X: np.ndarray, W: Any = None) -> State:
        return self.State(X, X, np.ones((len(X), 1), X.dtype), np.zeros_like(X), np.zeros_like(X))

    def step(self, s: State, G: np.ndarray, W: Any) -> State:
        Y = s.V + G - s.G
        U, w, V = W([s.U - self.step_size * Y, s.w, Y])
        return self.State(U / w, U, w, V, G)
