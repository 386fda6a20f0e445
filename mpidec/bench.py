"""Measure a mixing against MPI's own calls and against the memory: ``mpirun -n 4 python -m mpidec.bench``."""
from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import cycle, islice
from typing import Any, NoReturn

import mpi4py
import numpy as np
from mpi4py import MPI

from . import __version__, _machine, catalogue
from ._bench_report import ALLREDUCE, LOCAL, Timing, picture, ratios, size_name, size_of, table, write_json
from .assemble import InputError, on_root
from .config import unknown
from .kernels.weighted import COMPILED, Weights, weighted_sum
from .mixing import Network
from .mixing.network import TRANSPORTS
from .runtime.launch import abort_when_uncaught, check_launcher, library

BLOCKS, MOST_BLOCKS, BLOCK_SECONDS = 9, 51, 0.01
AGENTS_ALONE = 4
NEIGHBORHOOD, BY_HAND = "Neighbor_allgather + NumPy", "Isend/Irecv + NumPy"
EPILOG = """\
examples:
  mpirun -n 4 python -m mpidec.bench                                  about a minute
  mpirun -n 4 python -m mpidec.bench --sizes 8,64K,1M,16M,64M --seconds 180 --json bench.json --plot bench.png
  mpirun -n 8 python -m mpidec.bench --graphs ring --transports neighbor,p2p
  MPIDEC_RANKS_PER_NODE=1 mpirun -n 4 python -m mpidec.bench          as if every rank were on a host of its own
  python -m mpidec.bench                                              one process: the mixing of 4 agents in memory

One agent per rank, a row of float64 each.  All contenders take turns in one run: a barrier, a block of mixings of one
contender, the next one.  A block counts as its slowest rank, and the median over at least 9 blocks is shown, with
  /local   how many times the local limit it takes: one private copy and the fused weighted sum of as many rows, by the
           same ranks at the same time, without any exchange (smaller is better; zero-copy mixing can be below 1)
  Allr/    how many times it fits into one MPI_Allreduce of the row (larger is better)
"net.empty": rows from net.empty, into rows from net.empty; "any array": ordinary arrays; "Y = W(X)": rows from net.empty
into a result that the mixing allocates.  Every result is compared with the dense product before it is timed.

exit status: 0 measured, 1 a contender's result is wrong, 2 something in the command line is wrong."""


class WrongResult(Exception):
    """A contender does not compute what it should: the same on every rank."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    sizes: list[int]
    graphs: list[str]
    transports: list[str]
    seconds: float
    json: str | None = None
    plot: str | None = None
    text: str = ""


@dataclass(frozen=True, eq=False)
class Contender:
    """A way to mix: a call for each phase of the graph, in their order, and where the result is (None: it is returned)."""

    name: str
    calls: list[Callable[[], Any]]
    out: np.ndarray | None
    total: bool = False                             # sums over all agents, as an Allreduce does


class Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def options_of(argv: Sequence[str]) -> Options:
    """What `argv` asks for; a text to print if it asks for help.

    Raises
    ------
    ValueError
        Saying what is wrong with it.
    """
    parse = Parser(prog="python -m mpidec.bench", allow_abbrev=False, add_help=False, epilog=EPILOG,
                   description="Measure a mixing against MPI's own calls and against the memory.",
                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--sizes", default="8,64K,1M,16M", help="bytes of a row, 8 to 64M and beyond (default: %(default)s)")
    parse.add_argument("--graphs", default="ring,exponential,one_peer_exponential", help="(default: %(default)s)")
    parse.add_argument("--transports", default=",".join(name for name in TRANSPORTS if name != "auto"),
                       help="how mpidec's rows travel, of " + ", ".join(TRANSPORTS) + " (default: %(default)s)")
    parse.add_argument("--seconds", type=float, default=45, help="time to measure for, about, in all (default: %(default)s)")
    parse.add_argument("--json", metavar="FILE", help="write all numbers and the machine's description")
    parse.add_argument("--plot", metavar="FILE.png", help="draw them")
    parse.add_argument("-h", "--help", action="store_true", help="print this help")
    args = parse.parse_args(list(argv))
    if args.help:
        return Options([], [], [], 0, text=parse.format_help().rstrip())
    graphs, transports = ([name.strip() for name in text.split(",")] for text in (args.graphs, args.transports))
    for flag, what, names, known in (("--graphs", "graph", graphs, list(catalogue.topologies())),
                                     ("--transports", "transport", transports, list(TRANSPORTS))):
        for name in names:
            if name not in known:
                raise ValueError(unknown(what, name, known, flag))
    if not 0 < args.seconds < 1e6:
        raise ValueError(f"--seconds is {args.seconds}, expected a time > 0")
    for path in filter(None, (args.json, args.plot)):
        if not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise ValueError(f"{path} cannot be written: {os.path.dirname(path) or '.'} is not a folder that can be written to")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'mpidec[plot]'")
    return Options([size_of(text) for text in args.sizes.split(",")], graphs, transports, args.seconds, args.json, args.plot)


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """An array that begins where a page begins.

    Copying between arrays whose places in their pages differ by a few bytes takes up to 20 times as long: the processor
    takes what is read for what has just been written, 4096 bytes away.  Chance would decide which contender meets that.
    """
    raw = np.empty(8 * int(np.prod(shape)) + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start:start + 8 * int(np.prod(shape))].view(np.float64).reshape(shape)


class Cell:
    """One graph with rows of one size: the contenders, what they must compute, and their times.

    Agent j's row is `base a[j] + b[j]`, so that each rank knows the dense product of any matrix.
    """

    def __init__(self, graph: str, d: int, transports: Sequence[str], comm: MPI.Intracomm):
        self.graph, self.d, self.comm = graph, d, comm
        self.n = comm.size if comm.size > 1 else AGENTS_ALONE
        topology = catalogue.topologies()[graph](self.n)
        self.topology = topology
        self.period = topology.period or 1
        self.phases = [topology.at(k) for k in range(self.period)]
        agents = np.arange(1, self.n + 1)
        self.a, self.b = np.cos(agents), np.sin(3 * agents)
        self.base = np.random.default_rng(7).standard_normal(d)
        self.lo, self.hi = (comm.rank, comm.rank + 1) if comm.size > 1 else (0, self.n)
        self.x, self.y = aligned((self.hi - self.lo, d)), aligned((self.hi - self.lo, d))
        self.x[:] = self.rows(np.eye(self.n))
        self._due: dict[tuple[int, bool], np.ndarray] = {}
        self._stack = ExitStack()
        self.contenders = list(self._contenders(transports))

    def rows(self, matrix: np.ndarray, agents: np.ndarray | None = None) -> np.ndarray:
        """The rows of `matrix X` of some agents, by default of the local ones."""
        chosen = np.arange(self.lo, self.hi) if agents is None else agents
        return np.outer((matrix @ self.a)[chosen], self.base) + (matrix @ self.b)[chosen, None]

    def _contenders(self, transports: Sequence[str]) -> Iterator[Contender]:
        comm, x, y = self.comm, self.x, self.y
        yield Contender(LOCAL, [self._local(phase) for phase in self.phases], y)
        for name in transports if comm.size > 1 else ["auto"]:
            label = f"W(X) {name}, " if comm.size > 1 else "W(X), "
            net = self._stack.enter_context(Network(self.n, comm, transport=name))
            W = net.mixer(self.topology)
            X, Y = net.empty(self.d), net.empty(self.d)
            X[:] = x
            yield Contender(label + "net.empty", [partial(W, X, Y)] * self.period, Y)
            yield Contender(label + "Y = W(X)", [partial(W, X)] * self.period, None)
            yield Contender(label + "any array", [partial(W, x, y)] * self.period, y)
        if comm.size == 1:
            return
        yield Contender(ALLREDUCE, [partial(comm.Allreduce, [x, MPI.DOUBLE], [y, MPI.DOUBLE])] * self.period, y, total=True)
        halo, term = aligned((self.n, self.d)), aligned((self.d,))
        weigh = [self._by_numpy(phase, halo, term) for phase in self.phases]
        if all(len(phase.in_neighbors(i)) for phase in self.phases for i in range(self.n)):   # else Open MPI 5 hangs
            yield Contender(NEIGHBORHOOD, [self._neighborhood(*both, halo) for both in zip(self.phases, weigh)], y)
        yield Contender(BY_HAND, [self._by_hand(*both, halo) for both in zip(self.phases, weigh)], y)

    def _local(self, phase: Any) -> Callable[[], Any]:
        """One private copy and one fused weighted sum, of rows that are here already."""
        entries = phase.source.rows(self.lo, self.hi)
        others = np.setdiff1d(entries.indices, np.arange(self.lo, self.hi))
        own = (entries.indices >= self.lo) & (entries.indices < self.hi)
        places = np.where(own, entries.indices - self.lo, self.hi - self.lo + np.searchsorted(others, entries.indices))
        weights = Weights.of(self.lo, entries, places, None)
        halo, copy, x, y = aligned((len(others), self.d)), aligned(self.x.shape), self.x, self.y
        halo[:] = self.rows(np.eye(self.n), others)

        def call() -> None:
            np.copyto(copy, x)
            weighted_sum(weights, copy, halo, y)
        return call

    def _by_numpy(self, phase: Any, halo: np.ndarray, term: np.ndarray) -> Callable[[], None]:
        """The weighted sum as one writes it in NumPy, without allocating anything."""
        dense = phase.rows(self.lo, self.hi).toarray()[0]
        own, weights = dense[self.lo], dense[phase.in_neighbors(self.lo)].tolist()
        x, y = self.x[0], self.y[0]

        def call() -> None:
            np.multiply(x, own, out=y)
            for weight, row in zip(weights, halo):
                np.multiply(row, weight, out=term)
                np.add(y, term, out=y)
        return call

    def _neighborhood(self, phase: Any, weigh: Callable[[], None], halo: np.ndarray) -> Callable[[], Any]:
        sources, dests = phase.in_neighbors(self.lo).tolist(), phase.out_neighbors(self.lo).tolist()
        graph = self.comm.Create_dist_graph_adjacent(sources, dests, reorder=False)
        self._stack.callback(graph.Free)
        x, arriving = [self.x, MPI.DOUBLE], [halo[:len(sources)], MPI.DOUBLE]

        def call() -> None:
            graph.Neighbor_allgather(x, arriving)
            weigh()
        return call

    def _by_hand(self, phase: Any, weigh: Callable[[], None], halo: np.ndarray) -> Callable[[], Any]:
        comm, x = self.comm, [self.x, MPI.DOUBLE]
        arriving = [([row, MPI.DOUBLE], j) for row, j in zip(halo, phase.in_neighbors(self.lo).tolist())]
        dests = phase.out_neighbors(self.lo).tolist()

        def call() -> None:
            MPI.Request.Waitall([comm.Irecv(row, j) for row, j in arriving] + [comm.Isend(x, j) for j in dests])
            weigh()
        return call

    def check(self, each: Contender) -> None:
        """Compare one mixing with each phase with the dense product.

        Raises
        ------
        WrongResult
            On every rank, if it differs on any.
        """
        for k, (phase, call) in enumerate(zip(self.phases, each.calls)):
            if each.out is not None:
                each.out.fill(np.nan)
            given = call()
            mixed = given if each.out is None else each.out
            if (k, each.total) not in self._due:
                self._due[k, each.total] = self.rows(np.ones((self.n, self.n)) if each.total else phase.W.toarray())
            worst = np.abs(mixed - self._due[k, each.total]).max()
            worst = np.inf if np.isnan(worst) else worst
            error, rank = self.comm.allreduce((float(worst), self.comm.rank), MPI.MAXLOC)
            if not error <= 1e-12 * (1 + np.abs(self.base).max()) * self.n:
                raise WrongResult(f"{each.name}, {self.graph}, {size_name(8 * self.d)}, phase {k}: the result on rank {rank} "
                                  f"differs from the dense product by {error:.2g}")

    def measure(self, seconds: float) -> list[Timing]:
        """The times of all contenders, block by block in turn, after each has been checked."""
        for each in self.contenders:
            self.check(each)
        self._due.clear()
        share = seconds / len(self.contenders)
        block = min(BLOCK_SECONDS, share / BLOCKS)
        once = [min(self._block(each, self.period) for _ in range(3)) for each in self.contenders]
        repeats = [self.period * max(1, int(block / max(one, 1e-8) / self.period)) for one in once]
        blocks: list[list[float]] = []
        start = time.perf_counter()
        while len(blocks) < BLOCKS or (len(blocks) < MOST_BLOCKS and self.comm.bcast(time.perf_counter() - start < seconds)):
            blocks.append([self._block(each, count) for each, count in zip(self.contenders, repeats)])
        return [Timing(self.graph, 8 * self.d, each.name, count, [round(1e6 * one, 4) for one in times])
                for each, count, times in zip(self.contenders, repeats, zip(*blocks))]

    def _block(self, each: Contender, repeats: int) -> float:
        """Seconds per mixing on the slowest rank."""
        calls = islice(cycle(each.calls), repeats)
        self.comm.Barrier()
        start = time.perf_counter()
        for call in calls:
            call()
        return self.comm.allreduce((time.perf_counter() - start) / repeats, MPI.MAX)

    def close(self) -> None:
        """Free all communicators and rows; collective."""
        self.contenders.clear()
        self._stack.close()
        gc.collect()


def machine(comm: MPI.Intracomm) -> dict[str, Any]:
    """What the numbers were measured on; collective."""
    hosts = comm.allgather(MPI.Get_processor_name())
    return {"cpu": _machine.cpu(), "cores": len(_machine.cores()), "mpi": " ".join(library().split()), "mpi4py": mpi4py.__version__,
            "python": platform.python_version(), "numpy": np.__version__, "mpidec": __version__, "kernel_compiled": COMPILED,
            "system": platform.platform(), "ranks": comm.size, "hosts": len(set(hosts)),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "load_average": _machine.load(),
            "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith("MPIDEC_")}}


def main(argv: Sequence[str] | None = None, comm: MPI.Intracomm | None = None) -> int:
    """Run the command line `argv` on every rank of `comm`, and return the exit status."""
    comm = MPI.COMM_WORLD if comm is None else comm
    try:
        check_launcher(comm)
        if comm.size > 1:
            abort_when_uncaught()
        options = on_root(comm, options_of, sys.argv[1:] if argv is None else argv)
        if options.text:
            say(comm, options.text)
            return 0
        run(options, comm)
    except (InputError, WrongResult, RuntimeError) as error:
        if isinstance(error, RuntimeError) and comm.size > 1:
            raise
        if comm.rank == 0:
            print(f"mpidec.bench: error: {error}", file=sys.stderr, flush=True)
        comm.Barrier()
        return 1 if isinstance(error, WrongResult) else 2
    return 0


def run(options: Options, comm: MPI.Intracomm) -> None:
    """Measure what `options` say; rank 0 prints and writes the results."""
    facts = machine(comm)
    say(comm, f"{facts['ranks']} rank{'s' * (comm.size > 1)} on {facts['hosts']} host{'s' * (facts['hosts'] > 1)} of "
              f"{facts['cores']} cores, {facts['cpu']}, {facts['mpi'].split(',')[0]}, load {facts['load_average']}\n"
              f"us: time of a mixing; /local: times the local limit; Allr/: how often it fits into an MPI_Allreduce")
    if comm.size == 1:
        say(comm, f"One process: there is nobody to send to, so this measures the mixing of {AGENTS_ALONE} agents in one process "
                  "against the local limit alone; for the rest: mpirun -n 4 python -m mpidec.bench")
    share = options.seconds / len(options.graphs) / len(options.sizes)
    rows: list[dict[str, Any]] = []
    for graph in options.graphs:
        for size in options.sizes:
            room(size, comm, len(options.transports))
            cell = Cell(graph, size // 8, options.transports, comm)
            rows += ratios(cell.measure(share))
            cell.close()
        say(comm, "\n" + table(rows, graph))
    facts["load_average_after"] = _machine.load()
    if comm.rank == 0:
        if options.json:
            write_json(options.json, facts, rows)
        if options.plot:
            picture(options.plot, facts, rows)


def room(size: int, comm: MPI.Intracomm, transports: int) -> None:
    """Refuse rows that would not fit into this host's memory; collective."""
    rows = (12 + 4 * transports + comm.size) * comm.size
    free = comm.allreduce(_machine.memory() or sys.maxsize, MPI.MIN)
    if rows * size > free:
        raise InputError(f"--sizes: rows of {size_name(size)} on {comm.size} ranks take about {rows * size / 2**30:.1f} GB, "
                         f"{free / 2**30:.1f} GB are free: take smaller rows, or fewer transports")


def say(comm: MPI.Intracomm, text: str) -> None:
    """Print on rank 0."""
    if comm.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
