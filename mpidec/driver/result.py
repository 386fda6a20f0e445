"""Result of `solve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._predictions import Predicting, scored
from ..record.internals import last_values
from .outcome import Outcome
from .stepsize import Choice
from .verdict import verdict


class Fitted:
    """The predictions of a result: those of the average `x`."""

    x: np.ndarray
    problem: object

    def predict(self, A: ArrayLike) -> NDArray[Any]:
        """Return what the average `x` predicts for samples as they were given to the problem,
        (N, features) -> (N,): targets, or labels.

        Raises
        ------
        TypeError, ValueError
            If the problem is no model, or the samples have other features.

        Examples
        --------
        >>> import mpidec
        >>> data = ([[0.0], [1.0], [3.0]], ["ill", "ill", "well"])
        >>> problem = mpidec.problems.load_problem(data, n=3, intercept=True, l2=0.01)
        >>> result = mpidec.solve(problem, "extra", "ring", steps=300)
        >>> result.predict([[0.5], [2.5]]).tolist(), result.score(*data)
        (['ill', 'well'], 1.0)
        """
        return self._model.predict(self.x, A)

    def score(self, A: ArrayLike | None = None, y: ArrayLike | None = None) -> float:
        """Return the accuracy of the predictions for samples with labels `y`, (N,), or their R^2
        for other targets, as in scikit-learn; without arguments for the samples held out (`test` of
        `load_problem`).

        Raises
        ------
        TypeError, ValueError
            As `predict`, if there is not one target per sample, if one of both is missing, or if no
            samples were held out.
        """
        return scored(self._model, getattr(self._model, "held_out", None), self.x, A, y)

    @property
    def _model(self) -> Predicting:
        if not isinstance(self.problem, Predicting):
            raise TypeError(
                f"problem {type(self.problem).__name__} has no predict(x, A) and score(x, A, y), "
                "expected a problem such as those of problems.load_problem"
            )
        if np.ndim(self.x) > 1:
            raise ValueError(
                f"the result is that of {len(self.x)} runs, expected that of one: "
                "problem.predict(result.x[0], A)"
            )
        return self.problem


@dataclass(frozen=True, repr=False)
class Result(Fitted):
    """Result of `solve`.

    Attributes
    ----------
    X : array (m, d)
        The final iterates of the local agents; of several runs (m, runs, d).
    x : array (d,)
        Their average over all agents; of several runs (runs, d).
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
        `error_rms` and `error_max`; and user-defined ones. See `mpidec.driver.metrics.Metrics`.
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
        The search for it, of a resumed run that in its file; None if a number was given, or the
        file has none.
    limit : str
        What of the mixing keeps an exact method from the minimizer, such as "10 % of the messages
        are lost"; else empty.
    unstable : str
        Why the solver may diverge on the schedule with any small step size; else empty.
    problem : problem or None
        That of the local agents.
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
    problem: object = None

    def activity_arrays(self) -> dict[str, np.ndarray]:
        """Return what `Run.asynchronous` holds of the run; empty for synchronous steps."""
        return {}

    @property
    def verdict(self) -> str:
        """How the agents' error developed, as in "error_rms has plateaued at 0.13 since step 600";
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
            f"{type(self).__name__}({self.outcome} after {self.steps} "
            f"steps{size}{last_values(self.metrics)}; X {self.X.shape}, "
            f"x {self.x.shape}, records: {len(self.metrics.get('step', ()))}"
            f"{f'; {told}' if told else ''})"
        )
