"""Race of step sizes: the solver's own steps on a linear model, one step size per column of a
stack; the safe bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ...comm.mixing.internals import Operator, StepOperator
from ...solvers import Solver
from ...solvers.internals import state, with_step_size
from .linear import GradientModel, flat
from .tuning import TUNING


class SolverStack:
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
        model: GradientModel,
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
    stacks : list of SolverStack
    """

    def __init__(self, stacks: list[SolverStack]):
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
    """Runs on a linear model with several step sizes at once, such as `SolverStack`."""

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


# Candidates with these step sizes, (S,), from this start, (n, r) or (n, r, S).
Runs = Callable[[np.ndarray, np.ndarray], Candidates]


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


def noise(model: GradientModel) -> np.ndarray:
    """Return a starting point that excites every mode that a run can reach: the initial point, plus
    noise of its size.
    """
    Z, B = np.random.default_rng(1).standard_normal(model.start.shape), model.reachable
    if 0 < B.shape[1] < model.r:
        Z = (Z @ B) @ B.T
    far = model.distance or np.sqrt(model.n) * model.size or 1.0
    part = 1.0 if model.prox is None or model.V is not None else TUNING.noise
    return np.asarray(model.start + Z * (part * far / np.linalg.norm(Z)))


def _errors(stack: Candidates, model: GradientModel) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of each candidate: as it is, and without the slow modes of the average."""
    E = stack.E
    mean = E.mean(axis=0)
    spread = ((E - mean) ** 2).sum(axis=(0, 1))
    fast = ((model.mean @ mean) ** 2).sum(axis=0) / model.curvature**2
    return np.sqrt(spread + len(E) * (mean**2).sum(axis=0)), np.sqrt(len(E) * fast + spread)


class Criterion(Protocol):
    """The criterion by which a race ranks step sizes, such as `StepsTo`."""

    def race(self, run: Runs, model: GradientModel, sizes: np.ndarray) -> Ranking:
        """Return the ranking of step sizes, from the largest to the smallest, of candidates that
        `run` makes.
        """


def race(
    criterion: Criterion,
    run: Runs,
    model: GradientModel,
    largest: float,
    octaves: int,
    per_octave: int,
    higher: bool = False,
) -> Ranking | None:
    """Return the ranking of powers of 2^(1 / `per_octave`) up to the `largest` step size; None if
    none converges.

    If the smallest one is the best, or none converges, the race goes on below them; above them if
    the largest one is the best and `higher` ones may be stable.
    """
    found: Ranking | None = None
    highest = int(np.floor(per_octave * np.log2(largest)))
    for attempt in range(TUNING.races):
        sizes = 2.0 ** (np.arange(highest, highest - octaves * per_octave - 1, -1) / per_octave)
        ranking = replace(criterion.race(run, model, sizes), sizes=sizes)
        if found is not None and (ranking.best < 0 or ranking.least >= found.least):
            return found
        if ranking.best == 0 and attempt < TUNING.races - 1 and higher:
            found = ranking
            highest += TUNING.higher * per_octave
        elif ranking.best >= 0 and (
            attempt == TUNING.races - 1 or found or ranking.best < len(sizes) - 1
        ):
            return ranking
        else:
            highest -= octaves * per_octave
    return None


@dataclass(frozen=True)
class StepsTo:
    """The least predicted number of steps to a relative error `tol`, in a race near the edge of
    stability.

    Attributes
    ----------
    tol : float
    longest : int
        Steps of a race, at most.
    enough : int
        A race of so many steps ends after a part of the predicted ones.
    margin : float
        The step sizes of the race, in units of those returned.
    part : float
        The first distance, in units of that of the run.
    """

    tol: float
    longest: int = TUNING.longest_race
    enough: int = TUNING.enough
    margin: float = TUNING.margin
    part: float = 1.0

    def race(self, run: Runs, model: GradientModel, sizes: np.ndarray) -> Ranking:
        """Return the ranking of the step sizes."""
        stack = run(self.margin * sizes, self.part * noise(model))
        sizes, alive = stack.sizes, np.arange(len(sizes))
        strikes, predicted = np.zeros(len(sizes), int), np.full(len(sizes), np.inf)
        before, last = self._errors(stack, model), 0
        K = self.longest >> max(0, int(np.log2(self.longest / TUNING.shortest_race)))
        while True:
            stack.run(K)
            now, places = self._errors(stack, model), _places(stack, sizes, alive)
            T = predicted[alive] = self._steps(before, now, last, K, model)[places]
            least = T.min()
            early = TUNING.transient_steps >= K
            patience = TUNING.patience_at_first if early else TUNING.patience
            strikes[alive] = np.where(patience * least >= T, 0, strikes[alive] + 1)
            near = now[0][places] <= TUNING.behind * np.fmin.reduce(now[0][places])
            left = alive[(strikes[alive] < TUNING.strikes) & near]
            known = least <= max(K, TUNING.part_of_run * K * (self.enough <= K)) or len(left) <= 1
            if (known and np.isfinite(least)) or self.longest < 2 * K or not len(left):
                best = int(alive[np.argmin(T)]) if np.isfinite(least) else -1
                dropped = ~np.isin(np.arange(len(sizes)), alive)
                return Ranking(sizes, predicted, best, K, dropped)
            before, last, K = now, K, 2 * K
            if len(left) < len(alive):
                kept, alive = _places(stack, sizes, left), left
                if stack.keep(kept):
                    before = tuple(error[kept] for error in now)

    def _goal(self, model: GradientModel) -> float:
        return self.tol * math.sqrt(model.n) * (model.size or 1.0)

    def _errors(self, stack: Candidates, model: GradientModel) -> tuple[np.ndarray, ...]:
        least = 0.0 if model.prox is None else TUNING.reached * self._goal(model)
        return tuple(np.maximum(error, least) for error in _errors(stack, model))

    def _steps(
        self,
        before: tuple[np.ndarray, ...],
        now: tuple[np.ndarray, ...],
        last: int,
        K: int,
        model: GradientModel,
    ) -> np.ndarray:
        """Return the predicted steps of all candidates, from their errors after `last` and K
        steps.
        """
        goal, T = self._goal(model), np.full(len(now[0]), -np.inf)
        for old, new in zip(before, now):
            rate = np.log(old / new) / (K - last)
            T = np.maximum(T, np.where(rate > 0, K + np.log(new / goal) / rate, np.inf))
        return np.where(np.isfinite(T), T, np.inf)


def _places(stack: Candidates, sizes: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Columns of the candidates `alive` in the stack, which may still hold those that have been
    dropped.
    """
    return np.flatnonzero(np.isin(stack.sizes, sizes[alive]))


@dataclass(frozen=True)
class ErrorAfter:
    """The least predicted relative error after `steps` steps.

    Attributes
    ----------
    steps : int
    noisy : bool
        Whether the mean square in the last `part` of a race is compared.
    decreasing : bool
        Whether errors fall like a power of k, and not geometrically.
    longest : int
        Steps of a race, at most.
    part : float
    """

    steps: int
    noisy: bool
    decreasing: bool
    longest: int = TUNING.horizon
    part: float = TUNING.last_half

    def race(self, run: Runs, model: GradientModel, sizes: np.ndarray) -> Ranking:
        """Return the ranking of the step sizes."""
        stack, K = run(sizes, model.start), max(1, min(self.steps, self.longest))
        most = TUNING.transient * _first(model)
        errors, near = [], np.full(len(sizes), True)
        for mark in [2**j for j in range(12) if 2**j < K / 2]:
            stack.run(mark)
            good = _errors(stack, model)[0] <= most
            near[_places(stack, sizes, np.arange(len(sizes)))] = good
            if good.any() and not good.all() and stack.keep(np.flatnonzero(good)):
                near &= np.isin(sizes, stack.sizes)
        first = K * (1 - self.part) if self.noisy else K / 2
        marks = TUNING.noisy_marks if self.noisy else TUNING.marks
        for mark in np.unique(np.linspace(first, K, marks).astype(int).clip(1)):
            stack.run(int(mark))
            errors.append(_errors(stack, model)[0])
        found = np.sqrt((np.array(errors) ** 2).mean(axis=0)) if self.noisy else errors[-1]
        if self.steps > K and not self.noisy:
            later = _power if self.decreasing else _geometric
            found = later(errors[0], errors[len(errors) // 2], errors[-1], K, self.steps)
        predicted = np.full(len(sizes), np.inf)
        predicted[np.isin(sizes, stack.sizes)] = found
        return _least_error(sizes, np.where(near, predicted, np.inf), model, K, ~near)


@dataclass(frozen=True)
class LeastBiased:
    r"""The least predicted relative error after `steps` steps, from a race of K = `longest` steps.

    The first half of the columns begins at the initial points, the second one, with the same step
    sizes, at the optimum.  By linearity, what the second half has, F, is the bias with its
    fluctuations, and the difference of the two, T, what is left of the start.  The bias is there
    soon; since it fluctuates, its mean square over the last K / 2 steps is taken.  What is left of
    the start is, after `steps` steps, what a step size larger by `steps` / K leaves after K steps,
    as long as that is stable:

    .. math:: e^2(a, \text{steps}) = \operatorname{mean}_{K / 2 \le k \le K} \|F(a, k)\|^2
              + \min_{a \le b \le a\, \text{steps} / K} \|T(b, K)\|^2
    """

    steps: int
    longest: int

    def race(self, run: Runs, model: GradientModel, sizes: np.ndarray) -> Ranking:
        """Return the ranking of the step sizes."""
        S, K = len(sizes), self.longest
        start = np.repeat(model.start[:, :, None], S, axis=2)
        stack = run(np.tile(sizes, 2), np.concatenate([start, np.zeros_like(start)], axis=2))
        far, finite, biases = TUNING.transient * _first(model), np.full(S, True), []
        marks = np.unique(
            np.r_[2 ** np.arange(12), np.linspace(0.5, 1, TUNING.noisy_marks) * K].astype(int)
        )
        for mark in marks[(marks > 0) & (marks <= K)]:
            stack.run(int(mark))
            E = stack.E
            finite &= np.sqrt((E**2).sum(axis=(0, 1)))[:S] <= far
            if mark >= K / 2:
                biases.append((E[:, :, S:] ** 2).sum(axis=(0, 1)))
        left = np.where(finite, ((E[:, :, :S] - E[:, :, S:]) ** 2).sum(axis=(0, 1)), np.inf)
        squares = np.mean(biases, axis=0) + later(sizes, left, self.steps / K)
        found = np.where(finite, np.sqrt(squares), np.inf)
        return _least_error(sizes, found, model, K, ~finite)


def later(sizes: np.ndarray, left: np.ndarray, ratio: float) -> np.ndarray:
    """Return the least of `left` among the step sizes (descending) from each one to `ratio` times
    it, interpolated at the upper end.

    Examples
    --------
    >>> later(np.array([4.0, 2.0, 1.0]), np.array([np.inf, 0.25, 0.5]), 2.0).tolist()
    [inf, 0.25, 0.25]
    """
    x, y = np.log(sizes[::-1]), np.log(left[::-1])
    known = np.isfinite(y)
    ends = np.full(len(sizes), np.inf)
    if known.any():
        ends = np.exp(np.interp(np.log(sizes * ratio), x[known], y[known], right=np.inf))
    return np.array(
        [min(left[(sizes >= a) & (sizes <= a * ratio)].min(), end) for a, end in zip(sizes, ends)]
    )


def _first(model: GradientModel) -> float:
    """Return the distance at the start, or from zero if that is larger."""
    return max(model.distance, math.sqrt(model.n) * (model.size or 1.0))


def _least_error(
    sizes: np.ndarray, errors: np.ndarray, model: GradientModel, K: int, early: np.ndarray
) -> Ranking:
    """Return the ranking by errors after K steps; none is the best if all are larger than at the
    start.
    """
    scale = math.sqrt(model.n) * (model.size or 1.0)
    predicted = np.where(np.isfinite(errors), errors, np.inf) / scale
    best = int(np.argmin(predicted))
    converges = predicted[best] <= max(model.distance / scale, 1.0)
    return Ranking(sizes, predicted, best if converges else -1, K, early)


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


def stable(stack: SolverStack, model: GradientModel, steps: int) -> np.ndarray:
    """Return which step sizes do not grow in the last half of `steps` steps, apart from the slow
    modes.
    """
    first = _errors(stack, model)[0]
    stack.run(steps // 2)
    middle = _errors(stack, model)[1]
    stack.run(steps)
    last = _errors(stack, model)[1]
    return np.asarray((last <= middle) | (last <= TUNING.growth * first))


def progress(stack: SolverStack, model: GradientModel, steps: int) -> float:
    """Return the error after `steps` steps of the only step size in the stack, in units of that at
    the start.
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
    few = W.n > TUNING.most_agents
    curvatures = TUNING.few_curvatures if few else TUNING.curvatures
    octaves = np.arange(TUNING.few_octaves) if few else np.arange(0, TUNING.safe_octaves, 0.5)
    h = smoothness * np.geomspace(TUNING.flattest, 1, curvatures)
    sizes = 2 / smoothness * 0.5**octaves
    r, steps = len(h), TUNING.few_safe_steps if few else TUNING.safe_steps
    start = np.random.default_rng(1).standard_normal((W.n, r))
    H = np.broadcast_to(np.diag(h), (1, W.n, r, r))
    model = GradientModel(
        H,
        np.zeros((1, W.n, r)),
        start,
        mean=np.diag(h),
        size=1.0,
        curvature=smoothness,
        distance=1.0,
    )
    stack = SolverStack(solver, lambda k: 1.0, W, model, sizes, start)
    norms = []
    for until in (0, steps // 2, steps):
        stack.run(until)
        norms.append(np.sqrt((stack.E**2).sum(axis=(0, 1))))
    good = (norms[2] <= TUNING.still * norms[1]) | (norms[2] <= TUNING.converged * norms[0])
    found = np.flatnonzero([good[j:].all() for j in range(len(good))])
    return float(
        TUNING.safe_part * sizes[found[0]] if len(found) else TUNING.unstable_part / smoothness
    )
