"""Federated methods: local steps, then an average over all agents, or over a random sample of them.

Every agent holds a copy of the server's variables.  With `topology.sampled_average`,
`LocalDGD` is FedAvg, and `DiLoCo` FedAvg with server momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from .._complex import by_parts
from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import is_sample, name_of, per_step, zeros
from .needs import Factor, Needs, OneOf, Positive, Within
from .outer import _LocalSteps
from .step_schedules import StepSize


@dataclass(frozen=True)
class FedProx(_LocalSteps):
    r"""FedProx: local steps that a quadratic holds near the last average.

    .. math::
        Y &\leftarrow Y - \alpha (\nabla F(Y) + \mu (Y - X^t)) \quad H \text{ times}, \text{ from } Y = X^t \\
        X^{t+1} &= W^t Y

    With :math:`\mu = 0` this is `LocalDGD`.  The paper solves the local problem :math:`\min_y
    f_i(y) + \tfrac\mu2 \|y - x^t\|^2` to any accuracy; H gradient steps are its usual
    implementation.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps.
    proximal : float
        :math:`\mu \ge 0`; its unit is that of a curvature.
    local_steps : int
        H; the paper leaves it open.

    Notes
    -----
    Sent per H steps: one row, of `Y`.  `W`: as for `LocalDGD`.  The bias is smaller than that of
    `LocalDGD` by a factor that falls with :math:`\mu`, and so is the speed.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, FedProx(0.1), "complete", steps=400).x.round(6).tolist()
    [2.0]

    References
    ----------
    T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated optimization in
    heterogeneous networks", MLSys 2020.
    """

    needs: ClassVar = Needs(samples=True, graph="complete")
    step_size: StepSize = "auto"
    proximal: Annotated[float, Within(least=0.0)] = 0.1
    local_steps: int = 5

    class State(NamedTuple):  # Z: X at the last outer step
        X: np.ndarray
        Z: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, 0)

    def _local(self, s: State, G: np.ndarray) -> np.ndarray:
        return descend(s.X, self.step_size, G + self.proximal * (s.X - s.Z))

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        X = W(X)
        return self.State(X, X, s.k + 1)


@dataclass(frozen=True)
class FedOpt(_LocalSteps):
    r"""FedOpt: the average movement of the local steps is the pseudo-gradient of an adaptive method
    (FedAdam, FedYogi, FedAdagrad).

    With `Y` the end of H local steps :math:`Y \leftarrow Y - \alpha \nabla F(Y)` from :math:`X^t`,
    and squares, roots and quotients entry by entry,

    .. math::
        \Delta^t &= W^t (Y - X^t) \\
        M^{t+1} &= \beta_1 M^t + (1 - \beta_1) \Delta^t, \qquad M^0 = 0 \\
        V^{t+1} &= \begin{cases} V^t + (\Delta^t)^2 & \text{adagrad} \\
                   V^t - (1 - \beta_2) (\Delta^t)^2 \operatorname{sign}(V^t - (\Delta^t)^2) & \text{yogi} \\
                   \beta_2 V^t + (1 - \beta_2) (\Delta^t)^2 & \text{adam} \end{cases}, \qquad V^0 = \tau^2 \\
        X^{t+1} &= W^t X^t + \eta \frac{M^{t+1}}{\sqrt{V^{t+1}} + \tau}

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, of the local steps; k counts them.
    outer_step : float
        :math:`\eta > 0`; an entry moves by about so much in an outer step, whatever :math:`\alpha`
        is.
    method : {"adam", "yogi", "adagrad"}
    momentum, decay : float
        :math:`\beta_1` and :math:`\beta_2`, in [0, 1).
    floor : float
        :math:`\tau > 0`, the degree of adaptivity.
    local_steps : int
        H; the paper leaves it open.

    Notes
    -----
    Sent per H steps: two rows, of :math:`Y - X^t` and :math:`X^t`, which all agents hold alike but
    for rounding: without its mixing, small denominators make rounding errors grow.  `W`: the
    complete graph, or `topology.sampled_average`; with other doubly stochastic graphs it is a
    variant of this package.  Real and imaginary parts of complex rows are entries of their own.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, FedOpt(0.1), "complete", steps=2000).x.round(6).tolist()
    [2.0]

    References
    ----------
    S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan,
    "Adaptive federated optimization", ICLR 2021.
    """

    needs: ClassVar = Needs(samples=True, graph="complete")
    adaptive: ClassVar = True
    step_size: StepSize = "auto"
    outer_step: Positive = 0.1
    method: Annotated[str, OneOf("adam", "yogi", "adagrad")] = "adam"
    momentum: Factor = 0.9
    decay: Factor = 0.99
    floor: Positive = 1e-3
    local_steps: int = 5

    class State(NamedTuple):  # Z: X at the last outer step
        X: np.ndarray
        Z: np.ndarray
        M: np.ndarray
        V: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        zero = zeros(X, *X.shape)
        return self.State(X, X, zero, by_parts(lambda V: V + self.floor**2, zero), 0)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        (D, Z), b1 = W([X - s.Z, s.Z]), self.momentum
        M, V = b1 * s.M + (1 - b1) * D, by_parts(self._second, s.V, D)
        X = Z + self.outer_step * by_parts(lambda M, V: M / (V**0.5 + self.floor), M, V)
        return self.State(X, X, M, V, s.k + 1)

    def _second(self, V: np.ndarray, D: np.ndarray) -> np.ndarray:
        b2, square = self.decay, D * D
        following: np.ndarray = b2 * V + (1 - b2) * square
        if self.method == "adagrad":
            following = V + square
        elif self.method == "yogi":
            following = V + (1 - b2) * (square * (square > V) - square * (square < V))
        return following


@dataclass(frozen=True)
class SCAFFOLD(_LocalSteps):
    r"""SCAFFOLD: local steps corrected by control variates; exact for any H, with partial
    participation, too.

    .. math::
        y_i &\leftarrow y_i - \alpha (\nabla f_i(y_i) + c^t - c_i^t) \quad H \text{ times}, \text{ from } y_i = x^t \\
        d_i &= (x^t - y_i) / (H \alpha) - c^t, \qquad i \in S^t \\
        x^{t+1} &= x^t + \frac{\eta}{|S^t|} \sum_{i \in S^t} (y_i - x^t) \\
        c^{t+1} &= c^t + \frac1n \sum_{i \in S^t} d_i, \qquad c_i^{t+1} = c_i^t + d_i \text{ for } i \in S^t, \qquad c^0 = c_i^0 = 0

    This is option II of the paper.  If all agents take part, it is `KGT` on the complete graph.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps, and the outer step uses the step size of the last
        one.
    outer_step : float
        :math:`\eta > 0`
    local_steps : int
        H; the paper leaves it open.

    Notes
    -----
    Sent per H steps: two rows, of :math:`y_i` and :math:`d_i`, and a number, by which the agents
    learn how many take part, in one message.  `W`: the complete graph, or
    `topology.sampled_average`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> half = mpidec.topology.sampled_average(4, 0.5)
    >>> mpidec.solve(problem, SCAFFOLD(0.1), half, steps=600).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD:
    stochastic controlled averaging for federated learning", ICML 2020.
    """

    needs: ClassVar = Needs(samples=True, graph="complete")
    exact: ClassVar = True
    step_size: StepSize = "auto"
    outer_step: Positive = 1.0
    local_steps: int = 5

    class State(
        NamedTuple
    ):  # Z: X at the last outer step; c: the same on all agents; C: the agents' own
        X: np.ndarray
        Z: np.ndarray
        c: np.ndarray
        C: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape), zeros(X, *X.shape), 0)

    def _local(self, s: State, G: np.ndarray) -> np.ndarray:
        return descend(s.X, self.step_size, G + s.c - s.C)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        alpha: Any = self.step_size
        D = per_step(s.Z - X, self.local_steps * alpha) - s.c
        # 1 / |S| for those that take part, otherwise 0.
        share = W.own(zeros(X, len(X), 1) + 1)
        X, WD, inverse = W([X, D, share])
        X = s.Z + self.outer_step * (X - s.Z)
        return self.State(X, X, s.c + WD / (W.n * inverse), s.C + (share > 0) * D, s.k + 1)

    def check(self, topology: Graph) -> None:
        super().check(topology)
        if is_sample(topology) or topology.n == 1:
            return
        if topology.period != 1 or topology.at(0).spectral_gap() < 1 - 1e-9:
            raise ValueError(
                f"{name_of(self)} averages over all agents, or over a sample of them, the "
                f"{topology.name} topology does not: "
                'use "complete" or "sampled_average", or KGT, its form for other graphs'
            )
