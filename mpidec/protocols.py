"""What one room needs of another, as structural types: `mpidec.Network` is a `Reductions`, and so is one process alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")
Rows = TypeVar("Rows", np.ndarray, list[np.ndarray])


class Collectives(Protocol):
    """Small collective operations of all ranks; `what` names them in the error of a rank that waits too long."""

    def minimum(
        self, mine: np.ndarray, what: str, ask: Callable[[], None] | None = None
    ) -> np.ndarray:
        """The least of the arrays of all ranks, entry by entry."""

    def gather_all(self, mine: np.ndarray, what: str) -> np.ndarray:
        """The arrays of all ranks, shape `(size, ...)`."""

    def broadcast(self, thing: T, root: int, what: str) -> T:
        """An object of rank `root`, on all ranks."""


class Reductions(Protocol):
    """n agents over the ranks of a job, and sums over them: all that the loops around solvers need of a network.

    This rank hosts the `m` agents `lo:hi`; it is rank `rank` of `size`.
    """

    @property
    def n(self) -> int: ...
    @property
    def m(self) -> int: ...
    @property
    def lo(self) -> int: ...
    @property
    def hi(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def collectives(self) -> Collectives: ...

    def sum(self, X: np.ndarray) -> np.ndarray:
        """The sum of the rows of all agents, on every rank: the same bits for any number of ranks."""

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The average of the rows of all agents, likewise."""

    def gather(self, X: np.ndarray) -> np.ndarray | None:
        """The rows of all agents, shape `(n, ...)`, on rank 0; None on the others."""

    def agree(self, error: Exception | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank."""


class Agents(Reductions, Protocol):
    """Agents over ranks, whose rows rank 0 can hand out."""

    @property
    def agents(self) -> range: ...

    def scatter(self, X: np.ndarray | None) -> np.ndarray:
        """The rows of the local agents, of the stack that rank 0 has."""


class Matrix(Protocol):
    """A sparse matrix."""

    def toarray(self) -> np.ndarray:
        """The dense matrix."""


class Graph(Protocol):
    """What a solver asks of a graph, of one topology or of a schedule of them."""

    @property
    def name(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def directed(self) -> bool: ...
    @property
    def period(self) -> int | None: ...

    def at(self, k: int) -> ConstantGraph:
        """The graph of step k."""


class ConstantGraph(Graph, Protocol):
    """A graph that does not vary with the step."""

    @property
    def W(self) -> Matrix: ...
    @property
    def connected(self) -> bool: ...
    @property
    def is_tree(self) -> bool: ...


class Operator(Protocol):
    """The operator `W` of one step, as solvers see it: arrays are stacks of rows of NumPy, PyTorch or CuPy."""

    @property
    def n(self) -> int: ...
    @property
    def m(self) -> int: ...
    @property
    def topology(self) -> Any: ...  # of the class that the solver's `check` demands
    @property
    def next(self) -> Operator: ...
    @property
    def in_edges(self) -> int: ...

    def at(self, k: int) -> Operator:
        """The operator of step k."""

    def __call__(self, X: Rows) -> Rows:
        """The weighted averages of the neighbours' rows; of several stacks in one exchange, if `X` is a list."""

    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """The sender's row for each edge out of the local agents: `(m, ...) -> (out-edges, ...)`."""

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge: `(out-edges, ...) -> (in-edges, ...)`."""

    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent: `(in-edges, ...) -> (m, ...)`."""

    def own(self, X: np.ndarray) -> np.ndarray:
        """The rows times the agents' weights for themselves: `D X`, with the diagonal D of `W`."""
