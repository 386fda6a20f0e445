"""Oracles: exact, mini-batch and noisy gradients of a problem, for solvers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check
from .._complex import from_reals, is_complex
from .._random import Streams as Streams
from .._validation import Array
from .._words import Described
from ..protocols import Motion, Sample
from .agents import by_agents
from .base import LinearModel, Problem
from .members import sample_of, term_of
from .terms import Term

# gradient(X, k), gradient(X, k, agents=[...]).
Gradient = Callable[..., Array]
Measured = Callable[[int], Sample]  # sample(k)


@runtime_checkable
class OracleLike(Protocol):
    """Members that every user-defined oracle must have; those of `Oracle` are optional."""

    @property
    def problem(self) -> Any:
        """The problem that the gradients belong to."""

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k) -> G`` for the local `agents` (numbers among all agents)."""


@runtime_checkable
class Remembering(Protocol):
    """A gradient function with a memory of earlier steps, which checkpoints store."""

    def memory(self) -> dict[str, Array]:
        """Return what is remembered of the local agents, by name: arrays (m, ...); empty before the
        first step.
        """

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Continue with what `memory` returned, perhaps on another number of ranks."""


class Gradients:
    """The gradients of an oracle that has started: ``gradients(X, k)`` those of all local agents
    for step k, ``gradients(X, k, agents=[i, ...])`` those of some, one row of `X` for each.

    Parameters
    ----------
    gradient : callable
        ``gradient(X, k)``, perhaps with the argument `agents`.
    m : int
        Number of local agents.
    source : Gradients, optional
        The gradients that they are made of, whose memory they have.

    Attributes
    ----------
    all, some : callable
        ``all(X, k)`` and ``some(X, k, agents=[i, ...])``, without the choice between them.

    Examples
    --------
    >>> gradients = Gradients(lambda X, k: X - k, m=3)
    >>> gradients(np.ones((1, 1)), 5, agents=[2]), gradients.memory()
    (array([[-4.]]), {})
    """

    def __init__(self, gradient: Gradient, m: int, source: Gradients | None = None) -> None:
        some = by_agents(gradient, m)
        if some is not gradient:
            check.takes(gradient, "the gradient of the oracle", "X", "k")
        known = (gradient.__module__ or "").startswith("mpidec.")
        self._gradient, self._m = gradient, m
        self.all: Gradient = gradient if known else _isolated(gradient)
        self.some: Gradient = some if known else _isolated(some)
        own = gradient if isinstance(gradient, Remembering) else None
        self._remembered = own if source is None else source.remembered
        if m > 1 and own is not None and some is not gradient:
            self.some = self._refused

    @property
    def remembered(self) -> Remembering | None:
        """What depends on earlier steps, if anything does."""
        return self._remembered

    def __call__(self, X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
        return self.all(X, k) if agents is None else self.some(X, k, agents=agents)

    def _refused(self, X: Array, k: int, agents: Sequence[int]) -> Array:
        if len(agents) == self._m:
            return self.all(X, k)
        raise TypeError(
            f"the gradients of {type(self._gradient).__name__} remember earlier steps and have "
            "no argument agents, so that those of one agent would change what all remember: "
            "write gradient(X, k, agents=None), which updates the memory of these agents alone"
        )

    def memory(self) -> dict[str, Array]:
        """Return what is remembered of the local agents, by name: arrays (m, ...); empty before the
        first step, and where nothing is remembered.
        """
        return {} if self.remembered is None else self.remembered.memory()

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Continue with what `memory` returned, perhaps on another number of ranks."""
        if self.remembered is not None:
            self.remembered.recall(memory)


class OracleOfRuns:
    """The gradients of several runs at once, each with gradients and a memory of its own.

    Parameters
    ----------
    each : sequence of Gradients
    """

    def __init__(self, each: Sequence[Gradients]) -> None:
        self._each = each

    def __call__(self, X: Array, k: int) -> Array:
        made = [gradients.all(x, k) for gradients, x in zip(self._each, by_run(X, len(self._each)))]
        return np.concatenate(made, axis=1)

    def memory(self) -> dict[str, Array]:
        """Return what each run remembers, by name: arrays (m, runs, ...)."""
        found = [gradients.memory() for gradients in self._each]
        return {name: np.stack([one[name] for one in found], axis=1) for name in found[0]}

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Continue with what `memory` returned."""
        for run, gradients in enumerate(self._each):
            gradients.recall({name: rows[:, run] for name, rows in memory.items()})


def by_run(X: Array, runs: int) -> list[Array]:
    """Return the rows of each run, (m, d), of those that have all of them, (m, runs * d).

    Examples
    --------
    >>> by_run(np.arange(4.0).reshape(1, 4), 2)
    [array([[0., 1.]]), array([[2., 3.]])]
    """
    return [np.ascontiguousarray(part) for part in np.split(X, runs, axis=1)]


def _isolated(gradient: Gradient) -> Gradient:
    """Wrap a user's gradient function, so that it can change neither its argument nor earlier
    results.
    """

    def isolated(X: Array, k: int, **agents: Sequence[int]) -> Array:
        what = "numbers" if is_complex(X) else "real numbers"
        made = gradient(X.copy(), k, **agents)
        found: Array = check.returned(made, "gradient(X, k) of the oracle", X.shape, what).copy()
        return found

    return isolated


def of_one(gradients: Gradients) -> Callable[[int, Array, int], Array]:
    """Return `gradient(i, x, k)`: the gradient of local agent i at `x`, shape (d,), for its own
    step k; `gradients(X, k, agents=...)` returns those of some agents.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Full, LeastSquares
    >>> oracle = Full(LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]]))
    >>> of_one(oracle.gradients(range(2), seed=0))(1, np.zeros(1), 0)
    array([-3.])
    """
    some = gradients.some

    def gradient(i: int, x: Array, k: int) -> Array:
        g: Array = some(x[None], k, agents=(i,))[0]
        if g.shape != x.shape:
            raise ValueError(f"the gradient of an agent has shape {g.shape}, expected {x.shape}")
        return g

    return gradient


class Oracle(Described):
    """Base class of oracles: ``start(agents, seed)`` returns ``gradient(X, k)``, the gradients for
    step k.

    For asynchronous runs, ``gradient(X, k, agents=[i, ...])`` returns those of some local agents,
    one row of `X` for each; without it, the gradients of all local agents are evaluated
    (`mpidec.problems.agents`), which a gradient that remembers earlier steps refuses.  If it has
    the methods ``memory()`` and ``recall(memory)``, checkpoints hold what it remembers.

    A user-defined oracle may be any object with ``problem`` and ``start``; the following attributes
    are optional.

    Attributes
    ----------
    problem : Problem
        The problem that the gradients belong to.
    random : bool
        Whether the gradients are random, and remain so at the minimizer; True if an oracle of one's
        own does not say otherwise.
    smooth : bool
        Whether they are gradients, not subgradients.
    batches : oracle or None
        Where only their noise at the minimizer vanishes (`mpidec.problems.variance_reduction`): an
        oracle that draws the same curvatures, for `step_size="auto"`.
    source : oracle or None
        The oracle inside of it.
    motion : Motion or None
        How the minimizer moves; None of one that stays, or moves otherwise.
    """

    problem: Any
    random: bool = True
    smooth: bool = True
    batches: OracleLike | None = None
    source: Oracle | None = None
    motion: Motion | None = None

    @property
    def draws(self) -> bool:
        """Whether the gradients draw random numbers, which a seed changes."""
        return self.random or self.batches is not None

    @property
    def term(self) -> Term | None:
        """The term of the problem that the gradients leave out, and the solver takes proximal
        points of.
        """
        return term_of(self.problem)

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k) -> G`` for the local `agents` (numbers among all agents)."""
        raise NotImplementedError(f"{type(self).__name__} has no start(agents, seed)")

    def gradients(self, agents: Sequence[int], seed: int) -> Gradients:
        """Start the oracle, and return its gradients with their memory, also for some agents
        only.
        """
        gradient = self.start(agents, seed)
        return gradient if isinstance(gradient, Gradients) else Gradients(gradient, self.problem.m)

    def of_runs(self, agents: Sequence[int], seeds: Sequence[int]) -> Gradients:
        """Start the oracle once for each seed, and return ``gradient(X, k)`` of all these runs: a
        row of X has the points of the runs one after the other, (m, runs * d).
        """
        each = [self.gradients(agents, seed) for seed in seeds]
        runs = OracleOfRuns(each)
        return Gradients(runs if each[0].remembered else runs.__call__, self.problem.m)

    def samples(self, agents: Sequence[int], seed: int) -> Measured | None:
        """Return ``sample(k)``, what the local `agents` measure in step k, for solvers that take
        samples in place of gradients; None where there are no samples.
        """
        return None

    def layers(self) -> list[object]:
        """Return the oracles around the problem as they were given, the outermost one first."""
        return [self, *([] if self.source is None else self.source.layers())]


def _check_agents(problem: Problem, agents: Sequence[int]) -> None:
    if len(agents) != problem.m:
        raise ValueError(f"{len(agents)} agents, expected {problem.m}: one per row of the problem")
    for agent in {*agents[:1], *agents[-1:]} if isinstance(agents, range) else agents:
        check.integer(agent, "agent", least=0)


def hosted(lo: int, m: int, agents: Sequence[int], name: str, call: str) -> range:
    """Return the agents `lo`, ..., `lo + m - 1` of a problem, which are to be those of a run.

    Raises
    ------
    ValueError
    """
    mine = range(lo, lo + m)
    if list(agents) != list(mine):
        raise ValueError(
            f"{name}: lo = {lo} and m = {m}, expected {min(agents, default=lo)} "
            f"and {len(agents)}: {name}{call}"
        )
    return mine


class Full(Oracle):
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

    def samples(self, agents: Sequence[int], seed: int) -> Measured | None:
        """Return ``sample(k)``: all samples in each step, of least squares."""
        sample = sample_of(self.problem)
        return None if sample is None else lambda k: sample(None)


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


class MiniBatch(Oracle):
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
    >>> batches = MiniBatch(LeastSquares(np.ones((1, 4, 1)), [[1, 2, 3, 4]]), 2)
    >>> gradient = batches.start(range(1), seed=0)
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

    def samples(self, agents: Sequence[int], seed: int) -> Measured | None:
        """Return ``sample(k)``: the batch of step k, of least squares."""
        sample, draws = sample_of(self.problem), Draws(self.problem, self.batch_size, agents, seed)
        return None if sample is None else lambda k: sample(draws(k))


class Draws:
    """Samples of each agent in the batch of each step, determined by (seed, agent, step).

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
        self._streams = Streams(check.integer(seed, "seed", least=0), "samples")
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
        """Return the factors :math:`p_i / B`, (m,); with `agents`, of these local agents."""
        return np.asarray(self._weight if agents is None else self._weight[list(agents)])

    def grad(self, X: Array, rows: NDArray[np.intp], agents: Sequence[int] | None = None) -> Array:
        """Return the gradients of the batches `rows`, (m, d) -> (m, d); with `agents`, of these
        local agents.
        """
        weight = self.weight(agents)
        if agents is None:
            return self._problem.sample_grad(X, rows, weight)
        return self._problem.sample_grad(X, rows, weight, agents)


class Noisy(Oracle):
    r"""The gradient with additive Gaussian noise.

    .. math:: g_i = \nabla f_i(x_i) + \frac{\sigma}{\sqrt d}\, \xi_i^k, \qquad \xi_i^k \sim N(0, I_d), \qquad
              \mathbb{E} \|g_i - \nabla f_i(x_i)\|^2 = \sigma^2

    At complex points the noise is circular: real and imaginary parts have half of this variance
    each.

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
    >>> noisy = Noisy(LeastSquares(np.ones((1, 2, 1)), [[1, 2]]), sigma=0.0)
    >>> gradient = noisy.start(range(1), seed=0)
    >>> gradient(np.zeros((1, 1)), 0)
    array([[-3.]])
    """

    source: Oracle

    def __init__(self, source: Problem | OracleLike, sigma: float) -> None:
        self.source = inner = adapted(source)
        self.problem, self.smooth = inner.problem, inner.smooth
        self.sigma = check.number(sigma, "sigma", least=0)

    @property
    def term(self) -> Term | None:
        """That of the source."""
        return self.source.term

    @property
    def draws(self) -> bool:
        return self.sigma > 0 or self.source.draws

    def start(self, agents: Sequence[int], seed: int) -> Gradients:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        exact = self.source.gradients(agents, seed)
        streams = Streams(check.integer(seed, "seed", least=0), "noise")
        numbers, everyone = agents, range(self.problem.m)
        d = self.problem.d

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            noise = np.empty((len(X), 2 * d if is_complex(X) else d))
            for row, i in zip(noise, everyone if agents is None else agents):
                streams.at(numbers[i], k).standard_normal(out=row)
            deviation = self.sigma / np.sqrt(noise.shape[1])
            noise = from_reals(noise) if is_complex(X) else noise
            return np.asarray(exact(X, k, agents) + deviation * noise)

        return Gradients(gradient, self.problem.m, exact)


class Subgradient(Oracle):
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

    # `step_size="auto"` has no linear model of it.
    smooth = False
    term = None  # nothing is left to the solver
    source: Oracle

    def __init__(self, source: Problem | OracleLike) -> None:
        self.source = inner = adapted(source)
        self.problem, self.random, self.batches = inner.problem, inner.random, inner.batches
        if inner.term is None:
            complete = term_of(self.problem) is not None
            raise ValueError(
                f"{type(source if complete else self.problem).__name__} "
                f"{'includes its' if complete else 'has no'} term, so its gradient is complete: "
                "pass it without Subgradient"
            )
        self._subgradient = inner.term.subgradient
        self._subgradient(np.zeros((0, self.problem.d)))  # refuses constraints

    def start(self, agents: Sequence[int], seed: int) -> Gradients:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        smooth, subgradient = self.source.gradients(agents, seed), self._subgradient

        def gradient(X: Array, k: int, agents: Sequence[int] | None = None) -> Array:
            return np.asarray(smooth(X, k, agents) + subgradient(X))

        return Gradients(gradient, self.problem.m, smooth)


class Bare(Full):
    """The exact oracle of a problem that was given without one."""

    def layers(self) -> list[object]:
        """None."""
        return []


# Optional members of an oracle that does not derive from `Oracle`, beside its samples.
STATED = ("random", "smooth", "batches", "motion")


class _Given(Oracle):
    """Adapter of an oracle that does not derive from `Oracle`, with defaults for missing
    members.
    """

    def __init__(self, given: OracleLike) -> None:
        self._given, self.problem = given, given.problem
        stated = {name: getattr(given, name, None) for name in STATED}
        vars(self).update({name: value for name, value in stated.items() if value is not None})
        inner = getattr(given, "source", None)
        self.source = adapted(inner) if isinstance(inner, OracleLike) else None

    def start(self, agents: Sequence[int], seed: int) -> Gradient:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        check.takes(self._given.start, f"{type(self._given).__name__}.start", "agents", "seed")
        return self._given.start(agents, seed)

    def samples(self, agents: Sequence[int], seed: int) -> Measured | None:
        """Return ``sample(k)``, if the oracle has samples."""
        start = getattr(self._given, "samples", None)
        return None if start is None else start(agents, seed)

    def layers(self) -> list[object]:
        """Return the oracles around the problem as they were given, the outermost one first."""
        return [self._given, *super().layers()[1:]]


def adapted(given: Problem | OracleLike) -> Oracle:
    """Return an `Oracle` unchanged; wrap a problem, or an oracle that does not derive from
    `Oracle`.

    Examples
    --------
    >>> from mpidec.problems import LeastSquares, MiniBatch
    >>> problem = LeastSquares(np.ones((1, 2, 1)), [[1, 2]])
    >>> adapted(problem).random, adapted(MiniBatch(problem, 1)).random
    (False, True)
    """
    if isinstance(given, Bare):  # inside of another oracle
        return Full(given.problem)
    if isinstance(given, Oracle):
        return given
    return _Given(given) if isinstance(given, OracleLike) else Full(given)
