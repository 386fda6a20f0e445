"""How a network ends on one rank: by an exception that reaches all ranks, or by a common close."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from ...exceptions import RankMismatchError, from_another_rank, mark
from ..runtime import portable, tree, wait_until, wake_waits
from .header import DOWN, LAST, LAST_QUERY, LEFT, UP, Header, Subject
from .messenger import Messenger
from .mismatch import not_closed
from .presence import Presence


class LeavingRanks:
    """Ranks that have left all others with an exception, outside of any common call.

    Attributes
    ----------
    left : bool
        Whether this one has.
    ranks : set of int
        The others that have.
    error : Exception or None
        With which the first of them has left, to be raised here.
    """

    def __init__(self, messenger: Messenger):
        self._messenger, self.left = messenger, False
        self.ranks: set[int] = set()
        self.error: Exception | None = None

    def leave(self, error: Exception) -> None:
        """Leave all other ranks, which raise `error` in their waits: rank 0 tells them, along the
        tree of all ranks.
        """
        self.left, rank = True, self._messenger.comm.rank
        if rank == 0 or not from_another_rank(error):
            text = pickle.dumps(portable(error)).decode("latin-1")
            if rank == 0:
                self._tell(text)
            else:
                self._send(0, UP, text)

    def receive(self, source: int, stage: int, text: str) -> None:
        """Have every wait of this rank raise the exception with which another rank has left, and
        pass on that of rank 0, which comes `DOWN` the tree.
        """
        if not self.ranks:
            self.error = pickle.loads(text.encode("latin-1"))
            mark(self.error, from_another_rank=True)
            wake_waits()
        if stage == DOWN:
            self._tell(text)
        self.ranks.add(0 if stage == DOWN else source)

    def _tell(self, text: str) -> None:
        comm = self._messenger.comm
        for child in reversed(tree(comm.rank, comm.size)[1]):  # that of the most ranks first
            self._send(child, DOWN, text)

    def _send(self, rank: int, stage: int, text: str) -> None:
        self._messenger.send(rank, Header(LEFT, False, 0, Subject(""), stage, text=text))

    def raise_error(self) -> None:
        """Raise that exception once, unless this rank has left, too."""
        if self.error is not None and not self.left:
            error, self.error = self.error, None
            raise error


class Meetings:
    """Meetings of all ranks that close a network.

    By messages over the tree of all ranks, since collectives of MPI match only if no rank has left
    out one.

    Attributes
    ----------
    closing : bool
        Whether this rank begins no more operations.
    out_of_step : bool
        Whether a rank may be one operation ahead of or behind the others: this one, or, after the
        last meeting, any.
    """

    def __init__(self, messenger: Messenger, presence: Presence):
        self._messenger, self._presence, self._number = messenger, presence, 0
        self.closing = self.out_of_step = self._meets = False
        self._left = False  # without closing, for now
        self._absent = dict[int, str]()  # ranks that do not come, since they have left
        self._met: dict[tuple[int, int], Header] = {}  # by rank and meeting: what has come

    def leave(self, out_of_step: bool) -> None:
        """Begin no more operations."""
        self.closing, self.out_of_step = True, out_of_step

    def stay_away(self) -> None:
        """Tell ranks that ask that this one has left without closing, until it closes after all."""
        self._left = True

    def answer(self, source: int, header: Header) -> None:
        """Tell a rank that waits for this one that it has left; or take that answer."""
        rank = self._messenger.comm.rank
        if header.text and header.number == self._number:
            self._absent[source] = header.text
        elif not header.text and self._left and not self._meets:
            text = not_closed(source, rank)
            self._messenger.send(source, header._replace(text=text))

    def receive(self, source: int, header: Header) -> None:
        """Record that a rank has arrived."""
        self._met[source, header.number] = header

    def meet(
        self, out_of_step: bool, count: int, idle: Callable[[], bool], ask: Callable[[], None]
    ) -> bool:
        """Wait until all ranks have arrived, and have received everything that this rank sent;
        return whether any is `out_of_step` (was interrupted), or has begun another `count` of
        operations.

        Raises
        ------
        RankMismatchError
            A rank for which this one waits has left the network without closing it.
        """
        self._number = number = self._number + 1
        self._meets = True
        parent, children = tree(self._messenger.comm.rank, self._messenger.comm.size)

        words, asking = self._presence.waiting("close", "to close the network", ask)

        def send(some: list[int]) -> None:
            mine = Header(LAST, False, number, Subject(""), before=count, out_of_step=out_of_step)
            for rank in some:
                self._messenger.send(rank, mine)

        def receive(some: list[int]) -> bool:
            keys = [(rank, number) for rank in some]

            def missing() -> list[int]:
                return [rank for rank, _ in keys if (rank, number) not in self._met]

            def ask_them() -> None:
                # those that have left as well will close together
                for rank in [] if self._left else missing():
                    self._messenger.send(rank, Header(LAST_QUERY, False, number, Subject("")))
                asking()

            def absent() -> list[str]:
                return [self._absent[rank] for rank in missing() if rank in self._absent]

            wait_until(lambda: idle() and (bool(absent()) or not missing()), words, ask_them)
            if texts := absent():
                self._number, self._meets = number - 1, False
                self._absent.clear()
                raise RankMismatchError(texts[0])
            return any(self._met[key].out_of_step or self._met[key].before != count for key in keys)

        out_of_step |= receive(children)
        if parent is not None:
            send([parent])
            out_of_step |= receive([parent])
        send(children)
        wait_until(idle, "the last messages of the network")
        return out_of_step
