"""Many runs at once: the rows of all runs, one after the other in each row of a stack, take their
steps together, each with the bits that it has alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._complex import as_reals, double, from_reals
from .._validation import Array
from ..comm.mixing.internals import Kept, Operator, StepOperator
from ..exceptions import RunsError
from ..problems import Stream
from ..problems.internals import by_run
from ..solvers.internals import Asynchronous, name_of
from .answers import Answers, Errors, Evaluate
from .metrics import Metrics, Own, Rows, norm, unit_of

if TYPE_CHECKING:
    from ..problems import Oracle, Problem
    from ..problems.internals import Gradients
    from ..protocols import Reductions, StepSize
    from ..solvers import Solver

# The ends of a band, by the suffix of a metric's name: quantiles of the runs.
BAND = {"low": 0.1, "high": 0.9}


def check_runs(runs: int, solver: Solver) -> None:
    """Refuse several runs at once with a solver whose steps cannot be told apart.

    Raises
    ------
    RunsError

    Examples
    --------
    >>> import mpidec
    >>> check_runs(3, mpidec.solvers.AdaptiveGradientTracking())
    Traceback (most recent call last):
    ...
    mpidec.exceptions.RunsError: runs is 3, but AdaptiveGradientTracking computes with whole rows, ...
    """
    reason = ""
    if isinstance(solver, Asynchronous):
        reason = "is asynchronous: its agents take no steps together"
    elif not solver.columnwise or "value" in solver.needs.functions:
        reason = "computes with whole rows, which are those of all runs"
    elif solver.needs.data:
        reason = "takes samples, which differ between the runs"
    if runs > 1 and reason:
        raise RunsError(
            f"runs is {runs}, but {name_of(solver)} {reason}: expected runs=1, with another seed "
            "for each run"
        )


def mixer_of_runs(
    mixer: Operator[StepOperator], runs: int, solver: Solver, oracle: Oracle | None
) -> Operator[StepOperator]:
    """Return the mixer of the rows of several runs, whose codec and noise act on each of them.

    Raises
    ------
    RunsError
        If the runs would all be the same, or something in the mixer acts on whole rows.
    """
    if runs == 1:
        return mixer
    if not (mixer.draws or (oracle is not None and oracle.draws)):
        what = "no problem" if oracle is None else f"{name_of(oracle.problem)} with exact gradients"
        raise RunsError(
            f"runs is {runs}, but nothing draws random numbers from the seed ({what}, "
            f"{mixer.calls} as mixing), so that all runs would be the same: leave out runs"
        )
    reason = ""
    if len(mixer.at(0).parts) > 1:
        reason = f"the {mixer.topology.name} topology divides whole rows among its graphs"
    elif (mixer.codec is not None or mixer.draws) and (
        solver.needs.positive or solver.needs.exchange
    ):
        reason = (
            f"{name_of(solver)} sends weights or counts with its rows, which {mixer.calls} meets"
        )
    if reason:
        raise RunsError(
            f"runs is {runs}, but {reason}: expected runs=1, with another seed for each run"
        )
    made = mixer.rebuilt(mixer.base, Kept(runs=runs))
    if not made.columnwise:
        raise RunsError(
            f"runs is {runs}, but {mixer.calls} computes with whole rows, which are those of all "
            "runs: expected runs=1, with another seed for each run"
        )
    return made


class AnswersOfRuns(Answers):
    """The functions of the local agents, as solvers ask them for the rows of several runs."""

    def __init__(self, runs: int, oracle: Oracle, gradients: Gradients | None, errors: Errors):
        super().__init__(oracle.problem, oracle.term, gradients, errors)
        self._runs = runs

    def prox(self, V: np.ndarray, t: StepSize) -> np.ndarray:
        if self._term is None:
            return V
        return self._each(super().prox, V, t)

    def argmin(self, V: np.ndarray, t: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        points = self.points + 1
        found = self._each(super().argmin, V, t, start)
        self.points = points
        return found

    def _each(
        self, evaluate: Evaluate, V: np.ndarray, t: object, *start: np.ndarray | None
    ) -> np.ndarray:
        """What `evaluate` makes of the rows of each run, and of those to start from."""
        rows = [by_run(rows, self._runs) for rows in (V, *start) if rows is not None]
        made = [evaluate(v, t, *others) for v, *others in zip(*rows)]
        return np.concatenate(made, axis=1)


class ProblemOfRuns:
    """A problem at points of several runs: those of the local agents, (m, d), one run after the
    other; of a `stream`, which may be complex, all at once.
    """

    def __init__(self, problem: Problem, runs: int, stream: Stream | None, complex_: bool):
        self._problem, self._runs, self._stream, self._complex = problem, runs, stream, complex_

    def value(self, X: Array) -> Array:
        if self._stream is not None:
            return np.ravel(self._held_out(self._stream, X)[0].T)
        each = [self._problem.value(x) for x in np.split(X, self._runs)]
        return np.concatenate(each)

    def grad(self, X: Array) -> Array:
        if self._stream is not None:
            G = np.ascontiguousarray(self._held_out(self._stream, X)[1].transpose(2, 0, 1))
            return as_reals(G.reshape(len(X), -1))
        each = [self._problem.grad(x) for x in np.split(X, self._runs)]
        return np.concatenate(each)

    def _held_out(self, stream: Stream, X: Array) -> tuple[Array, Array]:
        Z = from_reals(X) if self._complex else X
        return stream.held_out(Z.reshape(self._runs, -1, stream.d).transpose(1, 2, 0))


class MetricsOfRuns(Metrics):
    r"""Metrics of several runs: their mean, and a band from their 10 % to their 90 % quantile.

    The mean of norms (consensus, errors, gradient norm) is the root of their mean square, as that
    over the agents is, :math:`\sqrt{\tfrac{1}{R} \sum_r e_r^2}`; of all other metrics it is
    :math:`\tfrac{1}{R} \sum_r e_r`.  `bytes` are the R-th part of all: weights (push-sum, FROST)
    and counts (RelaySGD) are those of all runs, and are sent once.

    Parameters
    ----------
    runs : int
    net, problem, own, like
        As for `Metrics`.

    Attributes
    ----------
    names : tuple of str
        Also ``NAME_low`` and ``NAME_high`` of each metric that is no counter.
    """

    def __init__(
        self,
        runs: int,
        net: Reductions,
        problem: Problem | None,
        own: Mapping[str, Own],
        like: Array,
    ) -> None:
        super().__init__(net, problem, own, like)
        whole = isinstance(problem, Stream) and problem.term is None
        self._runs, self._stream = runs, cast("Stream", problem) if whole else None
        measured = [metric.name for metric in self._metrics]
        bands = {f"{name}_{end}": name for name in measured for end in BAND}
        for band in bands.keys() & {*self.names}:
            raise ValueError(
                f"metrics: {band} is the name of a quantile of {bands[band]}, of several runs: "
                "expected another name"
            )
        self.names += tuple(bands)

    def __call__(self, X: np.ndarray, rows: int = 0, sent: int = 0) -> dict[str, float]:
        X, runs = double(as_reals(X)), self._runs
        means = self._net.mean(X).reshape(runs, -1)
        each = X.reshape(len(X), *means.shape).swapaxes(0, 1)
        all_rows = np.ascontiguousarray(each).reshape(-1, means.shape[1])
        all_means, units = (
            np.repeat(of_run, len(X), axis=0)
            for of_run in (means, np.array([[unit_of(mean)] for mean in means]))
        )
        problem: Any = self._problem and ProblemOfRuns(
            self._problem, runs, self._stream, self.complex
        )
        own = self._minimizer.targets
        targets = None if own is None else np.tile(own, (runs, 1))
        terms = self.summed(Rows(all_rows, all_means, problem, targets, units), rows, sent)
        terms = terms.reshape(runs, len(X), -1).swapaxes(0, 1).reshape(len(X), -1)
        records, sizes, failed = [], [], False
        totals = self._net.sum(np.ascontiguousarray(terms)).reshape(runs, -1)
        for mean, total, worst in zip(means, totals, self.worst(each)):
            records.append(self.of(mean, total, worst))
            sizes.append(self.size)
            failed |= self.failed
        self.size, self.failed = max(sizes), failed
        return self._together(records)

    def of_agents(self, name: str, function: Own, X: np.ndarray) -> np.ndarray:
        each = np.split(X, self._runs)
        return np.concatenate(
            [super(MetricsOfRuns, self).of_agents(name, function, x) for x in each]
        )

    def _together(self, records: list[dict[str, float]]) -> dict[str, float]:
        """The mean of the records of all runs, and the bands."""
        names = [metric.name for metric in self._metrics]
        table = np.array([[record[name] for name in names] for record in records])
        found = {"rows": records[0]["rows"], "bytes": records[0]["bytes"] // self._runs}
        for metric, values in zip(self._metrics, table.T):
            root = norm(values) / np.sqrt(self._runs)
            found[metric.name] = float(values.mean() if metric.signed else root)
        ends = np.quantile(table, [*BAND.values()], axis=0, method="inverted_cdf")
        for end, values in zip(BAND, ends.tolist()):
            found |= {f"{name}_{end}": value for name, value in zip(names, values)}
        return found

    def diverged_agent(self, X: np.ndarray) -> int:
        return Metrics(self._net, None).diverged_agent(X)
