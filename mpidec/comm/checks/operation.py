"""One call of one rank in progress: its steps send, name the messages that they need, and yield
until these have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ...exceptions import RankMismatchError
from ..runtime import CommRequest, testall, tree
from .header import CONFIRMATION, DATA, DOWN, EDGE, FAILED, QUERY, UP, Header, Subject, describe
from .history import Key, PastOperation
from .messenger import Messenger
from .mismatch import (
    different_arrays,
    different_calls,
    different_signatures,
    gave_up,
    not_expected,
)

# What steps yield for: the messages expected; and that all sent are complete
ARRIVED, SENT = False, True
Steps = Generator[bool, None, Any]


class Engine(Protocol):
    """Interface of `Matching` that an operation uses."""

    rank: int
    messenger: Messenger
    broken: str

    def forget(self, operation: Operation) -> None:
        """Move an operation that has ended into the history."""

    def wait(self, operation: Operation) -> None:
        """Return when an operation has ended."""

    def test(self, operation: Operation) -> bool:
        """Return whether `wait` would return or raise at once, after progress."""

    def interrupt(self, where: str, error: BaseException) -> None:
        """Refuse all further operations."""


class Call:
    """A call of one rank, as messages identify it and other ranks are asked about it.

    Attributes
    ----------
    op, mode, signature : str
        What must be equal on both sides; see `header.Subject`.
    number : int
    peer : int or None
        The other rank of an operation of two.
    before : int
        Mixings in shared memory that this rank had begun before.
    array : tuple (dtype, shape) or None
        What arrives must be such an array; None for any.
    comparable : callable shape -> shape
        The part of the shapes that must be equal.
    receivers : frozenset of int
        Ranks that get something.
    senders : set of (rank, stage)
        What may arrive, and with `any_sender` anything along an edge.
    """

    def __init__(self, rank: int, size: int, op: str, number: int, peer: int | None, before: int):
        self._rank, self._size, self.op, self.number = rank, size, op, number
        self.peer, self.before = peer, before
        self.mode = self.signature = ""
        self.array: tuple[str, tuple[int, ...]] | None = ("", ())
        self.comparable: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple
        self.receivers: frozenset[int] = frozenset()
        self.senders: set[tuple[int, int]] = set()
        self.any_sender = False
        self.tree: tuple[int | None, list[int]] = (None, [])

    def __str__(self) -> str:
        call = describe(self.op, self.mode, self.number)
        if self.peer is None:
            return call
        low, high = sorted((self._rank, self.peer))
        return f"{call} of ranks {low} and {high}"

    @property
    def of_all(self) -> bool:
        """Whether it takes part in the tree of all ranks."""
        return self.tree != (None, [])

    @property
    def key(self) -> Key:
        """What identifies the operation on this rank."""
        return self.number, -1 if self.peer is None else self.peer

    @cached_property
    def subject(self) -> Subject:
        """The common part of its headers, which is fixed from the first one on."""
        return Subject(self.op, self.mode, self.signature, *(self.array or ("", ())))

    def join_tree(self, root: int = 0) -> tuple[int | None, list[int]]:
        """Take part in the tree of all ranks; before the steps begin."""
        parent, children = tree(self._rank, self._size, root)
        self.receivers |= frozenset(children if parent is None else [parent, *children])
        self.senders |= {(child, UP) for child in children} | (
            {(parent, DOWN)} if parent is not None else set()
        )
        self.tree = parent, children
        return self.tree

    def mismatch(self, source: int, header: Header, again: bool) -> str:
        """Return what is wrong with a message, which has come `again`; empty if nothing is."""
        me, theirs, mine = self._rank, header.subject, self.subject
        same = theirs == mine
        if not same and theirs[:2] != mine[:2]:
            return different_calls(source, header.call, me, str(self))
        if not same and theirs.signature != mine.signature:
            return different_signatures(source, theirs.signature, header.call, me, mine.signature)
        if again or not (
            (source, header.stage) in self.senders or (self.any_sender and header.stage == EDGE)
        ):
            return not_expected(source, me, str(self))
        if not same and self.array is not None:
            dtype, shape = self.array
            if theirs.dtype != dtype or self.comparable(theirs.shape) != self.comparable(shape):
                return different_arrays(source, theirs, str(self), me, dtype, shape)
        return ""


class Operation(Call):
    """A call in progress.

    The arrays handed to the call must not change before `wait` returns.  Any number of operations
    may be under way, and be waited for in any order; one whose handle is dropped completes as well.

    Attributes
    ----------
    result : object
        What the steps return, when the operation is done without an error.
    """

    def __init__(
        self, engine: Engine, op: str, number: int, peer: int | None = None, before: int = 0
    ):
        super().__init__(engine.rank, engine.messenger.comm.size, op, number, peer, before)
        self._engine = engine
        self.received: dict[tuple[int, int], tuple[Header, np.ndarray]] = {}
        self.error: Exception | None = None
        # The error as it is reported to other ranks.
        self.text = ""
        self.result: Any = None
        self.done = False
        self._awaited: set[tuple[int, int]] = set()
        self._asked: set[tuple[int, int]] = set()
        self._arriving: list[CommRequest] = []
        self._leaving: list[CommRequest] = []
        self._steps: Steps | None = None
        self._flush = self._running = False

    # For the caller

    def wait(self) -> None:
        """Return when the operation has completed.

        Raises
        ------
        ValueError
            If the ranks disagree; the message names both sides.
        """
        self._engine.wait(self)
        if self.error is not None:
            raise self.error

    def test(self) -> bool:
        """Return whether `wait` would return (or raise) at once; makes progress."""
        return self.done or self._engine.test(self)

    # For the steps

    def send(
        self,
        dest: int,
        stage: int,
        array: np.ndarray | None = None,
        weight: float = 1.0,
        *,
        confirm: bool = False,
        synchronous: bool = False,
        subject: Subject | None = None,
    ) -> None:
        """Send a flat array (or nothing) to `dest`.

        Parameters
        ----------
        confirm : bool
            Ask for a confirmation.
        synchronous : bool
            Complete when the receiver has taken the message.
        subject : Subject, optional
            That of the array, if it is not that of the operation.
        """
        header = Header(
            DATA,
            self.peer is not None,
            self.number,
            subject=subject or self.subject,
            stage=stage,
            confirm=confirm,
            weight=weight,
            nbytes=0 if array is None else array.nbytes,
        )
        self._leaving += self._engine.messenger.send(dest, header, array, synchronous)

    def expect(self, stage: int, ranks: Iterable[int]) -> None:
        """Make the next `yield` wait for messages of these ranks."""
        self._awaited.update((rank, stage) for rank in ranks if (rank, stage) not in self.received)

    def take(self, rank: int, stage: int, dtype: np.dtype) -> np.ndarray:
        """Return the flat array that a rank sent."""
        return self.received[rank, stage][1].view(dtype)

    def sources(self) -> list[int]:
        """Return the ranks that sent along an edge, ascending."""
        return sorted(rank for rank, stage in self.received if stage == EDGE)

    def barrier(self) -> Steps:
        """Steps that end when every rank has arrived, and when all earlier synchronous sends have
        been received.
        """
        parent, children = self.tree
        yield SENT
        self.expect(UP, children)
        yield ARRIVED
        if parent is not None:
            self.send(parent, UP)
            self.expect(DOWN, [parent])
            yield ARRIVED
        for child in children:
            self.send(child, DOWN)

    # For the engine

    def start(self, steps: Steps) -> None:
        """Begin the steps."""
        self._steps = steps
        self.advance()

    def advance(self) -> None:
        """Execute steps as far as the messages allow; an error ends the operation, and `wait`
        raises it.
        """
        if self._running:  # a poll within the steps
            return
        self._running = True
        try:
            while not self.done and not self._awaited and testall(self._arriving):
                if (self._flush or self._steps is None) and not testall(self._leaving):
                    return
                if self._steps is None:
                    self._end()
                    return
                try:
                    self._flush = next(self._steps)
                except StopIteration as stop:
                    self.result, self._steps = stop.value, None
        except Exception as error:
            self.fail(error)
        except (
            BaseException
        ) as error:  # Ctrl-C: the steps have ended, and the result is not complete
            self._engine.interrupt(str(self), error)
            if not self.done:
                self.fail(error)
            raise
        finally:
            self._running = False

    def accept(self, source: int, header: Header, data: np.ndarray) -> None:
        """Take a message, whose array may still have to arrive in `data`."""
        self.received[source, header.stage] = header, data
        self._awaited.discard((source, header.stage))
        if header.tag:
            self._arriving += self._engine.messenger.receive(source, header, data)
        if header.confirm:
            self.send(source, CONFIRMATION)

    def waits_for(self, rank: int) -> bool:
        """Return whether something of a rank may still arrive."""
        return any(
            place[0] == rank and place not in self.received
            for place in self.senders | self._awaited
        )

    def missing(self) -> list[int]:
        """Return the ranks that the operation waits for now."""
        return sorted({rank for rank, _ in self._awaited} or self.receivers)

    def ask(self) -> None:
        """Ask the ranks that it waits for, once for each message."""
        for rank, stage in self._awaited - self._asked:
            pair, before = self.peer is not None, self.before
            query = Header(QUERY, pair, self.number, self.subject, stage, before=before)
            self._engine.messenger.send(rank, query)
        self._asked |= self._awaited

    def fail(self, error: BaseException, concerned: Iterable[int] = ()) -> None:
        """Give up, and notify the ranks that may wait for this one."""
        self.text = (
            str(error)
            if isinstance(error, RankMismatchError)
            else gave_up(self._engine.rank, str(self), f"{type(error).__name__}: {error}")
        )
        self.error = error if isinstance(error, Exception) else RuntimeError(self.text)
        failed = Header(
            FAILED,
            self.peer is not None,
            self.number,
            self.subject,
            text=self.text,
            out_of_step=bool(self._engine.broken),
        )
        for rank in sorted(self.receivers | {rank for rank, _ in self.senders} | set(concerned)):
            self._engine.messenger.send(rank, failed)
        self._end()

    def past(self) -> PastOperation:
        """Return its record, at the end."""
        return PastOperation(self.op, self.mode, self.signature, self.receivers, self.text)

    def abandon(self, reason: str) -> None:
        """End without a result: the other ranks are gone."""
        self.error = RuntimeError(f"{self} was not complete when {reason}")
        self._end()

    def _end(self) -> None:
        self.done, self._steps = True, None
        self._engine.messenger.keep(self._leaving + self._arriving)
        self._engine.forget(self)
        self.received, self._arriving, self._leaving, self._awaited = {}, [], [], set()
