"""Messages and bytes that a rank receives at most in `Network()`, a `solve` with records, a sum, and `close`, as JSON from rank 0.

received.py SIZES FILE, such as 4,7 run.h5: on the first so many ranks, one after the other.
Rows travel in messages, and into shards, as between nodes.  Calls of all ranks are counted by what an implementation
of MPI needs at least: along a tree where a message of each pair of ranks is not asked for.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

import mpidec
from mpidec.comm.runtime import waiting

waiting._FIRST = 60.0  # the questions of a rank that waits long, on a busy machine, are not counted
AGENTS, D = (
    7,
    30,
)  # agents of a rank (blocks that the tree of agents cuts in many), entries of a row


class Counted(MPI.Intracomm):
    """A communicator that counts what it receives; its duplicates count in the same place."""

    got = np.zeros(2, np.int64)

    def add(self, messages: int, nbytes: int) -> None:
        Counted.got += messages, nbytes

    def by_tree(self, nbytes: int, once: bool = False) -> None:
        """Add the messages of a tree of all ranks: so many bytes each, or together."""
        steps = (self.size - 1).bit_length()
        self.add(steps, nbytes * (1 if once else steps))

    def _varied(self, into: list, rank: int) -> None:
        _, (counts, _), item = into
        sizes = np.delete(np.asarray(counts), rank) * item.Get_size()
        self.add(np.count_nonzero(sizes), int(sizes.sum()))

    def Irecv(self, buf: Any, source: int, tag: int = 0) -> MPI.Request:
        array, *more = buf if isinstance(buf, list) else [buf]
        count = more[0] * more[1].Get_size() if len(more) == 2 else array.nbytes
        self.add(1, count)
        return super().Irecv(buf, source, tag)

    def Recv(self, buf: Any, source: int, tag: int = 0) -> None:
        self.add(1, buf.nbytes)
        super().Recv(buf, source, tag)

    def Improbe(self, source: int, tag: int, status: MPI.Status) -> MPI.Message | None:
        message = super().Improbe(source, tag, status)
        if message is not None:
            self.add(1, status.Get_count(MPI.BYTE))
        return message

    def Iallreduce(self, mine: np.ndarray, out: np.ndarray, op: MPI.Op = MPI.SUM) -> MPI.Request:
        self.by_tree(out.nbytes)
        return super().Iallreduce(mine, out, op)

    def Iallgather(self, mine: np.ndarray, all_: np.ndarray) -> MPI.Request:
        self.by_tree(all_.nbytes - all_.nbytes // self.size, once=True)
        return super().Iallgather(mine, all_)

    def Iallgatherv(self, mine: list, all_: list) -> MPI.Request:
        _, (counts, _), item = all_
        self.by_tree(int(np.delete(counts, self.rank).sum()) * item.Get_size(), once=True)
        return super().Iallgatherv(mine, all_)

    def Ialltoallv(self, out: list, into: list) -> MPI.Request:
        self._varied(into, self.rank)
        return super().Ialltoallv(out, into)

    def Igatherv(self, mine: list, all_: list | None, root: int = 0) -> MPI.Request:
        if all_ is not None:
            self._varied(all_, root)
        return super().Igatherv(mine, all_, root)

    def Iscatterv(self, all_: list | None, mine: list, root: int = 0) -> MPI.Request:
        if all_ is None:
            self.add(1, mine[1] * mine[2].Get_size())
        return super().Iscatterv(all_, mine, root)

    def Ibcast(self, data: Any, root: int = 0) -> MPI.Request:
        nbytes = data.nbytes if isinstance(data, np.ndarray) else data[1] * data[2].Get_size()
        self.add(*(1, nbytes) if self.rank != root else (0, 0))
        return super().Ibcast(data, root)

    def bcast(self, thing: Any, root: int = 0) -> Any:
        thing = super().bcast(thing, root)
        self.add(*(1, len(pickle.dumps(thing))) if self.rank != root else (0, 0))
        return thing

    def allgather(self, thing: Any) -> list:
        things = super().allgather(thing)
        self.by_tree(len(pickle.dumps(things)), once=True)
        return things

    def allreduce(self, thing: Any, op: MPI.Op = MPI.SUM) -> Any:
        thing = super().allreduce(thing, op)
        self.by_tree(len(pickle.dumps(thing)))
        return thing


def measured(comm: Counted, file: str) -> dict[str, list[int]]:
    """Messages and bytes of each part, of the rank that receives most."""
    n, found = AGENTS * comm.size, {}

    def note(part: str) -> None:
        most = np.empty_like(Counted.got)
        MPI.Intracomm(comm).Allreduce(Counted.got, most, MPI.MAX)
        found[part] = most.tolist()
        Counted.got[:] = 0

    draws = np.random.default_rng(1)
    A, y = draws.standard_normal((n, 40, D)), draws.standard_normal((n, 40))
    net = mpidec.Network(n, comm=comm, transport="p2p")
    note("Network()")
    mine = slice(net.lo, net.hi)
    mpidec.solve(
        mpidec.problems.LeastSquares(A[mine], y[mine]),
        mpidec.solvers.GradientTracking(0.01),
        mpidec.topology.ring(n),
        net=net,
        steps=20,
        every=2,
        record=mpidec.Record(file, replace=True, sharded=True),
    )
    note("solve")
    net.sum(np.ones((net.m, D)))
    note("sum")
    net.close()
    note("close")
    return found


def main(sizes: str, file: str) -> None:
    os.environ["MPIDEC_RANKS_PER_NODE"] = "1"
    world = MPI.COMM_WORLD
    for size in map(int, sizes.split(",")):
        part = world.Split(0 if world.rank < size else MPI.UNDEFINED)
        if part:
            found = measured(Counted(part), file)
            if world.rank == 0:
                print(json.dumps(found))
        world.Barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
