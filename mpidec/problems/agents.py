"""Gradients of some of the local agents, for asynchronous runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np

from .._validation import Array


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
