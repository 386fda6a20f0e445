"""DSGD-CECA: gradient descent with averages that are exact after ceil(log2 n) rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import Solver, name_of
from .needs import Needs
from .step_schedules import StepSize


@dataclass(frozen=True)
class DSGDCECA(Solver):
    r"""DSGD-CECA: two variables per agent, one of which is sent to one agent in each round; for any
    number of agents.

    A row of `X` averages over an agent and the :math:`n_r` agents before it, a row of `Y` over
    those :math:`n_r` agents alone.  Round r of the schedule has the binary digit :math:`\delta_r`
    of n - 1, and :math:`n_{r+1} = 2 n_r + \delta_r`. With the gradient `G` at `X` if
    :math:`\delta_r = 1` and at `Y` otherwise, :math:`X' = X - \alpha G`, :math:`Y' = Y - \alpha G`,
    and s(i) the agent that sends to i,

    .. math::
        \delta_r = 1:\; X_i^+ &= \tfrac{1}{2} (X'_i + X'_{s(i)}), &
                        Y_i^+ &= \tfrac{(n_r + 1) X'_{s(i)} + n_r Y'_i}{2 n_r + 1} \\
        \delta_r = 0:\; X_i^+ &= \tfrac{(n_r + 1) X'_i + n_r Y'_{s(i)}}{2 n_r + 1}, &
                        Y_i^+ &= \tfrac{1}{2} (Y'_i + Y'_{s(i)})

    With `step_size=0` every row of `X` is the exact average after :math:`\lceil \log_2 n \rceil`
    rounds.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`

    Notes
    -----
    Sent per step: one row to one agent: of :math:`X'` if :math:`\delta_r = 1`, of :math:`Y'`
    otherwise.  `W`: `topology.ceca(n, ports=1 | 2)`, with two ports for any n, and with one port
    (the partner sends back) for even n.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> X = np.arange(1., 7.).reshape(6, 1)
    >>> with mpidec.Network(6) as net:
    ...     W = net.mixer(mpidec.topology.ceca(6))
    ...     s = DSGDCECA(0.0).init(X)
    ...     for k in range(3):
    ...         s = DSGDCECA(0.0).step(s, 0, W.at(k))
    >>> s.X.ravel().tolist()
    [3.5, 3.5, 3.5, 3.5, 3.5, 3.5]

    References
    ----------
    L. Ding, K. Jin, B. Ying, K. Yuan, W. Yin, "DSGD-CECA: decentralized SGD with
    communication-optimal exact consensus algorithm", ICML 2023, Algorithm 1 with equations (8),
    (9); with one port, equation (7).
    """

    keeps_rows: ClassVar = True
    needs: ClassVar = Needs(graph="ceca", exchange=True)
    exact: ClassVar = False
    step_size: StepSize = "auto"

    class State(NamedTuple):
        X: np.ndarray
        Y: np.ndarray
        digit: int  # of the next round

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, 1)

    def point(self, s: State) -> np.ndarray:
        return s.X if s.digit else s.Y

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        X, Y = descend(s.X, self.step_size, G), descend(s.Y, self.step_size, G)
        n_r = W.topology.count
        if s.digit:
            X_s = _sender(X, W)
            X, Y = (X + X_s) / 2, ((n_r + 1) * X_s + n_r * Y) / (2 * n_r + 1)
        else:
            Y_s = _sender(Y, W)
            X, Y = ((n_r + 1) * X + n_r * Y_s) / (2 * n_r + 1), (Y + Y_s) / 2
        return self.State(X, Y, W.next.topology.digit)

    def check(self, topology: Graph) -> None:
        if topology.name != "ceca":
            raise ValueError(
                f"{name_of(self)} needs topology.ceca(n, ports=1 | 2), got the {topology.name} "
                "topology"
            )


def _sender(Z: np.ndarray, W: Operator) -> np.ndarray:
    """Row i is row s(i) of `Z`."""
    return W.sum_edges(W.exchange(W.to_edges(Z))) if W.n > 1 else Z
