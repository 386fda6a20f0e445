"""Asynchronous push methods: agents wake up independently and send without waiting for
answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .asynchronous import Gradient, Place, PushSolver
from .needs import Needs
from .step_schedules import StepSize

# The least weight that is shared: far above the smallest numbers, and far below what agents have.
_LEAST = 2.0**-40


@dataclass(frozen=True)
class AsyncPushSum(PushSolver):
    r"""Asynchronous push-sum: agents push shares of their mass to their receivers, which add up
    whatever arrives.

    An agent with r receivers that wakes up

    .. math::
        u, w &\leftarrow u + \textstyle\sum u_{\text{arrived}},\; w + \textstyle\sum w_{\text{arrived}}, & x &= u / w \\
        u &\leftarrow u - \alpha \min(1, 10 w)\, \nabla f_i(x) \\
        \text{with news, sends } &(u, w) / (r + 1) \text{ to each receiver, and keeps the rest}

    With :math:`w = 1` at first.  Without a problem, :math:`x` converges to the average of the
    initial points: the sums of u and w over all agents and all messages in flight never change,
    whatever the delays and the paces.  With one, asynchronous subgradient-push.

    An agent to which nothing has arrived since it last sent only takes its gradient step.  If it
    sent shares of shares, w would vanish at agents that are faster than their senders, and the
    steps of :math:`x = u / w` would grow without bound.  Where most of the mass waits at agents
    that sleep, w is small nevertheless: the factor :math:`\min(1, 10 w)`, which is 1 otherwise,
    keeps the steps of x below :math:`10 \alpha`.  Nor does an agent with :math:`w < 2^{-40}` send:
    while an agent sleeps, or has died, all mass would come to lie in its mailbox.

    Parameters
    ----------
    step_size : float, "auto" or function of k
        :math:`\alpha`; a function of the agent's own number k of wake-ups.

    Notes
    -----
    Sent per wake-up: at most one row and its weight to each receiver, in one message.  Graph:
    strongly connected, directed or not; the weights of `W` are not used.  A lost message is lost
    mass: `RunningSumTracking` tolerates that.  With a constant step size, the agents come near the
    minimizer of a sum in which :math:`f_i` counts as often as agent i wakes up.

    With `on_failure="drop"`, the mass of agents that die is lost, but not what they have not read.
    The agents L that are left, with M the sum of their w then, go on with

    .. math:: u_i \leftarrow \frac{|L|}{M} u_i, \qquad w_i \leftarrow \frac{|L|}{M} w_i

    which changes no estimate :math:`x_i = u_i / w_i`, and lets the w sum to the number of agents,
    by which the steps of the average, :math:`\alpha \sum_i \nabla f_i / \sum_i w_i`, have their
    length.
    Without a problem the limit is :math:`\sum_L u_i / \sum_L w_i`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> x0 = np.array([[0.], [1.], [2.], [5.]])
    >>> result = mpidec.simulate(None, AsyncPushSum(), "exponential", steps=100, x0=x0, delay=(0, 2))
    >>> result.X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    D. Kempe, A. Dobra, J. Gehrke, "Gossip-based computation of aggregate information", FOCS 2003.
    M. Assran, M. Rabbat, "Asynchronous gradient push", IEEE Trans. Autom. Control 66 (2021).
    """

    accumulates: ClassVar = True
    needs: ClassVar = Needs(graph="exponential")
    step_size: StepSize = "auto"

    @dataclass(slots=True, eq=False)
    class State:
        x: np.ndarray
        u: np.ndarray
        w: float
        receivers: int
        # Whether anything has arrived since the agent last sent.
        news: bool = True
        k: int = 0

    def width(self, d: int) -> int:
        return d + 1

    def init(self, x: np.ndarray, place: Place | None = None) -> State:
        return self.State(x.copy(), x.copy(), 1.0, 0 if place is None else len(place.receivers))

    def collect(self, s: State, received: np.ndarray | None) -> None:
        if received is not None:
            s.u += received[:-1]
            s.w += float(received[-1])
            s.news = True
            np.divide(s.u, s.w, out=s.x)

    def mass(self, s: State) -> float:
        return s.w

    def go_on(self, s: State, before: State, scale: float) -> None:
        s.k, s.w = before.k, scale * before.w
        np.multiply(before.u, scale, out=s.u)
        np.divide(s.u, s.w, out=s.x)

    def wake(
        self, s: State, received: np.ndarray | None, gradient: Gradient | None
    ) -> np.ndarray | None:
        self.collect(s, received)
        if gradient is not None:
            s.u -= self.size(s.k) * min(1.0, 10 * s.w) * gradient(s.x)
        s.k += 1
        message = self._share(s) if s.news and s.w >= _LEAST else None
        np.divide(s.u, s.w, out=s.x)
        return message

    def _share(self, s: State) -> np.ndarray:
        shares = s.receivers + 1
        message = np.empty(len(s.u) + 1, s.u.dtype)
        np.divide(s.u, shares, out=message[:-1])
        message[-1] = s.w / shares
        # the rest, so that the rounding of the shares loses no mass
        s.u -= s.receivers * message[:-1]
        s.w -= s.receivers * float(message[-1])
        s.news = False
        return message


@dataclass(frozen=True)
class RunningSumTracking(PushSolver):
    r"""Gradient tracking by running sums: exact and linear although messages are late, lost or
    repeated.

    An agent with p senders and r receivers that wakes up, with the latest :math:`(v_j, \rho_j)` of
    each sender j,

    .. math::
        v &= x - \gamma z \\
        x &\leftarrow \tfrac{1}{p + 1} \bigl( v + \textstyle\sum_j v_j \bigr) \\
        \hat z &= z + \nabla f_i(x) - g + \textstyle\sum_j \rho_j - \bar\rho, \qquad
            g \leftarrow \nabla f_i(x), \quad \bar\rho \leftarrow \textstyle\sum_j \rho_j \\
        \rho &\leftarrow \rho + \tfrac{1}{r + 1} \hat z, \qquad z \leftarrow \tfrac{1}{r + 1} \hat z \\
        \text{sends } & (v, \rho)

    With :math:`z = g = \rho = \bar\rho = 0` at first.  :math:`\rho` is the sum of all that the
    agent has ever sent of its estimate z of the gradients' sum: a message that arrives makes up for
    those that did not.

    Parameters
    ----------
    step_size : float, "auto" or function of k
        :math:`\gamma`; a function of the agent's own number k of wake-ups.

    Notes
    -----
    Sent per wake-up: two rows, and a count, to each receiver, in one message that replaces the
    earlier one.  Graph: strongly connected, directed or not; the weights of `W` are not used.
    Until the first message of a sender arrives, the agent takes its own v in the place of
    :math:`v_j`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((3, 1, 1)), np.array([[1.], [2.], [6.]]))
    >>> result = mpidec.simulate(problem, RunningSumTracking(0.5), "exponential", steps=600, drop=0.3)
    >>> result.X.round(9).ravel().tolist()
    [3.0, 3.0, 3.0]

    References
    ----------
    Y. Tian, Y. Sun, G. Scutari, "Achieving linear convergence in distributed asynchronous
    multiagent optimization", IEEE Trans. Autom. Control 65 (2020) (ASY-SONATA). Z. Zhu, Y. Tian, Y.
    Huang, J. Xu, S. He, "R-FAST: robust fully-asynchronous stochastic gradient tracking over
    general topology", arXiv 2307.11617.
    """

    accumulates: ClassVar = False
    exact: ClassVar = True
    needs_problem: ClassVar = True
    needs: ClassVar = Needs(graph="exponential")
    safe: ClassVar = 1.0
    step_size: StepSize = "auto"

    @dataclass(slots=True, eq=False)
    class State:
        x: np.ndarray
        v: np.ndarray
        z: np.ndarray
        g: np.ndarray
        rho: np.ndarray
        rho_read: np.ndarray  # the sum over the senders
        receivers: int
        k: int = 0

    def width(self, d: int) -> int:
        return 2 * d + 1

    def init(self, x: np.ndarray, place: Place | None = None) -> State:
        v, z, g, rho, rho_read = np.zeros_like(x, shape=(5, len(x)))
        return self.State(
            x.copy(), v, z, g, rho, rho_read, receivers=0 if place is None else len(place.receivers)
        )

    def wake(self, s: State, received: np.ndarray | None, gradient: Gradient | None) -> np.ndarray:
        if received is None or gradient is None:
            raise ValueError(
                "RunningSumTracking.wake needs the array of the latest messages and a gradient, "
                "got None"
            )
        d, shares = len(s.x), s.receivers + 1
        s.v[:] = s.x - self.size(s.k) * s.z
        total = np.add.reduce(received, axis=0)
        # Itself, and senders that have not sent yet.
        own = 1 + len(received) - np.count_nonzero(received[:, -1])
        np.divide(own * s.v + total[:d], len(received) + 1, out=s.x)
        g, rho = gradient(s.x), total[d:-1]
        z = s.z + (g - s.g) + (rho - s.rho_read)
        s.g[:], s.rho_read[:] = g, rho
        rho = s.rho + z / shares
        # The rounding of the sum loses no mass.
        np.subtract(z, s.receivers * (rho - s.rho), out=s.z)
        s.rho[:] = rho
        s.k += 1
        return self.last_message(s)

    def last_message(self, s: State) -> np.ndarray:
        return np.concatenate([s.v, s.rho, [s.k]], dtype=s.v.dtype)
