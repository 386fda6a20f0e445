"""Checked messages between ranks: every one says to which call it belongs, and no wait is for ever.

A call is a script (a generator) that sends, says which messages it needs, and yields until they are here.  Each message
is a letter (call, operation, dtype, shape, weight) with a small array inside, or announcing a large one that follows.  So
a message that nobody expects, one that is not what the call needs, and one that never comes are all found out: the first
two by the letter, the third by asking the rank that should have sent it.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..runtime.memory import empty
from ..runtime.progress import Patience, ranks, timeout
from .header import ACROSS, ASKS, DATA, FAILED, LAST, MIXES, REFUSED, Disagreement, Letter, Script
from .history import REMEMBERED, Answers, Past
from .operation import Call

LETTER, PAYLOAD, PAYLOADS = 16384, 16385, 8000      # tags; mixers use small ones
INLINE, CHUNK = 8192, 1 << 30                       # bytes that travel within a letter, and at most in one message
PATIENCE = 0.1                                      # seconds of waiting after which a rank asks where the message is


class Messenger(Answers):
    """All calls of one rank: delivers letters to them, and moves them on.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Tags from 16384 on are the messenger's.
    serial : int
        The number of the network, the same on its ranks and no other's.
    mixings : callable, optional
        How many mixings in shared memory this rank has begun; those are numbered by themselves.
    """

    def __init__(self, comm: MPI.Intracomm, serial: int = 0, mixings: Callable[[], int] = int):
        self.serial, self.mixings = serial, mixings
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.timeout = timeout()
        self._count = 0
        self._pairs: Counter[int] = Counter()
        self._active: dict[tuple[int, int], Call] = {}
        self._past: OrderedDict[tuple[int, int], Past] = OrderedDict()
        self._notes: list[tuple[int, Past | None]] = [(0, None)] * REMEMBERED       # calls without letters
        self._early: dict[tuple[int, int], list[tuple[int, Letter, np.ndarray]]] = {}
        self._orphans: list[tuple[list[MPI.Request], Any]] = []
        self._late: list[Disagreement] = []
        self._status = MPI.Status()
        self._correspondents: set[int] = set()
        self._closing = self._quarreled = self._polling = False
        self.check = True
        self.broken = ""                            # why messages without letters are out of step
        self._waiting: int | None = None            # the call without letters that this rank waits in

    def call(self, op: str, peer: int | None = None) -> Call:
        """A new call of all ranks, or with one `peer`."""
        if peer is None:
            self._count += 1
            return Call(self, op, self._count)
        self._pairs[peer] += 1
        return Call(self, op, self._pairs[peer], peer)

    def verify(self, op: str, mark: str, dests: Iterable[int], sources: Iterable[int]) -> int:
        """The same, after letters have been exchanged: returns when the ranks `sources` have the same `op` and `mark`.

        Raises
        ------
        Disagreement
            On both sides, if they have not.
        """
        call = self.call(op)
        call.mark, call.signature, call.out = mark, None, frozenset(dests)
        call.sources = {(rank, ACROSS) for rank in sources}

        def script() -> Script:
            for rank in call.out:
                call.send(rank, ACROSS)
            call.expect(ACROSS, [rank for rank, _ in call.sources])
            yield False
        self.begin(call, script()).wait()
        return call.number

    def agree(self, op: str, mark: str, dests: Iterable[int] = ()) -> int:
        """The same for all ranks, along a tree; something will be sent to the ranks `dests`."""
        call = self.call(op)
        call.mark, call.out = mark, frozenset(dests)
        self.begin(call, call.consensus(*call.join_tree())).wait()
        return call.number

    @property
    def calls(self) -> int:
        """Calls of all ranks that this one has begun."""
        return self._count

    def begin(self, call: Call, script: Script) -> Call:
        """Start the script of a call; the messages that came before it was begun are delivered."""
        key = _key(call)
        self._active[key] = call
        call.begin(script)
        for source, letter, data in self._early.pop(key, ()):
            self._deliver(source, letter, data)
        call.advance()
        return call

    def give_up(self, call: Call, error: Exception, concerned: Iterable[int]) -> None:
        """End a call that could not begin."""
        self._active[_key(call)] = call
        call.fail(error, concerned)
        for source, letter, data in self._early.pop(_key(call), ()):
            self._deliver(source, letter, data)

    def progress(self) -> None:
        """Deliver what has arrived, and move all calls on."""
        while (message := self.comm.Improbe(MPI.ANY_SOURCE, LETTER, self._status)) is not None:
            source, raw = self._status.Get_source(), bytearray(self._status.Get_count(MPI.BYTE))
            message.Recv([raw, MPI.BYTE])
            end = 4 + struct.unpack_from("<I", raw)[0]
            serial, *fields = pickle.loads(raw[4:end])
            letter, inline = Letter(*fields), np.frombuffer(raw[end:], np.uint8)
            if serial != self.serial:               # of a network that is closed: the communicator's number is in use again
                data = np.empty(letter.nbytes if letter.kind == DATA else 0, np.uint8)
                self.orphan(self.payload(source, letter, data) if letter.kind == DATA else [], data)
                continue
            if letter.kind == LAST:
                continue
            if letter.kind == MIXES:
                self._answer_about_mixing(source, letter)
                continue
            if letter.kind == ASKS and not letter.pair and letter.number > self._count and letter.before < self.mixings():
                self._dispute(source, letter, f"mixing {letter.before + 1}")
            if self._closing or letter.number <= (self._pairs[source] if letter.pair else self._count):
                self._deliver(source, letter, inline)
            else:
                self._early.setdefault((letter.number, source if letter.pair else -1), []).append((source, letter, inline))
        for call in list(self._active.values()):
            call.advance()
        if self._orphans:
            self._orphans = [orphan for orphan in self._orphans if not MPI.Request.Testall(orphan[0])]

    def poll(self) -> None:
        if not self._polling and (self._active or self._orphans):
            self._polling = True
            try:
                self.progress()
            finally:
                self._polling = False

    def wait(self, call: Call) -> None:
        """Until a call is done; after `MPIDEC_TIMEOUT` seconds the job is aborted with a report."""
        began, turns, waited, asked = time.monotonic(), 0, 0.0, PATIENCE
        while not call.done:
            self.progress()
            self.complain()
            turns += 1
            if call.done or turns < 100:
                os.sched_yield()
                continue
            waited = time.monotonic() - began
            if waited > asked:
                self._ask()
                asked = waited + PATIENCE
            if waited > self.timeout:
                self._expire(call, waited)
            if waited < 0.02:
                os.sched_yield()
            else:
                time.sleep(min(1e-3, waited / 100))

    def complain(self) -> None:
        """Raise what was found out about calls that had already ended."""
        if self._late:
            self._quarreled = True
            raise self._late.pop(0)

    def close(self) -> Disagreement | None:
        """Receive all that is still on its way, so that nothing of it can meet another network; collective.

        Returns what was found out about calls that had ended, if that is the first that this rank hears of it.
        """
        self._closing, told = True, self._quarreled
        for letters in list(self._early.values()):
            for early in letters:
                self._deliver(*early)
        for dest in list(self._correspondents):     # a letter is received after all that were sent before it
            self.post(dest, Letter(LAST, False, 0, "", ""), synchronous=True)
        barrier = None
        patience = Patience("all ranks to close the network")
        while barrier is None or not barrier.Test():
            patience.look()
            self.progress()
            self._ask()
            if barrier is None and not self._orphans:
                barrier = self.comm.Ibarrier()
            os.sched_yield()
        while self._orphans or self._active:
            self.progress()
            for call in list(self._active.values()):
                call.abandon()
        return self._late[0] if self._late and not told else None

    def post(self, dest: int, letter: Letter, flat: np.ndarray | None = None,
             synchronous: bool = False) -> list[tuple[MPI.Request, Any]]:
        """Send a letter and its array; the requests, each with what it reads."""
        head = pickle.dumps((self.serial, *letter), pickle.HIGHEST_PROTOCOL)
        data = np.empty(0, np.uint8) if flat is None else flat.view(np.uint8)
        small = data.nbytes <= INLINE
        raw = struct.pack("<I", len(head)) + head + (data.tobytes() if small else b"")
        self._correspondents.add(dest)
        send = self.comm.Issend if synchronous else self.comm.Isend
        requests: list[tuple[MPI.Request, Any]] = [(send([raw, MPI.BYTE], dest, LETTER), raw)]
        if not small:
            requests += [(self.comm.Isend([piece, MPI.BYTE], dest, _tag(letter)), piece) for piece in _pieces(data)]
        if letter.kind != DATA:
            self.orphan([requests[0][0]], raw)
        return requests

    def payload(self, source: int, letter: Letter, data: np.ndarray) -> list[MPI.Request]:
        """Receive the array that a letter announces, if it does."""
        if letter.nbytes <= INLINE:
            return []
        return [self.comm.Irecv([piece, MPI.BYTE], source, _tag(letter)) for piece in _pieces(data)]

    def orphan(self, requests: list[MPI.Request], kept: Any) -> None:
        """Keep what MPI still reads or writes although nobody waits for it."""
        if not MPI.Request.Testall(requests):
            self._orphans.append((requests, kept))

    def forget(self, call: Call) -> None:
        """A call has ended."""
        self._quarreled |= bool(call.text)
        self._active.pop(_key(call), None)
        self._past[_key(call)] = Past(call.op, call.mode, call.mark, call.out, call.text)
        if len(self._past) > REMEMBERED:
            self._past.popitem(last=False)

    def _ask(self) -> None:
        for call in self._active.values():          # others may wait for any of them
            call.ask()

    def _deliver(self, source: int, letter: Letter, inline: np.ndarray) -> None:
        key = (letter.number, source if letter.pair else -1)
        call, past = self._active.get(key), self._ended(key)
        if letter.kind == DATA:
            data = inline if letter.nbytes <= INLINE else empty((letter.nbytes,), np.dtype(np.uint8))
            problem = call.objection(source, letter) if call is not None else None
            if call is not None and problem is None:
                call.accept(source, letter, data)
                return
            self.orphan(self.payload(source, letter, data), data)
            if past is not None and past.error:
                self._reply(FAILED, source, letter, past.error)
            else:
                self._quarrel(call, source, letter, problem or self._unexpected(source, letter, past))
        elif letter.kind == ASKS:
            self._answer(call, past, source, letter)
        elif call is not None and (letter.kind == REFUSED or call.waits_for(source)):
            call.fail(Disagreement(letter.text))
        elif call is None and (letter.kind == REFUSED or letter.number == self._waiting) and not (past is not None and past.error):
            self._late.append(Disagreement(letter.text))

    def _expire(self, call: Call, waited: float) -> None:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        lines = [f"[rank {self.rank}] waits for {ranks(call.missing())} since {since} ({waited:.0f} s) in {call}"]
        lines += [f"[rank {self.rank}]   under way: {other}, waits for {ranks(other.missing())}"
                  for other in self._active.values() if other is not call]
        lines += [f"[rank {self.rank}] aborts the job; MPIDEC_TIMEOUT is {self.timeout:g} s"]
        print(*lines, sep="\n", file=sys.stderr, flush=True)
        time.sleep(0.5)                             # let the others say what they wait for
        self.comm.Abort(1)


def _key(call: Call) -> tuple[int, int]:
    return call.number, -1 if call.peer is None else call.peer


def _tag(letter: Letter) -> int:
    return PAYLOAD + PAYLOADS * letter.pair + (letter.number * 8 + letter.stage) % PAYLOADS


def _pieces(data: np.ndarray) -> list[np.ndarray]:
    return [data[start:start + CHUNK] for start in range(0, len(data), CHUNK)]
