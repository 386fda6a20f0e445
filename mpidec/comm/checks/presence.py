"""Which ranks have reached a collective call: the waiting ones notify each other, so that a
time-out names the others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ..runtime import ranks, timeout
from .header import HERE, Header, Subject
from .messenger import Messenger

# Part of the time-out after which a rank tells all others where it waits, so that their reports can
# name the ranks that are missing.
_PART = 0.2
_REMEMBERED = 64  # calls


class Presence:
    """The collective call in which this rank waits, and the ranks known to wait there as well.

    Nothing is sent before a wait has lasted for a fifth of the time-out; a rank that is told, and
    waits in the same call, answers at once.

    Parameters
    ----------
    messenger : Messenger
    """

    def __init__(self, messenger: Messenger):
        self._messenger, self._calls = messenger, 0
        self._come: OrderedDict[str, set[int]] = OrderedDict()
        # Whom, of the calls in which this rank waits.
        self._told: dict[str, set[int]] = {}

    def waiting(
        self, op: str, doing: str, ask: Callable[[], None] | None, numbered: bool = False
    ) -> tuple[Callable[[], str], Callable[[], None]]:
        """Return what a wait for all ranks, in their next call `op` (or in one that is `numbered`
        in this text), says at its time-out, and asks meanwhile.
        """
        self._calls += not numbered
        call = op if numbered else f"{op} #{self._calls}"
        began = time.monotonic()
        self._told = {call: set()}  # one such wait at a time

        def ask_all() -> None:
            late = time.monotonic() - began > _PART * timeout()
            comm = self._messenger.comm
            self._tell(call, set(range(comm.size)) if late else self._come.get(call, set()))
            if ask is not None:
                ask()

        def words() -> str:
            comm = self._messenger.comm
            known = self._come.get(call, set()) | {comm.rank}
            missing = [rank for rank in range(comm.size) if rank not in known]
            return f"{ranks(missing) if missing else 'all ranks'} {doing}"

        return words, ask_all

    def _tell(self, call: str, some: set[int]) -> None:
        told = self._told.get(call)
        if told is not None:
            for rank in some - told - {self._messenger.comm.rank}:
                self._messenger.send(rank, Header(HERE, False, 0, Subject(""), text=call))
                told.add(rank)

    def receive(self, source: int, call: str) -> None:
        """Record a rank that waits in a call; answer it if this rank waits there, too."""
        self._come.setdefault(call, set()).add(source)
        if len(self._come) > _REMEMBERED:
            self._come.popitem(last=False)
        self._tell(call, {source})
