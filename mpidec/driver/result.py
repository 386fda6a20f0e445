"""Result of `solve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..record.reader import last_values
from .outcome import Outcome
from .stepsize import Choice
from .verdict import verdict


@dataclass(frozen=True, repr=False)
class Result:
    """Result of `solve`.

    Attributes
    ----------
    X : array (m, d)
        The final iterates of the local agents.
    x : array (d,)
        Their average over all agents.
    outcome : Outcome
        "completed" (all steps taken, no target), "stopped" (by `stop`), "missed" (all steps taken,
        but `stop` not reached), "diverged" or "interrupted" (in `Interrupted.result`); compares
        equal to the plain string.
    steps : int
        Steps taken; for a diverged run, the first step after which an iterate (or, at a record, a
        metric) was not finite.
    metrics : dict of arrays
        One entry per record: the counters `step`, `time` (s), `rounds` (mixings), `rows` and
        `bytes` (sent by all agents), `gradients` and `prox` (evaluations of each agent);
        `consensus`; and, if the problem provides them, `gradient_norm`, `objective`, `error`,
        `error_rms` and `error_max`; and those of one's own. See `mpidec.driver.metrics.Metrics`.
    reason : str
        For a diverged run what happened, for a missed target the last value and the likely cause;
        else empty.
    agent : int or None
        For a diverged run the first agent whose iterate was not finite, or the one farthest from
        zero.
    step_size : float, callable or None
        The step size of the run: the number that "auto" or "safe" became, or the schedule starting
        there.
    choice : Choice or None
        The search for it; None if a number was given, or read from the file of a resumed run.
    limit : str
        What of the mixing keeps an exact method from the minimizer, such as "10 % of the messages
        are lost"; else empty.
    unstable : str
        Why the solver may diverge on the schedule with any small step size; else empty.
    """

    X: np.ndarray
    x: np.ndarray
    outcome: Outcome
    steps: int
    metrics: dict[str, np.ndarray]
    reason: str = ""
    agent: int | None = None
    step_size: float | Callable[[int], float] | None = None
    choice: Choice | None = None
    limit: str = ""
    unstable: str = ""

    @property
    def verdict(self) -> str:
        """What has become of the agents' error, as in "error_rms rests at 0.13 since step 600";
        see `mpidec.driver.verdict`.
        """
        return verdict(self.metrics, self.limit)

    def __repr__(self) -> str:
        told = self.reason or (self.verdict if self.outcome is Outcome.COMPLETED else "")
        size = (
            f", step size {self.step_size:.4g}"
            if self.step_size and isinstance(self.step_size, (int, float))
            else ""
        )
        return (
            f"Result({self.outcome} after {self.steps} steps{size}{last_values(self.metrics)}; X "
            f"{self.X.shape}, "
            f"x {self.x.shape}, records: {len(self.metrics.get('step', ()))}"
            f"{f'; {told}' if told else ''})"
        )
