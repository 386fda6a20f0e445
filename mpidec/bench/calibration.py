r"""Times of exchanges between nodes, from which ``mpidec predict`` computes the time of a step.

One rank of each of N nodes exchanges rows of s bytes with k neighbours in both directions at once,
:math:`T_k(s)`.  Pings would not do: a large message ends only when it has been acknowledged, and
acknowledgements share the link with rows in the other direction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, pairwise, product, zip_longest
from math import nan
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from ..cli import Status, plural
from ..comm.mixing import Network
from ..comm.runtime import MPI, one_on_each, ranks_of_node, wait_for_other_nodes, wait_until
from ..exceptions import InputError
from ..problems import LeastSquares
from ..topology import ring
from .report import size_name

# Between these, a time is nearly a line in s, but where it jumps: `_sizes` adds these.
SIZES = (8, 1 << 7, 1 << 9, 1 << 12, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20)
NEIGHBORS = (1, 2, 4)
QUANTILE = 0.1  # what other processes of a machine add to a time is never negative
AGREEMENT = 0.1
JUMP = 0.25  # of a time, beside the bytes: a larger rise between two sizes is looked into
NARROW = 16  # part of a size to which a jump is located, that of the size itself
ROUNDS = 16  # of measuring, before a time counts as unsettled
REPETITIONS = 6  # of a time that is only shown
SECONDS = 400.0  # of all rounds, by default
BLOCK_SECONDS, MOST_CALLS, ROUND_SECONDS, FEWEST_BLOCKS, MOST_BLOCKS = 0.05, 50, 0.3, 5, 40
POLL_SECONDS = 0.005  # a rank that waits leaves its core to those that are measured
SAMPLES, UNKNOWNS = 256, 512  # of the gradient that is timed: 1 MB, as in a cache of one core
SCHEMA = {
    "bytes": "sizes s of a row",
    "exchange_seconds": "T_k(s) by k: one rank a node exchanges rows with k others, both directions "
    "at once; with fewer other nodes, several rows with each",
    "send_seconds": "a rank on one node sends s bytes to one on another, which only receives: until "
    "the sender goes on",
    "shared_exchange_seconds": "T_1(s) of all ranks of the nodes at once, for the two largest "
    "sizes; absent with one rank a node",
    "allreduce_seconds": "MPI_Allreduce of s bytes, by nodes x ranks on each",
    "memory_seconds_per_byte": "of W(X) within a node, per byte of a neighbour's row",
    "gradient_seconds": f"of least squares with {SAMPLES} samples of {UNKNOWNS} unknowns, by all "
    "ranks of the nodes at once",
}


def agreed(times: Sequence[float]) -> float | None:
    """Return the mean of the two smallest times if they agree within 10 %, of four or more also of
    the next two, or else None.

    Examples
    --------
    >>> agreed([1.0, 2.0]), agreed([1.0, 2.0, 1.05])
    (None, 1.025)
    """
    least = sorted(times)[: 3 if len(times) > 3 else 2]
    for low, high in pairwise(least):
        if high <= (1 + AGREEMENT) * low:
            return (low + high) / 2
    return None


def lower_bounds(times: ArrayLike) -> np.ndarray:
    """Return times that increase along each axis, in place of measured ones: of no more than those
    of larger messages, and of more neighbours.

    Examples
    --------
    >>> lower_bounds([[1.0, 3.0, 2.0], [4.0, 2.0, 5.0]]).tolist()
    [[1.0, 2.0, 2.0], [2.0, 2.0, 5.0]]
    """
    found = np.array(times, float)
    for axis in range(found.ndim):
        found = np.flip(np.minimum.accumulate(np.flip(found, axis), axis), axis)
    return found


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


def computed(call: Callable[[], object], comm: MPI.Intracomm) -> float:
    """Return the seconds of a call that does not communicate: the 10 % quantile over the calls of
    each rank, and the largest one of the ranks; collective, the same on all.
    """
    times, end = list[float](), time.perf_counter() + ROUND_SECONDS
    call()
    while len(times) < FEWEST_BLOCKS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(comm.allreduce(float(np.quantile(times, QUANTILE)), MPI.MAX))


def repeated(call: Callable[[], object], comm: MPI.Intracomm) -> float:
    """Return the time of a call when two measurements agree, or the smallest one of some;
    collective, the same on all ranks.
    """
    times = [timed(call, comm)]
    while (found := agreed(times)) is None and len(times) < REPETITIONS:
        times.append(timed(call, comm))
    return found or min(times)


def neighbors(node: int, nodes: int, k: int) -> list[int]:
    """Return the nodes with which one of a number of nodes exchanges k rows: the other one of its
    pair, which the last of an odd number has not; or the nearest ones on a circle, some of them
    twice where there are few.

    Examples
    --------
    >>> neighbors(3, 8, 1), neighbors(3, 8, 2), neighbors(3, 8, 4)
    ([2], [4, 2], [4, 2, 5, 1])
    >>> neighbors(2, 3, 1), neighbors(0, 2, 4)
    ([], [1, 1, 1, 1])
    """
    if k == 1:
        return [node ^ 1] if node ^ 1 < nodes else []
    return [(node + (h if h % nodes else h // 2)) % nodes for h in (1, -1, 2, -2)[:k]]


def exchange(comm: MPI.Intracomm, k: int, size: int) -> Callable[[], object]:
    """Return a call that exchanges rows with k neighbours, among ranks that are on a node each; it
    waits as mixings do.
    """
    sent = np.zeros(size, np.uint8)
    received = np.zeros((k, size), np.uint8)
    others = neighbors(comm.rank, comm.size, k)

    def call() -> None:
        requests = [comm.Irecv(row, other) for row, other in zip(received, others)]
        requests += [comm.Isend(sent, other) for other in others]
        _wait(requests)

    return call


def one_way(comm: MPI.Intracomm, size: int) -> Callable[[], object]:
    """Return a call that sends a row from the even to the odd ranks of pairs, which are on a node
    each.
    """
    row, others = np.zeros(size, np.uint8), neighbors(comm.rank, comm.size, 1)
    begin = comm.Irecv if comm.rank % 2 else comm.Isend

    return lambda: _wait([begin(row, other) for other in others])


def _wait(requests: list[MPI.Request]) -> None:
    wait_until(lambda: MPI.Request.Testall(requests), "the calibration")


def jump(
    time_of: Callable[[int], float], low: int, high: int, seconds_per_byte: float
) -> tuple[int, int] | None:
    """Return the sizes, multiples of 8, between which a time jumps: it rises by more than 25 %
    beside the time of the bytes.  None if it does not.

    Messages of more than some size wait for an acknowledgement, or for a handshake.

    Examples
    --------
    >>> jump(lambda s: 5.0 if s <= 128 else 11.0, 128, 512, 0.001)
    (128, 136)
    >>> jump(lambda s: s, 128, 512, 1.0)
    """

    def rises() -> bool:
        return after - before > JUMP * before + (high - low) * seconds_per_byte

    before, after = time_of(low), time_of(high)
    while rises() and high - low >= max(16, high // NARROW):
        middle = (low + high) // 16 * 8
        between = time_of(middle)
        if between - before > after - between:
            high, after = middle, between
        else:
            low, before = middle, between
    return (low, high) if rises() else None


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


@dataclass
class Figure:
    """A time that is measured in several rounds.

    Attributes
    ----------
    name : str
    measure : callable
        Of the ranks that are measured.
    active : bool
        Whether this rank is one of them; the others wait.
    times : list of float
        Those of all rounds.
    """

    name: str
    measure: Callable[[], float]
    active: bool = True
    times: list[float] = field(default_factory=list)

    @property
    def settled(self) -> float | None:
        """The time, or None if the rounds do not agree."""
        return agreed(self.times)


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
        self.unsettled: list[Figure] = []
        if len(set(counts)) > 1 or self.nodes < 2:
            self.local.Free()
            raise InputError(
                f"--calibrate: {comm.size} ranks, at most {max(counts)} on a node, expected "
                f"at least 2 nodes with as many ranks on each, such as {one_on_each(4)}, "
                "or MPIDEC_RANKS_PER_NODE=1 to try it on one machine"
            )

    @contextmanager
    def _part(self, color: int) -> Iterator[MPI.Intracomm]:
        part = cast(MPI.Intracomm, self.comm.Split(color, self.comm.rank))
        yield part
        part.Free()

    def measure(self, sizes: Sequence[int], seconds: float = SECONDS) -> dict[str, Any]:
        """Return the content of the file, but for the description of the machine.

        The figures are measured in rounds, each time those that have not settled, until all have or
        the seconds are over.  Large messages come first: the windows of connections grow.
        """
        end = time.monotonic() + seconds
        with ExitStack() as stack:
            first = stack.enter_context(self._part(min(self.local.rank, 1)))
            sizes = self._sizes(sizes, first)
            rows = self._rows(sizes, first, stack)
            memory = Figure("W(X) on a node", partial(self._memory, max(sizes)))
            compute = Figure("gradient", lambda: computed(gradient(), self.comm))
            falling = [reversed(row) for row in rows.values()]
            figures = [each for together in zip_longest(*falling) for each in together if each]
            self._settle([*figures, memory, compute], end - time.monotonic())
        found = {
            key: [figure.settled or min(figure.times, default=nan) for figure in row]
            for key, row in rows.items()
        }
        exchanged = lower_bounds([found["exchange", str(k)] for k in NEIGHBORS]).tolist()
        summed = 2 * -(-self._agents // self.local.size) * max(sizes)  # bytes of a rank
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "bytes": list(sizes),
            "exchange_seconds": dict(zip(map(str, NEIGHBORS), exchanged)),
            "send_seconds": lower_bounds(found["send", ""]).tolist(),
            "allreduce_seconds": {
                key: row for (kind, key), row in found.items() if kind == "allreduce"
            },
            "memory_seconds_per_byte": (memory.settled or nan) / summed,
            "gradient_seconds": compute.settled,
            "nodes": self.nodes,
            "ranks_per_node": self.local.size,
        }
        if ("shared", "") in found:
            content["shared_exchange_seconds"] = lower_bounds(found["shared", ""]).tolist()
        return content

    def _sizes(self, sizes: Sequence[int], first: MPI.Intracomm) -> list[int]:
        """Return the sizes, and those between which T_1 jumps."""

        @cache
        def time_of(size: int) -> float:
            measured = partial(repeated, exchange(first, 1, size), first)
            return self._together(Figure("T_1", measured, not self.local.rank))

        last, largest = sizes[-2:]
        rate = (time_of(largest) - time_of(last)) / (largest - last)
        jumps = [jump(time_of, *pair, rate) for pair in pairwise(sizes)]
        return sorted({*sizes, *chain.from_iterable(filter(None, jumps))})

    def _rows(
        self, sizes: Sequence[int], first: MPI.Intracomm, stack: ExitStack
    ) -> dict[tuple[str, str], list[Figure]]:
        """Return the figures of each table and row: one for each size, `shared` for the largest."""
        local, comm = self.local, self.comm
        rows = {}
        for k in NEIGHBORS:
            rows["exchange", str(k)] = [
                Figure(
                    f"exchange with {plural(k, 'neighbour')}, {size_name(s)}",
                    partial(_exchanged, first, k, s, first),
                    not local.rank,
                )
                for s in sizes
            ]
        rows["send", ""] = [
            Figure(
                f"message to one neighbour, {size_name(s)}",
                partial(_sent, first, s),
                not local.rank,
            )
            for s in sizes
        ]
        if local.size > 1:
            across = stack.enter_context(self._part(local.rank))
            rows["shared", ""] = [
                Figure(
                    f"exchange of {local.size} ranks a node, {size_name(s)}",
                    partial(_exchanged, across, 1, s, comm),
                )
                for s in sizes[-2:]
            ]
        for nodes, per_node in self._parts():
            active = self.node < nodes and local.rank < per_node
            part = stack.enter_context(self._part(int(not active)))
            rows["allreduce", f"{nodes}x{per_node}"] = [
                Figure(
                    f"MPI_Allreduce of {nodes} x {per_node} ranks, {size_name(s)}",
                    partial(_reduced, part, s),
                    active,
                )
                for s in sizes
            ]
        return rows

    def _parts(self) -> list[tuple[int, int]]:
        """Return the nodes, and the ranks on each, that call MPI_Allreduce: all nodes, three quarters
        of them, which are no power of two, and half of them, with all of their ranks, and one each.
        """
        counts = [max(2, part * self.nodes // 4) for part in (4, 3, 2)]
        every = product((self.local.size, 1), counts)
        return list(dict.fromkeys((nodes, ranks) for ranks, nodes in every))

    def _memory(self, size: int) -> float:
        """Return the seconds of a mixing over a ring on each node."""
        with Network(self._agents, comm=self.local) as net:
            W, shape = net.mixer(ring(self._agents)), (size // 8,)
            X, Y = net.empty(shape), net.empty(shape)
            X[:] = 1.0
            return timed(lambda: W.at(0)(X, Y), self.comm)

    @property
    def _agents(self) -> int:
        """Those of the mixing on a node: a ring has at least three."""
        return max(3, self.local.size)

    def _settle(self, figures: Sequence[Figure], seconds: float) -> None:
        """Measure the figures until they have settled, in at most `ROUNDS` rounds and so many
        seconds.
        """
        end = time.monotonic() + seconds
        self.unsettled = list(figures)
        for _ in range(ROUNDS):
            for figure in self.unsettled:
                if self.comm.bcast(time.monotonic() > end):
                    break
                figure.times.append(self._together(figure))
            self.unsettled = [each for each in self.unsettled if each.settled is None]
            if not self.unsettled or self.comm.bcast(time.monotonic() > end):
                return

    def _together(self, figure: Figure) -> float:
        """Return the time that the active ranks measure; the others wait."""
        seconds = figure.measure() if figure.active else None
        waited = self.comm.Ibarrier()
        while not waited.Test():
            time.sleep(POLL_SECONDS)
        return float(self.comm.bcast(seconds))

    def check(self) -> None:
        """Refuse times that have not settled.

        Raises
        ------
        InputError
        """
        if not self.unsettled:
            return
        worst = self.unsettled[0]
        others = f" and {plural(len(self.unsettled) - 1, 'other figure')}"
        measured = ", ".join(f"{1e3 * seconds:.3g}" for seconds in worst.times)
        raise InputError(
            f"--calibrate: {worst.name}{others * (len(self.unsettled) > 1)}: "
            + (
                f"{measured} ms, the smallest differ by more than {AGREEMENT:.0%}"
                if len(worst.times) > 1
                else "not measured twice in the time"
            )
            + "; nothing is written: repeat it on nodes and a network that do nothing else, with "
            "more --seconds or fewer --sizes",
            Status.FAILED,
        )

    def close(self) -> None:
        """Free the communicator."""
        self.local.Free()


def _exchanged(across: MPI.Intracomm, k: int, size: int, comm: MPI.Intracomm) -> float:
    return timed(exchange(across, k, size), comm)


def _sent(comm: MPI.Intracomm, size: int) -> float:
    return timed(one_way(comm, size), comm)


def _reduced(comm: MPI.Intracomm, size: int) -> float:
    return timed(allreduce(comm, size), comm)


def write(path: str, content: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write a calibration."""
    text = json.dumps({**content, "machine": machine}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")
