r"""Search for the step size of an asynchronous run: a race of step sizes in the event simulation of
the linear model.

An asynchronous method is a function of its events.  Where the agents' functions are quadratic,

.. math:: \nabla f_i(\hat x + V e) = V (H_i e + g_i), \qquad \textstyle\sum_i g_i = 0,

all of its states are linear in the initial points and in the :math:`g_i`, and events, delays and
losses do not depend on them. So one simulation serves many step sizes: the rows of the agents have
a column for each step size and each coordinate of e, the solver's step size is an array with one
number per column, and its methods are called as in any run.  All step sizes meet the same events,
which cancels most of the chance in their comparison.

1. *The model.*  An estimate of the minimizer, and the curvatures :math:`H_i` there (`mpidec.driver.stepsize.linear`), from as few
   gradients as for solvers in common steps: at most half of those of the run, in runs of 60 steps
   or more.
2. *The events* are those of the run: the rates of gradients and averagings, or the given table; the delays; the losses.  Ranks
   have wall time, on which the choice must not depend: `Events.of_ranks` says what stands for it.
3. *The race.*  Of an exact method (`RunningSumTracking` with exact gradients), the rate at which the error falls predicts the
   steps to a relative error `tol`, as in `stepsize.race.fastest`.  Of the others, the error after
   the steps of the run is predicted from a quarter of them, or 128 (`least_biased`), and with
   schedules from all (`stepsize.race.most_accurate`). A race has at most `EVENTS` events.  If the
   best step size is the smallest one, there is a second race below it.
4. *The bound.*  Without a model (a problem that is not smooth, too many agents), and where no step size converges in it, the
   step size is `safe` / L, with a warning.

The race runs on rank 0, with the rows of all agents; the choice is the same number on any number of
ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...comm.runtime.agreement import on_all_ranks
from ...problems.members import smoothness_of
from ...protocols import Reductions
from ...solvers.asynchronous import PairwiseSolver, PushSolver
from ...solvers.base import with_step_size
from ...solvers.step_schedules import StepSchedule
from ...topology import Topology
from ..stepsize import Choice
from ..stepsize.linear import LinearModel, flat
from ..stepsize.race import TRANSIENT, Ranking, fastest, most_accurate, noise, within_window
from ..stepsize.search import PER_OCTAVE, ModelSearch
from .events import Events
from .files import maximum
from .result import LocalAgents

if TYPE_CHECKING:
    from ...problems import Oracle, Problem

R = TypeVar("R")
# The window of a race: octaves, and the largest step size in units of 1 / curvature.
OCTAVES, HIGHEST = 9, 4.8
# Steps of a race, if the run has so many.
LEAST = 128
# Events of a race, each of which is a call in Python.
EVENTS = 2**15


class AsyncStack:
    """An asynchronous solver with several step sizes at once, on the linear model; compare
    `mpidec.driver.stepsize.race.Stack`.

    Parameters
    ----------
    solver : PairwiseSolver or PushSolver
        Prepared; its step size is replaced.
    topology : Topology
    events : Events
    model : LinearModel
    sizes : array (S,)
    start : array (n, r) or (n, r, S)
    """

    def __init__(
        self,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        events: Events,
        model: LinearModel,
        sizes: np.ndarray,
        start: np.ndarray,
    ):
        self.sizes, self._r, self._unit = sizes, model.r, events.unit
        columns, step = np.tile(sizes, model.r), solver.step_size
        if isinstance(step, StepSchedule):
            factor = step.factor
            solver = with_step_size(solver, lambda k: factor(k) * columns)
        else:
            solver = with_step_size(solver, columns)
        rows = np.repeat(start, len(sizes), axis=1) if start.ndim == 2 else flat(start)
        agents = LocalAgents.of(solver, topology, rows, range(topology.n))
        self._X, self._simulator = (
            agents.stacks["x"],
            events.simulator(solver, agents, model.gradient),
        )

    def run(self, steps: int) -> None:
        """Take all events up to the time of so many steps."""
        self._simulator.run(steps * self._unit)

    @property
    def E(self) -> np.ndarray:
        """The iterates, (n, r, S)."""
        return self._X.reshape(len(self._X), self._r, len(self.sizes))

    def keep(self, chosen: np.ndarray) -> bool:
        """False: messages are on their way, and all candidates stay."""
        return False


class AsyncSearch(ModelSearch):
    """Search for the step size of an asynchronous run; collective.

    Parameters
    ----------
    net, problem, oracle, solver, X0, steps, seed, tol
        As for `ModelSearch`; the solver is prepared for the topology.
    topology : Topology
    events : Events
    """

    def __init__(
        self,
        net: Reductions,
        problem: Problem,
        oracle: Oracle,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        events: Events,
        X0: np.ndarray,
        *,
        steps: int,
        seed: int,
        tol: float,
    ):
        super().__init__(net, problem, oracle, solver, X0, steps=steps, seed=seed, tol=tol)
        self._asynchronous, self._topology, self._events = solver, topology, events

    _most_agents = EVENTS // 32

    def _found(self, gradients: int) -> Choice | None:
        net = self._reductions
        choice: Choice | None = None
        with on_all_ranks(net):
            if net.rank == 0:
                choice = self._raced(gradients)
        return net.collectives.broadcast(choice, 0, "the choice of a step size")

    def _safe(self) -> tuple[float, float]:
        solver = self._asynchronous
        size = safe_size(self._problem, solver, self._reductions)
        return size, solver.safe / size

    def smaller(self, choice: Choice, factor: float) -> Choice:
        """1 / `factor` of a choice with which the run did not converge."""
        note = f"{choice.step_size:.4g} did not converge"
        return replace(choice, step_size=choice.step_size / factor, note=note)

    def _raced(self, gradients: int) -> Choice | None:
        """The choice of the race; None if no step size converges."""
        model = self._curved()
        if model is None:
            return None
        octaves, top = (OCTAVES + 4, 16 * HIGHEST) if self._varying else (OCTAVES, HIGHEST)
        highest = int(np.floor(PER_OCTAVE * np.log2(top / model.curvature)))
        ranking = within_window(
            lambda sizes: self._race(model, sizes), highest, octaves, PER_OCTAVE
        )
        if ranking is None:
            return None
        return self._choice(ranking.size, ranking, model.curvature, gradients)

    def _race(self, model: LinearModel, sizes: np.ndarray) -> Ranking:
        steps, most = max(self._steps, 1), max(EVENTS // model.n, 1)

        def stack(tried: np.ndarray, start: np.ndarray) -> AsyncStack:
            return AsyncStack(self._asynchronous, self._topology, self._events, model, tried, start)

        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self._exact:
                longest = min(max(steps // 2, 2 * LEAST), most)
                candidates = stack(self._larger_by * sizes, noise(model))
                return fastest(candidates, model, self._tol, longest, enough=LEAST)
            if self._varying:
                candidates, longest = stack(sizes, model.start), min(steps, most)
                return most_accurate(
                    candidates,
                    model,
                    steps=steps,
                    noisy=longest == steps,
                    decreasing=True,
                    longest=longest,
                )
            start = np.repeat(model.start[:, :, None], len(sizes), axis=2)
            both = np.concatenate([start, np.zeros_like(start)], axis=2)
            longest = min(max(steps // 4, LEAST), steps, most)
            return least_biased(stack(np.tile(sizes, 2), both), model, steps, longest)


def least_biased(stack: AsyncStack, model: LinearModel, steps: int, longest: int) -> Ranking:
    r"""The step size with the least predicted relative error after `steps` steps, from a race of K
    = `longest` steps.

    The first half of the columns begins at the initial points, the second one, with the same step
    sizes, at the optimum.  By linearity, what the second half has, F, is the bias with its
    fluctuations, and the difference of the two, T, what is left of the start.  The bias is there
    soon; since it fluctuates, its mean square over the last K / 2 steps is taken.  What is left of
    the start is, after `steps` steps, what a step size larger by `steps` / K leaves after K steps,
    as long as that is stable:

    .. math:: e^2(a, \text{steps}) = \operatorname{mean}_{K / 2 \le k \le K} \|F(a, k)\|^2
              + \min_{a \le b \le a\, \text{steps} / K} \|T(b, K)\|^2
    """
    S = len(stack.sizes) // 2
    sizes, scale = stack.sizes[:S], np.sqrt(model.n) * (model.size or 1.0)
    far, finite, biases = TRANSIENT * max(model.distance, scale), np.full(S, True), []
    marks = np.unique(np.r_[2 ** np.arange(12), np.linspace(0.5, 1, 9) * longest].astype(int))
    for mark in marks[(marks > 0) & (marks <= longest)]:
        stack.run(int(mark))
        E = stack.E
        finite &= np.sqrt((E**2).sum(axis=(0, 1)))[:S] <= far
        if mark >= longest / 2:
            biases.append((E[:, :, S:] ** 2).sum(axis=(0, 1)))
    left = ((E[:, :, :S] - E[:, :, S:]) ** 2).sum(axis=(0, 1))
    squares = np.mean(biases, axis=0) + later(
        sizes, np.where(finite, left, np.inf), steps / longest
    )
    predicted = np.where(finite & np.isfinite(squares), np.sqrt(squares), np.inf) / scale
    best = int(np.argmin(predicted))
    converges = predicted[best] <= max(model.distance / scale, 1.0)
    return Ranking(sizes, predicted, best if converges else -1, longest, ~finite)


def later(sizes: np.ndarray, left: np.ndarray, ratio: float) -> np.ndarray:
    """The least of `left` among the step sizes (descending) from each one to `ratio` times it,
    interpolated at the upper end.

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


def safe_size(problem: Problem, solver: PairwiseSolver | PushSolver, net: Reductions) -> float:
    """The safe step size, from the largest smoothness constant of any agent, as the problem states
    it; collective.

    Raises
    ------
    ValueError
        It states none.
    """
    stated = smoothness_of(problem) if net.m else np.zeros(0)
    if stated is None:
        raise ValueError(
            f"{type(problem).__name__} has no smoothness, from which {type(solver).__name__} could "
            "choose its "
            "step size: give it as a number, step_size=0.1"
        )
    L = maximum(net, float(np.max(stated, initial=0.0)), "net.slots")
    return solver.safe / L if L > 0 else 1.0
