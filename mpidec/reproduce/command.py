"""Command line of ``python -m mpidec.reproduce``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..comm.runtime.launch import abort_when_uncaught, check_launcher
from ..comm.runtime.mpi import MPI
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


class Parser(argparse.ArgumentParser):
    """Parser that raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    result = Parser(
        prog="python -m mpidec.reproduce",
        allow_abbrev=False,
        add_help=False,
        epilog=EPILOG,
        description="Repeat a published experiment on digits, and print its table beside the published figures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    result.add_argument(
        "--seeds", type=int, metavar="N", help="runs of each method (default: 3, with --quick 1)"
    )
    result.add_argument(
        "--quick", action="store_true", help="short runs, which show the form of the table alone"
    )
    result.add_argument("--out", metavar="FILE", help="also write the table: .csv, else text")
    result.add_argument(
        "--quiet", action="store_true", help="no line for each row as it is completed"
    )
    result.add_argument("-h", "--help", action="store_true", help="print this help")
    return result


def main(argv: Sequence[str] | None = None, comm: MPI.Intracomm | None = None) -> int:
    """Run the command line `argv` on all ranks of `comm`, and return the exit status."""
    comm = MPI.COMM_WORLD if comm is None else comm
    try:
        check_launcher(comm)
        if comm.size > 1:
            abort_when_uncaught()
        parse = parser()
        args = parse.parse_args(sys.argv[1:] if argv is None else list(argv))
        if args.help or args.experiment is None:
            _told(comm, parse.format_help().rstrip(), sys.stdout)
            return 0 if args.help else 2
        _check_folder(args.out)
        seeds = args.seeds if args.seeds is not None else 1 if args.quick else 3
        result = table(
            args.experiment,
            seeds=seeds,
            quick=args.quick,
            comm=comm,
            told=lambda line: (
                None if args.quiet or comm.rank else print(line, file=sys.stderr, flush=True)
            ),
        )
    except (ValueError, RuntimeError) as error:
        _told(comm, f"mpidec.reproduce: error: {' '.join(str(error).split())}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        _told(comm, "mpidec.reproduce: interrupted", sys.stderr)
        return 130
    if comm.rank == 0:
        print(result, flush=True)
        if args.out is not None:
            with open(args.out, "w", encoding="utf-8") as file:
                file.write(result.csv() if args.out.endswith(".csv") else f"{result}\n")
    comm.Barrier()
    return 0


def _check_folder(out: str | None) -> None:
    folder = os.path.dirname(os.path.abspath(out)) if out is not None else "."
    if not os.path.isdir(folder):
        raise ValueError(f"--out {out}: there is no folder {folder}: make it first")


def _told(comm: Any, text: str, file: Any) -> None:
    """Print a text on rank 0, before any rank exits."""
    if comm.rank == 0:
        print(text, file=file, flush=True)
    comm.Barrier()
