r"""Search for the step size of an asynchronous run: a race of step sizes in the event simulation of
the linear model.

An asynchronous method is a function of its events.  Where the agents' functions are quadratic,

.. math:: \nabla f_i(\hat x + V e) = V (H_i e + g_i), \qquad \textstyle\sum_i g_i = 0,

all of its states are linear in the initial points and in the :math:`g_i`, and events, delays and
losses do not depend on them. So one simulation serves many step sizes: the rows of the agents have
a column for each step size and each coordinate of e, the solver's step size is an array with one
number per column, and its methods are called as in any run.  All step sizes meet the same events,
which cancels most of the chance in their comparison.

1. *The model.*  An estimate of the minimizer, and the curvatures :math:`H_i` there
   (`mpidec.driver.stepsize.linear`), from as few gradients as for synchronous solvers: at most half
   of those of the run, in runs of 60 steps or more.
2. *The events* are those of the run: the rates of gradients and averagings, or the given table; the
   delays; the losses.  Ranks have wall time, on which the choice must not depend: `Events.of_ranks`
   says what stands for it.
3. *The race.*  Of an exact method (`RunningSumTracking` with exact gradients), the rate at which
   the error falls predicts the steps to a relative error `tol` (`stepsize.race.StepsTo`).  Of the
   others, the error after the steps of the run is predicted from a quarter of them, or 128
   (`LeastBiased`), and with schedules from all (`ErrorAfter`).  A race has at most
   `TUNING.most_events` events.  If the best step size is the smallest one, there is a second race
   below it.
4. *The bound.*  Without a model (a problem that is not smooth, too many agents), and where no step
   size converges in it, the step size is `safe` / L, with a warning.

The race runs on rank 0, with the rows of all agents; the choice is the same number on any number of
ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...problems.internals import smoothness_of
from ...protocols import Reductions
from ...solvers import StepSchedule
from ...solvers.internals import PairwiseSolver, PushSolver, with_step_size
from ...topology import Topology
from ..stepsize import Choice, ModelSearch, Task
from ..stepsize.linear import GradientModel, flat
from ..stepsize.race import Criterion, ErrorAfter, LeastBiased, StepsTo, race
from ..stepsize.tuning import TUNING
from .events import Events
from .files import maximum
from .result import LocalAgents

if TYPE_CHECKING:
    from ...problems import Problem


class AsyncStack:
    """An asynchronous solver with several step sizes at once, on the linear model; compare
    `mpidec.driver.stepsize.race.SolverStack`.

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
        model: GradientModel,
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
    task : Task
        Its solver is prepared for the topology.
    solver : PairwiseSolver or PushSolver
        The same.
    topology : Topology
    events : Events
    """

    def __init__(
        self,
        task: Task,
        solver: PairwiseSolver | PushSolver,
        topology: Topology,
        events: Events,
    ):
        super().__init__(task)
        self._solver, self._topology, self._events = solver, topology, events

    _most_agents = TUNING.most_events // TUNING.events_each

    def _found(self) -> Choice | None:
        return self._on_root(self._raced)

    def _safe(self) -> tuple[float, float]:
        size = safe_size(self.task.problem, self._solver, self.task.net)
        return size, self._solver.safe / size

    def _raced(self) -> Choice | None:
        """Return the choice of the race; None if no step size converges."""
        model, task = self._curved(), self.task
        if model is None:
            return None

        def run(sizes: np.ndarray, start: np.ndarray) -> AsyncStack:
            return AsyncStack(self._solver, self._topology, self._events, model, sizes, start)

        octaves, top = TUNING.span_events, TUNING.highest_events
        if task.varying:
            octaves, top = TUNING.span_events_decreasing, TUNING.higher_decreasing * top
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            largest = top / model.curvature
            ranking = race(
                self._criterion(model.n), run, model, largest, octaves, TUNING.per_octave
            )
        if ranking is None:
            return None
        rule = "steps" if task.exact else "error"
        return self._choice(ranking.size, rule, model.curvature, ranking)

    def _criterion(self, n: int) -> Criterion:
        """Return what a race of `n` agents compares."""
        task, steps, most = self.task, max(self.task.steps, 1), max(TUNING.most_events // n, 1)
        if task.exact:
            longest = min(max(steps // 2, 2 * TUNING.least_events), most)
            return StepsTo(
                task.tolerance, longest, enough=TUNING.least_events, margin=self._larger_by
            )
        if task.varying:
            longest = min(steps, most)
            return ErrorAfter(steps, noisy=longest == steps, decreasing=True, longest=longest)
        return LeastBiased(steps, min(max(steps // 4, TUNING.least_events), steps, most))


def safe_size(problem: Problem, solver: PairwiseSolver | PushSolver, net: Reductions) -> float:
    """Return the safe step size, from the largest smoothness constant of any agent, as the problem
    states it; collective.

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
