"""What the package asks of an MPI library, each call tried out by itself with a result that is known.

Each function is collective, and raises if the result is wrong; a call that hangs is for the caller to notice.
"""
from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from . import topology
from .mixing.network import Network


def same(given: Any, expected: Any) -> None:
    """Raise ValueError if two results differ."""
    if not np.array_equal(given, expected):
        raise ValueError(f"gave {np.ravel(given)[:8].tolist()}, expected {np.ravel(expected)[:8].tolist()}")


def dup(comm: MPI.Intracomm) -> None:
    """A communicator of one's own."""
    other = comm.Dup()
    same(MPI.Comm.Compare(comm, other), MPI.CONGRUENT)
    other.Free()


def split_type(comm: MPI.Intracomm) -> None:
    """The ranks of a host."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    same(len(set(node.allgather(MPI.Get_processor_name()))), 1)
    node.Free()


def allreduce(comm: MPI.Intracomm) -> None:
    """Sums over all ranks."""
    mine, ours = np.array([comm.rank + 1.0, -comm.rank]), np.empty(2)
    comm.Allreduce(mine, ours)
    same(ours, [comm.size * (comm.size + 1) / 2, -comm.size * (comm.size - 1) / 2])


def allgatherv(comm: MPI.Intracomm) -> None:
    """Partition of different lengths, one of them empty."""
    counts = np.arange(comm.size)                   # rank 0 has nothing
    ours = np.empty(counts.sum())
    comm.Allgatherv(np.full(comm.rank, float(comm.rank)), [ours, counts])
    same(ours, np.repeat(counts, counts))


def alltoallv(comm: MPI.Intracomm) -> None:
    """Partition of different lengths from everybody to everybody."""
    ranks = np.arange(comm.size)
    sent = np.repeat(100.0 * comm.rank + ranks, ranks)
    ours = np.empty(comm.rank * comm.size)
    comm.Alltoallv([sent, ranks], [ours, np.full(comm.size, comm.rank)])
    same(ours, np.repeat(100.0 * ranks + comm.rank, comm.rank))


def gatherv_scatterv(comm: MPI.Intracomm) -> None:
    """To rank 0 and back."""
    counts = np.arange(comm.size) + 1
    mine, back = np.full(comm.rank + 1, float(comm.rank)), np.empty(comm.rank + 1)
    stack = [np.empty(counts.sum()), counts] if comm.rank == 0 else None
    comm.Gatherv(mine, stack)
    comm.Scatterv(stack, back)
    same(back, mine)


def isend_irecv(comm: MPI.Intracomm) -> None:
    """A message around the ring, long enough for a rendezvous."""
    arrived = np.empty(1 << 16)
    sent, left, right = np.full(1 << 16, float(comm.rank)), (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    MPI.Request.Waitall([comm.Irecv(arrived, left), comm.Isend(sent, right)])
    same(arrived, np.full(1 << 16, left))


def persistent(comm: MPI.Intracomm) -> None:
    """Requests that are made once and started twice, around the ring."""
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
    """The collectives that a rank looks after while it waits."""
    ranks, ones = np.arange(comm.size), np.ones(comm.size, int)
    mine, least = np.array([comm.rank + 3]), np.empty(1, int)
    ours, all_ours, gathered = np.empty(comm.size, int), np.empty(comm.size, int), np.empty(comm.size, int)
    for request in (comm.Iallreduce(mine, least, MPI.MIN), comm.Ialltoallv([ranks, ones], [ours, ones]),
                    comm.Iallgatherv(mine, [all_ours, ones]),
                    comm.Igatherv(mine, [gathered, ones] if comm.rank == 0 else None), comm.Ibarrier()):
        request.Wait()
    same([least[0], *ours, *all_ours], [3, *[comm.rank] * comm.size, *(ranks + 3)])
    if comm.rank == 0:
        same(gathered, ranks + 3)


def ineighbor_alltoallv(comm: MPI.Intracomm) -> None:
    """Along a directed chain: the first rank has nobody to receive from, the last one nobody to send to."""
    sources, dests = list(range(comm.rank))[-1:], list(range(comm.rank + 1, comm.size))[:1]
    graph = comm.Create_dist_graph_adjacent(sources, dests, reorder=False)
    sent, arrived = np.full(2 * len(dests), float(comm.rank)), np.empty(2 * len(sources))
    graph.Ineighbor_alltoallv([sent, [2] * len(dests)], [arrived, [2] * len(sources)]).Wait()
    graph.Free()
    same(arrived, np.repeat(sources, 2))


def shared_memory(comm: MPI.Intracomm) -> None:
    """Anonymous memory of each rank of a host, opened by the others."""
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


def mixing(transport: str, comm: MPI.Intracomm) -> None:
    """Two mixings on an exponential graph, against the dense product."""
    graph = topology.exponential(comm.size)
    with Network(comm.size, comm, transport=transport) as net:
        W, X = net.mixer(graph), net.empty(1000)
        X[:] = comm.rank + 1.0
        mixed = W(W(X))
    due = graph.W @ (graph.W @ np.arange(1.0, comm.size + 1))
    if not np.allclose(mixed, due[comm.rank], rtol=1e-14):
        raise ValueError(f"gave {mixed.ravel()[:3].tolist()}, expected {due[comm.rank]}")


TESTS: dict[str, Callable[[MPI.Intracomm], None]] = {
    "Dup": dup, "Split_type": split_type, "Allreduce": allreduce, "Allgatherv": allgatherv,
    "Alltoallv": alltoallv, "Gatherv, Scatterv": gatherv_scatterv, "Isend, Irecv": isend_irecv,
    "persistent": persistent, "nonblocking": nonblocking, "Ineighbor_alltoallv": ineighbor_alltoallv,
    "shared memory": shared_memory}
OPTIONAL = {"shared memory"}                        # rows travel in messages without it
