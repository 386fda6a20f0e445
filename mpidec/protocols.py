"""Interfaces between the rooms of the package, as structural types: `mpidec.Network` is a
`Reductions`, and so is a single process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

T = TypeVar("T")
StepSize = float | str | Callable[[int], float]
"""A number, "auto", "safe", the text of a schedule, or a function of the step k; within a step,
a number.
"""
Rows = TypeVar("Rows", np.ndarray, list[np.ndarray])


class Collectives(Protocol):
    """Small collective operations of all ranks; `what` names them in the error of a rank that
    waits too long.
    """

    def minimum(
        self, mine: np.ndarray, what: str, ask: Callable[[], None] | None = None
    ) -> np.ndarray:
        """Return the least of the arrays of all ranks, entry by entry."""

    def gather_all(self, mine: np.ndarray, what: str) -> np.ndarray:
        """Return the arrays of all ranks, shape `(size, ...)`."""

    def distinct(self, mine: np.ndarray, what: str) -> np.ndarray:
        """Return the whole numbers of all ranks, shape `(size, ...)`; `(1, ...)` if they are the
        same on all.
        """

    def broadcast(self, thing: T, root: int, what: str) -> T:
        """Return an object of rank `root`, on all ranks."""


class Reductions(Protocol):
    """n agents over the ranks of a job, and sums over them: all that the loops around solvers
    need of a network.
    """

    @property
    def n(self) -> int:
        """Number of agents."""

    @property
    def m(self) -> int:
        """Number of agents of this rank."""

    @property
    def lo(self) -> int:
        """First agent of this rank."""

    @property
    def hi(self) -> int:
        """The agent after the last one of this rank."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def collectives(self) -> Collectives:
        """Collective operations of the ranks."""

    def sum(self, X: np.ndarray) -> np.ndarray:
        """Return the sum of the rows of all agents, on every rank: the same bits for any number of
        ranks.
        """

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Return the average of the rows of all agents, likewise."""

    def gather(self, X: np.ndarray) -> np.ndarray | None:
        """Return the rows of all agents, shape `(n, ...)`, on rank 0; None on the others."""

    def gather_rows(self, X: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray | None:
        """Return the rows of all ranks, `counts` of them on each, on rank 0; None on the others."""

    def agree(self, error: Exception | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank."""


class Agents(Reductions, Protocol):
    """Agents over ranks, whose rows rank 0 can hand out."""

    @property
    def agents(self) -> range:
        """The agents of this rank."""

    def scatter(self, X: np.ndarray | None, counts: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of the local agents, of the stack that rank 0 has; with `counts`, so many
        rows on each rank.
        """


class Sample(NamedTuple):
    r"""What the local agents measure in a step: :math:`y_i = H_i x + v_i`, p numbers each.

    Attributes
    ----------
    H : array (m, p, d)
        Regressors; of a filter :math:`u_i^T`, with p = 1.
    y : array (m, p)
    R : array (m, p, p)
        Covariance of the noise :math:`v_i`.
    """

    H: np.ndarray
    y: np.ndarray
    R: np.ndarray


class Motion(NamedTuple):
    r"""How the target moves: :math:`x^{k+1} = F x^k + w^k`, with noise :math:`w^k` of the
    covariance Q; both are (d, d).
    """

    F: np.ndarray
    Q: np.ndarray


class Functions(Protocol):
    """The functions of the local agents at one step, as solvers ask them (`Solver.ask`)."""

    def grad(self, X: np.ndarray) -> np.ndarray:
        """Return the gradients of the smooth parts, of the oracle's draw for this step: `(m, d) ->
        (m, d)`, a new array.
        """

    def value(self, X: np.ndarray) -> np.ndarray:
        """Return the values of the functions, with their term: `(m, d) -> (m,)`."""

    def prox(self, V: np.ndarray, t: StepSize) -> np.ndarray:
        """Return the proximal points of the term, with the number `t`: `(m, d) -> (m, d)`; `V`
        itself where there is no term.
        """

    def argmin(self, V: np.ndarray, t: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Return the proximal points of the functions with their term, with a parameter for each
        agent, `(m, 1)`: `(m, d) -> (m, d)`.

        Points near them as `start`, such as those of the last step, save time.
        """

    def sample(self, X: np.ndarray) -> Sample:
        """Return what the local agents measure in this step, in the dtype of their rows `X`."""

    def motion(self) -> Motion:
        """Return how the target moves."""


class Matrix(Protocol):
    """A sparse matrix."""

    def __getitem__(self, rows: slice) -> Matrix:
        """Return some of its rows."""

    def toarray(self) -> np.ndarray:
        """Return the dense matrix."""


class Graph(Protocol):
    """Interface of a graph (a topology or a schedule of them) that solvers use."""

    @property
    def name(self) -> str:
        """Name, such as "ring"."""

    @property
    def n(self) -> int:
        """Number of agents."""

    @property
    def kind(self) -> str:
        """Stochasticity of W: "doubly", "row" or "column"."""

    @property
    def directed(self) -> bool:
        """Whether some agent sends to another without receiving from it."""

    @property
    def period(self) -> int | None:
        """Steps after which the graphs repeat; None if they never do."""

    @property
    def samples(self) -> bool:
        """Whether each step is the average over a sample of the agents."""

    @property
    def is_tree(self) -> bool:
        """Whether there is one graph, or several at once, undirected and connected with n - 1
        edges.
        """

    def at(self, k: int) -> ConstantGraph:
        """Return the graph of step k."""


class ConstantGraph(Graph, Protocol):
    """A graph that does not vary with the step."""

    @property
    def W(self) -> Matrix:
        """Mixing matrix."""

    @property
    def symmetric(self) -> bool:
        """Whether W equals its transpose."""

    @property
    def connected(self) -> bool:
        """Whether there is a path from every agent to every other."""

    def spectral_gap(self) -> float:
        """Return the fraction by which a step reduces the largest disagreement."""

    @property
    def is_tree(self) -> bool:
        """Whether the graph is undirected and connected with n - 1 edges."""


class Operator(Protocol):
    """The operator `W` of one step, as solvers see it: arrays are stacks of rows of NumPy,
    PyTorch or CuPy.
    """

    @property
    def n(self) -> int:
        """Number of agents."""

    @property
    def m(self) -> int:
        """Number of local agents."""

    @property
    def agents(self) -> range:
        """The local agents, by their numbers among all agents."""

    @property
    def topology(self) -> Any:
        """Graph of this step, of the class that the solver's `check` demands."""

    @property
    def next(self) -> Operator:
        """The operator of the following step."""

    @property
    def R(self) -> Operator:
        """The row-stochastic operator of a pair of two (`weights="push-pull"`), which is also
        `W` itself; else `W`.
        """

    @property
    def C(self) -> Operator:
        """The column-stochastic operator of a pair; else `W`."""

    @property
    def parts(self) -> Sequence[Operator]:
        """The operators of the graphs among which the columns of a row are divided: itself, if
        there is one graph.
        """

    @property
    def in_edges(self) -> int:
        """Number of edges into the local agents."""

    def at(self, k: int) -> Operator:
        """Return the operator of step k."""

    def gamma(self, d: int) -> float:
        """Return the step towards the neighbours of a compressed mixing of rows of `d` entries; 1
        without a codec.
        """

    def __call__(self, X: Rows) -> Rows:
        """The weighted averages of the neighbours' rows; of several stacks in one exchange, if
        `X` is a list.
        """

    def with_weights(self, A: np.ndarray) -> Operator:
        """The operator of the same graph with other weights, the rows of the local agents, (m, n),
        which sum to 1.
        """

    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """Return the sender's row for each edge out of the local agents: `(m, ...) -> (out-edges,
        ...)`.
        """

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge: `(out-edges, ...) -> (in-edges, ...)`."""

    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent: `(in-edges, ...) -> (m, ...)`."""

    def own(self, X: np.ndarray) -> np.ndarray:
        """Return the rows times the agents' weights for themselves: `D X`, with the diagonal D of
        `W`.
        """
