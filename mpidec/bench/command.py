"""Measure mixings, solver steps, local-view calls and training: ``mpirun -n 4 python -m mpidec.bench``."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import count, cycle, islice
from typing import Any, ClassVar

import mpi4py
import numpy as np

from .. import registry as catalogue
from .._version import __version__
from ..cli.program import Command, Parser, Status
from ..cli.tables import plural
from ..comm.kernels.weighted import COMPILED, Weights, weighted_sum
from ..comm.mixing import Network
from ..comm.mixing.network import TRANSPORTS
from ..comm.rma import Window
from ..comm.runtime.launch import library
from ..comm.runtime.mpi import MPI
from ..diagnostics import host
from ..exceptions import InputError, WrongResult
from ..plugins import nearest
from ..solvers import DGD, EXTRA, ExactDiffusion, GradientTracking, Solver
from .report import (
    ALLREDUCE,
    GROUPS,
    HAND,
    LOCAL,
    Timing,
    legend,
    picture,
    ratios,
    size_name,
    size_of,
    table,
    write_json,
)
from .report import DDP as PARALLEL
from .report import NO_COMMUNICATION as ALONE

BLOCKS, MOST_BLOCKS, BLOCK_SECONDS = 9, 51, 0.01
AGENTS_ALONE = 4
RANKS_PER_NODE = 2  # pretended where all ranks are on one host
STEP_SIZE, STEPS = 1e-3, 6  # of the solvers, and how many of their steps are compared
PIXELS, CLASSES, BATCH = 784, 10, 32  # of the training
COLUMNS = 1 << 14  # of rows that are compared at a time
NEIGHBORHOOD, BY_HAND = "Neighbor_allgather + NumPy", "Isend/Irecv + NumPy"
Mixing = Callable[[np.ndarray], None]  # by hand: mixes rows that it knows into its argument
Bind = Callable[..., list[Mixing]]  # a mixing of the given rows for each phase
EPILOG = """\
examples:
  mpirun -n 4 python -m mpidec.bench                                  about a minute
  mpirun -n 4 python -m mpidec.bench --rows steps --sizes 64K,8M      solver steps alone
  mpirun -n 4 python -m mpidec.bench --rows mixing --sizes 8,64K,1M,16M,64M --seconds 180 --json bench.json --plot bench.png
  mpirun -n 4 python -m mpidec.bench --rows train --sizes 256K,76M    training steps; 76M is a network of 19 M parameters
  mpirun -n 8 python -m mpidec.bench --graphs ring --transports neighbor,p2p
  MPIDEC_RANKS_PER_NODE=1 mpirun -n 4 python -m mpidec.bench          as if every rank were on a host of its own
  python -m mpidec.bench                                              one process: 4 agents in memory

groups of rows:
  mixing   W(X) by each transport, against MPI_Allreduce, the same sum by hand in NumPy, and the local limit.
           "net.empty": rows from net.empty, into rows from net.empty; "any array": ordinary arrays; "Y = W(X)": rows from
           net.empty, into a result that the mixing allocates.
  nodes    W(X) with messages: 2 ranks a node and several nodes (pretended if all ranks are on one host), and p2p; against
           the same sum by hand: Isend/Irecv, persistent requests or Neighbor_alltoallv into preallocated arrays, and then
           the package's own compiled sum.
  steps    solver.step as solve runs it, with rows that the solver allocates itself; against the same equations by hand:
           NumPy on preallocated arrays, persistent requests to the same neighbours with the same weights.  For DGD also
           an Allreduce between preallocated arrays instead.  The gradient is a fixed array, so its cost is not included.
  windows  put, accumulate and get with all neighbours through net.window, against Put, Accumulate and Get on memory of
           Win.Allocate, with Lock_all and a Flush of each neighbour; "push-sum": accumulate with weights that sum to one,
           and collect.  The mutex of the next rank, which nobody else takes, and that of rank 0, which all ranks take at
           once, against Lock and Unlock of MPI.
  local    neighbor_allreduce along the topology that was set, and with weights in each call: pull (src_weights), push
           (dst_weights), push-pull (both); against MPI_Allreduce.
  train    a step of a PyTorch model, forward, backward and update, on one thread per rank: a network of three linear layers
           with this many bytes of float32 parameters, batches of 32, SGD; with no communication, with the algorithms of
           mpidec.optim, by torch's DistributedDataParallel over gloo, and by Decent-DP on a ring if it is installed.

One agent per rank, a row of float64 each (but for train).  All contenders take turns in one run: a barrier, a block of calls of one
contender, the next one.  The time of a block is that of its slowest rank, and the median over at least 9 blocks is shown, with
  /local   the time over that of the local limit: one private copy and the fused weighted sum of as many rows, by the same
           ranks at the same time, without any exchange (smaller is better; zero-copy mixing can be below 1)
  /hand    the time over that of the fastest version by hand (smaller is better; below 1, mpidec is faster)
  Allr/    the time of the version with MPI_Allreduce over this time (larger is better)
  /alone   the time over that without communication (smaller is better; the goal is 1)
  DDP/     the time of DistributedDataParallel over this time (larger is better)
  extra    the memory that an algorithm holds beyond parameters, gradients and the optimizer's state, in units of the parameters
The results of all contenders are compared with the dense product before they are timed.

exit status: 0 measured, 1 a contender's result is wrong, 2 something in the command line is wrong."""


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


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to compute something.

    Attributes
    ----------
    name : str
    calls : list of callable
        A call for each phase of the graph, in their order.
    due : list of array (n, 2)
        The rows of all agents after each of the first calls; see `Cell.rows`.
    out : array, optional
        Where the result is; by default it is what the call returns.
    task : str
        What is computed: ratios are taken between contenders with the same task.
    role : str
        LOCAL, ALLREDUCE, HAND, ALONE or PARALLEL for contenders that others are compared with.
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


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--rows",
        default=",".join(name for name in CELLS if name != "train"),
        help="groups of rows to measure (default: %(default)s; also: train)",
    )
    parser.add_argument(
        "--sizes",
        help="bytes of a row, 8 to 64M and beyond (default: "
        + "; ".join(f"{name} {cell.sizes}" for name, cell in CELLS.items())
        + ")",
    )
    parser.add_argument(
        "--graphs",
        help="(default: "
        + "; ".join(f"{name} {cell.graphs}" for name, cell in CELLS.items())
        + ")",
    )
    parser.add_argument(
        "--transports",
        default=",".join(name for name in TRANSPORTS if name != "auto"),
        help="how rows travel in the group mixing, of "
        + ", ".join(TRANSPORTS)
        + " (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="time to measure for, about, in all (default: %(default)s)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write all numbers and a description of the machine"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw them")


def prepare(args: argparse.Namespace, ranks: int) -> Options:
    """Return what the arguments ask for.

    Raises
    ------
    ValueError
        If an argument is invalid.
    """
    groups, graphs, transports = (
        [name.strip() for name in text.split(",")] if text is not None else None
        for text in (args.rows, args.graphs, args.transports)
    )
    for flag, what, names, known in (
        ("--rows", "group of rows", groups, list(CELLS)),
        ("--graphs", "graph", graphs, list(catalogue.topologies())),
        ("--transports", "transport", transports, list(TRANSPORTS)),
    ):
        for name in names or ():
            if name not in known:
                raise ValueError(f"{flag}: unknown {what} {name!r}: {nearest(name, known)}")
    if "train" in (groups or ()) and importlib.util.find_spec("torch") is None:
        raise ValueError("--rows train needs PyTorch: pip install 'mpidec[torch]'")
    if not 0 < args.seconds < 1e6:
        raise ValueError(f"--seconds is {args.seconds}, expected a time > 0")
    for path in filter(None, (args.json, args.plot)):
        if not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise ValueError(
                f"{path} cannot be written: {os.path.dirname(path) or '.'} is not a folder that can be written to"
            )
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'mpidec[plot]'")
    sizes = None if args.sizes is None else [size_of(text) for text in args.sizes.split(",")]
    return Options(
        list(dict.fromkeys(groups or ())),
        sizes,
        graphs,
        transports or [],
        args.seconds,
        args.json,
        args.plot,
    )


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """An array that begins where a page begins.

    Copying between arrays whose places in their pages differ by a few bytes takes up to 20 times as long: the processor
    takes what is read for what has just been written, 4096 bytes away.  Chance would decide which contender meets that.
    """
    raw = np.empty(8 * int(np.prod(shape)) + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + 8 * int(np.prod(shape))].view(np.float64).reshape(shape)


class Cell:
    """One graph with rows of one size: the contenders of one group, what they must compute, and their times.

    All rows are combinations of two: agent i's row is `c[i, 0] base + c[i, 1]`.  What is linear in the rows can then be done
    on the coefficients `c`, shape (n, 2), so that each rank knows the exact result of any matrix, and of any solver.
    """

    sizes: ClassVar[str]
    graphs: ClassVar[str] = "exponential"
    fewest_ranks: ClassVar[int] = 2
    fewest_calls: ClassVar[int] = 1  # in a block

    def __init__(self, graph: str, d: int, comm: MPI.Intracomm, transports: Sequence[str] = ()):
        self.graph, self.d, self.comm, self.transports = graph, d, comm, transports
        self.n = comm.size if comm.size > 1 else AGENTS_ALONE
        topology = catalogue.topologies()[graph](self.n)
        self.topology = topology
        self.period = topology.period or 1
        self.phases = [topology.at(k) for k in range(self.period)]
        agents = np.arange(1, self.n + 1)
        self.start = np.stack([np.cos(agents), np.sin(3 * agents)], axis=1)
        self.base = np.random.default_rng(7).standard_normal(d)
        self.lo, self.hi = (comm.rank, comm.rank + 1) if comm.size > 1 else (0, self.n)
        self.x, self.y, self.halo = (
            aligned((self.hi - self.lo, d)),
            aligned((self.hi - self.lo, d)),
            aligned((self.n, d)),
        )
        self.x[:] = self.rows(self.start)
        self.mixed = [phase.W.toarray() @ self.start for phase in self.phases]
        self.total = [np.ones((self.n, self.n)) @ self.start] * self.period
        self._stack = ExitStack()
        self.contenders = list(self._contenders())

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        """How many arrays of the size of a row a rank holds, at most."""
        raise NotImplementedError

    def _contenders(self) -> Iterator[Contender]:
        raise NotImplementedError

    def rows(
        self,
        coefficients: np.ndarray,
        agents: np.ndarray | None = None,
        columns: slice = slice(None),
    ) -> np.ndarray:
        """The rows of some agents, by default of the local ones."""
        c = coefficients[self.lo : self.hi] if agents is None else coefficients[agents]
        value: np.ndarray = c[:, :1] * self.base[columns] + c[:, 1:]
        return value

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
        return Contender(ALLREDUCE, [call] * self.period, self.total, self.y, role=ALLREDUCE)

    def _weights(self, phase: Any) -> tuple[Weights, np.ndarray]:
        """The weights of the local agents' sums, and the other agents whose rows are in them, ascending."""
        entries = phase.source.rows(self.lo, self.hi)
        others = np.setdiff1d(entries.indices, np.arange(self.lo, self.hi))
        own = (entries.indices >= self.lo) & (entries.indices < self.hi)
        places = np.where(
            own,
            entries.indices - self.lo,
            self.hi - self.lo + np.searchsorted(others, entries.indices),
        )
        return Weights.of(self.lo, entries, places, None), others

    def _isend_irecv(self, phase: Any, weigh: Callable[[], Any]) -> Callable[[], None]:
        comm, x = self.comm, [self.x, MPI.DOUBLE]
        arriving = [
            ([row, MPI.DOUBLE], j)
            for row, j in zip(self.halo, phase.in_neighbors(self.lo).tolist())
        ]
        dests = phase.out_neighbors(self.lo).tolist()

        def call() -> None:
            MPI.Request.Waitall(
                [comm.Irecv(row, j) for row, j in arriving] + [comm.Isend(x, j) for j in dests]
            )
            weigh()

        return call

    def _requests(self, phase: Any, sent: np.ndarray) -> list[MPI.Prequest]:
        """Persistent requests that send the row `sent` to the neighbours and receive theirs in `halo`."""
        arriving = zip(self.halo, phase.in_neighbors(self.lo).tolist())
        requests = [self.comm.Recv_init([row, MPI.DOUBLE], j) for row, j in arriving]
        requests += [
            self.comm.Send_init([sent, MPI.DOUBLE], j)
            for j in phase.out_neighbors(self.lo).tolist()
        ]
        for request in requests:
            self._stack.callback(request.Free)
        return requests

    def _graph(self, phase: Any) -> tuple[MPI.Distgraphcomm, int, int]:
        """The neighbours as a communicator, and how many there are."""
        sources, dests = phase.in_neighbors(self.lo).tolist(), phase.out_neighbors(self.lo).tolist()
        graph = self.comm.Create_dist_graph_adjacent(sources, dests, reorder=False)
        self._stack.callback(graph.Free)
        return graph, len(sources), len(dests)

    def _all_receive(self) -> bool:
        """Whether every agent has neighbours in every phase; neighbourhood collectives of Open MPI 5 hang otherwise."""
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
                if not error <= 1e-12 * (1 + np.abs(self.base).max()) * self.n:
                    raise WrongResult(
                        f"{each.name}, {self.graph}, {size_name(8 * self.d)}, phase {k % self.period}: the result on "
                        f"rank {rank} differs from the dense product by {error:.2g}"
                    )

    def measure(self, seconds: float) -> list[Timing]:
        """The times of all contenders, block by block in turn, after each has been checked."""
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a solver may diverge on a graph that is not for it
            for each in self.contenders:
                self.check(each)
            share = seconds / len(self.contenders)
            block = min(BLOCK_SECONDS, share / BLOCKS)
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
            while len(blocks) < BLOCKS or (
                len(blocks) < MOST_BLOCKS and self.comm.bcast(time.perf_counter() - start < seconds)
            ):
                blocks.append(
                    [self._block(each, calls) for each, calls in zip(self.contenders, repeats)]
                )
        return [
            Timing(
                self.graph,
                8 * self.d,
                each.name,
                calls,
                [round(1e6 * one, 4) for one in times],
                each.task,
                each.role,
                each.extra and each.extra() / (8 * self.d),
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


class MixingCell(Cell):
    """W(X) by each transport, the same by hand, an Allreduce, and the local limit."""

    sizes = "8,64K,1M,16M"
    graphs = "ring,exponential,one_peer_exponential"
    fewest_ranks = 1

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 12 + 4 * transports + ranks

    def _contenders(self) -> Iterator[Contender]:
        comm, x, y = self.comm, self.x, self.y
        yield Contender(
            LOCAL, [self._local(phase) for phase in self.phases], self.mixed, y, role=LOCAL
        )
        for name in self.transports if comm.size > 1 else ["auto"]:
            net = self._network(name)
            label = f"W(X) {name}" if comm.size > 1 else "W(X)"
            yield from self._mixings(label, net)
            yield Contender(
                f"{label}, any array",
                [partial(net.mixer(self.topology), x, y)] * self.period,
                self.mixed,
                y,
            )
        if comm.size == 1:
            return
        yield self._allreduce()
        term = aligned((self.d,))
        weigh = [self._by_numpy(phase, term) for phase in self.phases]
        if self._all_receive():
            yield Contender(
                NEIGHBORHOOD,
                [self._neighborhood(*both) for both in zip(self.phases, weigh)],
                self.mixed,
                y,
                role=HAND,
            )
        yield Contender(
            BY_HAND,
            [self._isend_irecv(*both) for both in zip(self.phases, weigh)],
            self.mixed,
            y,
            role=HAND,
        )

    def _local(self, phase: Any) -> Callable[[], None]:
        """One private copy and one fused weighted sum, of rows that are here already."""
        weights, others = self._weights(phase)
        halo, copy, x, y = aligned((len(others), self.d)), aligned(self.x.shape), self.x, self.y
        halo[:] = self.rows(self.start, others)

        def call() -> None:
            np.copyto(copy, x)
            weighted_sum(weights, copy, halo, y)

        return call

    def _by_numpy(self, phase: Any, term: np.ndarray) -> Callable[[], None]:
        """The weighted sum as one writes it in NumPy, without allocating anything."""
        dense = phase.rows(self.lo, self.hi).toarray()[0]
        own, weights = dense[self.lo], dense[phase.in_neighbors(self.lo)].tolist()
        x, y, halo = self.x[0], self.y[0], self.halo

        def call() -> None:
            np.multiply(x, own, out=y)
            for weight, row in zip(weights, halo):
                np.multiply(row, weight, out=term)
                np.add(y, term, out=y)

        return call

    def _neighborhood(self, phase: Any, weigh: Callable[[], Any]) -> Callable[[], None]:
        graph, receives, _ = self._graph(phase)
        x, arriving = [self.x, MPI.DOUBLE], [self.halo[:receives], MPI.DOUBLE]

        def call() -> None:
            graph.Neighbor_allgather(x, arriving)
            weigh()

        return call


class NodesCell(Cell):
    """W(X) with messages between nodes, against the same by hand with the package's own weighted sum."""

    sizes = "8,64K,1M"

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 20 + ranks

    def _contenders(self) -> Iterator[Contender]:
        ranks_per_node = self._ranks_per_node()
        if 1 < ranks_per_node < self.comm.size:
            yield from self._mixings(f"W(X) {ranks_per_node} ranks a node", self._network("auto"))
        yield from self._mixings("W(X) p2p", self._network("p2p"))
        yield self._allreduce()
        weigh = [self._by_kernel(phase) for phase in self.phases]
        ways = {
            "Isend/Irecv + kernel": self._isend_irecv,
            "persistent requests + kernel": self._persistent,
        }
        if self._all_receive():
            ways["Neighbor_alltoallv + kernel"] = self._alltoallv
        for name, way in ways.items():
            yield Contender(
                name,
                [way(*both) for both in zip(self.phases, weigh)],
                self.mixed,
                self.y,
                role=HAND,
            )

    def _ranks_per_node(self) -> int:
        """The ranks of a node; pretended if all ranks are on one host."""
        variable = "MPIDEC_RANKS_PER_NODE"
        given = os.environ.get(variable)
        if given:
            return int(given) if given.isdigit() else 0  # Network refuses it with a message
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        most: int = self.comm.allreduce(node.size, MPI.MAX)
        node.Free()
        if most < self.comm.size:
            return most
        os.environ[variable] = str(RANKS_PER_NODE)
        self._stack.callback(os.environ.pop, variable, None)
        return RANKS_PER_NODE

    def _by_kernel(self, phase: Any) -> Callable[[], Any]:
        weights, others = self._weights(phase)
        return partial(weighted_sum, weights, self.x, self.halo[: len(others)], self.y)

    def _persistent(self, phase: Any, weigh: Callable[[], Any]) -> Callable[[], None]:
        requests = self._requests(phase, self.x)

        def call() -> None:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            weigh()

        return call

    def _alltoallv(self, phase: Any, weigh: Callable[[], Any]) -> Callable[[], None]:
        graph, receives, sends = self._graph(phase)
        d = self.d
        sent = [self.x, ([d] * sends, [0] * sends), MPI.DOUBLE]
        arriving = [
            self.halo[:receives],
            ([d] * receives, [d * j for j in range(receives)]),
            MPI.DOUBLE,
        ]

        def call() -> None:
            graph.Neighbor_alltoallv(sent, arriving)
            weigh()

        return call


class StepsCell(Cell):
    """One step of a solver as `solve` runs it, against the same equations by hand."""

    sizes = "64K,1M,8M"
    fewest_ranks = 1

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 40 + ranks

    def _contenders(self) -> Iterator[Contender]:
        agents = np.arange(1, self.n + 1)
        c = np.stack([np.sin(agents), np.cos(2 * agents)], axis=1)  # of the gradients
        G = aligned(self.x.shape)
        G[:] = self.rows(c)
        net = self._network()
        for solver, by_hand in (
            (DGD(STEP_SIZE), dgd),
            (ExactDiffusion(STEP_SIZE), exact_diffusion),
            (EXTRA(STEP_SIZE), extra),
            (GradientTracking(STEP_SIZE), gradient_tracking),
        ):
            name = type(solver).__name__
            due = self._due(solver, c, [phase.W.toarray() for phase in self.phases])
            yield Contender(
                f"{name}, solver.step",
                self._calls(self._steps(solver, G, net)),
                due,
                task=name,
                within=partial(as_in_solve, net, solver),
            )
            if self.comm.size > 1:
                steps = by_hand(self._bind, self._copy(self.x), G, STEP_SIZE)
                yield Contender(f"{name}, by hand", self._calls(steps), due, task=name, role=HAND)
            if self.comm.size > 1 and by_hand is dgd:
                steps = dgd_allreduce(self.comm, self._copy(self.x), G, STEP_SIZE)
                due = self._due(solver, c, [np.full((self.n, self.n), 1 / self.n)])
                yield Contender(
                    f"{name}, Allreduce by hand", self._calls(steps), due, task=name, role=ALLREDUCE
                )

    def _calls(self, steps: Iterator[np.ndarray]) -> list[Callable[[], np.ndarray]]:
        return [partial(next, steps)] * self.period

    def _steps(self, solver: Solver, G: np.ndarray, net: Network) -> Iterator[np.ndarray]:
        W = net.mixer(self.topology)
        s = solver.init(self.x, W.at(0))
        for k in count():
            s = solver.step(s, G, W.at(k))
            yield s.X

    def _due(self, solver: Solver, c: np.ndarray, matrices: list[np.ndarray]) -> list[np.ndarray]:
        """The iterates of the first steps with gradients `c`, computed on the coefficients with dense matrices."""
        due, s = [], solver.init(self.start, matrices[0].__matmul__)
        for W in islice(cycle(matrices), max(STEPS, 2 * self.period)):
            product: Any = W.__matmul__
            s = solver.step(s, c, product)
            due.append(s.X)
        return due

    def _copy(self, x: np.ndarray) -> np.ndarray:
        copy = aligned(x.shape)
        copy[:] = x
        return copy

    def _bind(self, sent: np.ndarray, lazy: bool = False) -> list[Mixing]:
        """A function for each phase that mixes the rows `sent`, with `W` or with (I + W) / 2, into its argument."""
        return [self._mixing(phase, sent, lazy) for phase in self.phases]

    def _mixing(self, phase: Any, sent: np.ndarray, lazy: bool) -> Mixing:
        dense = phase.rows(self.lo, self.hi).toarray()[0]
        if lazy:
            dense = (np.eye(self.n)[self.lo] + dense) / 2
        own, weights = dense[self.lo], dense[phase.in_neighbors(self.lo)].tolist()
        requests, halo = self._requests(phase, sent), self.halo[: len(weights)]

        def mix(out: np.ndarray) -> None:
            MPI.Prequest.Startall(requests)
            np.multiply(sent, own, out=out)
            MPI.Request.Waitall(requests)
            for weight, row in zip(weights, halo):
                np.multiply(row, weight, out=row)
                np.add(out, row, out=out)

        return mix


@contextmanager
def as_in_solve(net: Network, solver: Solver) -> Iterator[None]:
    """The contexts in which `solve` runs the steps of a solver."""
    with ExitStack() as stack:
        stack.enter_context(net.memory())
        if solver.keeps_rows:
            stack.enter_context(net.keeping_rows())
        yield


def dgd_allreduce(
    comm: MPI.Intracomm, X: np.ndarray, G: np.ndarray, a: float
) -> Iterator[np.ndarray]:
    """X+ = mean of X - a G over all agents, by hand."""
    T = aligned(X.shape)
    while True:
        np.multiply(G, a, out=T)
        np.subtract(X, T, out=T)
        comm.Allreduce(T, X)
        np.divide(X, comm.size, out=X)
        yield X


def dgd(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """X+ = W (X - a G), by hand."""
    T = aligned(X.shape)
    for W in cycle(bind(T)):
        np.multiply(G, a, out=T)
        np.subtract(X, T, out=T)
        W(X)
        yield X


def exact_diffusion(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """Psi+ = X - a G, X+ = (I + W) / 2 (Psi+ + X - Psi), by hand."""
    Psi, Phi = aligned(X.shape), aligned(X.shape)
    Psi[:] = X
    for lazy_W in cycle(bind(Phi, lazy=True)):
        np.subtract(X, Psi, out=Phi)
        np.multiply(G, a, out=Psi)
        np.subtract(X, Psi, out=Psi)
        np.add(Phi, Psi, out=Phi)
        lazy_W(X)
        yield X


def extra(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """X+ = W X - a G - D, D+ = D + (X - W X) / 2, by hand."""
    WX, D, T = aligned(X.shape), aligned(X.shape), aligned(X.shape)
    D[:] = 0
    for W in cycle(bind(X)):
        W(WX)
        np.subtract(X, WX, out=T)
        np.multiply(G, a, out=X)
        np.add(X, D, out=X)
        np.subtract(WX, X, out=X)
        np.multiply(T, 0.5, out=T)
        np.add(D, T, out=D)
        yield X


def gradient_tracking(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """Y = W (Y + G - (G of the step before)), X+ = W (X - a Y), by hand; Y = G in the first step."""
    Y, T, before = aligned(X.shape), aligned(X.shape), G
    for k, W in enumerate(cycle(bind(T))):
        if k == 0:
            np.copyto(Y, G)
        else:
            np.add(Y, G, out=T)
            np.subtract(T, before, out=T)
            W(Y)
        np.multiply(Y, a, out=T)
        np.subtract(X, T, out=T)
        W(X)
        yield X


class LocalCell(Cell):
    """`neighbor_allreduce`, with the weights of the topology and with weights in each call."""

    sizes = "8,64K,1M"

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 20 + 2 * ranks

    def _contenders(self) -> Iterator[Contender]:
        ways = {
            "topology": self._nothing,
            "pull": self._pull,
            "push": self._push,
            "push-pull": self._push_pull,
        }
        for name, arguments in ways.items():
            net = self._network()  # one each: a schedule moves on by one at each call
            net.set_topology(self.topology)
            calls = [
                partial(net.neighbor_allreduce, self.x[0], **arguments(phase))
                for phase in self.phases
            ]
            yield Contender(f"neighbor_allreduce, {name}", calls, self.mixed)
        yield self._allreduce()

    def _nothing(self, phase: Any) -> dict[str, Any]:
        return {}

    def _pull(self, phase: Any) -> dict[str, Any]:
        W, i = phase.W.toarray(), self.lo
        return {
            "self_weight": W[i, i],
            "src_weights": {j: W[i, j] for j in phase.in_neighbors(i).tolist()},
        }

    def _push(self, phase: Any) -> dict[str, Any]:
        W, i = phase.W.toarray(), self.lo
        return {
            "self_weight": W[i, i],
            "dst_weights": {j: W[j, i] for j in phase.out_neighbors(i).tolist()},
        }

    def _push_pull(self, phase: Any) -> dict[str, Any]:
        return {**self._pull(phase), "dst_weights": phase.out_neighbors(self.lo).tolist()}


@dataclass(frozen=True, eq=False)
class Transfer(Contender):
    """A transfer to or from the slots of neighbours.

    Attributes
    ----------
    slots : callable, optional
        The sum of the local agents' slots, once all ranks have made their calls.
    """

    slots: Callable[[], np.ndarray] | None = None


class WindowsCell(Cell):
    """Transfers through windows and through MPI's own, and mutexes."""

    sizes = "8,64K,1M"

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 40 + 4 * ranks

    def _contenders(self) -> Iterator[Contender]:
        me, n, window = self.lo, self.n, self._window()
        into, out = window.in_neighbors, window.out_neighbors
        sums = [self.phases[0].W.toarray().astype(bool) * (1 - np.eye(n)) @ self.start]
        share = 1 / (len(out) + 1)
        calls: dict[str, Callable[[], Any]] = {
            "put": partial(window.put, self.x[0]),
            "accumulate": partial(window.accumulate, self.x[0]),
            "get": window.get,
        }

        def push_sum() -> None:
            window.accumulate(window.value, share, weights)
            window.collect()

        weights = dict.fromkeys(out, share)
        raw, slots = self._raw(max(self.comm.allgather(len(into))))
        places = [self._place(j) for j in out]
        for name, call in calls.items():
            yield Transfer(
                f"{name}, Window", [call], sums, task=name, slots=partial(self._collected, window)
            )
            yield Transfer(
                f"{name}, Win.Allocate",
                [self._by_mpi(name, raw, slots, into, out, places)],
                sums,
                task=name,
                role=HAND,
                slots=partial(self._emptied, slots[1:]),
            )
        yield Transfer("push-sum, Window", [push_sum], [], task="push-sum")
        for name, ranks in (("mutex", [(me + 1) % n]), ("mutex, contended", [0])):
            yield Transfer(f"{name}, Window", [partial(self._mutex, window, ranks)], [], task=name)
            yield Transfer(
                f"{name}, Win.Lock",
                [partial(self._lock, self._locks(), ranks[0])],
                [],
                task=name,
                role=HAND,
            )

    def _window(self) -> Window:
        return self._stack.enter_context(self._network().window(self.x[0], self.phases[0]))

    def check(self, each: Contender) -> None:
        if not isinstance(each, Transfer) or each.slots is None:
            return
        self.comm.Barrier()
        each.calls[0]()
        self.comm.Barrier()
        super().check(Contender(each.name, [each.slots], each.due))

    def _collected(self, window: Window) -> np.ndarray:
        total: np.ndarray = window.update(
            0.0, dict.fromkeys(window.in_neighbors, 1.0), reset=True
        ).copy()
        window.value, window.p = self.x[0], 1.0
        return total

    def _emptied(self, slots: np.ndarray) -> np.ndarray:
        total: np.ndarray = slots.sum(axis=0)
        slots[:] = 0
        return total

    def _raw(self, most: int) -> tuple[MPI.Win, np.ndarray]:
        """An allocated window with the value and a slot for each in-neighbour, in a passive epoch."""
        window = MPI.Win.Allocate(8 * self.d * (1 + most), 8, comm=self.comm)
        self._stack.callback(window.Free)
        rows = np.asarray(window.tomemory()).view(np.float64).reshape(1 + most, self.d)
        rows[0], rows[1:] = self.x[0], 0
        window.Lock_all()
        self._stack.callback(window.Unlock_all)
        self.comm.Barrier()
        return window, rows

    def _place(self, receiver: int) -> int:
        """Place of this rank's slot at a receiver."""
        place: int = self.phases[0].in_neighbors(receiver).tolist().index(self.lo)
        return 1 + place

    def _by_mpi(
        self,
        name: str,
        window: MPI.Win,
        slots: np.ndarray,
        into: list[int],
        out: list[int],
        places: list[int],
    ) -> Callable[[], None]:
        d, x = self.d, [self.x[0], MPI.DOUBLE]
        begin = {"put": window.Put, "accumulate": window.Accumulate, "get": window.Get}[name]
        near = into if name == "get" else out
        if name == "get":
            pieces = [
                ([slots[1 + k], MPI.DOUBLE], j, [0, d, MPI.DOUBLE]) for k, j in enumerate(into)
            ]
        else:
            pieces = [(x, j, [place * d, d, MPI.DOUBLE]) for j, place in zip(out, places)]

        def call() -> None:
            for piece in pieces:
                begin(*piece)
            for j in near:
                window.Flush(j)

        return call

    def _mutex(self, window: Window, ranks: list[int]) -> None:
        with window.mutex(ranks):
            pass

    def _locks(self) -> MPI.Win:
        window = MPI.Win.Allocate(8, 8, comm=self.comm)
        self._stack.callback(window.Free)
        return window

    def _lock(self, window: MPI.Win, rank: int) -> None:
        window.Lock(rank)
        window.Unlock(rank)


@dataclass(frozen=True, eq=False)
class Training(Contender):
    """One way to train: what it makes of the workers' updates in its first step.

    Attributes
    ----------
    probe : callable
        Returns some of the parameters.
    matrix : array (n, n), optional
        Row i has the weights of the workers' separate updates in that of worker i.
    """

    probe: Callable[[], np.ndarray] = lambda: np.empty(0)
    matrix: np.ndarray | None = None


class TrainCell(Cell):
    """Training steps of a network, against those without communication and those of DistributedDataParallel."""

    sizes = "256K,16M"
    graphs = "one_peer_exponential"
    fewest_calls = 4  # so that what travels from one step to the next is within a block

    def __init__(self, graph: str, d: int, comm: MPI.Intracomm, transports: Sequence[str] = ()):
        import torch

        self.graph, self.d, self.comm, self.n, self.period = graph, d, comm, comm.size, 1
        self.topology = catalogue.topologies()[graph](self.n)
        self._stack = ExitStack()
        self._stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        random = torch.Generator().manual_seed(comm.rank)
        self._x = torch.randn(BATCH, PIXELS, generator=random)
        self._y = torch.randint(CLASSES, (BATCH,), generator=random)
        self.contenders = list(self._contenders())
        self._updates = np.empty(0)

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 30

    def _contenders(self) -> Iterator[Contender]:
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        n, equal = self.n, np.full((self.n, self.n), 1 / self.n)
        model, optimizer = self._start()
        yield self._training(ALONE, model, optimizer, np.eye(n), role=ALONE)
        for algorithm, matrix in (
            ("atc", self.topology.at(0).W.toarray()),
            ("awc", np.eye(n)),
            ("allreduce", equal),
        ):
            yield self._decentralized(algorithm, matrix)
        if distributed.is_available():
            self._process_group()
            model, optimizer = self._start()
            yield self._training(
                f"{PARALLEL}, gloo", DistributedDataParallel(model), optimizer, equal, role=PARALLEL
            )
            if importlib.util.find_spec("decent_dp") is not None and n % 2 == 0:
                yield self._decent_dp()

    def _start(self) -> tuple[Any, Any]:
        """A network with about `d` float64 of parameters, and an optimizer."""
        import torch

        from ..nn import models

        hidden = max(
            1, round((398**2 + 2 * self.d - CLASSES) ** 0.5 - 398)
        )  # h^2 + 796 h + 10 parameters
        model = models.make("mlp", (1, 28, 28), CLASSES, hidden=[hidden, hidden])
        return model, torch.optim.SGD(model.parameters(), 0.01)

    def _training(
        self, name: str, model: Any, optimizer: Any, matrix: np.ndarray | None, **more: Any
    ) -> Training:
        from torch.nn.functional import cross_entropy

        first, *_, last = model.parameters()

        def probe() -> np.ndarray:
            return np.concatenate([p.detach().flatten()[:COLUMNS].numpy() for p in (first, last)])

        def step() -> None:
            if optimizer is not None:
                optimizer.zero_grad()
            cross_entropy(model(self._x), self._y).backward()
            if optimizer is not None:
                optimizer.step()

        return Training(name, [step], (), probe=probe, matrix=matrix, **more)

    def _decentralized(self, algorithm: str, matrix: np.ndarray) -> Training:
        from ..optim import Decentralized

        model, optimizer = self._start()
        wrapped = Decentralized(optimizer, model, self.topology, algorithm, self._network())
        self._stack.callback(wrapped.close)
        return self._training(
            f"Decentralized, {algorithm}",
            model,
            wrapped,
            matrix,
            extra=lambda: wrapped.averager.extra_bytes,
        )

    def _process_group(self) -> None:
        """Start torch.distributed, for the contenders that need it."""
        from torch import distributed

        alone = len(set(self.comm.allgather(MPI.Get_processor_name()))) == 1
        folder = (
            tempfile.TemporaryDirectory(dir=None if alone else ".") if self.comm.rank == 0 else None
        )
        path = self.comm.bcast(folder and os.path.join(os.path.abspath(folder.name), "store"))
        distributed.init_process_group(
            "gloo", init_method=f"file://{path}", rank=self.comm.rank, world_size=self.n
        )
        if folder is not None:
            self._stack.callback(folder.cleanup)
        self._stack.callback(distributed.destroy_process_group)

    def _decent_dp(self) -> Training:
        import torch
        from decent_dp.ddp import DecentralizedDataParallel  # type: ignore[import-not-found]
        from loguru import logger  # type: ignore[import-not-found]

        logger.disable("decent_dp")
        model, _ = self._start()
        wrapped = DecentralizedDataParallel(
            model,
            lambda named: torch.optim.SGD([p for _, p in named], 0.01),
            topology="ring",
            _local_world_size=1,
        )
        return self._training("Decent-DP, ring, gloo", wrapped, None, None)

    def check(self, each: Contender) -> None:
        """Compare a contender's first step with the combination that it should make of the workers' separate steps."""
        if not isinstance(each, Training):
            return
        before = each.probe()
        each.calls[0]()
        update = each.probe() - before
        if each.role == ALONE:
            self._updates = np.stack(self.comm.allgather(update))
        if each.matrix is None:
            return
        due = np.tensordot(each.matrix[self.comm.rank], self._updates, 1)
        error = self.comm.allreduce(
            float(np.abs(update - due).max() / np.abs(self._updates).max()), MPI.MAX
        )
        if not error <= 1e-3:
            raise WrongResult(
                f"{each.name}, {self.graph}, {size_name(8 * self.d)}: the first update differs from that of the "
                f"workers' separate updates by {error:.2g} of its size"
            )


CELLS: dict[str, type[Cell]] = {
    "mixing": MixingCell,
    "nodes": NodesCell,
    "steps": StepsCell,
    "local": LocalCell,
    "windows": WindowsCell,
    "train": TrainCell,
}


def machine(comm: MPI.Intracomm) -> dict[str, Any]:
    """What the numbers were measured on; collective."""
    hosts = comm.allgather(MPI.Get_processor_name())
    return {
        "cpu": host.cpu(),
        "cores": len(host.cores()),
        "mpi": " ".join(library().split()),
        "mpi4py": mpi4py.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpidec": __version__,
        "kernel_compiled": COMPILED,
        "system": platform.platform(),
        "ranks": comm.size,
        "hosts": len(set(hosts)),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_average": host.load(),
        "environment": {
            key: value for key, value in sorted(os.environ.items()) if key.startswith("MPIDEC_")
        },
    }


def execute(options: Options, comm: MPI.Intracomm) -> int:
    """Measure what `options` say; rank 0 prints and writes the results."""
    try:
        _measure(options, comm)
    except WrongResult as error:
        raise InputError(str(error), Status.FAILED) from error
    return Status.OK


def _measure(options: Options, comm: MPI.Intracomm) -> None:
    facts = machine(comm)
    _say(
        comm,
        f"{plural(comm.size, 'rank')} on {plural(facts['hosts'], 'host')} of "
        f"{facts['cores']} cores, {facts['cpu']}, {facts['mpi'].split(',')[0]}, load {facts['load_average']}",
    )
    plan = {
        name: (
            options.graphs or cell.graphs.split(","),
            options.sizes or [size_of(text) for text in cell.sizes.split(",")],
        )
        for name, cell in CELLS.items()
        if name in options.groups and comm.size >= cell.fewest_ranks
    }
    if not plan:
        raise InputError(
            f"--rows {','.join(options.groups)} needs several ranks: mpirun -n 4 python -m mpidec.bench"
        )
    if comm.size == 1:
        left_out = [name for name in options.groups if name not in plan]
        _say(
            comm,
            f"One process: the rows of {AGENTS_ALONE} agents in its memory, and no messages.  "
            + f"Left out: {', '.join(left_out)}.  " * bool(left_out)
            + "For the rest: mpirun -n 4 python -m mpidec.bench",
        )
    cells = sum(len(graphs) * len(sizes) for graphs, sizes in plan.values())
    rows: list[dict[str, Any]] = []
    for name, (graphs, sizes) in plan.items():
        _say(comm, f"\n\n{GROUPS[name].title}\n{legend(name)}")
        for graph in graphs:
            for size in sizes:
                room(size, comm, CELLS[name].arrays(comm.size, len(options.transports)))
                cell = CELLS[name](graph, size // 8, comm, options.transports)
                rows += ratios(name, cell.measure(options.seconds / cells))
                cell.close()
            _say(comm, "\n" + table(rows, name, graph))
    facts["load_average_after"] = host.load()
    if comm.rank == 0:
        if options.json:
            write_json(options.json, facts, rows)
        if options.plot:
            picture(options.plot, facts, rows)


def room(size: int, comm: MPI.Intracomm, arrays: int) -> None:
    """Refuse rows that would not fit into this host's memory; collective."""
    free = comm.allreduce(host.memory() or sys.maxsize, MPI.MIN)
    need = arrays * comm.size * size
    if need > free:
        raise InputError(
            f"--sizes: rows of {size_name(size)} on {comm.size} ranks take about {need / 2**30:.1f} GB, "
            f"{free / 2**30:.1f} GB are free: take smaller rows, or fewer transports"
        )


def _say(comm: MPI.Intracomm, text: str) -> None:
    """Print on rank 0."""
    if comm.rank == 0:
        print(text, flush=True)


BENCH = Command(
    name="bench",
    description="Measure mixings, solver steps and local-view calls against the same by hand with MPI; training.",
    epilog=EPILOG,
    declare=declare,
    prepare=prepare,
    execute=execute,
)
main = BENCH.main
