"""Calls with weights of the ranks of one node, through its memory: each rank publishes its array
and to whom it goes.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np

from ...exceptions import RankMismatchError
from ..checks import lists_disagree, not_expected, not_sent
from ..runtime import GRAIN, Checked, Context, Counts, NodeMemory, empty, shared
from .node_reader import NodeReports, NodeRequest

# Lists of ranks whose readers are kept.
_READERS = 256
_NONE = np.empty(0, np.int32)


class NodeCalls:
    """Sums of the arrays of some ranks, with weights of each call.

    Parameters
    ----------
    context : Context
        Of a network whose ranks are on one node.
    """

    def __init__(self, context: Context):
        self._context, self._memory = context, cast(NodeMemory, context.memory)
        self._readers: OrderedDict[tuple[str, tuple[int, ...]], Any] = OrderedDict()

    def among(
        self,
        op: str,
        weights: Iterable[int] | None,
        sends: Iterable[int] | None,
        note: str,
        checked: Checked,
        fixed: dict[int, float] | None,
    ) -> WeightedSum:
        """Return the sums over the same ranks of arrays of the same shape and dtype.

        Parameters
        ----------
        op : str
            The call in words, the same on all ranks.
        weights : ranks, optional
            Whose arrays are taken; None: those of all that send.
        sends : ranks, optional
            That the array goes to; None: all.
        note : str
            Text of the array, for messages.
        checked : bool or "all"
            Whether the lists of both sides must agree, or those of all ranks.
        fixed : dict, optional
            The `sends` of calls that give none.
        """
        rank, size = self._context.rank, self._context.size
        listed: Iterable[int] = (
            range(size)
            if weights is None or sends is None or checked == "all"
            else {*weights, *sends}
        )
        ranks = tuple(other for other in sorted(listed) if other != rank)
        reader = self._reader(op + ", compared by all ranks" * (checked == "all"), ranks)
        return WeightedSum(
            self._context, reader, op, ranks=ranks, note=note, checked=checked, fixed=fixed
        )

    def compare(self, op: str, sources: Iterable[int], dests: Iterable[int]) -> None:
        """Let all ranks compare the lists of all.

        Raises
        ------
        RankMismatchError
            On all ranks: two of them do not agree.
        """
        takes, sends = dict.fromkeys(sources, 1.0), dict.fromkeys(dests, 1.0)
        self.among(op, takes, sends, "no array", "all", None)(np.empty(0), 0.0, takes, sends)

    def give_up(self, op: str, error: Exception) -> None:
        """Take part in a call without an array, so that the ranks that wait for this one raise,
        too.
        """
        self._memory.complete_overdue()
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
    r"""Sums :math:`out = s x + \sum_j r_j t_j x_j` over the same ranks, in ascending order, of
    arrays of the same shape.

    The arguments of a call are the contiguous array x (float64 or float32 are summed, arrays of
    other dtypes are handed over as they are), `own` s, `weights` :math:`r_j` (None: 1, of all that
    send) and `sends`, the factors on the way to other ranks (None: 1, to all).
    """

    def __init__(
        self,
        context: Context,
        reader: Any,
        op: str,
        ranks: tuple[int, ...],
        note: str,
        checked: Checked,
        fixed: dict[int, float] | None,
    ):
        self._context, self._memory = context, cast(NodeMemory, context.memory)
        self._reader, self._op, self._ranks, self._sends = reader, op, ranks, fixed
        self._checked, self._note = 2 if checked == "all" else int(checked), note
        self._fingerprint = zlib.crc32(note.encode()) << 28 | 1 << 60

    def factors(self, given: Mapping[int, float] | None) -> array[float] | None:
        """Return the factors of the ranks, in their order."""
        return (
            None
            if given is None
            else array("d", [given.get(rank, math.nan) for rank in self._ranks])
        )

    def start(
        self, flat: np.ndarray, own: float, weights: array[float] | None, sends: array[float] | None
    ) -> NodeRequest:
        """Begin one, with weights and sends as `factors` makes them.

        Its result: the sum, or the arrays that were taken, one after the other, as bytes; and the
        ranks whose arrays were taken, ascending, with the factors on their way here.
        """
        sums = flat.dtype.char in "df"
        out = (
            empty(flat.shape, flat.dtype)
            if sums
            else np.empty((len(self._ranks), flat.nbytes), np.uint8)
        )
        flat = flat if sums else flat.view(np.uint8)
        self._memory.complete_overdue()
        seq = self._reader.post_weighted(flat, weights, sends, self._fingerprint, self._note)
        return self._request(seq, flat, out, own, weights, sends)

    def _request(
        self,
        seq: int,
        flat: np.ndarray,
        out: np.ndarray,
        own: float,
        weights: array[float] | None,
        sends: array[float] | None,
    ) -> NodeRequest:
        read = partial(self._read, seq, flat, out, own, weights, sends)
        return NodeRequest(self._memory, self._reader, seq, read)

    def __call__(
        self, x: np.ndarray, own: Any, weights: dict[int, Any] | None, sends: dict[int, Any] | None
    ) -> np.ndarray | None:
        """One of arrays of any shape, of float64 or float32; None, and nothing has happened, if
        a weight is not a finite number.
        """
        if self._memory.under_way:
            self._memory.complete_overdue()
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
            factors = self.factors(weights), self.factors(sends)
            self._request(self._memory.node.seq, x, out, own, *factors)
            raise
        if mismatch is not None:
            if mismatch is False:
                return None
            self._raise(mismatch)
        return out

    def _read(
        self, seq: int, flat: np.ndarray, out: np.ndarray, *factors: Any
    ) -> tuple[np.ndarray, list[tuple[int, float]]]:
        """Take the arrays when all are there.

        Raises
        ------
        RankMismatchError
            If the lists of two ranks do not agree.
        """
        answer: list[Any] = []
        self._reader.read_weighted(
            seq, flat, out, *factors, self._checked, self._fingerprint, answer
        )
        if answer and isinstance(answer[-1], int):
            self._raise(answer[-1])
        return out, [(self._ranks[place], factor) for place, factor in answer]

    def _raise(self, mismatch: int) -> NoReturn:
        if self._checked == 2:
            pair, sends = divmod(mismatch, 2)
            raise lists_disagree(*divmod(pair, self._context.size), bool(sends), self._op)
        place, what = divmod(mismatch, 8)
        me, other = self._context.rank, self._ranks[place]
        text = (
            not_sent(me, other, self._op),
            not_expected(other, me, self._op),
            not_expected(me, other, self._op),
            not_sent(other, me, self._op),
        )[what & 3]
        # The other rank does not list this one, and finds nothing.
        if not what & 4:
            self._context.matching.report(other, text)
        raise RankMismatchError(text)
