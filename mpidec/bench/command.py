"""Measure mixings, solver steps, local-view calls and training: ``mpirun -n 4 python -m mpidec.bench``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import mpi4py
import numpy as np

from .. import registry as catalogue
from .._version import __version__
from ..cli.program import Command, Flag, Status
from ..cli.tables import plural
from ..comm.kernels.weighted import COMPILED
from ..comm.mixing.lifecycle import TRANSPORTS
from ..comm.runtime.launch import library
from ..comm.runtime.mpi import MPI
from ..diagnostics import host
from ..exceptions import InputError, WrongResult
from ..plugins import canonical, nearest
from .cells import AGENTS_ALONE, Cell
from .mixing import LocalCell, MixingCell, NodesCell
from .report import (
    GROUPS,
    legend,
    picture,
    ratios,
    size_name,
    size_of,
    table,
    write_json,
)
from .steps import StepsCell
from .training import TrainCell
from .windows import WindowsCell

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


CELLS: dict[str, type[Cell]] = {
    "mixing": MixingCell,
    "nodes": NodesCell,
    "steps": StepsCell,
    "local": LocalCell,
    "windows": WindowsCell,
    "train": TrainCell,
}

FLAGS = [
    Flag(
        "--rows",
        default=",".join(name for name in CELLS if name != "train"),
        help="groups of rows to measure (default: %(default)s; also: train)",
    ),
    Flag(
        "--sizes",
        help="bytes of a row, 8 to 64M and beyond (default: "
        + "; ".join(f"{name} {cell.sizes}" for name, cell in CELLS.items())
        + ")",
    ),
    Flag(
        "--graphs",
        help="(default: "
        + "; ".join(f"{name} {cell.graphs}" for name, cell in CELLS.items())
        + ")",
    ),
    Flag(
        "--transports",
        default=",".join(name for name in TRANSPORTS if name != "auto"),
        help="how rows travel in the group mixing, of "
        + ", ".join(TRANSPORTS)
        + " (default: %(default)s)",
    ),
    Flag(
        "--seconds",
        type=float,
        default=60,
        help="time to measure for, about, in all (default: %(default)s)",
    ),
    Flag("--json", metavar="FILE", help="write all numbers and a description of the machine"),
    Flag("--plot", metavar="FILE.png", help="draw them"),
]


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
        ("--graphs", "graph", graphs, list(catalogue.TOPOLOGIES)),
        ("--transports", "transport", transports, list(TRANSPORTS)),
    ):
        for name in names or ():
            if (key := canonical(name, known)) is None:
                raise ValueError(f"{flag}: unknown {what} {name!r}: {nearest(name, known)}")
            names[names.index(name)] = key  # type: ignore[union-attr,index]
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
    flags=FLAGS,
    prepare=prepare,
    execute=execute,
)
main = BENCH.main
