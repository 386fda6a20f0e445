"""Reductions of a network: sums over all agents, rows to and from rank 0, and decisions of all
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ....exceptions import RanksLost, on_all_ranks
from ...arrays import native
from ...kernels import begun, beyond, joined, node_sums, nodes, pairwise_sum
from ...runtime import CommRequest, Partition, Request, Together, died, ranks_of_node, tree
from ...transport import RowSums
from ..base.agreement import Agreement
from ..base.lifecycle import Lifecycle

if TYPE_CHECKING:
    from ...runtime import Checked  # where jedi finds this, it cannot complete `net.`

# Of the messages of sums and gathers along a tree, between those of clocks and of `RowSums`.
_TAG = 16001
# Bytes of a rank's slice from which on all ranks sum at once: messages of this size take longer to
# transfer than to begin.
_SLICE = 4096


class NetworkReductions(Lifecycle):
    """Sums, gathers and agreements over all ranks of a network, which are compared before they
    meet in MPI.
    """

    agreement: Agreement

    @property
    def check(self) -> Checked:
        """Whether ranks compare what they are going to send, when it is of another kind than
        before; True by default.

        With "all", calls with lists of neighbours compare those of all ranks, each time; see
        `local.view.LocalView`.
        """
        return self.matching.check

    @check.setter
    def check(self, value: Checked) -> None:
        self.matching.check = value

    def sum(self, X: np.ndarray) -> np.ndarray:
        """Sum of the rows of all agents, on every rank: the same bits for any number of ranks.

        Raises
        ------
        ValueError, TypeError
            On every rank: rows of different kinds, a wrong number of rows, entries that are no
            numbers.

        Notes
        -----
        Along a binary tree of the numbers of agents.  A rank receives log P messages; of long rows,
        slices from all.
        """
        rows = self._rows("net.sum", X)
        total = self._sum("net.sum", rows)
        return total.astype(np.float16) if rows.dtype == np.float16 else total

    def _sum(self, op: str, X: np.ndarray) -> np.ndarray:
        """Return the sum of checked rows: of float16 in float32, of whole numbers in 64 bits."""
        Z = X.reshape(self.m, math.prod(X.shape[1:]))
        if Z.dtype == np.float16:
            Z = Z.astype(np.float32)
        elif Z.dtype.kind not in "fc":
            Z = Z.astype(np.add.reduce(Z[:0], axis=None).dtype, copy=False)
        if self.size == 1:
            return pairwise_sum(Z).reshape(X.shape[1:])
        sums = node_sums(Z, self.lo, self.n)
        with self.collectives:
            wait = self.operation(op, _kind(X))
            by_slices = Z.shape[1] * Z.itemsize >= _SLICE * self.size
            total = self._by_slices(sums, wait) if by_slices else self._by_tree(sums, wait)
        return total.reshape(X.shape[1:])

    def _by_slices(self, sums: np.ndarray, wait: Callable[..., None]) -> np.ndarray:
        """Return the sum of all agents from those of the nodes of each rank, of which each sums up
        a slice of the columns.
        """
        held = [nodes(*self.partition.bounds(rank), self.n) for rank in range(self.size)]
        width = Partition(sums.shape[1], self.size).counts()
        rows, item = np.array([*map(len, held)]), self.context.row_type(sums.itemsize)
        out = np.concatenate(list(map(np.ravel, np.split(sums, np.cumsum(width)[:-1], axis=1))))
        mine = np.empty((int(rows.sum()), width[self.rank]), sums.dtype)
        sent, received = width * len(sums), rows * width[self.rank]
        into = [mine, (received, np.cumsum(received) - received), item]
        wait(partial(self.comm.Ialltoallv, [out, (sent, np.cumsum(sent) - sent), item], into))
        part = joined(chain.from_iterable(held), mine, self.n)[0]
        total, starts = np.empty(sums.shape[1], sums.dtype), np.cumsum(width) - width
        wait(
            partial(self.comm.Iallgatherv, [part, len(part), item], [total, (width, starts), item])
        )
        return total

    def _by_tree(self, sums: np.ndarray, wait: Callable[..., None]) -> np.ndarray:
        """The same along the tree of agents: the sum of a node is made on the rank of its first
        agent.
        """
        bounds, width = (self.lo, self.hi, self.n), sums.shape[1]
        item, mine, more = self.context.row_type(sums.itemsize), nodes(*bounds), beyond(*bounds)
        whole = len(begun(*bounds)) - bool(more)  # only the last of them reaches beyond hi
        rest = np.empty((len(more), width), sums.dtype)

        def meanwhile() -> CommRequest:
            """Receive what the last one lacks, and send those for other ranks than that one."""
            send, receive = self.comm.Isend, self.comm.Irecv
            into = [receive([rest[i:j], (j - i) * width, item], r, _TAG) for r, i, j in self._right]
            out = [
                send([sums[i:j], (j - i) * width, item], r, _TAG) for r, i, j in self._above[:-1]
            ]
            return Together([*into, *out])

        wait(meanwhile)
        last = joined(chain(mine[whole:], more), chain(sums[whole:], rest), self.n)
        total = np.empty((1, width), sums.dtype)
        for rank, i, _ in self._above[-1:]:
            out = np.array([*sums[i:whole], *last], sums.dtype)
            if self.rank:
                wait(partial(self.comm.Isend, [out, out.size, item], rank, _TAG))
            else:
                total = out
        wait(partial(self.comm.Ibcast, [total, total.size, item], 0))
        result: np.ndarray = total[0]
        return result

    @cached_property
    def _above(self) -> list[tuple[int, int, int]]:
        """The ranks that need sums of nodes which begin on this one, and which of them, `i:j`."""
        some = begun(self.lo, self.hi, self.n)
        return self._runs([max(start - (1 << level), 0) for start, level in some])

    @cached_property
    def _right(self) -> list[tuple[int, int, int]]:
        """The ranks of the nodes from hi on that this one needs, and which of them, `i:j`."""
        return self._runs([start for start, _ in beyond(self.lo, self.hi, self.n)])

    def _runs(self, agents: list[int]) -> list[tuple[int, int, int]]:
        """Return the ranks of agents, one after the other, and which agents each has, `i:j`."""
        owners, i = self.partition.owner(np.array(agents, int)).tolist(), 0
        found: list[tuple[int, int, int]] = []
        for rank, some in groupby(owners):
            j = i + len([*some])
            found.append((rank, i, j))
            i = j
        return found

    @cached_property
    def row_sums(self) -> RowSums:
        """Sums of rows over all ranks, any number of them under way at once."""
        near = () if self.node is None else self.node.near.tolist()
        return RowSums(self.comm, self.engine, near)

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Average of the rows of all agents, on every rank: the same bits for any number of ranks.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     net.mean(np.array([[1., 0.], [2., 0.], [6., 3.]])).tolist()
        [3.0, 1.0]
        """
        rows = self._rows("net.mean", X)
        mean = self._sum("net.mean", rows) / self.n
        return mean.astype(np.float16) if rows.dtype == np.float16 else mean

    def gather(self, X: np.ndarray) -> np.ndarray | None:
        """Return the rows of all agents in their order, shape `(n, ...)`, on rank 0; None on the
        others.

        Raises
        ------
        ValueError, TypeError
            On every rank: rows of different kinds, a wrong number of rows, entries that are no
            numbers.
        """
        return self.gather_rows(X, self.partition.counts())

    def gather_rows(self, X: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray | None:
        """Return the local rows of all ranks, one rank after the other, on rank 0; None on the
        others.

        `counts` are the numbers of rows on each rank, if they are known.
        """
        with self.agreeing("net.gather"):
            rows = np.ascontiguousarray(native(X, "biufcSUV"))
            if rows.ndim == 0 or (counts is not None and len(rows) != counts[self.rank]):
                raise ValueError(
                    f"rank {self.rank}: rows have shape {rows.shape}, expected "
                    f"({'m' if counts is None else counts[self.rank]}, ...): one row for each "
                    "agent on the rank"
                )
        if self.size == 1:
            return np.array(rows)
        with self.collectives:
            wait = self.operation("net.gather", _kind(rows))
            if counts is None:
                counts = self.collectives.gather_all(np.array(len(rows)), "net.gather")
            if _row_bytes(rows) * int(counts.sum()) <= _SLICE * self.size:
                return self._gather_by_tree(rows, counts, wait)
            row = self.context.row_type(_row_bytes(rows))
            stack = (
                np.empty((int(counts.sum()), *rows.shape[1:]), rows.dtype)
                if self.rank == 0
                else None
            )
            into = None if stack is None else [stack, (counts, np.cumsum(counts) - counts), row]
            wait(partial(self.comm.Igatherv, [rows, len(rows), row], into))
        return stack

    def _gather_by_tree(
        self, rows: np.ndarray, counts: np.ndarray, wait: Callable[..., None]
    ) -> np.ndarray | None:
        """Gather short rows along the tree of all ranks, whose subtrees hold consecutive ranks."""
        parent, children = tree(self.rank, self.size)
        held = {child: int(counts[child : child + (child & -child)].sum()) for child in children}
        return self._passed_on(rows, held, parent, wait)

    def _passed_on(
        self,
        rows: np.ndarray,
        senders: Mapping[int, int],
        receiver: int | None,
        wait: Callable[..., None],
    ) -> np.ndarray | None:
        """Send these rows, and behind them those that the `senders` have, so many each, to the
        receiver; return them without one.
        """
        row, parts = self.context.row_type(_row_bytes(rows)), [rows]
        for rank, count in senders.items():
            parts.append(np.empty((count, *rows.shape[1:]), rows.dtype))
            wait(partial(self.comm.Irecv, [parts[-1], count, row], rank, _TAG))
        stack = np.concatenate(parts)
        if receiver is None:
            return stack
        wait(partial(self.comm.Isend, [stack, len(stack), row], receiver, _TAG))
        return None

    def node_firsts(self) -> np.ndarray:
        """Return the first rank of the node of each rank, (ranks,); collective."""
        local = ranks_of_node(self.comm, self.context.ranks_per_node)
        first = local.bcast(self.rank)
        local.Free()
        return self.collectives.gather_all(np.array(first), "the ranks of the nodes")

    def gather_on_node(
        self, X: np.ndarray, counts: np.ndarray, firsts: np.ndarray
    ) -> np.ndarray | None:
        """Return the local rows of the ranks of this node, one rank after the other, on its first
        rank; None on the others.

        Parameters
        ----------
        X : array, (rows, ...)
        counts : array, (ranks,)
            The numbers of rows on each rank.
        firsts : array, (ranks,)
            The first rank of the node of each rank.
        """
        rows, first = np.ascontiguousarray(X), int(firsts[self.rank])
        others = np.flatnonzero(firsts == first).tolist()[1:] if first == self.rank else ()
        with self.collectives:
            wait = self.operation("net.gather_on_node", _kind(rows))
            held = {rank: int(counts[rank]) for rank in others}
            return self._passed_on(rows, held, None if first == self.rank else first, wait)

    def scatter(self, stack: np.ndarray | None, counts: np.ndarray | None = None) -> np.ndarray:
        """Return the local agents' rows of a stack `(n, ...)` that rank 0 holds; the inverse of
        `gather`.

        Raises
        ------
        ValueError, TypeError
            On every rank: a wrong number of rows, entries that are no numbers.
        """
        counts = self.partition.counts() if counts is None else counts
        whole = np.empty(0)
        with self.agreeing("net.scatter"):
            if self.rank == 0:
                whole = np.ascontiguousarray(native(stack, "biufcSUV"))
                if whole.ndim == 0 or len(whole) != counts.sum():
                    raise ValueError(
                        f"the stack has shape {whole.shape}, expected ({counts.sum()}, ...): one "
                        "row for each agent"
                    )
        if self.size == 1:
            return whole
        with self.collectives:
            wait = self.operation("net.scatter")
            shape, dtype = self.collectives.broadcast((whole.shape, whole.dtype), 0, "net.scatter")
            rows = np.empty((int(counts[self.rank]), *shape[1:]), dtype)
            row = self.context.row_type(_row_bytes(rows))
            source = [whole, (counts, np.cumsum(counts) - counts), row] if self.rank == 0 else None
            wait(partial(self.comm.Iscatterv, source, [rows, len(rows), row]))
        return rows

    def agreeing(self, op: str) -> AbstractContextManager[None]:
        """A context of all ranks: if one refuses its arguments in it, all raise the error of the
        lowest such rank.
        """
        return self.agreement.agreeing(op)

    def operation(
        self, op: str, signature: str = ""
    ) -> Callable[[Callable[[], CommRequest]], None]:
        """Begin a call of all ranks, after they have agreed on its signature once; the function
        that completes its requests.
        """
        return self.agreement.operation(op, signature)

    def messages(self, op: str, signature: str = "") -> Callable[[Request], None]:
        """Begin a call of all ranks whose messages meet no others, such as those of `row_sums`,
        after they have agreed on its signature once; the function that waits for its requests.
        """
        return self.agreement.messages(op, signature)

    def agree(self, error: Exception | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank.

        Notes
        -----
        Collective: one small reduction when no rank has an error.
        """
        self.agreement.agree(error, "net.agree")

    def withdraw(self, op: str, error: Exception) -> None:
        """Take no part in the next call of all ranks, `op`, and tell the others why."""
        if self.size > 1:
            self.matching.withdraw(
                op, error, [rank for rank in self.agreement.others if rank != self.rank]
            )

    @contextmanager
    def raising_together(self) -> Iterator[None]:
        """Context that an exception on one rank ends on all ranks, each in its next wait; the
        network is then out of step.
        """
        try:
            yield
        except Exception as error:
            lost = died(error) or isinstance(error, RanksLost)  # of which all ranks hear
            alone = self.size == 1 or self._freed or self.matching.departures.left or lost
            if not alone and not on_all_ranks(error):
                self.matching.fail(error)
            raise

    def _rows(self, op: str, X: ArrayLike) -> np.ndarray:
        """Return the rows `X`, checked; errors are reported to the other ranks."""
        try:
            rows = native(X, "biufc")
            if rows.ndim == 0 or len(rows) != self.m:
                hint = "; net.comm.allreduce(x) adds a number of each rank" * (rows.ndim == 0)
                raise ValueError(
                    f"rank {self.rank}: rows have shape {rows.shape}, expected ({self.m}, ...): "
                    "one row for each "
                    f"agent on the rank{hint}"
                )
        except (TypeError, ValueError) as error:
            self.withdraw(op, error)
            raise
        return rows


def _kind(rows: np.ndarray) -> str:
    """Return what these rows consist of, which must be the same on all ranks."""
    return f"rows of {' x '.join(map(str, rows.shape[1:])) or 1} {rows.dtype}"


def _row_bytes(rows: np.ndarray) -> int:
    """Return the size of one of these rows."""
    return rows.itemsize * math.prod(rows.shape[1:])
