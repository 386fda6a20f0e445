"""Memory layout of a window: one block on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import flat_dtype
from . import records


@dataclass(frozen=True)
class BlockLayout:
    """Offsets in each block: the area of one-sided calls, the mutex, control words, 16-bit rows,
    records, mailboxes.

    The records are those of the values of the rank's agents, of a buffer, and of the slots.

    Attributes
    ----------
    ranks, most : int
        The number of ranks; the most agents of one of them.
    count, dtype : int, numpy.dtype
        Of a row.
    half : str
        The format of 16-bit numbers beside the values, if there are any.
    front, mailbox : int
        Bytes of what one-sided calls need, and of a mailbox; 0 if there are none.
    """

    ranks: int
    most: int
    count: int
    dtype: np.dtype
    half: str
    front: int
    mailbox: int

    @cached_property
    def step(self) -> int:
        """Bytes of a record."""
        return records.stride(self.count, self.dtype)

    @cached_property
    def _words(self) -> int:
        mutex = records.HEADER + -(-8 * self.ranks // records.ALIGNED) * records.ALIGNED
        return self.front + mutex

    @cached_property
    def _halves(self) -> int:
        return self._words + records.ALIGNED * (1 + self.most)

    @cached_property
    def _width(self) -> int:
        """Bytes of a 16-bit row."""
        return -(-2 * self.count // records.ALIGNED) * records.ALIGNED if self.half else 0

    @cached_property
    def _values(self) -> int:
        return self._halves + self._width * self.most

    def size(self, agents: int, slots: int) -> int:
        """Bytes of the block of a rank with so many agents and slots."""
        return self.mailbox_at(agents, slots, slots)

    def mailbox_at(self, agents: int, slots: int, k: int) -> int:
        """Return the offset of the k-th mailbox of a rank with so many agents and slots."""
        return self._values + self.step * (agents + 1 + slots) + self.mailbox * k

    def record_at(self, k: int) -> int:
        """Return the offset of the k-th record."""
        return self._values + self.step * k

    def shown_at(self, k: int) -> int:
        """Return the offset of the k-th 16-bit row."""
        return self._halves + self._width * k

    def mutex(self, block: np.ndarray) -> np.ndarray:
        """Return the mutex of the rank."""
        return block[self.front : self._words]

    def control_words(self, block: np.ndarray) -> np.ndarray:
        """8 words of the rank and of each agent, shape (1 + agents, 8)."""
        return block[self._words : self._halves].view(np.uint64).reshape(-1, 8)

    def shown(self, block: np.ndarray) -> np.ndarray:
        """Return the 16-bit rows of the agents."""
        rows = block[self._halves : self._values].reshape(self.most, -1)
        return rows[:, : 2 * self.count].view(flat_dtype(self.half))

    def records(self, block: np.ndarray) -> np.ndarray:
        """Return the records, shape (agents + 1 + slots or more, bytes)."""
        stop = self._values + (len(block) - self._values) // self.step * self.step
        return block[self._values : stop].reshape(-1, self.step)

    def rows(self, some: np.ndarray) -> np.ndarray:
        """Return the rows of some records."""
        stop = records.HEADER + self.count * self.dtype.itemsize
        return some[:, records.HEADER : stop].view(self.dtype)
