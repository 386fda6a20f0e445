"""One call of one rank under way: a script that sends, says what it needs, and yields until that is here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..mixing.local.flat import Wire, flat_dtype
from .header import ACROSS, ASKS, DATA, DOWN, FAILED, OK, UP, Disagreement, Letter, Script, describe, name, tree

if TYPE_CHECKING:
    from .matching import Messenger


class Call:
    """A call under way; `wait()` completes it and returns its result.

    What was handed to the call must not change before `wait` returns.  Any number of calls may be under way, and be waited
    for in any order.
    """

    def __init__(self, messenger: Messenger, op: str, number: int, peer: int | None = None):
        self._m, self.op, self.number, self.peer = messenger, op, number, peer
        self.before = messenger.mixings()
        self.mode = self.mark = ""                 # two sides have the same, or do not speak of the same thing
        self.tree: tuple[int | None, list[int]] = (None, [])
        self.signature: tuple[str, tuple[int, ...]] | None = ("", ())
        self.same: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple
        self.out: frozenset[int] = frozenset()      # ranks that get something in this call
        self.sources: set[tuple[int, int]] = set()  # (rank, stage) of what may come
        self.open = False                           # anybody may send across
        self.received: dict[tuple[int, int], tuple[Letter, np.ndarray]] = {}
        self._awaited: set[tuple[int, int]] = set()
        self._asked: set[tuple[int, int]] = set()
        self._arriving: list[MPI.Request] = []
        self._leaving: list[MPI.Request] = []
        self._kept: list[Any] = []
        self._script: Script | None = None
        self._flush = False
        self.error: Exception | None = None
        self.text = ""
        self.result: Any = None
        self.done = False

    # For users

    def wait(self) -> Any:
        """Complete the call and return its result; again the same object when called again.

        Raises
        ------
        ValueError
            If the ranks disagree; the message names both sides.
        """
        self._m.wait(self)
        if self.error is not None:
            raise self.error
        return self.result

    def test(self) -> bool:
        """Whether `wait` would return (or raise) at once; gives the messages the chance to make progress."""
        if not self.done:
            self._m.progress()
            self._m.complain()
        return self.done

    def __str__(self) -> str:
        between = "" if self.peer is None else f" of ranks {min(self._m.rank, self.peer)} and {max(self._m.rank, self.peer)}"
        return describe(self.op, self.mode, self.number) + between

    # For scripts

    def send(self, dest: int, stage: int, flat: np.ndarray | None = None, weight: float = 1.0, *, want: bool = False,
             synchronous: bool = False, wire: Wire | None = None) -> None:
        """Send `flat` (or nothing) to `dest`; `want` its confirmation, or `synchronous`: know when it is taken."""
        dtype, shape = (wire.dtype, wire.shape) if wire is not None else self.signature or ("", ())
        nbytes = 0 if flat is None else flat.nbytes
        letter = Letter(DATA, self.peer is not None, self.number, self.op, self.mode, self.mark, stage, want, weight, dtype,
                        shape, nbytes)
        requests = self._m.post(dest, letter, flat, synchronous)
        self._leaving += [request for request, _ in requests]
        self._kept += [kept for _, kept in requests]

    def expect(self, stage: int, ranks: Iterable[int]) -> None:
        """The next `yield` returns when the messages of these ranks are here."""
        self._awaited |= {(rank, stage) for rank in ranks} - set(self.received)

    def take(self, rank: int, stage: int, dtype: Any = None) -> np.ndarray:
        """The array that a rank sent, flat."""
        letter, data = self.received[rank, stage]
        return data.view(flat_dtype(letter.dtype) if dtype is None else dtype)

    def across(self) -> list[int]:
        """The ranks that sent across, ascending."""
        return sorted(rank for rank, stage in self.received if stage == ACROSS)

    def join_tree(self, root: int = 0) -> tuple[int | None, list[int]]:
        """Take part in the tree of all ranks; before the script begins."""
        parent, children = tree(self._m.rank, self._m.size, root)
        near = children if parent is None else [parent, *children]
        self.out |= frozenset(near)
        self.sources |= {(child, UP) for child in children} | ({(parent, DOWN)} if parent is not None else set())
        self.tree = parent, children
        return self.tree

    def consensus(self, parent: int | None, children: list[int]) -> Script:
        """Until every rank has come here, and everything that was sent synchronously before has arrived."""
        yield True
        self.expect(UP, children)
        yield False
        if parent is not None:
            self.send(parent, UP)
            self.expect(DOWN, [parent])
            yield False
        for child in children:
            self.send(child, DOWN)

    # For the messenger

    def begin(self, script: Script) -> None:
        self._script = script
        self.advance()

    def advance(self) -> None:
        while not self.done and not self._awaited and MPI.Request.Testall(self._arriving):
            self._arriving.clear()
            if (self._flush or self._script is None) and not MPI.Request.Testall(self._leaving):
                return
            if self._script is None:
                self._leaving.clear()
                self._end()
                return
            try:
                self._flush = next(self._script)
            except StopIteration as stop:
                self.result, self._script = stop.value, None
            except Exception as error:
                self.fail(error)

    def objection(self, source: int, letter: Letter) -> str | None:
        """What is wrong with a message, if something is."""
        me, what = self._m.rank, describe(letter.op, letter.mode, letter.number)
        if (letter.op, letter.mode) != (self.op, self.mode):
            return f"rank {source} is in {what}, rank {me} in {self}: every rank makes the same calls in the same order"
        if letter.mark != self.mark:
            return f"rank {source} has {letter.mark} in {what}, rank {me} has {self.mark}"
        place = (source, letter.stage)
        if (place not in self.sources and not (self.open and letter.stage == ACROSS)) or place in self.received:
            return f"rank {source} sends to rank {me} in {self}, rank {me} does not expect it"
        if self.signature is not None:
            dtype, shape = self.signature
            if letter.dtype != dtype or self.same(letter.shape) != self.same(shape):
                return (f"rank {source} has an array {letter.shape} {name(letter.dtype)} in {self}, rank {me} one {shape} "
                        f"{name(dtype)}")
        return None

    def accept(self, source: int, letter: Letter, data: np.ndarray) -> None:
        self.received[source, letter.stage] = letter, data
        self._awaited.discard((source, letter.stage))
        self._arriving += self._m.payload(source, letter, data)
        if letter.want:
            self.send(source, OK)

    def waits_for(self, rank: int) -> bool:
        return any(place[0] == rank for place in (self.sources | self._awaited) - set(self.received))

    def missing(self) -> list[int]:
        return sorted({rank for rank, _ in self._awaited} or self.out)

    def ask(self) -> None:
        for rank, stage in self._awaited - self._asked:
            self._m.post(rank, Letter(ASKS, self.peer is not None, self.number, self.op, self.mode, self.mark, stage,
                                      before=self.before))
        self._asked |= self._awaited

    def fail(self, error: Exception, concerned: Iterable[int] = ()) -> None:
        """Give up, and tell those who wait for this rank."""
        self.error, self._script = error, None
        self.text = str(error) if isinstance(error, Disagreement) else \
            f"rank {self._m.rank} gave up {self}: {type(error).__name__}: {error}"
        for rank in sorted(self.out | {rank for rank, _ in self.sources} | set(concerned)):
            self._m.post(rank, Letter(FAILED, self.peer is not None, self.number, self.op, self.mode, text=self.text))
        self._m.orphan(self._leaving + self._arriving, [self._kept, self.received])
        self._end()

    def abandon(self) -> None:
        """Nobody will wait for this call any more."""
        self._script = None
        self._m.orphan(self._leaving + self._arriving, [self._kept, self.received])
        self._end()

    def _end(self) -> None:
        self.done = True
        self._m.forget(self)
        self.received, self._kept, self._arriving, self._leaving, self._awaited = {}, [], [], [], set()
