"""The operator of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeGuard, cast

import numpy as np

from ...._sparse import is_sparse
from ....exceptions import RankMismatchError
from ....topology.internals import TOLERANCE
from ...arrays import BFLOAT16, Given, as_rows, as_target, device_of, plain_tensor
from ...runtime import Context, Pending, Several, empty
from ...transport import (
    Counters,
    DeviceSums,
    Ending,
    HalfSum,
    Kinds,
    LocalSum,
    MessageSum,
    MixedSum,
    NodeReader,
    Transport,
    words,
)
from ..base.gradients import mix_with_grad, refuse_grad, requires_grad
from ..base.packing import Restore, RowsT, by_name, pack
from ..base.traced import trace
from .exchange import EdgeExchange

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse import csr_array

    from ....topology import Topology


class OneCall(Protocol):
    """A whole mixing in one compiled call; returns None, without effects, if the general path is
    needed.
    """

    def __call__(self, X: RowsT, out: RowsT | None, /) -> RowsT | None: ...


class Phase(EdgeExchange):
    r"""The operator of one step: one topology on one network.

    .. math:: Y_i = W_{ii} X_i + \sum_{j \in N_i} W_{ij} X_j

    Each sum is taken in ascending order of the agents, so that it has the same bits on any number
    of ranks.

    Parameters
    ----------
    context : Context
    topology : Topology
    k : int
        The step.
    counts : Counts
        Counters of what is sent.
    at, transposed, columns : callable
        `at(k)`: the operator of another step; `transposed(k)`: that of a step of the transposed
        topologies; `columns(k)`: that of a step of the column-stochastic matrices of pairs.
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
        counts: Counters,
        at: Callable[[int], Phase],
        transposed: Callable[[int], Phase],
        columns: Callable[[int], Phase],
        periodic: bool,
        kinds: Kinds,
    ):
        over = f" over {topology.name}" + f", step {k}" * (k > 0)
        super().__init__(context, topology, over, counts, periodic, kinds)
        self._k, self._at, self._transposed, self._columns = k, at, transposed, columns
        self._begin()

    def _begin(self) -> None:
        context = self._context
        self._transport = self._make_transport()
        self.mix = cast(OneCall, self._transport.call)
        if context.timeline is not None:
            self._near = self.plan.halo_route.sources.tolist()
            self.mix = context.timeline.timed(context.mixing, self._near, self.mix)

    def _make_transport(self) -> Transport:
        context, memory = self._context, self._context.memory
        if context.size == 1:
            return LocalSum(self.n, self.plan.weights, self.plan.edges, self._counts)
        if memory is None:
            return self._messages
        reader = NodeReader.sums(
            context, context.mixing + self._over, self._counts, self._node_plan
        )
        return (
            reader
            if memory.single_node
            else MixedSum(context, self._exchange, self._node_plan, reader)
        )

    @cached_property
    def _messages(self) -> MessageSum:
        """The sums of rows that all come in messages."""
        return MessageSum(self._context, self._exchange, self.plan, self._count)

    @cached_property
    def _half(self) -> HalfSum:
        """The sums of rows of 16-bit floats, which travel between nodes as they are."""
        whole = self._context.size == 1 or self._single_node
        return HalfSum(self.plan, self._counts, self._transport if whole else self._messages)

    @cached_property
    def _on_devices(self) -> DeviceSums:
        return DeviceSums(self._context, self._exchange, self.plan, self._over, self._count)

    @property
    def next(self) -> Phase:
        """The operator of the following step; itself when the topology is static."""
        return self._at(self._k + 1)

    def at(self, k: int) -> Phase:
        """Return the operator of step `k` of the same schedule."""
        return self._at(k)

    def with_weights(self, A: ArrayLike | csr_array) -> Phase:
        """Return the operator of the same graph with other weights, which may change at each step
        at hardly any cost; W itself stays as it is.

        Parameters
        ----------
        A : (n, n) or (m, n) array_like
            A mixing matrix, or its rows for the local agents, which suffice: A[i, j] >= 0
            multiplies what agent i receives from agent j, and is 0 where there is no edge.  Rows
            sum to 1 within 1e-10.

        Returns
        -------
        Phase
            It mixes, and exchanges rows, over the same edges.  Weights of 0 are no terms of the
            sums, but their rows travel.  Its `topology` is that of W.

        Raises
        ------
        TypeError, ValueError
            A has another shape, sums, negative weights, or weights where there is no edge; or the
            rows of W do not sum to 1.

        Notes
        -----
        No communication.  For graphs that change: `mpidec.topology.from_function`.

        Examples
        --------
        Agent 2 is no longer listened to:

        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.complete(3))
        ...     A = [[0.5, 0.5, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
        ...     W.with_weights(A)(np.array([[2.], [4.], [100.]])).ravel().tolist()
        [3.0, 3.0, 51.5]
        """
        made = object.__new__(Reweighted)
        try:
            rows = self._local_rows(A)
            made.__dict__ = self.__dict__.copy()
            made.begin(rows)
        except (TypeError, ValueError) as error:
            self.abort_operation(error)
            raise
        return trace(made, "mixing", self._context.timeline)

    def _local_rows(self, A: ArrayLike | csr_array) -> np.ndarray:
        """Return the local rows of a mixing matrix."""
        n, m = self.n, self.m
        if self.topology.kind not in ("doubly", "row"):
            raise ValueError(
                f"W.with_weights{self._over}: its W is of kind {self.topology.kind!r}, expected "
                "rows that sum to 1: make a mixer of topology.from_weights(A, ...) instead"
            )
        if type(A) is not np.ndarray:
            A = np.asarray(A.toarray() if is_sparse(A) else A)
        if A.shape not in ((n, n), (m, n)) or A.dtype.kind not in "iuf":
            raise ValueError(
                f"W.with_weights{self._over}: A has shape {A.shape} and dtype {A.dtype}, expected "
                f"numbers ({n}, {n}), or ({m}, {n}): the rows of the local agents"
            )
        rows = A if len(A) == m else A[self.agents.start : self.agents.stop]
        return np.ascontiguousarray(rows, np.float64)

    @property
    def T(self) -> Phase:
        """The transposed operator; itself when W is symmetric."""
        return self._at(self._k) if self.topology.symmetric else self._transposed(self._k)

    @property
    def C(self) -> Phase:
        """The column-stochastic operator of a pair; of any other `W`, itself."""
        return self._columns(self._k) if self.topology.kind == "pair" else self

    def __call__(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """Mix the rows `X`, shape `(m, ...)`; several arrays are mixed in one message.

        Parameters
        ----------
        X : array (m, ...), or a sequence or dict of such
            Rows of the local agents: NumPy, PyTorch or CuPy, also bfloat16.  Never modified.
            Arrays of a dict are matched by their names.  Rows on a device are copied through the
            host, unless there is only one rank, or MPI takes device arrays (`MPIDEC_GPU_MPI`) and
            no node has two ranks.
        out : array, optional
            Where the rows go: C-contiguous, kind, shape and dtype of `X`, not overlapping it.  If
            `out` alone is wrong, the mixing takes place before the call raises, so that all ranks
            stay in step.

        Returns
        -------
        array (m, ...), or a list or dict of them
            Of the kind of `X`, where `X` lives.

        Notes
        -----
        If a tensor of PyTorch requires grad, so does its result: the backward pass mixes the
        gradient with the transpose of W. That is collective, like the mixing itself: the same
        tensors must require grad on all ranks, and every rank must call `backward` equally often
        and in the same order, with a loss that depends on its rows.  `out`, `start`, compressed and
        accelerated mixers have no gradient and refuse such tensors.
        """
        Y = self.mix(X, out)
        return self.mix_any(X, out) if Y is None else Y

    def mix_any(self, X: RowsT, out: RowsT | None = None) -> RowsT:
        """`W X` of arrays of any kind: of arrays of numbers of the host in one call, of others
        by `start`.
        """
        Y: RowsT | None = None
        if isinstance(X, np.ndarray):
            Y = self._mix_array(X, out)
        elif requires_grad(X):
            Y = mix_with_grad(self, X) if out is None else None
        elif isinstance(X, (list, tuple)):
            Y = self._mix_list(X) if out is None else None
        else:
            Y = self._mix_tensor(X, out)
        if Y is None:
            Y = self.start(X, out).wait()
        return Y

    def _mix_array(self, X: np.ndarray, out: object, half: bool = False) -> Any:
        """`W X` of an array in C order, as a matrix; None, and nothing has happened, if it takes
        another way.

        `half`: the array holds the bits of bfloat16.
        """
        shape = X.shape
        if not (
            type(X) is np.ndarray
            and X.ndim
            and len(X) == self.m
            and X.flags.c_contiguous
            and X.dtype.isnative
        ):
            return None
        rows, target = X.reshape(self.m, math.prod(shape[1:])), None
        if out is not None:
            if not _receives(out, X):
                return None
            target = out.reshape(rows.shape)
        carrier = self._half if half or X.dtype.char == "e" else self._transport
        Y = carrier.mix(rows, target, words(shape[1:]))
        if Y is None:
            return None
        return Y.reshape(shape) if out is None else out

    def _mix_tensor(self, X: object, out: object) -> Any:
        """`W X` of a tensor of PyTorch on the CPU, likewise."""
        view = plain_tensor(X)
        target = None if out is None or view is None else plain_tensor(out)
        if view is None or (out is not None and target is None):
            return None
        rows, format, restore = view
        Y = self._mix_array(rows, None if target is None else target[0], format == BFLOAT16)
        if Y is None:
            return None
        return restore(Y, format) if out is None else out

    def _mix_list(self, arrays: Sequence[Given]) -> Any:
        """Return the same of several arrays of one dtype of the host, in one message."""
        for X in arrays:
            if type(X) is not np.ndarray and plain_tensor(X) is None:
                return None
        with self._propagate_errors():
            packs = pack([as_rows(X, self.m, half=True) for X in arrays])
        if len(packs) != 1:
            return None
        (one,) = packs
        carrier = self._half if one.rows.itemsize == 2 else self._transport
        Y = carrier.mix(one.rows, None, one.describe())
        return None if Y is None else one.unpack(Y)

    def start(self, X: RowsT, out: RowsT | None = None) -> Pending:
        """Begin to mix `X`, and return at once; `wait()` on the result returns the mixed rows.

        Any number of mixings may be under way and be waited for in any order; all ranks start them
        in the same order.  In shared memory, a mixing is completed at the latest when the 64th one
        after it is started.
        """
        with self._context.engine:
            try:
                return self._start(X, out)
            except (TypeError, ValueError, MemoryError) as error:
                if not isinstance(error, RankMismatchError) and not self._participate(
                    X, out, error
                ):
                    self.abort_operation(error)
                raise

    def _participate(self, X: object, out: object, error: Exception) -> bool:
        """Mix nevertheless if only `out` is invalid, so that all ranks stay in step; return whether
        it was.
        """
        if out is None or isinstance(error, MemoryError):
            return False
        try:
            pending = self._start(X, None)
        except (TypeError, ValueError, MemoryError):
            return False
        pending.wait()
        return True

    def abort_operation(self, error: Exception, op: str = "W(X)") -> None:
        if op != "W(X)":
            super().abort_operation(error, op)
        elif self._context.size > 1:
            with self._context.engine:
                self._transport.give_up(error)
                if not self._single_node:
                    self._withdraw(error, self._context.mixing)

    def _start(self, X: Any, out: Any) -> Pending:
        host = type(X) is np.ndarray
        if not host or out is not None:
            refuse_grad(X, out)
        if isinstance(X, Mapping):
            names = by_name(X)
            values = self._start_many([X[name] for name in names], out, names)

            def by_their_names() -> dict[object, object]:
                mixed = dict(zip(names, values.wait()))
                return {name: mixed[name] for name in X}

            return Pending(values, by_their_names)
        if isinstance(X, (list, tuple)):
            return self._start_many(X, out)
        device = None if host else device_of(X)
        if device is not None and self._on_devices.takes(device):
            many = self._on_devices.start(device, [X], out)
            return Pending(many, lambda: many.wait()[0])
        rows, restore = as_rows(X, self.m, empty, half=True)
        shape = words(tuple(np.shape(X)[1:]))
        if out is None:
            return self._start_rows(rows, None, restore, shape)
        return self._start_rows(rows, *as_target(out, X, rows, empty), shape)

    def _start_many(
        self, arrays: Sequence[Any], out: object, names: Sequence[object] = ()
    ) -> Pending:
        """One mixing for all arrays of one dtype."""
        if out is not None:
            raise TypeError("out is given, expected none when several arrays are mixed")
        # Arrays that stay on a device are mixed per device and format; all others become rows of
        # the host, and those of one dtype travel side by side in one message.
        on_device: dict[Any, list[int]] = {}
        pairs: list[tuple[np.ndarray, Restore] | None] = []
        for place, X in enumerate(arrays):
            device = device_of(X)
            if device is not None and self._on_devices.takes(device):
                on_device.setdefault((device, device.place(X), device.format(X)), []).append(place)
                pairs.append(None)
            else:
                pairs.append(as_rows(X, self.m, half=True))
        started: list[tuple[Sequence[int], Pending]] = [
            (places, self._on_devices.start(key[0], [arrays[place] for place in places]))
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

        return Pending(Several([pending for _, pending in started]), collect)

    def _start_rows(
        self, rows: np.ndarray, target: np.ndarray | None, restore: Restore, shape: str
    ) -> Pending:
        """Begin to mix rows (m, d) into `target`, or into a new array; `wait` returns what
        `restore` makes of it.

        `shape` is that of a row before it was flattened, as text, which must be the same on all
        ranks.
        """
        out = empty(rows.shape, rows.dtype) if target is None else target
        X, Y, carrier = rows, out, self._transport
        if rows.itemsize == 2:
            carrier = self._half
        elif carrier.in_place:
            if rows.dtype.kind == "c" and rows.dtype.char in "FD":
                X, Y, shape = (
                    rows.view(rows.real.dtype),
                    out.view(out.real.dtype),
                    f"{shape} complex",
                )
            elif rows.dtype.char not in "fd":
                carrier = self._messages
        return Pending(carrier.start(X, Y, shape), partial(restore, out))

    def free(self, ends: Ending = "complete") -> None:
        """Free requests and communicators; collective.  See `HaloExchange.free`."""
        self._transport.free()
        super().free(ends)


_OF_WEIGHTS = "_messages", "_half", "_on_devices"  # made of a plan


class Reweighted(Phase):
    """The operator of one step with other weights; made by `Phase.with_weights`."""

    def begin(self, rows: np.ndarray) -> None:
        """Take the local rows of W."""
        for name in _OF_WEIGHTS:
            self.__dict__.pop(name, None)
        self.plan = self.plan.reweighted(rows) or self._refuse(rows)
        if not self._alone:
            self._node_plan = self._node_plan.reweighted(rows) or self._refuse(rows)
        self.diagonal = rows.diagonal(self.agents.start).copy()
        self._begin()

    def _refuse(self, rows: np.ndarray) -> NoReturn:
        """Raise with a description of what is wrong with the local rows of W."""
        where, lo, off = f"W.with_weights{self._over}", self.agents.start, abs(rows.sum(axis=1) - 1)
        if not (off <= TOLERANCE).all():
            i = int(np.argmax(~(off <= TOLERANCE)))
            raise ValueError(
                f"{where}: agent {lo + i}: row of A sums to {rows[i].sum():.12g}, expected 1"
            )
        beside, edges = rows != 0, self.plan.entries
        beside[np.repeat(np.arange(self.m), np.diff(edges.begin)), edges.agents] = False
        beside[np.arange(self.m), self.agents] = False
        wrong = beside if beside.any() else rows < 0
        i, j = divmod(int(np.argmax(wrong)), self.n)
        expected = (
            f"0 where agent {lo + i} hears nothing from agent {j}: topology.from_function takes "
            "another graph in each step"
            if beside.any()
            else ">= 0: topology.from_function(..., signed=True) takes negative weights"
        )
        raise ValueError(f"{where}: A[{lo + i}, {j}] is {rows[i, j]:.6g}, expected {expected}")

    @property
    def next(self) -> Phase:
        """Return this operator, which has no following step."""
        return self

    def at(self, k: int) -> Phase:
        """Return this operator, at any step."""
        return self

    @property
    def T(self) -> Phase:
        raise ValueError(
            f"W.with_weights{self._over} has no transpose, which gradients are mixed with: make a "
            "mixer, net.mixer(topology.from_weights(A)), or mix rows without gradients"
        )


def _receives(out: object, X: np.ndarray) -> TypeGuard[np.ndarray]:
    """Whether a sum of rows like `X` can be written to `out` at once."""
    return (
        type(out) is np.ndarray
        and out.shape == X.shape
        and out.dtype == X.dtype
        and out.flags.carray
        and not np.may_share_memory(out, X)
    )
