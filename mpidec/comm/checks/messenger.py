"""Messages of one network: headers, with their arrays behind them."""

from __future__ import annotations

import pickle

import numpy as np

from ..runtime import CommRequest, Communicator, byte, empty, lost, next_message, testall
from .header import DATA, LAST, LEFT, Header, Subject, pack, unpack

# Tags of headers, and of arrays that follow in messages of their own: above the tags of mixers
# (`transport.messages._TAGS`), and below 32767, the largest tag that MPI guarantees.
_HEADER, _PAYLOAD, _PAYLOADS = 16384, 16385, 16000
# Most bytes of an array that is sent behind its header, and of one message: MPI counts bytes in a C
# int.
_INLINE, _CHUNK = 1 << 16, 1 << 30
_BYTES, _NOTHING = np.dtype(np.uint8), np.empty(0, np.uint8)


class Messenger:
    """Sends and receives headers and their arrays.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Tags from 16384 on are used here.
    serial : int
        The number of the network: messages of others are discarded.
    """

    def __init__(self, comm: Communicator, serial: int):
        self.comm, self._serial, self._payloads = comm, serial, 0
        self._receivers: set[int] = set()
        self._unclaimed: list[list[CommRequest]] = []
        self._byte = byte(comm)
        self._lost: set[int] = set()

    def send(
        self, dest: int, header: Header, array: np.ndarray | None = None, synchronous: bool = False
    ) -> list[CommRequest]:
        """Send a header and its array; requests that must complete (they keep what MPI reads)."""
        self._receivers.add(dest)
        send = self.comm.Issend if synchronous else self.comm.Isend
        behind: list[np.ndarray] = []
        data = _NOTHING if array is None or not array.nbytes else array.view(np.uint8)
        if len(data) > _INLINE:
            self._payloads += 1
            header = header._replace(tag=_PAYLOAD + self._payloads % _PAYLOADS)
            data, behind = _NOTHING, _pieces(data)
        message = b"".join((pack(self._serial, header), data.data))
        requests: list[CommRequest] = [send([message, self._byte], dest, _HEADER)]
        for piece in behind:
            requests.append(self.comm.Isend([piece, self._byte], dest, header.tag))
        if header.kind != DATA:
            self.keep(requests)
        return requests

    def send_last(self) -> None:
        """Send a final message to every rank that received any, to be received after all others."""
        for dest in list(self._receivers):
            self.send(dest, Header(LAST, False, 0, Subject("")), synchronous=True)

    def next(self) -> tuple[int, Header, np.ndarray] | None:
        """Return the next message that has arrived: its source, its header, and the array that
        follows in the same message.
        """
        while (message := next_message(self.comm, _HEADER)) is not None:
            source, raw = message
            serial, header, end = unpack(raw)
            if serial == self._serial:
                return source, header, raw[end:]
            self.discard(source, header)  # of a closed network whose communicator had the number
        for source, text in lost(self.comm).items():
            if source not in self._lost:
                self._lost.add(source)
                reason = pickle.dumps(RuntimeError(text)).decode("latin-1")
                return source, Header(LEFT, False, 0, Subject(""), text=reason), _NOTHING
        return None

    def receive(self, source: int, header: Header, data: np.ndarray) -> list[CommRequest]:
        """Receive the array that a header announces into `data`."""
        return (
            [self.comm.Irecv([piece, self._byte], source, header.tag) for piece in _pieces(data)]
            if header.tag
            else []
        )

    def discard(self, source: int, header: Header) -> None:
        """Receive an array that nothing needs."""
        if header.kind == DATA and header.tag:
            self.keep(self.receive(source, header, empty((header.nbytes,), _BYTES)))

    def keep(self, requests: list[CommRequest]) -> None:
        """Complete requests that no caller waits for any more."""
        if requests and not testall(requests):
            self._unclaimed.append(requests)

    def complete(self) -> None:
        """Drop the requests that are complete."""
        if self._unclaimed:
            self._unclaimed = [requests for requests in self._unclaimed if not testall(requests)]

    @property
    def idle(self) -> bool:
        """Return whether all requests were complete."""
        return not self._unclaimed


def _pieces(data: np.ndarray) -> list[np.ndarray]:
    return [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
