"""Sums of rows over all ranks by messages, bit-identical with every MPI library."""

from __future__ import annotations

from collections.abc import Collection, Iterator

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


class RowSums:
    r"""Sums of rows over all ranks, in place, any number of them under way at once.

    .. math:: s = ((x_0 + x_1) + x_2) + \dots + x_{n-1}

    entry by entry in the order of the ranks: the bits depend neither on the MPI library nor on
    timing, nor on how a row is cut into several; with one agent per rank they are those of
    `net.sum`.  Rows of 16 bits are summed in float32 and rounded once.

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
    Each rank sums a slice of the columns, which the others send it, and sends the sum to them: a
    rank sends and receives :math:`2 (n-1)/n` of a row, in two latencies.  Short rows, and those of
    two ranks, travel whole: one latency.
    """

    def __init__(self, comm: Communicator, engine: ProgressEngine, near: Collection[int] = ()):
        self.comm, self._engine, self.rank = comm, engine, comm.rank
        self.bytes_of_messages = [_NEAR if r in near else _FAR for r in range(comm.size)]
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
        return RowSum(self, row, tag, self._engine)


class RowSum:
    """A sum under way; made by `RowSums.start`."""

    def __init__(self, sums: RowSums, row: np.ndarray, tag: int, engine: ProgressEngine):
        self._sums, self._row, self._tag, self._engine = sums, row, tag, engine
        self._requests: list[CommRequest] = []
        n = sums.comm.size
        self._steps: Iterator[list[CommRequest]] = iter(())
        if n > 1:
            self._steps = self._whole() if (n - 2) * row.nbytes <= _EXCESS else self._sliced()
        self.done = self._interrupted = False
        engine.add(self._poll)
        self.test()

    def test(self) -> bool:
        """Make progress; whether the row is the sum."""
        if self._interrupted:
            raise RuntimeError("a sum over all ranks was interrupted: make a new network")
        try:
            while not self.done and testall(self._requests):
                requests = next(self._steps, None)
                self.done, self._requests = requests is None, requests or []
        except BaseException as error:  # Ctrl-C: the steps have ended without the sum
            self._interrupted = True
            abandon((self, self._requests))
            self._engine.remove(self._poll)
            self._engine.interrupt(f"{type(error).__name__} in a sum over all ranks")
            raise
        if self.done:
            self._engine.remove(self._poll)
        return self.done

    def wait(self) -> None:
        """Return when the row is the sum; end the job when the time is over."""
        wait_until(self.test, "a sum over all ranks")

    def _poll(self) -> None:
        self.test()

    def _whole(self) -> Iterator[list[CommRequest]]:
        """Send the whole row to all ranks, and sum up."""
        n = self._sums.comm.size
        with memory():
            terms = np.empty((n, len(self._row)), self._row.dtype)
        yield self._exchange([self._row] * n, list(terms), 0)
        terms[self._sums.rank] = self._row
        _sum(terms, self._row)

    def _sliced(self) -> Iterator[list[CommRequest]]:
        """Sum up a slice of the columns, and send it to all ranks."""
        n, rank = self._sums.comm.size, self._sums.rank
        slices = np.split(self._row, np.cumsum(Partition(len(self._row), n).counts())[:-1])
        mine = slices[rank]
        with memory():
            terms = np.empty((n, len(mine)), self._row.dtype)
        yield self._exchange(slices, list(terms), 0)
        terms[rank] = mine
        _sum(terms, mine)
        yield self._exchange([mine] * n, slices, 1)

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


def _sum(terms: np.ndarray, out: np.ndarray) -> None:
    """Sum of rows, one after the other."""
    if terms.itemsize > 2:
        np.add(terms[0], terms[1], out=out)
        for term in terms[2:]:
            np.add(out, term, out=out)
        return
    format = BFLOAT16 if terms.dtype == np.uint16 else terms.dtype.str
    total = widen(terms[0], format)
    for term in terms[1:]:
        total += widen(term, format)
    out[...] = narrow(total, format)
