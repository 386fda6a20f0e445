"""The result of a search for a step size, and the words "auto" and "safe" that request one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...solvers import Solver, StepSchedule
from ...solvers.internals import WORDS, start_of, with_step_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AnySolver = TypeVar("AnySolver", bound=Solver)


@dataclass(frozen=True)
class Choice:
    """Step size that a search has chosen; `print(choice)` shows the table of those it tried.

    Attributes
    ----------
    step_size : float
        The choice; the start value, if the step size is a schedule.
    rule : {"steps", "error", "safe"}
        What was compared: predicted steps to a relative error of `tol`; predicted relative error
        after `steps` steps; or nothing, `step_size` being the safe bound.
    tried : array
        The step sizes of the race, from the largest to the smallest; empty for "safe".
    predicted : array
        Predicted steps or errors of these; inf for a step size with which the method does not
        converge.  The numbers of those that dropped out early (`early`) are those of their last
        comparison, and no predictions.
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
    early : array of bool
        Which step sizes dropped out of the race early, being clearly slower than others in it.
    weights : str
        The weights that the search has chosen of a graph with `weights="auto"`; empty for other
        graphs.
    limit : str
        Why an exact method does not reach the minimizer, such as "10 % of the messages are lost";
        empty if it does.
    futile : bool
        Whether the method makes no progress with the codec of the run, with any step size: it is
        not begun again with smaller ones.
    failed : int
        How many larger step sizes the run has tried before, with which it did not converge.
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
    early: np.ndarray = field(default_factory=lambda: np.empty(0, bool), repr=False)
    weights: str = ""
    limit: str = ""
    futile: bool = False
    failed: int = 0

    @property
    def expected(self) -> float:
        """The predicted steps or error of the choice; inf if there is no prediction."""
        near = np.flatnonzero(
            np.isclose(self.tried, self.step_size, rtol=1e-9, atol=0) & ~self._dropped
        )
        return float(self.predicted[near[0]]) if len(near) else np.inf

    def halfway(self, steps: int) -> int:
        """Return the step of a run of `steps` steps after which half of the way should be made; 0
        if none is known.
        """
        middle = self.expected / 2
        return max(32, int(middle)) if self.rule == "steps" and middle <= steps else 0

    @property
    def _dropped(self) -> np.ndarray:
        return np.asarray(self.early & np.isfinite(self.predicted))

    @property
    def _quantity(self) -> str:
        if self.rule == "steps":
            return f"steps to error {self.tol:.0e}"
        return f"error after {self.steps} steps"

    def line(self) -> str:
        """Return the choice as one line: `0.0403 (auto: error 1e-06 expected in 372 steps; 31
        gradients, 0.12 s)`.
        """
        if self.rule == "safe":
            return f"{self.step_size:.4g} (safe bound)" + (f"; {self.note}" if self.note else "")
        if self.rule == "steps":
            what = (
                f"error {self.tol:.0e} expected in {self.expected:.0f} steps"
                if np.isfinite(self.expected)
                else "no prediction"
            )
            if np.isfinite(self.expected) and self.expected > self.steps:
                what += f", more than the {self.steps} of the run"
        elif np.isfinite(self.expected):
            what = f"error {self.expected:.2g} expected after {self.steps} steps"
            what += f", as {self.limit}" if self.limit else ""
        else:
            what = "no prediction"
        return (
            f"{self.step_size:.4g} (auto: {what}; search: {self.gradients} gradients, "
            f"{self.seconds:.2g} s)"
            + (f"; weights {self.weights}" if self.weights else "")
            + (f"; {self.note}" if self.note else "")
        )

    def __str__(self) -> str:
        rows = [f"{'step size':>12}  predicted {self._quantity}"] if len(self.tried) else []
        for a, value, early in zip(self.tried, self.predicted, self.early):
            shown = (
                "does not converge"
                if not np.isfinite(value)
                else "dropped out: clearly slower"
                if early
                else f"{value:.0f}"
                if self.rule == "steps"
                else f"{value:.3g}"
            )
            rows.append(
                f"{a:12.5g}  {shown}"
                + ("  <- chosen" if np.isclose(a, self.step_size, rtol=1e-9, atol=0) else "")
            )
        return "\n".join([*rows, f"step size {self.line()}"])

    def plot(self) -> Figure:
        """Return a matplotlib figure of the predictions against the step sizes;
        `choice.plot().savefig("tune.png")` writes it.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.8, 3.2), layout="constrained")
        panel = figure.subplots()
        sizes, predicted = self.tried, self.predicted
        finite, early = np.isfinite(predicted), self._dropped
        raced = finite & ~early
        panel.loglog(
            sizes[raced],
            predicted[raced],
            "o-",
            color="#0072B2",
            linewidth=1,
            markersize=4,
        )
        # On the axis: they have no prediction.
        if early.any():
            panel.plot(
                sizes[early],
                np.zeros(early.sum()),
                "x",
                color="#0072B2",
                markersize=5,
                clip_on=False,
                transform=panel.get_xaxis_transform(),
                label="dropped out",
            )
        for k, a in enumerate(sizes[~finite]):
            panel.axvline(
                a,
                color="0.85",
                linewidth=1,
                zorder=0,
                label="does not converge" if k == 0 else None,
            )
        panel.axvline(
            self.step_size,
            color="#D55E00",
            linestyle="--",
            linewidth=1,
            label=f"chosen: {self.step_size:.3g}",
        )
        panel.set_xlabel("step size")
        panel.set_ylabel(f"predicted {self._quantity}")
        panel.spines[["top", "right"]].set_visible(False)
        figure.legend(
            loc="outside upper center", ncols=3, frameon=False, fontsize=9, columnspacing=1.2
        )
        return figure


def requested_rule(solver: Solver) -> str | None:
    """Return the word "auto" or "safe" in the step size of a solver, or in the start of its
    schedule; None for a number.
    """
    word = start_of(solver)
    return word if isinstance(word, str) and word in WORDS else None


def with_size(solver: AnySolver, size: float) -> AnySolver:
    """Return the solver with the chosen step size, or with its schedule starting there."""
    step = solver.step_size
    size_or_schedule = step.starting_at(size) if isinstance(step, StepSchedule) else size
    changed: AnySolver = with_step_size(solver, size_or_schedule)
    return changed
