"""Calls with weights of the ranks of one node, through its memory: each rank publishes its array and to whom it goes."""

from __future__ import annotations

import math
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from ...exceptions import RankMismatchError
from ..checks.mismatch import not_expected, not_sent
from ..runtime.context import Context
from ..runtime.memory import GRAIN, empty, shared
from ..runtime.node import Counts, NodeMemory
from ..runtime.progress import Request
from .node_reader import NodeReports

_READERS = 256  # lists of ranks whose readers are kept
_NONE = np.empty(0, np.int32)


class NodeCalls:
    """Sums of the arrays of some ranks, with weights of each call.

    Parameters
    ----------
    context : Context
        Of a network whose ranks are on one node.
    """

    def __init__(self, context: Context):
        if context.memory is None or not context.memory.single_node:
            raise ValueError("calls through the memory of the node need all ranks on one node")
        self._context, self._memory = context, context.memory
        self._readers: OrderedDict[tuple[str, tuple[int, ...]], Any] = OrderedDict()

    def among(
        self,
        op: str,
        weights: Iterable[int] | None,
        sends: Iterable[int] | None,
        note: str,
        checked: bool,
        fixed: dict[int, float] | None,
    ) -> WeightedSum:
        """The sums over the same ranks of arrays of the same shape and dtype.

        Parameters
        ----------
        op : str
            The call in words, the same on all ranks.
        weights : ranks, optional
            Whose arrays are taken; None: those of all that send.
        sends : ranks, optional
            That the array goes to; None: all.
        note : str
            The array in words.
        checked : bool
            Whether the lists of both sides must agree.
        fixed : dict, optional
            The `sends` of calls that give none.
        """
        rank, size = self._context.rank, self._context.size
        listed: Iterable[int] = (
            range(size) if weights is None or sends is None else {*weights, *sends}
        )
        ranks = tuple(other for other in sorted(listed) if other != rank)
        return WeightedSum(
            self._reader(op, ranks),
            self._memory,
            op,
            rank,
            ranks,
            note,
            checked,
            fixed,
            self._context.matching.report,
        )

    def give_up(self, op: str, error: Exception) -> None:
        """Take part in a call with nothing, so that the ranks that wait for this one raise, too."""
        for request in self._memory.overdue():
            request.complete()
        self._reader(op, ()).give_up(f"{type(error).__name__}: {error}")

    def _reader(self, op: str, ranks: tuple[int, ...]) -> Any:
        key = op, ranks
        if key not in self._readers:
            if len(self._readers) >= _READERS:
                self._readers.popitem(last=False)
            signature = zlib.crc32(op.encode()) << 24 | 1 << 58
            places = np.searchsorted(self._memory.near, ranks).astype(np.int64)
            report = NodeReports(self._context, op, signature, False)
            self._readers[key] = shared.Reader(
                self._memory.node,
                Counts(),
                report,
                signature,
                0,
                (np.zeros(1, np.int64), _NONE, _NONE, None, None, None, None, places, places),
            )
        return self._readers[key]


class WeightedSum:
    r"""Sums :math:`out = s x + \sum_j r_j t_j x_j` over the same ranks, in ascending order, of arrays of the same shape.

    The arguments of a call are the contiguous array x (float64 or float32 are summed, arrays of other dtypes are handed over as
    they are), `own` s, `weights` :math:`r_j` (None: 1, of all that send) and `sends`, the factors on the way to other ranks
    (None: 1, to all).
    """

    def __init__(
        self,
        reader: Any,
        memory: NodeMemory,
        op: str,
        rank: int,
        ranks: tuple[int, ...],
        note: str,
        checked: bool,
        fixed: dict[int, float] | None,
        tell: Callable[[int, str], None],
    ):
        self._sends = fixed
        self._reader, self._memory, self._op, self._rank, self._ranks = (
            reader,
            memory,
            op,
            rank,
            ranks,
        )
        self._note, self._fingerprint, self._checked, self._tell = (
            note,
            _fingerprint(note),
            checked,
            tell,
        )

    def factors(self, given: Mapping[int, float] | None) -> array[float] | None:
        """The factors of the ranks, in their order."""
        return (
            None
            if given is None
            else array("d", [given.get(rank, math.nan) for rank in self._ranks])
        )

    def start(
        self, flat: np.ndarray, own: float, weights: array[float] | None, sends: array[float] | None
    ) -> NodeCall:
        """Begin one, with weights and sends as `factors` makes them."""
        sums = flat.dtype.char in "df"
        out = (
            empty(flat.shape, flat.dtype)
            if sums
            else np.empty((len(self._ranks), flat.nbytes), np.uint8)
        )
        flat = flat if sums else flat.view(np.uint8)
        for request in self._memory.overdue():
            request.complete()
        seq = self._reader.post_weighted(flat, weights, sends, self._fingerprint, self._note)
        call = NodeCall(
            self,
            seq,
            out,
            (seq, flat, out, own, weights, sends, self._checked, self._fingerprint),
            self._memory,
        )
        self._memory.under_way.append(call)
        return call

    def __call__(
        self, x: np.ndarray, own: Any, weights: dict[int, Any] | None, sends: dict[int, Any] | None
    ) -> np.ndarray | None:
        """One of arrays of any shape, of float64 or float32; None, and nothing has happened, if a weight is not a finite number."""
        if self._memory.under_way:
            for request in self._memory.overdue():
                request.complete()
        out = np.empty_like(x) if x.nbytes < GRAIN else empty(x.shape, x.dtype)
        sends = self._sends if sends is None else sends
        try:
            mismatch = self._reader.sum_weighted(
                x,
                out,
                own,
                weights,
                sends,
                self._ranks,
                self._checked,
                self._fingerprint,
                self._note,
            )
        except Exception:
            raise
        except BaseException:  # the other ranks may still wait for this one to read
            r, t, seq = self.factors(weights), self.factors(sends), self._memory.node.seq
            call = NodeCall(
                self,
                seq,
                out,
                (seq, x, out, own, r, t, self._checked, self._fingerprint),
                self._memory,
            )
            self._memory.under_way.append(call)
            raise
        if mismatch is not None:
            if mismatch is False:
                return None
            self._raise(mismatch)
        return out

    def read(self, arguments: tuple[Any, ...]) -> list[tuple[int, float]]:
        """Take the arrays when all are there: the ranks whose arrays were taken, and their factors.

        Raises
        ------
        RankMismatchError
            If the lists of two ranks do not agree.
        """
        answer: list[Any] = []
        self._reader.read_weighted(*arguments, answer)
        if answer and isinstance(answer[-1], int):
            self._raise(answer[-1])
        return [(self._ranks[place], factor) for place, factor in answer]

    def ready(self, seq: int) -> bool:
        """Whether all arrays are there."""
        return bool(self._reader.ready(seq))

    def _raise(self, mismatch: int) -> NoReturn:
        place, what = divmod(mismatch, 8)
        me, other = self._rank, self._ranks[place]
        text = (
            not_sent(me, other, self._op),
            not_expected(other, me, self._op),
            not_expected(me, other, self._op),
            not_sent(other, me, self._op),
        )[what & 3]
        if not what & 4:  # the other rank does not list this one, and finds nothing
            self._tell(other, text)
        raise RankMismatchError(text)


class NodeCall(Request):
    """A call under way.

    Attributes
    ----------
    out : array
        The sum; or the arrays that were taken, one after the other, as bytes.
    taken : list of (rank, factor)
        The ranks whose arrays were taken, ascending, and the factors on their way here.
    """

    def __init__(
        self,
        sums: WeightedSum,
        seq: int,
        out: np.ndarray,
        arguments: tuple[Any, ...],
        memory: NodeMemory,
    ):
        self.seq, self.out = seq, out
        self.taken: list[tuple[int, float]] = []
        self._sums, self._arguments, self._memory = sums, arguments, memory
        self._ended = self._reading = False
        self._error: Exception | None = None

    def test(self) -> bool:
        """Take the arrays if all are there; whether `wait` would return, or raise, at once."""
        if not self._ended and not self._reading and self._sums.ready(self.seq):
            self.complete()
        return self._ended

    def complete(self) -> None:
        """Take the arrays when all are there."""
        if self._ended or self._reading:
            return
        self._reading = True
        try:
            self.taken = self._sums.read(self._arguments)
        except Exception as error:  # for the wait for this call
            self._error = error
        finally:
            self._reading = False
        self._ended = True
        if self in self._memory.under_way:
            self._memory.under_way.remove(self)

    def wait(self) -> None:
        """Return when the sum is there, and the array may be changed."""
        with self._memory.engine:
            self.complete()
        if self._error is not None:
            raise self._error


def _fingerprint(note: str) -> int:
    return zlib.crc32(note.encode()) << 28 | 1 << 60
