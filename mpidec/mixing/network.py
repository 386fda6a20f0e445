"""The network: agents on ranks, the communicator, and sums over all agents."""

from __future__ import annotations

import operator
import os
import pickle
import secrets
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..checks.history import PastOperation
from ..arrays.host import empty_like
from ..runtime.partition import Partition
from ..runtime.buffers import POOL, Buffers, RowTypes
from ..kernels.weighted import ordered_sum
from ..runtime.launch import abort_when_uncaught, check_launcher
from ..checks.operation import tree
from .local.view import LocalView
from ..runtime.node import Stack
from ..transport.messages import Wire, wire
from ..runtime.waiting import wait_until

if TYPE_CHECKING:
    from ..topology import Schedule, Topology
    from .mixer import Mixer
    from ..transport.plan import Plan

TRANSPORTS = ("auto", "shared", "neighbor", "p2p")


class Network(LocalView):
    """`n` agents over the ranks of a communicator, in blocks.

    Parameters
    ----------
    n : int, optional
        Number of agents; one per rank by default.  Any number goes: a rank hosts `n / size` agents, rounded up on the
        first ranks and down on the last; with fewer agents than ranks the last ranks host none.
    comm : mpi4py.MPI.Intracomm, optional
        `MPI.COMM_WORLD` by default.  The network works on a duplicate that it owns, so that its messages never meet yours.
    transport : {"auto", "shared", "neighbor", "p2p"}, optional
        How rows travel between ranks (or the environment variable `MPIDEC_TRANSPORT`): `shared` reads them where they lie in
        the memory of the node, `neighbor` sends them by neighbourhood collectives on the distributed-graph communicator, `p2p`
        by point-to-point messages.  `auto` takes the first between the ranks of a node and the third between nodes.

    Attributes
    ----------
    n, lo, hi, m : int
        All agents; this rank hosts the `m` agents `lo:hi`.
    rank, size : int
    comm : mpi4py.MPI.Intracomm

    Raises
    ------
    ValueError
        If `n` is not a whole number >= 1.
    RuntimeError
        If the launcher started several processes and each believes to be alone.

    Notes
    -----
    Collective over `comm`.  A context manager; `close()` frees all that the network and its mixers hold.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.ring(4))
    ...     W(np.array([[0.], [3.], [0.], [0.]])).ravel().tolist()
    [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(self, n: int | None = None, comm: MPI.Intracomm | None = None, *, transport: str | None = None):
        comm = MPI.COMM_WORLD if comm is None else comm
        check_launcher(comm)
        self.n = _agents(comm.size if n is None else n)
        self.transport = transport or os.environ.get("MPIDEC_TRANSPORT") or "auto"
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport is {self.transport!r}, expected one of {', '.join(TRANSPORTS)}")
        if comm.size > 1:
            abort_when_uncaught()
        self.comm = comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        self.serial = self.comm.bcast(secrets.randbits(48)) if self.size > 1 else 0
        self.partition = Partition(self.n, self.size)
        self.lo, self.hi = self.partition.bounds(self.rank)
        self.m = self.hi - self.lo
        self.row_type = RowTypes()
        self._mixers: list[Mixer] = []
        self.out_of_step = False                    # messages that nobody waits for may still be under way
        self._agreed: set[tuple[str, str]] = set()
        self._others = frozenset(range(self.size))
        self.stack = self._stack()

    @property
    def agents(self) -> range:
        """The agents that this rank hosts."""
        return range(self.lo, self.hi)

    def mixer(self, topology: Topology | Schedule) -> Mixer:
        """The operator `W` of a topology or a schedule on this network.

        Raises
        ------
        ValueError
            On every rank, if the topology is not for `n` agents, or if the ranks hand in different topologies.

        Notes
        -----
        Collective: two small reductions; a graph communicator for each phase, when it is first used.
        """
        from .mixer import Mixer
        self.agree(None if topology.n == self.n else ValueError(
            f"{topology.name} topology has {topology.n} agents, the network has {self.n}"))
        if self.size > 1:
            self._same_everywhere(topology)
        self._mixers.append(Mixer(self, topology))
        return self._mixers[-1]

    def _same_everywhere(self, topology: Topology | Schedule) -> None:
        mark = topology.fingerprint() & 0x7FFFFFFFFFFFFFFF
        low, high = np.array([mark, -mark], np.int64), np.empty(2, np.int64)
        self._enter("net.mixer")(self.comm.Iallreduce(low, high, MPI.MIN))
        if high[0] != -high[1]:
            raise ValueError(f"the ranks hand in different topologies ({topology.name} here, on rank {self.rank}); every rank "
                             "must build the same one: give random topologies the same seed everywhere")

    def _stack(self) -> Stack | None:
        """The memory of the node, if rows are to be read there: the same decision on all ranks of a node."""
        if self.size == 1 or self.transport not in ("auto", "shared"):
            return None
        pretended = os.environ.get("MPIDEC_RANKS_PER_NODE") or "0"
        if not pretended.isdigit():
            raise ValueError(f"MPIDEC_RANKS_PER_NODE is {pretended!r}, expected a whole number")
        stack = Stack(self.comm, int(pretended) or None)
        if stack.useful:
            return stack
        stack.close()
        return None

    def _begun(self) -> int:
        return 0 if self.stack is None else self.stack.node.seq

    def wire(self, plan: Plan, periodic: bool) -> Wire:
        """What carries the messages of one plan; collective if `transport` is "neighbor" and the plan will come again."""
        return wire(self.comm, plan, self.transport, self.row_type, self.buffers, periodic)

    @cached_property
    def buffers(self) -> Buffers:
        """Memory for rows that are not in the stack."""
        return Buffers()

    def empty(self, shape: int | tuple[int, ...] = (), dtype: Any = None, like: Any = None) -> Any:
        """Rows for the local agents, uninitialized: shape `(m, *shape)`, where mixing them costs least.

        Parameters
        ----------
        shape : int or tuple of int
            Of one agent's row.
        dtype : optional
            Of NumPy; float64 by default, or that of `like`.
        like : array, optional
            The rows are of its kind (NumPy, PyTorch, CuPy), where it lives.
        """
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        empty = self.stack.rows if self.stack is not None else np.empty
        if like is not None:
            return empty_like(like, (self.m, *shape), dtype, empty)
        return empty((self.m, *shape), np.float64 if dtype is None else dtype)

    def sum(self, X: np.ndarray) -> np.ndarray:
        """Sum of the rows of all agents, on every rank: the same bits for any number of ranks.

        Notes
        -----
        Each rank sums a slice of the columns over all agents in their order: an `Alltoallv` and an `Allgatherv` of
        about one row per agent.
        """
        X = np.asarray(X)
        if X.dtype == np.float16:
            return self.sum(X.astype(np.float32)).astype(np.float16)
        Z = X.reshape(self.m, int(np.prod(X.shape[1:])))
        if self.size == 1:
            return ordered_sum(Z).reshape(X.shape[1:])
        columns = Partition(Z.shape[1], self.size)
        width, held = columns.counts(), self.partition.counts()
        cuts = np.cumsum(width)[:-1]
        out = np.concatenate([part.ravel() for part in np.split(Z, cuts, axis=1)])
        mine = np.empty((self.n, width[self.rank]), Z.dtype)
        item = self.row_type(Z.itemsize)
        sent, received = width * self.m, held * width[self.rank]
        wait = self._enter("net.sum", f"rows of {Z.shape[1]} {Z.dtype}")
        wait(self.comm.Ialltoallv([out, (sent, np.cumsum(sent) - sent), item],
                                  [mine, (received, np.cumsum(received) - received), item]))
        total, slice_sum = np.empty(Z.shape[1], Z.dtype), ordered_sum(mine)
        wait(self.comm.Iallgatherv([slice_sum, int(width[self.rank]), item], [total, (width, np.cumsum(width) - width), item]))
        return total.reshape(X.shape[1:])

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Average of the rows of all agents, on every rank: the same bits for any number of ranks.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     net.mean(np.array([[1., 0.], [2., 0.], [6., 3.]])).tolist()
        [3.0, 1.0]
        """
        X = np.asarray(X)
        return self.mean(X.astype(np.float32)).astype(X.dtype) if X.dtype == np.float16 else self.sum(X) / self.n

    def gather(self, X: np.ndarray) -> np.ndarray | None:
        """The rows of all agents in their order, shape `(n, ...)`, on rank 0; None on the others."""
        return self.gather_rows(X, self.partition.counts())

    def gather_rows(self, X: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray | None:
        """The local rows of all ranks, one rank after the other, on rank 0; None on the others."""
        X = np.ascontiguousarray(X)
        if self.size == 1:
            return X.copy()
        wait = self._enter("net.gather", f"rows of {' x '.join(map(str, X.shape[1:]))} {X.dtype}")
        if counts is None:
            counts = np.array(self.comm.allgather(len(X)))
        row = self.row_type(X.itemsize * int(np.prod(X.shape[1:])))
        stack = np.empty((int(counts.sum()), *X.shape[1:]), X.dtype) if self.rank == 0 else None
        into = None if stack is None else [stack, (counts, np.cumsum(counts) - counts), row]
        wait(self.comm.Igatherv([X, len(X), row], into))
        return stack

    def scatter(self, stack: np.ndarray | None, counts: np.ndarray | None = None) -> np.ndarray:
        """The local agents' rows of a stack `(n, ...)` that rank 0 holds; the inverse of `gather`."""
        if self.size == 1:
            return np.ascontiguousarray(stack)
        head = None if stack is None else (stack.shape, stack.dtype.str)
        shape, dtype = self.comm.bcast(head)
        counts = self.partition.counts() if counts is None else counts
        if shape[0] != counts.sum():
            raise ValueError(f"the stack has {shape[0]} rows, expected {counts.sum()}")
        rows = np.empty((int(counts[self.rank]), *shape[1:]), dtype)
        row = self.row_type(rows.itemsize * int(np.prod(shape[1:])))
        source = None if stack is None else [np.ascontiguousarray(stack), (counts, np.cumsum(counts) - counts), row]
        self.comm.Scatterv(source, [rows, len(rows), row])
        return rows

    def agree(self, error: Exception | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank.

        Notes
        -----
        Collective: one small reduction when nobody has an error.
        """
        if self.size == 1:
            if error is not None:
                raise error
            return
        mine, lowest = np.array([self.size if error is None else self.rank]), np.empty(1, int)
        self._enter("net.agree")(self.comm.Iallreduce(mine, lowest, MPI.MIN))
        first = int(lowest[0])
        if first < self.size:
            raise self.comm.bcast(_portable(error) if self.rank == first else None, root=first)

    def _enter(self, op: str, mark: str = "") -> Callable[[MPI.Request], None]:
        """Begin a call of all ranks, after they have agreed on `mark` once; what waits for its requests."""
        matching, before = self.matching, self._begun()
        if mark and self.check and (op, mark) not in self._agreed:
            number = matching.agree(op, mark)
            self._agreed.add((op, mark))
        else:
            number = matching.register(PastOperation(op, "", mark, self._others, ""))
        parent, children = tree(self.rank, self.size)
        near = children if parent is None else [parent, *children]

        def wait(request: MPI.Request) -> None:
            wait_until(request.Test, f"all ranks to come to {op}", partial(matching.ask, near, number, op, mark, before))
        return wait

    def close(self) -> None:
        """Free the communicators and datatypes of the network and of its mixers; collective, and safe to repeat."""
        if self.comm == MPI.COMM_NULL or MPI.Is_finalized():
            return
        self.out_of_step = self._matching is not None and bool(self._matching.broken)
        error = self._close_local()
        for mixer in list(self._mixers):
            mixer.close()
        self.comm.Barrier()                         # by then everybody has read this rank's rows
        if self.stack is not None:
            self.stack.close()
        self.row_type.free()
        POOL.clear()
        self.comm.Free()
        if error is not None:
            raise error

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self.size == 1:          # after an error the other ranks may be anywhere: nothing collective
            self.close()

    def __repr__(self) -> str:
        return f"Network(n={self.n}, rank {self.rank} of {self.size}, agents {self.lo}:{self.hi})"


def _agents(n: object) -> int:
    try:
        count = operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1 or isinstance(n, bool):
        raise ValueError(f"number of agents is {n!r}, expected a whole number >= 1")
    return count


def _portable(error: Exception | None) -> Exception | None:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
