"""Calls with weights of the ranks of one node, through its memory: each rank publishes its array and to whom it goes."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..checks.mismatch import Disagreement, not_expected, not_sent
from ..runtime.context import Context
from ..runtime.memory import empty, shared
from ..runtime.node import Counts, NodeMemory
from ..runtime.progress import Request
from .node_reader import NodeReports

_READERS = 256                                      # lists of ranks whose readers are kept
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

    def start(self, op: str, flat: np.ndarray, own: float, weights: Mapping[int, float] | None, sends: Mapping[int, float] | None,
              note: str, checked: bool) -> NodeCall:
        r"""Begin :math:`out = s x + \sum_j r_j t_j x_j`, in ascending order of the ranks.

        Parameters
        ----------
        op : str
            The call in words, the same on all ranks.
        flat : array (d,)
            Contiguous; float64 or float32 are summed, arrays of other dtypes are handed over as they are.
        own : float
            :math:`s`
        weights : dict, optional
            :math:`r_j` of the ranks whose arrays are taken; None: of all that send, 1.
        sends : dict, optional
            The factors on the way to the ranks that the array goes to; None: to all, 1.
        note : str
            The array in words.
        checked : bool
            Whether the lists of both sides must agree.
        """
        rank, size = self._context.rank, self._context.size
        listed: Iterable[int] = range(size) if weights is None or sends is None else {*weights, *sends}
        ranks = tuple(other for other in sorted(listed) if other != rank)
        reader = self._reader(op, ranks)
        sums = flat.dtype.char in "df"
        out = empty(flat.shape, flat.dtype) if sums else np.empty((len(ranks), flat.nbytes), np.uint8)
        flat = flat if sums else flat.view(np.uint8)
        for request in self._memory.overdue():
            request.complete()
        seq = reader.post_weighted(flat, _factors(weights, ranks), _factors(sends, ranks), _fingerprint(note), note)
        call = NodeCall(reader, self._memory, seq, op, rank, ranks, flat, out, own, weights, sends, note, checked,
                        self._context.matching.report)
        self._memory.under_way.append(call)
        return call

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
            self._readers[key] = shared.Reader(self._memory.node, Counts(), report, signature, 0,
                                               (np.zeros(1, np.int64), _NONE, _NONE, None, None, None, None, places, places))
        return self._readers[key]


class NodeCall(Request):
    """A call under way.

    Attributes
    ----------
    out : array
        The sum; or the arrays that were taken, one after the other, as bytes.
    taken : list of (rank, factor)
        The ranks whose arrays were taken, ascending, and the factors on their way here.
    """

    def __init__(self, reader: Any, memory: NodeMemory, seq: int, op: str, rank: int, ranks: tuple[int, ...], flat: np.ndarray,
                 out: np.ndarray, own: float, weights: Mapping[int, float] | None, sends: Mapping[int, float] | None, note: str,
                 checked: bool, tell: Callable[[int, str], None]):
        self.seq, self.out = seq, out
        self.taken: list[tuple[int, float]] = []
        self._reader, self._memory, self._op, self._rank, self._ranks, self._tell = reader, memory, op, rank, ranks, tell
        self._arguments = seq, flat, out, own, _factors(weights, ranks), _factors(sends, ranks), checked, _fingerprint(note)
        self._ended = self._reading = False
        self._error: Exception | None = None

    def test(self) -> bool:
        """Take the arrays if all are there; whether `wait` would return, or raise, at once."""
        if not self._ended and not self._reading and self._reader.ready(self.seq):
            self.complete()
        return self._ended

    def complete(self) -> None:
        """Take the arrays when all are there."""
        if self._ended or self._reading:
            return
        self._reading = True
        try:
            self._take(self._reader.read_weighted(*self._arguments))
        except Exception as error:                  # for the wait for this call
            self._error = error
        finally:
            self._reading = False
        self._ended = True
        if self in self._memory.under_way:
            self._memory.under_way.remove(self)

    def wait(self) -> None:
        """Return when the sum is there, and the array may be changed."""
        self.complete()
        if self._error is not None:
            raise self._error

    def _take(self, answer: Any) -> None:
        if not isinstance(answer, int):
            self.taken = [(self._ranks[place], factor) for place, factor in answer]
            return
        other, what = self._ranks[answer // 4], answer % 4
        text = (not_sent(self._rank, other, self._op), not_expected(other, self._rank, self._op),
                not_expected(self._rank, other, self._op), not_sent(other, self._rank, self._op))[what]
        self._tell(other, text)
        raise Disagreement(text)


def _factors(given: Mapping[int, float] | None, ranks: tuple[int, ...]) -> np.ndarray | None:
    return None if given is None else np.array([given.get(rank, np.nan) for rank in ranks], np.float64)


def _fingerprint(note: str) -> int:
    return zlib.crc32(note.encode()) << 28 | 1 << 60
