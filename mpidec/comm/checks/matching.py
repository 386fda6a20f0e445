"""Matching of calls between ranks: every message says which call it belongs to, and every wait
ends.

Each message is a header (call, stage, dtype, shape, weight) with an array behind it; a large array
follows as a second message. Three kinds of errors are found: a message that nothing expects and one
that does not fit, by the header; and one that never comes, by a query to the rank that should have
sent it.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from ...exceptions import RankMismatchError, from_another_rank, mark
from ..runtime.collectives import portable
from ..runtime.context import Checked
from ..runtime.memory import empty
from ..runtime.mpi import MPI
from ..runtime.progress import ProgressEngine, abandon, ranks, timeout, wait_until, wake_waits
from .header import (
    CONFIRMATION,
    DATA,
    EDGE,
    FAILED,
    LAST,
    LEFT,
    MIXING_QUERY,
    QUERY,
    REFUSED,
    Header,
    Subject,
    describe,
    pack,
    unpack,
)
from .history import REMEMBERED, History, Key, PastOperation
from .mismatch import closes, different_calls, different_signatures, not_expected, not_sent
from .operation import ARRIVED, Operation, Steps, tree

_HEADER, _PAYLOAD, _PAYLOADS = 16384, 16385, 16000  # tags; mixers use small ones
_INLINE, _CHUNK = 1 << 16, 1 << 30  # most bytes that follow a header, and that are in one message
_BYTES, _NOTHING = np.dtype(np.uint8), np.empty(0, np.uint8)
_PATIENCE = 0.9  # of the time-out: for how long a rank that leaves waits for rank 0
_REASON = 100  # characters of the exception that a network is out of step after
_OUT_OF_STEP = "the network is out of step ({}): close it and make a new one"


class Matching:
    """All operations of one rank on one network: hands arriving messages to them, and makes them
    progress.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Tags from 16384 on are used here.
    serial : int
        The number of the network, the same on its ranks and different from every other network's.
    mixings : callable, optional
        How many mixings in shared memory this rank has begun; those are numbered separately.
    engine : ProgressEngine, optional
        Refuses calls of other threads, of forked children, and of a closed network.
    refusal : callable, optional
        A mismatch in shared memory that was reported to this rank and has not been raised, or None.

    Attributes
    ----------
    broken : str
        Why operations without headers are out of step; empty if they are not.
    interrupted : str
        Why all operations are, after an exception from outside.
    apart : bool
        Whether a rank may be one call apart from the others, as found out by `close`.
    left : bool
        Whether this rank has left all others; see `fail`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        serial: int = 0,
        mixings: Callable[[], int] = int,
        engine: ProgressEngine | None = None,
        refusal: Callable[[], Exception | None] = lambda: None,
    ):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.check: Checked = True
        self.broken, self.left = "", False
        self._engine, self.interrupted = engine or ProgressEngine(), ""
        self._engine.on_interrupt(self._refuse)
        self._serial, self._mixings, self._refusal = serial, mixings, refusal
        self._count, self._payloads = 0, 0
        self._pairs: Counter[int] = Counter()
        self._active: dict[Key, Operation] = {}
        self._history = History()
        self._early: dict[Key, list[tuple[int, Header, np.ndarray]]] = {}
        self._unclaimed: list[list[MPI.Request]] = []
        self._late: list[Exception] = []  # found out when no operation could take it
        self._leaver: Exception | None = None  # with which another rank has left, to be raised here
        self._leavers: set[int] = set()  # ranks that have left
        self._peers: set[int] = set()  # ranks that got a message
        self._status = MPI.Status()
        self._polling = self._closing = self._reported = False
        self.apart, self._meetings = False, 0
        self._met: dict[Key, Header] = {}  # what the ranks that have come to a meeting say

    # Operations with headers

    def operation(self, op: str, peer: int | None = None) -> Operation:
        """A new operation of all ranks, or with one `peer`; `start` or `reject` it next.

        Raises
        ------
        RuntimeError
            If a wait was interrupted before, so that this rank may be one operation apart from the
            others.
        """
        with self._engine:
            self.require_in_step()
        if peer is None:
            self._count += 1
            return Operation(self, op, self._count, None, self._mixings())
        self._pairs[peer] += 1
        return Operation(self, op, self._pairs[peer], peer, self._mixings())

    def require_in_step(self) -> None:
        """Raise a RuntimeError if an exception from outside has ended a call before."""
        if self.interrupted:
            raise RuntimeError(_OUT_OF_STEP.format(self.interrupted))

    def start(self, operation: Operation, steps: Steps) -> Operation:
        """Begin the steps of an operation, and hand it the messages that came before."""
        self._active[operation.key] = operation
        operation.start(steps)
        if self._early:
            self._deliver_early(operation.key)
            operation.advance()
        return operation

    def reject(self, operation: Operation, error: BaseException, concerned: Iterable[int]) -> None:
        """End an operation that could not begin, and tell the ranks that may wait for this one."""
        self._active[operation.key] = operation
        operation.fail(error, concerned)
        self._deliver_early(operation.key)

    def wait(self, operation: Operation) -> None:
        """Return when an operation has ended; after `MPIDEC_TIMEOUT` seconds the job is aborted
        with a report.

        Raises
        ------
        RankMismatchError
            If a mismatch has been found in an operation that had already ended; it is the reason of
            errors in later ones.
        """
        if not operation.done:
            with self._engine:
                try:
                    wait_until(
                        lambda: self.test(operation), lambda: self._report(operation), self._ask
                    )
                except BaseException as error:
                    self.interrupt(str(operation), error)
                    raise
            if (
                operation.error is not None
                and not self._late
                and (refusal := self._refusal()) is not None
            ):
                raise refusal
            if not operation.done or operation.error is not None:
                self._raise_late()

    def test(self, operation: Operation) -> bool:
        """Whether `wait` would return or raise at once, after progress."""
        self.poll()
        return operation.done or bool(self._late) or self._leaver is not None

    def verify(self, op: str, signature: str, dests: Iterable[int], sources: Iterable[int]) -> int:
        """Return when the ranks `sources` have come to an operation with the same `op` and
        `signature`: its number.

        Raises
        ------
        RankMismatchError
            On both sides, if they are elsewhere.
        """
        operation = self.operation(op)
        operation.signature, operation.array = signature, None
        operation.receivers = frozenset(dests)
        operation.senders = {(rank, EDGE) for rank in sources}

        def steps() -> Steps:
            for rank in operation.receivers:
                operation.send(rank, EDGE)
            operation.expect(EDGE, [rank for rank, _ in operation.senders])
            yield ARRIVED

        self.start(operation, steps()).wait()
        return operation.number

    def agree(self, op: str, signature: str) -> int:
        """Return when all ranks have come to an operation with the same `op` and `signature`:
        its number.
        """
        operation = self.operation(op)
        operation.signature = signature
        operation.join_tree()
        self.start(operation, operation.barrier()).wait()
        return operation.number

    # Operations without headers

    def register(self, record: PastOperation) -> int:
        """Number an operation that sends no headers; other ranks may ask about it.

        Raises
        ------
        RuntimeError
            If such operations have gone wrong before.
        """
        if self.broken:
            raise RuntimeError(_OUT_OF_STEP.format(self.broken))
        self._count = number = self._count + 1
        self._history.registered[number % REMEMBERED] = number, record
        if self._early:
            self._deliver_early((number, -1))
        return number

    def interrupt(self, where: str, error: BaseException) -> None:
        """Refuse all further operations: a wait has been ended by an exception, and this rank
        may be one operation apart.
        """
        self._refuse(f"{type(error).__name__} in {where}")

    def _refuse(self, reason: str) -> None:
        self.interrupted = self.interrupted or reason
        self.broken = self.broken or reason

    def withdraw(self, op: str, error: Exception, concerned: Iterable[int]) -> None:
        """Take no part in an operation without headers, and notify the ranks that would wait for
        this one.
        """
        operation = self.operation(op)
        self.broken = self.broken or str(error)
        self.reject(operation, error, concerned)
        self.broken = operation.text

    def ask(
        self, sources: Iterable[int], number: int, op: str, signature: str, before: int
    ) -> None:
        """Ask the ranks that an operation without headers waits for where they are.

        Raises
        ------
        RankMismatchError
            If they, or others, have been found to be elsewhere.
        """
        for rank in sources:
            self.send(rank, Header(QUERY, False, number, Subject(op, "", signature), before=before))
        self.poll()
        failure = self._history.failures.pop(number, "")
        if failure:
            self._late.append(RankMismatchError(failure))
        if self._late:
            self.broken = str(self._late[0])
            record = self._history.find((number, -1)) or PastOperation(
                op, "", signature, frozenset(), ""
            )
            record = record._replace(error=self.broken)
            self._history.registered[number % REMEMBERED] = number, record
        self._raise_late()

    def ask_about_mixing(self, rank: int, number: int, op: str, before: int | None = None) -> None:
        """Ask a rank that mixing `number` in shared memory waits for where it is.

        Raises
        ------
        RankMismatchError
            If it, or another one, has been found to be elsewhere.
        """
        self.send(
            rank,
            Header(
                MIXING_QUERY,
                False,
                number,
                Subject(op),
                before=self._count if before is None else before,
            ),
        )
        self.poll()
        self._raise_late()

    # Progress

    def poll(self) -> None:
        """Hand over the messages that have arrived, and let all operations progress.

        Safe in every wait: a poll within a poll returns at once, and errors are raised by `wait`,
        `ask` or `close`.
        """
        if self._polling:
            return
        self._polling = True
        try:
            for key in list(self._early) if self._closing else ():
                self._deliver_early(key)
            while (message := self.comm.Improbe(MPI.ANY_SOURCE, _HEADER, self._status)) is not None:
                self._take(message, self._status.Get_source(), self._status.Get_count(MPI.BYTE))
            for operation in list(self._active.values()):
                operation.advance()
            if self._unclaimed:
                self._unclaimed = [
                    requests for requests in self._unclaimed if not MPI.Request.Testall(requests)
                ]
        except Exception as error:
            if not self._late:
                self._late.append(error)
        except BaseException:  # of a signal handler: MPI may write to what had been about to arrive
            abandon([operation.received for operation in self._active.values()])
            raise
        finally:
            self._polling = False

    def leave(self, apart: bool = False) -> None:
        """Refuse new operations; waiting ranks are notified at the next poll.

        With `apart`, the last operation was left, too, and this rank may be one collective of MPI
        apart from the others.
        """
        self._closing, self.apart = True, apart

    def close(self, apart: bool = False) -> Exception | None:
        """Receive all that is still on its way, so that nothing of it can meet another network;
        collective.

        Returns what was found out about operations that had ended, if nothing has been raised on
        this rank before.  If any rank is `apart` (see `leave`), or has begun another number of
        operations, the attribute says so on all ranks.
        """
        reported = self._reported
        self.leave(apart)
        for dest in list(self._peers):  # taken after all that was sent there before
            self.send(dest, Header(LAST, False, 0, Subject("")), synchronous=True)
        self.apart = self.meet(apart)
        for operation in list(self._active.values()):
            operation.abandon("the network was closed")
        wait_until(self._idle, "the last messages of the network")
        return self._late[0] if self._late and not reported else None

    def meet(self, apart: bool = False) -> bool:
        """Return when all ranks close the network, and have received all that this rank has sent:
        whether any is `apart`, or has
        begun another number of operations.

        By messages over the tree of all ranks, since collectives of MPI match only if no rank has
        left out one.
        """
        self._meetings = number = self._meetings + 1
        parent, children = tree(self.rank, self.size)

        def send(some: list[int]) -> None:
            for rank in some:
                self.send(
                    rank,
                    Header(LAST, False, number, Subject(""), before=self._count, out_of_step=apart),
                )

        def receive(some: list[int]) -> bool:
            keys = [(rank, number) for rank in some]
            wait_until(
                lambda: self._idle() and all(key in self._met for key in keys),
                "all ranks to close the network",
                self._ask,
            )
            return any(
                self._met[key].out_of_step or self._met[key].before != self._count for key in keys
            )

        apart |= receive(children)
        if parent is not None:
            send([parent])
            apart |= receive([parent])
        send(children)
        wait_until(self._idle, "the last messages of the network")
        return apart

    def report(self, rank: int, text: str) -> None:
        """Raise a mismatch on another rank, in its next wait; it is raised on this one."""
        self._reported = True
        self.send(rank, Header(REFUSED, False, 0, Subject(""), text=text))

    def fail(self, error: Exception) -> None:
        """End the waits of all ranks with `error`, which this rank raises outside of any common
        call; refuse further operations.

        Returns when rank 0, which may have a file to finish, has left as well.
        """
        self.left = True
        if self.rank == 0 or not from_another_rank(error):  # rank 0 tells the others
            text = pickle.dumps(portable(error)).decode("latin-1")
            for rank in range(1, self.size) if self.rank == 0 else [0]:
                self.send(rank, Header(LEFT, False, 0, Subject(""), text=text))
        until = time.monotonic() + (1 if self.rank == 0 else _PATIENCE * timeout())
        wait_until(
            lambda: (
                (self._idle() and (self.rank == 0 or 0 in self._leavers))
                or time.monotonic() > until
            ),
            "rank 0 to leave",
        )
        self._engine.interrupt(" ".join(f"{type(error).__name__}: {error}".split())[:_REASON])

    def look_for_leavers(self) -> None:
        """Raise the exception with which another rank has left."""
        if self._leaver is not None and not self.left:
            error, self._leaver = self._leaver, None
            raise error

    def _receive_leave(self, source: int, text: str) -> None:
        """Have every wait of this rank raise the exception with which another rank has left."""
        if not self._leavers:
            self._leaver = leaver = pickle.loads(text.encode("latin-1"))
            mark(leaver, from_another_rank=True)
            wake_waits()
        self._leavers.add(source)

    def _idle(self) -> bool:
        self.poll()
        return not self._unclaimed

    def _raise_late(self) -> None:
        self.look_for_leavers()
        if self._late:
            self._reported = True
            raise self._late.pop(0)

    def _ask(self) -> None:
        for operation in list(self._active.values()):  # others may wait for any of them
            operation.ask()

    def _report(self, operation: Operation) -> str:
        """Describe which ranks an operation waits for, and the others under way."""
        others = [
            f"{other} waits for {ranks(other.missing())}"
            for other in self._active.values()
            if other is not operation
        ]
        return (
            f"{ranks(operation.missing())} in {operation}"
            + f" (also under way: {'; '.join(others)})" * bool(others)
        )

    # What operations need: see operation.Engine

    def send(
        self, dest: int, header: Header, array: np.ndarray | None = None, synchronous: bool = False
    ) -> list[MPI.Request]:
        """Send a header and its array; requests that must complete (they keep what MPI reads)."""
        self._peers.add(dest)
        if header.kind == FAILED and self.broken:
            header = header._replace(out_of_step=True)
        send = self.comm.Issend if synchronous else self.comm.Isend
        behind: list[np.ndarray] = []
        data = _NOTHING if array is None or not array.nbytes else array.view(np.uint8)
        if len(data) > _INLINE:
            self._payloads += 1
            header = header._replace(tag=_PAYLOAD + self._payloads % _PAYLOADS)
            data, behind = _NOTHING, _pieces(data)
        message = b"".join((pack(self._serial, header), data.data))
        requests = [send([message, MPI.BYTE], dest, _HEADER)]
        for piece in behind:
            requests.append(self.comm.Isend([piece, MPI.BYTE], dest, header.tag))
        if header.kind != DATA:
            self.keep(requests)
        return requests

    def receive(self, source: int, header: Header, data: np.ndarray) -> list[MPI.Request]:
        """Receive the array that a header announces into `data`."""
        return (
            [self.comm.Irecv([piece, MPI.BYTE], source, header.tag) for piece in _pieces(data)]
            if header.tag
            else []
        )

    def keep(self, requests: list[MPI.Request]) -> None:
        """Complete requests that nothing waits for any more."""
        if requests and not MPI.Request.Testall(requests):
            self._unclaimed.append(requests)

    def forget(self, operation: Operation) -> None:
        """Move an operation that has ended into the history."""
        self._reported |= bool(operation.text)
        self._active.pop(operation.key, None)
        self._history.add(
            operation.key,
            PastOperation(
                operation.op,
                operation.mode,
                operation.signature,
                operation.receivers,
                operation.text,
            ),
        )

    # Messages

    def _take(self, message: MPI.Message, source: int, nbytes: int) -> None:
        """Receive one message, and hand it over or keep it until its operation begins."""
        raw = np.empty(nbytes, np.uint8)
        message.Recv([raw, MPI.BYTE])
        serial, header, end = unpack(raw)
        if serial != self._serial:  # of a closed network whose communicator had the same number
            self._discard(source, header)
        elif header.kind == MIXING_QUERY:
            self._answer_about_mixing(source, header)
        elif header.kind == LAST:
            self._met[source, header.number] = header
        elif header.kind == LEFT:
            self._receive_leave(source, header.text)
        else:
            if (
                header.kind == QUERY
                and not header.pair
                and header.number > self._count
                and header.before < self._mixings()
            ):
                self._report_elsewhere(source, header, f"mixing {header.before + 1}")
            if self._closing or header.number <= self._last(source, header):
                self._deliver(source, header, raw[end:])
            else:
                self._early.setdefault((header.number, source if header.pair else -1), []).append(
                    (source, header, raw[end:])
                )

    def _deliver_early(self, key: Key) -> None:
        for source, header, data in self._early.pop(key, ()):
            self._deliver(source, header, data)

    def _deliver(self, source: int, header: Header, data: np.ndarray) -> None:
        """Hand a message to its operation; `data` is the array if that is not in a message of
        its own.
        """
        key = header.number, source if header.pair else -1
        operation = self._active.get(key)
        if header.kind == DATA:
            problem = operation.mismatch(source, header) if operation is not None else ""
            if operation is not None and not problem:
                operation.accept(
                    source, header, empty((header.nbytes,), _BYTES) if header.tag else data
                )
                return
            self._discard(source, header)
        past = self._history.find(key)
        failed = past is not None and bool(past.error)
        if header.kind == DATA:
            if past is not None and failed:
                self._reply(FAILED, source, header, past.error)
            else:
                self._report_mismatch(
                    operation, source, header, problem or self._not_matched(source, header, past)
                )
        elif header.kind == QUERY:
            self._answer(operation, past, source, header)
        elif operation is not None and (header.kind == REFUSED or operation.waits_for(source)):
            if header.out_of_step:  # nothing will come from there any more
                self.broken = self.broken or header.text
            operation.fail(RankMismatchError(header.text))
        elif operation is None and not failed:
            if header.kind == REFUSED:
                self._late.append(RankMismatchError(header.text))
            else:
                self._history.fail(header.number, header.text)

    def _discard(self, source: int, header: Header) -> None:
        """Receive an array that nothing needs."""
        if header.kind == DATA and header.tag:
            self.keep(self.receive(source, header, empty((header.nbytes,), _BYTES)))

    # Replies

    def _answer(
        self, operation: Operation | None, past: PastOperation | None, source: int, header: Header
    ) -> None:
        """Reply to the query of a rank that waits for this one, if it waits in vain."""
        record, call = operation or past, header.call
        last = self._last(source, header)
        if past is not None and past.error:
            self._reply(FAILED, source, header, past.error)
        elif header.number > last or (self.apart and not header.pair and header.number == last):
            self._reply(
                REFUSED, source, header, closes(source, call, self.rank)
            )  # it begins no more, and has left its last
        elif record is None:
            return  # long ago
        elif (record.op, record.mode, record.signature) != header.subject[:3]:
            self._report_mismatch(
                operation, source, header, self._not_matched(source, header, record)
            )
        elif source not in record.receivers and header.stage != CONFIRMATION:
            self._report_mismatch(operation, source, header, not_sent(source, self.rank, call))

    def _answer_about_mixing(self, source: int, header: Header) -> None:
        """Reply to the query of a rank that waits for a mixing of this one, if this one is
        elsewhere.
        """
        if header.number <= self._mixings():
            return  # the query is out of date
        if self._closing:
            self._reply(REFUSED, source, header, closes(source, header.subject.op, self.rank))
        elif header.before < self._count:
            key = header.before + 1, -1
            record = self._active.get(key) or self._history.find(key)
            self._report_elsewhere(
                source,
                header,
                describe(record.op, record.mode, key[0])
                if record is not None
                else f"call {key[0]}",
            )

    def _report_elsewhere(self, source: int, header: Header, mine: str) -> None:
        """Report to both sides that they are in different calls."""
        theirs = header.subject.op if header.kind == MIXING_QUERY else header.call
        self._report_mismatch(
            None, source, header, different_calls(source, theirs, self.rank, mine)
        )

    def _report_mismatch(
        self, operation: Operation | None, source: int, header: Header, text: str
    ) -> None:
        """Raise on both sides: here in the operation, or in the next wait if it has ended."""
        self._reply(REFUSED, source, header, text)
        if operation is not None:
            operation.fail(RankMismatchError(text))
        else:
            self._late.append(RankMismatchError(text))

    def _reply(self, kind: int, dest: int, header: Header, text: str) -> None:
        number = (
            0 if header.kind == MIXING_QUERY else header.number
        )  # mixings are numbered separately
        self.send(dest, Header(kind, header.pair, number, header.subject, text=text))

    def _not_matched(
        self, source: int, header: Header, record: Operation | PastOperation | None
    ) -> str:
        """Describe why a message does not match the record of its operation."""
        subject, call = header.subject, header.call
        if record is not None and (record.op, record.mode) != subject[:2]:
            return different_calls(
                source, call, self.rank, describe(record.op, record.mode, header.number)
            )
        if record is not None and record.signature != subject.signature:
            return different_signatures(
                source, subject.signature, call, self.rank, record.signature
            )
        if header.number > self._last(source, header):  # and so the network is closing here
            return closes(source, call, self.rank)
        return not_expected(source, self.rank, call)

    def _last(self, source: int, header: Header) -> int:
        """The number of this rank's last operation of the kind that a message belongs to."""
        return self._pairs[source] if header.pair else self._count


def _pieces(data: np.ndarray) -> list[np.ndarray]:
    return [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
