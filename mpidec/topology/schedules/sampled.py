"""Partial participation: in each step, the average over some agents that are drawn at random,
sent to all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Schedule
from ..base.source import EdgeBlock, Source, index_type
from ..base.topology import Topology, fingerprint
from ..graphs.circulant import complete


@with_known_options
def sampled_average(n: int, fraction: float = 0.5, seed: int = 0) -> Schedule:
    r"""Partial participation of federated learning: all agents receive the average over a random
    sample of them.

    .. math:: W^{(k)}_{ij} = \frac{1}{|S^k|} \text{ if } j \in S^k, \text{ otherwise } 0, \qquad |S^k| = \max(1, [C n])

    The server of a federated method is the agents' common row here: `LocalDGD` with H local steps
    over this schedule is FedAvg.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    fraction : float
        C, the part of the agents that is drawn for each step, in (0, 1].
    seed : int
        The sample of step k is drawn from (seed, k), without replacement.

    Returns
    -------
    Schedule
        Row stochastic, and doubly stochastic on average over the draws, without a period; for
        solvers that accept it (`Needs.samples`).

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> W = sampled_average(4, fraction=0.5).at(0).W.toarray()
    >>> bool((W == W[0]).all()), sorted(W[0].tolist())
    (True, [0.0, 0.0, 0.5, 0.5])

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-efficient learning of deep
    networks from decentralized data, AISTATS 2017.
    """
    where = "sampled_average"
    n = check.integer(n, f"{where}: n")
    fraction = check.number(fraction, f"{where}: fraction", above=0, most=1)
    return SampledAverage(
        n, max(1, round(fraction * n)), check.integer(seed, f"{where}: seed", least=0)
    )


class Sample(Source):
    """Matrix of equal rows: the average over a sample of the agents."""

    kind, directed, symmetric, connected = "row", True, False, False

    def __init__(self, n: int, sample: NDArray[np.intp]) -> None:
        self.n, self._sample = n, sample

    @property
    def arcs(self) -> int:
        return len(self._sample) * (self.n - 1)

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self._equal(self._sample, np.full(hi - lo, len(self._sample)))

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        there = np.isin(np.arange(lo, hi), self._sample)
        return self._equal(np.arange(self.n), there * self.n)

    def _equal(self, columns: NDArray[np.intp], lengths: NDArray[np.intp]) -> EdgeBlock:
        """Rows that hold all of `columns`, or nothing."""
        kind, count = index_type(self.n, int(lengths.sum())), int(np.count_nonzero(lengths))
        indptr = np.zeros(len(lengths) + 1, kind)
        np.cumsum(lengths, out=indptr[1:])
        data = np.full(count * len(columns), 1 / len(self._sample))
        return EdgeBlock(data, np.tile(columns, count).astype(kind), indptr, self.n)

    def token(self) -> bytes:
        return repr((self.n, self._sample.tolist())).encode()


class SampledAverage(Schedule):
    """Average over a sample of the agents, drawn for each step.

    Parameters
    ----------
    n, size : int
        Number of agents, and of those in a sample.
    seed : int
    """

    period = None
    samples = True

    def __init__(self, n: int, size: int, seed: int) -> None:
        self.name, self.n, self._size, self._seed = "sampled_average", n, size, seed
        self.kind, self.directed = ("doubly", False) if size == n else ("row", n > 1)

    def sample(self, k: int) -> NDArray[np.intp]:
        """Return the agents of step k >= 0, in ascending order."""
        k = check.integer(k, f"{self.name}.at: k", least=0)
        drawn = np.random.default_rng([self._seed, k]).choice(self.n, self._size, replace=False)
        return np.sort(drawn)

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0."""
        if self._size == self.n:
            return complete(self.n)
        return Topology(self.name, Sample(self.n, self.sample(k)))

    def spectral_gap(self) -> float:
        """Return 1: after a step, all agents have the same row."""
        return 1.0

    @property
    def parameters(self) -> Mapping[str, object]:
        """Agents of a sample, and the seed."""
        return {"size": self._size, "seed": self._seed}

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        return fingerprint(self.name, self.n, self._size, self._seed)
