"""Metrics of an iterate: consensus, objective, gradient norm and errors; bit-identical on any
number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from .._complex import as_reals, double
from .._words import ByName
from ..comm.runtime.agreement import on_all_ranks
from ..problems.members import term_of, x_star_of
from ..problems.real_view import seen
from ..protocols import Reductions
from ..record.runfile import COUNTERS as WHOLE

if TYPE_CHECKING:
    from ..problems import Problem

COUNTERS = ("step", "time", "rounds", "rows", "bytes", "gradients", "prox")
ASYNCHRONOUS = ("step", "time", "events", "gradients", "messages", "bytes")
GROWING = frozenset(
    COUNTERS + ASYNCHRONOUS
)  # they only grow: a limit on them is a budget, not a target


def columns(records: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, np.ndarray]:
    """All records as arrays, by metric.

    Examples
    --------
    >>> columns([{"step": 0, "error": 1}, {"step": 5, "error": 0.5}], ["step", "error"])
    {'step': array([0, 5]), 'error': array([1. , 0.5])}
    """
    return ByName(
        (name, np.array([record[name] for record in records], np.int64 if name in WHOLE else float))
        for name in names
    )


class Metrics:
    r"""Metrics of the rows `X` of all agents; collective.

    .. math::
        \text{consensus} = \sqrt{\tfrac{1}{n} \textstyle\sum_i \|x_i - \bar x\|^2}, \quad
        \text{objective} = f(\bar x), \quad \text{gradient\_norm} = \|\nabla f(\bar x)\|, \quad
        \text{error} = \|\bar x - x^\star\| / \|x^\star\|, \\
        \text{error\_rms} = \sqrt{\tfrac{1}{n} \textstyle\sum_i \|x_i - x^\star\|^2} \, / \, \|x^\star\|, \quad
        \text{error\_max} = \max_i \|x_i - x^\star\| / \|x^\star\|

    with :math:`f = \tfrac{1}{n} \sum_i f_i`; the errors only if :math:`x^\star` is known (absolute
    if it is zero).  Of functions with a term r, :math:`f_i = s_i + r`, the gradient norm is that of
    the proximal gradient mapping with the step 1,

    .. math:: \| \bar x - \mathrm{prox}_r(\bar x - \nabla s(\bar x)) \|,

    which is zero at the minimizer only, as the gradient is without a term.

    Parameters
    ----------
    net : Network
    problem : problem or None
    like : array, optional
        The iterates: complex ones are measured as pairs of real numbers, so that norms are those of
        moduli.

    Attributes
    ----------
    names : tuple of str
        The names of all metrics, the counters first.
    size : float
        Root mean square of the norms of the rows at the last call.
    failed : bool
        Whether the problem raised an exception at the last call, on any rank; on one rank alone, it
        raises it itself.
    error : Exception or None
        That of this rank.

    Notes
    -----
    A call takes two sums of one row over all agents (the second one at the mean, which the first
    one finds), one gradient and one value of each local agent, and a maximum over the ranks if
    :math:`x^\star` is known.  Rows of float32 are cast to float64 before.
    """

    def __init__(self, net: Reductions, problem: Problem | None, like: object = None):
        problem = seen(problem, like)
        self._net, self._problem, self.size = net, problem, 0.0
        self.failed = False
        self.error: Exception | None = None
        self._x_star = x_star_of(problem)
        self._scale = 1.0 if self._x_star is None else float(np.linalg.norm(self._x_star)) or 1.0
        names = ["consensus"] if problem is None else ["consensus", "gradient_norm", "objective"]
        self.names = (
            *COUNTERS,
            *names,
            *(["error", "error_rms", "error_max"] if self._x_star is not None else []),
        )

    def __call__(self, X: np.ndarray, rows: int = 0, sent: int = 0) -> dict[str, float]:
        """Return the metrics of the rows `X`, shape `(m, d)`, and the sums over all ranks of the
        `rows` and bytes `sent`.
        """
        X = double(as_reals(X))
        mean = self._net.mean(X)
        return self.of(mean, self._net.sum(self.terms(X, mean, rows, sent)), self._worst(X))

    def terms(self, X: np.ndarray, mean: np.ndarray, rows: int = 0, sent: int = 0) -> np.ndarray:
        """What the metrics are sums of: a row for each local agent, with their rows `X` and the
        `mean` of all agents.
        """
        m, problem = len(X), self._problem
        terms = np.zeros((m, 5 if problem is None else 5 + X.shape[1]))
        terms[:, 0] = ((X - mean) ** 2).sum(axis=1)
        terms[:1, 1:3] = sent, rows
        if problem is not None:
            at = np.empty_like(X)
            at[:] = mean
            try:
                terms[:, 3], terms[:, 5:] = problem.value(at), problem.grad(at)
            except Exception as error:  # the other ranks come to the sum
                if m == 0 or self._net.size == 1:
                    raise
                self.error = error
                terms[:, 3:], terms[0, 4] = 0, 1
        return terms

    def of(self, mean: np.ndarray, total: np.ndarray, worst: float) -> dict[str, float]:
        """The metrics, from the mean, the sum of the `terms` of all agents, and the largest
        `distance` of any rank.
        """
        net, problem = self._net, self._problem
        self.failed = bool(total[4])
        result = {
            "rows": float(total[2]),
            "bytes": float(total[1]),
            "consensus": sqrt(total[0] / net.n),
        }
        self.size = sqrt(total[0] / net.n + mean @ mean)
        if problem is not None:
            result["objective"] = float(total[3] / net.n)
            result["gradient_norm"] = self._gradient_norm(mean, total[5:])
        if self._x_star is not None:
            gap = mean - self._x_star
            away = sqrt(gap @ gap)
            result["error"] = away / self._scale
            result["error_rms"] = sqrt(total[0] / net.n + away * away) / self._scale
            result["error_max"] = worst / self._scale
        return result

    def _gradient_norm(self, mean: np.ndarray, total: np.ndarray) -> float:
        """The norm of the gradient at the mean, or of the proximal gradient mapping, from the
        sum of all agents' gradients.
        """
        term = term_of(self._problem)
        if term is None or not np.isfinite(mean - total).all():
            return sqrt((total**2).sum()) / self._net.n
        moved = mean - term.prox((mean - total / self._net.n)[None], 1.0)[0]
        return sqrt((moved**2).sum())

    def least(self) -> float | None:
        """The objective at the solution, if that is known; collective."""
        problem, net = self._problem, self._net
        if problem is None or self._x_star is None:
            return None
        values = np.zeros((net.m, 1))
        with on_all_ranks(net):
            values[:, 0] = problem.value(np.tile(self._x_star, (net.m, 1)))
        return float(net.mean(values)[0])

    def distance(self, X: np.ndarray) -> float:
        """The largest distance of a local agent from the solution; 0 if that is not known."""
        if self._x_star is None:
            return 0.0
        D = X - self._x_star
        return sqrt(np.einsum("ij,ij->i", D, D).max(initial=0.0))

    def _worst(self, X: np.ndarray) -> float:
        mine, net = self.distance(X), self._net
        if net.size == 1 or self._x_star is None:
            return mine
        return -float(net.collectives.minimum(np.array([-mine]), "the metrics of a record")[0])

    def diverged_agent(self, X: np.ndarray) -> int:
        """The first agent whose row, value or gradient is not finite, or whose row is the
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
        mine = np.array(
            [[-sizes.max(initial=-1.0), net.lo + int(np.argmax(sizes))]] if len(X) else [[2.0, 0.0]]
        )
        all_ = (
            mine
            if net.size == 1
            else net.collectives.gather_all(mine, "the end of the run").reshape(-1, 2)
        )
        return int(all_[np.lexsort((all_[:, 1], all_[:, 0]))[0], 1])
