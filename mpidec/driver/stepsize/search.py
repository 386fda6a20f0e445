"""Search for the step size of a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from ..._words import warn
from ...comm.mixing.mixer import Mixer
from ...comm.mixing.network import Network
from ...comm.mixing.operator import Kept, Operator, StepOperator
from ...comm.runtime.agreement import meet, on_all_ranks
from ...comm.runtime.mpi import MPI
from ...exceptions import Unstable as Unstable
from ...problems.members import smoothness_of, x_star_of
from ...protocols import Reductions
from ...solvers.base import Solver, name_of
from ...solvers.step_schedules import StepSchedule
from ..answers import Answers
from .choice import Choice, requested_rule, with_size
from .guard import LEFT, Guard
from .linear import Linearization, LinearModel, dimensions, evaluations, linear_model
from .race import (
    AGREE,
    FEWEST,
    HORIZON,
    LONGEST,
    MARGIN,
    MOST_AGENTS,
    Apart,
    Candidates,
    Ranking,
    Stack,
    fastest,
    most_accurate,
    most_robust,
    noise,
    progress,
    safe,
    sizes_around,
    stable,
    trial_length,
    trial_run,
    within_window,
)
from .reference import MOST_EVALUATIONS, composite_minimizer, minimizer, together

if TYPE_CHECKING:
    from ...problems import Oracle, Problem
    from ...problems.terms import Term
    from ...topology import Schedule, Topology

T = TypeVar("T")
# Relative error to which steps are counted, at most.
TOLERANCE = 1e-6
# Smoothness constant, and its inverse: squares of it must fit into float64.
LARGEST_SMOOTHNESS = 1e150
# Part of the best step size with variance reduction, of whose gradients few draws are known.
REDUCED_PART = 0.85

# The window of a race: octaves, step sizes in a factor of 2, and the largest one in units of 1 /
# curvature.
SPAN, PER_OCTAVE, HIGHEST = 6, 4, 2.4
# Largest curvature over the geometric mean of all, from which a race of implicit steps begins
# higher.
WIDE_SPECTRUM = 1e3
# Part of the largest eigenvalue below which others are rounding errors.
ROUNDED = 1e-14
# Steps of a race of step sizes that are raced one by one.
FEW_STEPS = 512
# Part of a run in which errors with losses or channel noise are compared.
LAST_PART = 0.25
# Part of the steps that other weights than metropolis, or larger steps, must save.
CLEARLY = 0.95
# Agents whose directions of largest curvature the first steps of a short run may meet.
STEEPEST = 4

# A codec is tried for so many steps, and for as many again; parts of the error that they may leave.
CODEC_STEPS, CODEC_PROGRESS, CODEC_STILL = 512, 0.5, 0.98

# Steps of a trial run; with reduced variance, whose gradients are cheap.
LONGEST_TRIAL, LONGEST_REDUCED = 512, 2048
# Trial runs with variance reduction, each with a step size smaller by a factor of sqrt(2).
MOST_TRIALS = 8
# Part of the predicted steps that a trial run may need.
AS_SAID = 1.25
# Distance from the minimizer for those that reach it.
TINY = 1e-300
# Part of the first distance and of the agents' differences with which there is a second race where
# there is a term.
NEAR_MINIMIZER = 0.1


def undisturbed(mixer: Operator[StepOperator]) -> Operator[StepOperator]:
    """The same mixer without what moves the limit of exact methods, such as lost messages."""
    return mixer.rebuilt(mixer.base, Kept(faults=False))


class ModelSearch(ABC):
    """A search for a step size in the linear model of the problem at its minimizer; collective.

    Parameters
    ----------
    net : Network
    problem, oracle
        The local agents' functions; an oracle of random gradients, or None.
    solver : Solver
        With the step size "auto" or "safe".
    X0 : array (m, d)
        The initial points of the local agents.
    steps : int
        Steps of the run.
    seed : int
        Seed of the oracle.
    tol : float
        Relative error to which steps are counted.
    """

    def __init__(
        self,
        net: Reductions,
        problem: Problem,
        oracle: Oracle,
        solver: Solver,
        X0: np.ndarray,
        *,
        steps: int,
        seed: int,
        tol: float,
    ):
        self._problem, self._oracle, self._solver = problem, oracle, solver
        self._reductions, self._seed = net, seed
        self._X0 = X0.astype(np.float64, copy=False)  # the search computes in float64
        single = X0.dtype == np.float32
        self._steps, self._tol = steps, TOLERANCE if single else min(tol, TOLERANCE)
        self._floor = f"float32 does not reach {tol:.0e}" if single and tol < TOLERANCE else ""
        self._noisy = oracle.random
        self._gradient = None
        batches = oracle if oracle.random else oracle.batches  # of variance reduction
        if batches is not None:
            self._gradient = batches.start(range(net.lo, net.hi), seed)
        self.reduced = self._gradient is not None and not self._noisy
        self._implicit = solver.needs.argmin
        self._term = oracle.term if solver.needs.term else None
        self._smooth = oracle.smooth
        self._varying = isinstance(solver.step_size, StepSchedule)
        self._exact = bool(solver.exact) and not self._noisy and not self._varying
        self._model: LinearModel | None = None  # on rank 0
        self._without_term: LinearModel | None = None
        self.point: np.ndarray | None = None
        self.away = 0.0  # how far the agents' own gradients lead from there, see `Guard`

    def __call__(self) -> Choice:
        """The choice, the same on all ranks."""
        net, begun, gradients, why = self._reductions, time.perf_counter(), 0, ""
        choice: Choice | None = None
        if requested_rule(self._solver) == "auto":
            refused = self._refusal()
            if not refused:
                gradients = self._prepare(np.asarray(net.mean(self._X0)))
                choice = self._found(gradients)
            if choice is None:
                why = self._reason(refused)
                if net.rank == 0:
                    warn(
                        f'step_size="auto": {why} {name_of(self._solver)} runs with the safe step '
                        "size"
                    )
        if choice is None:
            choice = self._bound(gradients, why)
        return replace(choice, seconds=time.perf_counter() - begun)

    @abstractmethod
    def _found(self, gradients: int) -> Choice | None:
        """The choice in the model; None if no step size converges; collective."""

    @abstractmethod
    def _safe(self) -> tuple[float, float]:
        """The safe step size, and the smoothness constant from which it follows; collective."""

    @property
    @abstractmethod
    def _most_agents(self) -> int:
        """The number of agents from which on there is no search."""

    def _refusal(self) -> str:
        """Why there can be no search, or ""."""
        if not self._smooth:
            return "the problem is not smooth, and its subgradients have no linear model."
        if self._reductions.n > self._most_agents:
            return f"it takes at most {self._most_agents} agents."
        return ""

    def _reason(self, refused: str) -> str:
        """Why there is no choice; collective."""
        if refused:
            return refused
        flat = self._model is not None and not self._model.curvature
        if self._reductions.collectives.broadcast(flat, 0, "the curvature of the problem"):
            return (
                "the largest curvature is zero, as that of a function that is constant or linear."
            )
        return (
            "no step size converges in the linear model: check that the problem is convex, and the "
            "solver stable on the graph."
        )

    def _curved(self) -> LinearModel | None:
        """The model, if there is one and its curvature is a positive number."""
        model = self._model
        if model is None or not np.isfinite(model.curvature) or model.curvature <= 0:
            return None
        in_range(model.curvature)
        return model

    def _choice(self, size: float, ranking: Ranking, curvature: float, gradients: int) -> Choice:
        """The choice of a step size after a race."""
        return Choice(
            step_size=size,
            rule="steps" if self._exact else "error",
            tried=ranking.sizes,
            predicted=ranking.predicted,
            early=ranking.early,
            steps=self._steps,
            tol=self._tol,
            curvature=curvature,
            gradients=gradients,
            seconds=0.0,
            note=self._floor if self._exact else "",
        )

    def _bound(self, gradients: int, why: str) -> Choice:
        """The choice of the safe step size; collective."""
        size, smoothness = self._safe()
        return Choice(
            step_size=size,
            rule="safe",
            tried=np.empty(0),
            predicted=np.empty(0),
            steps=self._steps,
            tol=self._tol,
            curvature=smoothness,
            gradients=gradients,
            seconds=0.0,
            note=why,
        )

    @property
    def _larger_by(self) -> float:
        """The factor by which the step sizes of a race to a tolerance are larger than those
        returned.
        """
        return MARGIN / REDUCED_PART if self.reduced else MARGIN

    def guard(self, choice: Choice, attempt: int) -> Guard | None:
        """The guard of an attempt with a choice; None if there is no estimate of the minimizer."""
        if self.point is None:
            return None
        left = LEFT if self.reduced and attempt < 2 else 1.0
        steps, halfway = self._steps, choice.halfway(self._steps)
        return Guard(
            self._reductions,
            self.point,
            self._X0,
            steps=steps,
            halfway=halfway,
            away=self.away,
            left=left,
        )

    def _prepare(self, x0: np.ndarray) -> int:
        """Set the model, the estimated minimizer and `away`; the gradients that this took;
        collective.
        """
        self._model, self.point, gradients = self._linearized(x0)
        away = 0.0 if self._model is None else self._model.away
        shared = self._reductions.collectives.broadcast(away, 0, "the size of the gradients")
        self.away = float(shared)
        return gradients

    def _linearized(self, x0: np.ndarray) -> tuple[LinearModel | None, np.ndarray | None, int]:
        """The linear model on rank 0, the estimated minimizer, and the gradients that both took;
        collective.
        """
        net, gradient = self._reductions, self._gradient
        batches = (
            None
            if gradient is None
            else lambda k: lambda X: together(net, lambda: gradient(X, k), X)
        )
        of = Linearization(
            net,
            self._grad,
            self._X0,
            batches=batches,
            steps=self._steps,
            bounded=self._varying
            and not self._noisy
            and self._solver.needs.functions == ("grad",)
            and self._term is None,
            vanishing=not self._noisy,
            term=self._term,
            on_face=self._term is not None and self._implicit,
        )
        few = evaluations(self._steps)
        small = len(x0) <= min(dimensions(net.n), few)
        if self._term is not None:
            return self._composite(self._term, of, x0, small, min(few, MOST_EVALUATIONS))
        x, count = minimizer(
            net, self._problem, x0, quadratic=small, most=min(few, MOST_EVALUATIONS)
        )
        spent = count + 1
        if x is None:
            model, x, count = linear_model(of, x0, quadratic=True)
            spent += count
            if x is not None:
                return model, x, spent
            x, count = minimizer(net, self._problem, x0, most=min(few, MOST_EVALUATIONS))
            spent += count
        model, x, count = linear_model(of, cast("np.ndarray", x))
        return model, x, spent + count

    def _composite(
        self, term: Term, of: Linearization, x0: np.ndarray, small: bool, most: int
    ) -> tuple[LinearModel | None, np.ndarray | None, int]:
        """As `_linearized`, of functions with a term whose proximal points the solver takes;
        collective.
        """
        net, spent = self._reductions, 1
        known = x_star_of(self._problem) is not None
        if small and not known and not of.on_face:
            model, x, count = linear_model(of, x0, quadratic=True)
            spent += count
            if x is not None:
                return model, x, spent
        point, count = composite_minimizer(net, self._problem, term, x0, most)
        spent += count
        model, x, count = linear_model(of, point)
        spent += count
        reduced = model is not None and model.prox is not None and model.V is not None
        if net.collectives.broadcast(reduced, 0, "the linear model"):
            # before the face is reached, the step is as stable as without the term
            plain = Linearization(net, self._grad, self._X0, steps=self._steps, agents=STEEPEST)
            self._without_term, _, count = linear_model(plain, point)
            spent += count
        return model, x, spent

    def _grad(self, X: np.ndarray) -> np.ndarray:
        return together(self._reductions, lambda: self._problem.grad(X), X)


class Search(ModelSearch):
    """Search for the step size of one run in common steps; collective.

    Parameters
    ----------
    net : Network
    topology : Topology or Schedule
    mixer : mixer
        The mixer of the run.
    problem, oracle, solver, X0, steps, seed, tol
        As for `ModelSearch`.
    unstable : str
        Why the solver may diverge on the schedule with any small step size, or "".
    """

    def __init__(
        self,
        net: Network,
        problem: Problem,
        oracle: Oracle,
        solver: Solver,
        topology: Topology | Schedule,
        mixer: Operator[StepOperator],
        X0: np.ndarray,
        *,
        steps: int,
        seed: int,
        tol: float,
        unstable: str = "",
    ):
        super().__init__(net, problem, oracle, solver, X0, steps=steps, seed=seed, tol=tol)
        self._unstable = unstable
        self._net, self._mixer = net, mixer
        self._moved = self._exact and bool(mixer.disturbance)  # an exact method, with another limit
        self._exact = self._exact and not self._moved
        self.topology = topology  # of a call: with the weights of its choice

    _most_agents = MOST_AGENTS

    def __call__(self) -> Choice:
        """The choice, the same on all ranks."""
        if requested_rule(self._solver) == "auto":
            self._grad(self._X0)  # its imports are not part of the duration
        return super().__call__()

    def _found(self, gradients: int) -> Choice | None:
        choice = self._fastest(gradients)
        return None if choice is None else self._verify(choice)

    def _verify(self, choice: Choice) -> Choice:
        """The choice after trial runs with the problem itself, where the linear model may be
        wrong about it; collective.
        """
        if self._varying:
            return self._tried_out(choice)
        if self._exact and self.reduced:
            return self._reduced(choice)
        if self._term is not None and not self._implicit:
            return self._larger(choice)
        return choice

    def _reason(self, refused: str) -> str:
        why = super()._reason(refused)
        if not refused and self._mixer.disturbance:
            why = f"with no step size does the error fall, as {self._mixer.disturbance}."
        if unstable := self._solver.unstable(self.topology) or self._unstable:
            if self.point is not None:
                raise Unstable(f'step_size="auto": no step size converges: {unstable}')
            why += f" {unstable}."
        return why

    def _safe(self) -> tuple[float, float]:
        L = self._smoothness()
        return self._on_root(lambda base: safe(self._solver, self._alike(base), in_range(L))), L

    def smaller(self, choice: Choice, factor: float = 2.0) -> Choice:
        """At most 1 / `factor` of a choice with which the run did not converge, checked in the
        linear model.
        """

        def halved(base: Mixer) -> Choice:
            size = choice.step_size / factor
            if choice.rule == "steps" and self._model is not None:
                size = self._checked(self._alike(base), self._model, size, 512)
            return replace(choice, step_size=size, note=f"{choice.step_size:.4g} did not converge")

        return self._on_root(halved)

    def _on_root(self, act: Callable[[Mixer], T]) -> T:
        """The result of `act` on rank 0, with a mixer of all agents in this process, like that
        of the run but for its codec.
        """
        result: T | None = None
        with on_all_ranks(self._net):
            try:
                if self._net.rank == 0:
                    with (
                        Network(self._net.n, comm=MPI.COMM_SELF) as alone,
                        closing(alone.mixer(self.topology)) as base,
                    ):
                        result = act(base)
            finally:  # a search may last longer than a rank waits for a lost one
                if self._net.size > 1:
                    meet(self._net.comm)
        return cast("T", self._net.collectives.broadcast(result, 0, "the choice of a step size"))

    def _alike(self, base: Mixer, codec: bool = False) -> Operator[StepOperator]:
        """The mixer of the run on another base, without its codec unless that is part of the
        question.
        """
        return self._mixer.rebuilt(base, Kept(codec=codec, d=self._X0.shape[1]))

    def _fastest(self, gradients: int) -> Choice | None:
        """The choice of the race over the graph; over one with several weights, the best choice,
        with its graph.
        """
        graph = self.topology
        if len(graph.choices) == 1:
            return self._on_root(lambda base: self._raced(base, gradients))
        best: Choice | None = None
        chosen = graph
        for weights, self.topology in graph.choices:
            if best is None or self._bears(self.topology):
                choice = self._on_root(lambda base: self._raced(base, gradients))
                if choice and (best is None or choice.expected < CLEARLY * best.expected):
                    best, chosen = replace(choice, weights=weights), self.topology
        self.topology = chosen
        return best

    def _bears(self, topology: Topology | Schedule) -> bool:
        try:
            self._solver.check(topology)
        except ValueError:
            return False
        return not self._solver.unstable(topology)

    def _raced(self, base: Mixer, gradients: int) -> Choice | None:
        """The choice of the race; None if no step size converges."""
        model, W, most = self._curved(), self._alike(base), np.inf
        if model is None:
            return None
        if self._moved and not self._implicit:
            # far from its limit a larger step may be stable, but not near it
            calm = undisturbed(W)
            ranking = self._race(calm, model, exact=True)
            most = (
                np.inf if ranking is None else self._checked(calm, model, ranking.size, FEW_STEPS)
            )
        ranking = self._race(W, model, most=most)
        if ranking is None:
            return None
        size = self._checked(W, model, ranking.size, ranking.steps) if self._exact else ranking.size
        if self._without_term is not None:
            size = self._checked(W, self._without_term, size, ranking.steps)
        futile = False
        if self._mixer.codec is not None and self._exact and model.r == self._X0.shape[1]:
            size, futile = self._with_codec(base, model, size)
        choice = replace(
            self._choice(size, ranking, model.curvature, gradients),
            limit=self._mixer.disturbance if self._moved else "",
            futile=futile,
        )
        if not self._solver.adaptive:
            return choice
        # the race ranks step sizes: where gradients are large, steps are others than in it
        note = f"{name_of(self._solver)} scales its steps by its gradients"
        return replace(
            choice, tried=np.empty(0), predicted=np.empty(0), early=np.empty(0, bool), note=note
        )

    def _race(
        self,
        W: Operator[StepOperator],
        model: LinearModel,
        part: float = 1.0,
        exact: bool | None = None,
        most: float = np.inf,
    ) -> Ranking | None:
        """The ranking of a race, from so large a part of the first distance; None if no step size
        converges.

        An `exact` method is raced to the tolerance (None: that of the run), others to the end of
        the run; with step sizes up to `most`.
        """
        octaves, per_octave, top = SPAN, PER_OCTAVE, HIGHEST
        if self._implicit:
            octaves, per_octave, top = 2 * SPAN, 2, 64.0
            spread = model.curvature / _typical(model.mean)
            if (
                spread > WIDE_SPECTRUM
            ):  # stable with any step size: that of slow directions may be the best
                octaves, top = octaves + int(np.log2(spread)), top * spread
        elif self._varying:
            octaves, top = (10, 16 * HIGHEST) if model.slope is None else (13, 128 * HIGHEST)
        factor = self._solver.step_size.factor if self._varying else _one
        exact, disturbed = self._exact if exact is None else exact, bool(W.disturbance)
        random = self._noisy or self.topology.period is None or disturbed

        def race(sizes: np.ndarray) -> Ranking:
            if exact:
                larger, start = self._larger_by * sizes, part * noise(model)
                longest = LONGEST if self._exact or self.topology.period else FEW_STEPS
                stack = Stack(self._solver, factor, W, model, larger, start)
                return fastest(stack, model, self._tol, longest)
            last = LAST_PART if disturbed and not self._noisy else 0.5
            longest = HORIZON if W.columnwise else FEW_STEPS
            return most_accurate(
                self._stack(W, model, sizes, factor),
                model,
                steps=self._steps,
                noisy=random,
                decreasing=self._varying,
                longest=longest,
                part=last,
            )

        highest = int(np.floor(per_octave * np.log2(min(top / model.curvature, 1.001 * most))))
        # a slow average bears larger steps than those of the window
        return within_window(race, highest, octaves, per_octave, higher=not np.isfinite(most))

    def _stack(
        self,
        W: Operator[StepOperator],
        model: LinearModel,
        sizes: np.ndarray,
        factor: Callable[[int], float],
    ) -> Candidates:
        """The candidates of a race for the error at the end of the run."""
        solver, origin = self._solver, None
        if W.disturbance and self.point is not None:
            origin = model.coordinates(self.point[None])[0]
        if W.columnwise:
            return Stack(
                solver,
                factor,
                W,
                model=model,
                sizes=sizes,
                start=model.start,
                first=0,
                origin=origin,
            )
        each = np.split(sizes, len(sizes))
        return Apart(
            [
                Stack(
                    solver,
                    factor,
                    W,
                    model=model,
                    sizes=a,
                    start=model.start,
                    first=0,
                    origin=origin,
                )
                for a in each
            ]
        )

    def _tried_out(self, choice: Choice) -> Choice:
        """The choice for gradients of bounded slope, after trial runs with the problem itself;
        collective.

        The model goes on from their ends.  A first one decides whether the race was right about the
        choice.  If not, there are trial runs with step sizes around it.
        """
        length, bounded = (
            trial_length(self._steps),
            self._model is not None and self._model.slope is not None,
        )
        bounded = self._net.collectives.broadcast(bounded, 0, "the slopes of the gradients")
        most = (self._steps // 2 - choice.gradients) // max(length, 1) - 1
        if not bounded or length < FEWEST or most < 3:
            return choice
        sizes = np.array([choice.step_size])
        errors = self._trial_errors(sizes, length)
        if not choice.expected / AGREE <= errors[0] <= choice.expected * AGREE:
            sizes = sizes_around(choice.step_size, most)
            errors = self._trial_errors(sizes, length)
        best = most_robust(errors) if len(sizes) > 1 and np.isfinite(errors).any() else 0
        choice = _with_trials(choice, sizes, errors, length * (1 + len(sizes) * (len(sizes) > 1)))
        return replace(choice, step_size=float(sizes[best]))

    def _reduced(self, choice: Choice) -> Choice:
        """The choice, or a smaller step size, with the steps that trial runs with the oracle of the
        run predict; collective.

        What its gradients remember is older than in the model, and few samples may have most of the
        curvature.
        """
        length = int(min(choice.expected, self._steps, 2 * LONGEST_REDUCED) / 2)
        if length < 2 * FEWEST:
            return choice
        sizes, needed = [choice.step_size], [self._needed(choice.step_size, length)]
        if needed[0] > AS_SAID * choice.expected:
            while len(sizes) < MOST_TRIALS and not (
                needed[-1] < np.inf and needed[-1] > min(needed, default=np.inf)
            ):
                sizes.append(sizes[-1] / np.sqrt(2))
                needed.append(self._needed(sizes[-1], length))
        size = sizes[int(np.argmin(needed))]
        known = _with_trials(choice, np.array(sizes), np.array(needed), length * len(sizes))
        if size == choice.step_size:
            return known
        note = f"{choice.step_size:.4g} in the linear model, {size:.4g} in trial runs"
        return replace(known, step_size=float(size), note=note)

    def _needed(self, size: float, length: int) -> float:
        """The steps to the tolerance, from the rate of a trial run in all but its first quarter;
        inf if it makes no progress.

        Collective.
        """
        with closing(self._trial(size, length)) as trial:
            marks = {
                k: max(self._distance(E), TINY)
                for k, E in enumerate(trial, 1)
                if k in (length // 4, length)
            }
        first, last = marks[length // 4], marks[length]
        if not last < first:
            return np.inf
        rate = np.log(first / last) / (length - length // 4)
        return float(max(length + np.log(last / self._goal) / rate, 1.0))

    def _larger(self, choice: Choice) -> Choice:
        """The choice, or a larger step size that is the best of a race near the minimizer, if trial
        runs bear it; collective.

        Far from the minimizer a step size that is too large for the linear model may be right for
        the functions: those of bounded slope, and those that are flat where the term leads.  The
        trial runs are as long as the predicted run, at most.
        """
        if not self._exact or choice.expected < FEWEST or self._steps < 8 * FEWEST:
            return choice

        def near(base: Mixer) -> np.ndarray:
            model, W, size = cast("LinearModel", self._model), self._alike(base), choice.step_size
            centre = model.g.mean(axis=1, keepdims=True)
            closer = replace(model, g=centre + NEAR_MINIMIZER * (model.g - centre))
            ranking, largest = self._race(W, closer, NEAR_MINIMIZER), size
            if ranking is not None and ranking.size > size:
                largest = self._checked(W, closer, ranking.size, ranking.steps, NEAR_MINIMIZER)
            most = int(PER_OCTAVE * np.log2(largest / size) + 0.5)
            return size * 2.0 ** (np.array([j for j in (most, most // 2) if j > 0]) / PER_OCTAVE)

        for size in self._on_root(near):
            expected, taken = self._tried(size, choice.expected)
            choice = replace(choice, gradients=choice.gradients + taken)
            if expected < np.inf:
                here = np.isclose(choice.tried, size, rtol=1e-9, atol=0)
                return replace(
                    choice,
                    step_size=float(size),
                    predicted=np.where(here, expected, choice.predicted),
                    early=choice.early & ~here,
                    note=f"{choice.step_size:.4g} in the linear model, {size:.4g} in trial runs",
                )
        return choice

    def _tried(self, size: float, most: float) -> tuple[float, int]:
        """The steps to the tolerance with this step size, from a trial run of some of `most`; inf
        for more than those; its steps.

        Collective.  The rates between a quarter, a half and three quarters of `most` tell.
        """
        quarter = int(min(most, self._steps / 2, LONGEST_TRIAL) / 4)
        before, needed = 0.0, np.inf
        with closing(self._trial(size, 3 * quarter)) as trial:
            for k, E in enumerate(trial, 1):
                if k % quarter:
                    continue
                distance = max(self._distance(E), TINY)
                rate = np.log(before / distance) / quarter if k > quarter else np.inf
                needed = k + np.log(distance / self._goal) / rate if rate > 0 else np.inf
                if needed > CLEARLY * most:
                    return np.inf, k
                before = distance
        return float(max(needed, 1.0)), 3 * quarter

    @property
    def _goal(self) -> float:
        """The distance of all agents' rows from the estimated minimizer at the tolerance."""
        size = float(np.linalg.norm(cast("np.ndarray", self.point))) or 1.0
        return float(self._tol * np.sqrt(self._net.n) * size)

    def _distance(self, E: np.ndarray) -> float:
        """The distance of all agents' rows from the estimated minimizer, from that of the local
        ones; collective.
        """
        return float(np.sqrt(self._net.sum((E**2).sum(axis=1, keepdims=True))[0]))

    def _trial_errors(self, sizes: np.ndarray, length: int) -> np.ndarray:
        """The predicted errors after trial runs with these step sizes; collective."""
        ends = []
        for size in sizes:
            with closing(self._trial(size, length)) as trial:
                ends.append(self._net.gather(deque(trial, maxlen=1)[0]))

        def continued(base: Mixer) -> np.ndarray:
            model, factor = cast("LinearModel", self._model), self._solver.step_size.factor
            E = np.stack([model.coordinates(rows) for rows in ends if rows is not None], axis=2)
            stack = Stack(
                self._solver,
                factor,
                self._alike(base),
                model=model,
                sizes=sizes,
                start=E,
                first=length,
            )
            return most_accurate(stack, model, self._steps, False, True).predicted

        return self._on_root(continued)

    def _trial(self, size: float, length: int) -> Generator[np.ndarray]:
        """The rows minus the estimated minimizer, step by step, of a trial run with this step size;
        collective.

        With gradients of reduced variance, they are those that the run begins with.
        """
        net = self._net
        gradient: Callable[[np.ndarray, int], np.ndarray] = lambda X, k: self._grad(X)
        if self.reduced:
            drawn = self._oracle.gradients(range(net.lo, net.hi), self._seed)
            gradient = lambda X, k: together(net, lambda: drawn(X, k), X)
        answers = Answers(self._problem, self._term, gradient)
        with closing(self._net.mixer(self.topology)) as base:
            W, solver = self._alike(base), with_size(self._solver, size)
            for X in trial_run(solver, W, answers, self._X0, length):
                yield X - self.point

    def _checked(
        self,
        W: Operator[StepOperator],
        model: LinearModel,
        size: float,
        steps: int,
        part: float = 1.0,
    ) -> float:
        """`size`, or the next smaller one that is stable together with its neighbours."""
        for _ in range(12):
            stack = Stack(
                self._solver,
                _one,
                W,
                model,
                size * np.array([MARGIN, 1.0, 1 / MARGIN]),
                part * noise(model),
            )
            if stable(stack, model, steps).all():
                break
            size *= 2.0 ** (-1 / PER_OCTAVE)
        return size

    def _with_codec(self, base: Mixer, model: LinearModel, size: float) -> tuple[float, bool]:
        """The largest of `size` and some smaller ones that makes progress with the codec; `size`,
        with a warning, if none does.

        Also whether none does.
        """
        left = []
        for smaller in (1.0, 0.7, 0.5, 0.35, 0.25, 0.125, 0.0625):
            stack = Stack(
                self._solver,
                _one,
                self._alike(base, codec=True),
                model,
                np.array([smaller * size]),
                model.start,
            )
            left.append(progress(stack, model, CODEC_STEPS))
            if left[-1] <= CODEC_PROGRESS and (
                left[-1] <= self._tol or progress(stack, model, 2 * CODEC_STEPS) <= CODEC_STILL
            ):
                return smaller * size, False
        warn(
            f'step_size="auto": with this codec, {name_of(self._solver)} leaves {min(left):.2g} of '
            "the first error after "
            f"{CODEC_STEPS} steps, whatever the step size: send more (fraction, levels), set "
            "gamma, or take another "
            "codec or solver"
        )
        return size, True

    def _smoothness(self) -> float:
        """The largest smoothness constant of any agent, as the problem states it, or else from
        the linear model; collective.
        """
        largest, error = -1.0, None
        try:
            largest = float(np.max(smoothness_of(self._problem), initial=0.0))  # type: ignore[arg-type]
        except (AttributeError, ValueError) as caught:
            error = ValueError(f'step_size="safe": {caught}')
        if self.point is None:
            self._net.agree(error)
        if self._model is not None and largest < 0:
            largest = float(np.abs(np.nan_to_num(self._model.H[0])).sum(axis=(1, 2)).max())
        return float(self._net.collectives.gather_all(np.array(largest), "the smoothness").max())


def _with_trials(choice: Choice, sizes: np.ndarray, found: np.ndarray, gradients: int) -> Choice:
    """The choice with what trial runs with these step sizes have found, and their gradients."""
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


def _typical(H: np.ndarray) -> float:
    """The geometric mean of the positive eigenvalues of an average Hessian."""
    found = np.linalg.eigvalsh((H + H.T) / 2)
    return float(np.exp(np.log(found[found > ROUNDED * found[-1]]).mean()))


def in_range(smoothness: float) -> float:
    """The smoothness constant, if its square and that of its inverse are in the range of float64.

    Raises
    ------
    ValueError
    """
    least, most = 1 / LARGEST_SMOOTHNESS, LARGEST_SMOOTHNESS
    if smoothness > 0 and not least <= smoothness <= most:
        raise ValueError(
            f"the smoothness constant of the problem is {smoothness:.1g}, expected {least:g} to "
            f"{most:g}, as squares of it "
            "must fit into float64: change the scale of the data (standardize it), or of the "
            "objective"
        )
    return smoothness


def _one(k: int) -> float:
    return 1.0
