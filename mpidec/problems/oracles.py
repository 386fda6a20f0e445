"""Oracles: exact, mini-batch and noisy gradients of a problem, for solvers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._random import NOISE, SAMPLES, Streams as Streams
from .._validation import Array
from .._words import Described, describe
from .agents import by_agents
from .base import LinearModel, Problem

Gradient = Callable[..., Array]  # gradient(X, k), gradient(X, k, agents=[...])


class Oracle(Protocol):
    """The protocol of an oracle: ``start(agents, seed)`` returns ``gradient(X, k)``, the gradients
    for step k.

    For asynchronous runs, ``gradient(X, k, agents=[i, ...])`` returns those of some local agents,
    one row of `X` for each; without it, the gradients of all local agents are evaluated
    (`mpidec.problems.agents`).

    Gradients are taken to be random, unless the oracle has the attribute ``random = False``;
    `step_size="auto"` asks for it.  Where only their noise at the minimizer vanishes
    (`mpidec.problems.variance_reduction`), the attribute ``batches`` is an oracle that draws the
    same curvatures.
    """

    def __repr__(self) -> str:
        return describe(self)

    @property
    def problem(self) -> Any:
        """The problem that the gradients belong to."""

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k) -> G`` for the local `agents` (numbers among all agents)."""


@runtime_checkable
class Remembering(Protocol):
    """A started gradient that depends on earlier steps; checkpoints hold what it remembers."""

    def memory(self) -> dict[str, Array]:
        """What is remembered of the local agents, by name: arrays (m, ...); empty before the
        first step.
        """

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Continue with what `memory` returned, perhaps on another number of ranks."""


def remembering(gradient: Gradient, source: Gradient) -> Gradient:
    """Return `gradient`, with the memory of the gradient `source` that it is made of.

    Examples
    --------
    >>> isinstance(remembering(lambda X, k: X, lambda X, k: X), Remembering)
    False
    """
    if isinstance(source, Remembering):
        setattr(gradient, "memory", source.memory)  # noqa: B010  (of a function)
        setattr(gradient, "recall", source.recall)  # noqa: B010
    return gradient


def _check_agents(problem: Problem, agents: Sequence[int]) -> None:
    if len(agents) != problem.m:
        raise ValueError(f"{len(agents)} agents, expected {problem.m}: one per row of the problem")
    for agent in agents:
        check.integer(agent, "agent", least=0)


class Full(Described):
    r"""The exact gradient, :math:`g_i = \nabla f_i(x_i)`.

    Parameters
    ----------
    problem : Problem
        The local agents' functions.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Full, LeastSquares
    >>> gradient = Full(LeastSquares(np.ones((1, 2, 1)), [[1, 2]])).start(range(1), seed=0)
    >>> gradient(np.zeros((1, 1)), 0)
    array([[-3.]])
    """

    random = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k)``; nothing is random."""
        _check_agents(self.problem, agents)
        grad, some = self.problem.grad, by_agents(self.problem.grad, self.problem.m)

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            return grad(X) if agents is None else some(X, agents=agents)

        return gradient


def check_samples(name: str, problem: object, remedy: str = "") -> None:
    """Raise TypeError if the oracle `name` cannot draw samples of the problem."""
    if isinstance(problem, type):
        raise TypeError(
            f"{name}: problem is the class {problem.__name__}, expected an object of it: "
            f"{name}({problem.__name__}(A, b))"
        )
    if not hasattr(problem, "sample_grad"):
        raise TypeError(
            f"{name} cannot draw samples of a {type(problem).__name__}, expected LeastSquares, "
            "LogisticRegression, Softmax "
            f"or Huber{remedy}"
        )


class MiniBatch(Described):
    r"""The gradient on a random batch of the agent's own samples, drawn at each step without
    replacement.

    .. math:: g_i = \frac{p_i}{B} \sum_{s \in S_i^k} \nabla \ell_{is}(x_i) + \lambda x_i, \qquad
              |S_i^k| = B, \qquad \mathbb{E}\, g_i = \nabla f_i(x_i)

    Parameters
    ----------
    problem : LinearModel
        LeastSquares, LogisticRegression, Softmax or Huber (any problem with ``sample_grad`` and
        ``counts``).
    batch_size : int
        B, at most the number of samples :math:`p_i` of every agent.

    Raises
    ------
    ValueError, TypeError
        If `batch_size` is not an integer in 1 .. min p_i, or the problem has no samples to draw.

    Notes
    -----
    No communication. Draws are determined by (seed, agent, step), not by the number of ranks or by
    earlier steps.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares, MiniBatch
    >>> gradient = MiniBatch(LeastSquares(np.ones((1, 4, 1)), [[1, 2, 3, 4]]), 2).start(range(1), seed=0)
    >>> gradient(np.zeros((1, 1)), 5) == gradient(np.zeros((1, 1)), 5)
    array([[ True]])
    """

    def __init__(self, problem: LinearModel, batch_size: int) -> None:
        check_samples("MiniBatch", problem, " (Noisy works with every problem)")
        self.problem = problem
        self.batch_size = check.integer(batch_size, "batch_size")
        if (few := problem.counts < self.batch_size).any():
            i = int(few.argmax())
            raise ValueError(
                f"batch_size = {self.batch_size}, but local agent {i} has {problem.counts[i]} "
                "samples, "
                f"expected at most {problem.counts.min()}"
            )

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        draws = Draws(self.problem, self.batch_size, agents, seed)

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            return draws.grad(X, draws(k, agents), agents)

        return gradient


class Draws:
    """The samples of each agent in the batch of each step, which (seed, agent, step) determine.

    Parameters
    ----------
    problem : LinearModel
    batch_size : int
    agents : sequence of int
        Numbers of the local agents among all agents.
    seed : int

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares
    >>> draws = Draws(LeastSquares(np.ones((2, 4, 1)), np.ones((2, 4))), 3, range(2), seed=0)
    >>> draws(0).shape, (draws(5)[1:] == draws(5, agents=[1])).all()
    ((2, 3), np.True_)
    """

    def __init__(
        self, problem: LinearModel, batch_size: int, agents: Sequence[int], seed: int
    ) -> None:
        _check_agents(problem, agents)
        self._problem, self._size, self._agents = problem, batch_size, agents
        self._streams = Streams(check.integer(seed, "seed", least=0), SAMPLES)
        self._counts, self._weight = problem.counts.tolist(), problem.counts / batch_size
        mask = problem.mask
        self._order = None if mask is None else np.argsort(~mask, axis=1, kind="stable")

    def __call__(self, k: int, agents: Sequence[int] | None = None) -> NDArray[np.intp]:
        """Sample numbers (m, B) for step k; with `agents`, of these local agents."""
        local = range(self._problem.m) if agents is None else agents
        rows = np.empty((len(local), self._size), dtype=np.intp)
        for row, i in zip(rows, local):
            draw, count = self._streams.at(self._agents[i], k), self._counts[i]
            row[:] = (  # for few samples, permutation is faster than choice
                draw.permutation(count)[: self._size]
                if count < 1000
                else draw.choice(count, self._size, replace=False, shuffle=False)
            )
        if self._order is None:
            return rows
        order = self._order if agents is None else self._order[list(agents)]
        return np.take_along_axis(order, rows, axis=1)

    def weight(self, agents: Sequence[int] | None = None) -> Array:
        """The factors :math:`p_i / B`, (m,); with `agents`, of these local agents."""
        return np.asarray(self._weight if agents is None else self._weight[list(agents)])

    def grad(self, X: Array, rows: NDArray[np.intp], agents: Sequence[int] | None = None) -> Array:
        """The gradients of the batches `rows`, (m, d) -> (m, d); with `agents`, of these local
        agents.
        """
        weight = self.weight(agents)
        if agents is None:
            return self._problem.sample_grad(X, rows, weight)
        return self._problem.sample_grad(X, rows, weight, agents)


class Noisy(Described):
    r"""The gradient with additive Gaussian noise.

    .. math:: g_i = \nabla f_i(x_i) + \frac{\sigma}{\sqrt d}\, \xi_i^k, \qquad \xi_i^k \sim N(0, I_d), \qquad
              \mathbb{E} \|g_i - \nabla f_i(x_i)\|^2 = \sigma^2

    Parameters
    ----------
    source : Problem or oracle
        The gradient to which noise is added.
    sigma : float
        Standard deviation of the whole vector, >= 0.

    Notes
    -----
    No communication. Draws are determined by (seed, agent, step), not by the number of ranks or by
    earlier steps.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares, Noisy
    >>> gradient = Noisy(LeastSquares(np.ones((1, 2, 1)), [[1, 2]]), sigma=0.0).start(range(1), seed=0)
    >>> gradient(np.zeros((1, 1)), 0)
    array([[-3.]])
    """

    def __init__(self, source: Problem | Oracle, sigma: float) -> None:
        given: Any = source
        self.source: Oracle = given if hasattr(given, "start") else Full(given)
        self.problem = self.source.problem
        self.smooth = bool(getattr(given, "smooth", True))
        self.includes_term = bool(getattr(given, "includes_term", False))
        self.sigma = check.number(sigma, "sigma", least=0)

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        exact = self.source.start(agents, seed)
        some = by_agents(exact, self.problem.m)
        streams, numbers, everyone = (
            Streams(check.integer(seed, "seed", least=0), NOISE),
            agents,
            range(self.problem.m),
        )
        deviation = self.sigma / np.sqrt(self.problem.d)

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            noise = np.empty(X.shape)
            for row, i in zip(noise, everyone if agents is None else agents):
                streams.at(numbers[i], k).standard_normal(out=row)
            return np.asarray(
                (exact(X, k) if agents is None else some(X, k, agents=agents)) + deviation * noise
            )

        return remembering(gradient, exact)


def is_smooth(oracle: object) -> bool:
    """Whether the answers of an oracle, or of a problem, are gradients, not subgradients."""
    return bool(getattr(oracle, "smooth", True))


def is_random(oracle: object) -> bool:
    """Whether the gradients of an oracle are random, and remain so at the minimizer.

    Examples
    --------
    >>> from mpidec.problems import LeastSquares, MiniBatch
    >>> problem = LeastSquares(np.ones((1, 2, 1)), [[1, 2]])
    >>> is_random(problem), is_random(Full(problem)), is_random(MiniBatch(problem, 1))
    (False, False, True)
    """
    given = oracle.source if isinstance(oracle, Subgradient) else oracle
    return hasattr(given, "start") and bool(getattr(given, "random", True))


def is_reduced(oracle: object) -> bool:
    """Whether the gradients of an oracle come from batches, with noise that vanishes at the
    minimizer.
    """
    given = oracle.source if isinstance(oracle, Subgradient) else oracle
    return hasattr(given, "batches") and not is_random(given)


class Subgradient(Described):
    r"""The gradient plus a subgradient of the problem's term, for solvers without a proximal step.

    .. math:: g_i = \nabla s_i(x_i) + r'(x_i), \qquad r'(x) \in \partial r(x)

    With a constant step size, subgradient methods end near the minimizer, at a distance
    proportional to the step size.

    Parameters
    ----------
    source : Problem or oracle
        A problem with a term that has subgradients, such as `problems.l1(0.1)`, or an oracle of its
        gradients.

    Raises
    ------
    ValueError
        If the problem has no term, or one without subgradients (a box or a simplex).

    Notes
    -----
    No communication.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import LeastSquares, Subgradient, l1
    >>> problem = LeastSquares(np.ones((1, 2, 1)), [[1, 2]], term=l1(0.5))
    >>> Subgradient(problem).start(range(1), seed=0)(np.ones((1, 1)), 0)
    array([[-0.5]])
    """

    smooth = False  # `step_size="auto"` has no linear model of it
    includes_term = True  # so a solver that takes only gradients does not ignore the problem's term

    def __init__(self, source: Problem | Oracle) -> None:
        given: Any = source
        self.source: Oracle = given if hasattr(given, "start") else Full(given)
        self.problem = self.source.problem
        term = getattr(self.problem, "term", None)
        if term is None:
            raise ValueError(
                f"{type(self.problem).__name__} has no term, so its gradient is complete: pass it "
                "without Subgradient"
            )
        self._subgradient = term.subgradient
        self._subgradient(np.zeros((0, self.problem.d)))  # refuses constraints

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        smooth, subgradient = self.source.start(agents, seed), self._subgradient
        some = by_agents(smooth, self.problem.m)

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            return np.asarray(
                (smooth(X, k) if agents is None else some(X, k, agents=agents)) + subgradient(X)
            )

        return remembering(gradient, smooth)
