"""Gradient descent with momentum: local, quasi-global, and without the bias that momentum adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..comm.kernels import descend
from ..protocols import Graph, Operator
from .base import Solver, disagreement, name_of, per_step, zeros
from .needs import Factor, Needs
from .step_schedules import StepSize

_STEPS, _GROWTH, _LARGE = 400, 1.005, 300  # of a trial on a schedule of at most so many agents


class MomentumState(NamedTuple):
    """The iterate, and the momentum buffer of each agent."""

    X: np.ndarray
    M: np.ndarray


class _Momentum(Solver):
    """Solver with the iterate and a momentum buffer, which starts at zero."""

    keeps_rows: ClassVar = True
    exact: ClassVar = False
    momentum: float

    def init(self, X: np.ndarray, W: Operator | None = None) -> MomentumState:
        return MomentumState(X, zeros(X, *X.shape))


@dataclass(frozen=True)
class DecentralizedMomentum(_Momentum):
    r"""Decentralized momentum SGD (DmSGD): each agent descends with its own momentum; the iterates,
    and optionally the momentum, are mixed.

    .. math::
        M^{k+1} &= \beta M^k + \nabla F(X^k), \qquad M^0 = 0 \\
        X^{k+1} &= W^k (X^k - \alpha M^{k+1})

    With `nesterov`, :math:`X^{k+1} = W^k (X^k - \alpha (\nabla F(X^k) + \beta M^{k+1}))`.  With
    `mix_momentum`, the next step begins with :math:`W^k M^{k+1}` in place of :math:`M^{k+1}`.

    Local momentum increases the bias: the fixed points are those of `DGD` with the step size
    :math:`\alpha / (1 - \beta)`.  `DecentLaM` has the bias of the step size :math:`\alpha`, at the
    same cost.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    momentum : float
        :math:`\beta`, in [0, 1); 0 for DGD.
    nesterov : bool
    mix_momentum : bool
        Whether the momentum is mixed, too (DmSGD with communicated momentum; without, BlueFog's
        "vanilla DmSGD").

    Notes
    -----
    Sent per step: one row, of the descended iterate, to each neighbour; with `mix_momentum` a
    second one, of the momentum.  `W`: doubly stochastic, constant or varying in time.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, DecentralizedMomentum(0.1), "complete", steps=400).x.round(6).tolist()
    [2.0]

    References
    ----------
    T. Lin, S. P. Karimireddy, S. Stich, M. Jaggi, "Quasi-global momentum: accelerating
    decentralized deep learning on heterogeneous data", ICML 2021 (there DSGDm and DSGDm-N).
    H. Yu, R. Jin, S. Yang, "On the linear speedup analysis of communication efficient momentum SGD
    for distributed non-convex optimization", ICML 2019 (with `mix_momentum`).
    """

    needs: ClassVar = Needs(graph="exponential")
    step_size: StepSize = "auto"
    momentum: Factor = 0.9
    nesterov: bool = False
    mix_momentum: bool = False

    def step(self, s: MomentumState, G: np.ndarray, W: Operator) -> MomentumState:
        M = self.momentum * s.M + G
        V = descend(s.X, self.step_size, G + self.momentum * M if self.nesterov else M)
        return MomentumState(*(W([V, M]) if self.mix_momentum else (W(V), M)))


@dataclass(frozen=True)
class QuasiGlobalMomentum(_Momentum):
    r"""Quasi-global momentum (QG-DSGDm, QG-DSGDm-N): the buffer follows the movement of the mixed
    iterate, not the local gradients.

    .. math::
        X^{k+1} &= W^k (X^k - \alpha U^k), \qquad U^k = \beta M^k + \nabla F(X^k) \\
        M^{k+1} &= \beta M^k + (1 - \beta) (X^k - X^{k+1}) / \alpha, \qquad M^0 = 0

    With `nesterov`, :math:`U^k = \nabla F(X^k) + \beta (\beta M^k + \nabla F(X^k))`.

    The movement of the mixed iterate is close to that of the average, so the buffers of agents with
    different data agree far better than those of `DecentralizedMomentum`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`.  In a step with :math:`\alpha = 0`, as at the start of a warm-up, the
        movement counts as zero.
    momentum : float
        :math:`\beta`, in [0, 1).
    nesterov : bool
    normalized : bool
        Whether to divide :math:`U^k` by :math:`1 + \beta`, so that equal gradients give steps of
        length :math:`\alpha \|\nabla F\|` in the long run instead of :math:`\alpha \|\nabla F\| /
        (1 - \beta)` (the simulations of RelaySGD; not with `nesterov`).

    Notes
    -----
    Sent per step: one row, of :math:`X^k - \alpha U^k`, to each neighbour.  `W`: doubly stochastic,
    constant or varying in time. A constant `W` whose eigenvalues make the method unstable causes a
    warning.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), np.array([[1.], [3.]]))
    >>> mpidec.solve(problem, QuasiGlobalMomentum(0.1), "complete", steps=400).x.round(6).tolist()
    [2.0]

    References
    ----------
    T. Lin, S. P. Karimireddy, S. Stich, M. Jaggi, "Quasi-global momentum: accelerating
    decentralized deep learning on heterogeneous data", ICML 2021.
    """

    step_size: StepSize = "auto"
    momentum: Factor = 0.9
    nesterov: bool = True
    normalized: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.normalized:
            raise ValueError(
                f"{name_of(self)}: normalized is for the method without Nesterov's momentum: give "
                "nesterov=False"
            )

    def step(self, s: MomentumState, G: np.ndarray, W: Operator) -> MomentumState:
        b = self.momentum
        M = b * s.M
        U = M + G
        if self.nesterov:
            U = G + b * U
        elif self.normalized:
            U = U / (1 + b)
        X = W(descend(s.X, self.step_size, U))
        return MomentumState(X, M + (1 - b) * per_step(s.X - X, self.step_size))

    def unstable(self, topology: Graph) -> str:
        b = self.momentum
        c = (1 - b) * (b**2 if self.nesterov else b / (1 + b) if self.normalized else b)
        return disagreement(
            self,
            topology,
            lambda lam: [1, -(lam + b + c * lam), (b + c) * lam],
            "use a smaller momentum, or the lazy (W + I)/2: topology.from_weights((W + I)/2)",
        )


@dataclass(frozen=True)
class DecentLaM(_Momentum):
    r"""DecentLaM: decentralized momentum SGD whose bias is that of DGD.

    .. math::
        \tilde{G}^k &= \bigl(X^k - W (X^k - \alpha \nabla F(X^k))\bigr) / \alpha \\
        M^{k+1} &= \beta M^k + \tilde{G}^k, \qquad M^0 = 0 \\
        X^{k+1} &= X^k - \alpha M^{k+1} = W (X^k - \alpha \nabla F(X^k)) - \alpha \beta M^k

    This is momentum on the steps of DGD as a whole, mixing included, instead of momentum on the
    gradients alone.

    At a fixed point, :math:`X^{k+1} = X^k` gives :math:`M = 0`, then :math:`M = \beta M +
    \tilde{G}` gives :math:`\tilde{G} = 0`, which is :math:`X = W (X - \alpha \nabla F(X))`: the
    fixed point of `DGD`, whatever :math:`\beta` is. That of `DecentralizedMomentum` solves :math:`X
    = W (X - \tfrac{\alpha}{1 - \beta} \nabla F(X))`: for :math:`\beta = 0.9`, its bias is that of a
    step size 10 times as large.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`.  In a step with :math:`\alpha = 0` the iterates are mixed, and
        :math:`\tilde{G}` counts as zero.
    momentum : float
        :math:`\beta`, in [0, 1); 0 for DGD.

    Notes
    -----
    Sent per step: one row, of :math:`X^k - \alpha \nabla F(X^k)`, to each neighbour.  `W`:
    symmetric, doubly stochastic, constant in time; a `W` whose eigenvalues make the method unstable
    causes a warning.  On graphs that change, mixing is momentum descent on another quadratic in
    each step: one-peer graphs, matchings and sleeping agents make it unstable with :math:`\beta =
    0.9` at any step size, and cause a warning, too.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> W = mpidec.topology.ring(4)
    >>> for solver in (mpidec.solvers.Diffusion(0.05), DecentLaM(0.05), DecentralizedMomentum(0.05)):
    ...     print(round(float(np.ptp(mpidec.solve(problem, solver, W, steps=2000).X)), 3))
    0.062
    0.062
    0.629

    References
    ----------
    K. Yuan, Y. Chen, X. Huang, Y. Zhang, P. Pan, Y. Xu, W. Yin, "DecentLaM: decentralized momentum
    SGD for large-batch deep training", ICCV 2021.
    """

    step_size: StepSize = "auto"
    momentum: Factor = 0.9

    def step(self, s: MomentumState, G: np.ndarray, W: Operator) -> MomentumState:
        b = self.momentum
        X = W(descend(s.X, self.step_size, G))
        return MomentumState(
            descend(X, self.step_size, b * s.M), b * s.M + per_step(s.X - X, self.step_size)
        )

    def unstable(self, topology: Graph) -> str:
        return disagreement(
            self,
            topology,
            lambda lam: [1, -(lam + self.momentum), self.momentum],
            "use a smaller momentum",
        ) or self._over_schedule(topology)

    def _over_schedule(self, topology: Graph) -> str:
        """Return why the disagreement grows on graphs that change, with a step size of 0; empty if
        it does not.
        """
        if topology.period == 1 or not 1 < topology.n <= _LARGE:
            return ""
        X = np.random.default_rng(0).standard_normal((topology.n, 4))
        X -= X.mean(axis=0)
        M, sizes = 0 * X, []
        for k in range(_STEPS):
            Y = topology.at(k).W.toarray() @ X
            X, M = Y - self.momentum * M, self.momentum * M + X - Y
            sizes.append(size := float(np.hypot(np.linalg.norm(X), np.linalg.norm(M))) or 1.0)
            X, M = X / size, M / size
        growth = float(np.exp(np.log(sizes[_STEPS // 4 :]).mean()))
        if growth <= _GROWTH:
            return ""
        return (
            f"{name_of(self)} is unstable on the {topology.name} topology: its momentum of mixings "
            "with one W disturbs those "
            f"with the next, the disagreement grows by a factor of {growth:.3g} per step; use a "
            "smaller momentum, or "
            "DecentralizedMomentum"
        )
