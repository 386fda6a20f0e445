"""The timeline of one network on one rank: calls have numbers, by which those of different ranks
are matched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import count
from typing import ParamSpec, TypeVar

from .file import TimelineFile, clock

P = ParamSpec("P")
R = TypeVar("R")


def native(op: str) -> tuple[str, str]:
    """Return the names of an event that begins a call, and of one that takes part in it."""
    return f"start {op}", op


def bluefog(op: str) -> tuple[str, str]:
    """Return the same as BlueFog names them.

    Examples
    --------
    >>> bluefog("neighbor_allreduce")
    ('ENQUEUE_NEIGHBOR_ALLREDUCE', 'MPI_NEIGHBOR_ALLREDUCE')
    """
    name = op.replace(" ", "_").upper()
    return f"ENQUEUE_{name}", f"MPI_{name}"


class Timeline:
    """Recorder of the calls of a network and its objects; `None` in its place if no timeline is
    requested.

    Parameters
    ----------
    file : TimelineFile
    net : int
        The number of the network, the same on all of its ranks.
    ranks : list of int
        The rank among all processes of each rank of the network.
    enqueued : bool
        Whether events have BlueFog's names, one at the beginning of each call.
    """

    def __init__(self, file: TimelineFile, net: int, ranks: Sequence[int], enqueued: bool = False):
        self.file, self._net, self._ranks = file, net % 10**9, list(ranks)
        self._enqueued = enqueued
        self._names = bluefog if enqueued else native
        self._numbers: dict[str, count[int]] = defaultdict(lambda: count(1))
        # 1 in a call, whose parts are no calls of their own.
        self._busy = bytearray(1)
        self._kind = lru_cache(4096)(self._make_kind)

    def _make_kind(self, op: str, role: str, key: str, near: tuple[int, ...] | None) -> bytes:
        start, name = self._names(op)
        title = {"start": start, "wait": name if self._enqueued else f"wait {op}"}.get(role, name)
        ranks = None if near is None else [self._ranks[rank] for rank in near]
        if ranks is None and len(self._ranks) == 1:
            ranks = []
        about = {"key": key} if key != title else {}  # each byte costs time
        about |= {"role": role} if role != "call" else {}
        return self.file.kind(title, "communication", True, net=self._net, waits=ranks, **about)

    def call(
        self,
        op: str,
        near: Sequence[int] | None,
        pair: str,
        function: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function, and record how long it takes.

        Parameters
        ----------
        op : str
        near : sequence of int or None
            The ranks that the call waits for; None: all.
        pair : str
            Who takes part, if not all ranks do.
        """
        if self._busy[0]:
            return function(*args, **kwargs)
        number = self._next(op + pair)
        self._busy[0], begin = 1, clock()
        try:
            return function(*args, **kwargs)
        finally:
            self._busy[0] = 0
            self.add(op, "call", op + pair, near, begin, number)

    def start(
        self,
        op: str,
        near: Sequence[int] | None,
        pair: str,
        function: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[R, Callable[[int], None] | None]:
        """Begin a call; its handle, and what writes down a wait for it that began then, or None
        within another call.
        """
        if self._busy[0]:
            return function(*args, **kwargs), None
        number = self._next(op + pair)
        self._busy[0], begin = 1, clock()
        try:
            handle = function(*args, **kwargs)
        finally:
            self._busy[0] = 0
            self.add(op, "start", op + pair, near, begin, number)
        return handle, lambda begin: self.add(op, "wait", op + pair, near, begin, number)

    def _next(self, key: str) -> int:
        return next(self._numbers[key])

    def add(
        self, op: str, role: str, key: str, near: Sequence[int] | None, begin: int, number: int
    ) -> None:
        """One event of a call of several ranks."""
        around = None if near is None else tuple(near)
        if self._enqueued and role == "call":
            self.file.add(self._kind(op, "start", key, around), begin, begin, number)
        self.file.add(self._kind(op, role, key, around), begin, clock(), number)

    def timed(
        self, op: str, near: Sequence[int], function: Callable[P, R | None]
    ) -> Callable[P, R | None]:
        """Return a function of `op` that returns None where it has done nothing: as `call`, for
        short ones.
        """
        around = tuple(near)
        return self.file.log.timed(
            function,
            self._kind(op, "start", op, around) if self._enqueued else None,
            self._kind(op, "call", op, around),
            self._numbers[op],
            self._busy,
        )

    def names(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Ranks of the network, as they are numbered among all processes."""
        return tuple(self._ranks[rank] for rank in ranks)

    def alone(self, name: str, begin: int, /, **args: object) -> None:
        """An event of this rank alone that began at `begin`."""
        self.file.add(
            self.file.kind(self._names(name)[1], "communication", net=self._net, **args),
            begin,
            clock(),
        )

    def computing(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function whose calls are events of this rank alone."""
        kind = self.file.kind(name, "computation")

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            begin = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.file.add(kind, begin, clock())

        return timed
