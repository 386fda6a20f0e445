"""The operator of one step."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..arrays.host import as_rows, as_target, row_bytes
from ..transport.halo import Courier
from ..arrays.devices import Device, device_of
from .packing import start_half, start_many, start_resident
from ..runtime.cuda_aware import gpu_mpi
from ..kernels.weighted import Runs, difference, weighted_sum
from ..transport.persistent import Lane
from ..checks.mismatch import Disagreement
from ..transport.node_reader import Links, Setting
from .pending import Pending
from ..transport.plan import Plan
from ..transport.device import Resident
from ..transport.messages import PointToPoint
from ..runtime.waiting import Exchange

if TYPE_CHECKING:
    from ..topology import Topology
    from .mixer import Mixer

_NOTHING = np.empty((0, 0), np.uint8)
Form = tuple[Any, ...]
_LANES = 8


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
        self.mixer, self.net, self._k = mixer, mixer.net, k
        self.topology = topology
        self.n, self.m = topology.n, mixer.net.m
        self.over = f" over {topology.name}" + f", step {k}" * (k > 0)
        self.where, mark = "W(X)" + self.over, topology.fingerprint()
        self.courier = Courier(self.net, self.over, mark, mixer.topology.period is not None, mixer.kinds)
        self._lanes: dict[int, Lane] = {}           # by the number of columns
        self.residents: dict[tuple[Device, Any], Resident] = {}
        self.alone = self.net.size == 1
        stack, blocks, rank = self.net.stack, self.net.partition, self.net.rank
        self.links: Links | None = None
        if stack is not None:
            near = Plan(topology, blocks, rank, stack.near[stack.near != rank])
            self._near, self._setting = near, Setting(stack, self.where, mixer.counts, self._ask)
            self.links = Links.sums(self._setting, near)
        self.whole = stack is not None and stack.whole
        self.fast = self._mix_alone if self.alone else _cannot if self.links and not self.whole else \
            self.links.mix if self.links else self._mix_messages

    @property
    def next(self) -> Phase:
        """The operator of the following step; itself when the topology is static."""
        return self.mixer.at(self._k + 1)

    def at(self, k: int) -> Phase:
        """The operator of step `k` of the same schedule."""
        return self.mixer.at(k)

    def __call__(self, X: Any, out: Any = None) -> Any:
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
    def plan(self) -> Plan:
        """All rows of other ranks come in messages."""
        return Plan(self.topology, self.net.partition, self.net.rank)

    def _is_common(self, X: Any) -> bool:
        return type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) == self.m and X.flags.c_contiguous

    def _mix_alone(self, X: Any, out: Any) -> np.ndarray | None:
        """The common case in one process."""
        if not self._is_common(X):
            return None
        if out is None:
            out = np.empty_like(X)
        else:
            as_target(out, X, X)
        return self._sum(X, out)

    def _mix_messages(self, X: Any, out: Any) -> np.ndarray | None:
        """The common case where all rows come in messages."""
        if not self._is_common(X):
            return None
        if out is None:
            out = self.net.buffers.empty(X.shape, X.dtype)
        elif type(out) is not np.ndarray or out.dtype != X.dtype or out.shape != X.shape or not out.flags.c_contiguous \
                or np.may_share_memory(out, X):
            return None                             # `start` says what is wrong
        plan = self.plan
        lane = self._lanes.get(X.shape[1])
        if lane is not None and self.courier.last(plan) == lane.kind:
            return lane.mix(X, out)
        exchange, halo = self.halo_of(plan, X, X.shape[1:])
        exchange.wait()
        self.average(X, halo, out)
        wire = self.courier.wires[plan]
        if lane is None and isinstance(wire, PointToPoint) and self.mixer.topology.period is not None:
            if len(self._lanes) >= _LANES:
                self._lanes.pop(next(iter(self._lanes))).free()
            del exchange, halo
            self.net.buffers.clear()                # the lane has a halo of its own
            self._lanes[X.shape[1]] = Lane(self, wire, X.shape[1])
        return out

    def start(self, X: Any, out: Any = None) -> Pending:
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
        if self.links is not None:
            self.links.give_up()
        if not self.alone and not self.whole:
            route = self.plan.halo_route
            self.net.matching.withdraw(self.where, error, {*route.dests.tolist(), *route.sources.tolist()})

    def _start(self, X: Any, out: Any) -> Pending:
        if isinstance(X, (Mapping, list, tuple)):
            return start_many(self, X, out)
        device = device_of(X)
        if device is not None and self.resident:
            return start_resident(self, device, [X], out, many=False)
        rows, home = as_rows(X, self.m, self.empty, half=True)
        form = tuple(X.shape[1:]) if hasattr(X, "shape") else np.shape(X)[1:]
        if out is None:
            return self.start_rows(rows, None, home, form)
        return self.start_rows(rows, *as_target(out, X, rows, self.empty), form)

    @property
    def empty(self) -> Callable[[tuple[int, ...], np.dtype], np.ndarray]:
        """Makes arrays where they cost least."""
        return self.net.buffers.empty if self.net.stack is None else self.net.stack.rows

    def start_rows(self, rows: np.ndarray, target: np.ndarray | None, home: Callable[[np.ndarray], Any], form: Form) -> Pending:
        """Begin to mix rows (m, d) into `target`, or into a new array; `wait` returns what `home` makes of it.

        `form` is the shape of a row before it was flattened, which must be the same on all ranks.
        """
        if rows.itemsize == 2:
            return start_half(self, rows, target, home, form)
        if target is None:
            target = self.empty(rows.shape, rows.dtype)
        if self.alone:
            return Pending(None, lambda: home(self._sum(rows, target)))
        if self.links is not None and rows.dtype.char in "fdFD":
            return self.start_shared(rows, target, home, form)
        exchange, halo = self.halo_of(self.plan, rows, form)
        return Pending(exchange, lambda: home(self._sum(rows, target, halo)))

    def start_shared(self, rows: np.ndarray, target: np.ndarray, home: Callable[[np.ndarray], Any], form: Form) -> Pending:
        """The same, where the rows of near ranks are read in the stack."""
        parts = rows.view(rows.real.dtype)
        exchange, halo = (None, parts[:0]) if self.whole else self.halo_of(self._near, parts, form)
        plain = form == rows.shape[1:] and rows.dtype.kind == "f"
        number = 0 if plain else zlib.crc32(repr((form, rows.dtype.kind)).encode()) << 16 | 1 << 60
        links = cast(Links, self.links)
        return Pending(links.start(parts, halo, target.view(parts.dtype), exchange, number), lambda: home(target))

    def _ask(self, rank: int, seq: int, where: str) -> None:
        self.net.matching.ask_about_mixing(rank, seq, where)

    def halo_of(self, plan: Plan, rows: np.ndarray, form: Form, op: str = "W(X)") -> tuple[Exchange, np.ndarray]:
        """Begin to fetch the halo of a plan: the messages, and where it will be."""
        halo = self.net.buffers.empty((len(plan.halo), rows.shape[1]), rows.dtype)
        if self.links is None or plan is not self._near:
            self.count(row_bytes(rows))
        return self.courier.exchange(plan, plan.halo_route, rows, halo, (op, form, rows.dtype)), halo

    @cached_property
    def resident(self) -> bool:
        """Whether rows on a device stay there: there is no other rank, or MPI takes them and this rank is alone on its node."""
        aware = gpu_mpi()[0]
        return self.alone or (aware and self.links is None)

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
        if not self.whole:
            exchange, halo = self.halo_of(self.plan, flat, rows.shape[1:], "fetch")
            return Pending(exchange, lambda: halo.reshape(len(halo), *rows.shape[1:]))
        halo = self.empty((len(self.halo), flat.shape[1]), flat.dtype)
        reading = self._halo_links.start(_bytes(flat), _NOTHING, _bytes(halo))
        return Pending(reading, lambda: halo.reshape(len(halo), *rows.shape[1:]))

    @cached_property
    def _halo_links(self) -> Links:
        return Links.halo(self._setting._replace(where="fetch" + self.over), self._near, self.plan)

    @cached_property
    def _edge_links(self) -> Links:
        return Links.edges(self._setting._replace(where="W.exchange(M)" + self.over), self._near, self.plan)

    @property
    def halo(self) -> np.ndarray:
        """The agents on other ranks whose rows the local sums read, ascending."""
        return self.plan.halo

    def average(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = W X`, from the rows of the local agents and those that `fetch` brought: `(m, d)`, `(len(halo), d)`, `(m, d)`."""
        weights = self.plan.weights
        return weights.sum(own, out) if isinstance(weights, Runs) else weighted_sum(weights, own, halo, out)

    def difference(self, own: np.ndarray, halo: np.ndarray, out: np.ndarray) -> np.ndarray:
        """`out = (W - I) X` of float32 or float64, with rounding errors of the size of `out`, not of `X`; see `average`."""
        return difference(self.plan.weights, own, halo, out)

    def to_edges(self, X: np.ndarray) -> np.ndarray:
        """The sender's row for each edge out of the local agents, sorted by sender, then receiver: `(m, ...) -> (edges, ...)`."""
        return X[self.plan.senders]

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row to each neighbour.

        Parameters
        ----------
        M : array (out-edges, ...)
            A row for each edge out of the local agents, sorted by sender, then receiver (the order of `to_edges`).

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
        plan = self.plan
        if len(M) != len(plan.senders):
            raise ValueError(f"messages have shape {M.shape}, expected ({len(plan.senders)}, ...): one row for each out-edge")
        M = np.ascontiguousarray(M)
        if self.whole:
            result = np.empty((self.in_edges, *M.shape[1:]), M.dtype)
            self._edge_links.start(_bytes(M), _NOTHING, _bytes(result)).wait()
            return result
        route, arrival = plan.edge_route
        arrived = np.empty((len(arrival), *M.shape[1:]), M.dtype)
        self.count(row_bytes(M))
        exchange = self.courier.exchange(plan, route, M, arrived, ("W.exchange(M)", M.shape[1:], M.dtype))
        if route.own is not None:
            arrived[route.own[1]] = exchange.sent[route.own[0]]
        exchange.wait()
        result = np.empty_like(arrived)
        result[arrival] = arrived
        return result

    def sum_edges(self, M: np.ndarray) -> np.ndarray:
        """Sum over the edges into each local agent, in ascending order of the senders: `(edges, ...) -> (m, ...)`."""
        total = np.zeros((self.m, *M.shape[1:]), M.dtype)
        np.add.at(total, self.plan.receivers, M)
        return total

    @property
    def in_edges(self) -> int:
        """Edges into the local agents: the rows that `exchange` returns."""
        return len(self.plan.receivers)

    def _sum(self, rows: np.ndarray, target: np.ndarray, halo: np.ndarray | None = None) -> np.ndarray:
        if halo is None:
            self.count(row_bytes(rows))
            halo = rows[:0]
        return self.average(rows, halo, target)

    def count(self, row_bytes: int) -> None:
        """Rows of so many bytes have been sent over all edges."""
        counts, edges = self.mixer.counts, self.plan.edges
        counts.rounds += 1
        counts.messages += edges
        counts.bytes += edges * row_bytes

    def free(self) -> None:
        """Free the communicator; collective."""
        while self._lanes:
            self._lanes.popitem()[1].free()
        self.courier.free()


def _bytes(rows: np.ndarray) -> np.ndarray:
    width = rows.itemsize * math.prod(rows.shape[1:])
    return np.ndarray((len(rows), width), np.uint8, rows) if rows.size else np.empty((len(rows), width), np.uint8)


def _cannot(X: Any, out: np.ndarray | None) -> None:
    """There is no faster way."""
