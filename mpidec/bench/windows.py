"""The group windows: transfers and mutexes, against those of MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..comm.rma import CARRIERS, Window
from ..comm.runtime import MPI
from .cells import Cell, Contender
from .report import (
    HAND,
    Group,
)


@dataclass(frozen=True, eq=False)
class Transfer(Contender):
    """A transfer to or from the slots of neighbours.

    Attributes
    ----------
    slots : callable, optional
        The sum of the local agents' slots, once all ranks have made their calls.
    """

    slots: Callable[[], np.ndarray] | None = None


class WindowsCell(Cell):
    """Transfers through windows and through MPI's own, and mutexes."""

    group = Group(
        "windows: transfers with all neighbours, and mutexes, against MPI's own on memory of "
        "Win.Allocate",
        ("times_hand",),
    )
    sizes = "8,64K,1M"

    @classmethod
    def arrays(cls, ranks: int, transports: int) -> int:
        return 50 + 16 * ranks

    def _contenders(self) -> Iterator[Contender]:
        me, n, window = self.rows.lo, self.n, self._window("auto")
        into, out = window.in_neighbors, window.out_neighbors
        sums = [self.phases[0].W.toarray().astype(bool) * (1 - np.eye(n)) @ self.rows.start]
        share = 1 / (len(out) + 1)
        calls: dict[str, Callable[[], Any]] = {
            "put": partial(window.put, self.x[0]),
            "accumulate": partial(window.accumulate, self.x[0]),
            "get": window.get,
        }

        def push_sum() -> None:
            window.accumulate(window.value, share, weights)
            window.collect()

        weights = dict.fromkeys(out, share)
        raw, slots = self._raw(max(self.comm.allgather(len(into))))
        places = [self._place(j) for j in out]
        for name, call in calls.items():
            yield Transfer(
                f"{name}, Window", [call], sums, task=name, slots=partial(self._collected, window)
            )
            yield Transfer(
                f"{name}, Win.Allocate",
                [self._by_mpi(name, raw, slots, into, out, places)],
                sums,
                task=name,
                role=HAND,
                slots=partial(self._emptied, slots[1:]),
            )
        yield Transfer("push-sum, Window", [push_sum], [], task="push-sum")
        for carrier in CARRIERS if n > 1 else CARRIERS[:1]:
            each = window if carrier == "auto" else self._carried(carrier)
            if each is not None:
                pair = partial(self._put_and_update, each)
                yield Transfer(f"put + update, {carrier}", [pair], [], task="put + update")
        for name, ranks in (("mutex", [(me + 1) % n]), ("mutex, contended", [0])):
            yield Transfer(f"{name}, Window", [partial(self._mutex, window, ranks)], [], task=name)
            yield Transfer(
                f"{name}, Win.Lock",
                [partial(self._lock, self._locks(), ranks[0])],
                [],
                task=name,
                role=HAND,
            )

    def _window(self, carrier: str) -> Window:
        net = self._network()
        return self._stack.enter_context(
            net.window(self.x[0], self.phases[0], transport=carrier, progress=carrier == "auto")
        )

    def _carried(self, carrier: str) -> Window | None:
        """Return a window by this carrier, if it is possible here: the same on all ranks."""
        try:
            return self._window(carrier)
        except (ValueError, RuntimeError):
            return None

    def _put_and_update(self, window: Window) -> None:
        window.put(window.value)
        window.update()

    def check(self, each: Contender) -> None:
        if not isinstance(each, Transfer) or each.slots is None:
            return
        self.comm.Barrier()
        each.calls[0]()
        self.comm.Barrier()
        super().check(Contender(each.name, [each.slots], each.due))

    def _collected(self, window: Window) -> np.ndarray:
        total: np.ndarray = window.update(
            0.0, dict.fromkeys(window.in_neighbors, 1.0), reset=True
        ).copy()
        window.value, window.p = self.x[0], 1.0
        return total

    def _emptied(self, slots: np.ndarray) -> np.ndarray:
        total: np.ndarray = slots.sum(axis=0)
        slots[:] = 0
        return total

    def _raw(self, most: int) -> tuple[MPI.Win, np.ndarray]:
        """Return an allocated window with the value and a slot for each in-neighbour, in a passive
        epoch.
        """
        window = MPI.Win.Allocate(8 * self.d * (1 + most), 8, comm=self.comm)
        self._stack.callback(window.Free)
        rows = np.asarray(window.tomemory()).view(np.float64).reshape(1 + most, self.d)
        rows[0], rows[1:] = self.x[0], 0
        window.Lock_all()
        self._stack.callback(window.Unlock_all)
        self.comm.Barrier()
        return window, rows

    def _place(self, receiver: int) -> int:
        """Place of this rank's slot at a receiver."""
        place: int = self.phases[0].in_neighbors(receiver).tolist().index(self.rows.lo)
        return 1 + place

    def _by_mpi(
        self,
        name: str,
        window: MPI.Win,
        slots: np.ndarray,
        into: list[int],
        out: list[int],
        places: list[int],
    ) -> Callable[[], None]:
        d, x = self.d, [self.x[0], MPI.DOUBLE]
        begin = {"put": window.Put, "accumulate": window.Accumulate, "get": window.Get}[name]
        near = into if name == "get" else out
        if name == "get":
            pieces = [
                ([slots[1 + k], MPI.DOUBLE], j, [0, d, MPI.DOUBLE]) for k, j in enumerate(into)
            ]
        else:
            pieces = [(x, j, [place * d, d, MPI.DOUBLE]) for j, place in zip(out, places)]

        def call() -> None:
            for piece in pieces:
                begin(*piece)
            for j in near:
                window.Flush(j)

        return call

    def _mutex(self, window: Window, ranks: list[int]) -> None:
        with window.mutex(ranks):
            pass

    def _locks(self) -> MPI.Win:
        window = MPI.Win.Allocate(8, 8, comm=self.comm)
        self._stack.callback(window.Free)
        return window

    def _lock(self, window: MPI.Win, rank: int) -> None:
        window.Lock(rank)
        window.Unlock(rank)
