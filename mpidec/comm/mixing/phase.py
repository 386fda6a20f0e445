"""The operator of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...exceptions import RankMismatchError
from ..arrays.devices import Device, device_of
from ..arrays.formats import BFLOAT16, flat_dtype, narrow, widen
from ..arrays.host import as_rows, as_target, row_bytes, to_host
from ..kernels.weighted import difference
from ..runtime.context import Context
from ..runtime.cuda_aware import cuda_aware
from ..runtime.memory import empty
from ..runtime.pending import Pending
from ..transport.base import Transport, words
from ..transport.device import Columns, DeviceSum
from ..transport.halo import Ending, HaloExchange
from ..transport.messages import Messages
from ..transport.node_reader import NodeReader
from ..transport.plan import Plan
from ..transport.sums import LocalSum, MessageSum, MixedSum, average
from .gradients import mix_with_grad, refuse_grad, requires_grad
from .operator import StepOperator
from .packing import Restore, by_name, pack

if TYPE_CHECKING:
    from ...topology import Topology


class Phase(StepOperator):
    r"""The operator of one step: one topology on one network.

    .. math:: Y_i = W_{ii} X_i + \sum_{j \in N_i} W_{ij} X_j

    Each sum is taken in ascending order of the agents, so that it has the same bits on any number of ranks.

    Parameters
    ----------
    context : Context
    topology : Topology
    k : int
        The step.
    counts : Counts
        Counters of what is sent.
    at, transposed : callable
        `at(k)`: the operator of another step; `transposed(k)`: that of a step of the transposed topologies.
    periodic : bool
        Whether the phase comes again.
    kinds : dict
        The kinds of the last exchanges over phases that do not come again.

    Attributes
    ----------
    topology : Topology
    n, m : int
        All agents, and those on this rank.
    """

    def __init__(
        self,
        context: Context,
        topology: Topology,
        k: int,
        counts: Any,
        at: Callable[[int], Phase],
        transposed: Callable[[int], Phase],
        periodic: bool,
        kinds: dict[Any, Any],
    ):
        self._context, self._k, self._counts, self._at, self._transposed = (
            context,
            k,
            counts,
            at,
            transposed,
        )
        lo, hi = context.partition.bounds(context.rank)
        self.topology, self.n, self.m = topology, topology.n, hi - lo
        self._over = f" over {topology.name}" + f", step {k}" * (k > 0)
        self._exchange = HaloExchange(context, self._over, topology.fingerprint(), periodic, kinds)
        self._on_devices: dict[tuple[Device, Any], DeviceSum] = {}
        self._transport = self._make_transport()
        self.mix = self._transport.mix

    def _make_transport(self) -> Transport:
        context, memory = self._context, self._context.memory
        if context.size == 1:
            return LocalSum(self.plan, self._count)
        if memory is None:
            return MessageSum(context, self._exchange, self.plan, self._count)
        reader = NodeReader.sums(context, "W(X)" + self._over, self._counts, self._node_plan)
        return (
            reader
            if memory.single_node
            else MixedSum(context, self._exchange, self._node_plan, reader)
        )

    @property
    def next(self) -> Phase:
        """The operator of the following step; itself when the topology is static."""
        return self._at(self._k + 1)

    def at(self, k: int) -> Phase:
        """The operator of step `k` of the same schedule."""
        return self._at(k)

    @property
    def T(self) -> Phase:
        """The transposed operator; itself when W is symmetric."""
        return self._at(self._k) if self.topology.symmetric else self._transposed(self._k)

    @cached_property
    def plan(self) -> Plan:
        """The plan in which all rows of other ranks belong to the halo."""
        return Plan(self.topology, self._context.partition, self._context.rank)

    def use(self, messages: Messages) -> None:
        """Exchange rows by these messages, made of `plan`, instead of point to point."""
        self._exchange.use(self.plan, messages)

    @cached_property
    def _node_plan(self) -> Plan:
        """The plan in which the rows of other ranks of the node are read in place."""
        context = self._context
        near = context.memory.near if context.memory is not None else np.empty(0, np.int64)
        return Plan(self.topology, context.partition, context.rank, near[near != context.rank])

    @property
    def _single_node(self) -> bool:
        return self._context.memory is not None and self._context.memory.single_node

    def __call__(self, X: Any, out: Any = None) -> Any:
        """Mix the rows `X`, shape `(m, ...)`; several arrays are mixed in one message.

        Parameters
        ----------
        X : array (m, ...), or a sequence or dict of such
            Rows of the local agents: NumPy, PyTorch or CuPy, also bfloat16.  Never modified.  Arrays of a dict are matched by
            their names.  Rows on a device are copied through the host, unless there is only one rank, or MPI takes device arrays
            (`MPIDEC_GPU_MPI`) and no node has two ranks.
        out : array, optional
            Where the rows go: C-contiguous, kind, shape and dtype of `X`, not overlapping it.  If `out` alone is wrong, the mixing
            takes place before the call raises, so that all ranks stay in step.

        Returns
        -------
        array (m, ...), or a list or dict of them
            Of the kind of `X`, where `X` lives.

        Notes
        -----
        If a tensor of PyTorch requires grad, so does its result: the backward pass mixes the gradient with the transpose of W.
        That is collective, like the mixing itself: the same tensors must require grad on all ranks, and every rank must call
        `backward` equally often and in the same order, with a loss that depends on its rows.  `out`, `start`, compressed and
        accelerated mixers have no gradient and refuse such tensors.
        """
        Y = self.mix(X, out)
        return self.mix_any(X, out) if Y is None else Y

    def mix_any(self, X: Any, out: Any = None) -> Any:
        """`W X` of arrays of any kind."""
        return (
            mix_with_grad(self, X)
            if out is None and requires_grad(X)
            else self.start(X, out).wait()
        )

    def start(self, X: Any, out: Any = None) -> Pending:
        """Begin to mix `X`, and return at once; `wait()` on the result returns the mixed rows.

        Any number of mixings may be under way and be waited for in any order; all ranks start them in the same order.  In
        shared memory, a mixing is completed at the latest when the 64th one after it is started.
        """
        with self._context.engine:
            try:
                return self._start(X, out)
            except (TypeError, ValueError, MemoryError) as error:
                if not isinstance(error, RankMismatchError) and not self._take_part(X, out, error):
                    self._give_up(error)
                raise

    def _take_part(self, X: Any, out: Any, error: Exception) -> bool:
        """Mix nevertheless where `out` alone is wrong, so that all ranks stay in step; whether that was so."""
        if out is None or isinstance(error, MemoryError):
            return False
        try:
            pending = self._start(X, None)
        except (TypeError, ValueError, MemoryError):
            return False
        pending.wait()
        return True

    def _give_up(self, error: Exception, op: str = "W(X)") -> None:
        """Tell the neighbours that they need not wait for this rank in `W(X)`, "fetch" or "W.exchange(M)"."""
        if self._context.size == 1:
            return
        with self._context.engine:
            if op == "W(X)":
                self._transport.give_up(error)
            elif self._single_node:
                (self._halo_reader if op == "fetch" else self._edge_reader).give_up(error)
            if not self._single_node:
                route = self.plan.edge_route[0] if op == "W.exchange(M)" else self.plan.halo_route
                self._context.matching.withdraw(
                    op + self._over, error, {*route.dests.tolist(), *route.sources.tolist()}
                )

    def _start(self, X: Any, out: Any) -> Pending:
        refuse_grad(X, out)
        if isinstance(X, Mapping):
            names = by_name(X)
            values = self._start_many([X[name] for name in names], out, names)

            def by_their_names() -> dict[Any, Any]:
                mixed = dict(zip(names, values.wait()))
                return {name: mixed[name] for name in X}

            return Pending(None, by_their_names)
        if isinstance(X, (list, tuple)):
            return self._start_many(X, out)
        device = device_of(X)
        if device is not None and self._stays_on_device:
            return self._start_on_device(device, [X], out, many=False)
        rows, restore = as_rows(X, self.m, empty, half=True)
        shape = words(np.shape(X)[1:])
        if out is None:
            return self._start_rows(rows, None, restore, shape)
        return self._start_rows(rows, *as_target(out, X, rows, empty), shape)

    def _start_many(self, arrays: Sequence[Any], out: Any, names: Sequence[Any] = ()) -> Pending:
        """One mixing for all arrays of one dtype."""
        if out is not None:
            raise TypeError("out is given, expected none when several arrays are mixed")
        on_device: dict[Any, list[int]] = {}
        pairs: list[tuple[np.ndarray, Restore] | None] = []
        for place, X in enumerate(arrays):
            device = device_of(X)
            if device is not None and self._stays_on_device:
                on_device.setdefault((device, device.place(X), device.format(X)), []).append(place)
                pairs.append(None)
            else:
                pairs.append(as_rows(X, self.m, half=True))
        started: list[tuple[Sequence[int], Pending]] = [
            (places, self._start_on_device(key[0], [arrays[place] for place in places]))
            for key, places in on_device.items()
        ]
        started += [
            (some.places, self._start_rows(some.rows, None, some.unpack, some.describe(names)))
            for some in pack(pairs)
        ]

        def collect() -> list[Any]:
            results = [None] * len(arrays)
            for places, pending in started:
                for place, result in zip(places, pending.wait()):
                    results[place] = result
            return results

        return Pending(None, collect)

    def _start_rows(
        self, rows: np.ndarray, target: np.ndarray | None, restore: Restore, shape: str
    ) -> Pending:
        """Begin to mix rows (m, d) into `target`, or into a new array; `wait` returns what `restore` makes of it.

        `shape` is that of a row before it was flattened, in words, which must be the same on all ranks.
        """
        if rows.itemsize == 2:
            return self._start_half(rows, target, restore, shape)
        out = empty(rows.shape, rows.dtype) if target is None else target
        X, Y = rows, out
        if rows.dtype.kind == "c" and not isinstance(self._transport, (LocalSum, MessageSum)):
            X, Y, shape = rows.view(rows.real.dtype), out.view(out.real.dtype), f"{shape} complex"
        elif rows.dtype.char not in "fdFD" and not isinstance(
            self._transport, (LocalSum, MessageSum)
        ):
            return Pending(self._messages.start(rows, out, shape), lambda: restore(out))
        return Pending(self._transport.start(X, Y, shape), lambda: restore(out))

    @cached_property
    def _messages(self) -> MessageSum:
        """The sums of rows that all come in messages."""
        return MessageSum(self._context, self._exchange, self.plan, self._count)

    def _start_half(
        self, rows: np.ndarray, target: np.ndarray | None, restore: Restore, shape: str
    ) -> Pending:
        """Rows of 16-bit floats travel between nodes as they are; they are summed in float32, and rounded once."""
        format, single = (
            BFLOAT16 if rows.dtype == np.uint16 else rows.dtype.str,
            np.dtype(np.float32),
        )
        X, Y = empty(rows.shape, single), empty(rows.shape, single)
        X[...] = widen(rows, format)

        def finish(halo: np.ndarray | None = None) -> Any:
            if halo is not None:
                average(self.plan, X, widen(halo, format), Y)
            if target is None:
                return restore(narrow(Y, format))
            target[...] = narrow(Y, format)
            return restore(target)

        if self._context.size == 1 or self._single_node:
            pending = Pending(self._transport.start(X, Y, f"{shape} {format}"), finish)
            self._counts.bytes -= self.plan.edges * row_bytes(rows)  # half of what was counted
            return pending
        arriving, halo = self._messages.fetch(rows, f"{shape} {format}")
        return Pending(arriving, lambda: finish(halo))

    @cached_property
    def _stays_on_device(self) -> bool:
        """Whether rows on a device stay there: there is no other rank, or MPI takes them and this rank is alone on its node."""
        aware = cuda_aware()[0]
        return self._context.size == 1 or (aware and self._context.memory is None)

    def _start_on_device(
        self, device: Device, arrays: Sequence[Any], out: Any = None, many: bool = True
    ) -> Pending:
        """Mix arrays of one format on one device; `wait` returns their list, or the only one."""
        columns, place, context = (
            Columns(device, arrays, self.m, out),
            device.place(arrays[0]),
            self._context,
        )
        part = self._on_devices.setdefault((device, place), DeviceSum(device, place, self.plan))
        self._count(columns.row_bytes)
        ask = None
        if context.size > 1:
            kind = (
                "W(X) from device to device",
                words(columns.flat.shape[1:]),
                flat_dtype(columns.format),
            )
            ask = self._exchange.announce(self.plan, self.plan.halo_route, kind)
        arriving, halo = part.start(
            context.comm,
            context.row_type(columns.row_bytes),
            columns.flat,
            "W(X)" + self._over,
            ask,
        )

        def finish() -> Any:
            results = columns.split(part.sum(columns.flat, halo))
            return results if many else results[0]

        return Pending(arriving, finish)

    def fetch(self, rows: np.ndarray) -> Pending:
        """Begin to fetch the rows of the neighbours that live on other ranks, as they are; `wait()` returns them.

        Parameters
        ----------
        rows : array (m, ...), C-contiguous
            Rows of the local agents, of any dtype.

        Returns
        -------
        Pending
            Of an array (len(halo), ...): the rows of the agents `halo`.
        """
        with self._context.engine, self._telling("fetch"):
            rows = np.ascontiguousarray(rows)
            flat, shape = rows.reshape(self.m, math.prod(rows.shape[1:])), rows.shape[1:]
            halo = empty((len(self.halo), flat.shape[1]), flat.dtype)
            if self._single_node:
                return Pending(
                    self._halo_reader.start(_bytes(flat), _bytes(halo)),
                    lambda: halo.reshape(len(halo), *shape),
                )
            self._count(row_bytes(flat))
            arriving = self._exchange.start(
                self.plan, self.plan.halo_route, flat, halo, ("fetch", words(shape), flat.dtype)
            )
        return Pending(arriving, lambda: halo.reshape(len(halo), *shape))

    @cached_property
    def _halo_reader(self) -> NodeReader:
        return NodeReader.halo(
            self._context, "fetch" + self._over, self._counts, self._node_plan, self.plan
        )

    @cached_property
    def _edge_reader(self) -> NodeReader:
        return NodeReader.edges(
            self._context, "W.exchange(M)" + self._over, self._counts, self._node_plan, self.plan
        )

    @property
    def halo(self) -> np.ndarray:
        """The agents on other ranks whose rows the local sums read, ascending."""
        return self.plan.halo

    def average(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, from the rows of the local agents and those that `fetch` brought: `(m, d)`, `(len(halo), d)`, `(m, d)`."""
        return average(self.plan, own, halo, out)

    def difference(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = (W - I) X` of float32 or float64, with rounding errors of the size of `out`, not of `X`; see `average`."""
        return difference(self.plan.weights, own, halo, out)

    def to_edges(self, X: Any) -> Any:
        """The sender's row for each edge out of the local agents, sorted by sender, then receiver: `(m, ...) -> (edges, ...)`."""
        return X[self.plan.senders]

    def exchange(self, M: Any) -> Any:
        """Send a different row to each neighbour.

        Parameters
        ----------
        M : array (out-edges, ...)
            A row for each edge out of the local agents, sorted by sender, then receiver (the order of `to_edges`).

        Returns
        -------
        array (in-edges, ...)
            The row that arrived over each edge into the local agents, sorted by receiver, then sender.

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
        ...     W.exchange(np.array([[1.], [10.], [12.], [21.]])).ravel().tolist()   # 0->1, 1->0, 1->2, 2->1
        [10.0, 1.0, 21.0, 12.0]
        """
        with self._context.engine:
            with self._telling("W.exchange(M)"):
                M, format, restore = self._checked_messages(M)
                arrived = np.empty((self.in_edges, *M.shape[1:]), M.dtype)
                if self._single_node:
                    reading = self._edge_reader.start(_bytes(M), _bytes(arrived))
                else:
                    route, arrival = self.plan.edge_route
                    self._count(row_bytes(M))
                    request = self._exchange.start(
                        self.plan, route, M, arrived, ("W.exchange(M)", words(M.shape[1:]), M.dtype)
                    )
            if self._single_node:
                reading.wait()
                return restore(arrived, format)
            if route.own is not None:
                arrived[route.own[1]] = request.sent[route.own[0]]
            request.wait()
        result = np.empty_like(arrived)
        result[arrival] = arrived
        return restore(result, format)

    def _checked_messages(self, M: Any) -> tuple[np.ndarray, str, Any]:
        """The messages as a NumPy array in C order, its format, and what makes the kind of `M` of a result."""
        if not hasattr(M, "dtype") or np.ndim(M) == 0:
            raise TypeError(
                f"messages are {type(M).__name__}, expected an array with one row for each out-edge"
            )
        if getattr(M.dtype, "hasobject", False):
            raise TypeError(
                f"messages are of dtype {M.dtype}, expected numbers: objects cannot be sent"
            )
        if len(M) != len(self.plan.senders):
            raise ValueError(
                f"messages have shape {M.shape}, expected ({len(self.plan.senders)}, ...): one row for each out-edge"
            )
        refuse_grad(M)
        rows, format, restore = to_host(M)
        return np.ascontiguousarray(rows), format, restore

    def sum_edges(self, M: Any) -> Any:
        """Sum over the edges into each local agent, in ascending order of the senders: `(edges, ...) -> (m, ...)`."""
        refuse_grad(M)
        rows, format, restore = to_host(M)
        rows = widen(rows, format) if format == BFLOAT16 else rows
        total = np.zeros((self.m, *rows.shape[1:]), rows.dtype)
        np.add.at(total, self.plan.receivers, rows)
        return restore(narrow(total, format) if format == BFLOAT16 else total, format)

    @property
    def in_edges(self) -> int:
        """Edges into the local agents: the rows that `exchange` returns."""
        return len(self.plan.receivers)

    def _count(self, row_bytes: int) -> None:
        """Rows of so many bytes have been sent over all edges."""
        counts, edges = self._counts, self.plan.edges
        counts.rounds += 1
        counts.messages += edges
        counts.bytes += edges * row_bytes

    def free(self, ends: Ending = "complete") -> None:
        """Free requests and communicators; collective.  See `HaloExchange.free`."""
        self._transport.free()
        self._exchange.free(ends)


def _bytes(rows: np.ndarray) -> np.ndarray:
    width = rows.itemsize * math.prod(rows.shape[1:])
    return (
        np.ndarray((len(rows), width), np.uint8, rows)
        if rows.size
        else np.empty((len(rows), width), np.uint8)
    )
