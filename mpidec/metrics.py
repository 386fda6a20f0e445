"""Metrics of an iterate: consensus, objective, gradient norm and error; bit-identical on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

COUNTERS = ("step", "time", "rounds", "bytes")


class Metrics:
    r"""Metrics of the rows `X` of all agents; collective.

    .. math::
        \text{consensus} = \sqrt{\tfrac{1}{n} \textstyle\sum_i \|x_i - \bar x\|^2}, \quad
        \text{objective} = f(\bar x), \quad \text{gradient\_norm} = \|\nabla f(\bar x)\|, \quad
        \text{error} = \|\bar x - x^\star\| / \|x^\star\|

    with :math:`f = \tfrac{1}{n} \sum_i f_i`; the error only if :math:`x^\star` is known (absolute if it is zero).

    Notes
    -----
    A call takes two sums of one row over all agents, and one gradient and one value of each local agent.
    """

    def __init__(self, net: Any, problem: Any):
        self._net, self._problem = net, problem
        known = getattr(problem, "x_star", None)
        self._x_star = None if known is None else np.asarray(known, float).reshape(-1)
        names = ["consensus"] if problem is None else ["consensus", "gradient_norm", "objective"]
        self.names = (*COUNTERS, *names, *(["error"] if self._x_star is not None else []))

    def __call__(self, X: np.ndarray, sent: int) -> dict[str, float]:
        """Return the metrics of the rows `X`, shape `(m, d)`, and `bytes`, the sum of `sent` over all ranks."""
        net, m = self._net, len(X)
        mean = net.mean(X)
        rows = np.zeros((m, 3 if self._problem is None else 3 + X.shape[1]))
        rows[:, 0] = ((X - mean) ** 2).sum(axis=1)
        rows[:1, 1] = sent
        if self._problem is not None:
            at = np.tile(mean, (m, 1))
            rows[:, 2] = self._problem.value(at)
            rows[:, 3:] = self._problem.grad(at)
        total = net.sum(rows)
        result = {"bytes": float(total[1]), "consensus": float(np.sqrt(total[0] / net.n))}
        if self._problem is not None:
            result["objective"] = float(total[2] / net.n)
            result["gradient_norm"] = float(np.sqrt((total[3:] ** 2).sum())) / net.n
        if self._x_star is not None:
            scale = float(np.linalg.norm(self._x_star)) or 1.0
            result["error"] = float(np.linalg.norm(mean - self._x_star)) / scale
        return result
