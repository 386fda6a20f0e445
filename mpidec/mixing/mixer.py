"""Mixers: `Y = W(X)` moves rows between agents and takes weighted averages of them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .arrays import as_rows
from .kernel import Runs, weighted_sum
from .plan import Plan, Route
from .stack import Counts, Links
from .transport import Transport
from .waiting import Exchange

if TYPE_CHECKING:
    from ..topology import Schedule, Topology
    from .accelerated import Accelerated
    from .codec import Codec
    from .compressed import Compressed
    from .network import Network

_PHASES = 64                                        # phases of a random schedule that are kept at a time


class Pending:
    """A mixing under way; `wait()` completes it and returns the rows.

    The rows handed to `start` must not change before `wait` returns.
    """

    def __init__(self, exchange: Exchange | None, finish: Callable[[], Any]):
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
        self._where = f"W(X) over {topology.name}" + f", step {k}" * (k > 0)
        self._wires: dict[Plan, Transport] = {}
        self._alone = self._net.size == 1
        stack, blocks, rank = self._net.stack, self._net.blocks, self._net.rank
        self._links: Links | None = None
        if stack is not None:
            near = Plan(topology, blocks, rank, stack.near[stack.near != rank])
            self._links = Links(stack, near, self._where, mixer.counts)
        self.fast = self._mix_alone if self._alone else self._links.mix if self._links and self._links.complete else _cannot

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
        X : array (m, ...) or sequence of such
            Rows of the local agents: NumPy, or PyTorch on the CPU.  Never modified.
        out : array, optional
            Where the rows go: C-contiguous, shape and dtype of `X`, not overlapping it.

        Returns
        -------
        array (m, ...), or a list of them
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
        return self._sum(X, np.empty_like(X) if out is None else _target(out, X, X))

    def start(self, X: Any, out: np.ndarray | None = None) -> Pending:
        """Begin to mix `X`, and return at once; `wait()` on what comes back returns the mixed rows.

        Any number of mixings may be under way, and be waited for in any order; all ranks start them in the same order.
        """
        if isinstance(X, (list, tuple)):
            return self._start_many(X)
        rows, home = as_rows(X, self.m)
        if out is None:
            target = np.empty_like(rows) if self._links is None else self._links.stack.rows(rows.shape, rows.dtype)
        else:
            target, home = _target(out, rows, X), _giving(out)
        if self._alone:
            return Pending(None, lambda: home(self._sum(rows, target)))
        if self._links is not None and rows.dtype.char in "fdFD":
            return self._start_shared(self._links, rows, target, home)
        requests, halo, sent = self._halo(self._plan, rows)
        return Pending(Exchange(requests, self._where, sent), lambda: home(self._sum(rows, target, halo)))

    def _start_shared(self, links: Links, rows: np.ndarray, target: np.ndarray, home: Callable[[np.ndarray], Any]) -> Pending:
        parts = rows.view(rows.real.dtype)
        seq, in_place = links.post(parts)
        exchange, halo = None, parts[:0]
        if not links.complete:
            requests, halo, sent = self._halo(links.plan, parts)
            exchange = Exchange(requests, self._where, sent)

        def finish() -> Any:
            links.finish(seq, in_place, parts, halo, target.view(parts.dtype))
            return home(target)
        return Pending(exchange, finish)

    def _halo(self, plan: Plan, rows: np.ndarray) -> tuple[list[MPI.Request], np.ndarray, np.ndarray]:
        """Begin to fetch the halo of a plan: the requests, where it will be, and what MPI reads until then."""
        halo = np.empty((len(plan.halo), rows.shape[1]), rows.dtype)
        if plan is not (self._links and self._links.plan):
            self._count(rows)
        requests, sent = self._exchange(plan, plan.halo_route, rows, halo)
        return requests, halo, sent

    def _start_many(self, arrays: Sequence[Any]) -> Pending:
        if not arrays:
            return Pending(None, list)
        pairs = [as_rows(X, self.m) for X in arrays]
        dtypes = {rows.dtype for rows, _ in pairs}
        if len(dtypes) > 1:
            separate = [self.start(X) for X in arrays]
            return Pending(None, lambda: [pending.wait() for pending in separate])
        joint = self.start(np.concatenate([rows for rows, _ in pairs], axis=1))

        def split() -> list[Any]:
            mixed, parts, end = joint.wait(), [], 0
            for rows, home in pairs:
                begin, end = end, end + rows.shape[1]
                parts.append(home(np.ascontiguousarray(mixed[:, begin:end])))
            return parts
        return Pending(None, split)

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
        requests, halo, sent = self._halo(self._plan, flat)
        return Pending(Exchange(requests, self._where, sent), lambda: halo.reshape(-1, *rows.shape[1:]))

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
        >>> with mpidec.Network(3, comm=MPI.COMM_SELF) as net:
        ...     W = net.mixer(mpidec.topology.chain(3)).at(0)
        ...     W.exchange(np.array([[1.], [10.], [12.], [21.]])).ravel().tolist()   # 0->1, 1->0, 1->2, 2->1
        [10.0, 1.0, 21.0, 12.0]
        """
        plan = self._plan
        if len(M) != len(plan.senders):
            raise ValueError(f"messages have shape {M.shape}, expected ({len(plan.senders)}, ...): one row for each out-edge")
        route, arrival = plan.edge_route
        M = np.ascontiguousarray(M)
        arrived = np.empty((len(arrival), *M.shape[1:]), M.dtype)
        self._count(M)
        requests, sent = self._exchange(plan, route, M, arrived)
        if route.own is not None:
            arrived[route.own[1]] = sent[route.own[0]]
        Exchange(requests, f"exchange over {self.topology.name}", sent).wait()
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

    def _exchange(self, plan: Plan, route: Route, rows: np.ndarray, arrived: np.ndarray) -> tuple[list[MPI.Request], np.ndarray]:
        sent = rows if route.send is None else rows[route.send]
        if self._alone:
            return [], sent
        if plan not in self._wires:
            self._wires[plan] = self._net.wire(plan)
        row = self._net.row_type(_row_bytes(rows))
        return self._wires[plan].start(route, sent, arrived, row), sent

    def _sum(self, rows: np.ndarray, target: np.ndarray, halo: np.ndarray | None = None) -> np.ndarray:
        if halo is None:
            self._count(rows)
            halo = rows[:0]
        return self.average(rows, halo, target)

    def _count(self, rows: np.ndarray) -> None:
        counts, edges = self._mixer.counts, self._plan.edges
        counts.rounds += 1
        counts.messages += edges
        counts.bytes += edges * _row_bytes(rows)

    def free(self) -> None:
        """Free the communicator; collective."""
        while self._wires:
            self._wires.popitem()[1].free()


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


def _cannot(X: Any, out: np.ndarray | None) -> None:
    """There is no faster way."""


def _row_bytes(rows: np.ndarray) -> int:
    return rows.nbytes // len(rows) if len(rows) else rows.itemsize * math.prod(rows.shape[1:])


def _giving(out: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda _: out


def _target(out: np.ndarray, rows: np.ndarray, X: Any) -> np.ndarray:
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or out.shape != np.shape(X) or out.dtype != rows.dtype:
        raise ValueError(f"out is {type(out).__name__} {getattr(out, 'shape', '')} {getattr(out, 'dtype', '')}, expected a "
                         f"C-contiguous array {np.shape(X)} {rows.dtype}")
    if np.may_share_memory(out, rows):
        raise ValueError("out overlaps the rows to be mixed: give an array of its own")
    return out.reshape(rows.shape)
