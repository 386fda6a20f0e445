"""Local momentum, local Adam and clipping: updates that every agent computes of its own gradients,
for any solver.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import namedtuple
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np

from .. import _validation as check
from .._complex import squares
from ..protocols import Graph, Operator
from .asynchronous import Asynchronous
from .base import Bias, Solver, name_of, number, with_step_size, zeros
from .needs import Factor, Positive, Within
from .step_schedules import StepSize

SHARED = ("needs", "exact", "columnwise", "keeps_rows", "keeps_mean", "adaptive")


class _Update(Solver):
    """Solver that replaces the gradients by update directions before it passes them to another
    solver.

    The state has the fields of that solver's state, and those named in `memory`.
    """

    memory: ClassVar[tuple[str, ...]]
    solver: Solver

    def __post_init__(self) -> None:
        solver, name = self.solver, name_of(self)
        if not isinstance(solver, Solver):
            raise TypeError(
                f"{name}: solver is {solver!r:.60}, expected a solver: {name}(solvers.DGD(0.1))"
            )
        if solver.needs.functions != ("grad",) or isinstance(solver, Asynchronous):
            raise ValueError(
                f"{name}: {name_of(solver)} does not take gradients alone, in synchronous steps: "
                "expected a solver that does, such as DGD"
            )
        if self.step_size is None:
            object.__setattr__(self, "step_size", solver.step_size)
        else:
            object.__setattr__(self, "solver", with_step_size(solver, self.step_size))
        for attribute in SHARED:
            object.__setattr__(self, attribute, getattr(solver, attribute))
        super().__post_init__()

    @property
    def by_parts(self) -> bool:
        return self.solver.by_parts

    @abstractmethod
    def start(self, X: np.ndarray) -> tuple[Any, ...]:
        """Return the memory before the first step."""

    @abstractmethod
    def direction(self, G: np.ndarray, *memory: Any) -> tuple[Any, ...]:
        """Return the direction that takes the place of the gradients, and the memory after the
        step.
        """

    def init(self, X: np.ndarray, W: Operator | None = None) -> Any:
        return self._joined(self.solver.init(X, W), self.start(X))

    def step(self, s: Any, G: np.ndarray, W: Operator) -> Any:
        D, *memory = self.direction(G, *s[-len(self.memory) :])
        return self._joined(self.solver.step(self._inner(s), D, W), memory)

    def point(self, s: Any) -> Any:
        return self.solver.point(self._inner(s))

    def check(self, topology: Graph) -> None:
        self.solver.check(topology)

    def unstable(self, topology: Graph) -> str:
        return self.solver.unstable(topology)

    def bias_on(self, topology: Graph) -> Bias:
        return self.solver.bias_on(topology)

    def _inner(self, s: Any) -> Any:
        return s.inner(*s[: -len(self.memory)])

    def _joined(self, inner: Any, memory: Any) -> Any:
        fields = (*inner._fields, *self.memory)
        return _state(cast("Hashable", type(inner)), fields)(*inner, *memory)


@cache
def _state(inner: Hashable, fields: tuple[str, ...]) -> Any:
    """Return the class of the states with these fields, which begin with those of the class
    `inner`.
    """
    base: Any = namedtuple("State", fields)  # type: ignore[misc]
    return type("State", (base,), {"inner": inner, "__slots__": ()})


@dataclass(frozen=True)
class Momentum(_Update):
    r"""Local momentum for any solver: each agent replaces its gradients by a momentum, which is
    never sent.

    .. math::
        B^{k+1} &= \beta B^k + (1 - \delta) G^k, \qquad B^0 = 0 \\
        D^k &= B^{k+1}

    and the solver takes its step with :math:`D^k` in place of the gradients :math:`G^k`.  With
    `nesterov`, :math:`D^k = G^k + \beta B^{k+1}`.

    Parameters
    ----------
    solver : Solver
        With its own step size.
    momentum : float
        :math:`\beta`, in [0, 1).
    nesterov : bool
    dampening : float
        :math:`\delta`, in [0, 1); with :math:`\delta = \beta` the momentum is an average of
        gradients.
    step_size : optional
        That of `solver`; another one replaces it.

    Notes
    -----
    Sent per step, and what `W` must satisfy: as `solver`.  Where the gradients are
    stationary, so are the directions, at :math:`G (1 - \delta) / (1 - \beta)` (with `nesterov` at
    :math:`G / (1 - \beta)` if :math:`\delta = 0`): a solver that is exact without momentum is exact
    with it, and the bias of another one is that of the larger step size.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> A, b = np.ones((4, 1, 1)), np.array([[1.], [3.], [0.], [4.]])
    >>> problem = mpidec.problems.LeastSquares(A, b)
    >>> solver = Momentum(mpidec.solvers.RelaySGD(0.05), nesterov=True)
    >>> mpidec.solve(problem, solver, "chain", steps=400).X.round(9).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of initialization and momentum
    in deep learning", ICML 2013; in this form, without dampening, that of RelaySGD's experiments.
    """

    memory: ClassVar = ("buffer",)
    solver: Solver
    momentum: Factor = 0.9
    nesterov: bool = False
    dampening: Factor = 0.0
    step_size: StepSize | None = field(default=None, repr=False)

    def start(self, X: np.ndarray) -> tuple[Any, ...]:
        return (zeros(X, *X.shape),)

    def direction(self, G: np.ndarray, *memory: Any) -> tuple[Any, ...]:
        (B,) = memory
        B = self.momentum * B + (1 - self.dampening) * G
        return (G + self.momentum * B if self.nesterov else B), B


@dataclass(frozen=True)
class Adam(_Update):
    r"""Local Adam for any solver: each agent scales the entries of its own gradients, without
    further communication.

    .. math::
        M^{k+1} &= \beta_1 M^k + (1 - \beta_1) G^k, & V^{k+1} &= \beta_2 V^k + (1 - \beta_2) G^k \circ G^k \\
        \hat M &= M^{k+1} / (1 - \beta_1^{k+1}), & \hat V &= V^{k+1} / (1 - \beta_2^{k+1}) \\
        D^k &= \hat M / (\sqrt{\hat V} + \epsilon)

    and the solver takes its step with :math:`D^k` in place of the gradients :math:`G^k`.

    Parameters
    ----------
    solver : Solver
        With its own step size.
    beta1, beta2 : float
        In [0, 1).
    epsilon : float
    step_size : optional
        That of `solver`; another one replaces it.

    Notes
    -----
    Sent per step, and what `W` must satisfy: as `solver`.  Agents with different data scale
    differently, so that the directions do not add up to zero where the gradients do: with a
    constant step size, no solver is exact, and the distance left need not shrink with the step
    size.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.full((4, 1), 2.0))
    >>> solver = Adam(mpidec.solvers.RelaySGD(mpidec.solvers.InverseSqrt(0.1)))
    >>> mpidec.solve(problem, solver, "chain", steps=400).X.round(2).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]

    References
    ----------
    D. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    memory: ClassVar = ("first", "second", "updates")
    solver: Solver
    beta1: Factor = 0.9
    beta2: Factor = 0.999
    epsilon: Positive = 1e-8
    step_size: StepSize | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "exact", False)
        object.__setattr__(self, "keeps_mean", False)
        object.__setattr__(self, "adaptive", True)

    def bias_on(self, topology: Graph) -> Bias:
        return Bias.OTHER

    def start(self, X: np.ndarray) -> tuple[Any, ...]:
        return zeros(X, *X.shape), zeros(X, *X.shape), 0

    def direction(self, G: np.ndarray, *memory: Any) -> tuple[Any, ...]:
        M, V, k = memory
        M, V = self.beta1 * M + (1 - self.beta1) * G, self.beta2 * V + (1 - self.beta2) * G * G
        one, two = (1 / (1 - beta ** (k + 1)) for beta in (self.beta1, self.beta2))
        return one * M / ((two * V) ** 0.5 + self.epsilon), M, V, k + 1


@dataclass(frozen=True)
class Clip(_Update):
    r"""Gradient clipping for any solver, against heavy-tailed noise: each agent shortens gradients
    that are longer than a threshold.

    .. math::
        d_i^k = \min\Bigl\{1, \frac{\tau^k}{\|g_i^k\|}\Bigr\} g_i^k, \qquad \text{smoothed}:\;
        d_i^k = \frac{\tau^k}{\sqrt{(\tau^k)^2 + \|g_i^k\|^2}}\, g_i^k

    and the solver takes its step with :math:`D^k` in place of the gradients :math:`G^k`.

    Parameters
    ----------
    solver : Solver
        With its own step size, a number or a function of k: clipped steps do not grow with the
        gradients, which the search for "auto" assumes.
    threshold : float or function of k
        :math:`\tau^k > 0`; such as ``solvers.InverseSqrt(1.0)`` for one that decays.
    smoothed : bool
        Whether short gradients are shortened a little, too, so that the step is a smooth function
        of the gradient.
    step_size : optional
        That of `solver`; another one replaces it.

    Notes
    -----
    Sent per step, and what `W` must satisfy: as `solver`.  Each agent clips by its own gradient
    alone.  Noise without a variance then has one.  Where agents have different data, gradients of
    both signs are clipped unequally, so that no solver is exact, unless the threshold is above all
    gradients at its limit.

    Examples
    --------
    A sample of each step is off by Cauchy noise:

    >>> import mpidec, numpy as np
    >>> def draw(rng, agent, k):
    ...     return [1.0], 2.0 + 0.1 * rng.standard_cauchy()
    >>> stream = mpidec.problems.Stream(draw, m=8, d=1, x_star=[2.0])
    >>> for solver in (mpidec.solvers.Diffusion(0.05), Clip(mpidec.solvers.Diffusion(0.05), 0.5)):
    ...     result = mpidec.solve(stream, solver, "ring", steps=1000)
    ...     print(bool(result.metrics["msd"][50:].max() < 0.01))
    False
    True

    References
    ----------
    C. Sun, H. Zhang, B. Chen, L. Yu, "Distributed stochastic optimization under heavy-tailed
    noises", arXiv:2312.15847, 2023.  Smoothed: after S. Yu, D. Jakovetic, S. Kar, "Smoothed
    gradient clipping and error feedback for decentralized optimization under symmetric heavy-tailed
    noise", arXiv:2310.16920, 2023.
    """

    memory: ClassVar = ("clipped",)
    solver: Solver
    threshold: float | Callable[[int], float] = 1.0
    smoothed: bool = False
    step_size: StepSize | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.step_size, str):
            raise ValueError(
                f"Clip: the step size of {name_of(self.solver)} is {self.step_size!r}, expected a "
                "number or a function of k: clipped steps do not grow with the gradients"
            )
        if callable(self.threshold):
            check.takes(self.threshold, "Clip: threshold", "k")
        else:
            number(self, "threshold", Within(above=0.0))
        object.__setattr__(self, "adaptive", True)
        for name in ("exact", "keeps_mean", "columnwise"):
            object.__setattr__(self, name, False)

    def bias_on(self, topology: Graph) -> Bias:
        return Bias.OTHER

    def start(self, X: np.ndarray) -> tuple[Any, ...]:
        return (0,)

    def direction(self, G: np.ndarray, *memory: Any) -> tuple[Any, ...]:
        (k,) = memory
        tau = float(self.threshold(k) if callable(self.threshold) else self.threshold)
        size = squares(G).sum(axis=1, keepdims=True) ** 0.5
        longest = (tau * tau + size * size) ** 0.5 if self.smoothed else size.clip(min=tau)
        return tau / longest * G, k + 1
