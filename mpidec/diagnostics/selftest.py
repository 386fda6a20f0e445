"""Self-tests of each MPI call and each kernel that the package uses, with known results.

Each function is collective and raises an exception if the result is wrong; it may return a remark.
The caller sets a time limit.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import topology
from ..comm.kernels import Weights, weighted_sum
from ..comm.mixing import Network
from ..comm.runtime import MPI


def same(given: ArrayLike, expected: ArrayLike) -> None:
    """Raise ValueError if two results differ."""
    if not np.array_equal(given, expected):
        raise ValueError(
            f"gave {np.ravel(given)[:8].tolist()}, expected {np.ravel(expected)[:8].tolist()}"
        )


def dup(comm: MPI.Intracomm) -> None:
    """Duplicate of a communicator."""
    other = comm.Dup()
    same(MPI.Comm.Compare(comm, other), MPI.CONGRUENT)
    other.Free()


def split_type(comm: MPI.Intracomm) -> None:
    """Communicator of the ranks of a host."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    same(len(set(node.allgather(MPI.Get_processor_name()))), 1)
    node.Free()


def allreduce(comm: MPI.Intracomm) -> None:
    """Sums over all ranks."""
    mine, ours = np.array([comm.rank + 1.0, -comm.rank]), np.empty(2)
    comm.Allreduce(mine, ours)
    same(ours, [comm.size * (comm.size + 1) / 2, -comm.size * (comm.size - 1) / 2])


def allgatherv(comm: MPI.Intracomm) -> None:
    """Blocks of different lengths, one of them empty."""
    counts = np.arange(comm.size)  # rank 0 sends nothing
    ours = np.empty(counts.sum())
    comm.Allgatherv(np.full(comm.rank, float(comm.rank)), [ours, counts])
    same(ours, np.repeat(counts, counts))


def alltoallv(comm: MPI.Intracomm) -> None:
    """Blocks of different lengths from each rank to each rank."""
    ranks = np.arange(comm.size)
    sent = np.repeat(100.0 * comm.rank + ranks, ranks)
    ours = np.empty(comm.rank * comm.size)
    comm.Alltoallv([sent, ranks], [ours, np.full(comm.size, comm.rank)])
    same(ours, np.repeat(100.0 * ranks + comm.rank, comm.rank))


def gatherv_scatterv(comm: MPI.Intracomm) -> None:
    """Blocks of different lengths to rank 0 and back."""
    counts = np.arange(comm.size) + 1
    mine, back = np.full(comm.rank + 1, float(comm.rank)), np.empty(comm.rank + 1)
    stack = [np.empty(counts.sum()), counts] if comm.rank == 0 else None
    comm.Gatherv(mine, stack)
    comm.Scatterv(stack, back)
    same(back, mine)


def isend_irecv(comm: MPI.Intracomm) -> None:
    """Messages around a ring, long enough for the rendezvous protocol."""
    arrived = np.empty(1 << 16)
    sent, left, right = (
        np.full(1 << 16, float(comm.rank)),
        (comm.rank - 1) % comm.size,
        (comm.rank + 1) % comm.size,
    )
    MPI.Request.Waitall([comm.Irecv(arrived, left), comm.Isend(sent, right)])
    same(arrived, np.full(1 << 16, left))


def persistent(comm: MPI.Intracomm) -> None:
    """Persistent requests around a ring, started twice."""
    arrived, sent, left = np.empty(1000), np.empty(1000), (comm.rank - 1) % comm.size
    requests = [comm.Recv_init(arrived, left), comm.Send_init(sent, (comm.rank + 1) % comm.size)]
    for turn in (1, 2):
        sent[:] = turn * comm.rank
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        same(arrived, np.full(1000, turn * left))
    for request in requests:
        request.Free()


def nonblocking(comm: MPI.Intracomm) -> None:
    """Nonblocking collectives, several at a time."""
    ranks, ones = np.arange(comm.size), np.ones(comm.size, int)
    mine, least = np.array([comm.rank + 3]), np.empty(1, int)
    ours, all_ours, gathered = (
        np.empty(comm.size, int),
        np.empty(comm.size, int),
        np.empty(comm.size, int),
    )
    for request in (
        comm.Iallreduce(mine, least, MPI.MIN),
        comm.Ialltoallv([ranks, ones], [ours, ones]),
        comm.Iallgatherv(mine, [all_ours, ones]),
        comm.Igatherv(mine, [gathered, ones] if comm.rank == 0 else None),
        comm.Ibarrier(),
    ):
        request.Wait()
    same([least[0], *ours, *all_ours], [3, *[comm.rank] * comm.size, *(ranks + 3)])
    if comm.rank == 0:
        same(gathered, ranks + 3)


def ineighbor_alltoallv(comm: MPI.Intracomm) -> None:
    """Neighbourhood collective on a directed chain: the first rank receives nothing, the last
    one sends nothing.
    """
    sources, dests = list(range(comm.rank))[-1:], list(range(comm.rank + 1, comm.size))[:1]
    graph = comm.Create_dist_graph_adjacent(sources, dests, reorder=False)
    sent, arrived = np.full(2 * len(dests), float(comm.rank)), np.empty(2 * len(sources))
    graph.Ineighbor_alltoallv([sent, [2] * len(dests)], [arrived, [2] * len(sources)]).Wait()
    graph.Free()
    same(arrived, np.repeat(sources, 2))


def shared_memory(comm: MPI.Intracomm) -> None:
    """Anonymous memory of each rank of a host, opened by the other ranks."""
    node: Any = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    file = os.memfd_create("mpidec-selftest")
    os.ftruncate(file, mmap.PAGESIZE)
    mine = mmap.mmap(file, mmap.PAGESIZE)
    mine[0] = node.rank % 256
    places = node.allgather((os.getpid(), file))
    seen = []
    for pid, other in places:
        opened = os.open(f"/proc/{pid}/fd/{other}", os.O_RDONLY)
        with mmap.mmap(opened, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
            seen.append(memory[0])
        os.close(opened)
    node.Barrier()
    mine.close()
    os.close(file)
    node.Free()
    same(seen, [rank % 256 for rank in range(len(places))])


def known_sum(comm: MPI.Intracomm) -> None:
    """Weighted sums `x + sum_j (w_j x_j - v_j x)` whose last bits tell how they were rounded.

    Fused multiply-add changes the first two, another order of the terms the third, and processors
    told to flush subnormal numbers to zero (by any library of the process that was compiled with
    -ffast-math) the last one.
    """
    # Multiples of the least number, 5e-324.
    e, tiny = 2.0**-30, np.arange(5).view(np.float64)
    sums = [
        ([1 + e], [(1 + 2 * e) * 2.0**60], [2.0**-60, 1 + e], 2.0**-60),
        ([1 + 2 * e], [(1 + e) * 2.0**60], [(1 + e) * 2.0**-60, 1.0], (1 + e) * 2.0**-60),
        ([1.0] * 4, [0.0] * 4, [0.0, 1e16, 1.0, -1e16, 1.0], 1.0),
        ([0.5], [0.5], tiny[[1, 4]], tiny[3]),
    ]
    for w, v, column, expected in sums:
        degree, X, out = len(w), np.repeat(np.array(column)[:, None], 37, axis=1), np.empty((1, 37))
        weights = Weights(
            np.array([0, degree]),
            np.arange(1, degree + 1, dtype=np.int32),
            np.array(w),
            np.array(v),
        )
        weighted_sum(weights, X, np.empty((0, 37)), out)
        bits, due = out.view(np.int64), np.float64(expected).view(np.int64)
        if not np.all(bits == due):
            raise ValueError(
                f"gave the bits {bits[0, 0]:#x}, expected {due:#x}: mpidec, or another library of "
                "this process, was "
                "compiled with -ffast-math or fused multiply-add, so that results may differ "
                "between machines"
            )


def node_of(net: Network) -> set[int]:
    """Return the ranks whose rows this rank reads in the shared memory of its node."""
    return set() if net.node is None else set(net.node.near.tolist())


def mixing(transport: str, comm: MPI.Intracomm) -> str | None:
    """Two mixings on an exponential graph, against the dense product, and against the same in
    one process, bit for bit.
    """
    graph, d = topology.exponential(comm.size), 1000
    rows = (np.arange(1.0, comm.size * d + 1) * 7919 % 1009 / 1009).reshape(comm.size, d)
    with Network(comm.size, comm, transport=transport) as net:
        W, X = net.mixer(graph), net.empty(d)
        X[:] = rows[comm.rank]
        mixed = W(W(X))
        shared = comm.allreduce(len(node_of(net)) > 1, MPI.LOR)
    with Network(comm.size, MPI.COMM_SELF) as alone:
        W = alone.mixer(graph)
        expected = W(W(rows))
    if not np.allclose(expected, graph.W @ (graph.W @ rows), rtol=1e-13):
        raise ValueError("the rows differ from the product with the dense matrix")
    same(mixed[0], expected[comm.rank])
    return (
        "in messages: no two ranks share memory"
        if transport == "shared" and comm.size > 1 and not shared
        else None
    )


TESTS: dict[str, Callable[[MPI.Intracomm], str | None]] = {
    "Dup": dup,
    "Split_type": split_type,
    "Allreduce": allreduce,
    "Allgatherv": allgatherv,
    "Alltoallv": alltoallv,
    "Gatherv, Scatterv": gatherv_scatterv,
    "Isend, Irecv": isend_irecv,
    "persistent": persistent,
    "nonblocking": nonblocking,
    "Ineighbor_alltoallv": ineighbor_alltoallv,
    "shared memory": shared_memory,
    "weighted sum": known_sum,
}
# Without it, rows are sent in messages.
OPTIONAL = {"shared memory"}
