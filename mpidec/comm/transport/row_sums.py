"""Sums of rows over all ranks by messages, bit-identical with every MPI library."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ..arrays import BFLOAT16, narrow, widen
from ..runtime import (
    CommRequest,
    Communicator,
    Partition,
    ProgressEngine,
    abandon,
    byte,
    memory,
    testall,
    wait_until,
)

# Tags, in pairs, above those of rows (`transport.messages`) and clocks, below those of headers.
_TAG, _PAIRS = 16002, 190
# Bytes of a message between nodes: Open MPI sends longer ones over TCP by a handshake, one
# latency more; and between ranks of a node: MPI counts bytes in a C int.
_FAR, _NEAR = 1 << 15, 1 << 30
# Bytes that a rank may send in excess to save a latency: 100 Mbit/s x 2.5 ms.
_EXCESS = 1 << 15
# Bytes of a slice from which on rows travel along a ring: 100 Mbit/s x 5 ms.
_RING = 1 << 16


class RowSums:
    r"""Sums of rows over all ranks, in place, any number of them under way at once.

    Short rows in the order of the ranks, others in n slices of the columns, slice i from rank i on:

    .. math:: ((x_i + x_{i+1}) + \dots + x_{n-1}) + x_0 + \dots + x_{i-1}

    The bits depend neither on the MPI library nor on the nodes, nor on timing or the way of the
    messages.  Rows of 16 bits are summed in float32 and rounded once.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or GroupComm
        Only its `Isend` and `Irecv` are used, with tags 16002 to 16381.
    engine : ProgressEngine
        Makes progress in every wait of the process.
    near : collection of int
        The ranks on the node of this one.

    Notes
    -----
    A rank sends and receives :math:`2 (n-1)/n` of a row.  Each rank sums a slice, which the others
    send it, and sends the sum to them: two latencies.  Long rows between nodes travel along a ring,
    in pieces: :math:`2 (n-1)` latencies, but each rank sends to one other only, whose connection is
    always in use.  Short rows, and those of two ranks, travel whole: one latency.
    """

    def __init__(self, comm: Communicator, engine: ProgressEngine, near: Collection[int] = ()):
        self.comm, self._engine, self.rank = comm, engine, comm.rank
        self.bytes_of_messages = [_NEAR if r in near else _FAR for r in range(comm.size)]
        self.single_node = len(near) == comm.size
        self.lock = threading.Lock()
        self._under_way: list[RowSum] = []
        self._count = 0

    def start(self, row: np.ndarray) -> RowSum:
        """Begin to replace a row by its sum; all ranks begin their sums in the same order.

        Parameters
        ----------
        row : array (d,)
            Contiguous, of float64, float32 or float16, or the bits of bfloat16 as uint16; the same
            length and dtype on all ranks.
        """
        tag = _TAG + 2 * (self._count % _PAIRS)
        self._count += 1
        started = RowSum(self, row, tag)
        with self.lock:
            if not self._under_way:
                self._engine.add(self.progress)
            self._under_way.append(started)
        started.test()
        return started

    def progress(self) -> None:
        """Make progress with all sums under way; any thread may call this at any time."""
        for each in [*self._under_way]:
            each.test()

    def remove(self, ended: RowSum) -> None:
        """Forget a sum that has ended."""
        self._under_way = [each for each in self._under_way if each is not ended]
        if not self._under_way:
            self._engine.remove(self.progress)

    def interrupt(self, reason: str) -> None:
        """Refuse further operations, after a sum that was not completed."""
        self._engine.interrupt(reason)


class RowSum:
    """A sum under way; made by `RowSums.start`."""

    def __init__(self, sums: RowSums, row: np.ndarray, tag: int):
        self._sums, self._row, self._tag = sums, row, tag
        self._requests: list[CommRequest] = []
        self._steps = self._chosen()
        self.done = self._interrupted = False

    def test(self) -> bool:
        """Make progress; whether the row is the sum."""
        if self._interrupted:
            raise RuntimeError("a sum over all ranks was interrupted: make a new network")
        if self.done or not self._sums.lock.acquire(blocking=False):
            return self.done
        try:
            while not self.done and testall(self._requests):
                requests = next(self._steps, None)
                self.done, self._requests = requests is None, requests or []
            if self.done:
                self._sums.remove(self)
        except BaseException as error:  # Ctrl-C: the steps have ended without the sum
            self._interrupted = True
            abandon((self, self._requests))
            self._sums.remove(self)
            self._sums.interrupt(f"{type(error).__name__} in a sum over all ranks")
            raise
        finally:
            self._sums.lock.release()
        return self.done

    def wait(self) -> None:
        """Return when the row is the sum; end the job when the time is over."""
        wait_until(self.test, "a sum over all ranks")

    def _chosen(self) -> Iterator[list[CommRequest]]:
        n, nbytes = self._sums.comm.size, self._row.nbytes
        if n == 1:
            return iter(())
        if (n - 2) * nbytes <= _EXCESS:
            return self._whole()
        # Partial sums of 16 bits would be rounded.
        if self._sums.single_node or nbytes < n * _RING or self._row.itemsize == 2:
            return self._sliced()
        return self._ring()

    def _whole(self) -> Iterator[list[CommRequest]]:
        """Send the whole row to all ranks, and sum up."""
        n = self._sums.comm.size
        with memory():
            terms = np.empty((n, len(self._row)), self._row.dtype)
        yield self._exchange([self._row] * n, list(terms), 0)
        terms[self._sums.rank] = self._row
        _sum(list(terms), self._row)

    def _sliced(self) -> Iterator[list[CommRequest]]:
        """Sum up a slice of the columns, and send it to all ranks."""
        n, rank, slices = self._sums.comm.size, self._sums.rank, self._slices(self._row)
        mine = slices[rank]
        with memory():
            terms = np.empty((n, len(mine)), self._row.dtype)
        yield self._exchange(slices, list(terms), 0)
        terms[rank] = mine
        _sum([*terms[rank:], *terms[:rank]], mine)
        yield self._exchange([mine] * n, slices, 1)

    def _ring(self) -> Iterator[list[CommRequest]]:
        """Pass partial sums of the slices to the next rank, which adds its own, and then the sums,
        each piece as soon as it has come.
        """
        n, rank = self._sums.comm.size, self._sums.rank
        before, after, beyond = (rank - 1) % n, (rank + 1) % n, (rank + 2) % n
        comm, of_bytes = self._sums.comm, byte(self._sums.comm)
        with memory():
            partial, total = np.empty_like(self._row), np.empty_like(self._row)
        own, sums, totals = map(self._pieces, (self._row, partial, total))
        sums[after] = totals[after]
        adding = [pair for i in range(1, n) for pair in zip(own[rank - i], sums[rank - i])]
        passing = [(rank - i, piece) for i in range(n - 1) for piece in totals[rank - i]]
        # What comes, in this order, is awaited from now on: otherwise it might hold up other rows.
        coming = [
            comm.Irecv([piece.view(np.uint8), of_bytes], before, self._tag)
            for _, piece in [*adding, *passing]
        ]
        leaving: list[CommRequest] = []

        def send(piece: np.ndarray) -> None:
            leaving.append(comm.Isend([piece.view(np.uint8), of_bytes], after, self._tag))

        for piece in own[rank]:
            send(piece)
        for request, (mine, piece) in zip(coming, adding):
            yield [request]
            piece += mine
            send(piece)
        for request, (i, piece) in zip(coming[len(adding) :], passing):
            yield [request]
            if i % n != beyond:
                send(piece)
        yield leaving
        self._row[:] = total

    def _pieces(self, row: np.ndarray) -> list[list[np.ndarray]]:
        """The slices of a row in pieces of a message each."""
        length = _FAR // row.itemsize
        return [
            [part[start : start + length] for start in range(0, len(part), length)]
            for part in self._slices(row)
        ]

    def _slices(self, row: np.ndarray) -> list[np.ndarray]:
        """The columns in one slice for each rank."""
        ends = np.cumsum(Partition(len(row), self._sums.comm.size).counts())
        return np.split(row, ends[:-1])

    def _exchange(
        self, sent: list[np.ndarray], received: list[np.ndarray], stage: int
    ) -> list[CommRequest]:
        """Begin to exchange an array with each other rank, in messages that take turns."""
        sums, n = self._sums, self._sums.comm.size
        turns = [(sums.rank + step) % n for step in range(1, n)]
        requests: list[CommRequest] = []
        of_bytes = byte(sums.comm)
        for begin, arrays, ranks in (
            (sums.comm.Irecv, received, turns[::-1]),
            (sums.comm.Isend, sent, turns),
        ):
            pieces = sorted(
                (start, place, rank)
                for place, rank in enumerate(ranks)
                for start in range(0, arrays[rank].nbytes, sums.bytes_of_messages[rank])
            )
            for start, _, rank in pieces:
                piece = arrays[rank].view(np.uint8)[start : start + sums.bytes_of_messages[rank]]
                requests.append(begin([piece, of_bytes], rank, self._tag + stage))
        return requests


def _sum(terms: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Sum of rows, one after the other."""
    if out.itemsize > 2:
        np.add(terms[0], terms[1], out=out)
        for term in terms[2:]:
            np.add(out, term, out=out)
        return
    format = BFLOAT16 if out.dtype == np.uint16 else out.dtype.str
    total = widen(terms[0], format)
    for term in terms[1:]:
        total += widen(term, format)
    out[...] = narrow(total, format)
