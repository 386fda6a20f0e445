"""Choice of a step size before a run."""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..mixing.accelerated import Accelerated
from ..mixing.compressed import Compressed
from ..solvers.base import name_of, with_step_size
from ..solvers.step_schedules import WORDS, StepSchedule
from .linear import LinearModel, linear_model
from .race import MORE, Ranking, Stack, fastest, most_accurate, noise, stable
from .reference import minimizer
from .safe import MANY, safe

TOLERANCE = 1e-6
OCTAVES, NOTCHES = 6, 4                             # range of a race, and step sizes in a factor of 2
TOP = 2.4                                           # largest step size of a race, in units of 1 / curvature


@dataclass(frozen=True)
class Choice:
    """Step size that a search has chosen; `print(choice)` shows the table of those it tried.

    Attributes
    ----------
    step_size : float
        The choice; the start value, if the step size is a schedule.
    rule : {"steps", "error", "safe"}
        What was compared: predicted steps to a relative error of `tol`; predicted relative error after `steps` steps; or nothing,
        `step_size` being the safe bound.
    tried : array
        The step sizes of the race, from the largest to the smallest; empty for "safe".
    predicted : array
        Predicted steps or errors of these; inf for a step size with which the method does not converge.
    steps : int
        Steps of the run.
    tol : float
    curvature : float
        Largest eigenvalue of the agents' average Hessian at the estimated minimizer.
    gradients : int
        Gradients that the search evaluated, of each agent.
    seconds : float
        Duration of the search.
    note : str
        What else there is to know; empty if nothing.
    """

    step_size: float
    rule: str
    tried: np.ndarray = field(repr=False)
    predicted: np.ndarray = field(repr=False)
    steps: int
    tol: float
    curvature: float
    gradients: int
    seconds: float
    note: str = ""

    @property
    def expected(self) -> float:
        """The predicted steps or error of the choice."""
        near = np.flatnonzero(np.isclose(self.tried, self.step_size, rtol=1e-9))
        return float(self.predicted[near[0]]) if len(near) else np.inf

    def line(self) -> str:
        """The choice as one line: `0.0403 (auto: error 1e-06 expected in 372 steps; 31 gradients, 0.12 s)`."""
        if self.rule == "safe":
            return f"{self.step_size:.4g} (safe bound)" + (f"; {self.note}" if self.note else "")
        if self.rule == "steps":
            what = f"error {self.tol:.0e} expected in {self.expected:.0f} steps" if np.isfinite(self.expected) else "no prediction"
            if np.isfinite(self.expected) and self.expected > self.steps:
                what += f", more than the {self.steps} of the run"
        else:
            what = f"error {self.expected:.2g} expected after {self.steps} steps"
        return (f"{self.step_size:.4g} (auto: {what}; search: {self.gradients} gradients, {self.seconds:.2g} s)"
                + (f"; {self.note}" if self.note else ""))

    def __str__(self) -> str:
        title = f"steps to error {self.tol:.0e}" if self.rule == "steps" else f"error after {self.steps} steps"
        rows = [f"{'step size':>12}  predicted {title}"] if len(self.tried) else []
        for a, value in zip(self.tried, self.predicted):
            shown = "does not converge" if not np.isfinite(value) else f"{value:.0f}" if self.rule == "steps" else f"{value:.3g}"
            rows.append(f"{a:12.5g}  {shown}" + ("  <- chosen" if np.isclose(a, self.step_size, rtol=1e-9) else ""))
        return "\n".join([*rows, f"step size {self.line()}"])

    def plot(self) -> Any:
        """A matplotlib figure of the predictions against the step sizes; `choice.plot().savefig("tune.png")` writes it."""
        from matplotlib.figure import Figure
        figure = Figure(figsize=(4.8, 3.2), layout="constrained")
        panel = figure.subplots()
        finite = np.isfinite(self.predicted)
        panel.loglog(self.tried[finite], self.predicted[finite], "o-", markersize=3, color="#0072B2")
        for k, a in enumerate(self.tried[~finite]):
            panel.axvline(a, color="0.85", linewidth=1, zorder=0, label="does not converge" if k == 0 else None)
        panel.axvline(self.step_size, color="#D55E00", linestyle="--", linewidth=1, label=f"chosen: {self.step_size:.3g}")
        panel.set_xlabel("step size")
        panel.set_ylabel(f"predicted steps to error {self.tol:.0e}" if self.rule == "steps" else
                         f"predicted error after {self.steps} steps")
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
        return figure


def wanted(solver: Any) -> str | None:
    """The word "auto" or "safe" in the step size of a solver, or in the start of its schedule; None for a number."""
    step = getattr(solver, "step_size", None)
    word = step.start if isinstance(step, StepSchedule) else step
    return word if isinstance(word, str) and word in WORDS else None


def chosen(solver: Any, size: float) -> Any:
    """The solver with the chosen step size, or with its schedule starting there."""
    step = solver.step_size
    return with_step_size(solver, step.starting_at(size) if isinstance(step, StepSchedule) else size)


def uncompressed(made: Any, plain: Any, d: int) -> Any:
    """The mixer `made` without its codec, from `plain`: with the same acceleration, and the same gamma for rows of `d` entries."""
    if isinstance(made, Accelerated):
        return uncompressed(made.W, plain, d).accelerate(made.K, made.method)
    if isinstance(made, Compressed) and (gamma := made.gamma(d)) < 1:
        return plain.compress("identity", feedback=False, gamma=gamma)
    return plain


class Search:
    """Search for the step size of one run; collective.

    Parameters
    ----------
    net : Network
    problem, oracle
        The local agents' functions; an oracle of random gradients, or None.
    solver : Solver
        With the step size "auto" or "safe".
    topology : Topology or Schedule
    mixer : mixer
        The mixer of the run.
    X0 : array (m, d)
        The initial points of the local agents.
    steps : int
        Steps of the run.
    seed : int
        Seed of the oracle.
    tol : float
        Relative error to which steps are counted.
    """

    def __init__(self, net: Any, problem: Any, oracle: Any, solver: Any, topology: Any, mixer: Any, X0: np.ndarray, steps: int,
                 seed: int, tol: float):
        self._net, self._problem, self._solver, self._topology, self._made = net, problem, solver, topology, mixer
        self._X0, self._steps, self._tol = X0, steps, min(tol, TOLERANCE)
        self._noisy = oracle is not None and hasattr(oracle, "start") and type(oracle).__name__ != "Full"
        self._gradient = oracle.start(net.agents, seed) if self._noisy else None
        self._varying = isinstance(solver.step_size, StepSchedule)
        self.model: LinearModel | None = None
        self.gradients = 0

    def __call__(self) -> Choice:
        """The choice."""
        begun = time.perf_counter()
        with closing(self._net.mixer(self._topology)) as plain:
            W = uncompressed(self._made, plain, self._X0.shape[1])
            if wanted(self._solver) == "safe":
                return self._safe(W, begun, self._smoothness())
            if self._net.n > MANY:
                return self._safe(W, begun, self._smoothness(), f"auto needs at most {MANY} agents")
            model = self._linearize()
            ranking = self._race(W, model) if np.isfinite(model.curvature) and model.curvature > 0 else None
            if ranking is None:
                return self._safe(W, begun, self._estimated(model), "no step size converges in the linear model: is the problem "
                                  "convex, and the solver stable on this graph?")
            exact, size = self._exact, ranking.size
            if exact:
                size = self._checked(W, model, size, ranking.steps)
        return Choice(size, "steps" if exact else "error", ranking.sizes, ranking.predicted, self._steps, self._tol,
                      model.curvature, self.gradients, time.perf_counter() - begun)

    def smaller(self, choice: Choice) -> Choice:
        """At most half of a choice with which the run did not converge, checked in the linear model."""
        size = choice.step_size / 2
        if self.model is not None and choice.rule == "steps":
            with closing(self._net.mixer(self._topology)) as plain:
                size = self._checked(uncompressed(self._made, plain, self._X0.shape[1]), self.model, size, 512)
        return replace(choice, step_size=size, note=f"{choice.step_size:.4g} did not converge")

    @property
    def _exact(self) -> bool:
        return bool(self._solver.exact) and not self._noisy and not self._varying

    def _linearize(self) -> LinearModel:
        net, problem, gradient = self._net, self._problem, self._gradient
        x, count = minimizer(net, problem, np.asarray(net.mean(self._X0)))
        batches = None if gradient is None else lambda k: lambda X: gradient(X, k)
        model = linear_model(net, problem.grad, x, self._X0, batches, self._steps)
        self.model, self.gradients = model, count + int(model.gradients)
        return model

    def _race(self, W: Any, model: LinearModel) -> Ranking | None:
        net, solver = self._net, self._solver
        octaves, notches, top = OCTAVES, NOTCHES, TOP
        if solver.uses == "prox":
            octaves, notches, top = 2 * OCTAVES, 2, 64.0
        elif self._varying:
            octaves, top = 10, 16 * TOP
        start, factor = noise(net, model), solver.step_size.factor if self._varying else _one
        highest = int(np.floor(notches * np.log2(top / model.curvature)))
        for attempt in range(3):
            sizes = 2.0 ** (np.arange(highest, highest - octaves * notches - 1, -1) / notches)
            stack = Stack(solver, factor, W, model, MORE * sizes, start)
            if self._exact:
                ranking = fastest(net, stack, model, self._tol)
            else:
                ranking = most_accurate(net, Stack(solver, factor, W, model, sizes, model.start), model, self._steps,
                                        self._noisy, self._varying)
            ranking = replace(ranking, sizes=sizes)
            if ranking.best >= 0 and (attempt == 2 or ranking.best < len(sizes) - 1):
                return ranking
            highest -= octaves * notches
        return ranking if ranking.best >= 0 else None

    def _checked(self, W: Any, model: LinearModel, size: float, steps: int) -> float:
        """`size`, or the next smaller one that is stable together with its neighbours."""
        start = noise(self._net, model)
        for _ in range(12):
            stack = Stack(self._solver, _one, W, model, size * np.array([MORE, 1.0, 1 / MORE]), start)
            if stable(self._net, stack, model, steps).all():
                break
            size *= 2.0 ** (-1 / NOTCHES)
        return size

    def _safe(self, W: Any, begun: float, smoothness: float, note: str = "") -> Choice:
        if note and self._net.rank == 0:
            warnings.warn(f'step_size="auto": {note}; {name_of(self._solver)} runs with the safe step size', RuntimeWarning,
                          stacklevel=5)
        size = safe(self._net, self._solver, W, smoothness)
        empty = np.empty(0)
        return Choice(size, "safe", empty, empty, self._steps, self._tol, smoothness, self.gradients,
                      time.perf_counter() - begun, note)

    def _smoothness(self) -> float:
        """The largest smoothness constant of any agent, as the problem states it."""
        largest, error = 0.0, None
        try:
            largest = float(np.max(self._problem.smoothness, initial=0.0))
        except (AttributeError, ValueError) as caught:
            error = ValueError(f'step_size="safe": {caught}')
        self._net.agree(error)
        return max(self._net.comm.allgather(largest))

    def _estimated(self, model: LinearModel) -> float:
        """The smoothness constant that the problem states, or the largest curvature of an agent in the linear model."""
        try:
            return self._smoothness()
        except ValueError:
            with np.errstate(all="ignore"):
                mine = np.abs(np.nan_to_num(model.H[0])).sum(axis=(1, 2)).max(initial=0.0)
            return max(self._net.comm.allgather(float(mine)))


def _one(k: int) -> float:
    return 1.0
