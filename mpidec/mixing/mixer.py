"""Mixers: `Y = W(X)` moves rows between agents and takes weighted averages of them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import as_rows, as_target
from .devices import Device, device_of
from .formats import BFLOAT16, flat_dtype, narrow, widen
from .gpu_mpi import gpu_mpi
from .kernel import Runs, weighted_sum
from .letters import Disagreement
from .plan import Plan, Route
from .resident import Columns, Resident
from .links import Links, Reading, Setting
from .stack import Counts
from .transport import Flight, Wire
from .waiting import Exchange, abandon

if TYPE_CHECKING:
    from ..topology import Schedule, Topology
    from .accelerated import Accelerated
    from .codec import Codec
    from .compressed import Compressed
    from .network import Network

_NOTHING = np.empty((0, 0), np.uint8)
_PHASES = 64                                        # phases of a random schedule that are kept at a time


class Pending:
    """A mixing under way; `wait()` completes it and returns the rows.

    The rows handed to `start` must not change before `wait` returns.
    """

    def __init__(self, exchange: Exchange | Reading | Pending | None, finish: Callable[[], Any]):
        self._exchange, self._finish = exchange, finish
        self._result: Any = None

    def wait(self) -> Any:
        """Complete the exchange, and return the mixed rows; again the same object when called again."""
        if self._finish is not None:
            if self._exchange is not None:
                self._exchange.wait()
            self._result, self._finish = self._finish(), None  # type: ignore[assignment]
        return self._result

    def test(self) -> bool:
        """Whether `wait` would return at once; gives MPI the chance to make progress."""
        return self._finish is None or self._exchange is None or self._exchange.test()


class Phase:
    r"""The operator of one step: one topology on one network.

    .. math:: Y_i = W_{ii} X_i + \sum_{j \in N_i} W_{ij} X_j

    Each sum is taken in ascending order of the agents, so that it has the same bits on any number of ranks.

    Attributes
    ----------
    topology : Topology
    n, m : int
        All agents, and those on this rank.
    """

    def __init__(self, mixer: Mixer, topology: Topology, k: int):
        self._mixer, self._net, self._k = mixer, mixer.net, k
        self.topology = topology
        self.n, self.m = topology.n, mixer.net.m
        self._over = f" over {topology.name}" + f", step {k}" * (k > 0)
        self._where, self._mark = "W(X)" + self._over, topology.fingerprint()
        self._kinds: dict[Any, Any] = {}            # what was exchanged last
        self._marks: dict[Any, tuple[str, str, frozenset[int], list[int]]] = {}
        self._wires: dict[Plan, Wire] = {}
        self._residents: dict[tuple[Device, Any], Resident] = {}
        self._alone = self._net.size == 1
        stack, blocks, rank = self._net.stack, self._net.blocks, self._net.rank
        self._links: Links | None = None
        if stack is not None:
            near = Plan(topology, blocks, rank, stack.near[stack.near != rank])
            self._near, self._setting = near, Setting(stack, self._where, mixer.counts, self._ask)
            self._links = Links.sums(self._setting, near)
        self._whole = stack is not None and stack.whole
        self.fast = self._mix_alone if self._alone else _cannot if self._links and not self._whole else \
            self._links.mix if self._links else self._mix_messages

    @property
    def next(self) -> Phase:
        """The operator of the following step; itself when the topology is static."""
        return self._mixer.at(self._k + 1)

    def at(self, k: int) -> Phase:
        """The operator of step `k` of the same schedule."""
        return self._mixer.at(k)

    def __call__(self, X: Any, out: np.ndarray | None = None) -> Any:
        """Mix the rows `X`, shape `(m, ...)`; a list or tuple of arrays is mixed in one message.

        Parameters
        ----------
        X : array (m, ...), or a sequence or dict of such
            Rows of the local agents: NumPy, PyTorch or CuPy, also bfloat16.  Never modified.  Rows on a device are copied
            through the host, unless there is but one rank, or MPI takes them (`MPIDEC_GPU_MPI`) and no node has two ranks.
        out : array, optional
            Where the rows go: C-contiguous, kind, shape and dtype of `X`, not overlapping it.

        Returns
        -------
        array (m, ...), or a list or dict of them
            Of the kind of `X`, where `X` lives.
        """
        Y = self.fast(X, out)
        return self.start(X, out).wait() if Y is None else Y

    @cached_property
    def _plan(self) -> Plan:
        """All rows of other ranks come in messages."""
        return Plan(self.topology, self._net.blocks, self._net.rank)

    def _mix_alone(self, X: Any, out: np.ndarray | None) -> np.ndarray | None:
        """The common case in one process."""
        if type(X) is not np.ndarray or X.dtype != np.float64 or X.ndim != 2 or len(X) != self.m or not X.flags.c_contiguous:
            return None
        if out is None:
            out = np.empty_like(X)
        else:
            as_target(out, X, X)
        return self._sum(X, out)

    def _mix_messages(self, X: Any, out: np.ndarray | None) -> np.ndarray | None:
        """The common case where all rows come in messages."""
        if type(X) is not np.ndarray or X.dtype != np.float64 or X.ndim != 2 or len(X) != self.m or not X.flags.c_contiguous:
            return None
        if out is None:
            out = self._net.buffers.empty(X.shape, X.dtype)
        elif type(out) is not np.ndarray or out.dtype != X.dtype or out.shape != X.shape or not out.flags.c_contiguous \
                or np.may_share_memory(out, X):
            return None                             # `start` says what is wrong
        plan = self._plan
        halo, wire = self._net.buffers.empty((len(plan.halo), X.shape[1]), X.dtype), self._wires.get(plan)
        if wire is None:
            exchange, halo = self._halo(plan, X)
            exchange.wait()
            return self.average(X, halo, out)
        route = plan.halo_route
        self._count(X)
        ask = self._announce(plan, route, ("W(X)", X.shape[1:], X.dtype))
        flight = wire.start(route, X, halo)
        if not flight.poll(1000):
            Exchange(flight, self._where, None, ask, route.sources.tolist()).wait()
        return self.average(X, halo, out)

    def start(self, X: Any, out: np.ndarray | None = None) -> Pending:
        """Begin to mix `X`, and return at once; `wait()` on what comes back returns the mixed rows.

        Any number of mixings may be under way, and be waited for in any order; all ranks start them in the same order.
        """
        try:
            return self._start(X, out)
        except (TypeError, ValueError) as error:
            if not isinstance(error, Disagreement):
                self._give_up(error)
            raise

    def _give_up(self, error: Exception) -> None:
        """The neighbours are not to wait for this rank, whose arguments are wrong."""
        if self._links is not None:
            self._links.give_up()
        if not self._alone and not self._whole:
            route = self._plan.halo_route
            self._net.messenger.leave(self._where, error, {*route.dests.tolist(), *route.sources.tolist()})

    def _start(self, X: Any, out: np.ndarray | None) -> Pending:
        if isinstance(X, (Mapping, list, tuple)):
            return self._start_many(X, out)
        device = device_of(X)
        if device is not None and self._resident:
            return self._start_resident(device, [X], out, many=False)
        rows, home = as_rows(X, self.m, self._empty, half=True)
        if out is None:
            return self._start_rows(rows, None, home)
        return self._start_rows(rows, *as_target(out, X, rows, self._empty))

    @property
    def _empty(self) -> Callable[[tuple[int, ...], np.dtype], np.ndarray]:
        return self._net.buffers.empty if self._net.stack is None else self._net.stack.rows

    def _start_rows(self, rows: np.ndarray, target: np.ndarray | None, home: Callable[[np.ndarray], Any]) -> Pending:
        if rows.itemsize == 2:
            return self._start_half(rows, target, home)
        if target is None:
            target = self._empty(rows.shape, rows.dtype)
        if self._alone:
            return Pending(None, lambda: home(self._sum(rows, target)))
        if self._links is not None and rows.dtype.char in "fdFD":
            return self._start_shared(self._links, rows, target, home)
        exchange, halo = self._halo(self._plan, rows)
        return Pending(exchange, lambda: home(self._sum(rows, target, halo)))

    def _start_shared(self, links: Links, rows: np.ndarray, target: np.ndarray, home: Callable[[np.ndarray], Any]) -> Pending:
        parts = rows.view(rows.real.dtype)
        exchange, halo = (None, parts[:0]) if self._whole else self._halo(self._near, parts)
        return Pending(links.start(parts, halo, target.view(parts.dtype), exchange), lambda: home(target))

    def _ask(self, rank: int, seq: int, where: str) -> None:
        self._net.messenger.ask_about_mixing(rank, seq, where)

    def _halo(self, plan: Plan, rows: np.ndarray) -> tuple[Exchange, np.ndarray]:
        """Begin to fetch the halo of a plan: the messages, and where it will be."""
        halo = self._net.buffers.empty((len(plan.halo), rows.shape[1]), rows.dtype)
        if self._links is None or plan is not self._near:
            self._count(rows)
        return self._exchange(plan, plan.halo_route, rows, halo), halo

    def _start_half(self, rows: np.ndarray, target: np.ndarray | None, home: Callable[[np.ndarray], Any]) -> Pending:
        """Rows of 16-bit floats travel between nodes as they are; they are summed in float32, and rounded once."""
        format, single = BFLOAT16 if rows.dtype == np.uint16 else rows.dtype.str, np.dtype(np.float32)
        X, Y = self._empty(rows.shape, single), self._empty(rows.shape, single)
        X[...] = widen(rows, format)

        def finish(Y: np.ndarray) -> Any:
            if target is None:
                return home(narrow(Y, format))
            target[...] = narrow(Y, format)
            return home(target)
        if self._whole:
            pending = self._start_shared(self._links, X, Y, finish)
            self._mixer.counts.bytes -= self._plan.edges * _row_bytes(rows)     # half of what was counted
            return pending
        if self._alone:
            self._count(rows)
            return Pending(None, lambda: finish(self.average(X, X[:0], Y)))
        exchange, halo = self._halo(self._plan, rows)
        return Pending(exchange, lambda: finish(self.average(X, widen(halo, format), Y)))

    @cached_property
    def _resident(self) -> bool:
        """Whether rows on a device stay there: there is no other rank, or MPI takes them and this rank is alone on its node."""
        aware = gpu_mpi()[0]
        return self._alone or (aware and self._links is None)

    def _start_resident(self, device: Device, arrays: Sequence[Any], out: Any = None, many: bool = True) -> Pending:
        """Mix arrays of one format on one device; `wait` returns their list, or the only one."""
        columns, place = Columns(device, arrays, self.m, out), device.place(arrays[0])
        part = self._residents.setdefault((device, place), Resident(device, place, self._plan))
        self._count_bytes(columns.row_bytes)
        ask = None
        if not self._alone:
            kind = "W(X) from device to device", tuple(columns.flat.shape[1:]), flat_dtype(columns.format)
            ask = self._announce(self._plan, self._plan.halo_route, kind)
            if self._plan not in self._wires:
                self._wires[self._plan] = self._net.wire(self._plan, self._mixer.topology.period is not None)
        exchange, halo = part.start(self._net.comm, self._net.row_type(columns.row_bytes), columns.flat, self._where, ask)

        def finish() -> Any:
            results = columns.split(part.sum(columns.flat, halo))
            return results if many else results[0]
        return Pending(exchange, finish)

    def _start_many(self, arrays: Mapping[Any, Any] | Sequence[Any], out: Any) -> Pending:
        """One mixing for all arrays of one format."""
        if out is not None:
            raise TypeError("out is given, expected none when several arrays are mixed")
        if isinstance(arrays, Mapping):
            names, values = list(arrays), self._start_many(list(arrays.values()), None)
            return Pending(None, lambda: dict(zip(names, values.wait())))
        groups: dict[Any, list[tuple[int, Any]]] = {}
        for t, X in enumerate(arrays):
            device = device_of(X)
            if device is not None and self._resident:
                groups.setdefault((device, device.place(X), device.format(X)), []).append((t, X))
            else:
                rows, home = as_rows(X, self.m, half=True)
                groups.setdefault(rows.dtype, []).append((t, (rows, home)))
        started = []
        for key, group in groups.items():
            parts = [part for _, part in group]
            started.append(self._start_resident(key[0], parts) if isinstance(key, tuple) else self._start_fused(parts))

        def collect() -> list[Any]:
            results = [None] * len(arrays)
            for group, pending in zip(groups.values(), started):
                for (t, _), result in zip(group, pending.wait()):
                    results[t] = result
            return results
        return Pending(None, collect)

    def _start_fused(self, pairs: Sequence[tuple[np.ndarray, Callable[[np.ndarray], Any]]]) -> Pending:
        """Rows of one dtype and what gives each back; `wait` returns a list."""
        ends = np.cumsum([0, *(rows.shape[1] for rows, _ in pairs)]).tolist()
        joint = self._empty((self.m, ends[-1]), pairs[0][0].dtype)
        np.concatenate([rows for rows, _ in pairs], axis=1, out=joint)
        return self._start_rows(joint, None, lambda mixed: [
            home(np.ascontiguousarray(mixed[:, begin:end])) for (_, home), begin, end in zip(pairs, ends, ends[1:])])

    def fetch(self, rows: np.ndarray) -> Pending:
        """Begin to fetch the rows of the neighbours that live elsewhere, as they are; `wait()` returns them.

        Parameters
        ----------
        rows : array (m, ...), C-contiguous
            Rows of the local agents, of any dtype.

        Returns
        -------
        Pending
            Of an array (len(halo), ...): the rows of the agents `halo`.
        """
        rows = np.ascontiguousarray(rows)
        flat = rows.reshape(self.m, math.prod(rows.shape[1:]))
        if not self._whole:
            exchange, halo = self._halo(self._plan, flat)
            return Pending(exchange, lambda: halo.reshape(len(halo), *rows.shape[1:]))
        halo = self._empty((len(self.halo), flat.shape[1]), flat.dtype)
        reading = self._halo_links.start(_bytes(flat), _NOTHING, _bytes(halo))
        return Pending(reading, lambda: halo.reshape(len(halo), *rows.shape[1:]))

    @cached_property
    def _halo_links(self) -> Links:
        return Links.halo(self._setting._replace(where="fetch" + self._over), self._near, self._plan)

    @cached_property
    def _edge_links(self) -> Links:
        return Links.edges(self._setting._replace(where="W.exchange(M)" + self._over), self._near, self._plan)

    @property
    def halo(self) -> np.ndarray:
        """The agents on other ranks whose rows the local sums read, ascending."""
        return self._plan.halo

    def average(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, from the rows of the local agents and those that `fetch` brought: `(m, d)`, `(len(halo), d)`, `(m, d)`."""
        weights = self._plan.weights
        return weights.sum(own, out) if isinstance(weights, Runs) else weighted_sum(weights, own, halo, out)

    def spread(self, X: np.ndarray) -> np.ndarray:
        """The sender's row for each edge out of the local agents, sorted by sender, then receiver: `(m, ...) -> (edges, ...)`."""
        return X[self._plan.senders]

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row to each neighbour.

        Parameters
        ----------
        M : array (out-edges, ...)
            A row for each edge out of the local agents, sorted by sender, then receiver (the order of `spread`).

        Returns
        -------
        array (in-edges, ...)
            The row that arrived over each edge into the local agents, sorted by receiver, then sender.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.chain(3)).at(0)
        ...     W.exchange(np.array([[1.], [10.], [12.], [21.]])).ravel().tolist()   # 0->1, 1->0, 1->2, 2->1
        [10.0, 1.0, 21.0, 12.0]
        """
        plan = self._plan
        if len(M) != len(plan.senders):
            raise ValueError(f"messages have shape {M.shape}, expected ({len(plan.senders)}, ...): one row for each out-edge")
        M = np.ascontiguousarray(M)
        if self._whole:
            result = np.empty((self.in_edges, *M.shape[1:]), M.dtype)
            self._edge_links.start(_bytes(M), _NOTHING, _bytes(result)).wait()
            return result
        route, arrival = plan.edge_route
        arrived = np.empty((len(arrival), *M.shape[1:]), M.dtype)
        self._count(M)
        exchange = self._exchange(plan, route, M, arrived, "W.exchange(M)")
        if route.own is not None:
            arrived[route.own[1]] = exchange.sent[route.own[0]]
        exchange.wait()
        result = np.empty_like(arrived)
        result[arrival] = arrived
        return result

    def collect(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent, in ascending order of the senders: `(edges, ...) -> (m, ...)`."""
        total = np.zeros((self.m, *M.shape[1:]), M.dtype)
        np.add.at(total, self._plan.receivers, M)
        return total

    @property
    def in_edges(self) -> int:
        """Edges into the local agents: the rows that `exchange` returns."""
        return len(self._plan.receivers)

    def _exchange(self, plan: Plan, route: Route, rows: np.ndarray, arrived: np.ndarray, op: str = "W(X)") -> Exchange:
        """Begin to move rows along a route, once it is clear that the neighbours do the same."""
        if self._alone:
            sent = rows if route.send is None else rows[route.send]
            return Exchange(Flight([], sent, arrived), op, sent)
        ask = self._announce(plan, route, (op, rows.shape[1:], rows.dtype))
        if plan not in self._wires:
            self._wires[plan] = self._net.wire(plan, self._mixer.topology.period is not None)
        flight = self._wires[plan].start(route, rows, arrived)
        return Exchange(flight, op + self._over, flight.sent, ask, route.sources.tolist())

    def _announce(self, plan: Plan, route: Route, kind: tuple[str, tuple[int, ...], np.dtype]) -> Callable[[], None]:
        """Number an exchange; unless it is of the same kind as the last one, find out first whether the neighbours agree.

        Returns what is to be asked when they do not come.
        """
        net, periodic = self._net, self._mixer.topology.period is not None
        messenger, before = net.messenger, net._begun()
        if kind not in self._marks:
            mark = f"rows of {' x '.join(map(str, kind[1]))} {kind[2]}, topology #{self._mark & 0xFFFFFFFF:08x}"
            self._marks[kind] = kind[0] + self._over, mark, frozenset(route.dests.tolist()), route.sources.tolist()
        op, mark, dests, sources = self._marks[kind]
        kinds, key = (self._kinds, plan) if periodic else (self._mixer.kinds, None)
        if net.transport == "neighbor" and periodic and plan not in self._wires:
            number = messenger.agree(op, mark)      # what follows is collective
        elif net.check and kinds.get(key) != kind:
            number = messenger.verify(op, mark, dests, sources)
        else:
            number = messenger.note(op, mark, dests)
        kinds[key] = kind
        return partial(messenger.ask, sources, number, op, mark, before)

    def _sum(self, rows: np.ndarray, target: np.ndarray, halo: np.ndarray | None = None) -> np.ndarray:
        if halo is None:
            self._count(rows)
            halo = rows[:0]
        return self.average(rows, halo, target)

    def _count(self, rows: np.ndarray) -> None:
        self._count_bytes(_row_bytes(rows))

    def _count_bytes(self, row_bytes: int) -> None:
        counts, edges = self._mixer.counts, self._plan.edges
        counts.rounds += 1
        counts.messages += edges
        counts.bytes += edges * row_bytes

    def free(self) -> None:
        """Free the communicator; collective."""
        while self._wires:
            wire = self._wires.popitem()[1]
            if self._net.out_of_step:
                abandon(wire)
            else:
                wire.free()


class Mixer:
    """The operator `W` of a topology, or of a schedule of them, on a network; made by `Network.mixer`.

    `W(X)` mixes with the operator of the current step: a static topology has but one, and a schedule moves on by one at
    each call.  `W.at(k)` is the operator of step k; it does not move the schedule.

    Attributes
    ----------
    rounds : int
        Mixings and exchanges so far.
    messages, bytes : int
        Rows that the agents of this rank sent to other agents, and their size; an edge between two agents of one rank
        counts as any other, so that the totals over all ranks do not depend on the number of ranks.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
    ...     W = net.mixer(mpidec.topology.one_peer_exponential(4))
    ...     X = np.array([[4.], [0.], [0.], [0.]])
    ...     W(W(X)).ravel().tolist(), W.rounds, W.messages, W.bytes
    ([1.0, 1.0, 1.0, 1.0], 2, 8, 64)
    """

    def __init__(self, net: Network, topology: Topology | Schedule):
        self.net, self.topology = net, topology
        self.n, self.m = net.n, net.m
        self.counts = Counts()
        self.kinds: dict[Any, Any] = {}             # what a random schedule exchanged last
        self._static: Phase | None = None
        self._step, self._closed = 0, False
        self._phases: OrderedDict[int, Phase] = OrderedDict()
        if topology.period == 1:
            self._static = self.at(0)

    def at(self, k: int) -> Phase:
        """The operator of step `k`; collective when a phase is used for the first time."""
        if self._closed:
            raise RuntimeError(f"the mixer of the {self.topology.name} topology is closed: ask its network for a new one")
        if self._static is not None:
            return self._static
        period = self.topology.period
        key = k if period is None else k % period
        if key not in self._phases:
            if len(self._phases) >= _PHASES and period is None:
                self._phases.popitem(last=False)[1].free()
            self._phases[key] = Phase(self, self.topology.at(key), key)
        return self._phases[key]

    def __call__(self, X: Any, out: np.ndarray | None = None) -> Any:
        """Mix the rows `X`, shape `(m, ...)`, with the operator of the current step; see `Phase.__call__`."""
        phase = self._static
        if phase is None:
            phase = self._now()
        Y = phase.fast(X, out)
        return phase.start(X, out).wait() if Y is None else Y

    def start(self, X: Any, out: np.ndarray | None = None) -> Pending:
        """Begin to mix `X`; see `Phase.start`."""
        return self._now().start(X, out)

    @property
    def rounds(self) -> int:
        """Mixings and exchanges so far."""
        return self.counts.rounds

    @property
    def messages(self) -> int:
        """Rows that the agents of this rank sent to other agents."""
        return self.counts.messages

    @property
    def bytes(self) -> int:
        """Their size."""
        return self.counts.bytes

    def _now(self) -> Phase:
        self._step += 1
        return self.at(self._step - 1)

    def compress(self, codec: str | Codec, *, feedback: bool | None = None, gamma: float | None = None, seed: int = 0,
                 **options: Any) -> Compressed:
        """This mixer with rows that travel encoded; see `Compressed`.

        Parameters
        ----------
        codec : {"identity", "float16", "bfloat16", "blockwise8", "qsgd", "top_k", "rand_k"} or Codec
        feedback : bool, optional
            Whether neighbours remember what they know of a row, and get what is new; by default for top_k and rand_k.
        gamma : float, optional
            Step towards the neighbours, in (0, 1].
        seed : int
            Of the codec's random numbers.
        **options
            Parameters of the codec, such as `fraction=0.01` or `k=100`, `levels` and `bucket`, `block`.

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).compress("bfloat16")
        ...     W(np.array([[3.14159], [0.], [0.], [0.]])).ravel().tolist(), W.bytes
        ([1.047..., 1.046875, 0.0, 1.046875], 16)
        """
        from .compressed import compressed
        return compressed(self, codec, feedback, gamma, seed, options)

    def accelerate(self, K: int, method: str = "chebyshev") -> Accelerated:
        """K mixings in one call, which together average better than K by themselves; see `Accelerated`.

        Parameters
        ----------
        K : int
        method : {"chebyshev", "fastmix"}

        Examples
        --------
        >>> import mpidec, numpy as np
        >>> from mpi4py import MPI
        >>> with mpidec.Network(4, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.ring(4)).accelerate(2)
        ...     W(np.array([[4.], [0.], [0.], [0.]])).round(3).ravel().tolist(), W.rounds
        ([1.176, 0.941, 0.941, 0.941], 2)
        """
        from .accelerated import Accelerated
        return Accelerated(self, K, method)

    def close(self) -> None:
        """Free the communicators; collective, and safe to repeat."""
        for phase in self._phases.values():
            phase.free()
        self._phases.clear()
        if self in self.net._mixers:
            self.net._mixers.remove(self)
        self._closed = True


def _bytes(rows: np.ndarray) -> np.ndarray:
    width = rows.itemsize * math.prod(rows.shape[1:])
    return np.ndarray((len(rows), width), np.uint8, rows) if rows.size else np.empty((len(rows), width), np.uint8)


def _cannot(X: Any, out: np.ndarray | None) -> None:
    """There is no faster way."""


def _row_bytes(rows: np.ndarray) -> int:
    return rows.nbytes // len(rows) if len(rows) else rows.itemsize * math.prod(rows.shape[1:])
