"""Creation and end of a network: resources that all ranks create and free together, also after
errors.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import secrets
import sys
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import Protocol, TypeVar

import numpy as np

from .... import _validation as check
from ....exceptions import RankMismatchError
from ...checks import Matching
from ...kernels import COMPILED
from ...rma import CARRIERS, Ended, Window, WindowMessenger
from ...runtime import (
    MPI,
    Collectives,
    Communicator,
    Context,
    GroupComm,
    NodeMemory,
    Partition,
    ProgressEngine,
    RowTypes,
    abandon,
    abort_when_uncaught,
    check_launcher,
    communicator,
    duplicated,
    finalized,
    job,
    offset,
    refuse_in_child,
    shared,
    warn_if_not_compiled,
)
from ...timeline import Timeline, TimelineFile
from ...transport import Ending

LifecycleT = TypeVar("LifecycleT", bound="Lifecycle")
TRANSPORTS = ("auto", "shared", "neighbor", "p2p")
NATIVE, BLUEFOG = "MPIDEC_TIMELINE", "BLUEFOG_TIMELINE"  # with whose names
# Networks that were left without close().
_LEFT: list[Lifecycle] = []
_LEFT_AT_ONCE = 8
_OPEN: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
_NUMBERS = count()


class Closing(Protocol):
    """Interface of objects that a network closes, such as mixers."""

    closed: bool

    def close(self, ends: Ending) -> None:
        """Free the communicators; collective."""


class Lifecycle:
    """The communicator of a network, the resources on it, and its end; see `Network` for the
    parameters.
    """

    def __init__(
        self,
        n: int | None = None,
        comm: Communicator | None = None,
        *,
        process_group: object = None,
        transport: str | None = None,
        windows: str | None = None,
        timeline: str | None = None,
    ):
        refuse_in_child("Network()")
        given = communicator(comm, process_group)
        if process_group is None and not isinstance(comm, GroupComm):
            check_launcher()
        warn_if_not_compiled(COMPILED and (shared is not None or sys.platform != "linux"))
        if given.size > 1:
            abort_when_uncaught()
        # Compared before the communicator is duplicated: ranks that disagree would hang in it.
        agents, chosen, self.windows, per_node = _agreed(
            given, n, transport, windows, timeline or _prefix()
        )
        self.comm, self._freed = duplicated(given), False
        self._given_timeline = timeline
        # In the headers of all messages, so that none of an earlier network is taken for one of
        # this.
        self.serial = self.comm.bcast(secrets.randbits(48)) if given.size > 1 else 0
        self.partition = Partition(agents, given.size)
        engine = ProgressEngine()
        self.collectives = Collectives(self.comm)
        node = None
        if chosen in ("auto", "shared") and not isinstance(self.comm, GroupComm):
            node = _node_memory(self.comm, engine, per_node)
        self.matching = matching = Matching(
            self.comm,
            self.serial,
            lambda: 0 if node is None else node.node.seq,
            engine,
            lambda: None if node is None else node.refusal(),
        )
        engine.add(matching.poll)
        self.collectives.ask = matching.look_for_leavers
        self.collectives.waiting = matching.presence.waiting
        self.collectives.on_interrupt = engine.interrupt
        self.context = Context(
            self.comm,
            given.rank,
            self.partition,
            engine=engine,
            memory=node,
            matching=matching,
            row_type=RowTypes(self.comm),
            transport=chosen,
            timeline=self._begin_timeline(timeline, node),
            ranks_per_node=per_node,
        )
        self._mixers: list[Closing] = []
        self._windows: list[Window] = []
        self._messengers: dict[str, WindowMessenger] = {}
        self.ended = Ended()
        self.ended.free_kept(self.comm, self.collectives)
        self._number = next(_NUMBERS)
        _OPEN.add(self)

    @property
    def n(self) -> int:
        """The number of all agents."""
        return self.partition.n

    @cached_property
    def lo(self) -> int:
        """The first agent of this rank."""
        return self.partition.bounds(self.rank)[0]

    @cached_property
    def hi(self) -> int:
        """The end of the agents of this rank."""
        return self.partition.bounds(self.rank)[1]

    @cached_property
    def m(self) -> int:
        """The number of agents of this rank."""
        return self.hi - self.lo

    @property
    def rank(self) -> int:
        """This rank."""
        return self.context.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.partition.size

    @property
    def transport(self) -> str:
        """How rows travel between ranks."""
        return self.context.transport

    @property
    def engine(self) -> ProgressEngine:
        """The engine that progresses all communication of this network."""
        return self.context.engine

    @property
    def node(self) -> NodeMemory | None:
        """The memory that ranks of a node share; None where rows only travel in messages."""
        return self.context.memory

    @property
    def single_node(self) -> bool:
        """Whether all rows are in this process, or in the memory of the node."""
        return self.size == 1 or (self.node is not None and self.node.single_node)

    def _begin_timeline(self, prefix: str | None, node: NodeMemory | None) -> Timeline | None:
        """Begin to record a timeline, if requested; collective then."""
        path = prefix or _prefix()
        if not path:
            return None
        file = TimelineFile.of(path, job().rank)
        ranks = self.comm.allgather(job().rank)
        alone = self.comm.size == 1 or (node is not None and node.single_node)
        if not alone and ranks[0] == 0:
            file.synchronize(offset(self.comm))
        enqueued = not prefix and not os.environ.get(NATIVE)
        return Timeline(file, self.serial, ranks, enqueued)

    def close(self) -> None:
        """Free the communicators and datatypes of the network and of its mixers; collective, and
        safe to repeat.
        """
        if self._freed or finalized():
            return
        # By all ranks, which may be in different calls: the next network frees it.
        if self.matching.departures.left:
            self._leave()
            return
        interrupted = self.collectives.interrupted
        with self.engine:
            try:
                error = self.matching.close(interrupted) if self.size > 1 else None
            except RankMismatchError:  # a rank has left: freed as its network
                self._leave()
                raise
            self._end_mixers_and_windows()
            if self.node is not None:
                error = error or self.node.refusal()
                self.node.close()
            self.context.row_type.free()
            # Collectives of MPI may be under way for ever.
            self._freed = True
            if self.matching.out_of_step:
                abandon(self.comm)
            else:
                self.comm.Free()
            self.engine.close()
        if error is not None:
            raise error

    def _end_mixers_and_windows(self) -> None:
        """Complete communication in progress, or abandon it where that is not possible on all
        ranks.
        """
        ends: Ending = "left" if self in _LEFT else "complete"
        if self.matching.broken or self.matching.out_of_step:
            ends = "broken"
        for mixer in list(self._mixers):
            mixer.close(ends)
        self._mixers.clear()
        broken = ends != "complete" or any(post.broken for post in self._messengers.values())
        for window in () if broken else self._windows:
            window.flush()
        # On any rank; by then every rank has read this one's rows.
        lost = self.matching.meet(broken or not self._messengers)
        for window in list(self._windows):
            window._forget()
        if lost:
            self.ended.abandon()
        else:
            self.ended.free(self.collectives)
            self.ended.keep()
        # Made by calls of all ranks: in the same order.
        for post in self._messengers.values():
            post.abandon() if lost else post.close(self.matching.meet)

    def _drop(self, together: Collectives) -> None:
        """Free what can be freed without the communicator, whose ranks may be in different calls;
        collective over another one.
        """
        for mixer in list(self._mixers):
            with contextlib.suppress(Exception):
                mixer.close("broken")
        self._mixers.clear()
        for window in list(self._windows):
            window._forget()
        self.ended.abandon()
        for post in self._messengers.values():
            post.abandon()
        self.engine.close()
        abandon((self.matching, self.comm))
        self._freed = True
        self.context.row_type.free()
        together.minimum(np.zeros(1), "Network()")  # by then no rank looks at this one's rows
        if self.node is not None:
            self.node.close()
        if self.context.timeline is not None:
            self.context.timeline.file.flush()

    def _lose(self) -> None:
        """Begin no more calls, and complete none, since a rank has died."""
        self.engine.close()
        abandon((self.matching, self.comm, *self._mixers, *self._windows))
        for post in self._messengers.values():
            post.abandon()
        self.ended.abandon()
        self._freed = True
        _OPEN.discard(self)
        if self in _LEFT:
            _LEFT.remove(self)

    def _leave(self) -> None:
        """Begin no more calls; the network is freed when the same ranks make the next one."""
        if self not in _LEFT:
            self.matching.leave(self.collectives.interrupted)
            _LEFT.append(self)

    def __enter__(self: LifecycleT) -> LifecycleT:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self.size == 1:
            self.close()
        elif not self._freed:
            # The other ranks may be anywhere: nothing collective now.
            self._leave()

    def __del__(self) -> None:
        open_ = "context" in self.__dict__ and self.size > 1 and not self._freed
        if open_ and not finalized() and not sys.is_finalizing():
            # Never closed: MPI may still write to its memory.
            self._leave()

    def __repr__(self) -> str:
        closed = ", closed" * self._freed
        return (
            f"Network(n={self.n}, rank {self.rank} of {self.size}, agents "
            f"{self.lo}:{self.hi}{closed})"
        )


@contextlib.contextmanager
def lost_networks() -> Iterator[None]:
    """Context in which the living leave out the dead: networks are used no longer, and their
    memory of the node is released at the end, when nobody reads it any more.
    """
    lost = [net for net in {*_OPEN, *_LEFT} if net.size > 1 and not net._freed]
    for net in lost:
        net._lose()
    yield
    for net in lost:
        if net.node is not None:
            net.node.close()


@atexit.register
def _meet_all() -> None:
    """Wait for the other ranks as in `close`, if networks have not been closed, and answer them:
    they may be in one more call.
    """
    for net in sorted({*_OPEN, *_LEFT}, key=lambda net: net._number):
        if net.size > 1 and not net._freed and not finalized():
            with contextlib.suppress(Exception):
                net.matching.close(net.collectives.interrupted)


def _node_memory(
    comm: MPI.Intracomm, engine: ProgressEngine, per_node: int | None
) -> NodeMemory | None:
    """Return the memory of the node, if another rank is there; collective."""
    node = NodeMemory(comm, engine, per_node) if comm.size > 1 else None
    if node is not None and not node.useful:
        node.close()
        return None
    return node


def _prefix() -> str:
    """Return where the environment asks for a timeline, or ""."""
    return os.environ.get(NATIVE) or os.environ.get(BLUEFOG) or ""


def _agreed(
    comm: Communicator, n: object, transport: str | None, windows: str | None, timeline: str
) -> tuple[int, str, str, int | None]:
    """Agents, transports, pretended ranks per node, the same on all ranks; networks that all of
    them have left are freed.

    Raises
    ------
    ValueError
        On every rank, if an argument is wrong on any rank, or differs between ranks.
    """
    together, wanted = Collectives(comm), dict[str, int]()
    error: Exception | None = None
    try:
        wanted = _wanted(comm.size if n is None else n, transport, windows, timeline)
    except ValueError as caught:
        error = caught
    except OSError as caught:
        error = OSError(f"Network: the timeline {timeline}: {caught.strerror}")
    if comm.size > 1:
        together.agree(error, "Network()")
        left = [net for net in _LEFT if net.size == comm.size]
        serials = [
            -net.serial if net.matching.interrupted or net.collectives.interrupted else net.serial
            for net in left[:_LEFT_AT_ONCE]
        ]
        serials += [0] * (_LEFT_AT_ONCE - len(serials))
        mine = np.array([*wanted.values(), *serials], np.int64)
        all_ = together.distinct(mine, "Network()")
        _check_equal(list(wanted), all_)
        _free_left(left, all_[:, len(wanted) :], together)
    elif error is not None:
        raise error
    return (
        wanted["n"],
        TRANSPORTS[wanted["transport"]],
        CARRIERS[wanted["windows"]],
        wanted["MPIDEC_RANKS_PER_NODE"] or None,
    )


def _wanted(n: object, transport: str | None, windows: str | None, timeline: str) -> dict[str, int]:
    """Return the arguments of a network on this rank, checked; of words their places."""
    agents = _whole(n)
    chosen = transport or os.environ.get("MPIDEC_TRANSPORT") or "auto"
    check.choice(chosen, "transport", TRANSPORTS)
    way = windows or os.environ.get("MPIDEC_WINDOWS") or "auto"
    check.choice(way, "windows", CARRIERS)
    per_node = os.environ.get("MPIDEC_RANKS_PER_NODE") or "0"
    if not per_node.isdigit():
        raise ValueError(f"MPIDEC_RANKS_PER_NODE is {per_node!r}, expected a whole number")
    if timeline:
        TimelineFile.of(timeline, job().rank)
    return {
        "n": agents,
        "transport": TRANSPORTS.index(chosen),
        "windows": CARRIERS.index(way),
        "MPIDEC_RANKS_PER_NODE": int(per_node),
        "timeline": bool(timeline),
    }


def _check_equal(names: Sequence[str], all_: np.ndarray) -> None:
    """Refuse arguments that differ between ranks, of which each has a row."""
    words = {
        "transport": TRANSPORTS,
        "windows": CARRIERS,
        "timeline": ("not asked for", "asked for"),
    }
    for what, values in zip(names, all_.T.tolist()):
        other = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
        if other:
            here, there = (
                words[what][value] if what in words else value
                for value in (values[0], values[other])
            )
            raise ValueError(
                f"Network: {what} is {here} on rank 0 and {there} on rank {other}, expected the "
                "same everywhere"
            )


def _free_left(left: Sequence[Lifecycle], serials: np.ndarray, together: Collectives) -> None:
    """Free the networks that all ranks have left; negative are those of calls interrupted there."""
    common = set.intersection(*(set(row.tolist()) for row in abs(serials))) - {0}
    for net in sorted((net for net in left if net.serial in common), key=lambda net: net.serial):
        if -net.serial in serials:
            net._drop(together)
        # A mismatch that was found out after the exception.
        with contextlib.suppress(ValueError):
            net.close()
        _LEFT.remove(net)


def _whole(n: object) -> int:
    try:
        count = operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        count = 0
    if count < 1 or isinstance(n, bool):
        raise ValueError(f"number of agents is {n!r}, expected a whole number >= 1")
    return count
