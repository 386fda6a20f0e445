"""Measure mixings, windows and local-view calls: ``mpirun -n 4 python -m mpidec.bench``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import isnan, nan
from typing import Any

import mpi4py
import numpy as np

from .. import registry as catalogue
from .._version import __version__
from .._words import command_of_extras
from ..cli import Command, Flag, Status, aligned, plural
from ..comm.kernels import COMPILED
from ..comm.mixing import Network
from ..comm.mixing.internals import TRANSPORTS
from ..comm.runtime import MPI, library, one_on_each
from ..diagnostics import host
from ..exceptions import InputError, WrongResult
from ..plugins import canonical, nearest
from .calibration import (
    SECONDS as CALIBRATING,
    SIZES as EXCHANGED,
    Calibration,
    write as write_calibration,
)
from .cells import AGENTS_ALONE, Cell, Options
from .mixing import LocalCell, MixingCell, NodesCell
from .report import (
    legend,
    picture,
    ratios,
    size_name,
    size_of,
    table,
    write_json,
)
from .solving import SolveCell
from .training import TrainCell
from .windows import WindowsCell

EPILOG = """\
examples:
  mpirun -n 4 python -m mpidec.bench                                  about a minute
  mpirun -n 4 python -m mpidec.bench --rows mixing --sizes 8,64K,1M,16M,64M --seconds 180 --json bench.json --plot bench.png
  mpirun -n 8 python -m mpidec.bench --graphs ring --transports neighbor,p2p
  MPIDEC_RANKS_PER_NODE=1 mpirun -n 4 python -m mpidec.bench          as if every rank were on a host of its own
  mpirun -n 4 python -m mpidec.bench --rows train --compute 0,400     training, against DistributedDataParallel
  python -m mpidec.bench                                              one process: 4 agents in memory
  mpirun -n 4 -ppn 1 python -m mpidec.bench --calibrate --out network.json
                                                                      the network, for mpidec predict
                                                                      (Open MPI: --map-by ppr:1:node)

groups of rows:
  mixing   W(X) by each transport, against MPI_Allreduce, the same sum by hand in NumPy, and the
           local limit. "net.empty": rows from net.empty, into rows from net.empty; "any array":
           ordinary arrays; "Y = W(X)": rows from net.empty, into a result that the mixing
           allocates.
  nodes    W(X) with messages: 2 ranks a node and several nodes (pretended if all ranks are on one
           host), and p2p; against the same sum by hand: Isend/Irecv, persistent requests or
           Neighbor_alltoallv into preallocated arrays, and then the package's own compiled sum.
  windows  put, accumulate and get with all neighbours through net.window, against Put, Accumulate
           and Get on memory of Win.Allocate, with Lock_all and a Flush of each neighbour;
           "push-sum": accumulate with weights that sum to one, and collect.  The mutex of the next
           rank, which nobody else takes, and that of rank 0, which all ranks take at once, against
           Lock and Unlock of MPI.
  local    neighbor_allreduce along the topology that was set, and with weights in each call: pull
           (src_weights), push (dst_weights), push-pull (both); against MPI_Allreduce.
  solve    runs of solve with 1 step (its fixed cost), with 100 steps, and with a record of each,
           against 100 steps by hand (a gradient in NumPy and W(X)); in one process also 100 steps'
           events of simulate.
  train    (not by default) steps of a PyTorch model of eight square layers and a classifier, with
           this many bytes of float32 parameters, SGD with momentum, one thread per rank: without
           communication, by algorithms of mpidec.optim, and by DistributedDataParallel over gloo
           with buckets of 1 and 25 MB (GLOO_SOCKET_IFNAME chooses the network interface), in
           blocks of at least 10 steps.  Each table is printed when it has been measured.

One agent per rank, a row of float64 each.  All contenders take turns in one run: a barrier, a block
of calls of one contender, the next one.  The time of a block is that of its slowest rank, and the
median over at least 9 blocks is shown, with
  /local   the time over that of the local limit: one private copy and the fused weighted sum of as
           many rows, by the same ranks at the same time, without any exchange (smaller is better;
           zero-copy mixing can be below 1)
  /hand    the time over that of the fastest version by hand (smaller is better; below 1, mpidec is
           faster)
  Allr/    the time of the version with MPI_Allreduce over this time (larger is better)
  /alone   the time over that without communication (smaller is better; the goal is 1)
  DDP/     the time of the faster DistributedDataParallel over this time, median and range over the
           blocks (larger is better)
  extra    the memory that an algorithm holds beyond parameters, gradients and the optimizer's
           state, in units of the parameters
The results of all contenders are compared with the dense product before they are timed.

With --calibrate, times of exchanges between the nodes are measured instead, in both directions at
once with 1, 2 and 4 neighbours, by one rank a node; then of exchanges by all ranks of the nodes at
once, of MPI_Allreduce, of W(X) on a node and of a gradient.  Sizes at which the time of an exchange
jumps are added to those that are given.  Each is the 10 % quantile over blocks,
repeated until the two smallest agree within 10 %.  If some do not agree within --seconds, nothing
is written.

exit status: 0 measured, 1 a contender's result is wrong, or times do not settle, 2 something in the command line is wrong."""


MEASURING = 60.0  # seconds, by default
CELLS: dict[str, type[Cell]] = {
    "mixing": MixingCell,
    "nodes": NodesCell,
    "local": LocalCell,
    "windows": WindowsCell,
    "solve": SolveCell,
    "train": TrainCell,
}


@dataclass(frozen=True)
class Suite:
    """Groups of rows by their names, and the command that measures them."""

    cells: Mapping[str, type[Cell]]
    description: str
    epilog: str
    started_as: str = "python -m mpidec.bench"

    @property
    def command(self) -> Command[Options]:
        """The command."""
        return Command(
            name="bench",
            description=self.description,
            epilog=self.epilog,
            flags=self.flags,
            prepare=self.prepare,
            execute=self.execute,
            started_as=self.started_as,
        )

    def flags(self) -> list[Flag]:
        """Return the flags of the command."""
        cells = self.cells.items()
        names = [name for name, cell in cells if not cell.requires]
        transports = Flag(
            "--transports",
            default=",".join(name for name in TRANSPORTS if name != "auto"),
            help="how rows travel in the group mixing, of "
            + ", ".join(TRANSPORTS)
            + " (default: %(default)s)",
        )
        training = [
            Flag(
                "--compute",
                metavar="MS",
                default="0",
                help="milliseconds that a device would compute in each step of the group train, "
                "several separated by commas; the CPUs are free meanwhile (default: %(default)s)",
            ),
            Flag(
                "--batch",
                type=int,
                default=Options.batch,
                help="samples of a worker in a step of the group train (default: %(default)s)",
            ),
        ]
        calibrating = [
            Flag(
                "--calibrate",
                action="store_true",
                help="measure exchanges between nodes instead, for mpidec predict; --sizes by "
                "default " + ",".join(size_name(size).replace(" ", "") for size in EXCHANGED),
            ),
            Flag(
                "--out",
                metavar="FILE.json",
                default=Options.out,
                help="the file of --calibrate (default: %(default)s)",
            ),
        ]
        return [
            Flag(
                "--rows",
                default=",".join(names),
                help="groups of rows to measure, of "
                + ", ".join(self.cells)
                + " (default: %(default)s)",
            ),
            Flag(
                "--sizes",
                help="bytes of a row, 8 to 64M and beyond (default: "
                + "; ".join(f"{name} {cell.sizes}" for name, cell in cells)
                + ")",
            ),
            Flag(
                "--graphs",
                help="(default: "
                + "; ".join(f"{name} {cell.graphs}" for name, cell in cells)
                + ")",
            ),
            *([transports] if MixingCell in self.cells.values() else []),
            *(training if TrainCell in self.cells.values() else []),
            *(calibrating if MixingCell in self.cells.values() else []),
            Flag(
                "--seconds",
                type=float,
                help=f"time to measure for, about, in all (default: {MEASURING:g}"
                + f"; of --calibrate at most, {CALIBRATING:g}" * (MixingCell in self.cells.values())
                + ")",
            ),
            Flag(
                "--json", metavar="FILE", help="write all numbers and a description of the machine"
            ),
            Flag("--plot", metavar="FILE.png", help="draw them"),
        ]

    def prepare(self, args: argparse.Namespace, ranks: int) -> Options:
        """Return what the arguments ask for.

        Raises
        ------
        ValueError
            If an argument is invalid.
        """
        groups = _names("--rows", args.rows, "group of rows", list(self.cells))
        graphs = _names("--graphs", args.graphs, "graph", list(catalogue.TOPOLOGIES))
        transports = _names(
            "--transports", vars(args).get("transports"), "transport", list(TRANSPORTS)
        )
        for name in groups:
            needs = self.cells[name].requires
            if needs and importlib.util.find_spec(needs) is None:
                raise ValueError(f"--rows {name} needs {needs}: {command_of_extras(needs)}")
        if args.seconds is not None and not 0 < args.seconds < 1e6:
            raise ValueError(f"--seconds is {args.seconds}, expected a time > 0")
        calibrates = vars(args).get("calibrate")
        for path in filter(None, (args.json, args.plot, vars(args).get("out"))):
            _check_writable(path)
        if args.plot and importlib.util.find_spec("matplotlib") is None:
            raise ValueError(f"--plot needs matplotlib: {command_of_extras('plot')}")
        sizes = None if args.sizes is None else [size_of(text) for text in args.sizes.split(",")]
        return Options(
            groups=list(dict.fromkeys(groups)),
            sizes=sizes,
            graphs=graphs or None,
            transports=transports,
            seconds=args.seconds or (CALIBRATING if calibrates else MEASURING),
            json=args.json,
            plot=args.plot,
            **_of_training(args),
            **_of_calibration(args, sizes),
        )

    def execute(self, options: Options, comm: MPI.Intracomm) -> int:
        """Measure what `options` say; rank 0 prints and writes the results."""
        if options.calibrate:
            return calibrate(options, comm)
        try:
            self._measure(options, comm)
        except WrongResult as error:
            raise InputError(str(error), Status.FAILED) from error
        return Status.OK

    def _planned(self, options: Options, ranks: int) -> dict[str, tuple[list[str], list[int]]]:
        """The graphs and sizes of each group that can be measured on so many ranks."""
        plan = {
            name: (
                options.graphs or cell.graphs.split(","),
                options.sizes or [size_of(text) for text in cell.sizes.split(",")],
            )
            for name, cell in self.cells.items()
            if name in options.groups and ranks >= cell.fewest_ranks
        }
        if not plan:
            raise InputError(
                f"--rows {','.join(options.groups)} needs several ranks: mpirun -n 4 "
                f"{self.started_as}"
            )
        return plan

    def _measure(self, options: Options, comm: MPI.Intracomm) -> None:
        facts = machine(comm)
        _say(
            comm,
            f"{plural(comm.size, 'rank')} on {plural(facts['hosts'], 'host')} of "
            f"{facts['cores']} cores, {facts['cpu']}, {facts['mpi'].split(',')[0]}, load "
            f"{facts['load_average']}",
        )
        plan = self._planned(options, comm.size)
        if comm.size == 1:
            left_out = [name for name in options.groups if name not in plan]
            _say(
                comm,
                f"One process: the rows of {AGENTS_ALONE} agents in its memory, and no messages.  "
                + f"Left out: {', '.join(left_out)}.  " * bool(left_out)
                + f"For the rest: mpirun -n 4 {self.started_as}",
            )
        cells = sum(len(graphs) * len(sizes) for graphs, sizes in plan.values())
        rows: list[dict[str, Any]] = []
        for name, (graphs, sizes) in plan.items():
            seconds = options.seconds / cells
            rows += self._group(name, graphs, sizes, seconds, options, comm)
        facts["load_average_after"] = host.load()
        if comm.rank == 0:
            if options.json:
                write_json(options.json, facts, rows)
            if options.plot:
                groups = {name: self.cells[name].group for name in plan}
                picture(options.plot, facts, rows, groups)

    def _group(
        self,
        name: str,
        graphs: Sequence[str],
        sizes: Sequence[int],
        seconds: float,
        options: Options,
        comm: MPI.Intracomm,
    ) -> list[dict[str, Any]]:
        """Measure the cells of a group, for some seconds each, and print them."""
        group, rows = self.cells[name].group, []
        _say(comm, f"\n\n{group.title}\n{legend(group)}")
        for graph in graphs:
            for size in sizes:
                room(size, comm, self.cells[name].arrays(comm.size, len(options.transports)))
                cases = self.cells[name].cases(options)
                for case in cases:
                    cell = self.cells[name](graph, size // 8, comm, options, **case)
                    new = ratios(name, group, cell.measure(seconds / len(cases)))
                    cell.close()
                    rows += new
                    if group.at_once:
                        _say(comm, "\n" + table(new, group, graph))
            if not group.at_once:
                _say(comm, "\n" + table(rows, group, graph))
        return rows


def _names(flag: str, text: str | None, what: str, known: Sequence[str]) -> list[str]:
    """The names in the value of a flag, as they are `known`; none without the flag."""
    found = []
    for name in [] if text is None else map(str.strip, text.split(",")):
        if (key := canonical(name, known)) is None:
            raise ValueError(f"{flag}: unknown {what} {name!r}: {nearest(name, known)}")
        found.append(key)
    return found


def _of_training(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the group train; none of a suite without it."""
    if "compute" not in args:
        return {}
    try:
        compute = [float(text) for text in args.compute.split(",")]
    except ValueError:
        compute = [-1.0]
    if min(compute) < 0 or args.batch < 1:
        raise ValueError(
            f"--compute is {args.compute!r}, --batch {args.batch}, expected milliseconds >= 0 as "
            "0,400, and samples >= 1"
        )
    return {"compute": compute, "batch": args.batch}


def _of_calibration(args: argparse.Namespace, sizes: Sequence[int] | None) -> dict[str, Any]:
    """Return the options of a calibration; none of a suite without it."""
    if "calibrate" not in args:
        return {}
    if args.calibrate and sizes is not None and (len(sizes) < 2 or sizes != sorted(set(sizes))):
        raise ValueError(
            f"--sizes {args.sizes}: --calibrate expects at least 2, in increasing order"
        )
    return {"calibrate": args.calibrate, "out": args.out}


def calibrate(options: Options, comm: MPI.Intracomm) -> int:
    """Measure the network between the nodes; rank 0 prints and writes the times."""
    if comm.size < 2:
        raise InputError(f"--calibrate needs several nodes: {one_on_each(4)} mpidec bench ...")
    facts = machine(comm)
    with Network(comm.size, comm) as net:
        per_node = net.context.ranks_per_node
    calibration = Calibration(comm, per_node)
    found = calibration.measure(options.sizes or EXCHANGED, options.seconds)
    sizes = found["bytes"]
    calibration.close()
    calibration.check()
    facts["load_average_after"] = host.load()
    lines = [["exchange with", *map(size_name, sizes)]]
    rows = {plural(int(k), "neighbour"): times for k, times in found["exchange_seconds"].items()}
    rows["1, which only receives"] = found["send_seconds"]
    if "shared_exchange_seconds" in found:
        shared = found["shared_exchange_seconds"]
        name = f"1, {found['ranks_per_node']} ranks a node"
        rows[name] = [nan] * (len(sizes) - len(shared)) + shared
    rows |= {f"Allreduce, {k} ranks": times for k, times in found["allreduce_seconds"].items()}
    lines += [
        [name, *("-" if isnan(t) else f"{1e3 * t:.4g} ms" for t in times)]
        for name, times in rows.items()
    ]
    _say(comm, "\n".join([*aligned(lines, "<" + ">" * len(sizes)), options.out]))
    if comm.rank == 0:
        write_calibration(options.out, found, facts)
    return Status.OK


def _check_writable(path: str) -> None:
    folder = os.path.dirname(path) or "."
    if not os.access(folder, os.W_OK):
        raise ValueError(
            f"{path} cannot be written: {folder} is not a folder that can be written to"
        )


def machine(comm: MPI.Intracomm) -> dict[str, Any]:
    """Return what the numbers were measured on; collective."""
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


def room(size: int, comm: MPI.Intracomm, arrays: int) -> None:
    """Refuse rows that would not fit into this host's memory; collective."""
    free = comm.allreduce(host.memory() or sys.maxsize, MPI.MIN)
    need = arrays * comm.size * size
    if need > free:
        raise InputError(
            f"--sizes: rows of {size_name(size)} on {comm.size} ranks take about "
            f"{need / 2**30:.1f} GB, "
            f"{free / 2**30:.1f} GB are free: take smaller rows, or fewer transports"
        )


def _say(comm: MPI.Intracomm, text: str) -> None:
    """Print on rank 0."""
    if comm.rank == 0:
        print(text, flush=True)


BENCH = Suite(
    CELLS,
    "Measure mixings, windows and local-view calls against MPI's own operations and the memory's "
    "limit.",
    EPILOG,
).command
main = BENCH.main
