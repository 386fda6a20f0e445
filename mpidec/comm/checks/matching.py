"""Matching of calls between ranks: every message names the call to which it belongs, and every wait
terminates.

Each message is a header (call, stage, dtype, shape, weight) with an array behind it; a large array
follows as a second message. Three kinds of errors are found: a message that nothing expects and one
that does not fit, by the header; and one that never comes, by a query to the rank that should have
sent it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from ...exceptions import RankMismatchError
from ..runtime import (
    Checked,
    Communicator,
    ProgressEngine,
    abandon,
    died,
    empty,
    ranks,
    timeout,
    wait_until,
)
from .ending import LeavingRanks, Meetings
from .header import (
    CONFIRMATION,
    DATA,
    EDGE,
    FAILED,
    HERE,
    LAST,
    LAST_QUERY,
    LEFT,
    MIXING_QUERY,
    QUERY,
    REFUSED,
    Header,
    Subject,
    describe,
)
from .history import REMEMBERED, Findings, History, Key, PastOperation
from .messenger import Messenger
from .mismatch import closes, different_calls, different_signatures, not_expected, not_sent
from .operation import ARRIVED, Operation, Steps
from .presence import Presence

_BYTES = np.dtype(np.uint8)
# Part of the time-out for which a rank that leaves waits for rank 0: below 1, so that it has left
# before the waits of the others abort the job.
_PATIENCE = 0.9
# Characters of the exception that a network is out of step after.
_REASON = 100
_OUT_OF_STEP = "the network is out of step ({}): close it and make a new one"


class Matching:
    """All operations of one rank on one network: hands arriving messages to them, and makes them
    progress.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        See `messenger.Messenger`.
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
    departures : LeavingRanks
        Ranks that have left all others; see `fail`.
    presence : Presence
        Who waits in the same call of all ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        serial: int = 0,
        mixings: Callable[[], int] = int,
        engine: ProgressEngine | None = None,
        refusal: Callable[[], Exception | None] = lambda: None,
    ):
        self.rank = comm.rank
        self.check: Checked = True
        self.messenger = Messenger(comm, serial)
        self.departures = LeavingRanks(self.messenger)
        self.presence = Presence(self.messenger)
        self._meetings = Meetings(self.messenger, self.presence)
        self._history, self._findings = History(mixings), Findings(refusal)
        self._active: dict[Key, Operation] = {}
        self._early: dict[Key, list[tuple[int, Header, np.ndarray]]] = {}
        self.broken = self.interrupted = ""
        self._polling = False
        self._engine = engine or ProgressEngine()
        self._engine.on_interrupt(self._refuse)

    @property
    def out_of_step(self) -> bool:
        """Whether a rank may be one call ahead of or behind the others, as found out by `close`."""
        return self._meetings.out_of_step

    # Operations with headers

    def operation(self, op: str, peer: int | None = None) -> Operation:
        """Return a new operation of all ranks, or with one `peer`; `start` or `reject` it next.

        Raises
        ------
        RuntimeError
            If a wait was interrupted before, so that this rank may be one operation ahead of or
            behind the others.
        """
        with self._engine:
            self.require_in_step()
        return Operation(self, op, self._history.begin(peer), peer, self._history.mixings())

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
                words: Callable[[], str] = partial(self._missing, operation)
                ask = self._ask
                if operation.of_all:
                    where = str(operation)
                    words, ask = self.presence.waiting(where, f"in {where}", ask, numbered=True)
                try:
                    wait_until(
                        lambda: self.test(operation), lambda: words() + self._others(operation), ask
                    )
                except BaseException as error:
                    self.interrupt(str(operation), error)
                    raise
            if operation.error is not None:
                self._findings.raise_refusal()
            if not operation.done or operation.error is not None:
                self._raise_found()

    def test(self, operation: Operation) -> bool:
        """Return whether `wait` would return or raise at once, after progress."""
        self.poll()
        return operation.done or bool(self._findings.errors) or self.departures.error is not None

    def verify(self, op: str, signature: str, dests: Iterable[int], sources: Iterable[int]) -> int:
        """Wait until the ranks `sources` have reached an operation with the same `op` and
        `signature`; return its number.

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
        """Wait until all ranks have reached an operation with the same `op` and `signature`; return
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
        number = self._history.begin()
        self._history.registered[number % REMEMBERED] = number, record
        if self._early:
            self._deliver_early((number, -1))
        return number

    def interrupt(self, where: str, error: BaseException) -> None:
        """Refuse all further operations: an exception has ended a wait, and this rank may be
        one operation ahead of or behind the others.
        """
        self._refuse(f"{type(error).__name__} in {where}")

    def _refuse(self, reason: str) -> None:
        self.interrupted = self.interrupted or reason
        self.broken = self.broken or reason

    def withdraw(self, op: str, error: Exception, concerned: Iterable[int]) -> None:
        """Withdraw from an operation without headers, and notify the ranks that would wait for this
        one.
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
            query = Header(QUERY, False, number, Subject(op, "", signature), before=before)
            self.messenger.send(rank, query)
        self.poll()
        failure = self._history.failures.pop(number, "")
        if failure:
            self._findings.add(failure)
        if self._findings.errors:
            self.broken = str(self._findings.errors[0])
            record = self._history.find((number, -1)) or PastOperation(
                op, "", signature, frozenset(), ""
            )
            record = record._replace(error=self.broken)
            self._history.registered[number % REMEMBERED] = number, record
        self._raise_found()

    def ask_about_mixing(self, rank: int, number: int, op: str, before: int | None = None) -> None:
        """Ask a rank that mixing `number` in shared memory waits for where it is.

        Raises
        ------
        RankMismatchError
            If it, or another one, has been found to be elsewhere.
        """
        before = self._history.count if before is None else before
        self.messenger.send(rank, Header(MIXING_QUERY, False, number, Subject(op), before=before))
        self.poll()
        self._raise_found()

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
            for key in list(self._early) if self._meetings.closing else ():
                self._deliver_early(key)
            while (message := self.messenger.next()) is not None:
                self._take(*message)
            for operation in list(self._active.values()):
                operation.advance()
            self.messenger.complete()
        except Exception as error:
            self._findings.errors = self._findings.errors or [error]
        except BaseException:  # of a signal handler: MPI may write to what had been about to arrive
            abandon([operation.received for operation in self._active.values()])
            raise
        finally:
            self._polling = False

    def leave(self, out_of_step: bool = False) -> None:
        """Refuse new operations; waiting ranks are notified at the next poll.

        With `out_of_step`, the last operation was left, too, and this rank may be one collective of
        MPI ahead of or behind the others.
        """
        self._meetings.leave(out_of_step)
        self._meetings.stay_away()

    def close(self, out_of_step: bool = False) -> Exception | None:
        """Receive all messages in transit, so that none of them can reach another network;
        collective.

        Returns what was found out about operations that had ended, if nothing has been raised on
        this rank before.  If any rank is `out_of_step` (see `leave`), or has begun another number
        of operations, the attribute says so on all ranks.
        """
        reported = self._findings.reported
        self._meetings.leave(out_of_step)
        self.messenger.send_last()
        try:
            self._meetings.out_of_step = self.meet(out_of_step)
        except RankMismatchError as error:
            self.interrupt("close", error)
            raise
        for operation in list(self._active.values()):
            operation.abandon("the network was closed")
        wait_until(self._idle, "the last messages of the network")
        return self._findings.errors[0] if self._findings.errors and not reported else None

    def meet(self, out_of_step: bool = False) -> bool:
        """Return when all ranks close the network, and have received all that this rank has sent;
        see `Meetings.meet`.
        """
        return self._meetings.meet(out_of_step, self._history.count, self._idle, self._ask)

    def report(self, rank: int, text: str) -> None:
        """Raise a mismatch on another rank, in its next wait; it is raised on this one."""
        self._findings.reported = True
        self.messenger.send(rank, Header(REFUSED, False, 0, Subject(""), text=text))

    def fail(self, error: Exception) -> None:
        """End the waits of all ranks with `error`, which this rank raises outside of any common
        call; refuse further operations.

        Returns when rank 0, which may have a file to finish, has left as well, or a rank has died.
        """
        self.departures.leave(error)
        until = time.monotonic() + (1 if self.rank == 0 else _PATIENCE * timeout())
        try:
            wait_until(
                lambda: (
                    (self._idle() and (self.rank == 0 or 0 in self.departures.ranks))
                    or time.monotonic() > until
                ),
                "rank 0 to leave",
            )
        except Exception as caught:
            if not died(caught):
                raise
        self._engine.interrupt(" ".join(f"{type(error).__name__}: {error}".split())[:_REASON])

    def look_for_leavers(self) -> None:
        """Raise the exception with which another rank has left the network, or that of its death."""
        self.departures.raise_error()
        self._findings.raise_death()

    def _idle(self) -> bool:
        self.poll()
        self._findings.raise_death()
        return self.messenger.idle

    def _raise_found(self) -> None:
        self.departures.raise_error()
        self._findings.raise_first()

    def _ask(self) -> None:
        for operation in list(self._active.values()):  # others may wait for any of them
            operation.ask()

    def _missing(self, operation: Operation) -> str:
        """Describe which ranks an operation waits for."""
        return f"{ranks(operation.missing())} in {operation}"

    def _others(self, operation: Operation) -> str:
        """Describe the other operations under way."""
        others = [
            f"{other} waits for {ranks(other.missing())}"
            for other in self._active.values()
            if other is not operation
        ]
        return f" (also under way: {'; '.join(others)})" * bool(others)

    def forget(self, operation: Operation) -> None:
        """Move an operation that has ended into the history."""
        self._findings.reported |= bool(operation.text)
        self._active.pop(operation.key, None)
        self._history.add(operation.key, operation.past())

    # Messages

    def _take(self, source: int, header: Header, data: np.ndarray) -> None:
        """Hand over a message that has arrived, or keep it until its operation begins."""
        if header.kind == MIXING_QUERY:
            self._answer_about_mixing(source, header)
        elif header.kind == LAST:
            self._meetings.receive(source, header)
        elif header.kind == LAST_QUERY:
            self._meetings.answer(source, header)
        elif header.kind == LEFT:
            self.departures.receive(source, header.stage, header.text)
        elif header.kind == HERE:
            self.presence.receive(source, header.text)
        else:
            if (
                header.kind == QUERY
                and not header.pair
                and header.number > self._history.count
                and header.before < self._history.mixings()
            ):
                self._report_elsewhere(source, header, f"mixing {header.before + 1}")
            if self._meetings.closing or header.number <= self._history.last(source, header.pair):
                self._deliver(source, header, data)
            else:
                key = header.number, source if header.pair else -1
                self._early.setdefault(key, []).append((source, header, data))

    def _deliver_early(self, key: Key) -> None:
        for source, header, data in self._early.pop(key, ()):
            self._deliver(source, header, data)

    def _deliver(self, source: int, header: Header, data: np.ndarray) -> None:
        """Hand a message to its operation; `data` is the array if that is not in a message of
        its own.
        """
        key = header.number, source if header.pair else -1
        operation, past = self._active.get(key), self._history.find(key)
        if header.kind == DATA:
            self._deliver_array(operation, past, source, header, data)
        elif header.kind == QUERY:
            self._answer(operation, past, source, header)
        elif operation is not None and (header.kind == REFUSED or operation.waits_for(source)):
            # Nothing will come from there any more.
            if header.out_of_step:
                self.broken = self.broken or header.text
            operation.fail(RankMismatchError(header.text))
        elif operation is None and (past is None or not past.error):
            if header.kind == REFUSED:
                self._findings.add(header.text)
            else:
                self._history.fail(header.number, header.text)

    def _deliver_array(
        self,
        operation: Operation | None,
        past: PastOperation | None,
        source: int,
        header: Header,
        data: np.ndarray,
    ) -> None:
        """Hand an array to its operation, or report why that does not expect it."""
        problem = ""
        if operation is not None:
            again = (source, header.stage) in operation.received
            problem = operation.mismatch(source, header, again)
        if operation is not None and not problem:
            array = empty((header.nbytes,), _BYTES) if header.tag else data
            operation.accept(source, header, array)
            return
        self.messenger.discard(source, header)
        if past is not None and past.error:
            self._reply(FAILED, source, header, past.error)
        else:
            problem = problem or self._not_matched(source, header, past)
            self._report_mismatch(operation, source, header, problem)

    # Replies

    def _answer(
        self, operation: Operation | None, past: PastOperation | None, source: int, header: Header
    ) -> None:
        """Reply to the query of a rank that waits for this one, if its wait could never end."""
        record, call = operation or past, header.call
        # The query may concern a call that failed here, one that this rank can no longer begin, or
        # one that it knows under another name or with other receivers.  In all other cases there is
        # no reply: this rank will come, or has sent what the other one waits for.
        last = self._history.last(source, header.pair)
        if past is not None and past.error:
            self._reply(FAILED, source, header, past.error)
        elif header.number > last or (
            self.out_of_step and not header.pair and header.number == last
        ):
            # It begins no more, and has left its last.
            self._reply(REFUSED, source, header, closes(source, call, self.rank))
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
        if header.number <= self._history.mixings():
            return  # the query is out of date
        if self._meetings.closing:
            self._reply(REFUSED, source, header, closes(source, header.subject.op, self.rank))
        elif header.before < self._history.count:
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
            self._findings.add(text)

    def _reply(self, kind: int, dest: int, header: Header, text: str) -> None:
        # Mixings are numbered separately.
        number = 0 if header.kind == MIXING_QUERY else header.number
        lost = kind == FAILED and bool(self.broken)
        reply = Header(kind, header.pair, number, header.subject, text=text, out_of_step=lost)
        self.messenger.send(dest, reply)

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
        # And so the network is closing here.
        if header.number > self._history.last(source, header.pair):
            return closes(source, call, self.rank)
        return not_expected(source, self.rank, call)
