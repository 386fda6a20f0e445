"""Batches of the workers' own samples, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._random import Streams
from .._words import Described
from .partition import Index


class Batches(Described):
    """Batches of B samples for each local worker, drawn without replacement in every epoch, as in
    RelaySGD.

    In each of its epochs a worker shuffles its samples and takes them in batches of B; the rest
    that fills no batch is left out.

    Parameters
    ----------
    parts : list of n int arrays
        Sample numbers of all n workers, from `partition` or `split`.
    batch : int
        B, at most the number of samples of any worker.
    seed : int
    agents : sequence of int, optional
        Numbers of the local workers; by default all n of them.

    Attributes
    ----------
    per_epoch : int
        Steps that count as an epoch for all workers: the mean number of samples of a worker over B,
        rounded down.
    steps : (m,) array of int
        Batches drawn so far by each local worker.

    Raises
    ------
    ValueError, TypeError
        If a worker has fewer than B samples, or an argument is out of range.

    Notes
    -----
    No communication. Draws are determined by (seed, worker, number of the batch), not by the number
    of ranks, so `state` is only the number of batches drawn.

    Examples
    --------
    >>> batches = Batches([np.arange(4), np.arange(4, 8)], batch=2, seed=1)
    >>> first, second = batches.draw(), batches.draw()
    >>> first.shape, sorted([*first[1], *second[1]]) == [4, 5, 6, 7], batches.epoch
    ((2, 2), True, 1.0)

    A resumed run goes on with the same batches:

    >>> again = Batches([np.arange(4), np.arange(4, 8)], batch=2, seed=1)
    >>> again.load(batches.state())
    >>> bool((again.draw() == batches.draw()).all())
    True
    """

    def __init__(
        self, parts: Sequence[Index], batch: int, seed: int = 0, agents: Sequence[int] | None = None
    ) -> None:
        self.batch = check.integer(batch, "batch")
        self.agents = list(range(len(parts)) if agents is None else agents)
        sizes = [len(part) for part in parts]
        if min(sizes, default=0) < self.batch:
            raise ValueError(
                f"batch = {self.batch}, but worker {sizes.index(min(sizes)) if sizes else 0} has "
                f"{min(sizes, default=0)} samples, expected at most {min(sizes, default=0)}"
            )
        if any(not 0 <= agent < len(parts) for agent in self.agents):
            raise ValueError(f"agents = {self.agents}, expected numbers 0 .. {len(parts) - 1}")
        self.per_epoch = sum(sizes) // len(sizes) // self.batch
        self._parts = [parts[agent] for agent in self.agents]
        self.seed = check.integer(seed, "seed", least=0)
        self._epochs, self._augmentation = (
            Streams(self.seed, "epochs"),
            Streams(self.seed, "augmentation"),
        )
        # Epoch and order of the samples in it.
        self._orders = [(-1, part) for part in self._parts]
        self.steps: NDArray[np.int64] = np.zeros(len(self.agents), dtype=np.int64)

    @property
    def epoch(self) -> float:
        """Epochs so far: the mean number of batches of a local worker over `per_epoch`."""
        return float(self.steps.mean() / self.per_epoch) if len(self.steps) else 0.0

    def draw(self) -> Index:
        """Return the sample numbers of the next batch of every local worker, (m, B)."""
        rows = [self.of(i) for i in range(len(self.agents))]
        return np.stack(rows) if rows else np.empty((0, self.batch), dtype=np.intp)

    def of(self, i: int) -> Index:
        """Return the sample numbers of the next batch of local worker `i` alone, (B,), for
        workers at their own pace.
        """
        part = self._parts[i]
        epoch, place = divmod(int(self.steps[i]), len(part) // self.batch)
        if self._orders[i][0] != epoch:
            self._orders[i] = (
                epoch,
                part[self._epochs.at(self.agents[i], epoch).permutation(len(part))],
            )
        self.steps[i] += 1
        rows: Index = self._orders[i][1][place * self.batch : (place + 1) * self.batch]
        return rows

    def random(self, i: int) -> np.random.Generator:
        """Return the generator of the last batch of local worker `i`, such as for `augment`;
        valid until the next call.
        """
        return self._augmentation.at(self.agents[i], int(self.steps[i]) - 1)

    def state(self) -> NDArray[np.int64]:
        """Return the number of batches that each local worker has drawn, (m,)."""
        return np.array(self.steps)

    def load(self, state: ArrayLike) -> None:
        """Continue after the batches that `state` has seen."""
        steps = np.array(state, dtype=np.int64)
        if steps.shape != self.steps.shape or (steps < 0).any():
            raise ValueError(
                f"state = {state!r:.60}, expected {len(self.steps)} numbers of batches, one for "
                "each local worker"
            )
        self.steps = steps
