r"""Variance reduction: oracles of mini-batch gradients whose noise vanishes at the minimizer.

Each is an oracle around a problem, for any solver: `GradientTracking` with `SAGA`, `SVRG` and
`SARAH` is GT-SAGA, GT-SVRG and GT-SARAH, and with `LSVRG` GT-VR; `ExactDiffusion` with `SVRG` is
exact diffusion with variance reduction.  With exact methods on strongly convex functions they
converge linearly to the minimizer, at the cost of small batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .. import _validation as check
from .._validation import Array
from .agents import by_agents
from .base import LinearModel
from .oracles import Draws, MiniBatch, Oracle, Streams, check_samples

Agents = Sequence[int]


class _Reduced(Oracle):
    """An oracle with variance reduction: a batch size, a number of steps, and what its gradients
    remember.
    """

    random = False  # no noise remains at the minimizer
    remembered: type[_Memory]

    def __init__(
        self, problem: LinearModel, batch_size: int = 1, period: int | None = None
    ) -> None:
        check_samples(type(self).__name__, problem)
        self.batches = batches = MiniBatch(problem, batch_size)
        self.problem, self.batch_size = problem, batches.batch_size
        self.period = None if period is None else check.integer(period, "period")

    def start(self, agents: Agents, seed: int) -> _Memory:
        """Return ``gradient(X, k)`` for the local `agents` (numbers among all agents)."""
        return self.remembered(self.problem, self.batch_size, self.period, agents, seed)


class _Memory:
    """The gradient of an oracle, and the rows of each local agent that it remembers.

    Agents are independent of each other: a call may ask for some of them only, as asynchronous runs
    do.
    """

    names: tuple[str, ...] = ()

    def __init__(
        self, problem: LinearModel, batch_size: int, period: int | None, agents: Agents, seed: int
    ) -> None:
        self._problem, self._agents, self._seed = problem, agents, seed
        self._draws = Draws(problem, batch_size, agents, seed)
        self._grad = by_agents(problem.grad, problem.m)
        # Batches in as many samples as an agent has.
        passes = -(-problem.counts // batch_size)
        self._period = (passes if period is None else np.full(problem.m, period)).tolist()
        self._rows: dict[str, Array] = {}

    def __call__(self, X: Array, k: int, agents: Agents | None = None) -> Array:
        """Return the gradients of step k at the rows of `X`; with `agents`, of these local
        agents.
        """
        local = range(self._problem.m) if agents is None else agents
        if not self._rows:
            self._rows = {name: np.zeros(self._shape(name), X.dtype) for name in self.names}
        due = [self._due(i, k) for i in local]
        if all(due):
            return self._exact(X, agents)
        if not any(due):
            return self._reduced(X, k, agents)
        G, places = np.empty_like(X), np.array(due)
        for there, compute in (
            (places, self._exact),
            (~places, lambda rows, some: self._reduced(rows, k, some)),
        ):
            G[there] = compute(X[there], [i for i, chosen in zip(local, there) if chosen])
        return G

    def memory(self) -> dict[str, Array]:
        """Return what is remembered of the local agents, by name: arrays (m, ...); empty before the
        first step.
        """
        return dict(self._rows)

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Continue with what `memory` returned, perhaps on another number of ranks.

        Raises
        ------
        ValueError
            If it is the memory of another oracle, or not that of the local agents.
        """
        found, wanted = sorted(memory), sorted(self.names)
        if found != wanted:
            raise ValueError(
                f"the memory has the arrays {', '.join(found) or 'none'}, expected "
                f"{', '.join(wanted)}: use the oracle of it"
            )
        for name in wanted:
            if memory[name].shape != self._shape(name):
                raise ValueError(
                    f"memory {name} has shape {memory[name].shape}, expected {self._shape(name)}: "
                    "the rows of the local agents"
                )
        self._rows = {name: np.array(rows) for name, rows in memory.items()}

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._problem.m, self._problem.d

    def _due(self, i: int, k: int) -> bool:
        """Return whether local agent i takes its exact gradient at step k."""
        return bool(k % self._period[i] == 0)

    def _exact(self, X: Array, agents: Agents | None) -> Array:
        """Return the exact gradients, remembered."""
        raise NotImplementedError

    def _reduced(self, X: Array, k: int, agents: Agents | None) -> Array:
        """Return the gradients from batches and from memory."""
        raise NotImplementedError

    def _full(self, X: Array, agents: Agents | None) -> Array:
        return np.asarray(self._problem.grad(X) if agents is None else self._grad(X, agents=agents))

    def _difference(self, X: Array, Z: Array, k: int, agents: Agents | None) -> Array:
        """Return the difference of the gradients at `X` and `Z`, of the same batches."""
        rows = self._draws(k, agents)
        return self._draws.grad(X, rows, agents) - self._draws.grad(Z, rows, agents)


def _at(agents: Agents | None) -> slice | list[int]:
    return slice(None) if agents is None else list(agents)


class _Snapshot(_Memory):
    names: tuple[str, str] = "snapshot", "full"  # the point, and the gradient there

    def _exact(self, X: Array, agents: Agents | None) -> Array:
        return self._kept(X, self._full(X, agents), agents)

    def _reduced(self, X: Array, k: int, agents: Agents | None) -> Array:
        (point, gradient), at = self.names, _at(agents)
        G = self._difference(X, self._rows[point][at], k, agents)
        G += self._rows[gradient][at]
        return G

    def _kept(self, X: Array, G: Array, agents: Agents | None) -> Array:
        """Return the gradients `G` at `X`, remembered."""
        (point, gradient), at = self.names, _at(agents)
        self._rows[point][at], self._rows[gradient][at] = X, G
        return G


class _LooplessSnapshot(_Snapshot):
    def __init__(
        self, problem: LinearModel, batch_size: int, period: int | None, agents: Agents, seed: int
    ) -> None:
        super().__init__(problem, batch_size, period, agents, seed)
        self._streams = Streams(seed, "snapshots")

    def _due(self, i: int, k: int) -> bool:
        return k == 0

    def _reduced(self, X: Array, k: int, agents: Agents | None) -> Array:
        G = super()._reduced(X, k, agents)
        local = range(self._problem.m) if agents is None else agents
        heads = [self._streams.at(self._agents[i], k).random() * self._period[i] < 1 for i in local]
        if any(heads):
            self._exact(X[heads], [i for i, head in zip(local, heads) if head])
        return G


class _Recursion(_Snapshot):
    names = "point", "estimate"

    def _reduced(self, X: Array, k: int, agents: Agents | None) -> Array:
        return self._kept(X, super()._reduced(X, k, agents), agents)


class _Table(_Memory):
    names = "slopes", "sum"

    def _shape(self, name: str) -> tuple[int, ...]:
        model = self._problem
        outputs = model.d // model.features
        return (model.m, model.p, outputs) if name == "slopes" else (model.m, model.d)

    def _due(self, i: int, k: int) -> bool:
        return k == 0

    def _exact(self, X: Array, agents: Agents | None) -> Array:
        R, at = self._problem.slopes(X, agents=agents), _at(agents)
        self._rows["slopes"][at] = R
        G = self._rows["sum"][at] = self._problem.from_slopes(R, agents=agents)
        return np.asarray(G + self._problem.ridge_grad(X))

    def _reduced(self, X: Array, k: int, agents: Agents | None) -> Array:
        rows, at, model = self._draws(k, agents), _at(agents), self._problem
        local = np.arange(model.m) if agents is None else np.asarray(agents)
        table, entries = self._rows["slopes"], (local[:, None], rows)
        R = model.slopes(X, rows, agents)
        change = model.from_slopes(R - table[entries], rows, agents)
        factor = self._draws.weight(agents)[:, None].astype(X.dtype, copy=False)
        G = factor * change + self._rows["sum"][at] + model.ridge_grad(X)
        self._rows["sum"][at] += change
        table[entries] = R
        return np.asarray(G)


class SVRG(_Reduced):
    r"""Stochastic variance-reduced gradient: batches correct the exact gradient at a snapshot,
    taken in every `period`-th step.

    .. math:: g_i^k = \nabla f_{i,S}(x_i^k) - \nabla f_{i,S}(\tilde x_i) + \nabla f_i(\tilde x_i), \qquad
              \tilde x_i = x_i^{k - k \bmod q}

    where :math:`\nabla f_{i,S}` is the gradient of `MiniBatch`.

    Parameters
    ----------
    problem : LinearModel
        LeastSquares, LogisticRegression, Softmax, Huber or Neural (any problem with ``sample_grad``
        and ``counts``).
    batch_size : int
        B, at most the number of samples of every agent.
    period : int, optional
        q; by default :math:`\lceil p_i / B \rceil`, one exact gradient for each pass over the
        samples.

    Raises
    ------
    ValueError, TypeError
        As for `MiniBatch`; `period` must be an integer >= 1.

    Notes
    -----
    No communication.  Two batch gradients per step.  Each agent remembers two rows, which
    checkpoints hold.  Draws are those of `MiniBatch`, determined by (seed, agent, step).

    Examples
    --------
    >>> import mpidec
    >>> from mpidec.problems import SVRG, load_problem
    >>> problem = load_problem("synthetic_least_squares", n=4)
    >>> result = mpidec.solve(
    ...     SVRG(problem, 4), "exact_diffusion", "ring", steps=2000, stop={"error_rms": 1e-10}
    ... )
    >>> str(result.outcome)
    'stopped'

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013.  With gradient tracking: R. Xin, U. A. Khan, S. Kar, "Variance-reduced
    decentralized stochastic optimization with accelerated convergence", IEEE Trans. Signal Process.
    2020 (GT-SVRG).
    """

    remembered = _Snapshot


class LSVRG(_Reduced):
    r"""Loopless SVRG: after each step, each agent takes a new snapshot with probability 1 /
    `period`.

    .. math:: g_i^k = \nabla f_{i,S}(x_i^k) - \nabla f_{i,S}(\tilde x_i^k) + \nabla f_i(\tilde x_i^k), \qquad
              \tilde x_i^{k+1} = \begin{cases} x_i^k & \text{with probability } 1/q \\ \tilde x_i^k & \text{otherwise} \end{cases}

    Parameters
    ----------
    problem, batch_size, period
        As for `SVRG`.

    Notes
    -----
    As for `SVRG`; agents take their exact gradients at different steps.

    Examples
    --------
    >>> from mpidec.problems import LSVRG, load_problem
    >>> gradient = LSVRG(load_problem("synthetic_least_squares", n=4), 2).start(range(4), seed=0)

    References
    ----------
    D. Kovalev, S. Horvath, P. Richtarik, "Don't jump through hoops and remove those loops: SVRG and
    Katyusha are better without the outer loop", ALT 2020, algorithm 1.  With gradient tracking: X.
    Jiang et al., "Distributed stochastic gradient tracking algorithm with variance reduction for
    non-convex optimization", IEEE Trans. Neural Netw. Learn. Syst. 2023 (GT-VR).
    """

    remembered = _LooplessSnapshot


class SARAH(_Reduced):
    r"""Stochastic recursive gradient: batches correct the estimate of the step before; every
    `period`-th one is exact.

    .. math:: g_i^k = \begin{cases} \nabla f_i(x_i^k) & k \bmod q = 0 \\
              \nabla f_{i,S}(x_i^k) - \nabla f_{i,S}(x_i^{k-1}) + g_i^{k-1} & \text{otherwise} \end{cases}

    Parameters
    ----------
    problem, batch_size, period
        As for `SVRG`.

    Notes
    -----
    As for `SVRG`.  The estimates are biased, but vary less than those of SVRG, as :math:`x_i^{k-1}`
    is closer than a snapshot.

    Examples
    --------
    >>> from mpidec.problems import SARAH, load_problem
    >>> gradient = SARAH(load_problem("synthetic_least_squares", n=4), 2).start(range(4), seed=0)

    References
    ----------
    L. M. Nguyen et al., "SARAH: a novel method for machine learning problems using stochastic
    recursive gradient", ICML 2017.  With gradient tracking: R. Xin, U. A. Khan, S. Kar, "Fast
    decentralized nonconvex finite-sum optimization with recursive variance reduction", SIAM J.
    Optim. 2022 (GT-SARAH).
    """

    remembered = _Recursion


class SAGA(_Reduced):
    r"""SAGA: a table of the last gradient of every sample, and no exact gradient after the first
    step.

    .. math:: g_i^k = \frac{p_i}{B} \sum_{s \in S_i^k} \bigl( \nabla \ell_{is}(x_i^k) - t_{is} \bigr)
              + \sum_s t_{is} + \lambda x_i^k, \qquad t_{is} \leftarrow \nabla \ell_{is}(x_i^k), \quad s \in S_i^k

    Parameters
    ----------
    problem : LinearModel
        LeastSquares, LogisticRegression, Softmax, Huber, or a class of your own derived from
        LinearModel.
    batch_size : int
        B, at most the number of samples of every agent.

    Raises
    ------
    ValueError, TypeError
        As for `MiniBatch`, and if the problem is no LinearModel.

    Notes
    -----
    No communication.  One batch gradient per step.  The gradient of a sample is its features times
    the derivative of the loss with respect to its score, so an agent remembers :math:`p_i` numbers
    (times classes) and a row, which checkpoints hold.  The table begins with the gradients at the
    first point.  Draws are those of `MiniBatch`.

    Examples
    --------
    >>> from mpidec.problems import SAGA, load_problem
    >>> gradient = SAGA(load_problem("synthetic_least_squares", n=4), 2).start(range(4), seed=0)

    References
    ----------
    A. Defazio, F. Bach, S. Lacoste-Julien, "SAGA: a fast incremental gradient method with support
    for non-strongly convex composite objectives", NeurIPS 2014.  With gradient tracking: Xin, Khan,
    Kar 2020, see `SVRG` (GT-SAGA).
    """

    remembered = _Table

    def __init__(self, problem: LinearModel, batch_size: int = 1) -> None:
        super().__init__(problem, batch_size)
        if not hasattr(problem, "from_slopes"):
            raise TypeError(
                f"SAGA has no table for the samples of a {type(problem).__name__}, expected a "
                "LinearModel, such as LeastSquares "
                "(SVRG and SARAH work with every problem that has samples)"
            )


REDUCTIONS: dict[str, type[_Reduced]] = {
    "svrg": SVRG,
    "lsvrg": LSVRG,
    "sarah": SARAH,
    "saga": SAGA,
}
