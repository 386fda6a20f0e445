"""Likely causes of missed targets, from measurements of the run and from declared properties of the
solver, mixer and oracle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..problems.internals import is_sampled, moves, x_star_of
from ..protocols import Reductions
from ..solvers import Bias, Solver
from ..solvers.internals import is_asynchronous, is_sample, name_of, step_size_of
from .metrics import BUILT_IN, ERRORS, Metrics
from .verdict import STILL, UNMOVED, falling, limit_of, plateau_since, unbounded

if TYPE_CHECKING:
    from ..problems import Oracle, Problem
    from ..topology import Schedule, Topology

# Ratio of column norms that slows a run down.
_COLUMNS = 30.0
# Units of roundoff, of the largest gradient and of the rows, that are rounding.
_ROUNDING = 64.0
# Relative error below which its limit is rounding.
_ACCURATE = {"float32": 1e-4, "float64": 1e-10}
_WRONG = 0.01  # of the largest gradient of the run, at an x_star that is no minimizer
# Relative change of an objective on a plateau.
_STILL = 1e-9
# largest factor between the rates of two quarters of a run; 1.17 if errors fall as a power of k
_STEADY = 1.1
# Factor of the steps taken up to which those missing are told.
_SLOW = 10
# Agents up to which the spectral gap is computed for a message.
_LARGE = 500
_EXACT = {
    "doubly": "gradient_tracking",
    "column": "push_diging",
    "row": "frost",
    "pair": "push_pull",
}


@dataclass(frozen=True)
class Diagnosis:
    """A run that has missed its target `metrics[name] <= limit`, and what is known of it.

    Parameters
    ----------
    oracle : oracle, problem or None
        What gives the gradients.
    metrics : dict of arrays
        All records of the run.
    X : array (m, d)
        The last iterates of the local agents.
    limits : str
        Why the mixer limits the accuracy, if it does.
    unstable : str
        Why the solver may diverge on the schedule with any small step size, if it may.
    searched : bool
        Whether the step size was left to the program.
    """

    net: Reductions
    problem: Problem | None
    topology: Topology | Schedule
    solver: Solver
    oracle: Oracle | None
    metrics: Mapping[str, np.ndarray]
    name: str
    limit: float
    X: np.ndarray
    limits: str = ""
    unstable: str = ""
    searched: bool = False

    # -- what was measured -------------------------------------------------------------------------

    @property
    def values(self) -> np.ndarray:
        """The metric of the target."""
        return self.metrics[self.name]

    @property
    def last(self) -> float:
        """Its last value."""
        return float(self.values[-1])

    @cached_property
    def since(self) -> int | None:
        """The step at which a plateau of at least a quarter of the run began; None if none did."""
        values, steps = self.values, self.metrics["step"]
        if self.name != "objective":
            record = plateau_since(values, steps)
            return None if record is None else int(steps[record])
        near = np.abs(values - values[-1]) <= _STILL * abs(values[-1])  # its limit is no zero
        record = int(np.flatnonzero(~np.append(False, near))[-1])
        return int(steps[record]) if len(values) - record > max(len(values) // 4, 2) else None

    @cached_property
    def falls(self) -> bool:
        """Whether it has fallen in the last quarter of the run."""
        calm = self.name == "objective" and not self.random
        return self.since is None and falling(self.values, _STILL if calm else STILL)

    @property
    def level(self) -> float:
        """The extrapolated limit of its fall, if two extrapolations agree; else 0."""
        levels = [
            limit_of(self.values[: len(self.values) - j * len(self.values) // 8]) for j in (0, 1)
        ]
        calm = self.falls and self.name != "objective" and max(levels) < 1.5 * min(levels)
        return levels[0] if calm else 0.0

    def moved(self, name: str) -> bool:
        """Return whether a metric has changed by 1 % in the run."""
        values = self.metrics[name]
        return bool(np.ptp(values) > UNMOVED * abs(values[0]))

    @property
    def roundoff(self) -> float:
        """Relative size of rounding errors."""
        return _ROUNDING * float(np.finfo(self.X.dtype).eps)

    @property
    def vanished(self) -> bool:
        """Whether the gradient at the mean of the agents is zero up to rounding."""
        gradient = self.metrics["gradient_norm"]
        return bool(gradient[-1] <= self.roundoff * gradient.max())

    @property
    def agreed(self) -> bool:
        """Whether the agents agree up to rounding; collective."""
        size = math.sqrt(self.net.sum((self.X * self.X).sum(axis=1, keepdims=True))[0] / self.net.n)
        return bool(self.metrics["consensus"][-1] <= self.roundoff * size)

    @cached_property
    def alike(self) -> bool:
        """Whether all agents have the same gradient at their mean, up to rounding; collective."""
        if self.problem is None:
            return True
        G = self.problem.grad(np.tile(self.net.mean(self.X), (self.net.m, 1)))
        apart = ((G - self.net.mean(G)) ** 2).sum(axis=1, keepdims=True)
        scale = float(self.metrics["gradient_norm"].max())
        return math.sqrt(self.net.sum(apart)[0] / self.net.n) <= self.roundoff * scale

    # -- what the parts of the run state of themselves ---------------------------------------------

    @property
    def random(self) -> bool:
        """Whether the gradients are random, also at the minimizer."""
        return self.oracle is not None and self.oracle.random

    @property
    def smooth(self) -> bool:
        """Whether there are gradients, not subgradients."""
        return self.oracle is None or self.oracle.smooth

    @property
    def step_size(self) -> float | None:
        """The step size, if there is one, and it is constant."""
        size = step_size_of(self.solver)
        return float(size) if isinstance(size, (int, float)) else None

    @property
    def than(self) -> str:
        """The step size as text, for advice such as "smaller than 0.1"."""
        return "" if self.step_size is None else f" than {self.step_size:.3g}"

    @property
    def larger(self) -> str:
        """The advice on the step size of a run that is too slow."""
        return "" if self.searched else ', or step_size="auto"'

    @property
    def exact(self) -> str:
        """An exact method for the gradients and the topology of the run."""
        if is_asynchronous(self.solver):
            return "RunningSumTracking"
        if not self.smooth:
            return "proximal_gradient_tracking"
        return "scaffold" if is_sample(self.topology) else _EXACT[self.topology.kind]

    @cached_property
    def bias(self) -> str:
        """The declared bias of the solver, with a remedy; empty if it has none."""
        bias = self.solver.bias_on(self.topology)
        if bias is Bias.NONE or self.step_size is None or self.alike:
            return ""
        smaller = f", or a step size smaller{self.than}" if bias is Bias.STEP else ""
        return (
            f"{name_of(self.solver)} is a method with a bias, a distance from the minimizer with a "
            "constant step size, and "
            f"{bias.value}: use an exact method, such as {self.exact}{smaller}"
        )

    # -- the causes --------------------------------------------------------------------------------

    def cause(self) -> str:
        """Return the likely cause, with a remedy, or "" where nothing is known; collective."""
        if len(self.values) < 2 or self.name not in BUILT_IN:
            return ""
        if not self.solver.needs.problem or self.problem is None:
            return self._of_averaging()
        return (
            self._of_rounding()
            or self._of_x_star()
            or self._of_small_steps()
            or self._of_growth()
            or (self._at_plateau() if self.since is not None else self._on_the_way())
        )

    def _of_rounding(self) -> str:
        """Return the cause where the agents have met at a stationary point."""
        if not (self.vanished and self.agreed):
            return ""
        gradient, dtype = self.metrics["gradient_norm"], self.X.dtype.name
        there = f"the gradient is zero up to rounding ({gradient[-1]:.2g}, at most {gradient.max():.2g} before)"
        if self.name in ERRORS and self.last > _ACCURATE[dtype]:
            return self._of_x_star() or (
                f"{there}, as at x_star: there are several stationary points, or the function is "
                "flat between them"
            )
        if self.name == "objective":
            return f"{there}: the target lies below the objective at this stationary point"
        precise = "give float64 data, or " if dtype == "float32" else ""
        return (
            f"{self.name} is at the accuracy of {dtype}, and {there}: {precise}take a larger target"
        )

    def _of_x_star(self) -> str:
        """Return the cause where the gradient tells that x_star is no minimizer, or a less accurate
        one than the end of the run.
        """
        x_star = x_star_of(self.problem)
        inexact = moves(self.problem) or is_sampled(self.problem)
        if self.name not in ERRORS or x_star is None or self.problem is None or inexact:
            return ""
        at = np.tile(x_star, (self.net.m, 1))
        there = Metrics(self.net, self.problem)(at)["gradient_norm"]
        gradient = self.metrics["gradient_norm"]
        closer = there > max(3 * gradient[-1], self.roundoff * gradient.max()) and not self.falls
        if not closer and not there > _WRONG * gradient.max():
            return ""
        return (
            f"x_star is not where the gradient vanishes: gradient_norm is {there:.2g} there, and "
            f"{gradient[-1]:.2g} at the mean of "
            "the agents: give the minimizer as x_star, or stop at gradient_norm"
        )

    def _of_small_steps(self) -> str:
        """Return the cause where neither the metric nor the gradient has changed."""
        shown = list(dict.fromkeys((self.name, "gradient_norm")))
        if any(self.moved(name) for name in shown):
            return ""
        told = " and ".join(f"{name} {self.metrics[name][-1]:.3g}" for name in shown)
        if fallen := unbounded(self.metrics):
            return fallen
        if self.limits:
            return f"{told} as at the start; {self.limits}"
        larger = (
            "" if self.step_size is None or self.searched else f", or a step size larger{self.than}"
        )
        return f"{told} as at the start: take more steps{larger}, or begin elsewhere (x0)"

    def _of_growth(self) -> str:
        """Return the cause where the objective has grown, and not from the neighbourhood of the
        minimizer to the agents' stationary state.
        """
        first, last = (float(self.metrics["objective"][j]) for j in (0, -1))
        if self.since is not None or not last > first + 1e-9 * abs(first):
            return ""
        why = self.unstable or self.limits or f"use a step size smaller{self.than}"
        return f"the objective grew from {first:.3g} to {last:.3g}: {why}"

    def _at_plateau(self) -> str:
        """Return the cause where the metric has plateaued."""
        level = f"{self.name} has plateaued at {self.last:.2g}"
        if self.limits:
            return self.limits
        if self.unstable:
            return f"{level}: {self.unstable}"
        if self.bias and self.solver.bias_on(self.topology) is Bias.OTHER:
            return f"{level}: {self.bias}"
        if self.random:
            return (
                f"{level}, and the gradients are random: use a step size smaller{self.than}, or "
                "gradients of less noise, such as "
                "those of larger batches"
            )
        if not self.smooth:
            return f"{level}; {self._of_subgradients()}"
        if scales := self._scales():
            return scales + (f"; {self.bias}" if self.bias else "")
        if self.bias:
            return f"{level}: {self.bias}"
        gradient = self.metrics["gradient_norm"][-1]
        if self.oracle is not None and self.oracle.batches is not None and not self.vanished:
            return (
                f"{level}, where gradient_norm is {gradient:.2g}: the gradients of "
                f"{name_of(self.oracle.layers()[0])} do not lead closer: take "
                "exact ones more often (period), larger batches, or the problem itself"
            )
        return f"{level} since step {self.since}, where gradient_norm is {gradient:.2g}"

    def _on_the_way(self) -> str:
        """Return the cause where the metric has not plateaued."""
        falls = "it still falls" if self.falls else ""
        joined = "; " * bool(falls)
        if told := self.limits or self.unstable:
            return falls + joined + told
        if self.random:
            more = "take more steps, or " if falls else "use "
            return (
                f"{falls}{joined}the gradients are random, which keeps {self.name} above a level "
                "that depends on the step size: "
                f"{more}a step size smaller{self.than}, or larger batches"
            )
        if not self.smooth:
            return falls + joined + self._of_subgradients()
        if scales := self._scales():
            return scales + (f"; {self.bias}" if self.bias else "")
        if self.bias:
            near = f", by extrapolation to {self.level:.2g}" if self.level > self.limit else ""
            return f"{falls}{near}{joined}{self.bias}"
        if self.step_size is None or not falls:
            return falls
        if self.name == "objective":
            return f"it still falls, at a gradient_norm of {self.metrics['gradient_norm'][-1]:.2g}"
        return self._of_few_edges() or self._more_steps(f"take more steps{self.larger}")

    def _of_subgradients(self) -> str:
        """Return the cause where the solver takes subgradients."""
        proximal = "a solver that takes proximal steps, such as nids, pg_extra or proximal_gradient_tracking"
        if self.step_size is None:
            return f"the problem is not smooth: use {proximal}"
        return (
            "the problem is not smooth, and subgradient steps of a constant size lead to a "
            "distance from the minimizer that "
            f"shrinks with the step size: use {proximal}, or a step size smaller{self.than} or "
            "decreasing (inverse_sqrt(auto))"
        )

    def _of_few_edges(self) -> str:
        """Return the cause where the agents disagree more than their mean is wrong."""
        metrics, graph = self.metrics, self.topology
        if (
            "error" not in metrics
            or not metrics["error_rms"][-1] > 3 * metrics["error"][-1]
            or graph.period != 1
            or graph.kind != "doubly"
            or self.net.n > _LARGE
        ):
            return ""
        gap = graph.at(0).spectral_gap()
        if gap > 0.5:
            return ""
        return (
            "it still falls, and most of the error is that the agents disagree (consensus "
            f"{metrics['consensus'][-1]:.3g}; "
            f"{graph.name} has a spectral gap of {gap:.3g}): use a graph with more edges, such as "
            f"exponential{self._gossip}"
        )

    @property
    def _gossip(self) -> str:
        plain = not is_asynchronous(self.solver) and not self.solver.needs.exchange
        return ", or mixing.accelerate=3" * plain

    def _more_steps(self, advice: str) -> str:
        """Return how many steps are missing at the rate of the last half of the run."""
        values, steps, last, limit = self.values, self.metrics["step"], self.last, self.limit
        end, middle = len(values) - 1, (len(values) - 1) // 2
        quarter = (middle + end) // 2
        if not values[middle] > last > limit > 0 or values[quarter] <= 0:
            return f"it still falls: {advice}"
        whole, first = (
            math.log(values[middle] / values[j]) / max(steps[j] - steps[middle], 1)
            for j in (end, quarter)
        )
        more = math.log(last / limit) / whole
        steady = quarter == middle or whole / _STEADY < first < whole * _STEADY
        if not steady or more > _SLOW * steps[-1]:
            return (
                f"it has fallen from {values[middle]:.3g} to {last:.3g} in the last half of the "
                f"run: {advice}"
            )
        return f"it still falls, and needs about {_rounded(more)} more steps at this rate: {advice}"

    def _of_averaging(self) -> str:
        """Return the cause of a target missed by averaging, which has no step size and no
        minimizer.
        """
        name = self.name
        if name != "consensus":
            return (
                "the solver averages the rows of x0, and moves to their average whatever its "
                f"{name}: stop at consensus, or use a "
                "solver that takes gradients, such as gradient_tracking"
            )
        dtype = self.X.dtype.name
        if self.agreed and not self.falls:
            return f"{name} is at the accuracy of {dtype}, the dtype of x0: take a larger target"
        if self.limits:
            return ("it still falls; " if self.falls else "") + self.limits
        if not self.falls:
            return (
                f"{name} has stopped falling: faults of mixings and codecs without error "
                "feedback leave it there, and so does a "
                "periodic W, such as that of a bipartite graph without weights of the agents' own"
            )
        return self._more_steps(
            f"take more steps, or a graph with more edges, such as exponential{self._gossip}"
        )

    def _scales(self) -> str:
        """Return what is wrong with the columns of the data, or ""; collective."""
        columns = spread(self.net, self.problem)
        if columns is None or not columns[0] > _COLUMNS:
            return ""
        ratio, largest, smallest = columns
        return (
            f"the columns of the data differ in size by a factor of {ratio:.2g} (column {largest} "
            "the largest, column "
            f"{smallest} the smallest, counted from 0): standardize them (problem.standardize=true)"
        )


def spread(net: Reductions, problem: Problem | None) -> tuple[float, int, int] | None:
    """Ratio of the largest to the smallest norm of the data's columns, and the two columns; None
    without data; collective.
    """
    A = getattr(problem, "A", None)
    if not (hasattr(problem, "features") and isinstance(A, np.ndarray) and A.ndim == 3):
        return None
    norms = np.sqrt(net.sum((A * A).sum(axis=1)))
    used = np.flatnonzero(norms > 0)
    if not len(used):
        return None
    largest, smallest = used[np.argmax(norms[used])], used[np.argmin(norms[used])]
    return float(norms[largest] / norms[smallest]), int(largest), int(smallest)


def _rounded(number: float) -> str:
    digits = max(len(str(int(number))) - 2, 0)
    return f"{round(number / 10**digits) * 10**digits:,}"
