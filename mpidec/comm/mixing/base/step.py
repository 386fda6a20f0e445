"""Interface of the operators of one step, shared by all mixers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ....exceptions import RankMismatchError
from ...arrays import ArrayT, Restore
from ...runtime import Pending
from .edges import LocalEdges
from .packing import RowsT, joined, split

if TYPE_CHECKING:
    from ....topology import Topology

# Calls of a mixer per step.  Call c of step k draws the random numbers number MAX_CALLS k + c, so
# that no two calls of a run share any.
MAX_CALLS = 1 << 6


class StepOperator(ABC):
    """The operator of one step.

    Attributes
    ----------
    topology : Topology
    n, m : int
        Number of all agents, and of those on this rank.
    agents : range
        The agents on this rank.
    """

    topology: Topology
    n: int
    m: int
    agents: range

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r})"

    @property
    def parts(self) -> Sequence[StepOperator]:
        """The operators of the graphs among which the columns of a row are divided: this one, if
        there is one graph.
        """
        return [self]

    @property
    @abstractmethod
    def next(self) -> StepOperator:
        """The operator of the following step; a static one returns itself."""

    @property
    def R(self) -> StepOperator:
        """The row-stochastic operator of a pair; of any other `W`, itself."""
        return self

    @property
    def C(self) -> StepOperator:
        """The column-stochastic operator of a pair; of any other `W`, itself."""
        return self

    @abstractmethod
    def at(self, k: int) -> StepOperator:
        """Return the operator of step `k`."""

    def gamma(self, d: int) -> float:
        """Return the step towards the neighbours of a compressed mixing of rows of `d` entries; 1
        without a codec.
        """
        return 1.0

    def with_weights(self, A: object) -> StepOperator:
        """Refused: only the operator of one graph itself takes other weights; see
        `Phase.with_weights`.

        Raises
        ------
        TypeError
        """
        raise TypeError(
            f"W.with_weights: W is a {type(self).__name__}, expected the mixer of one graph "
            "itself, without compress, lossy, repeat and the like: these take weights that change "
            "in each step from net.mixer(topology.from_function(n, f))"
        )

    @abstractmethod
    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`, or several arrays of rows (list, tuple or dict)."""

    @abstractmethod
    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X`; `wait()` on the result returns the mixed rows."""

    @abstractmethod
    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        """Withdraw from a mixing, or from another operation, so that the neighbours do not wait for
        this rank.
        """

    @contextmanager
    def _propagate_errors(self, op: str = "W(X)") -> Iterator[None]:
        """A context whose errors also reach the neighbours, since this rank takes no part in
        what they begin.
        """
        try:
            yield
        except (TypeError, ValueError, MemoryError) as error:
            if not isinstance(error, RankMismatchError):
                self.abort_operation(error, op)
            raise

    @abstractmethod
    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """Return the sender's row for each edge out of the local agents: `(m, ...) -> (out-edges,
        ...)`.
        """

    @abstractmethod
    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge: `(out-edges, ...) -> (in-edges, ...)`."""

    def start_exchange(self, M: np.ndarray) -> Pending:
        """Begin to send a different row over each edge; `wait()` returns what `exchange` does."""
        arrived = self.exchange(M)
        return Pending(None, lambda: arrived)

    @abstractmethod
    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent: `(in-edges, ...) -> (m, ...)`."""

    @abstractmethod
    def own(self, X: np.ndarray) -> np.ndarray:
        """Return the rows times the agents' weights for themselves: `D X`, with the diagonal D of
        `W`.
        """

    @property
    @abstractmethod
    def in_edges(self) -> int:
        """Number of edges into the local agents."""

    def mix_all(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Mix arrays of rows (m, d) of the host, of one dtype, C-contiguous and checked, as one
        call for each of them would, in one message; the results are new.
        """
        return self(arrays) if len(arrays) > 1 else [self(arrays[0])]

    def start_all(self, arrays: list[np.ndarray], out: np.ndarray | None = None) -> Pending:
        """Begin to mix such arrays, a single one into `out` if that is given; `wait()` returns a
        list.
        """
        if len(arrays) > 1:
            return self.start(arrays)
        pending = self.start(arrays[0], out)
        return Pending(pending, lambda: [pending.wait()])


class EdgeOperator(StepOperator):
    """The operator of one step of one graph, whose edges carry rows."""

    @property
    @abstractmethod
    def edges(self) -> LocalEdges:
        """The edges of the local agents."""

    @property
    @abstractmethod
    def diagonal(self) -> np.ndarray:
        """The agents' weights for themselves."""

    def exchange(self, M: ArrayT) -> ArrayT:
        """Send a different row to each neighbour.

        Parameters
        ----------
        M : array (out-edges, ...)
            A row for each edge out of the local agents, sorted by sender, then receiver (the order
            of `to_edges`).

        Returns
        -------
        array (in-edges, ...)
            The row that arrived over each edge into the local agents, sorted by receiver, then
            sender.

        Raises
        ------
        TypeError
            If the entries are objects.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.chain(3)).at(0)
        ...     M = np.array([[1.0], [10.0], [12.0], [21.0]])  # 0->1, 1->0, 1->2, 2->1
        ...     W.exchange(M).ravel().tolist()
        [10.0, 1.0, 21.0, 12.0]
        """
        rows, format, restore = self.edge_rows(M)
        return restore(self.carry(rows), format)

    def start_exchange(self, M: ArrayT) -> Pending:
        rows, format, restore = self.edge_rows(M)
        arriving = self.start_carry(rows)
        return Pending(arriving, lambda: restore(arriving.wait(), format))

    @abstractmethod
    def edge_rows(self, M: ArrayT) -> tuple[np.ndarray, str, Restore[ArrayT]]:
        """Return the rows of `exchange`, checked, on the host; their format, and what makes results
        of the kind of `M`.
        """

    @abstractmethod
    def carry(self, rows: np.ndarray) -> np.ndarray:
        """Send a row over each edge, as `exchange` does: checked rows of the host, C-contiguous;
        the result is new.
        """

    def start_carry(self, rows: np.ndarray) -> Pending:
        """Begin to send a row over each edge; `wait()` returns what `carry` does."""
        arrived = self.carry(rows)
        return Pending(None, lambda: arrived)

    def spread(
        self, arrays: list[np.ndarray], leave: Callable[[np.ndarray], np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Send the local agents' rows over all their edges, or what `leave` makes of them there:
        of each array the rows as all agents know them, and those that arrived over each edge.
        """
        sent = [leave(rows[self.edges.senders]) for rows in arrays]
        return list(zip(arrays, split(self.carry(joined(sent)), sent)))
