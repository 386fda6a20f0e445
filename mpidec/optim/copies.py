"""Identical copies: ranks that draw the same batches compute the same gradients, and train one
model several times.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ..comm.mixing import Network
from ..comm.runtime import start_minimum
from .rows import Bucket

_CALL = "comparison of first gradients"
# Steps that are noted, and how many of them, with gradients, are compared.
FIRST, FEWEST = 5, 3
# The first ranks, which are compared: a data set that is not divided is the same on all.
RANKS = 64
# Relative distances of gradients on the same batch.
_EQUAL, _SIMILAR = 1e-4, 0.5
_ENTRIES, _SUMS = 1 << 16, 16  # of each parameter at most; numbers in a sketch, beside the norm


class Copies:
    """Comparison of the ranks' own gradients in the first steps; warns once, on rank 0, if some
    ranks train on the same batches.

    Parameters
    ----------
    net : Network
    asynchronous : bool
        Whether workers do not wait for each other.  Then `compare` must be called where they do.
    buckets : list of Bucket
        Whose parameters have the gradients.

    Attributes
    ----------
    compared : bool
        Whether there is nothing more to note.
    looked : bool
        Whether this step has been noted.
    """

    def __init__(self, net: Network, asynchronous: bool, buckets: Sequence[Bucket]):
        self._net, self._asynchronous, self._buckets = net, asynchronous, buckets
        self.looked = False
        self._sketches: list[np.ndarray] = []
        self.compared = net.size == 1

    def look(self) -> None:
        """Note the gradients of a step.  Collective in the last of the first steps, unless
        workers do not wait.
        """
        self.looked = True
        if self.compared or len(self._sketches) == FIRST:
            return
        self._sketches.append(_sketch(p for bucket in self._buckets for _, p in bucket.named))
        if len(self._sketches) == FIRST and not self._asynchronous:
            self.compare()

    def withdraw(self, error: Exception) -> bool:
        """Withdraw from the next comparison, and tell the others why; return whether one is due."""
        comes = not (self.compared or self._asynchronous) and len(self._sketches) == FIRST - 1
        if comes:
            self._net.withdraw(_CALL, error)
        return comes

    def compare(self) -> None:
        """Compare the steps so far, once all ranks have made enough.  Collective."""
        if self.compared:
            return
        noted = np.full((FIRST, 1 + _SUMS), np.nan)
        for step, sketch in enumerate(self._sketches):
            noted[step] = sketch
        net, count, fewest = self._net, np.array([len(self._sketches)]), np.zeros(1, np.int64)
        wait = net.operation(_CALL)
        wait(lambda: start_minimum(net.comm, count, fewest))
        if fewest[0] < FEWEST:
            return
        self.compared = True
        sizes = noted.size * (np.arange(net.size) < RANKS)
        theirs = np.empty((min(net.size, RANKS), *noted.shape))
        item = net.context.row_type(noted.itemsize)
        into = [theirs, (sizes, np.cumsum(sizes) - sizes), item] if net.rank == 0 else None
        wait(lambda: net.comm.Igatherv([noted, int(sizes[net.rank]), item], into))
        ranks = equal_ranks(theirs) if net.rank == 0 else []
        if ranks:
            who = (
                "all ranks"
                if len(ranks) == net.size
                else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
            )
            warnings.warn(
                f"the gradients of {who} are equal in the first steps: they train on the same "
                "batches, so that several "
                "workers do the work of one; give each rank its own part of the data, "
                "DataLoader(data, sampler=mpidec.nn.sampler(data, net))",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Make the comparison that is outstanding where workers do not wait for each other.
        Collective, and safe to repeat.
        """
        if self._asynchronous:
            self.compare()
        self.compared = True


def equal_ranks(sketches: np.ndarray) -> list[int]:
    """Return the first ranks whose gradients are those of the same batches; empty if there are
    none.

    In the first step with gradients the parameters are equal, and so are then the gradients, but
    for rounding.  Afterwards two workers differ by what they have received from others, so that the
    gradients of the next steps are only similar.

    Parameters
    ----------
    sketches : (ranks, steps, 1 + sums) array
        Norms of the gradients, and projections of them.

    Examples
    --------
    >>> one, other, none = [[2.0, 0.5]] * 3, [[2.0, -0.5]] * 3, [[0.0, 0.0]] * 3
    >>> equal_ranks(np.array([other, one, one])), equal_ranks(np.array([one, other, none, none]))
    ([1, 2], [])
    """
    # Ranks with equal first gradients (the parameters are equal) and similar later ones, as the
    # parameters move apart, draw the same batches.
    has = np.isfinite(sketches).all(axis=2) & (sketches[:, :, 0] > 0)
    known = np.where(has[:, :, None], sketches, 0.0)
    for rank, mine in enumerate(known[:-1]):
        steps = np.flatnonzero(has[rank])[:FEWEST]
        if len(steps) == FEWEST:
            far = np.linalg.norm(known[rank:, steps] - mine[steps], axis=2) / mine[steps, 0]
            same = (has[rank:, : steps[-1] + 1] == has[rank, : steps[-1] + 1]).all(axis=1)
            same &= (far[:, 0] <= _EQUAL) & (far <= _SIMILAR).all(axis=1)
            if same.sum() > 1:
                return [rank + int(i) for i in np.flatnonzero(same)]
    return []


def _sketch(parameters: Iterable[torch.Tensor]) -> np.ndarray:
    """Return the norm of some of the gradients' entries, and sums of them with fixed weights, whose
    distances are about the entries'.
    """
    square, sums = 0.0, np.zeros(_SUMS)
    for place, parameter in enumerate(parameters):
        if parameter.grad is not None and parameter.numel():
            gradient = parameter.grad.detach()
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            row = (
                torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
            ).flatten()
            entries = row[:: -(-len(row) // _ENTRIES)].cpu().double().numpy()
            square += float(entries @ entries)
            weighted = entries * np.cos(np.arange(len(entries)) ** 2.0 + place) * math.sqrt(2)
            sums += np.bincount((np.arange(len(entries)) + place) % _SUMS, weighted, _SUMS)
    return np.append(math.sqrt(square), sums)
