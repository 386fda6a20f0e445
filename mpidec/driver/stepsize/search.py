"""Search for the step size of a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from ..._words import warn
from ...comm.mixing import Network
from ...comm.mixing.internals import Kept, Operator, StepOperator
from ...comm.runtime import ALONE, meet, on_all_ranks
from ...exceptions import Unstable as Unstable
from ...problems.internals import moves, smoothness_of
from ...solvers.internals import name_of
from .choice import Choice, requested_rule
from .guard import Guard
from .linear import GradientModel
from .race import (
    Apart,
    Candidates,
    Criterion,
    ErrorAfter,
    Ranking,
    Runs,
    SolverStack,
    StepsTo,
    noise,
    progress,
    race,
    safe,
    stable,
)
from .task import (
    Modelled,
    Task,
    Trials,
    most_robust,
    sizes_around,
    trial_length,
    with_trials,
)
from .tuning import TUNING

if TYPE_CHECKING:
    from ...topology import Schedule, Topology

T = TypeVar("T")


def undisturbed(mixer: Operator[StepOperator]) -> Operator[StepOperator]:
    """Return the mixer without faults that move the limit of exact methods, such as lost
    messages.
    """
    return mixer.rebuilt(mixer.base, Kept(faults=False))


class ModelSearch(ABC):
    """A search for a step size in the linear model of the problem at its minimizer; collective.

    Parameters
    ----------
    task : Task

    Attributes
    ----------
    modelled : Modelled
        The linear model, once the search has made it.
    """

    def __init__(self, task: Task):
        self.task, self.modelled = task, Modelled()
        self._recalled = False  # and not made again

    def __call__(self) -> Choice:
        """The choice, the same on all ranks."""
        task, begun, why = self.task, time.perf_counter(), ""
        choice: Choice | None = None
        if requested_rule(task.solver) == "auto":
            refused = self._refusal()
            if not refused:
                self.modelled = task.modelled()
                choice = self._found()
            if choice is None:
                why = self._reason(refused)
                if task.net.rank == 0:
                    warn(
                        f'step_size="auto": {why} {name_of(task.solver)} runs with the safe step '
                        "size"
                    )
        if choice is None:
            size, smoothness = self._safe()
            choice = self._choice(size, "safe", curvature=smoothness, note=why)
        return replace(choice, seconds=time.perf_counter() - begun)

    @abstractmethod
    def _found(self) -> Choice | None:
        """Return the choice in the model; None if no step size converges; collective."""

    @abstractmethod
    def _safe(self) -> tuple[float, float]:
        """Return the safe step size, and the smoothness constant from which it follows;
        collective.
        """

    @property
    @abstractmethod
    def _most_agents(self) -> int:
        """The number of agents from which on there is no search."""

    def _refusal(self) -> str:
        """Return why there can be no search, or ""."""
        if not self.task.oracle.smooth:
            return "the problem is not smooth, and its subgradients have no linear model."
        if moves(self.task.problem):
            return "the minimizer moves, and the linear model does not follow it."
        if self.task.net.n > self._most_agents:
            return f"it takes at most {self._most_agents} agents."
        return ""

    def _reason(self, refused: str) -> str:
        """Return why there is no choice; collective."""
        if refused:
            return refused
        flat = self.modelled.model is not None and not self.modelled.model.curvature
        if self.task.net.collectives.broadcast(flat, 0, "the curvature of the problem"):
            return (
                "the largest curvature is zero, as that of a function that is constant or linear."
            )
        return (
            "no step size converges in the linear model: check that the problem is convex, and the "
            "solver stable on the graph."
        )

    def _curved(self) -> GradientModel | None:
        """Return the model, if there is one and its curvature is a positive number."""
        model = self.modelled.model
        if model is None or not np.isfinite(model.curvature) or model.curvature <= 0:
            return None
        in_range(model.curvature)
        return model

    def _choice(
        self,
        size: float,
        rule: str,
        curvature: float,
        ranking: Ranking | None = None,
        note: str = "",
        limit: str = "",
    ) -> Choice:
        """Return the choice of a step size, after a race if there was one."""
        task, none = self.task, np.empty(0)
        if rule == "steps" and task.tol < task.tolerance:
            note = f"float32 does not reach {task.tol:.0e}"
        return Choice(
            step_size=size,
            rule=rule,
            tried=none if ranking is None else ranking.sizes,
            predicted=none if ranking is None else ranking.predicted,
            early=none.astype(bool) if ranking is None else ranking.early,
            steps=task.steps,
            tol=task.tolerance,
            curvature=curvature,
            gradients=self.modelled.gradients,
            seconds=0.0,
            note=note,
            limit=limit,
        )

    @property
    def _larger_by(self) -> float:
        """The factor by which the step sizes of a race to a tolerance are larger than those
        returned.
        """
        return TUNING.margin / TUNING.reduced_part if self.task.reduced else TUNING.margin

    def _on_root(self, act: Callable[[], T]) -> T:
        """Return the result of `act` on rank 0; collective."""
        net, result = self.task.net, None
        with on_all_ranks(net):
            try:
                if net.rank == 0:
                    result = act()
            finally:  # a search may last longer than a rank waits for a lost one
                if isinstance(net, Network) and net.size > 1:
                    meet(net.comm)
        return cast("T", net.collectives.broadcast(result, 0, "the choice of a step size"))

    def recall(self, point: np.ndarray | None, away: float) -> None:
        """Take the estimated minimizer, and how far the agents' own gradients lead from it, from
        the file of a resumed run.
        """
        self.modelled, self._recalled = Modelled(point=point, away=away), True

    def guard(self, choice: Choice) -> Guard | None:
        """Return the guard of an attempt with a choice; None if there is no estimate of the
        minimizer.
        """
        task, point = self.task, self.modelled.point
        if point is None:
            return None
        return Guard(
            task.net,
            point,
            task.start,
            steps=task.steps,
            halfway=choice.halfway(task.steps),
            away=self.modelled.away,
            left=TUNING.left if task.reduced and choice.failed < TUNING.gentle else 1.0,
        )

    def smaller(self, choice: Choice) -> Choice:
        """Return a smaller choice than one with which the run did not converge; collective."""
        factor = TUNING.factor if choice.failed < TUNING.gentle else TUNING.strong_factor
        note, failed = f"{choice.step_size:.4g} did not converge", choice.failed + 1
        return replace(choice, step_size=choice.step_size / factor, note=note, failed=failed)


class Search(ModelSearch):
    """Search for the step size of one synchronous run; collective.

    Parameters
    ----------
    task : Task
        On a `Network`.
    topology : Topology or Schedule
    mixer : mixer
        The mixer of the run.
    unstable : str
        Why the solver may diverge on the schedule with any small step size, or "".
    """

    def __init__(
        self,
        task: Task,
        topology: Topology | Schedule,
        mixer: Operator[StepOperator],
        unstable: str = "",
    ):
        super().__init__(task)
        self._unstable, self._mixer = unstable, mixer
        # An exact method, with another limit.
        self._moved = task.exact and bool(mixer.disturbance)
        self._exact = task.exact and not self._moved
        self.topology = topology  # of a call: with the weights of its choice

    _most_agents = TUNING.most_agents

    def __call__(self) -> Choice:
        """The choice, the same on all ranks."""
        if requested_rule(self.task.solver) == "auto":
            # Its imports are not part of the duration.
            self.task.grad(self.task.start)
        return super().__call__()

    def _found(self) -> Choice | None:
        choice = self._fastest()
        return None if choice is None else self._verified(choice)

    def _reason(self, refused: str) -> str:
        why = super()._reason(refused)
        if not refused and self._mixer.disturbance:
            why = f"with no step size does the error fall, as {self._mixer.disturbance}."
        if unstable := self.task.solver.unstable(self.topology) or self._unstable:
            if self.modelled.point is not None:
                raise Unstable(f'step_size="auto": no step size converges: {unstable}')
            why += f" {unstable}."
        return why

    def _safe(self) -> tuple[float, float]:
        L = self._smoothness()
        return self._with_mixer(lambda W: safe(self.task.solver, W, in_range(L))), L

    def smaller(self, choice: Choice) -> Choice:
        """Return one that is checked in the linear model, too."""
        less = super().smaller(choice)
        if choice.rule != "steps":
            return less
        if self._recalled:
            self.modelled, self._recalled = self.task.modelled(), False

        def checked(W: Operator[StepOperator]) -> float:
            model, size = self.modelled.model, less.step_size
            return size if model is None else self._checked(W, model, size, TUNING.few_steps)

        return replace(less, step_size=self._with_mixer(checked))

    def _with_mixer(self, act: Callable[[Operator[StepOperator]], T], codec: bool = False) -> T:
        """Return the result of `act` on rank 0, with a mixer of all agents in this process, like
        that of the run, but without its codec unless that is part of the question; collective.
        """

        def alone() -> T:
            with (
                Network(self.task.net.n, comm=ALONE) as net,
                closing(net.mixer(self.topology)) as base,
            ):
                return act(self._mixer.rebuilt(base, Kept(codec, d=self.task.X0.shape[1])))

        return self._on_root(alone)

    def _fastest(self) -> Choice | None:
        """Return the choice of the race over the graph; over one with several weights, the best
        choice, with its graph.
        """
        graph = self.topology
        if len(graph.choices) == 1:
            return self._with_mixer(self._raced)
        best: Choice | None = None
        chosen = graph
        for weights, self.topology in graph.choices:
            if best is None or self._is_stable(self.topology):
                choice = self._with_mixer(self._raced)
                if choice and (best is None or choice.expected < TUNING.clearly * best.expected):
                    best, chosen = replace(choice, weights=weights), self.topology
        self.topology = chosen
        return best

    def _is_stable(self, topology: Topology | Schedule) -> bool:
        try:
            self.task.solver.check(topology)
        except ValueError:
            return False
        return not self.task.solver.unstable(topology)

    def _raced(self, W: Operator[StepOperator]) -> Choice | None:
        """Return the choice of the race; None if no step size converges."""
        model, without_term, most = self._curved(), self.modelled.without_term, np.inf
        if model is None:
            return None
        if self._moved and not self.task.solver.needs.argmin:
            # far from its limit a larger step may be stable, but not near it
            calm = undisturbed(W)
            ranking = self._race(calm, model, exact=True)
            if ranking is not None:
                most = self._checked(calm, model, ranking.size, TUNING.few_steps)
        ranking = self._race(W, model, most=most)
        if ranking is None:
            return None
        size = self._checked(W, model, ranking.size, ranking.steps) if self._exact else ranking.size
        if without_term is not None:
            size = self._checked(W, without_term, size, ranking.steps)
        limit = self._mixer.disturbance if self._moved else ""
        rule = "steps" if self._exact else "error"
        if not self.task.solver.adaptive:
            return self._choice(size, rule, model.curvature, ranking, limit=limit)
        # the race ranks step sizes: where gradients are large, steps are others than in it
        note = f"{name_of(self.task.solver)} scales its steps by its gradients"
        return self._choice(size, rule, model.curvature, note=note, limit=limit)

    def _race(
        self,
        W: Operator[StepOperator],
        model: GradientModel,
        part: float = 1.0,
        exact: bool | None = None,
        most: float = np.inf,
    ) -> Ranking | None:
        """Return the ranking of a race, from so large a part of the first distance; None if no step
        size converges.

        An `exact` method is raced to the tolerance (None: that of the run), others to the end of
        the run; with step sizes up to `most`.
        """
        task, disturbed = self.task, bool(W.disturbance)
        octaves, per_octave, top = TUNING.span, TUNING.per_octave, TUNING.highest
        if task.solver.needs.argmin:
            octaves, per_octave, top = (
                2 * TUNING.span,
                TUNING.per_octave_implicit,
                TUNING.highest_implicit,
            )
            spread = model.curvature / _typical(model.mean)
            if spread > TUNING.wide_spectrum:
                # stable with any step size: that of slow directions may be the best
                octaves, top = octaves + int(np.log2(spread)), top * spread
        elif task.varying:
            octaves, higher = TUNING.span_decreasing, TUNING.higher_decreasing
            if model.slope is not None:
                octaves, higher = TUNING.span_bounded, TUNING.higher_bounded
            top *= higher
        criterion: Criterion = ErrorAfter(
            task.steps,
            noisy=task.noisy or self.topology.period is None or disturbed,
            decreasing=task.varying,
            longest=TUNING.horizon if W.columnwise else TUNING.few_steps,
            part=TUNING.last_part if disturbed and not task.noisy else TUNING.last_half,
        )
        if self._exact if exact is None else exact:
            longest = (
                TUNING.longest_race if self._exact or self.topology.period else TUNING.few_steps
            )
            criterion = StepsTo(task.tolerance, longest, margin=self._larger_by, part=part)
        # a slow average is stable with larger steps than those of the window
        return race(
            criterion,
            self._runs(W, model),
            model,
            min(top / model.curvature, 1.001 * most),
            octaves,
            per_octave,
            higher=not np.isfinite(most),
        )

    def _runs(self, W: Operator[StepOperator], model: GradientModel, first: int = 0) -> Runs:
        """Candidates of the solver, which take the steps from the `first` one on."""
        solver, origin = self.task.solver, None
        factor = solver.step_size.factor if self.task.varying else _one
        if W.disturbance and self.modelled.point is not None:
            origin = model.coordinates(self.modelled.point[None])[0]

        def stack(
            sizes: np.ndarray, start: np.ndarray, W: Operator[StepOperator] = W
        ) -> SolverStack:
            return SolverStack(solver, factor, W, model, sizes, start, first=first, origin=origin)

        def one_by_one(sizes: np.ndarray, start: np.ndarray) -> Candidates:
            # each with a memory of its own
            return Apart(
                [stack(a, start, W.rebuilt(W.base, Kept())) for a in np.split(sizes, len(sizes))]
            )

        return stack if W.columnwise else one_by_one

    def _verified(self, choice: Choice) -> Choice:
        """Return the choice after trials of what the race has left out: the codec of the run, and
        the problem itself where the linear model may be wrong about it; collective.
        """
        task, point = self.task, cast("np.ndarray", self.modelled.point)
        trials = Trials(task, point, self.topology, self._mixer)
        if not self._exact:
            return self._by_errors(trials, choice)
        if self._mixer.codec is not None:
            choice = self._with_mixer(lambda W: self._with_codec(W, choice), codec=True)
        if task.reduced or (task.term is not None and not task.solver.needs.argmin):
            return self._by_steps(trials, choice)
        return choice

    def _by_errors(self, trials: Trials, choice: Choice) -> Choice:
        """Return the choice for gradients of bounded slope: the model goes on from the ends of
        trial runs; collective.

        A first one decides whether the race was right about the choice.  If not, there are trial
        runs with step sizes around it.
        """
        task, length = self.task, trial_length(self.task.steps)
        known = self.modelled.model
        basis = (known.V,) if known is not None and known.slope is not None else None
        bounded = task.net.collectives.broadcast(basis, 0, "the slopes of the gradients")
        most = (task.steps // 2 - choice.gradients) // max(length, 1) - 1
        if bounded is None or length < TUNING.fewest_steps or most < 3:
            return choice
        (V,) = bounded

        def errors(sizes: np.ndarray) -> np.ndarray:
            ends = trials.ends(sizes, length, V)

            def continued(W: Operator[StepOperator]) -> np.ndarray:
                model = cast("GradientModel", known)
                E = np.stack([rows for rows in ends if rows is not None], axis=2)
                runs = self._runs(W, model, length)
                criterion = ErrorAfter(task.steps, noisy=False, decreasing=task.varying)
                return criterion.race(lambda sizes, _: runs(sizes, E), model, sizes).predicted

            return self._with_mixer(continued)

        sizes, best, taken = np.array([choice.step_size]), 0, length
        found = errors(sizes)
        if not choice.expected / TUNING.agree <= found[0] <= choice.expected * TUNING.agree:
            sizes = sizes_around(choice.step_size, most)
            found, taken = errors(sizes), taken + length * len(sizes)
            best = most_robust(found) if np.isfinite(found).any() else 0
        return replace(with_trials(choice, sizes, found, taken), step_size=float(sizes[best]))

    def _by_steps(self, trials: Trials, choice: Choice) -> Choice:
        """Return the choice, or another step size of which trial runs predict fewer steps to the
        tolerance; collective.

        With reduced variance smaller ones are tried: what the gradients remember is older than in
        the model, and few samples may have most of the curvature.  With a term larger ones, see
        `_larger`.  The trial runs are shorter than the predicted run.
        """
        task, size, expected = self.task, choice.step_size, choice.expected
        if task.reduced:
            length = int(min(expected, task.steps, 2 * TUNING.longest_reduced) / 2)
            sizes, enough, limit = (
                size * 2.0 ** (-np.arange(TUNING.most_trials) / 2),
                TUNING.as_said,
                np.inf,
            )
        else:
            length = int(3 * min(expected, task.steps / 2, TUNING.longest_trial) / 4)
            sizes, enough, limit = np.empty(0), TUNING.clearly, TUNING.clearly * expected
        if length < 2 * TUNING.fewest_steps:
            return choice
        if not task.reduced:
            sizes = self._with_mixer(lambda W: self._larger(W, choice))
        needed: list[float] = []
        for tried in sizes:
            needed.append(trials.steps(tried, length, limit))
            if needed[-1] <= enough * expected or min(needed) < needed[-1] < np.inf:
                break
            # of smaller step sizes the best is taken
            enough = 0.0 if task.reduced else enough
        sizes, found = sizes[: len(needed)], np.array(needed)
        choice = with_trials(choice, sizes, found, trials.taken)
        best = int(np.argmin(found)) if len(found) else 0
        if not len(found) or sizes[best] == size or not (task.reduced or found[best] <= limit):
            return choice
        note = f"{size:.4g} in the linear model, {sizes[best]:.4g} in trial runs"
        return replace(choice, step_size=float(sizes[best]), note=note)

    def _larger(self, W: Operator[StepOperator], choice: Choice) -> np.ndarray:
        """Larger step sizes up to the best of a race near the minimizer.

        Far from the minimizer a step size that is too large for the linear model may be right for
        the functions: those of bounded slope, and those that are flat where the term leads.
        """
        model, size = cast("GradientModel", self.modelled.model), choice.step_size
        centre = model.g.mean(axis=1, keepdims=True)
        closer = replace(model, g=centre + TUNING.near_minimizer * (model.g - centre))
        ranking, largest = self._race(W, closer, TUNING.near_minimizer), size
        if ranking is not None and ranking.size > size:
            largest = self._checked(W, closer, ranking.size, ranking.steps, TUNING.near_minimizer)
        most = int(TUNING.per_octave * np.log2(largest / size) + 0.5)
        return size * 2.0 ** (np.array([j for j in (most, most // 2) if j > 0]) / TUNING.per_octave)

    def _checked(
        self,
        W: Operator[StepOperator],
        model: GradientModel,
        size: float,
        steps: int,
        part: float = 1.0,
    ) -> float:
        """`size`, or the next smaller one that is stable together with its neighbours."""
        for _ in range(TUNING.stability_checks):
            stack = SolverStack(
                self.task.solver,
                _one,
                W,
                model,
                size * np.array([TUNING.margin, 1.0, 1 / TUNING.margin]),
                part * noise(model),
            )
            if stable(stack, model, steps).all():
                break
            size *= 2.0 ** (-1 / TUNING.per_octave)
        return size

    def _with_codec(self, W: Operator[StepOperator], choice: Choice) -> Choice:
        """Return the choice, or the largest of some smaller step sizes, that makes progress with
        the codec of the mixer; the choice, with a warning, if none does.
        """
        model, left = cast("GradientModel", self.modelled.model), []
        if model.r < self.task.X0.shape[1]:
            return choice
        for part in TUNING.codec_parts:
            size = part * choice.step_size

            def after(steps: int, size: float = size) -> float:
                stack = SolverStack(self.task.solver, _one, W, model, np.array([size]), model.start)
                return progress(stack, model, steps)

            left.append(after(TUNING.codec_steps))
            if left[-1] <= TUNING.codec_progress and (
                left[-1] <= self.task.tolerance
                or after(2 * TUNING.codec_steps) <= TUNING.codec_still
            ):
                return replace(choice, step_size=size)
        warn(
            f'step_size="auto": with this codec, {name_of(self.task.solver)} leaves '
            f"{min(left):.2g} of the first error after {TUNING.codec_steps} steps, whatever the "
            "step size: send more (fraction, levels), set gamma, or take another codec or solver"
        )
        return replace(choice, futile=True)

    def _smoothness(self) -> float:
        """Return the largest smoothness constant of any agent, as the problem states it, or else
        from the linear model; collective.
        """
        largest, error, problem = -1.0, None, self.task.problem
        try:
            stated = smoothness_of(problem)
            if stated is None:
                raise ValueError(
                    f"{type(problem).__name__} has no smoothness: give the step size as a number"
                )
            largest = float(np.max(stated, initial=0.0))
        except ValueError as caught:
            error = ValueError(f'step_size="safe": {caught}')
        if self.modelled.point is None:
            self.task.net.agree(error)
        if self.modelled.model is not None and largest < 0:
            largest = float(np.abs(np.nan_to_num(self.modelled.model.H[0])).sum(axis=(1, 2)).max())
        return float(
            self.task.net.collectives.gather_all(np.array(largest), "the smoothness").max()
        )


def _typical(H: np.ndarray) -> float:
    """Return the geometric mean of the positive eigenvalues of an average Hessian."""
    found = np.linalg.eigvalsh((H + H.T) / 2)
    return float(np.exp(np.log(found[found > TUNING.rounded * found[-1]]).mean()))


def in_range(smoothness: float) -> float:
    """Return the smoothness constant, if its square and that of its inverse are in the range of
    float64.

    Raises
    ------
    ValueError
    """
    least, most = 1 / TUNING.largest_smoothness, TUNING.largest_smoothness
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
