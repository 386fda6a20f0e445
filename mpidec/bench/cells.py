"""One graph with rows of one size: contenders that are checked and timed in turn."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, ClassVar

import numpy as np

from .. import registry as catalogue
from ..comm.kernels import Weights
from ..comm.mixing import Network
from ..comm.runtime import MPI
from ..exceptions import WrongResult
from ..topology import Topology
from .report import (
    ALLREDUCE,
    Group,
    Timing,
    size_name,
)

BLOCKS, MOST_BLOCKS, BLOCK_SECONDS = 9, 51, 0.01
AGENTS_ALONE = 4
COLUMNS = 1 << 14  # of rows that are compared at a time


@dataclass(frozen=True)
class Options:
    """What the command line asks for; sizes and graphs None for those of each group."""

    groups: list[str]
    sizes: list[int] | None
    graphs: list[str] | None
    transports: list[str]
    seconds: float
    json: str | None = None
    plot: str | None = None
    # Of training: milliseconds that a device would compute in a step, and samples of a worker.
    compute: Sequence[float] = (0.0,)
    batch: int = 32
    # Of the network between nodes.
    calibrate: bool = False
    out: str = "network.json"


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to compute something.

    Attributes
    ----------
    name : str
    calls : list of callable
        A call for each phase of the graph, in their order.
    due : list of array (n, 2)
        The rows of all agents after each of the first calls; see `CombinedRows`.
    out : array, optional
        Where the result is; by default it is what the call returns.
    task : str
        What is computed: ratios are taken between contenders with the same task.
    role : str
        That of a `Ratio`, for contenders that others are compared with.
    within : callable
        Makes the context in which the calls are made.
    extra : callable, optional
        Returns the memory that the contender needs for communication, in bytes.
    """

    name: str
    calls: Sequence[Callable[[], Any]]
    due: Sequence[np.ndarray]
    out: np.ndarray | None = None
    task: str = ""
    role: str = ""
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    extra: Callable[[], int] | None = None


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array that begins where a page begins.

    Copying between arrays whose places in their pages differ by a few bytes takes up to 20 times as
    long: the processor takes what is read for what has just been written, 4096 bytes away.  Chance
    would decide which contender meets that.
    """
    raw = np.empty(8 * int(np.prod(shape)) + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + 8 * int(np.prod(shape))].view(np.float64).reshape(shape)


class CombinedRows:
    """Rows of d numbers of n agents, of which those from `lo` to `hi` are local.

    All are combinations of two: agent i's row is `c[i, 0] base + c[i, 1]`.  What is linear in the
    rows can then be done on the coefficients `c`, shape (n, 2), so that each rank knows the exact
    result of any matrix, and of any solver.

    Attributes
    ----------
    start : array (n, 2)
        The coefficients before the first call.
    """

    def __init__(self, n: int, d: int, lo: int, hi: int) -> None:
        agents = np.arange(1, n + 1)
        self.start = np.stack([np.cos(agents), np.sin(3 * agents)], axis=1)
        self.base = np.random.default_rng(7).standard_normal(d)
        self.lo, self.hi = lo, hi

    def __call__(
        self,
        coefficients: np.ndarray,
        agents: np.ndarray | None = None,
        columns: slice = slice(None),
    ) -> np.ndarray:
        """Return the rows of some agents, by default of the local ones."""
        c = coefficients[self.lo : self.hi] if agents is None else coefficients[agents]
        value: np.ndarray = c[:, :1] * self.base[columns] + c[:, 1:]
        return value


class Cell:
    """One graph with rows of one size: the contenders of one group, what they must compute, and
    their times.
    """

    group: ClassVar[Group]
    sizes: ClassVar[str]
    graphs: ClassVar[str] = "exponential"
    fewest_ranks: ClassVar[int] = 2
    fewest_calls: ClassVar[int] = 1  # in a block
    fewest_blocks: ClassVar[int] = BLOCKS
    requires: ClassVar[str] = ""  # an extra of the package

    def __init__(self, graph: str, d: int, comm: MPI.Intracomm, options: Options):
        self.graph, self.d, self.comm, self.transports = graph, d, comm, options.transports
        self.n = comm.size if comm.size > 1 else AGENTS_ALONE
        topology = catalogue.TOPOLOGIES[graph](self.n)
        self.topology = topology
        self.period = topology.period or 1
        self.phases = [topology.at(k) for k in range(self.period)]
        lo, hi = (comm.rank, comm.rank + 1) if comm.size > 1 else (0, self.n)
        self.rows = CombinedRows(self.n, d, lo, hi)
        self.x, self.y, self.halo = (aligned((rows, d)) for rows in (hi - lo, hi - lo, self.n))
        self.x[:] = self.rows(self.rows.start)
        self.mixed = [phase.W.toarray() @ self.rows.start for phase in self.phases]
        self._stack = ExitStack()
        self.contenders = list(self._contenders())

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        """Return how many arrays of the size of a row a rank holds, at most."""
        raise NotImplementedError

    @classmethod
    def cases(cls, options: Options) -> list[dict[str, Any]]:
        """Return further arguments of the cells to be made for each graph and size."""
        return [{}]

    def _contenders(self) -> Iterator[Contender]:
        raise NotImplementedError

    def _network(self, transport: str | None = None) -> Network:
        return self._stack.enter_context(Network(self.n, self.comm, transport=transport))

    def _mixings(self, name: str, net: Network) -> Iterator[Contender]:
        """Rows from `net.empty`, into such rows, and into a result that the mixing allocates."""
        W, X, Y = net.mixer(self.topology), net.empty(self.d), net.empty(self.d)
        X[:] = self.x
        yield Contender(f"{name}, net.empty", [partial(W, X, Y)] * self.period, self.mixed, Y)
        yield Contender(f"{name}, Y = W(X)", [partial(W, X)] * self.period, self.mixed)

    def _allreduce(self) -> Contender:
        call = partial(self.comm.Allreduce, [self.x, MPI.DOUBLE], [self.y, MPI.DOUBLE])
        total = np.ones((self.n, self.n)) @ self.rows.start
        due = [total] * self.period
        return Contender(ALLREDUCE, [call] * self.period, due, self.y, role=ALLREDUCE)

    def _weights(self, phase: Topology) -> tuple[Weights, np.ndarray]:
        """Return the weights of the local agents' sums, and the other agents whose rows are in
        them, ascending.
        """
        lo, hi = self.rows.lo, self.rows.hi
        entries = phase.source.rows(lo, hi)
        others = np.setdiff1d(entries.indices, np.arange(lo, hi))
        own = (entries.indices >= lo) & (entries.indices < hi)
        beyond = hi - lo + np.searchsorted(others, entries.indices)
        places = np.where(own, entries.indices - lo, beyond)
        return Weights.of(lo, entries, places, None), others

    def _isend_irecv(self, phase: Topology, weigh: Callable[[], Any]) -> Callable[[], None]:
        comm, x = self.comm, [self.x, MPI.DOUBLE]
        arriving = [
            ([row, MPI.DOUBLE], j)
            for row, j in zip(self.halo, phase.in_neighbors(self.rows.lo).tolist())
        ]
        dests = phase.out_neighbors(self.rows.lo).tolist()

        def call() -> None:
            MPI.Request.Waitall(
                [comm.Irecv(row, j) for row, j in arriving] + [comm.Isend(x, j) for j in dests]
            )
            weigh()

        return call

    def _requests(self, phase: Topology, sent: np.ndarray) -> list[MPI.Prequest]:
        """Persistent requests that send the row `sent` to the neighbours and receive theirs in
        `halo`.
        """
        arriving = zip(self.halo, phase.in_neighbors(self.rows.lo).tolist())
        requests = [self.comm.Recv_init([row, MPI.DOUBLE], j) for row, j in arriving]
        requests += [
            self.comm.Send_init([sent, MPI.DOUBLE], j)
            for j in phase.out_neighbors(self.rows.lo).tolist()
        ]
        for request in requests:
            self._stack.callback(request.Free)
        return requests

    def _graph(self, phase: Topology) -> tuple[MPI.Distgraphcomm, int, int]:
        """Return the neighbours as a communicator, and how many there are."""
        sources, dests = (
            phase.in_neighbors(self.rows.lo).tolist(),
            phase.out_neighbors(self.rows.lo).tolist(),
        )
        graph = self.comm.Create_dist_graph_adjacent(sources, dests, reorder=False)
        self._stack.callback(graph.Free)
        return graph, len(sources), len(dests)

    def _all_receive(self) -> bool:
        """Return whether every agent has neighbours in every phase; neighbourhood collectives of
        Open MPI 5 hang otherwise.
        """
        return all(
            len(phase.in_neighbors(i)) and len(phase.out_neighbors(i))
            for phase in self.phases
            for i in range(self.n)
        )

    def check(self, each: Contender) -> None:
        """Compare the results of the first calls with the exact ones.

        Raises
        ------
        WrongResult
            On every rank, if a result differs on any.
        """
        with each.within():
            for k, (due, call) in enumerate(zip(each.due, cycle(each.calls))):
                if each.out is not None:
                    each.out.fill(np.nan)
                given = call()
                result = (given if each.out is None else each.out).reshape(self.x.shape)
                parts = (slice(start, start + COLUMNS) for start in range(0, self.d, COLUMNS))
                worst = np.max(
                    [np.abs(result[:, part] - self.rows(due, columns=part)).max() for part in parts]
                )
                worst = np.inf if np.isnan(worst) else worst
                error, rank = self.comm.allreduce((float(worst), self.comm.rank), MPI.MAXLOC)
                if not error <= 1e-12 * (1 + np.abs(self.rows.base).max()) * self.n:
                    raise WrongResult(
                        f"{each.name}, {self.graph}, {size_name(8 * self.d)}, phase "
                        f"{k % self.period}: the result on "
                        f"rank {rank} differs from the dense product by {error:.2g}"
                    )

    def measure(self, seconds: float) -> list[Timing]:
        """Return the times of all contenders, block by block in turn, after each has been
        checked.
        """
        # A solver may diverge on a graph that is not for it.
        with np.errstate(over="ignore", invalid="ignore"):
            for each in self.contenders:
                self.check(each)
            share = seconds / len(self.contenders)
            block = min(BLOCK_SECONDS, share / self.fewest_blocks)
            once = [
                sorted(self._block(each, self.period) for _ in range(3))[1]
                for each in self.contenders
            ]
            repeats = [
                self.period * max(self.fewest_calls, int(block / max(one, 1e-8) / self.period))
                for one in once
            ]
            blocks: list[list[float]] = []
            start = time.perf_counter()
            while len(blocks) < self.fewest_blocks or (
                len(blocks) < MOST_BLOCKS and self.comm.bcast(time.perf_counter() - start < seconds)
            ):
                blocks.append(
                    [self._block(each, calls) for each, calls in zip(self.contenders, repeats)]
                )
        return [
            Timing(
                graph=self.graph,
                bytes=8 * self.d,
                contender=each.name,
                repeats=calls,
                blocks=[round(1e6 * one, 4) for one in times],
                task=each.task,
                role=each.role,
                extra=each.extra and each.extra() / (8 * self.d),
            )
            for each, calls, times in zip(self.contenders, repeats, zip(*blocks))
        ]

    def _block(self, each: Contender, repeats: int) -> float:
        """Seconds per call on the slowest rank."""
        calls = islice(cycle(each.calls), repeats)
        with each.within():
            self.comm.Barrier()
            start = time.perf_counter()
            for call in calls:
                call()
            seconds = time.perf_counter() - start
        value: float = self.comm.allreduce(seconds / repeats, MPI.MAX)
        return value

    def close(self) -> None:
        """Free all communicators and rows; collective."""
        self.contenders.clear()
        self._stack.close()
        gc.collect()
