"""Asynchronous methods: workers exchange rows over windows, and none waits for another one."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch

from .._words import settings
from ..comm.mixing import Network
from ..comm.rma import Window
from ..solvers.internals import PairwiseSolver
from ..topology import Topology, mixing_constants
from .methods import Method, Mixer
from .rows import Bucket

MOST = 2.0  # averagings of a worker per step
# Weight of a worker that sends shares.
_LEAST = 0.5


class AsynchronousMethod(Method):
    """Abstract base of the asynchronous methods: one worker per rank, on a static graph."""

    asynchronous: ClassVar = True
    edgewise = True

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        graph = mixers[0].topology
        if len(mixers) > 1:
            raise ValueError(
                "an asynchronous algorithm needs one topology, since workers exchange whole rows, "
                f"got {len(mixers)}"
            )
        if net.m != 1 or net.size != net.n or graph.period != 1:
            raise ValueError(
                "an asynchronous algorithm needs one worker per rank and one graph for all steps, "
                f"got {net.n} "
                f"workers on {net.size} ranks and the {graph.name} topology"
            )
        self._graph: Topology = graph.at(0)
        self._windows: list[Window] = []
        # The state when the windows were closed.
        self._last: list[dict[str, Any]] | None = None

    def _window(self, row: np.ndarray | torch.Tensor) -> Window:
        """Return a window of a row; a thread answers ranks on other nodes while this one computes,
        where MPI has MPI_THREAD_MULTIPLE.
        """
        window = self._net.window(row, self._graph)
        self._windows.append(window)
        return window

    def after(self, k: int) -> None:
        self._refuse_closed("a step is taken")
        self._exchange(k)

    def _refuse_closed(self, what: str) -> None:
        if self._last is not None:
            raise RuntimeError(
                f"{what} after close(), when an asynchronous algorithm has no windows left: wrap "
                "the optimizer again"
            )

    @abstractmethod
    def _exchange(self, k: int) -> None:
        """Exchange rows with neighbours after the base optimizer's update in step `k`."""

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Context in which no message is in transit between workers.  Collective: they wait for
        each other.
        """
        for window in self._windows:
            window.flush()
        self._net.barrier()
        yield
        self._net.barrier()

    def state(self) -> list[dict[str, Any]]:
        if self._last is not None:
            return self._last
        self.saves += 1
        with self._at_rest():
            return self._saved()

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._refuse_closed("a state is loaded")
        with self._at_rest():
            self._load(state)

    @abstractmethod
    def _saved(self) -> list[dict[str, Any]]:
        """Return the state; no message may be in transit between workers."""

    @abstractmethod
    def _load(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continue with a state; no message may be in transit between workers."""

    def close(self) -> None:
        if self._last is None:
            self._last = self.state()
        for window in self._windows:
            window.close()
        self._windows = []


class PushSumMethod(AsynchronousMethod):
    r"""Push-sum: a worker sends equal shares of its row and of its weight p to its out-neighbours.

    It adds its update, times p, to its row; sends shares to those that have taken the last one;
    adds up what has arrived; and shows the row over p.  A worker whose p is below 1/2 sends
    nothing: where most of the mass waits at a slow worker, p would vanish at the others.  There is
    always one that sends, as the sum of all p is n.
    """

    def __init__(self, net: Network, buckets: list[Bucket], mixers: Sequence[Mixer]):
        super().__init__(net, buckets, mixers)
        for bucket in buckets:
            self._window(bucket.rows[0])
        # Found by `state`, to be added.
        self._arrived: list[tuple[torch.Tensor, float] | None] = [None] * len(buckets)

    def _exchange(self, k: int) -> None:
        sent = False
        for bucket, window, arrived in zip(self._buckets, self._windows, self._arrived):
            share = 1 / (len(window.out_neighbors) + 1)
            torch.mul(bucket.rows[0], window.p, out=window.value)
            ready = [j for j, transfers in window.unread.items() if not transfers]
            if ready and window.p >= _LEAST:
                window.accumulate(
                    window.value,
                    self_weight=1 - len(ready) * share,
                    dst_weights=dict.fromkeys(ready, share),
                )
                self.bytes += len(ready) * bucket.bytes
                sent = True
            window.collect()
            if arrived is not None:
                window.value += arrived[0]
                window.p += arrived[1]
        self._arrived = [None] * len(self._buckets)
        if not sent:
            # On a busy node those that have not taken the last shares need a core.
            os.sched_yield()

    def _saved(self) -> list[dict[str, Any]]:
        saved = []
        for place, window in enumerate(self._windows):
            value, p, before = window.value.clone(), window.p, self._arrived[place]
            row, weight = window.collect() - value, window.p - p
            window.value, window.p = value, p
            if before is not None:
                row, weight = row + before[0], weight + before[1]
            self._arrived[place] = row, weight
            saved.append({"p": p, "arrived": row[None].clone(), "arrived_p": weight})
        return saved

    def _load(self, state: Sequence[Mapping[str, Any]]) -> None:
        for window, saved in zip(self._windows, state):
            window.collect()
            window.p = saved["p"]
        self._arrived = [(saved["arrived"][0], saved["arrived_p"]) for saved in state]

    def shares(self, X: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x * saved["p"] + saved["arrived"][0] for x, saved in zip(X, self.state())]

    def show(self) -> None:
        for bucket, window in zip(self._buckets, self._windows):
            torch.div(window.value, window.p, out=bucket.rows[0])

    @property
    def extra(self) -> int:
        return sum(
            bucket.bytes * (1 + len(window.in_neighbors))
            for bucket, window in zip(self._buckets, self._windows)
        )


class PairwiseMethod(AsynchronousMethod):
    r"""A pairwise method of `mpidec.solvers`, with the base optimizer's update in place of
    :math:`-\gamma g`.

    After each update a worker averages with a Poisson number of neighbours, `rate` / 2 on average,
    each chosen uniformly; they begin as many averagings with it.  It takes itself and the
    neighbour, reads the neighbour's row, moves by the difference of the two, and sends the
    difference to the neighbour, who moves by it after its own next update: sums over all workers
    stay the same. A neighbour that another worker has taken, or that has not moved yet, is left to
    a later step, with as many averagings as there are neighbours at most: rows average in pairs,
    one after the other, however slow a worker is.  Time counts a worker's own updates.

    Parameters
    ----------
    solver : PairwiseGossip or A2CiD2
        With the step size 1 and without momentum; its rate at most 2: neighbours begin one
        averaging with it per step.
    seed : int
        Of the numbers of averagings and the choices of neighbours.
    """

    def __init__(
        self,
        net: Network,
        buckets: list[Bucket],
        mixers: Sequence[Mixer],
        solver: PairwiseSolver,
        seed: int = 0,
    ):
        super().__init__(net, buckets, mixers)
        self._solver = solver.prepared(lambda rate: mixing_constants(self._graph, rate))
        self._draws, self._wanted = np.random.default_rng([seed, net.lo]), 0
        self._neighbors = [int(j) for j in self._graph.in_neighbors(net.lo) if j != net.lo]
        self._pairs = [PairState(bucket, self._solver, self._window) for bucket in buckets]

    def _exchange(self, k: int) -> None:
        if not self._pairs:
            return
        t, window = float(k + 1), self._windows[0]
        for pairs in self._pairs:
            pairs.descend(t)
        self._wanted = min(
            self._wanted + int(self._draws.poisson(self._solver.rate / 2)), len(self._neighbors)
        )
        if self._take_self():
            count = len(self._neighbors)
            places = self._draws.integers(count, size=self._wanted).tolist() if self._wanted else []
            # Each neighbour at most once per step.
            for place in dict.fromkeys(places):
                j = self._neighbors[place]
                if window.locks.try_lock(j):
                    self._wanted -= 1
                    for pairs in self._pairs:
                        pairs.average(j, t)
                        # The neighbour's row, and the difference.
                        self.bytes += 2 * pairs.bucket.bytes
            window.locks.unlock()

    def _take_self(self) -> bool:
        """Take the lock of this worker, unless a neighbour holds it whose differences have not all
        arrived.
        """
        window = self._windows[0]
        if window.locks.owner is None:
            return window.locks.try_lock(self._net.lo)
        if not all(pairs.received for pairs in self._pairs):
            return False
        for pairs in self._pairs:
            pairs.received = False
        window.locks.unlock(hand_over=True)
        return True

    def _saved(self) -> list[dict[str, Any]]:
        for pairs in self._pairs:
            pairs.collect()
        return [
            {**pairs.saved(), "wanted": self._wanted, "draws": self._draws.bit_generator.state}
            for pairs in self._pairs
        ]

    def _load(self, state: Sequence[Mapping[str, Any]]) -> None:
        for pairs, saved in zip(self._pairs, state):
            pairs.load(saved)
            self._wanted, self._draws.bit_generator.state = saved["wanted"], saved["draws"]
        if self._pairs:
            self._windows[0].locks.unlock(hand_over=self._pairs[0].received)

    def show(self) -> None:
        for pairs in self._pairs:
            pairs.bucket.rows[0].numpy()[...] = self._solver.gradient_point(
                pairs.state, pairs.state.t
            )

    def iterates(self) -> list[torch.Tensor]:
        return [torch.from_numpy(pairs.state.x)[None] for pairs in self._pairs]

    def shares(self, X: list[torch.Tensor]) -> list[torch.Tensor]:
        self.state()  # takes what is in the windows
        return [torch.from_numpy(pairs.moved())[None] for pairs in self._pairs]

    @property
    def extra(self) -> int:
        return sum([pairs.bytes for pairs in self._pairs]) + sum(
            int(window.value.nbytes) * (1 + len(window.in_neighbors)) for window in self._windows
        )


class PairState:
    """A bucket in pairwise averagings: the state of its row, and what it exchanges with its
    neighbours.

    Attributes
    ----------
    rows : Window
        The row that the neighbours read.
    differences : Window
        What they move this row by, and the number of averagings that this comes from.
    received : bool
        Whether the difference of the neighbour that has this worker's lock has come.
    """

    def __init__(
        self, bucket: Bucket, solver: PairwiseSolver, window: Callable[[np.ndarray], Window]
    ):
        shown = bucket.rows[0]
        if shown.device.type != "cpu" or shown.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                "a pairwise algorithm needs parameters of float32 or float64 on the CPU, got "
                f"{shown.dtype} on "
                f"{shown.device}"
            )
        self.bucket, self._solver = bucket, solver
        self.state = solver.init(shown.numpy())
        self.received, self._arrived = False, np.zeros(bucket.d + 1, shown.numpy().dtype)
        self._zero = np.zeros((), self._arrived.dtype)
        self.rows, self.differences = window(self.state.x), window(self._arrived)

    def collect(self) -> None:
        """Remove the differences that have arrived from the window."""
        self._arrived += self.differences.collect()
        self.differences.value = np.zeros_like(self._arrived)
        self.received |= bool(self._arrived[-1])
        self._arrived[-1] = 0

    def descend(self, t: float) -> None:
        """Move by the optimizer's update, and by the differences that have arrived."""
        self._solver.descend(self.state, self.state.x - self.bucket.rows[0].numpy(), t)
        self.collect()
        self._solver.average(self.state, self._arrived[:-1], self._zero, t)
        self._arrived[:] = 0
        self.rows.value = self.state.x

    def moved(self) -> np.ndarray:
        """Return the row, moved by the differences that have arrived."""
        s = copy.deepcopy(self.state)
        self._solver.average(s, self._arrived[:-1], self._zero, s.t)
        return np.asarray(s.x)

    def average(self, j: int, t: float) -> None:
        """Average with the neighbour j."""
        mine = self._solver.offer(self.state, t)
        self.rows.get([j])
        theirs = self.rows.slot(j)
        self._solver.average(self.state, mine, theirs, t)
        self.differences.accumulate(np.append(theirs - mine, mine.dtype.type(1)), dst_weights=[j])
        self.rows.value = self.state.x

    def saved(self) -> dict[str, Any]:
        """All that a restart needs."""
        held = {"arrived": self._arrived, **settings(self.state)}
        tensors = {
            name: torch.from_numpy(value[None].copy()) if isinstance(value, np.ndarray) else value
            for name, value in held.items()
        }
        return {**tensors, "received": self.received}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `saved` has returned."""
        self.collect()
        for name in settings(self.state):
            value = saved[name]
            value = value[0].numpy() if isinstance(value, torch.Tensor) else value
            setattr(self.state, name, value)
        self.received, self._arrived = saved["received"], saved["arrived"][0].numpy()
        self.rows.value = self.state.x

    @property
    def bytes(self) -> int:
        """Size of the state's rows."""
        s = self.state
        return (
            int(s.x.nbytes)
            + int(s.b.nbytes)
            + int(s.x_tilde.nbytes if hasattr(s, "x_tilde") else 0)
        )
