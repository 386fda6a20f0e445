"""Connections between the ranks of a process group of PyTorch: messages that are matched by tag, and
can be tested, probed and interrupted.

gloo's own messages cannot: `is_completed` of its works stays False until `wait`, which blocks
Ctrl-C, and a wait with a time-out breaks all connections of the group.  Like those of gloo, these
are TCP connections, found through the store of the group.  Each is made for the first message from
one rank to another, and carries messages in this direction only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeAlias, cast

import numpy as np

from .waiting import wait_until

# Communicator, tag, serial number for the acknowledgement, bytes that follow, kind.
_FRAME = struct.Struct("<QQQQB7x")
_HELLO = struct.Struct("<16sQ")  # token of the listener, rank of the sender
_PLAIN, _SYNCHRONOUS, _MATCHED = range(3)
# Bytes that are read at once: many small messages, or the beginning of a large one.
_READ = 1 << 16
_CONNECT = 10.0  # seconds for one address of another rank
# Seconds that the end of a process waits for the last bytes of messages to leave.
_LAST = 5.0
_PREFIX = "mpidec"
_VIEWS = 16  # parts of messages in one system call
_AMID = "an exception came amid a message"

Key: TypeAlias = tuple[int, int]  # communicator and tag
Bytes: TypeAlias = np.ndarray | bytes  # an array of bytes, or bytes


class KeyValueStore(Protocol):
    """What is used of the store of a process group."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...


class WireRequest:
    """A message under way, with the calls of a request of mpi4py.

    Attributes
    ----------
    done : bool
    problem : str
        Why it never will be.
    """

    def __init__(self, wire: Wire, peer: int):
        self._wire, self.peer, self.done, self.problem = wire, peer, False, ""

    def Test(self) -> bool:
        """Make progress; whether the message has left or arrived.

        Raises
        ------
        RuntimeError
            The other rank has ended, or has sent more than fits.
        """
        if not self.done:
            self._wire.poll()
            if not self.done and (self.problem or self.peer in self._wire.gone):
                raise RuntimeError(self.problem or self._wire.gone[self.peer])
        return self.done

    def Wait(self) -> None:
        """Return when the message has left or arrived."""
        wait_until(self.Test, f"a message from or to rank {self.peer}")

    @staticmethod
    def Testall(requests: Sequence[WireRequest]) -> bool:
        """Make progress; whether all are complete."""
        complete = [request.Test() for request in requests]  # each makes progress
        return all(complete)


class Receive(WireRequest):
    """A receive into the memory `into`."""

    def __init__(self, wire: Wire, source: int, into: np.ndarray):
        super().__init__(wire, source)
        self.into = into


class Arrival:
    """A message that arrives, in the memory of its receive or in its own."""

    def __init__(self, source: int, key: Key, serial: int, nbytes: int, receive: Receive | None):
        self.source, self.key, self.serial, self.nbytes = source, key, serial, nbytes
        self.receive, self.missing = receive, nbytes
        fits = receive is not None and nbytes <= len(receive.into)
        self.data = receive.into[:nbytes] if fits and receive else np.empty(nbytes, np.uint8)

    def take(self, data: memoryview) -> int:
        """Copy what belongs to this message; how much that is."""
        count, begin = min(len(data), self.missing), self.nbytes - self.missing
        self.data[begin : begin + count] = np.frombuffer(data[:count], np.uint8)
        self.missing -= count
        return count


class Outbound:
    """The connection on which this rank sends to another one."""

    def __init__(self, sock: socket.socket):
        self.sock, self._amid = sock, False
        self._queue: deque[tuple[memoryview, WireRequest | None]] = deque()

    def send(self, parts: Sequence[Bytes], request: WireRequest | None) -> None:
        """Send now what the connection takes, and the rest later."""
        views = [
            memoryview(part) if isinstance(part, bytes) else part.data
            for part in parts
            if len(part)
        ]
        for view in views:
            self._queue.append((view, request if view is views[-1] else None))
        self.flush()

    def flush(self) -> None:
        """Send what the connection takes.

        Raises
        ------
        OSError
            The connection has ended, or an exception (Ctrl-C) came amid an earlier call.
        """
        if self._amid:
            raise ConnectionAbortedError(_AMID)
        self._amid = bool(self._queue)
        while self._queue:
            try:
                sent = self.sock.sendmsg([view for view, _ in islice(self._queue, _VIEWS)])
            except BlockingIOError:
                break
            while sent:
                view, request = self._queue.popleft()
                if sent < len(view):
                    self._queue.appendleft((view[sent:], request))
                    break
                sent -= len(view)
                if request is not None:
                    request.done = True
        self._amid = False

    @property
    def empty(self) -> bool:
        """Whether everything has left."""
        return not self._queue


class Inbound:
    """A connection on which another rank sends to this one."""

    def __init__(self, wire: Wire, sock: socket.socket):
        self._wire, self._sock, self._amid = wire, sock, False
        self.source: int | None = None
        self._buffer, self._end = bytearray(_READ), 0
        self._arrival: Arrival | None = None

    def read(self) -> None:
        """Read what has arrived.

        Raises
        ------
        OSError
            The connection has ended, or an exception (Ctrl-C) came amid an earlier call.
        """
        if self._amid:
            raise ConnectionAbortedError(_AMID)
        self._amid = True
        while True:
            large = self._arrival is not None and self._arrival.missing > _READ
            if large and self._arrival is not None:
                into = self._arrival.data.data[-self._arrival.missing :]
            else:
                into = memoryview(self._buffer)[self._end :]
            try:
                count = self._sock.recv_into(into)
            except BlockingIOError:
                break
            if not count:
                raise ConnectionResetError("end of the connection")
            if large and self._arrival is not None:
                self._arrival.missing -= count
                self._complete()
            else:
                self._end += count
                self._parse()
            if count < len(into):
                break
        self._amid = False

    def _parse(self) -> None:
        data, begin = memoryview(self._buffer), 0
        while True:
            rest = data[begin : self._end]
            if self._arrival is not None:
                begin += self._arrival.take(rest)
                self._complete()
                if self._arrival is not None:
                    break
            elif self.source is None:
                if len(rest) < _HELLO.size:
                    break
                self.source = self._wire.greeted(*_HELLO.unpack_from(rest))
                begin += _HELLO.size
            elif len(rest) < _FRAME.size:
                break
            else:
                self._arrival = self._wire.announced(self.source, *_FRAME.unpack_from(rest))
                begin += _FRAME.size
        self._buffer[: self._end - begin] = self._buffer[begin : self._end]
        self._end -= begin

    def _complete(self) -> None:
        if self._arrival is not None and not self._arrival.missing:
            arrival, self._arrival = self._arrival, None
            self._wire.arrived(arrival)


class Mailbox:
    """Messages of the other ranks, matched with the receives of this one.

    Parameters
    ----------
    matched : callable (Arrival) -> None
        Called when a message has found its receive.
    """

    def __init__(self, matched: Callable[[Arrival], None]):
        self._matched = matched
        self._posted: defaultdict[Key, list[Receive]] = defaultdict(list)
        self._arrivals: defaultdict[Key, deque[Arrival]] = defaultdict(deque)
        self._freed: set[int] = set()

    def post(self, key: Key, receive: Receive) -> None:
        """Add a receive of the next message with this key."""
        for arrival in self._arrivals[key]:
            if arrival.source == receive.peer and arrival.receive is None:
                arrival.receive = receive
                self._matched(arrival)
                if not arrival.missing:
                    self.deliver(arrival)
                return
        self._posted[key].append(receive)

    def holds(self, key: Key) -> bool:
        """Return whether messages with this key are here, or arriving."""
        return bool(self._arrivals.get(key))

    def take(self, key: Key) -> Arrival | None:
        """Remove the next complete message with this key."""
        arrival = next((one for one in self._arrivals[key] if not one.missing), None)
        if arrival is not None:
            self._arrivals[key].remove(arrival)
            self._matched(arrival)
        return arrival

    def announce(self, source: int, key: Key, serial: int, nbytes: int) -> Arrival:
        """Add a message that begins to arrive."""
        receive = next((one for one in self._posted.get(key, ()) if one.peer == source), None)
        arrival = Arrival(source, key, serial, nbytes, receive)
        if receive is not None:
            self._posted[key].remove(receive)
            self._matched(arrival)
        elif key[0] not in self._freed:
            self._arrivals[key].append(arrival)
        return arrival

    def deliver(self, arrival: Arrival) -> None:
        """Hand a complete message to its receive, if there is one."""
        receive = arrival.receive
        if receive is None:
            return
        if arrival.nbytes > len(receive.into):
            receive.problem = (
                f"a message of rank {arrival.source} has {arrival.nbytes} bytes, expected at most "
                f"{len(receive.into)}: every rank must make the same calls with the same shapes"
            )
            return
        if arrival in self._arrivals[arrival.key]:
            self._arrivals[arrival.key].remove(arrival)
            receive.into[: arrival.nbytes] = arrival.data
        receive.done = True

    def free(self, communicator: int) -> None:
        """Discard all messages of a communicator, and those that come later."""
        self._freed.add(communicator)
        for held in (self._posted, self._arrivals):
            for key in [key for key in held if key[0] == communicator]:
                del held[key]


class Directory:
    """The addresses at which the ranks of a group listen, in its store.

    Parameters
    ----------
    store : KeyValueStore
    rank, port : int
        This rank, and where it listens.

    Attributes
    ----------
    token : bytes
        What connections to this rank begin with.
    """

    def __init__(self, store: KeyValueStore, rank: int, port: int):
        self._store, self._rank, self.token = store, rank, secrets.token_bytes(16)
        # Keys of wires that this rank of the group has made before stay in the store.
        self._generation = store.add(f"{_PREFIX}/{rank}", 1)
        place = f"{port} {self.token.hex()} {socket.gethostname()}"
        store.set(self._key(rank), " ".join([place, *addresses()]))

    def _key(self, rank: int) -> str:
        return f"{_PREFIX}/{self._generation}/{rank}"

    def connect(self, dest: int) -> socket.socket:
        """Return a connection to another rank, once that one listens."""
        key = self._key(dest)
        if not self._store.check([key]):
            wait_until(lambda: self._store.check([key]), f"rank {dest} to come to Network()")
        port, token, host, *found = self._store.get(key).decode().split()
        for address in found:
            if address.startswith("127.") and host != socket.gethostname():
                continue
            try:
                sock = socket.create_connection((address, int(port)), timeout=_CONNECT)
                break
            except OSError as caught:
                error = caught
        else:
            raise error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_HELLO.pack(bytes.fromhex(token), self._rank))
        sock.setblocking(False)
        return sock


class Wire:
    """All messages of one rank of a process group.

    Parameters
    ----------
    store : KeyValueStore
        That of the group.
    rank, size : int

    Attributes
    ----------
    gone : dict of int to str
        Ranks whose connections have ended, and what is said of them.
    progress : list of callable
        What else makes progress at each poll.
    """

    def __init__(self, store: KeyValueStore, rank: int, size: int):
        self.rank = rank
        self.gone: dict[int, str] = {}
        self.progress: list[Callable[[], None]] = []
        self._selector, self._out = selectors.DefaultSelector(), dict[int, Outbound]()
        self._mailbox, self._unmatched = Mailbox(self._acknowledge), dict[int, WireRequest]()
        self._serial, self._polling, self._lock = 0, False, threading.RLock()
        self._listener = socket.create_server(("", 0), backlog=max(128, size))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._directory = Directory(store, rank, self._listener.getsockname()[1])
        atexit.register(self.end)

    # Messages

    def send(self, dest: int, key: Key, data: Bytes, synchronous: bool = False) -> WireRequest:
        """Begin to send bytes, which must not change until the request is complete; if it is
        `synchronous`, that is when the receiver has matched the message.
        """
        request, kind = WireRequest(self, dest), _SYNCHRONOUS if synchronous else _PLAIN
        with self._lock:
            self._serial += 1
            if synchronous:
                self._unmatched[self._serial] = request
            frame = _FRAME.pack(*key, self._serial, len(data), kind)
            self._post(dest, [frame, data], None if synchronous else request)
        return request

    def receive(self, source: int, key: Key, into: np.ndarray) -> Receive:
        """Begin to receive the next message of a rank with this key into an array of bytes."""
        request = Receive(self, source, into)
        with self._lock:
            self._mailbox.post(key, request)
        return request

    def next(self, key: Key) -> tuple[int, np.ndarray] | None:
        """Return the source and the bytes of the next message with this key that has arrived."""
        self.poll()
        if not self._mailbox.holds(key):
            return None
        with self._lock:
            arrival = self._mailbox.take(key)
        return None if arrival is None else (arrival.source, arrival.data)

    def free(self, communicator: int) -> None:
        """Discard all messages of a communicator, and those that come later."""
        with self._lock:
            self._mailbox.free(communicator)

    def poll(self) -> None:
        """Make progress; a poll within a poll, or in two threads, returns at once."""
        if not self._lock.acquire(blocking=False):
            return
        if self._polling:
            self._lock.release()
            return
        self._polling = True
        try:
            for key, _ in self._selector.select(0):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data, cast(socket.socket, key.fileobj))
            for rank, outgoing in list(self._out.items()):
                if not outgoing.empty:
                    self._attempt(rank, outgoing.flush)
            for act in list(self.progress):
                act()
        finally:
            self._polling = False
            self._lock.release()

    # Connections

    def _post(self, dest: int, parts: Sequence[Bytes], request: WireRequest | None) -> None:
        if dest not in self._out and dest not in self.gone:
            self._attempt(dest, lambda: self._connect(dest))
        if dest in self._out:
            outgoing = self._out[dest]
            self._attempt(dest, lambda: outgoing.send(parts, request))

    def _attempt(self, rank: int, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._lose(rank, error)

    def _lose(self, rank: int, error: OSError) -> None:
        """Record that a rank has ended."""
        self.gone.setdefault(
            rank,
            f"rank {rank} has ended, or is out of reach ({error.strerror or error}): its own "
            "output says why, and the launcher its exit status",
        )
        outgoing = self._out.pop(rank, None)
        if outgoing is not None:
            self._close(outgoing.sock)

    def _close(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
        sock.close()

    def _connect(self, dest: int) -> None:
        sock = self._directory.connect(dest)
        # Nothing comes on it but its end.
        self._selector.register(sock, selectors.EVENT_READ, dest)
        self._out[dest] = Outbound(sock)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, Inbound(self, sock))

    def _read(self, end: Inbound | int, sock: socket.socket) -> None:
        try:
            if isinstance(end, Inbound):
                end.read()
            elif end in self._out and not self._out[end].sock.recv(1):
                raise ConnectionResetError("end of the connection")
        except BlockingIOError:
            pass
        except (OSError, PermissionError) as error:
            source = end.source if isinstance(end, Inbound) else end
            if source is not None:
                self._lose(source, error)
            self._close(sock)

    # For connections

    def greeted(self, token: bytes, rank: int) -> int:
        """Return the rank at the other end of a new connection."""
        if token != self._directory.token:
            raise ConnectionRefusedError("a connection of another program")
        return rank

    def announced(
        self, source: int, communicator: int, tag: int, serial: int, nbytes: int, kind: int
    ) -> Arrival | None:
        """Return the message that a frame announces; None if it is none of its own."""
        if kind == _MATCHED:
            request = self._unmatched.pop(serial, None)
            if request is not None:
                request.done = True
            return None
        return self._mailbox.announce(
            source, (communicator, tag), serial * (kind == _SYNCHRONOUS), nbytes
        )

    def arrived(self, arrival: Arrival) -> None:
        """Hand a complete message to its receive, if there is one."""
        self._mailbox.deliver(arrival)

    def _acknowledge(self, arrival: Arrival) -> None:
        """Tell the sender of a synchronous message that it has been matched."""
        if arrival.serial:
            self._post(arrival.source, [_FRAME.pack(0, 0, arrival.serial, 0, _MATCHED)], None)

    def end(self) -> None:
        """Send the last bytes, and close all connections."""
        until = time.monotonic() + _LAST
        while any(not out.empty for out in self._out.values()) and time.monotonic() < until:
            self.poll()
            time.sleep(1e-3)
        for key in list(self._selector.get_map().values()):
            self._close(cast(socket.socket, key.fileobj))
        self._selector.close()
        self._out.clear()


def addresses() -> Iterator[str]:
    """Return the addresses at which other hosts may reach this one, the likeliest first."""
    found: list[str] = []
    targets = [os.environ.get("MASTER_ADDR", ""), "192.0.2.1"]  # an address that nobody has
    for target in filter(None, targets):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
        ):
            probe.connect((target, 9))  # sends nothing
            found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    yield from dict.fromkeys([*found, "127.0.0.1"])
