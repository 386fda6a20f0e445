"""The network: agents on ranks, the communicator, and sums over all agents."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import secrets
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ...exceptions import RankMismatchError, on_all_ranks
from ..arrays.host import empty_like, native
from ..checks.history import PastOperation
from ..checks.matching import Matching
from ..checks.operation import tree
from ..kernels.weighted import COMPILED, ordered_sum
from ..rma.layout import Layout
from ..rma.messenger import WindowMessenger
from ..rma.slots import Slots
from ..rma.window import Window
from ..runtime.collectives import Collectives
from ..runtime.context import Context
from ..runtime.launch import abort_when_uncaught, check_launcher, warn_if_not_compiled
from ..runtime.memory import empty, memory, shared
from ..runtime.mpi import MPI
from ..runtime.node import NodeMemory
from ..runtime.partition import Partition
from ..runtime.progress import ProgressEngine, abandon
from ..runtime.row_types import RowTypes
from ..transport.halo import Ending
from ..transport.node_calls import NodeCalls
from .local.view import LocalView
from .mixer import Mixer

if TYPE_CHECKING:
    from ...topology import Schedule, Topology

TRANSPORTS = ("auto", "shared", "neighbor", "p2p")
_LEFT: list[Network] = []  # networks that were left without close()
_LEFT_AT_ONCE = 8
_OPEN: weakref.WeakSet[Network] = weakref.WeakSet()
_NUMBERS = count()
_WORDS = 160  # characters of a call that ranks tell each other


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
    partition : Partition
        Agents over ranks.

    Raises
    ------
    ValueError
        On every rank, if `n` is not a whole number >= 1, or `n` or `transport` differ between ranks.
    RuntimeError
        If the launcher started several processes and each believes it is alone.

    Notes
    -----
    Collective over `comm`.  A context manager; `close()` frees all that the network and its mixers hold.  A network that an
    exception leaves on all ranks is freed when they make the next one.  One thread at a time may be in a call of a network;
    several threads need a network each, and an MPI library with `MPI_THREAD_MULTIPLE`.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.ring(4))
    ...     W(np.array([[0.], [3.], [0.], [0.]])).ravel().tolist()
    [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(
        self,
        n: int | None = None,
        comm: MPI.Intracomm | None = None,
        *,
        transport: str | None = None,
    ):
        comm = MPI.COMM_WORLD if comm is None else comm
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL or comm.Is_inter():
            raise TypeError(
                f"Network: comm is {_named(comm)}, expected an intracommunicator such as MPI.COMM_WORLD"
            )
        check_launcher(comm)
        warn_if_not_compiled(COMPILED and (shared is not None or sys.platform != "linux"))
        if comm.size > 1:
            abort_when_uncaught()
        self.rank, self.size = comm.rank, comm.size
        self.n, self.transport, per_node = _agreed(comm, n, transport)
        self.comm = comm.Dup()
        self.serial = self.comm.bcast(secrets.randbits(48)) if self.size > 1 else 0
        self.partition = Partition(self.n, self.size)
        self.lo, self.hi = self.partition.bounds(self.rank)
        self.m = self.hi - self.lo
        self.engine = ProgressEngine()
        self.collectives = Collectives(self.comm)
        node = (
            NodeMemory(self.comm, self.engine, per_node)
            if self.size > 1 and self.transport in ("auto", "shared")
            else None
        )
        if node is not None and not node.useful:
            node.close()
            node = None
        self.node = node
        self.matching = Matching(
            self.comm, self.serial, partial(_mixings, node), self.engine, partial(_refusal, node)
        )
        self.engine.add(self.matching.poll)
        self.collectives.ask = self.matching.look_for_leavers
        self.context = Context(
            self.comm,
            self.rank,
            self.partition,
            self.engine,
            node,
            self.matching,
            RowTypes(),
            self.transport,
        )
        self._node_calls = (
            NodeCalls(self.context) if node is not None and node.single_node else None
        )
        self._mixers: list[Mixer] = []
        self._windows: list[Window] = []
        self._messengers: dict[str, WindowMessenger] = {}
        self._agreed: set[tuple[str, str]] = set()
        self._known = set()
        self._sums = {}
        self._others = frozenset(range(self.size))
        self._number = next(_NUMBERS)
        _OPEN.add(self)

    @property
    def agents(self) -> range:
        """The agents that this rank hosts."""
        return range(self.lo, self.hi)

    @property
    def check(self) -> bool:
        """Whether ranks compare what they are going to send, when it is of another kind than before; True by default."""
        return self.matching.check

    @check.setter
    def check(self, value: bool) -> None:
        self.matching.check = value

    def mixer(self, topology: Topology | Schedule) -> Mixer:
        """The operator `W` of a topology or a schedule on this network.

        Raises
        ------
        ValueError
            On every rank, if the topology is not for `n` agents, or if the ranks hand in different topologies.

        Notes
        -----
        Collective: two small reductions.  With `neighbor` a third one, and a graph communicator for each topology of the
        schedule; one with a period of more than 64 steps, or none, uses point-to-point messages.
        """
        error: Exception | None = None
        try:
            _check_graph("net.mixer", topology)
            if topology.n != self.n:
                raise ValueError(
                    f"{topology.name} topology has {topology.n} agents, the network has {self.n}"
                )
        except (TypeError, ValueError) as caught:
            error = caught
        self.agree(error)
        if self.size > 1:
            self._same_everywhere(topology, "net.mixer")
        self._mixers = [mixer for mixer in self._mixers if not mixer.closed]
        with self.engine:
            self._mixers.append(Mixer(self.context, topology))
        return self._mixers[-1]

    def window(
        self,
        x: Any,
        topology: Topology | None = None,
        zero: bool = True,
        progress: bool | None = None,
    ) -> Window:
        """A one-sided window: `x`, and a slot for each in-neighbour, which writes to it at any time.

        Parameters
        ----------
        x : array, or list of arrays of one dtype
            Of any shape, float16 to complex128, NumPy or PyTorch (also bfloat16); the same shape and dtype on all ranks.
        topology : Topology, optional
            Of the ranks; the one that was set with `set_topology` by default.
        zero : bool
            Whether the slots are zeros at first, or copies of `x` (with push-sum weight 0).
        progress : bool, optional
            Whether a thread of this rank handles the messages of ranks on other nodes while this rank computes, or is in an MPI
            call of the program; by default where MPI has `MPI_THREAD_MULTIPLE`, which it needs.  Within a node nobody needs it,
            and no thread is started.

        Returns
        -------
        Window
            With `value` a copy of `x`.

        Raises
        ------
        ValueError, TypeError
            On every rank: no topology, or arrays that differ between ranks.

        Notes
        -----
        Collective.  See `mpidec.comm.rma.Window`.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(comm=MPI.COMM_SELF) as net:
        ...     with net.window(np.arange(3.), mpidec.topology.ring(1)) as win:
        ...         win.put(2 * win.value)
        ...         win.update().tolist()
        [0.0, 1.0, 2.0]
        """
        layout, error = None, None
        try:
            self._one_agent_each()
            if topology is None and self._graph is not None:
                topology = self._graph.topology  # type: ignore[assignment]
            if topology is None:
                raise ValueError(
                    "net.window: no topology, expected one as an argument, or net.set_topology(topology) before"
                )
            _check_graph("net.window", topology)
            if topology.n != self.n or topology.period != 1:
                raise ValueError(
                    f"net.window: the {topology.name} topology has {topology.n} agents and period {topology.period}, "
                    f"expected a static topology of {self.n}"
                )
            if progress and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
                raise ValueError(
                    "net.window: progress=True needs MPI_THREAD_MULTIPLE, which this MPI library does not offer: "
                    "leave it out"
                )
            if progress is None:
                progress = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
            layout = Layout(x)
        except (TypeError, ValueError) as caught:
            error = caught
        self._agree(error, "net.window")
        if layout is None or topology is None:
            raise RuntimeError("unreachable")
        if self.size > 1:
            self._same_everywhere(topology, "net.window")
            self.operation("net.window", f"{layout.words}, zero={bool(zero)}")
        window = Window(
            self.context,
            self.collectives,
            self._window_messenger("windows"),
            topology,
            x,
            layout,
            zero,
            bool(progress),
            self._windows.remove,
        )
        self._windows.append(window)
        return window

    def slots(self, topology: Topology, X: np.ndarray) -> Slots:
        """Values and slots of the agents of a static topology: what windows and asynchronous methods are made of.

        Parameters
        ----------
        topology : Topology
            Of `n` agents.
        X : array (m, count)
            The values of the local agents at first, float32 or float64.

        Notes
        -----
        Collective.  See `mpidec.comm.rma.slots.Slots`.
        """
        if self.size > 1:
            self._same_everywhere(topology, "net.slots")
            self.operation("net.slots", f"rows of {X.shape[1]} {X.dtype}")
        return Slots(
            self.context,
            self.collectives,
            self._window_messenger("slots"),
            topology,
            X,
            "net.slots",
        )

    def _window_messenger(self, what: str) -> WindowMessenger | None:
        """The messages of windows, which a helper may look after, or of other slots, whose receivers are not made for that."""
        if self.size > 1 and what not in self._messengers:
            self._messengers[what] = WindowMessenger(self.comm.Dup(), self.engine)
        return self._messengers.get(what)

    def _same_everywhere(self, topology: Topology | Schedule, op: str) -> None:
        fingerprint = topology.fingerprint() & 0x7FFFFFFFFFFFFFFF
        low, high = np.array([fingerprint, -fingerprint], np.int64), np.empty(2, np.int64)
        self.operation(op)(lambda: self.comm.Iallreduce(low, high, MPI.MIN))
        if high[0] != -high[1]:
            raise ValueError(
                f"the ranks hand in different topologies ({topology.name} here, on rank {self.rank}); every rank "
                "must build the same one: give random topologies the same seed everywhere"
            )

    def empty(self, shape: int | tuple[int, ...] = (), dtype: Any = None, like: Any = None) -> Any:
        """Rows for the local agents, uninitialized: shape `(m, *shape)`, in memory where mixing is cheapest.

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
        if like is not None:
            return empty_like(like, (self.m, *shape), dtype, empty)
        return empty((self.m, *shape), np.float64 if dtype is None else dtype)

    def memory(self) -> AbstractContextManager[None]:
        """A context in which NumPy allocates large arrays (16 KB and more) in memory where mixing is cheapest.

        Temporaries then lie where neighbours read them in place, and in memory that has been used before, so that they cost no
        page faults.  `solve` runs in this context.  Arrays may outlive the context and the network.

        Notes
        -----
        The context belongs to the current thread (or task); leave it in the function that has entered it.  Where the package was
        installed without a compiler it does nothing.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net, net.memory():
        ...     float((np.ones((4, 3000)) - 0.5 * np.ones((4, 3000))).sum())
        6000.0
        """
        return memory()

    @contextmanager
    def keeping_rows(self) -> Iterator[None]:
        """A context in which rows that are handed to `W(X)` are never changed afterwards: no mixing waits until they are read."""
        node = None if self.node is None else self.node.node
        if node is None:
            yield
            return
        before, node.late = node.late, 1
        try:
            yield
            self.wait_for_readers()
        finally:
            node.late = before

    def keeping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A solver's step that never changes rows that it has handed to `W`; leave with `_drain`."""
        node = None if self.node is None else self.node.node
        if node is None:
            return step

        def keeping(s: Any, G: Any, W: Any) -> Any:
            node.late = 1
            try:
                return step(s, G, W)
            finally:
                node.late = 0

        return keeping

    def wait_for_readers(self) -> None:
        """Return when the rows that a solver's steps have kept may be changed."""
        if self.node is not None:
            with self.engine:
                self.node.node.drain()

    def sum(self, X: np.ndarray) -> np.ndarray:
        """Sum of the rows of all agents, on every rank: the same bits for any number of ranks.

        Raises
        ------
        ValueError, TypeError
            On every rank: rows of different kinds, a wrong number of rows, entries that are no numbers.

        Notes
        -----
        Each rank sums a slice of the columns over all agents in their order: an `Alltoallv` and an `Allgatherv` of
        about one row per agent.
        """
        return self._sum("net.sum", X)

    def _sum(self, op: str, X: np.ndarray) -> np.ndarray:
        X = self._rows(op, X)
        if X.dtype == np.float16:
            return self._sum(op, X.astype(np.float32)).astype(np.float16)
        Z = X.reshape(self.m, int(np.prod(X.shape[1:])))
        Z = Z.astype(
            np.add.reduce(Z[:0], axis=None).dtype, copy=False
        )  # whole numbers as NumPy sums them: int64 or uint64
        if self.size == 1:
            return ordered_sum(Z).reshape(X.shape[1:])
        columns, row_type = Partition(Z.shape[1], self.size), self.context.row_type
        width, held = columns.counts(), self.partition.counts()
        cuts = np.cumsum(width)[:-1]
        out = np.concatenate([part.ravel() for part in np.split(Z, cuts, axis=1)])
        mine = np.empty((self.n, width[self.rank]), Z.dtype)
        item = row_type(Z.itemsize)
        sent, received = width * self.m, held * width[self.rank]
        wait = self.operation(op, f"rows of {Z.shape[1]} {Z.dtype}")
        wait(
            lambda: self.comm.Ialltoallv(
                [out, (sent, np.cumsum(sent) - sent), item],
                [mine, (received, np.cumsum(received) - received), item],
            )
        )
        total, slice_sum = np.empty(Z.shape[1], Z.dtype), ordered_sum(mine)
        wait(
            lambda: self.comm.Iallgatherv(
                [slice_sum, int(width[self.rank]), item],
                [total, (width, np.cumsum(width) - width), item],
            )
        )
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
        if getattr(X, "dtype", None) == np.float16:  # summed in float32, rounded once
            return (self._sum("net.mean", X.astype(np.float32)) / self.n).astype(np.float16)
        return self._sum("net.mean", X) / self.n

    def gather(self, X: np.ndarray) -> np.ndarray | None:
        """The rows of all agents in their order, shape `(n, ...)`, on rank 0; None on the others.

        Raises
        ------
        ValueError, TypeError
            On every rank: rows of different kinds, a wrong number of rows, entries that are no numbers.
        """
        return self.gather_rows(X, self.partition.counts())

    def gather_rows(self, X: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray | None:
        """The local rows of all ranks, one rank after the other, on rank 0; None on the others.

        `counts` are the numbers of rows on each rank, if they are known.
        """
        rows, error = np.empty(0), None
        try:
            rows = np.ascontiguousarray(native(X, "biufcSUV"))
            if rows.ndim == 0 or (counts is not None and len(rows) != counts[self.rank]):
                raise ValueError(
                    f"rank {self.rank}: rows have shape {rows.shape}, expected "
                    f"({'m' if counts is None else counts[self.rank]}, ...): one row for each agent on the rank"
                )
        except (TypeError, ValueError) as caught:
            error = caught
        self._agree(error, "net.gather")
        if self.size == 1:
            return np.array(rows)
        wait = self.operation(
            "net.gather", f"rows of {' x '.join(map(str, rows.shape[1:]))} {rows.dtype}"
        )
        if counts is None:
            counts = self.collectives.gather_all(np.array(len(rows)), "net.gather")
        row = self.context.row_type(rows.itemsize * int(np.prod(rows.shape[1:])))
        stack = (
            np.empty((int(counts.sum()), *rows.shape[1:]), rows.dtype) if self.rank == 0 else None
        )
        into = None if stack is None else [stack, (counts, np.cumsum(counts) - counts), row]
        wait(lambda: self.comm.Igatherv([rows, len(rows), row], into))
        return stack

    def scatter(self, stack: np.ndarray | None, counts: np.ndarray | None = None) -> np.ndarray:
        """The local agents' rows of a stack `(n, ...)` that rank 0 holds; the inverse of `gather`.

        Raises
        ------
        ValueError, TypeError
            On every rank: a wrong number of rows, entries that are no numbers.
        """
        counts = self.partition.counts() if counts is None else counts
        whole, error = np.empty(0), None
        if self.rank == 0:
            try:
                whole = np.ascontiguousarray(native(stack, "biufcSUV"))
                if whole.ndim == 0 or len(whole) != counts.sum():
                    raise ValueError(
                        f"the stack has shape {whole.shape}, expected ({counts.sum()}, ...): one row for each agent"
                    )
            except (TypeError, ValueError) as caught:
                error = caught
        self._agree(error, "net.scatter")
        if self.size == 1:
            return whole
        wait = self.operation("net.scatter")
        shape, dtype = self.collectives.broadcast((whole.shape, whole.dtype), 0, "net.scatter")
        rows = np.empty((int(counts[self.rank]), *shape[1:]), dtype)
        row = self.context.row_type(rows.itemsize * int(np.prod(shape[1:])))
        source = [whole, (counts, np.cumsum(counts) - counts), row] if self.rank == 0 else None
        wait(lambda: self.comm.Iscatterv(source, [rows, len(rows), row]))
        return rows

    def agree(self, error: Exception | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank.

        Notes
        -----
        Collective: one small reduction when no rank has an error.
        """
        self._agree(error, "net.agree")

    @contextmanager
    def raising_together(self) -> Iterator[None]:
        """A context that an exception on one rank ends on all ranks, each in its next wait; the network is out of step then."""
        try:
            yield
        except Exception as error:
            if self.size > 1 and not self.matching.left and not on_all_ranks(error):
                self.matching.fail(error)
            raise

    def _agree(self, error: Exception | None, op: str) -> None:
        if self.size == 1:
            if error is not None:
                raise error
            return
        number, ask = self._asking(op)
        first = self._compare(number, op, "", ask, self.size if error is None else self.rank)
        self.collectives.raise_from(first, error, op)

    def _rows(self, op: str, X: Any) -> np.ndarray:
        """The rows `X`, checked; the other ranks are told when they are wrong."""
        try:
            rows = native(X, "biufc")
            if rows.ndim == 0 or len(rows) != self.m:
                raise ValueError(
                    f"rank {self.rank}: rows have shape {rows.shape}, expected ({self.m}, ...): one row for each "
                    "agent on the rank"
                )
        except (TypeError, ValueError) as error:
            if self.size > 1:
                self.matching.withdraw(op, error, self._others - {self.rank})
            raise
        return rows

    def operation(
        self, op: str, signature: str = ""
    ) -> Callable[[Callable[[], MPI.Request]], None]:
        """Begin a call of all ranks, after they have agreed on its signature once; the function that completes its requests."""
        number, ask = self._asking(op, signature)
        if self.check:
            self._compare(number, op, signature, ask, self.size)
        return lambda begin: self.collectives.wait(begin, op, ask)

    def _asking(self, op: str, signature: str = "") -> tuple[int, Callable[[], None]]:
        with self.engine:
            self._open()
            matching, before = self.matching, self.context.mixings
            if signature and self.check and (op, signature) not in self._agreed:
                number = matching.agree(op, signature)
                self._agreed.add((op, signature))
            else:
                number = matching.register(PastOperation(op, "", signature, self._others, ""))
        parent, children = tree(self.rank, self.size)
        near = children if parent is None else [parent, *children]
        return number, partial(matching.ask, near, number, op, signature, before)

    def _compare(
        self, number: int, op: str, signature: str, ask: Callable[[], None], first: int
    ) -> int:
        """The least `first` of all ranks, when all have come to the same call of all ranks.

        Different collectives of MPI meet without a word, and return wrong numbers.

        Raises
        ------
        RankMismatchError
            On every rank: some are in another call.
        """
        words = f"{op} call {number}{f' ({signature})' if signature else ''}"
        mine = np.array([first, number, zlib.crc32(words.encode())])
        least, most = np.split(self.collectives.minimum(np.concatenate([mine, -mine]), op, ask), 2)
        if not np.array_equal(least[1:], -most[1:]):
            all_ = self.collectives.gather_all(
                np.array(words[:_WORDS].encode(), f"S{_WORDS}").reshape(1).view(np.uint8), op
            )
            texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in all_]
            texts = [
                text if text.isascii() and text.isprintable() else "another call" for text in texts
            ]
            other = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise RankMismatchError(
                f"rank 0 is in {texts[0]}, rank {other} in {texts[other]}: every rank must make the same calls in "
                "the same order"
            )
        return int(least[0])

    def _open(self) -> None:
        if self.comm == MPI.COMM_NULL:
            raise RuntimeError("the network is closed: make a new one")

    def close(self) -> None:
        """Free the communicators and datatypes of the network and of its mixers; collective, and safe to repeat."""
        if self.comm == MPI.COMM_NULL or MPI.Is_finalized():
            return
        if (
            self.matching.left
        ):  # by all ranks, which may be one call apart: the next network frees it
            self._leave()
            return
        with self.engine:
            error = None if self.size == 1 else self.matching.close(self.collectives.interrupted)
            ends: Ending = (
                "broken"
                if self.matching.broken or self.matching.apart
                else "left"
                if self in _LEFT
                else "complete"
            )
            for mixer in list(self._mixers):
                mixer.close(ends)
            self._mixers.clear()
            broken = any(post.broken for post in self._messengers.values())
            for window in self._windows if ends == "complete" and not broken else ():
                window.flush()
            lost = not self._messengers or broken or ends != "complete"
            lost = self.matching.meet(
                lost
            )  # on any rank; by then every rank has read this one's rows
            for window in list(self._windows):
                window._forget()
            for post in self._messengers.values():  # made by calls of all ranks: in the same order
                post.abandon() if lost else post.close(self.matching.meet)
            if self.node is not None:
                error = error or self.node.refusal()
                self.node.close()
            self.context.row_type.free()
            if self.matching.apart:  # collectives of MPI may be under way for ever
                abandon(self.comm)
                self.comm = MPI.Intracomm()
            else:
                self.comm.Free()
            self.engine.close()
        if error is not None:
            raise error

    @property
    def _interrupted(self) -> bool:
        """Whether this rank may be one call apart from the others."""
        return bool(self.matching.interrupted) or self.collectives.interrupted

    def _drop(self, together: Collectives) -> None:
        """Free what needs no call on a communicator whose ranks are one call apart; collective over another one."""
        for mixer in list(self._mixers):
            with contextlib.suppress(Exception):
                mixer.close("broken")
        self._mixers.clear()
        for window in list(self._windows):
            window._forget()
        for post in self._messengers.values():
            post.abandon()
        self.engine.close()
        abandon((self.matching, self.comm))
        self.comm = MPI.Intracomm()
        self.context.row_type.free()
        together.minimum(np.zeros(1), "Network()")  # by then no rank looks at this one's rows
        if self.node is not None:
            self.node.close()

    def _leave(self) -> None:
        """Begin no more calls; the network is freed when the same ranks make the next one."""
        if self not in _LEFT:
            self.matching.leave(self.collectives.interrupted)
            _LEFT.append(self)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self.size == 1:
            self.close()
        elif self.comm != MPI.COMM_NULL:  # the other ranks may be anywhere: nothing collective now
            self._leave()

    def __del__(self) -> None:
        open_ = hasattr(self, "engine") and self.size > 1 and self.comm != MPI.COMM_NULL
        if open_ and not MPI.Is_finalized() and not sys.is_finalizing():
            self._leave()  # never closed: MPI may still write to its memory

    def __repr__(self) -> str:
        closed = ", closed" * (self.comm == MPI.COMM_NULL)
        return f"Network(n={self.n}, rank {self.rank} of {self.size}, agents {self.lo}:{self.hi}{closed})"


@atexit.register
def _meet_all() -> None:
    """Wait for the other ranks as in `close`, if networks have not been closed, and answer them: they may be in one more call."""
    for net in sorted({*_OPEN, *_LEFT}, key=lambda net: net._number):
        if net.size > 1 and net.comm != MPI.COMM_NULL and not MPI.Is_finalized():
            with contextlib.suppress(Exception):
                net.matching.close(net.collectives.interrupted)


def _agreed(comm: MPI.Intracomm, n: object, transport: str | None) -> tuple[int, str, int | None]:
    """Agents, transport and pretended ranks per node, the same on all ranks; networks that all of them have left are freed.

    Raises
    ------
    ValueError
        On every rank, if an argument is wrong on any rank, or differs between ranks.
    """
    together, error, agents, chosen, per_node = Collectives(comm), None, 0, "auto", "0"
    try:
        agents = _whole(comm.size if n is None else n)
        chosen = transport or os.environ.get("MPIDEC_TRANSPORT") or "auto"
        if chosen not in TRANSPORTS:
            raise ValueError(f"transport is {chosen!r}, expected one of {', '.join(TRANSPORTS)}")
        per_node = os.environ.get("MPIDEC_RANKS_PER_NODE") or "0"
        if not per_node.isdigit():
            raise ValueError(f"MPIDEC_RANKS_PER_NODE is {per_node!r}, expected a whole number")
    except ValueError as caught:
        error = caught
    if comm.size == 1:
        if error is not None:
            raise error
        return agents, chosen, int(per_node) or None
    together.agree(error, "Network()")
    mine = np.zeros(3 + _LEFT_AT_ONCE, np.int64)
    mine[:3] = agents, TRANSPORTS.index(chosen), int(per_node)
    left = [net for net in _LEFT if net.size == comm.size]
    mine[3 : 3 + len(left[:_LEFT_AT_ONCE])] = [
        -net.serial if net._interrupted else net.serial for net in left[:_LEFT_AT_ONCE]
    ]
    all_ = together.gather_all(mine, "Network()")
    for column, what in enumerate(("n", "transport", "MPIDEC_RANKS_PER_NODE")):
        values = all_[:, column].tolist()
        if len(set(values)) > 1:
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            said = [
                TRANSPORTS[value] if column == 1 else value for value in (values[0], values[other])
            ]
            raise ValueError(
                f"Network: {what} is {said[0]} on rank 0 and {said[1]} on rank {other}, expected the same everywhere"
            )
    serials = all_[:, 3:]
    common = set.intersection(*(set(row.tolist()) for row in abs(serials))) - {0}
    for net in sorted((net for net in left if net.serial in common), key=lambda net: net.serial):
        if -net.serial in serials:
            net._drop(together)
        with contextlib.suppress(ValueError):  # a mismatch that was found out after the exception
            net.close()
        _LEFT.remove(net)
    return agents, chosen, int(per_node) or None


def _check_graph(op: str, topology: Any) -> None:
    """Refuse what is no topology, such as a name."""
    if not hasattr(topology, "fingerprint") or isinstance(topology, type):
        given, name = (
            (repr(topology), topology)
            if isinstance(topology, str)
            else (f"a {type(topology).__name__}", "ring")
        )
        raise TypeError(
            f"{op}: topology is {given}, expected an object such as mpidec.topology.{name}(net.n)"
        )


def _named(comm: object) -> str:
    if not isinstance(comm, MPI.Comm):
        return f"{comm!r:.60}"
    return "MPI.COMM_NULL" if comm == MPI.COMM_NULL else "an intercommunicator"


def _mixings(memory: NodeMemory | None) -> int:
    return 0 if memory is None else memory.node.seq


def _refusal(memory: NodeMemory | None) -> Exception | None:
    return None if memory is None else memory.refusal()


def _whole(n: object) -> int:
    try:
        count = operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1 or isinstance(n, bool):
        raise ValueError(f"number of agents is {n!r}, expected a whole number >= 1")
    return count
