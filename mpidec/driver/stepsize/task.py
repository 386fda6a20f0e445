"""The run whose step size is searched for: its linear model at the estimated minimizer, and trial
runs with the problem itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from ...comm.mixing.internals import Kept, Operator, StepOperator
from ...problems.internals import x_star_of
from ...protocols import Reductions
from ...solvers import Solver, StepSchedule
from ...solvers.internals import Asynchronous, at_step, iterate
from ..answers import Answers
from .choice import Choice, with_size
from .linear import GradientModel, Linearization, dimensions, evaluations, linear_model, project
from .reference import composite_minimizer, minimizer, together
from .tuning import TUNING

if TYPE_CHECKING:
    from ...comm.mixing import Network
    from ...problems import Oracle, Problem, Term
    from ...topology import Schedule, Topology


@dataclass(frozen=True)
class Modelled:
    """The linear model of a problem at its estimated minimizer.

    Attributes
    ----------
    model : LinearModel or None
        On rank 0.
    point : array (d,) or None
        The estimated minimizer.
    gradients : int
        Gradients that both took.
    without_term : LinearModel or None
        The model without the term, on rank 0, where the other one is that of a face.
    away : float
        How far the agents' own gradients lead from the point, see `Guard`; on all ranks.
    """

    model: GradientModel | None = None
    point: np.ndarray | None = None
    gradients: int = 0
    without_term: GradientModel | None = None
    away: float = 0.0


@dataclass(frozen=True)
class Task:
    """A run whose step size is searched for.

    Attributes
    ----------
    net : Network
    oracle : Oracle
        That of the local agents' functions.
    solver : Solver
        With the step size "auto" or "safe".
    X0 : array (m, d)
        The initial points of the local agents.
    steps : int
        Steps of the run.
    seed : int
        Seed of the oracle.
    tol : float
        Relative error to which steps are counted, at most `TUNING.tolerance`.
    """

    net: Reductions
    oracle: Oracle
    solver: Solver
    X0: np.ndarray
    steps: int
    seed: int
    tol: float

    @property
    def problem(self) -> Problem:
        """The local agents' functions."""
        problem: Problem = self.oracle.problem
        return problem

    @cached_property
    def start(self) -> np.ndarray:
        """The initial points in float64, in which a search computes."""
        return self.X0.astype(np.float64, copy=False)

    @property
    def tolerance(self) -> float:
        """Relative error to which steps are counted."""
        return TUNING.tolerance if self.X0.dtype == np.float32 else min(self.tol, TUNING.tolerance)

    @property
    def noisy(self) -> bool:
        """Whether the gradients are random, also at the minimizer."""
        return self.oracle.random

    @property
    def reduced(self) -> bool:
        """Whether the gradients are random, but not at the minimizer."""
        return not self.noisy and self.oracle.batches is not None

    @property
    def term(self) -> Term | None:
        """The term whose proximal points the solver takes."""
        return self.oracle.term if self.solver.needs.term else None

    @property
    def varying(self) -> bool:
        """Whether the step size is the start of a schedule."""
        return isinstance(self.solver.step_size, StepSchedule)

    @property
    def exact(self) -> bool:
        """Whether the run comes as close to the minimizer as rounding allows."""
        return bool(self.solver.exact) and not self.noisy and not self.varying

    @property
    def _far(self) -> bool:
        """Whether the error of the run depends on gradients far from the minimizer, too.

        The rate of an exact method does not, and races of asynchronous ones need a linear model.
        """
        biased = not self.solver.exact and not isinstance(self.solver, Asynchronous)
        gradients = not self.noisy and self.solver.needs.functions == ("grad",)
        return gradients and (self.varying or biased)

    def grad(self, X: np.ndarray) -> np.ndarray:
        """Return the exact gradients; collective."""
        return together(self.net, lambda: self.problem.grad(X), X)

    def modelled(self) -> Modelled:
        """Return the linear model; collective."""
        net, term = self.net, self.term
        batches, source = None, self.oracle if self.noisy else self.oracle.batches
        if source is not None:
            drawn = source.start(range(net.lo, net.hi), self.seed)
            batches = lambda k: lambda X: together(net, lambda: drawn(X, k), X)
        of = Linearization(
            net,
            self.grad,
            self.start,
            batches=batches,
            steps=self.steps,
            bounded=self._far and term is None,
            vanishing=not self.noisy,
            term=term,
            on_face=term is not None and self.solver.needs.argmin,
        )
        model, x, spent = self._at_minimizer(of, np.asarray(net.mean(self.start)))
        without = None
        reduced = model is not None and model.prox is not None and model.V is not None
        if term is not None and net.collectives.broadcast(reduced, 0, "the linear model"):
            # before the face is reached, the step is as stable as without the term
            plain = Linearization(
                net, self.grad, self.start, steps=self.steps, agents=TUNING.steepest
            )
            without, _, count = linear_model(plain, cast("np.ndarray", x))
            spent += count
        away = 0.0 if model is None else model.away
        away = float(net.collectives.broadcast(away, 0, "the size of the gradients"))
        return Modelled(model, x, spent, without, away)

    def _at_minimizer(
        self, of: Linearization, x0: np.ndarray
    ) -> tuple[GradientModel | None, np.ndarray | None, int]:
        """Return the linear model on rank 0, the estimated minimizer, and the gradients that both
        took; collective.
        """
        net, problem, term, spent = self.net, self.problem, of.term, 1
        few = evaluations(self.steps)
        small, most = len(x0) <= min(dimensions(net.n), few), min(few, TUNING.most_evaluations)
        x = x_star_of(problem)
        if x is None and term is None:
            x, count = minimizer(net, problem, x0, quadratic=small, most=most)
            spent += count
        if small and x is None and not of.on_face:
            model, x, count = linear_model(of, x0, quadratic=True)
            spent += count
            if x is not None:
                return model, x, spent
        if x is None:
            x, count = (
                minimizer(net, problem, x0, most=most)
                if term is None
                else composite_minimizer(net, problem, term, x0, most)
            )
            spent += count
        model, x, count = linear_model(of, cast("np.ndarray", x))
        return model, x, spent + count


class Trials:
    """Trial runs of a synchronous run, without its codec; all methods are collective.

    Parameters
    ----------
    task : Task
        On a `Network`.
    point : array (d,)
        The estimated minimizer.
    topology : Topology or Schedule
    mixer : mixer

    Attributes
    ----------
    taken : int
        Steps of all of them.
    """

    def __init__(
        self,
        task: Task,
        point: np.ndarray,
        topology: Topology | Schedule,
        mixer: Operator[StepOperator],
    ):
        self._task, self._point, self._topology, self._mixer = task, point, topology, mixer
        self.taken = 0

    def ends(self, sizes: np.ndarray, length: int, V: np.ndarray | None) -> list[np.ndarray | None]:
        """For each step size the rows of all agents minus the point after `length` steps, in the
        basis V of the model, on rank 0.
        """
        ends = []
        for size in sizes:
            with closing(self._run(size, length)) as run:
                rows = deque(run, maxlen=1)[0]
                ends.append(self._task.net.gather(rows if V is None else project(rows, V)))
        return ends

    def steps(self, size: float, length: int, limit: float = np.inf) -> float:
        """Return the steps to the tolerance, from the rate of a trial run of `length` steps in all
        but its first quarter; inf if it makes no progress.

        It ends at a quarter after which more than `limit` are predicted.
        """
        net, scale = self._task.net, float(np.linalg.norm(self._point)) or 1.0
        goal = self._task.tolerance * np.sqrt(net.n) * scale
        first, needed = 0.0, np.inf
        marks = {part * length // 4 for part in (1, 2, 3, 4)}
        with closing(self._run(size, length)) as run:
            for k, E in enumerate(run, 1):
                if k not in marks:
                    continue
                squares = net.sum((E**2).sum(axis=1, keepdims=True))[0]
                distance = max(float(np.sqrt(squares)), TUNING.tiny)
                if k == length // 4:
                    first = distance
                    continue
                rate = np.log(first / distance) / (k - length // 4)
                needed = k + np.log(distance / goal) / rate if rate > 0 else np.inf
                if not needed <= limit:
                    break
        return float(max(needed, 1.0))

    def _run(self, size: float, length: int) -> Generator[np.ndarray]:
        """The rows minus the point, step by step; gradients of reduced variance are those that
        the run begins with.
        """
        task, net = self._task, cast("Network", self._task.net)
        gradient: Callable[[np.ndarray, int], np.ndarray] = lambda X, k: task.grad(X)
        if task.reduced:
            drawn = task.oracle.gradients(range(net.lo, net.hi), task.seed)
            gradient = lambda X, k: together(net, lambda: drawn(X, k), X)
        answers, solver = Answers(task.problem, task.term, gradient), with_size(task.solver, size)
        with closing(net.mixer(self._topology)) as base:
            W = self._mixer.rebuilt(base, Kept(codec=False, d=task.X0.shape[1]))
            s = at_step(solver, 0).init(task.start, W.at(0))
            for now in iterate(solver, answers, W, s, steps=length):
                self.taken += 1
                yield np.asarray(now.X) - self._point


def trial_length(steps: int) -> int:
    """Steps of a trial run for a run of `steps` steps."""
    return min(steps, TUNING.horizon) // TUNING.trial_part


def sizes_around(size: float, most: int) -> np.ndarray:
    """At most `most` step sizes around `size`, which is one of them, from the largest to the
    smallest.
    """
    j = np.arange(TUNING.larger, -TUNING.smaller - 1, -1)
    nearest = np.sort(np.argsort(np.abs(j - 0.5), kind="stable")[: max(most, 1)])
    return np.asarray(size * 2.0 ** (j[nearest] / 2))


def most_robust(errors: np.ndarray) -> int:
    """Index of the step size with the least geometric mean of its own error and that of the next
    larger one.

    The error of one step size alone may be small by chance.
    """
    means = np.append(np.inf, np.sqrt(errors[:-1] * errors[1:]))
    return int(np.argmin(np.where(np.isfinite(means), means, np.inf)))


def with_trials(choice: Choice, sizes: np.ndarray, found: np.ndarray, gradients: int) -> Choice:
    """Return the choice with what trial runs with these step sizes found, and their gradients."""
    others = ~np.isclose(choice.tried[:, None], sizes, rtol=1e-9, atol=0).any(axis=1)
    tried, early = np.append(choice.tried[others], sizes), np.zeros(len(sizes), bool)
    order = np.argsort(-tried)
    return replace(
        choice,
        tried=tried[order],
        predicted=np.append(choice.predicted[others], found)[order],
        early=np.append(choice.early[others], early)[order],
        gradients=choice.gradients + gradients,
    )
