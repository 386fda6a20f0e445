"""Metrics of an iterate: consensus, objective, gradient norm and errors; bit-identical on any
number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import frexp, ldexp, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike

from .._complex import as_reals, double, is_complex
from .._validation import takes
from .._words import ByName
from ..comm.runtime import on_all_ranks
from ..problems.internals import is_sampled, metrics_of, moves, seen, targets_of, term_of, x_star_of
from ..protocols import Reductions
from ..record.internals import COUNTERS as WHOLE
from ..solvers import Solver
from ..solvers.internals import Asynchronous

if TYPE_CHECKING:
    from ..problems import Problem, Term

COUNTERS = ("step", "time", "rounds", "rows", "bytes", "gradients", "prox")
ASYNCHRONOUS = ("step", "time", "events", "gradients", "messages", "bytes")
# Of the messages, the part that was sent by a mixer that leaves some out.
SHARE = "share_sent"
# They only grow: a limit on them is a budget, not a target.
GROWING = frozenset(COUNTERS + ASYNCHRONOUS)
# Numbers up to it have squares, and sums of many.
HUGE = 2.0**500
# f(X, agents, k), one number per local agent.
Own = Callable[[np.ndarray, range, int], ArrayLike]
NONE: Mapping[str, Own] = MappingProxyType({})


class Known(Enum):
    """What must be known for a metric: the rows alone, a problem, or its minimizer too."""

    ROWS = 0
    PROBLEM = 1
    MINIMIZER = 2


class Rows:
    """The rows of the local agents at a record: what terms are made from.

    Attributes
    ----------
    X : array (m, d)
        Those of the local agents.
    means : array (m, d)
        The mean of all agents, once for each local agent.
    unit : float or array (m, 1)
        1, or of huge means a power of two, by which deviations are divided.
    problem : Problem
        Of metrics that need one.
    targets : array (m, d) or None
        The minimizers of the local agents' own functions.
    """

    __slots__ = ("X", "means", "problem", "targets", "unit")

    def __init__(
        self,
        X: np.ndarray,
        mean: np.ndarray,
        problem: Problem,
        targets: np.ndarray | None,
        unit: float | np.ndarray,
    ) -> None:
        self.X, self.problem, self.targets, self.unit = X, problem, targets, unit
        self.means = np.empty_like(X)
        self.means[:] = mean


@dataclass(frozen=True, eq=False)
class Summand:
    """A number of each agent, or a vector as long as its row, that is summed over all agents.

    Parameters
    ----------
    of : callable
        ``of(rows: Rows)``, shape (m,), or (m, d) of a `vector`.
    vector : bool
    """

    of: Callable[[Rows], np.ndarray]
    vector: bool = False


class Totals:
    """What metrics are made of: the mean of the rows, and sums of terms over all n agents.

    Attributes
    ----------
    mean : array (d,)
    sums : mapping
        Of each term over all agents: a number, or a vector.
    n : int
    unit : float
        1, or of huge means a power of two, by which deviations are divided.
    x_star : array (d,) or None
        The minimizer; where each agent has its own, their mean.
    scale, worst : float
        The norm of the minimizer (of the agents' own, the root mean square), and the largest
        distance of an agent from it.
    away, by : float
        The distance of the mean from the minimizer is `away` times `by`, a power of two.
    prox : Summand or None
        The term of the problem.
    """

    def __init__(
        self,
        mean: np.ndarray,
        sums: Mapping[Summand, np.ndarray],
        n: int,
        minimizer: tuple[np.ndarray | None, float, float],
        prox: Term | None,
    ) -> None:
        self.mean, self.sums, self.n, self.prox = mean, sums, n, prox
        self.x_star, self.scale, self.worst = minimizer
        self.unit = self.by = unit_of(mean)
        self.away = 0.0
        if self.x_star is not None:
            gap = mean - self.x_star
            self.by = max(self.unit, unit_of(gap))
            self.away = sqrt((gap / self.by) @ (gap / self.by))


@dataclass(frozen=True, eq=False)
class Metric:
    r"""A metric of the rows of all agents: what it sums, and what it makes of the sums.

    Parameters
    ----------
    name : str
        In records, files and targets.
    needs : Known
    terms : tuple of Summand
        What is summed over all agents.
    of : callable
        ``of(totals: Totals) -> float``.
    signed : bool
        Whether it may be negative.

    Examples
    --------
    >>> METRICS["objective"].needs
    <Known.PROBLEM: 1>
    """

    name: str
    needs: Known
    terms: tuple[Summand, ...]
    of: Callable[[Totals], float]
    signed: bool = False


def _squares(rows: Rows) -> np.ndarray:
    squares: np.ndarray = (((rows.X - rows.means) / rows.unit) ** 2).sum(axis=1)
    return squares


def _consensus(totals: Totals) -> float:
    return sqrt(totals.sums[SPREAD] / totals.n) * totals.unit


def _gradient_norm(totals: Totals) -> float:
    """The norm of the gradient at the mean, or of the proximal gradient mapping."""
    mean, total, prox = totals.mean, totals.sums[GRADIENT], totals.prox
    if prox is None or not np.isfinite(mean - total).all():
        return norm(total) / totals.n
    return norm(mean - prox.prox((mean - total / totals.n)[None], 1.0)[0])


def _error(totals: Totals) -> float:
    return totals.away * totals.by / totals.scale


def _error_rms(totals: Totals) -> float:
    spread = totals.sums[SPREAD] / totals.n * (totals.unit / totals.by) ** 2
    return sqrt(spread + totals.away * totals.away) * totals.by / totals.scale


def _own_error_rms(totals: Totals) -> float:
    return sqrt(totals.sums[AWAY] / totals.n) * totals.unit / totals.scale


SPREAD = Summand(_squares)
AWAY = Summand(lambda rows: (((rows.X - rows.targets) / rows.unit) ** 2).sum(axis=1))
VALUE = Summand(lambda rows: rows.problem.value(rows.means))
GRADIENT = Summand(lambda rows: rows.problem.grad(rows.means), vector=True)
METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "consensus",
            Known.ROWS,
            (SPREAD,),
            _consensus,
        ),
        Metric(
            "objective",
            Known.PROBLEM,
            (VALUE,),
            lambda totals: float(totals.sums[VALUE] / totals.n),
            signed=True,
        ),
        Metric(
            "gradient_norm",
            Known.PROBLEM,
            (GRADIENT,),
            _gradient_norm,
        ),
        Metric(
            "error",
            Known.MINIMIZER,
            (),
            _error,
        ),
        Metric(
            "error_rms",
            Known.MINIMIZER,
            (SPREAD,),
            _error_rms,
        ),
        Metric(
            "error_max",
            Known.MINIMIZER,
            (),
            lambda totals: totals.worst / totals.scale,
        ),
    )
}
OWN_ERROR_RMS = Metric("error_rms", Known.MINIMIZER, (AWAY,), _own_error_rms)
ERRORS = tuple(name for name, metric in METRICS.items() if metric.needs is Known.MINIMIZER)
BUILT_IN = GROWING | METRICS.keys() | {SHARE}
# The first columns of what is summed: bytes, rows, whether the problem failed, squared deviations.
_SENT, _ROWS, _FAILED, _SPREAD, _FIRST = range(5)


def provided(problem: Problem | None) -> list[Metric]:
    """Return the metrics of runs with a problem and a minimizer, or without."""
    own = targets_of(problem) is not None
    known = Known.ROWS if problem is None else Known.PROBLEM
    has = Known.MINIMIZER if own or x_star_of(problem) is not None else known
    table = {**METRICS, OWN_ERROR_RMS.name: OWN_ERROR_RMS} if own else METRICS
    return [metric for metric in table.values() if metric.needs.value <= has.value]


def counters_of(solver: Solver, clock: object) -> tuple[str, ...]:
    """Return the counters in the records of a solver, on ranks or, with a `clock`, on a queue."""
    if not isinstance(solver, Asynchronous):
        return COUNTERS
    return ASYNCHRONOUS if clock is not None else (*ASYNCHRONOUS, "rounds")


def checked(metrics: Mapping[str, Own] | None, problem: Problem | None = None) -> Mapping[str, Own]:
    """Return the metrics that a problem brings along, and the user's own, by name.

    Raises
    ------
    TypeError, ValueError

    Examples
    --------
    >>> checked({"error": len})
    Traceback (most recent call last):
    ...
    ValueError: metrics: 'error' is a metric of every run, expected another name, such as 'my_error'
    """
    if not isinstance(metrics or NONE, Mapping):
        raise TypeError(f'metrics is {metrics!r:.60}, expected a mapping such as {{"msd": f}}')
    every = {**metrics_of(problem), **(metrics or NONE)}
    for name, function in every.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"metrics: {name!r} is no name, expected letters, digits and _")
        if name in BUILT_IN:
            raise ValueError(
                f"metrics: {name!r} is a metric of every run, expected another name, such as "
                f"'my_{name}'"
            )
        takes(function, f"metric {name}", "X", "agents", "k")
    return every


class Recorded(ByName[np.ndarray]):
    """Metrics by name; see `ByName`."""

    def __missing__(self, name: object) -> np.ndarray:
        if name in ERRORS and "objective" in self:
            raise KeyError(
                f"no metric {name!r}: the problem has no x_star, from which errors are measured: "
                "give it one, such as x_star=problem.solution()"
            )
        return super().__missing__(name)


def columns(records: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """All records as arrays, by metric.

    Examples
    --------
    >>> columns([{"step": 0, "error": 1}, {"step": 5, "error": 0.5}], ["step", "error"])
    {'step': array([0, 5]), 'error': array([1. , 0.5])}
    """
    return Recorded(
        (name, np.array([record[name] for record in records], np.int64 if name in WHOLE else float))
        for name in names
    )


def of_events(
    metrics: Mapping[str, float],
    step: int,
    time: float,
    events: int,
    gradients: int,
    messages: int,
    message_bytes: int,
) -> dict[str, float]:
    """Return a record of an asynchronous run: the metrics of the rows, with its own counters in the
    place of those of synchronous steps.
    """
    return {
        **{name: value for name, value in metrics.items() if name not in COUNTERS},
        "step": step,
        "time": time,
        "events": events,
        "gradients": gradients,
        "messages": messages,
        "bytes": message_bytes * messages,
    }


def norm(v: np.ndarray) -> float:
    """Return the Euclidean norm, also where squares overflow.

    Examples
    --------
    >>> norm(np.array([3.0, 4.0])), norm(np.array([3.0, 4.0]) * 2.0**600) == 5 * 2.0**600
    (5.0, True)
    """
    unit = unit_of(v)
    return sqrt(((v / unit) ** 2).sum()) * unit


def unit_of(v: np.ndarray) -> float:
    """Return 1; for numbers whose squares might overflow, a power of two that makes them small."""
    if np.vdot(v, v) < 1e300:
        return 1.0
    largest = float(np.abs(v).max(initial=0.0))
    return ldexp(1.0, frexp(largest)[1] - 1) if HUGE < largest < np.inf else 1.0


class Minimizer:
    """What errors are distances from, if it is known: the minimizer of the average of all
    functions, which may move, or those of the agents' own functions.

    Attributes
    ----------
    x : array (d,) or None
        That of the step which `at` has set; where each agent has its own, their mean.
    targets : array (m, d) or None
        Those of the local agents' own functions.
    scale : float
        The norm of `x` (of the agents' own, the root mean square), by which errors are divided; 1
        if it is zero or not known.
    moves : bool
    """

    def __init__(self, problem: Problem | None, agents: range) -> None:
        self._problem, self.moves = problem, moves(problem)
        every = targets_of(problem)
        self.targets = None if every is None else every[agents]
        if every is None:
            self.at(0)
        else:
            self.x = every.mean(axis=0)
            self.scale = norm(every) / sqrt(len(every)) or 1.0

    def at(self, k: int) -> None:
        """Look for that of step k."""
        known = x_star_of(self._problem, k)
        # The view of a complex problem has a real one.
        if is_complex(known):
            raise TypeError(
                f"problem {type(self._problem).__name__}: x_star is complex, the rows are real, "
                "expected real numbers, or complex data"
            )
        self.x, self.scale = known, 1.0 if known is None else norm(known) or 1.0

    def distances(self, X: np.ndarray) -> np.ndarray:
        """Return the largest distance of a local agent, of several runs, (runs, m, d) -> (runs,);
        zeros if it is not known.
        """
        if self.x is None:
            return np.zeros(len(X))
        D = X - (self.x if self.targets is None else self.targets)
        unit = unit_of(D)
        squares = np.einsum("rij,rij->ri", D / unit, D / unit).max(axis=1, initial=0.0)
        distances: np.ndarray = np.sqrt(squares) * unit
        return distances


class SummandPlaces:
    """Where in the rows that are summed the terms of metrics are.

    Attributes
    ----------
    width : int
        Of these rows, of the last number of entries.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        terms = dict.fromkeys(term for metric in metrics for term in metric.terms)
        self._terms, self._d = [term for term in terms if term is not SPREAD], -1
        self.width, self._places = _FIRST, list[tuple[Summand, int | slice]]()

    def of(self, d: int) -> list[tuple[Summand, int | slice]]:
        """Return those for rows with d entries."""
        if d != self._d:
            self._d, self.width, self._places = d, _FIRST, []
            for term in self._terms:
                start = self.width
                self.width += d if term.vector else 1
                self._places.append((term, slice(start, self.width) if term.vector else start))
        return self._places


class Metrics:
    r"""Metrics of the rows `X` of all agents; collective.

    .. math::
        \text{consensus} = \sqrt{\tfrac{1}{n} \textstyle\sum_i \|x_i - \bar x\|^2}, \quad
        \text{objective} = f(\bar x), \quad \text{gradient\_norm} = \|\nabla f(\bar x)\|, \quad
        \text{error} = \|\bar x - x^\star\| / \|x^\star\|, \\
        \text{error\_rms} = \sqrt{\tfrac{1}{n} \textstyle\sum_i \|x_i - x^\star\|^2} \, / \, \|x^\star\|, \quad
        \text{error\_max} = \max_i \|x_i - x^\star\| / \|x^\star\|

    with :math:`f = \tfrac{1}{n} \sum_i f_i`; the errors only if :math:`x^\star` is known (absolute
    if it is zero).  Where each agent has a minimizer of its own, the errors are those of the
    deviations :math:`x_i - x_i^\star`, with the root mean square of :math:`\|x_i^\star\|` in place
    of :math:`\|x^\star\|`.  Of functions with a term r, :math:`f_i = s_i + r`, the gradient norm is
    that of the proximal gradient mapping with the step 1,

    .. math:: \| \bar x - \mathrm{prox}_r(\bar x - \nabla s(\bar x)) \|,

    which is zero at the minimizer only, as the gradient is without a term.

    Parameters
    ----------
    net : Network
    problem : problem or None
    own : mapping, optional
        Metrics of the user's own, by name: ``f(X, agents, k)`` receives the rows of the local
        agents, their numbers among all and the step, and returns one number per local agent, of
        which the average over all agents is recorded.
    like : array, optional
        The iterates: complex ones are measured as pairs of real numbers, so that norms are those of
        moduli.

    Attributes
    ----------
    names : tuple of str
        The names of all metrics, the counters first.
    size : float
        Root mean square of the norms of the rows at the last call.
    complex : bool
        Whether the iterates are complex.
    failed : bool
        Whether the problem raised an exception at the last call, on any rank; on one rank alone, it
        raises it itself.
    error : Exception or None
        That of this rank.

    Notes
    -----
    A call takes two sums of one row over all agents (the second one at the mean, which the first
    one finds), one gradient and one value of each local agent, and a maximum over the ranks if
    :math:`x^\star` is known.  If it is a function of the step, errors are distances from that of
    the step which `at` has set.  Rows of float32 are cast to float64 before.
    """

    def __init__(
        self,
        net: Reductions,
        problem: Problem | None,
        own: Mapping[str, Own] = NONE,
        like: object = None,
        agents: range | None = None,
    ) -> None:
        self._agents = range(net.lo, net.lo + net.m) if agents is None else agents
        problem = seen(problem, like)
        self._net, self._problem, self.size = net, problem, 0.0
        self.complex = is_complex(like)
        self.failed = False
        self.error: Exception | None = None
        self._k, self._minimizer = 0, Minimizer(problem, self._agents)
        self._metrics = [*provided(problem), *map(self._agents_mean, own.items())]
        self.names = (*COUNTERS, *(metric.name for metric in self._metrics))
        self._columns, self._prox = SummandPlaces(self._metrics), term_of(problem)

    def _agents_mean(self, own: tuple[str, Own]) -> Metric:
        """The metric of a user's function: the mean of its numbers over all agents."""
        name, function = own
        term = Summand(lambda rows: self.of_agents(name, function, rows.X))
        mean = lambda totals: float(totals.sums[term]) / totals.n
        return Metric(name, Known.ROWS, (term,), mean, signed=True)

    def names_of_events(self, *counters: str) -> tuple[str, ...]:
        """Return the metrics of an asynchronous run, with its own counters and others."""
        provided = (name for name in self.names if name not in COUNTERS)
        return (*ASYNCHRONOUS, *counters, *provided)

    def at(self, k: int) -> Metrics:
        """Return the metrics of step k, with the minimizer of that step."""
        self._k = k
        if self._minimizer.moves:
            self.error = None
            try:
                self._minimizer.at(k)
            except Exception as error:  # the other ranks come to the sum
                if self._net.size == 1:
                    raise
                self.error = error
        return self

    def __call__(self, X: np.ndarray, rows: int = 0, sent: int = 0) -> dict[str, float]:
        """Return the metrics of the rows `X`, shape `(m, d)`, and the sums over all ranks of the
        `rows` and bytes `sent`.
        """
        X = double(as_reals(X))
        mean = self._net.mean(X)
        return self.of(mean, self._net.sum(self.terms(X, mean, rows, sent)), self.worst(X[None])[0])

    def terms(self, X: np.ndarray, mean: np.ndarray, rows: int = 0, sent: int = 0) -> np.ndarray:
        """Return what the metrics are sums of: a row for each local agent, with their rows `X` and
        the `mean` of all agents.
        """
        problem = cast("Problem", self._problem)
        own = self._minimizer.targets
        return self.summed(Rows(X, mean, problem, own, unit_of(mean)), rows, sent)

    def summed(self, rows_of: Rows, rows: int = 0, sent: int = 0) -> np.ndarray:
        """Return the terms of such rows."""
        m, d = rows_of.X.shape
        columns = self._columns.of(d)
        terms = np.zeros((m, self._columns.width))
        terms[:, _SPREAD] = SPREAD.of(rows_of)
        terms[:1, :_FAILED] = sent, rows
        try:
            if self.error is not None and self._minimizer.moves and m:  # of `at`
                raise self.error
            for term, column in columns:
                terms[:, column] = term.of(rows_of)
        except Exception as error:  # the other ranks come to the sum
            if m == 0 or self._net.size == 1:
                raise
            self.error = error
            terms[:, _FIRST:], terms[0, _FAILED] = 0, 1
        return terms

    def of_agents(self, name: str, function: Own, X: np.ndarray) -> np.ndarray:
        """Return an own metric of each local agent."""
        agents, own = self._agents, X.copy()
        own = own.view(np.complex128) if self.complex else own
        values = np.asarray(function(own, agents, self._k)) if agents else X[:, 0]
        if values.shape != (len(X),) or values.dtype.kind not in "biuf":
            raise ValueError(
                f"metric {name}: f(X, agents, k) returns {values.dtype} of shape {values.shape} "
                f"for X of shape {own.shape}, expected real numbers of shape ({len(X)},): one per "
                "local agent"
            )
        return values

    def of(self, mean: np.ndarray, total: np.ndarray, worst: float) -> dict[str, float]:
        """Return the metrics, from the mean, the sum of the `terms` of all agents, and the largest
        `distance` of any rank.
        """
        n, sums, known = self._net.n, {SPREAD: total[_SPREAD]}, self._minimizer
        for term, column in self._columns.of(len(mean)):
            sums[term] = total[column]
        totals = Totals(mean, sums, n, (known.x, known.scale, worst), self._prox)
        unit = totals.unit
        self.failed = bool(total[_FAILED])
        self.size = sqrt(total[_SPREAD] / n + (mean / unit) @ (mean / unit)) * unit
        result = {"rows": float(total[_ROWS]), "bytes": float(total[_SENT])}
        for metric in self._metrics:
            result[metric.name] = metric.of(totals)
        return result

    def least(self) -> float | None:
        """Return the objective at the solution, if that is known; collective."""
        problem, net, known = self._problem, self._net, self._minimizer
        inexact = known.moves or known.targets is not None or is_sampled(problem)
        if problem is None or known.x is None or inexact:
            return None
        values = np.zeros((net.m, 1))
        with on_all_ranks(net):
            values[:, 0] = problem.value(np.tile(known.x, (net.m, 1)))
        return float(net.mean(values)[0])

    def distance(self, X: np.ndarray) -> float:
        """Return the largest distance of a local agent from the solution, 0 if not known."""
        return float(self._minimizer.distances(X[None])[0])

    def worst(self, X: np.ndarray) -> list[float]:
        """Return the largest distance of any agent from the solution, of several runs, (runs, m,
        d); collective.
        """
        mine, net = self._minimizer.distances(X), self._net
        if net.size > 1 and self._minimizer.x is not None:
            mine = -net.collectives.minimum(-mine, "the metrics of a record")
        found: list[float] = mine.tolist()
        return found

    def diverged_agent(self, X: np.ndarray) -> int:
        """Return the first agent whose row, value or gradient is not finite, or whose row is the
        largest if all are; collective.
        """
        net, X = self._net, as_reals(X)
        sizes = (X * X).sum(axis=1)
        if self._problem is not None and len(X):
            at = np.tile(net.mean(X), (len(X), 1))
            sizes = sizes + 0 * (self._problem.value(at) + self._problem.grad(at).sum(axis=1))
        elif self._problem is not None:
            net.mean(X)
        sizes[~np.isfinite(sizes)] = np.inf
        what, mine = "the end of the run", np.array([-sizes.max(initial=-1.0)])
        largest = -net.collectives.minimum(mine, what)[0]
        agents = net.lo + np.flatnonzero(sizes == largest)
        return int(
            net.collectives.minimum(agents[:1] if len(agents) else np.array([net.n]), what)[0]
        )
