"""Agreement of all ranks on the collective call that they are in, and on refused arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from ....exceptions import RankMismatchError
from ...checks import PastOperation
from ...runtime import Collectives, CommRequest, Context, Request, checksum, tree

# Characters of a call that ranks tell each other.
_WORDS = 160


class Agreement:
    """Comparisons that all ranks of a network make before a collective operation of MPI.

    Parameters
    ----------
    context : Context
    collectives : Collectives
    """

    def __init__(self, context: Context, collectives: Collectives):
        self.context, self.collectives = context, collectives
        self._agreed: set[tuple[str, str]] = set()
        self.others = range(context.size)
        parent, children = tree(context.rank, context.size)
        self._near = children if parent is None else [parent, *children]

    @contextmanager
    def agreeing(self, op: str) -> Iterator[None]:
        """A context of all ranks: if one refuses its arguments in it, all raise the error of the
        lowest such rank.
        """
        error = None
        try:
            yield
        except (TypeError, ValueError) as caught:
            error = caught
        self.agree(error, op)

    def agree(self, error: Exception | None, op: str) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank."""
        if self.context.size == 1:
            if error is not None:
                raise error
            return
        with self.collectives:
            number, ask = self._asking(op)
            first, _ = self._compare(
                number, op, "", ask, self.context.size if error is None else self.context.rank
            )
            self.collectives.raise_from(first, error, op)

    def same(self, data: bytes, op: str) -> bool:
        """Return whether all ranks, which have come to the same call `op`, have the same data."""
        if self.context.size == 1:
            return True
        with self.collectives:
            number, ask = self._asking(op)
            return self._compare(number, op, "", ask, self.context.size, checksum(data))[1]

    def operation(
        self, op: str, signature: str = ""
    ) -> Callable[[Callable[[], CommRequest]], None]:
        """Begin a call of all ranks, of the same signature on all; the function that completes its
        requests.
        """
        number, ask = self._asking(op, signature)
        if self.context.matching.check:
            self._compare(number, op, signature, ask, self.context.size)
        return partial(self.collectives.wait, what=op, ask=ask)

    def messages(self, op: str, signature: str = "") -> Callable[[Request], None]:
        """Begin a call of all ranks whose messages meet no others, after they have agreed on its
        signature once; the function that waits for its requests.
        """
        if signature and self.context.matching.check and (op, signature) not in self._agreed:
            ask = self.reached(op, signature)
            self._agreed.add((op, signature))
        else:
            _, ask = self._asking(op, signature)
        return lambda request: self.collectives.complete(request.test, op, ask)

    def reached(self, op: str, signature: str = "") -> Callable[[], None]:
        """Wait until all ranks have come to the same call; what its further waits ask, or they
        would ask about the call before it, which all have made.
        """
        with self.context.engine:
            number, before = self.context.matching.agree(op, signature), self.context.mixings
            return self._asks(number, op, signature, before)

    def _asking(self, op: str, signature: str = "") -> tuple[int, Callable[[], None]]:
        with self.context.engine:
            before = self.context.mixings
            number = self.context.matching.register(
                PastOperation(op, "", signature, self.others, "")
            )
        return number, self._asks(number, op, signature, before)

    def _asks(self, number: int, op: str, signature: str, before: int) -> Callable[[], None]:
        ask = partial(self.context.matching.ask, self._near, number, op, signature, before)
        # Also of waits that this call consists of, and of those after it.
        self.collectives.ask = ask
        return ask

    def _compare(
        self,
        number: int,
        op: str,
        signature: str,
        ask: Callable[[], None],
        first: int,
        data: int = 0,
    ) -> tuple[int, bool]:
        """Return the least `first` of all ranks, and whether `data` is the same on all, when all
        have come to the same call of all ranks.

        Different collectives of MPI meet without a word, and return wrong numbers.

        Raises
        ------
        RankMismatchError
            On every rank: some are in another call.
        """
        words = f"{op} call {number}{f' ({signature})' if signature else ''}"
        mine = np.array([first, data, number, zlib.crc32(words.encode())])
        least, most = np.split(self.collectives.minimum(np.concatenate([mine, ~mine]), op, ask), 2)
        same = least == ~most
        if not same[2:].all():
            all_ = self.collectives.gather_all(
                np.array(words[:_WORDS].encode(), f"S{_WORDS}").reshape(1).view(np.uint8), op
            )
            texts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in all_]
            texts = [
                text if text.isascii() and text.isprintable() else "another call" for text in texts
            ]
            other = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise RankMismatchError(
                f"rank 0 is in {texts[0]}, rank {other} in {texts[other]}: every rank must make "
                "the same calls in "
                "the same order"
            )
        return int(least[0]), bool(same[1])
