r"""Times of exchanges between nodes, from which ``mpidec predict`` computes the time of a step.

One rank of each of N nodes exchanges rows of s bytes with k neighbours in both directions at once,
:math:`T_k(s)`.  Pings would not do: a large message ends only when it has been acknowledged, and
acknowledgements share the link with rows in the other direction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..cli import Status
from ..comm.mixing import Network
from ..comm.runtime import MPI, ranks_of_node, wait_for_other_nodes, wait_until
from ..exceptions import InputError
from ..problems import LeastSquares
from ..topology import ring
from .report import size_name

SIZES = (8, 1 << 9, 1 << 15, 1 << 18, 1 << 20)
NEIGHBORS = (1, 2, 4)
QUANTILE = 0.1  # what other processes of a machine add to a time is never negative
AGREEMENT = 0.1
ROUNDS = 16  # of measuring, before a time counts as unsettled
BLOCK_SECONDS, MOST_CALLS, ROUND_SECONDS, FEWEST_BLOCKS, MOST_BLOCKS = 0.05, 50, 0.5, 8, 40
POLL_SECONDS = 0.005  # a rank that waits leaves its core to those that are measured
SAMPLES, UNKNOWNS = 256, 512  # of the gradient that is timed: 1 MB, as in a cache of one core
SCHEMA = {
    "bytes": "sizes s of a row",
    "exchange_seconds": "T_k(s) by k: one rank a node exchanges rows with k others, both directions "
    "at once; with fewer other nodes, several rows with each",
    "shared_exchange_seconds": "T_1(s) of all ranks of the nodes at once; absent with one rank a node",
    "allreduce_seconds": "MPI_Allreduce of s bytes, by nodes x ranks on each",
    "memory_seconds_per_byte": "of W(X) within a node, per byte of a neighbour's row",
    "gradient_seconds": f"of least squares with {SAMPLES} samples of {UNKNOWNS} unknowns, by all "
    "ranks of the nodes at once",
}


def settled(measure: Callable[[], float]) -> tuple[float | None, list[float]]:
    """Return the mean of the two smallest times when they agree within 10 %, of four or more also
    of the next two, or None if they do not after `ROUNDS`; and all that were measured.

    Examples
    --------
    >>> settled(iter([1.0, 2.0, 1.05]).__next__)
    (1.025, [1.0, 2.0, 1.05])
    """
    times = [measure()]
    while len(times) < ROUNDS:
        times.append(measure())
        least = sorted(times)[: 3 if len(times) > 3 else 2]
        for low, high in pairwise(least):
            if high <= (1 + AGREEMENT) * low:
                return (low + high) / 2, times
    return None, times


def timed(call: Callable[[], object], comm: MPI.Intracomm) -> float:
    """Return the seconds of a call: of the slowest rank in each block of calls, and the 10 %
    quantile over the blocks; collective, the same on all ranks.
    """

    def block(calls: int) -> float:
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return float(comm.allreduce(time.perf_counter() - start, MPI.MAX)) / calls

    block(1)
    calls = int(np.clip(BLOCK_SECONDS / block(1), 1, MOST_CALLS))
    first = block(calls)
    count = int(np.clip(ROUND_SECONDS / (first * calls), FEWEST_BLOCKS, MOST_BLOCKS))
    return float(np.quantile([first, *(block(calls) for _ in range(count - 1))], QUANTILE))


def neighbors(nodes: int, k: int) -> list[int]:
    """Return the distances along a circle of nodes at which a node has its k neighbours.

    Examples
    --------
    >>> neighbors(8, 4), neighbors(3, 4), neighbors(2, 2)
    ([1, -1, 2, -2], [1, -1, 2, -2], [1, -1])
    >>> neighbors(2, 4)
    [1, -1, 1, -1]
    """
    return [h if h % nodes else h // 2 for h in (1, -1, 2, -2)[:k]]


def exchange(comm: MPI.Intracomm, k: int, size: int) -> Callable[[], object]:
    """Return a call that exchanges rows with k neighbours, among ranks that are on a node each; it
    waits as mixings do.
    """
    sent = np.zeros(size, np.uint8)
    received = np.zeros((k, size), np.uint8)
    distances = neighbors(comm.size, k)

    def call() -> None:
        requests = [
            comm.Irecv(received[i], (comm.rank - h) % comm.size, i) for i, h in enumerate(distances)
        ]
        requests += [
            comm.Isend(sent, (comm.rank + h) % comm.size, i) for i, h in enumerate(distances)
        ]
        wait_until(lambda: MPI.Request.Testall(requests), "the calibration")

    return call


def allreduce(comm: MPI.Intracomm, size: int) -> Callable[[], object]:
    """Return a call of MPI_Allreduce."""
    X, Y = np.zeros(size // 8), np.zeros(size // 8)
    return lambda: comm.Allreduce(X, Y)


def gradient() -> Callable[[], object]:
    """Return a call that computes the gradient of ``gradient_seconds``."""
    random = np.random.default_rng(0)
    A = random.standard_normal((1, SAMPLES, UNKNOWNS))
    problem = LeastSquares(A, A[..., 0])
    X = np.zeros((1, UNKNOWNS))
    return lambda: problem.grad(X)


class Calibration:
    """The measurements, and those of them that have not settled; all methods are collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        Ranks of at least two nodes, as many on each.
    per_node : int, optional
        Pretend that a node has so many ranks.

    Raises
    ------
    InputError
        On all ranks, if there is one node, or the nodes have different numbers of ranks.
    """

    def __init__(self, comm: MPI.Intracomm, per_node: int | None = None):
        self.comm = comm
        self.local = cast(MPI.Intracomm, ranks_of_node(comm, per_node))
        counts = comm.allgather(self.local.size)
        self.nodes = comm.size // counts[0]
        wait_for_other_nodes()
        with self._part(min(self.local.rank, 1)) as first:
            self.node = int(self.local.bcast(first.rank))
        self.unsettled: dict[str, list[float]] = {}
        if len(set(counts)) > 1 or self.nodes < 2:
            self.local.Free()
            raise InputError(
                f"--calibrate: {comm.size} ranks, at most {max(counts)} on a node, expected "
                "at least 2 nodes with as many ranks on each, such as mpirun -n 4 -ppn 1, "
                "or MPIDEC_RANKS_PER_NODE=1 to try it on one machine"
            )

    @contextmanager
    def _part(self, color: int) -> Iterator[MPI.Intracomm]:
        part = cast(MPI.Intracomm, self.comm.Split(color, self.comm.rank))
        yield part
        part.Free()

    def measure(self, sizes: Sequence[int]) -> dict[str, Any]:
        """Return the content of the file, but for the description of the machine."""
        comm, local = self.comm, self.local
        found: dict[str, Any] = {"schema": SCHEMA, "bytes": list(sizes)}
        with self._part(min(local.rank, 1)) as first:
            found["exchange_seconds"] = {
                str(k): [
                    self._settled(
                        f"exchange with {k}", s, exchange(first, k, s), first, not local.rank
                    )
                    for s in sizes
                ]
                for k in NEIGHBORS
            }
        if local.size > 1:
            with self._part(local.rank) as across:
                name = f"exchange of {local.size} ranks a node"
                found["shared_exchange_seconds"] = [
                    self._settled(name, s, exchange(across, 1, s), comm) for s in sizes
                ]
        reduced = found["allreduce_seconds"] = {}
        for nodes, per_node in self._parts():
            active = self.node < nodes and local.rank < per_node
            with self._part(int(not active)) as part:
                name = f"MPI_Allreduce of {nodes} x {per_node} ranks"
                reduced[f"{nodes}x{per_node}"] = [
                    self._settled(name, s, allreduce(part, s), part, active) for s in sizes
                ]
        found["memory_seconds_per_byte"] = self._memory(max(sizes))
        size = 8 * SAMPLES * UNKNOWNS
        found["gradient_seconds"] = self._settled("gradient", size, gradient(), comm)
        return {**found, "nodes": self.nodes, "ranks_per_node": local.size}

    def _parts(self) -> list[tuple[int, int]]:
        """Return the nodes, and the ranks on each, that call MPI_Allreduce: all; three quarters,
        which are no power of two, and half of the nodes; one rank a node.
        """
        every, per_node = self.nodes, self.local.size
        fewer = [(max(2, part * every // 4), per_node) for part in (3, 2)]
        return list(dict.fromkeys([(every, per_node), *fewer, (every, 1)]))

    def _memory(self, size: int) -> float:
        """Return the seconds per byte of a neighbour's row, of a ring on each node."""
        agents = max(3, self.local.size)
        with Network(agents, comm=self.local) as net:
            W, X, Y = net.mixer(ring(agents)), net.empty((size // 8,)), net.empty((size // 8,))
            X[:] = 1.0
            rows = 2 * -(-agents // self.local.size)
            seconds = self._settled("W(X) on a node", size, lambda: W.at(0)(X, Y), self.comm)
        return seconds / (rows * size)

    def _settled(
        self,
        name: str,
        size: int,
        call: Callable[[], object],
        comm: MPI.Intracomm,
        active: bool = True,
    ) -> float:
        """Return the time of a call by the active ranks, which are those of `comm`; the others
        wait.  Of what does not settle, the last time.
        """
        found = settled(lambda: timed(call, comm)) if active else None
        waited = self.comm.Ibarrier()
        while not waited.Test():
            time.sleep(POLL_SECONDS)
        seconds, times = self.comm.bcast(found)
        if seconds is None:
            self.unsettled[f"{name}, {size_name(size)}"] = times
        return float(seconds or times[-1])

    def check(self) -> None:
        """Refuse times that have not settled.

        Raises
        ------
        InputError
        """
        if self.unsettled:
            name, times = next(iter(self.unsettled.items()))
            figures = ", ".join(f"{1e3 * seconds:.3g}" for seconds in times)
            others = f" and {len(self.unsettled) - 1} more" * (len(self.unsettled) > 1)
            raise InputError(
                f"--calibrate: {name}{others}: {figures} ms, the two smallest differ by more than "
                f"{AGREEMENT:.0%}; nothing is written: repeat it on nodes and a network that do "
                "nothing else",
                Status.FAILED,
            )

    def close(self) -> None:
        """Free the communicator."""
        self.local.Free()


def write(path: str, content: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write a calibration."""
    text = json.dumps({**content, "machine": machine}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")
