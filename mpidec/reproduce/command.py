"""Command line of ``python -m mpidec.reproduce``."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from ..cli.program import Command, Flag, Interrupts, Status, quiet
from ..comm.runtime.mpi import MPI
from ..exceptions import ConfigError, InputError
from .experiments import EXPERIMENTS, table

EPILOG = """\
examples:
  python -m mpidec.reproduce relaysgd-table2                16 workers in this process: some minutes
  mpirun -n 2 python -m mpidec.reproduce relaysgd-table2    the same workers on two ranks
  python -m mpidec.reproduce acid-table4                    simulated rings of 16, 32 and 64 workers
  mpirun -n 4 python -m mpidec.reproduce acid-table4        a ring of 4 asynchronous workers, one on each rank

experiments:
  relaysgd-table2   the worst of 16 workers with heterogeneous data: RelaySGD, D2, SGP, gossip (Vogels et al. 2021)
  ceca-table2       17 workers: DSGD-CECA-2P against ring, one-peer exponential, EquiDyn, all-reduce (Ding et al. 2023)
  acid-table4       A2CiD2 on rings of asynchronous workers (Nabli et al. 2023)

Digits and small networks take the place of the published data sets and models: what compares is the order of the methods."""


FLAGS = [
    Flag("experiment", nargs="?", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS)),
    Flag("--seeds", type=int, metavar="N", help="runs of each method (default: 3, with --quick 1)"),
    Flag("--quick", action="store_true", help="short runs, which show the form of the table alone"),
    Flag("--out", metavar="FILE", help="also write the table: .csv, else text"),
    quiet("no line for each row as it is completed"),
]


def prepare(args: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Return the arguments, checked."""
    if args.experiment is None:
        raise ConfigError(f"no experiment: expected one of {', '.join(EXPERIMENTS)}")
    folder = os.path.dirname(os.path.abspath(args.out)) if args.out is not None else "."
    if not os.path.isdir(folder):
        raise ConfigError(f"--out {args.out}: there is no folder {folder}: make it first")
    return args


def execute(args: argparse.Namespace, comm: MPI.Intracomm) -> int:
    """Run the experiment on all ranks of `comm`, print its table, and return the exit status."""
    shown = comm.rank == 0 and not args.quiet
    on_line = partial(print, file=sys.stderr, flush=True) if shown else lambda line: None
    seeds = args.seeds if args.seeds is not None else 1 if args.quick else 3
    try:
        result = table(args.experiment, seeds=seeds, quick=args.quick, comm=comm, on_line=on_line)
    except (ValueError, RuntimeError) as error:
        raise InputError(str(error)) from error
    if comm.rank == 0:
        print(result, flush=True)
        if args.out is not None:
            with open(args.out, "w", encoding="utf-8") as file:
                file.write(result.csv() if args.out.endswith(".csv") else f"{result}\n")
    comm.Barrier()
    return Status.OK


REPRODUCE = Command(
    name="reproduce",
    description="Repeat a published experiment on digits, and print its table beside the published "
    "figures.",
    epilog=EPILOG,
    flags=FLAGS,
    prepare=prepare,
    execute=execute,
    interrupts=Interrupts.TOGETHER,
)
main = REPRODUCE.main
