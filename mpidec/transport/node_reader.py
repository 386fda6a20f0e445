"""What one rank reads in the memory of its node in one phase, and how it waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..checks.mismatch import Disagreement
from .plan import Plan
from ..runtime.node import Stack, shared
from ..runtime.waiting import Exchange, Patience

_NOTHING = np.empty((0, 0))
_ALL = 0xFFFFFFFFFFFFFFFF
_BRIEFLY = 0.1                                      # seconds
IN_FLIGHT = 56                                      # mixings under way at a time, less than the slots of a header


class Setting(NamedTuple):
    """What a phase tells its links.

    `ask(rank, seq, where)` asks another rank whether it will come to mixing `seq`; `where` is what is done, in words.
    """

    stack: Stack
    where: str
    counts: Any
    ask: Callable[[int, int, str], None]


class Links:
    """The rows that one rank reads on its node: summed up, or copied as they are.

    Parameters
    ----------
    setting : Setting
    near : Plan
        The phase, with the places of the near ranks' rows.
    mark : int
        What is mixed; the same on all ranks that do the same.
    source, row : array of int
        Of each term (or row that is copied): 0 for an own row, 1... for one of the ranks `near.ins`, the next number for a row
        of the halo; and which row there.
    terms : Weights, optional
        The weights of the terms.

    Attributes
    ----------
    mix : callable
        `mix(X, out)` is a whole mixing of an array (m, d) of float64 or float32 in C order; None (and nothing has happened) for
        any other arrays.
    """

    def __init__(self, setting: Setting, near: Plan, mark: int, source: np.ndarray, row: np.ndarray, terms: Any = None):
        self._setting, self._node, self._mark, self._floats = setting, setting.stack.node, mark & _ALL, terms is not None
        indptr, weights = np.arange(len(row) + 1, dtype=np.int64), (None,) * 4
        if terms is not None:
            narrow = terms.astype(np.dtype(np.float32))
            indptr, weights = terms.indptr, (terms.w, terms.v, narrow.w, narrow.v)
        ranks = setting.stack.near
        self.mix = self.reader = shared.Reader(
            self._node, setting.counts, self.settle, self._mark, near.edges,
            (indptr, source.astype(np.int32), row.astype(np.int32), *weights, np.searchsorted(ranks, near.ins),
             np.searchsorted(ranks, near.outs)))

    @classmethod
    def sums(cls, setting: Setting, near: Plan) -> Links:
        """The sums of a mixing."""
        return cls(setting, near, near.topology.fingerprint(), *near.sources(), near.terms)

    @classmethod
    def halo(cls, setting: Setting, near: Plan, whole: Plan) -> Links:
        """The rows of the agents `whole.halo`, all of which live on the node."""
        owner = near.partition.owner(whole.halo)
        first = np.array([near.partition.bounds(rank)[0] for rank in near.ins.tolist()], np.int64)
        source = np.searchsorted(near.ins, owner)
        return cls(setting, near, near.topology.fingerprint() ^ 1 << 62, source + 1, whole.halo - first[source])

    @classmethod
    def edges(cls, setting: Setting, near: Plan, whole: Plan) -> Links:
        """A row for each edge into the local agents, from the rows for the edges out of other agents."""
        source, row = whole.edge_places(near.ins)
        return cls(setting, near, near.topology.fingerprint() ^ 1 << 61, source, row)

    def start(self, X: np.ndarray, halo: np.ndarray, out: np.ndarray, exchange: Exchange | None = None, form: int = 0) -> Reading:
        """Publish the rows `X` (m, d), or a copy of them, and begin to mix them.

        Parameters
        ----------
        X, halo, out : array (m, d), (others, d), (m, d)
            C-contiguous, of one dtype: float64 or float32 if they are summed, uint8 if they are copied.
        exchange : Exchange, optional
            What brings the halo from other nodes.
        form : int
            How rows are shaped that are not plain ones of d numbers; the same on all ranks.
        """
        if self._node.flying >= IN_FLIGHT:
            raise RuntimeError(f"{IN_FLIGHT} mixings are under way on this network: wait for some before starting more")
        seq, in_place = self.reader.post(X, X.shape[1], form)
        return Reading(self, self._setting.stack, seq, in_place, X, halo, out, exchange, form)

    def give_up(self) -> None:
        """Take part in a mixing without rows, so that the neighbours do not wait for them."""
        self.reader.give_up()

    def settle(self, answer: int, seq: int, in_place: bool, X: np.ndarray, out: np.ndarray, halo: np.ndarray = _NOTHING,
               form: int = 0) -> np.ndarray:
        """Go on waiting, or say what is wrong."""
        stack, where, _, ask = self._setting
        patience: tuple[int, Patience] | None = None
        while answer:
            what, rank = answer >> 32, answer & 0xFFFFFFFF
            if what in (shared.OTHER_TAG, shared.REFUSED):
                raise Disagreement(stack.quarrel(rank, seq, self._mark, where, self._floats))
            late = what == shared.LATE_POST
            doing = "to begin" if late else "to read the rows of this rank in"
            if patience is None or patience[0] != answer:
                other = int(stack.near[rank])
                patience = answer, Patience(f"rank {other} {doing} mixing {seq} ({where})",
                                            partial(ask, other, seq, where) if late else None)
            patience[1].look()
            for reading in stack.readings:          # whoever waits for those goes on
                reading.test()
            answer = self.reader.read(seq, X, halo, out, X.shape[1], form) if late else self.reader.drained(seq, True)
            if answer == 0 and late and in_place:
                answer = self.reader.drained(seq, True)
        return out


class Reading:
    """A mixing under way in shared memory."""

    def __init__(self, links: Links, stack: Stack, seq: int, in_place: bool, X: np.ndarray, halo: np.ndarray, out: np.ndarray,
                 exchange: Exchange | None, form: int):
        self._links, self._stack, self._seq, self._in_place, self._exchange = links, stack, seq, in_place, exchange
        self._X, self._halo, self._out, self._form = X, halo, out, form
        self._read = self._ended = False
        stack.readings.append(self)

    def test(self) -> bool:
        """Sum up the rows if all are there; whether the mixing has ended."""
        reader = self._links.reader
        if not self._read and (self._exchange is None or self._exchange.test()) and reader.ready(self._seq):
            self._sum()
        if self._read and not self._ended and (not self._in_place or reader.drained(self._seq, False) == 0):
            self._end()
        return self._ended

    def wait(self) -> None:
        """Sum up the rows when all are there, and wait until those of this rank may be changed."""
        if len(self._stack.readings) > 1:           # ranks may wait for several mixings in different orders
            until = time.monotonic() + _BRIEFLY
            while not self.test() and time.monotonic() < until:
                for other in list(self._stack.readings):
                    other.test()
                os.sched_yield()
        if not self._read:
            if self._exchange is not None:
                self._exchange.wait()
            self._sum()
        if not self._ended:
            if self._in_place:
                self._settle(self._links.reader.drained(self._seq, True))
            self._end()

    def _sum(self) -> None:
        self._settle(self._links.reader.read(self._seq, self._X, self._halo, self._out, self._X.shape[1], self._form))
        self._read = True

    def _settle(self, answer: int) -> None:
        if answer:
            try:
                self._links.settle(answer, self._seq, False, self._X, self._out, self._halo, self._form)
            except Disagreement:
                self._end()
                raise

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._stack.node.flying -= 1
            self._stack.readings.remove(self)
