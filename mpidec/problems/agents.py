"""Gradients of some of the local agents, for asynchronous runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from .._validation import Array


class OfSome(Protocol):
    """Gradients that can be taken for some of the local agents, such as `oracles.Gradients`."""

    @property
    def some(self) -> Callable[..., Array]:
        """``some(X, k, agents=[i, ...])``: the gradients of these agents, one row of X for each."""


def by_agents(gradient: Callable[..., Array], m: int) -> Callable[..., Array]:
    """Return `gradient(X, ..., agents=...)`, the gradients of some of `m` local agents, one row of
    `X` for each.

    It is `gradient` itself if that has the argument `agents`.  Otherwise the gradients of all
    agents are evaluated, those that are not asked for at the first row of `X`, and the others' rows
    are dropped: m times the work for one agent.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.array([[1.0], [3.0], [5.0]])
    >>> by_agents(lambda X: X - C, m=3)(np.zeros((1, 1)), agents=[2])
    array([[-5.]])
    """
    try:
        if "agents" in inspect.signature(gradient).parameters:
            return gradient
    except (TypeError, ValueError):  # of a function in C
        pass

    def of_some(X: Array, *step: int, agents: Sequence[int]) -> Array:
        some, Z = list(agents), np.tile(X[:1], (m, 1))
        Z[some] = X
        return np.asarray(gradient(Z, *step)[some])

    return of_some


def of_one(gradients: OfSome) -> Callable[[int, Array, int], Array]:
    """Return `gradient(i, x, k)`: the gradient of local agent i at `x`, shape (d,), for its own
    step k; `gradients(X, k, agents=...)` returns those of some agents.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.problems import Full, LeastSquares
    >>> oracle = Full(LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]]))
    >>> of_one(oracle.gradients(range(2), seed=0))(1, np.zeros(1), 0)
    array([-3.])
    """
    some = gradients.some

    def gradient(i: int, x: Array, k: int) -> Array:
        g: Array = some(x[None], k, agents=(i,))[0]
        if g.shape != x.shape:
            raise ValueError(f"the gradient of an agent has shape {g.shape}, expected {x.shape}")
        return g

    return gradient
