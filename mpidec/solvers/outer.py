"""Methods with local steps: H gradient steps without communication, then one outer step with one
mixing.

As a step of training, where another optimizer has taken the local steps, the outer step is that of
`local_steps=1`, with the pseudo-gradient (start minus end of the local steps, divided by the step
size) in place of the gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import _LARGE, LocalSolver, Solver, disagreement, name_of, per_step, zeros
from .needs import Factor, Needs, Positive, Within
from .step_schedules import StepSize


class _LocalSteps(LocalSolver):
    """Solver whose state counts the steps: every `local_steps`-th one ends with an outer step."""

    exact: ClassVar = False

    def step(self, s: Any, G: np.ndarray, W: Operator) -> Any:
        H, X = self.local_steps, self._local(s, G)
        if (s.k + 1) % H:
            return s._replace(X=X, k=s.k + 1)
        # The operator of the mixing's own number.
        return self._outer(s, X, W if H == 1 else W.at(s.k // H))

    def _local(self, s: Any, G: np.ndarray) -> np.ndarray:
        """Return the iterate after a local step."""
        return descend(s.X, self.step_size, G)

    @abstractmethod
    def _outer(self, s: Any, X: np.ndarray, W: Operator) -> Any:
        """Return the state after the outer step from the end `X` of the local steps."""


@dataclass(frozen=True)
class LocalDGD(_LocalSteps):
    r"""Local SGD over a network: H gradient steps, then a mixing.

    .. math::
        Y &\leftarrow Y - \alpha \nabla F(Y) \quad H \text{ times}, \text{ from } Y = X^t \\
        X^{t+1} &= W^t Y

    With H = 1 this is `Diffusion`, with the complete graph local SGD, and with
    `topology.sampled_average` federated averaging (FedAvg) with partial participation.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps.
    local_steps : int
        H

    Notes
    -----
    Sent per H steps: one row, of `Y`, to each neighbour.  `W`: doubly stochastic, constant or
    varying in time; mixing t uses :math:`W^t`.  The bias grows with H.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, LocalDGD(0.1, local_steps=4), "complete", steps=200).x.round(6).tolist()
    [2.0]

    References
    ----------
    A. Koloskova, N. Loizou, S. Boreiri, M. Jaggi, S. Stich, "A unified theory of decentralized SGD
    with changing topology and local updates", ICML 2020.
    """

    needs: ClassVar = Needs(samples=True, graph="exponential")
    step_size: StepSize = "auto"
    local_steps: int = 5

    class State(NamedTuple):
        X: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, 0)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        return self.State(W(X), s.k + 1)


@dataclass(frozen=True)
class SlowMo(_LocalSteps):
    r"""SlowMo: slow momentum on the total movement of H local steps and a mixing.

    With `Y` the end of H local steps :math:`Y \leftarrow Y - \alpha \nabla F(Y)` from :math:`X^t`,

    .. math::
        U^{t+1} &= \beta U^t + (X^t - W^t Y) / \alpha, \qquad U^0 = 0 \\
        X^{t+1} &= X^t - a \alpha U^{t+1}

    With the complete graph this is SlowMo as published for local SGD, in which all agents start an
    outer step at the same point; with other graphs it is a variant of this package.  The paper
    gossips otherwise: with `gossip=True` every step mixes, :math:`Y \leftarrow W^k (Y - \alpha
    \nabla F(Y))`, and the outer step follows the last one, without :math:`W^t`.  Over
    `topology.periodic_average(graph, H)`, whose every H-th mixing is the exact average, this is its
    algorithm over the graph; over the graph itself the paper's variant without exact averages.

    With H = 1 and a = 1 it is `DecentLaM`, with :math:`\beta = 0` and a = 1 `LocalDGD`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps, and the outer step uses the step size of the last
        one.  If this is 0, the movement counts as zero in :math:`U`, and is applied to :math:`X`.
    slow_step : float
        a > 0, the slow learning rate.
    momentum : float
        :math:`\beta`, in [0, 1).
    local_steps : int
        H, by default 12, as in the paper's experiments on CIFAR-10.
    gossip : bool
        Whether every step mixes.

    Notes
    -----
    Sent per H steps (`gossip`: per step): one row, of `Y`, to each neighbour.  `W`: symmetric,
    doubly stochastic, constant, such as the complete graph; a `W` whose eigenvalues make the method
    unstable causes a warning.  With `gossip`, doubly stochastic.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, SlowMo(0.1, local_steps=4), "complete", steps=400).x.round(6).tolist()
    [2.0]

    References
    ----------
    J. Wang, V. Tantia, N. Ballas, M. Rabbat, "SlowMo: improving communication-efficient distributed
    SGD with slow momentum", ICLR 2020.
    """

    needs: ClassVar = Needs(samples=True, graph="complete")
    step_size: StepSize = "auto"
    slow_step: Positive = 1.0
    momentum: Factor = 0.5
    local_steps: int = 12
    gossip: bool = False

    class State(NamedTuple):  # Z: X at the last outer step
        X: np.ndarray
        Z: np.ndarray
        U: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape), 0)

    def advice(self, steps: int) -> str:
        return "" if self.gossip else super().advice(steps)

    def step(self, s: State, G: np.ndarray, W: Operator) -> State:
        if not self.gossip:
            stepped: SlowMo.State = super().step(s, G, W)
            return stepped
        X = W(self._local(s, G))
        if (s.k + 1) % self.local_steps:
            return s._replace(X=X, k=s.k + 1)
        return self._slow(s, s.Z - X)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        return self._slow(s, s.Z - W(X))

    def _slow(self, s: State, D: np.ndarray) -> State:
        alpha: Any = self.step_size
        U = self.momentum * s.U
        X = descend(s.Z - self.slow_step * D, self.slow_step * alpha, U)
        return self.State(X, X, U + per_step(D, alpha), s.k + 1)

    def unstable(self, topology: Graph) -> str:
        a, b, H = self.slow_step, self.momentum, self.local_steps if self.gossip else 1
        return disagreement(
            self,
            topology,
            lambda lam: [1, -(1 - a * (1 - lam**H) + b), b],
            "use a smaller slow_step or momentum",
        )


@dataclass(frozen=True)
class DiLoCo(_LocalSteps):
    r"""DiLoCo: an outer Nesterov momentum step on the movement of H local steps and a mixing.

    With `Y` the end of H local steps :math:`Y \leftarrow Y - \alpha \nabla F(Y)` from :math:`X^t`,

    .. math::
        \Delta^t &= X^t - W^t Y \\
        M^{t+1} &= \mu M^t + \Delta^t, \qquad M^0 = 0 \\
        X^{t+1} &= X^t - \eta (\Delta^t + \mu M^{t+1})

    With the complete graph this is DiLoCo as published (with gradient steps as local steps), in
    which all agents start an outer step at the same point; with other graphs it is a variant of
    this package.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, of the local steps; k counts them.
    outer_step : float
        :math:`\eta > 0`, the outer learning rate.
    momentum : float
        :math:`\mu`, in [0, 1).
    local_steps : int
        H, by default 50, the least of the paper's ablation; its own 500 needs runs of many thousand
        steps

    Notes
    -----
    Sent per H steps: one row, of `Y`, to each neighbour.  `W`: symmetric, doubly stochastic,
    constant in time, such as the complete graph; a `W` whose eigenvalues make the method unstable
    causes a warning.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, DiLoCo(0.1, local_steps=2), "complete", steps=400).x.round(6).tolist()
    [2.0]

    References
    ----------
    A. Douillard, Q. Feng, A. Rusu, R. Chhaparia, Y. Donchev, A. Kuncoro, M. Ranzato, A. Szlam, J.
    Shen, "DiLoCo: distributed low-communication training of language models", arXiv:2311.08105
    (2023).
    """

    needs: ClassVar = Needs(samples=True, graph="complete")
    step_size: StepSize = "auto"
    outer_step: Positive = 0.7
    momentum: Factor = 0.9
    local_steps: int = 50

    class State(NamedTuple):  # Z: X at the last outer step
        X: np.ndarray
        Z: np.ndarray
        M: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape), 0)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        D = s.Z - W(X)
        M = self.momentum * s.M + D
        X = descend(s.Z, self.outer_step, D + self.momentum * M)
        return self.State(X, X, M, s.k + 1)

    def unstable(self, topology: Graph) -> str:
        eta, mu = self.outer_step, self.momentum
        return disagreement(
            self,
            topology,
            lambda lam: np.array([0, -(1 + mu), mu]) * (1 - eta * (1 - lam)) + [1, 0, 0],
            "use a smaller outer_step",
        )


@dataclass(frozen=True)
class GASLoC(_LocalSteps):
    r"""GASLoC, an accelerated gossip form of DiLoCo: momentum accelerates the optimization and the
    mixing at once.

    With `Y` the end of H local steps :math:`Y \leftarrow Y - \alpha \nabla F(Y)` from :math:`X^t`,

    .. math::
        Z^t &= X^t + \eta (Y - X^t) \\
        X^{t+1} &= W^t Z^t + \mu (Z^t - Z^{t-1}), \qquad Z^{-1} = X^0

    The paper writes :math:`I - \gamma \Lambda` for `W`, with the graph's Laplacian
    :math:`\Lambda`.  The average over the agents takes the steps of `DiLoCo`, on any graph.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, of the local steps; k counts them.
    outer_step : float
        :math:`\eta > 0`, the outer learning rate.
    momentum : float
        :math:`\mu`, in [0, 1).
    local_steps : int
        H, by default that of `DiLoCo`

    Notes
    -----
    Sent per H steps: one row, of :math:`Z^t`, to each neighbour.  `W`: symmetric, doubly
    stochastic; constant in time, or random pairs, over which the mean square of the disagreement
    contracts for :math:`2 (1 - \mu^2) > 1 + \mu - \mu n / (n - 1)` (n even), which is :math:`\mu <
    0.7` for many agents.  A `W` or pairs that make the method unstable cause a warning.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, GASLoC(0.1, local_steps=2), "ring", steps=800).x.round(6).tolist()
    [2.0]

    References
    ----------
    P. Cagnasso, E. Belilovsky, E. Oyallon, "Unifying local communications and local updates for LLM
    pretraining", arXiv:2606.11081 (2026).
    """

    step_size: StepSize = "auto"
    outer_step: Positive = 0.7
    momentum: Factor = 0.9
    local_steps: int = 50

    class State(NamedTuple):  # Z: X at the last outer step; previous: Z^{t-1} of the equations
        X: np.ndarray
        Z: np.ndarray
        previous: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, X, 0)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        Z = descend(s.Z, self.outer_step, s.Z - X)
        X = W(Z) + self.momentum * (Z - s.previous)
        return self.State(X, X, Z, s.k + 1)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -(lam + self.momentum), self.momentum],
            "use a smaller momentum",
        ) or _over_pairs(self, topology, self.momentum, 1.0, "use a smaller momentum")


@dataclass(frozen=True)
class NoLoCo(_LocalSteps):
    r"""NoLoCo: DiLoCo without an average over all; in each outer step an agent meets one partner,
    drawn at random.

    With `Y` the end of H local steps :math:`Y \leftarrow Y - \alpha \nabla F(Y)` from :math:`X^t`,
    and the averages of pairs :math:`W^t`,

    .. math::
        U^{t+1} &= \mu U^t + \eta W^t (Y - X^t) - \gamma (X^t - W^t X^t), \qquad U^0 = 0 \\
        X^{t+1} &= X^t + U^{t+1}

    The average over the agents takes steps with momentum (heavy ball) along the average movement;
    the term with :math:`\gamma` draws partners together.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`, of the local steps; k counts them.
    outer_step : float
        :math:`\eta > 0`, the outer learning rate.
    momentum : float
        :math:`\mu`, in [0, 1).
    local_steps : int
        H, by default 50, as in the authors' experiments
    consensus_step : float, optional
        :math:`\gamma > 0`, by default :math:`\eta`, as in the authors' code.

    Notes
    -----
    Sent per H steps: one row, of :math:`\eta Y + (\gamma - \eta) X^t`, to each neighbour.  `W`:
    symmetric, doubly stochastic; random pairs, or constant in time.  With :math:`\gamma = \eta` a
    step is :math:`U^{t+1} = \mu U^t + \eta (W^t Y - X^t)`. Without gradients the mean square of the
    disagreement contracts over random pairs of n agents, n even, for :math:`0 < \gamma < 2 (1 -
    \mu^2) / (1 + \mu - \mu n / (n - 1))`, which is at least :math:`2 (1 - \mu^2)`.  A `W` or pairs
    that make the method unstable cause a warning.  The graph by default has the neighbours of
    another one; `random_matchings(complete(n))` draws partners among all.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> pairs = mpidec.topology.random_matchings(mpidec.topology.complete(4))
    >>> solver = NoLoCo("inverse(0.1, 100)", local_steps=2)
    >>> mpidec.solve(problem, solver, pairs, steps=800).x.round(2).tolist()
    [2.0]

    References
    ----------
    J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy, C. Nies, "NoLoCo: no-all-reduce low
    communication training method for large models", arXiv:2506.10911 (2025).
    """

    needs: ClassVar = Needs(graph="random_matchings")
    step_size: StepSize = "auto"
    outer_step: Positive = 0.7
    momentum: Factor = 0.5
    local_steps: int = 50
    consensus_step: Annotated[float | None, Within(above=0.0)] = None

    class State(NamedTuple):  # Z: X at the last outer step
        X: np.ndarray
        Z: np.ndarray
        U: np.ndarray
        k: int

    @property
    def _gamma(self) -> float:
        return self.outer_step if self.consensus_step is None else self.consensus_step

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape), 0)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        eta, gamma = self.outer_step, self._gamma
        U = self.momentum * s.U + W(eta * X + (gamma - eta) * s.Z) - gamma * s.Z
        X = s.Z + U
        return self.State(X, X, U, s.k + 1)

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -(1 + self.momentum - self._gamma * (1 - lam)), self.momentum],
            "use a smaller consensus_step",
        ) or _over_pairs(
            self, topology, self.momentum, self._gamma, "use a smaller consensus_step or momentum"
        )


def _over_pairs(solver: Solver, topology: Graph, momentum: float, gamma: float, remedy: str) -> str:
    r"""Return why the disagreement grows over random pairs with :math:`U \leftarrow \mu U - \gamma
    (X - W X)`; empty if none is known.

    Of pairs drawn from all agents the mean squares of X and U and their mean product are a linear
    recursion, which has the eigenvalue 1 at the bound.
    """
    n = topology.n
    if topology.period is not None or not 1 < n <= _LARGE:
        return ""
    W = topology.at(0).W.toarray()
    most = 2 * (1 - momentum**2) / (1 + momentum - momentum * n / (n - 1))
    if gamma <= most or (W != W.T).any() or not np.isin(W, [0, 0.5, 1]).all():
        return ""
    return (
        f"{name_of(solver)} is unstable on the {topology.name} topology: with momentum "
        f"{momentum:g} the mean square of the "
        f"disagreement grows over random pairs; {remedy}"
    )


@dataclass(frozen=True)
class KGT(_LocalSteps):
    r"""K-GT: gradient tracking with H local steps; exact for any H.

    .. math::
        Y &\leftarrow Y - \alpha (\nabla F(Y) + C^t) \quad H \text{ times}, \text{ from } Y = X^t \\
        D^t &= (X^t - Y) / (H \alpha) \\
        C^{t+1} &= C^t - D^t + W^t D^t, \qquad C^0 = 0 \\
        X^{t+1} &= W^t (X^t - \eta (X^t - Y))

    The paper starts with :math:`C^0 = -\nabla F(X^0) + \tfrac1n 1 1^T \nabla F(X^0)`, and allows 0,
    which needs no average over all.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps, and the outer step uses the step size of the last
        one.
    outer_step : float
        :math:`\eta > 0`
    local_steps : int
        H, by default 5; the paper leaves it open

    Notes
    -----
    Sent per H steps: two rows, of :math:`X^t - \eta (X^t - Y)` and :math:`D^t`, to each neighbour,
    in one message.  `W`: doubly stochastic, constant or varying in time; mixing t uses :math:`W^t`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, KGT(0.1, local_steps=3), "ring", steps=600).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    Y. Liu, T. Lin, A. Koloskova, S. Stich, "Decentralized gradient tracking with local steps",
    Optimization Methods and Software (2024).
    """

    exact: ClassVar = True
    step_size: StepSize = "auto"
    outer_step: Positive = 1.0
    local_steps: int = 5

    class State(NamedTuple):  # Z: X at the last outer step
        X: np.ndarray
        Z: np.ndarray
        C: np.ndarray
        k: int

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, X, zeros(X, *X.shape), 0)

    def _local(self, s: State, G: np.ndarray) -> np.ndarray:
        return descend(s.X, self.step_size, G + s.C)

    def _outer(self, s: State, X: np.ndarray, W: Operator) -> State:
        alpha: Any = self.step_size
        D = per_step(s.Z - X, self.local_steps * alpha)
        X, WD = W([descend(s.Z, self.outer_step, s.Z - X), D])
        return self.State(X, X, s.C - D + WD, s.k + 1)


@dataclass(frozen=True)
class LED(_LocalSteps):
    r"""LED, local exact diffusion: exact diffusion with H local steps; exact for any H.

    .. math::
        Y &\leftarrow Y - \alpha \nabla F(Y) - \beta C^t \quad H \text{ times}, \text{ from } Y = X^t \\
        X^{t+1} &= \tfrac{1}{2} (I + W) Y \\
        C^{t+1} &= C^t + Y - X^{t+1}, \qquad C^0 = 0

    With H = 1 and :math:`\beta = 1` this is `ExactDiffusion`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`; k counts the local steps.
    local_steps : int
        H, by default 5; the paper leaves it open
    dual_step : float, optional
        :math:`\beta > 0`, by default 1 / H.

    Notes
    -----
    Sent per H steps: one row, of `Y`, to each neighbour.  `W`: symmetric, doubly stochastic,
    constant in time; another one that makes the method unstable causes a warning.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> mpidec.solve(problem, LED(0.1, local_steps=3), "ring", steps=600).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    S. Alghunaim, "Local exact-diffusion for decentralized optimization and learning", IEEE TAC 69
    (2024).
    """

    exact: ClassVar = True
    step_size: StepSize = "auto"
    local_steps: int = 5
    dual_step: Annotated[float | None, Within(above=0.0)] = None

    class State(NamedTuple):
        X: np.ndarray
        C: np.ndarray
        k: int

    @property
    def _beta(self) -> float:
        return 1 / self.local_steps if self.dual_step is None else self.dual_step

    def init(self, X: np.ndarray, W: Operator | None = None) -> State:
        return self.State(X, zeros(X, *X.shape), 0)

    def _local(self, s: State, G: np.ndarray) -> np.ndarray:
        X: np.ndarray = descend(s.X, self.step_size, G) - self._beta * s.C
        return X

    def _outer(self, s: State, Y: np.ndarray, W: Operator) -> State:
        X = (Y + W(Y)) / 2
        return self.State(X, s.C + Y - X, s.k + 1)

    def unstable(self, topology: Graph) -> str:
        h = self.local_steps * self._beta
        return disagreement(
            self,
            topology,
            lambda lam: [1, -((1 + lam) / 2 + 1 - (1 - lam) / 2 * h), (1 + lam) / 2],
            "it needs a symmetric W, such as topology.ring(n), and dual_step <= 1 / local_steps",
        )
