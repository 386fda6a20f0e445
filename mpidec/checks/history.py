"""What a rank knows of its calls, and says when others ask: where it is, or that the two are not in the same call."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .header import ASKS, FAILED, MIXES, OK, REFUSED, Disagreement, Letter, describe
from .operation import Call

REMEMBERED = 4096                                   # calls


class Past(NamedTuple):
    """What is remembered of a call that has ended."""

    op: str
    mode: str
    mark: str
    out: frozenset[int]
    error: str


class Answers:
    """The part of a messenger that remembers calls, asks about them, and answers."""

    rank: int
    mixings: Callable[[], int]
    broken: str                                     # why messages without letters are out of step
    _count: int
    _pairs: Counter[int]
    _active: dict[tuple[int, int], Call]
    _past: OrderedDict[tuple[int, int], Past]
    _notes: list[tuple[int, Past | None]]           # calls without letters
    _early: dict[tuple[int, int], list[tuple[int, Letter, np.ndarray]]]
    _late: list[Disagreement]
    _waiting: int | None                            # the call without letters that this rank waits in
    _closing: bool

    def note(self, past: Past) -> int:
        """A call that is carried out without letters has begun: its number, under which others may ask for it.

        Raises
        ------
        RuntimeError
            If such calls have gone wrong before.
        """
        if self.broken:
            raise RuntimeError(f"the network is out of step ({self.broken}): close it and make a new one")
        self._count = number = self._count + 1
        self._notes[number % REMEMBERED] = number, past
        if self._early:
            for source, letter, data in self._early.pop((number, -1), ()):
                self._deliver(source, letter, data)
        return number

    def leave(self, op: str, error: Exception, concerned: Iterable[int]) -> None:
        """This rank takes no part in a call without letters: the ranks that would wait for it are told."""
        call = self.call(op)
        self.give_up(call, error, concerned)
        self.broken = call.text

    def ask(self, ranks: Iterable[int], number: int, op: str, mark: str, before: int) -> None:
        """Ask the ranks that a call without letters waits for, and hear what others have to say.

        Raises
        ------
        Disagreement
            If it has come out that they are elsewhere.
        """
        for rank in ranks:
            self.post(rank, Letter(ASKS, False, number, op, "", mark, before=before))
        self._waiting = number
        self.progress()
        self._waiting = None
        if self._late:
            self.broken = str(self._late[0])
            past = self._ended((number, -1)) or Past(op, "", mark, frozenset(), "")
            self._notes[number % REMEMBERED] = number, past._replace(error=self.broken)
        self.complain()

    def ask_about_mixing(self, rank: int, number: int, op: str, before: int | None = None) -> None:
        """Ask a rank that a mixing in shared memory waits for."""
        self.post(rank, Letter(MIXES, False, number, op, "", before=self._count if before is None else before))
        self.progress()
        self.complain()

    def _ended(self, key: tuple[int, int]) -> Past | None:
        """What is remembered of a call that is not under way with letters."""
        number, noted = self._notes[key[0] % REMEMBERED]
        return noted if number == key[0] and key[1] == -1 else self._past.get(key)

    def _answer(self, call: Call | None, past: Past | None, source: int, letter: Letter) -> None:
        record = call if call is not None else past
        if record is None:
            if letter.number > (self._pairs[source] if letter.pair else self._count):       # this rank makes no more calls
                self._reply(REFUSED, source, letter, f"rank {source} is in {describe(letter.op, letter.mode, letter.number)}, "
                                                     f"rank {self.rank} closes the network")
            return
        if past is not None and past.error:
            self._reply(FAILED, source, letter, past.error)
        elif (record.op, record.mode, record.mark) != (letter.op, letter.mode, letter.mark):
            self._quarrel(call, source, letter, self._unexpected(source, letter, record))
        elif source not in record.out and letter.stage != OK:
            self._quarrel(call, source, letter,
                          f"rank {source} expects a message from rank {self.rank} in "
                          f"{describe(letter.op, letter.mode, letter.number)}, rank {self.rank} does not send one")

    def _answer_about_mixing(self, source: int, letter: Letter) -> None:
        if letter.number <= self.mixings():
            return                                  # the question is old
        if self._closing:
            self._reply(REFUSED, source, letter, f"rank {source} is in {letter.op}, rank {self.rank} closes the network")
        elif letter.before < self._count:
            key = letter.before + 1, -1
            record = self._active.get(key) or self._ended(key)
            self._dispute(source, letter, describe(record.op, record.mode, key[0]) if record is not None else f"call {key[0]}")

    def _dispute(self, source: int, letter: Letter, mine: str) -> None:
        """The ranks are in different calls."""
        what = letter.op if letter.kind == MIXES else describe(letter.op, letter.mode, letter.number)
        problem = f"rank {source} is in {what}, rank {self.rank} in {mine}: every rank makes the same calls in the same order"
        self._reply(REFUSED, source, letter, problem)
        self._late.append(Disagreement(problem))

    def _unexpected(self, source: int, letter: Letter, record: Call | Past | None) -> str:
        what = describe(letter.op, letter.mode, letter.number)
        if record is not None and (record.op, record.mode) != (letter.op, letter.mode):
            mine = describe(record.op, record.mode, letter.number)
            return f"rank {source} is in {what}, rank {self.rank} in {mine}: every rank makes the same calls in the same order"
        if record is not None and record.mark != letter.mark:
            return f"rank {source} has {letter.mark} in {what}, rank {self.rank} has {record.mark}"
        return f"rank {source} sends to rank {self.rank} in {what}, rank {self.rank} does not expect it"

    def _quarrel(self, call: Call | None, source: int, letter: Letter, problem: str) -> None:
        """Both sides raise."""
        self._reply(REFUSED, source, letter, problem)
        if call is not None:
            call.fail(Disagreement(problem))
        else:
            self._late.append(Disagreement(problem))

    def _reply(self, kind: int, dest: int, letter: Letter, text: str) -> None:
        number = 0 if letter.kind == MIXES else letter.number      # mixings are numbered by themselves
        self.post(dest, Letter(kind, letter.pair, number, letter.op, letter.mode, text=text))

    def call(self, op: str, peer: int | None = None) -> Call:
        raise NotImplementedError

    def give_up(self, call: Call, error: Exception, concerned: Iterable[int]) -> None:
        raise NotImplementedError

    def post(self, dest: int, letter: Letter, flat: np.ndarray | None = None,
             synchronous: bool = False) -> list[tuple[MPI.Request, Any]]:
        raise NotImplementedError

    def progress(self) -> None:
        raise NotImplementedError

    def complain(self) -> None:
        raise NotImplementedError

    def _deliver(self, source: int, letter: Letter, inline: np.ndarray) -> None:
        raise NotImplementedError
