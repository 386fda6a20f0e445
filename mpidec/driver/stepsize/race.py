"""Race of step sizes: the solver's own steps on a linear model, one step size per column of a
stack; the safe bound; trial runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ...comm.mixing.operator import Operator, StepOperator
from ...solvers.base import Solver, at_step, state, with_step_size
from ..answers import Answers
from .linear import LinearModel, flat

# The race is run with 5 % larger step sizes than those returned, which are then not at the edge of
# stability.
MARGIN = 1.05
# Steps of a race to a tolerance: it begins with SHORTEST, and doubles them up to LONGEST.
SHORTEST, LONGEST = 32, 4096
# It ends after 1 / PART of the predicted steps, if it has at least ENOUGH.
PART, ENOUGH = 4, 512
# Steps after which the error of methods with bias is extrapolated.
HORIZON = 4096
# A trial run takes 1 / TRIAL_PART of the steps of a run, and at least FEWEST.
TRIAL_PART, FEWEST = 32, 16
# Step sizes around the choice, in factors of sqrt(2).
LARGER, SMALLER = 5, 4
# Ratio of two predictions that agree.
AGREE = 1.1
# Part of the noise with a term: from farther away, steps may grow that the run does not meet.
NOISE = 0.03
# Part of the tolerance below which errors are not compared where the model has a term: a face is
# reached in finitely many steps.
REACHED = 1e-3
# The safe bound: part of the largest stable step size, for agents of different curvatures; in units
# of 1 / L where none is stable.
SAFE_PART, UNSTABLE_PART = 0.5, 0.25
# Agents from which on there is no race, and fewer step sizes and steps are tried for the safe
# bound.
MOST_AGENTS = 10_000
# Largest error on the way, in units of that at the start: larger ones would drown the last digits.
TRANSIENT = 1e6
# Octaves by which a race is begun higher if its largest step size is the best.
HIGHER = 3


class Stack:
    """A solver with several step sizes at once.

    Parameters
    ----------
    solver : Solver
    factor : callable
        `factor(k)`: the factor of the step sizes at step k.
    W : mixer
    model : LinearModel
    sizes : array (S,)
    start : array (m, r) or (m, r, S)
    first : int
        Number of the first step.
    origin : array (r,), optional
        The minimizer, for mixers whose averages of equal rows are other rows: what the solver mixes
        are then rows, not their distances from the minimizer.
    """

    def __init__(
        self,
        solver: Solver,
        factor: Callable[[int], float],
        W: Operator[StepOperator],
        model: LinearModel,
        sizes: np.ndarray,
        start: np.ndarray,
        first: int = 0,
        origin: np.ndarray | None = None,
    ):
        self._make, self._factor, self._W, self._model, self.sizes = solver, factor, W, model, sizes
        X = np.repeat(start, len(sizes), axis=1) if start.ndim == 2 else flat(start)
        self._origin = origin
        if origin is not None:
            X = X + np.repeat(origin, len(sizes))
        self._k, self._last = first, np.nan  # the last factor
        self._state = state(solver, "init", self._solver(first).init(X, W.at(first)), X.shape)

    def _solver(self, k: int) -> Solver:
        factor = self._factor(k)
        if factor != self._last:
            self._last = factor
            self._now: Solver = with_step_size(
                self._make, np.tile(factor * self.sizes, self._model.r)
            )
        return self._now

    def run(self, steps: int) -> None:
        """Take the steps up to `steps`."""
        s, model, W = self._state, self._model, self._W
        origin = None if self._origin is None else np.repeat(self._origin, len(self.sizes))
        while self._k < steps:
            solver = self._solver(self._k)
            s = solver.step(s, solver.ask(model.functions(self._k, origin), s), W.at(self._k))
            if self._k == 0:
                state(solver, "step", s, self._state.X.shape)
            self._k += 1
        self._state = s

    @property
    def E(self) -> np.ndarray:
        """The iterates, (m, r, S)."""
        X = self._state.X
        E = np.asarray(X.reshape(len(X), self._model.r, len(self.sizes)))
        return E if self._origin is None else E - self._origin[:, None]

    def keep(self, chosen: np.ndarray) -> bool:
        """Continue with the chosen candidates only; False, and no change, if the columns of some
        array of the state are others.
        """
        r, S = self._model.r, len(self.sizes)
        kept = []
        for value in self._state:
            if np.ndim(value) == 2 and value.shape[1] == r * S:
                value = flat(np.ascontiguousarray(value.reshape(len(value), r, S)[:, :, chosen]))
            elif not (np.ndim(value) == 0 or (np.ndim(value) == 2 and value.shape[1] == 1)):
                return False
            kept.append(value)
        self._state, self.sizes = type(self._state)(*kept), self.sizes[chosen]
        self._last = np.nan
        return True


class Apart:
    """Stacks of one step size each, for mixers that do not mix each column by itself.

    Parameters
    ----------
    stacks : list of Stack
    """

    def __init__(self, stacks: list[Stack]):
        self._stacks = stacks

    @property
    def sizes(self) -> np.ndarray:
        """The step sizes, (S,)."""
        return np.concatenate([stack.sizes for stack in self._stacks])

    def run(self, steps: int) -> None:
        """Take the steps up to `steps`."""
        for stack in self._stacks:
            stack.run(steps)

    @property
    def E(self) -> np.ndarray:
        """The iterates, (m, r, S)."""
        return np.concatenate([stack.E for stack in self._stacks], axis=2)

    def keep(self, chosen: np.ndarray) -> bool:
        """Continue with the chosen candidates only."""
        self._stacks = [self._stacks[j] for j in chosen]
        return True


class Candidates(Protocol):
    """Runs on a linear model with several step sizes at once, such as `Stack`."""

    @property
    def sizes(self) -> np.ndarray:
        """The step sizes, (S,)."""

    def run(self, steps: int) -> None:
        """Go on up to so many steps."""

    @property
    def E(self) -> np.ndarray:
        """The iterates, (m, r, S)."""

    def keep(self, chosen: np.ndarray) -> bool:
        """Continue with the chosen candidates only; False, and no change, if that is not
        possible.
        """


@dataclass(frozen=True)
class Ranking:
    """Result of a race.

    Attributes
    ----------
    sizes : array (S,)
        The step sizes, from the largest to the smallest.
    predicted : array (S,)
        The predicted steps to the tolerance, or the predicted error; inf for a step size that does
        not converge.
    best : int
        Index of the best; -1 if none converges.
    steps : int
        Steps of the race.
    early : array (S,) of bool
        Which step sizes have dropped out, so that their predictions are rough.
    """

    sizes: np.ndarray
    predicted: np.ndarray
    best: int
    steps: int
    early: np.ndarray

    @property
    def size(self) -> float:
        """The best step size."""
        return float(self.sizes[self.best])

    @property
    def least(self) -> float:
        """The prediction for the best step size."""
        return float(self.predicted[self.best])


def noise(model: LinearModel) -> np.ndarray:
    """A starting point that contains every mode that a run can reach: the initial point, and as
    much noise.
    """
    Z, B = np.random.default_rng(1).standard_normal(model.start.shape), model.reachable
    if 0 < B.shape[1] < model.r:
        Z = (Z @ B) @ B.T
    far = model.distance or np.sqrt(model.n) * model.size or 1.0
    part = 1.0 if model.prox is None or model.V is not None else NOISE
    return np.asarray(model.start + Z * (part * far / np.linalg.norm(Z)))


def _errors(stack: Candidates, model: LinearModel) -> tuple[np.ndarray, np.ndarray]:
    """The error of each candidate: as it is, and without the slow modes of the average."""
    E = stack.E
    mean = E.mean(axis=0)
    spread = ((E - mean) ** 2).sum(axis=(0, 1))
    fast = ((model.mean @ mean) ** 2).sum(axis=0) / model.curvature**2
    return np.sqrt(spread + len(E) * (mean**2).sum(axis=0)), np.sqrt(len(E) * fast + spread)


def within_window(
    race: Callable[[np.ndarray], Ranking],
    highest: int,
    octaves: int,
    per_octave: int,
    higher: bool = False,
) -> Ranking | None:
    """The ranking of step sizes 2^(`highest` / `per_octave`) and smaller ones; None if none
    converges.

    If the smallest one is the best, or none converges, the race goes on below them; above them if
    the largest one is the best and `higher` ones may be stable.
    """
    found: Ranking | None = None
    for attempt in range(3):
        sizes = 2.0 ** (np.arange(highest, highest - octaves * per_octave - 1, -1) / per_octave)
        ranking = replace(race(sizes), sizes=sizes)
        if found is not None and (ranking.best < 0 or ranking.least >= found.least):
            return found
        if ranking.best == 0 and attempt < 2 and higher:
            found = ranking
            highest += HIGHER * per_octave
        elif ranking.best >= 0 and (attempt == 2 or found or ranking.best < len(sizes) - 1):
            return ranking
        else:
            highest -= octaves * per_octave
    return None


def fastest(
    stack: Candidates,
    model: LinearModel,
    tol: float,
    longest: int = LONGEST,
    enough: int = ENOUGH,
) -> Ranking:
    """The step size with the least predicted number of steps to a relative error `tol`, after
    `longest` steps at most.

    A race of at least `enough` steps ends after a part of the predicted steps.
    """
    sizes = stack.sizes
    alive, strikes, predicted = (
        np.arange(len(sizes)),
        np.zeros(len(sizes), int),
        np.full(len(sizes), np.inf),
    )
    goal = tol * np.sqrt(model.n) * (model.size or 1.0)
    least_error = 0.0 if model.prox is None else REACHED * goal

    def errors() -> tuple[np.ndarray, ...]:
        return tuple(np.maximum(error, least_error) for error in _errors(stack, model))

    before = errors()
    last, K = 0, longest >> max(0, int(np.log2(longest / SHORTEST)))
    while True:
        stack.run(K)
        now, places = errors(), _places(stack, sizes, alive)
        T = np.full(len(alive), -np.inf)
        for old, new in zip(before, now):
            rate = np.log(old / new)[places] / (K - last)
            T = np.maximum(T, np.where(rate > 0, K + np.log(new[places] / goal) / rate, np.inf))
        T = predicted[alive] = np.where(np.isfinite(T), T, np.inf)
        least = T.min()
        patience = 2.5 if K <= 128 else 1.25
        strikes[alive] = np.where(patience * least >= T, 0, strikes[alive] + 1)
        near = now[0][places] <= 1e3 * np.fmin.reduce(now[0][places])
        left = alive[(strikes[alive] < 2) & near]
        known = least <= max(K, PART * K * (enough <= K)) or len(left) <= 1
        if (known and np.isfinite(least)) or longest < 2 * K or not len(left):
            early = np.full(len(sizes), True)
            early[alive] = False
            return Ranking(
                sizes, predicted, int(alive[np.argmin(T)]) if np.isfinite(least) else -1, K, early
            )
        if len(left) < len(alive):
            kept, alive = _places(stack, sizes, left), left
            before = tuple(error[kept] for error in now) if stack.keep(kept) else now
        else:
            before = now
        last, K = K, 2 * K


def _places(stack: Candidates, sizes: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Columns of the candidates `alive` in the stack, which may still hold those that have been
    dropped.
    """
    return np.flatnonzero(np.isin(stack.sizes, sizes[alive]))


def most_accurate(
    stack: Candidates,
    model: LinearModel,
    steps: int,
    noisy: bool,
    decreasing: bool,
    longest: int = HORIZON,
    part: float = 0.5,
) -> Ranking:
    """The step size with the least predicted relative error after `steps` steps, of which `longest`
    at most are taken.

    If the errors are `noisy`, their mean square in the last `part` of these steps is compared.
    """
    sizes, K = stack.sizes, max(1, min(steps, longest))
    scale = np.sqrt(model.n) * (model.size or 1.0)
    most = TRANSIENT * max(model.distance, scale)
    errors, near = [], np.full(len(sizes), True)
    for mark in [2**j for j in range(12) if 2**j < K / 2]:
        stack.run(mark)
        near[_places(stack, sizes, np.arange(len(sizes)))] = good = _errors(stack, model)[0] <= most
        if good.any() and not good.all() and stack.keep(np.flatnonzero(good)):
            near &= np.isin(sizes, stack.sizes)
    first = K * (1 - part) if noisy else K / 2
    for mark in np.unique(np.linspace(first, K, 9 if noisy else 3).astype(int).clip(min=1)):
        stack.run(int(mark))
        errors.append(_errors(stack, model)[0])
    found = np.sqrt((np.array(errors) ** 2).mean(axis=0)) if noisy else errors[-1]
    if steps > K and not noisy:
        found = (_power if decreasing else _geometric)(
            errors[0], errors[len(errors) // 2], errors[-1], K, steps
        )
    predicted = np.full(len(sizes), np.inf)
    predicted[np.isin(sizes, stack.sizes)] = np.where(np.isfinite(found), found, np.inf) / scale
    predicted[~near] = np.inf
    best = int(np.argmin(predicted))
    return Ranking(
        sizes,
        predicted,
        best if predicted[best] <= max(model.distance / scale, 1.0) else -1,
        K,
        ~near,
    )


def _power(
    first: np.ndarray, middle: np.ndarray, last: np.ndarray, K: int, steps: int
) -> np.ndarray:
    """Errors after `steps` steps, if they fall like a power of k, from those after K / 2 and K."""
    return np.asarray(last * (steps / K) ** np.minimum(np.log2(last / first), 0.0))


def _geometric(
    first: np.ndarray, middle: np.ndarray, last: np.ndarray, K: int, steps: int
) -> np.ndarray:
    """Errors after `steps` steps, if they fall geometrically to a limit, from those after K / 2,
    3 K / 4 and K.
    """
    ratio = np.clip((last - middle) / (middle - first), 0.0, 1 - 1e-9)
    ratio = np.where(np.isfinite(ratio), ratio, 0.0)
    limit = np.maximum(last - (middle - last) * ratio / (1 - ratio), 0.0)
    return np.where(last < middle, limit + (last - limit) * ratio ** ((steps - K) / (K / 4)), last)


def stable(stack: Stack, model: LinearModel, steps: int) -> np.ndarray:
    """Which step sizes do not grow in the last half of `steps` steps, apart from the slow modes."""
    first = _errors(stack, model)[0]
    stack.run(steps // 2)
    middle = _errors(stack, model)[1]
    stack.run(steps)
    last = _errors(stack, model)[1]
    return np.asarray((last <= middle) | (last <= 10 * first))


def progress(stack: Stack, model: LinearModel, steps: int) -> float:
    """The error after `steps` steps of the only step size in the stack, in units of that at the
    start.
    """
    first = float(_errors(stack, model)[0][0])
    stack.run(steps)
    last = float(_errors(stack, model)[0][0])
    return last / first if np.isfinite(last) and first > 0 else np.inf


def safe(solver: Solver, W: Operator[StepOperator], smoothness: float) -> float:
    """Half of the largest step size at which the solver is stable on quadratics of equal curvature.

    The agents' functions have one curvature h, for several h from L / 1000 to L; the step sizes
    tried are 2 / L, and smaller by factors of sqrt(2).  Agents could agree on it by themselves: it
    takes the largest L of all agents, and nothing else of their data.  If L is 0, the step size is
    1.

    Parameters
    ----------
    solver : Solver
    W : mixer
        Of all agents, in one process.
    smoothness : float
        Largest smoothness constant L of any agent.
    """
    if not smoothness > 0:
        return 1.0
    few = W.n > MOST_AGENTS
    h = smoothness * np.geomspace(1e-3, 1, 2 if few else 6)
    sizes = 2 / smoothness * 0.5 ** (np.arange(6) if few else np.arange(0, 14, 0.5))
    r, steps = len(h), 64 if few else 512
    start = np.random.default_rng(1).standard_normal((W.n, r))
    H = np.broadcast_to(np.diag(h), (1, W.n, r, r))
    model = LinearModel(
        H,
        np.zeros((1, W.n, r)),
        start,
        mean=np.diag(h),
        size=1.0,
        curvature=smoothness,
        distance=1.0,
    )
    stack = Stack(solver, lambda k: 1.0, W, model, sizes, start)
    norms = []
    for until in (0, steps // 2, steps):
        stack.run(until)
        norms.append(np.sqrt((stack.E**2).sum(axis=(0, 1))))
    good = (norms[2] <= 1.02 * norms[1]) | (norms[2] <= 1e-3 * norms[0])
    found = np.flatnonzero([good[j:].all() for j in range(len(good))])
    return float(SAFE_PART * sizes[found[0]] if len(found) else UNSTABLE_PART / smoothness)


def trial_length(steps: int) -> int:
    """Steps of a trial run for a run of `steps` steps."""
    return min(steps, HORIZON) // TRIAL_PART


def trial_run(
    solver: Solver,
    W: Operator[StepOperator],
    answers: Answers,
    X: np.ndarray,
    steps: int,
) -> Iterator[np.ndarray]:
    """The iterates of `steps` steps from `X`."""
    s = at_step(solver, 0).init(X, W.at(0))
    for k in range(steps):
        now = at_step(solver, k)
        s = now.step(s, now.ask(answers.at(k), s), W.at(k))
        yield np.asarray(s.X)


def sizes_around(size: float, most: int) -> np.ndarray:
    """At most `most` step sizes around `size`, which is one of them, from the largest to the
    smallest.
    """
    j = np.arange(LARGER, -SMALLER - 1, -1)
    nearest = np.sort(np.argsort(np.abs(j - 0.5), kind="stable")[: max(most, 1)])
    return np.asarray(size * 2.0 ** (j[nearest] / 2))


def most_robust(errors: np.ndarray) -> int:
    """Index of the step size with the least geometric mean of its own error and that of the next
    larger one.

    The error of one step size alone may be small by chance.
    """
    means = np.append(np.inf, np.sqrt(errors[:-1] * errors[1:]))
    return int(np.argmin(np.where(np.isfinite(means), means, np.inf)))
