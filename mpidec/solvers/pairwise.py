"""Pairwise methods: gradients at each agent's own pace, averagings of two neighbours at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from .asynchronous import PairwiseSolver, Place
from .needs import Factor, Needs, OneOf, Positive, Within
from .step_schedules import StepSize


@dataclass(frozen=True)
class PairwiseGossip(PairwiseSolver):
    r"""Asynchronous gossip: agents take gradient steps, and pairs of neighbours average,
    asynchronously.

    .. math::
        \text{gradient of agent } i:\; & b_i \leftarrow \beta b_i + \nabla f_i(x_i), \quad x_i \leftarrow x_i - \gamma b_i \\
        \text{averaging of } i \text{ and } j:\; & x_i, x_j \leftarrow \tfrac12 (x_i + x_j)

    Without a problem, randomized gossip: all agents converge to the average of their initial
    points.

    Parameters
    ----------
    step_size : float, "auto" or function of k
        :math:`\gamma`; a function of the agent's own number k of gradients.
    momentum : float
        :math:`\beta`, in [0, 1).
    rate : float, dict or matrix
        Averagings of each agent in a unit of time (one gradient), or the rates of the edges.

    Notes
    -----
    Sent per averaging: one row each way.  Graph: undirected and connected; the weights of `W` are
    not used.  With a constant step size, the agents come near the minimizer, to a distance
    proportional to the step size.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> result = mpidec.simulate(
    ...     None, PairwiseGossip(), "ring", steps=100, x0=np.array([[0.0], [1.0], [2.0], [5.0]])
    ... )
    >>> result.X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    S. Boyd, A. Ghosh, B. Prabhakar, D. Shah, "Randomized gossip algorithms", IEEE Trans. Inf.
    Theory 52 (2006). X. Lian, W. Zhang, C. Zhang, J. Liu, "Asynchronous decentralized parallel
    stochastic gradient descent", ICML 2018 (AD-PSGD).
    """

    needs: ClassVar = Needs(graph="ring")
    step_size: StepSize = "auto"
    momentum: Factor = 0.0
    rate: Any = 1.0

    @dataclass(slots=True, eq=False)
    class State:
        x: np.ndarray
        b: np.ndarray
        t: float = 0.0
        k: int = 0

    def init(self, x: np.ndarray, place: Place | None = None) -> State:
        return self.State(x.copy(), np.zeros_like(x))

    def gradient_point(self, s: State, t: float) -> np.ndarray:
        return s.x

    def descend(self, s: State, g: np.ndarray, t: float) -> None:
        s.x -= _movement(self, s, g)
        s.t = t

    def offer(self, s: State, t: float) -> np.ndarray:
        return np.array(s.x)

    def average(self, s: State, mine: np.ndarray, theirs: np.ndarray, t: float) -> None:
        s.x -= 0.5 * (mine - theirs)
        s.t = t


@dataclass(frozen=True)
class A2CiD2(PairwiseSolver):
    r"""A2CiD2: asynchronous gossip, accelerated by a continuous momentum.

    .. math::
        dx_i         &= \eta (\tilde x_i - x_i)\, dt - \gamma \nabla f_i(x_i)\, dN_i
                        - \alpha \textstyle\sum_j (x_i - x_j)\, dM_{ij} \\
        d\tilde x_i  &= \eta (x_i - \tilde x_i)\, dt - \gamma \nabla f_i(x_i)\, dN_i
                        - \tilde\alpha \textstyle\sum_j (x_i - x_j)\, dM_{ij}

    with :math:`\tilde x_i(0) = x_i(0)`, where :math:`N_i` counts the gradients of agent i and
    :math:`M_{ij}` its averagings with j. Between two events of the agent, the first term is
    integrated in closed form.  With :math:`\chi_1, \chi_2` of the graph
    (`mpidec.topology.mixing_constants`), the disagreement shrinks in a time :math:`\sqrt{\chi_1
    \chi_2}` instead of :math:`\chi_1`, by default with

    .. math:: \eta = \frac{1}{2 \sqrt{\chi_1 \chi_2}}, \qquad \alpha = \frac12, \qquad
              \tilde\alpha = \frac12 \sqrt{\chi_1 / \chi_2}

    The average over all agents of :math:`x_i + \tilde x_i` is changed by gradients only.

    Parameters
    ----------
    step_size : float, "auto" or function of k
        :math:`\gamma`; a function of the agent's own number k of gradients.
    eta : float, optional
        :math:`\eta`; by default that of the graph and of `rate`.  0: the iterates are those of
        `PairwiseGossip`, bit-identical.
    alpha : float
        :math:`\alpha`
    alpha_tilde : float, optional
        :math:`\tilde\alpha`; by default that of the graph, or `alpha` if `eta` is 0.
    momentum : float
        :math:`\beta` in [0, 1), of :math:`b_i \leftarrow \beta b_i + \nabla f_i(x_i)`, which takes
        the place of the gradient.
    rate : float, dict or matrix
        Averagings of each agent in a unit of time (one gradient), or the rates of the edges.
    order : {"sde", "algorithm", "code"}
        Order of the operations in an event.  "sde": both agents integrate to the time of the event,
        then exchange, as in the equations; gradients are taken at the integrated point.
        "algorithm": agents exchange and take gradients first, then integrate, then move by the
        difference of what they have exchanged.  "code": as the published code, they exchange first,
        integrate, and then move by the difference to what they have received; this does not
        preserve the average, and loses much of the acceleration.

    Notes
    -----
    Sent per averaging: one row each way.  Graph: undirected and connected; the weights of `W` are
    not used.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> x0 = np.arange(16.0).reshape(16, 1)
    >>> solvers = [A2CiD2(0.0), A2CiD2(0.0, eta=0.0)]
    >>> fast, slow = [mpidec.simulate(None, solver, "ring", steps=60, x0=x0).metrics["consensus"][-1]
    ...               for solver in solvers]
    >>> bool(fast < slow / 10)
    True

    References
    ----------
    A. Nabli, E. Belilovsky, E. Oyallon, "A2CiD2: accelerating asynchronous communication in
    decentralized deep learning", NeurIPS 2023, equation (4) and Algorithm 1.
    """

    needs: ClassVar = Needs(graph="ring")
    step_size: StepSize = "auto"
    eta: Annotated[float | None, Within(least=0)] = None
    alpha: Positive = 0.5
    alpha_tilde: Annotated[float | None, Within(least=0)] = None
    momentum: Factor = 0.0
    rate: Any = 1.0
    order: Annotated[str, OneOf("sde", "algorithm", "code")] = "sde"

    @dataclass(slots=True, eq=False)
    class State:
        x: np.ndarray
        x_tilde: np.ndarray
        b: np.ndarray
        t: float = 0.0
        k: int = 0

    def prepared(self, constants: Callable[[Any], tuple[float, float]]) -> A2CiD2:
        eta, alpha_tilde = self.eta, self.alpha_tilde
        if eta == 0 and alpha_tilde is None:
            alpha_tilde = self.alpha
        if eta is None or alpha_tilde is None:
            chi1, chi2 = constants(self.rate)
            lone = chi1 == 0  # a single agent
            eta = (0.0 if lone else 0.5 / math.sqrt(chi1 * chi2)) if eta is None else eta
            alpha_tilde = (
                (self.alpha if lone else 0.5 * math.sqrt(chi1 / chi2))
                if alpha_tilde is None
                else alpha_tilde
            )
        return replace(self, eta=eta, alpha_tilde=alpha_tilde)

    def init(self, x: np.ndarray, place: Place | None = None) -> State:
        return self.State(x.copy(), x.copy(), np.zeros_like(x))

    def gradient_point(self, s: State, t: float) -> np.ndarray:
        if self.order == "sde":
            self._mix(s, t)
        return s.x

    def descend(self, s: State, g: np.ndarray, t: float) -> None:
        if s.t < t:
            self._mix(s, t)
        movement = _movement(self, s, g)
        s.x -= movement
        s.x_tilde -= movement

    def offer(self, s: State, t: float) -> np.ndarray:
        if self.order == "sde":
            self._mix(s, t)
        return np.array(s.x)

    def average(self, s: State, mine: np.ndarray, theirs: np.ndarray, t: float) -> None:
        if s.t < t:
            self._mix(s, t)
        m = (s.x if self.order == "code" else mine) - theirs
        s.x -= self.alpha * m
        m *= self.alpha_tilde
        s.x_tilde -= m

    def _mix(self, s: State, t: float) -> None:
        """Integrate to time `t`; the sum of x and x_tilde stays the same."""
        elapsed = t - s.t
        if elapsed <= 0:
            return
        s.t = t
        if self.eta:
            h = s.x_tilde - s.x
            h *= -0.5 * math.expm1(-2 * self.eta * elapsed)
            s.x += h
            s.x_tilde -= h


def _movement(
    solver: PairwiseGossip | A2CiD2, s: PairwiseGossip.State | A2CiD2.State, g: np.ndarray
) -> np.ndarray:
    step: Any = solver.size(s.k)
    s.k += 1
    if solver.momentum:
        s.b *= solver.momentum
        s.b += g
        g = s.b
    movement: np.ndarray = step * g
    return movement
