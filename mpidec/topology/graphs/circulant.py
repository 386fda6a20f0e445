"""Circulant graphs: all agents have the same hops to their neighbours; a row of W needs
O(degree) memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.optimized import with_weights
from ..base.source import EdgeBlock, Run, Source, index_type
from ..base.spectra import laplacian_of_group
from ..base.topology import Topology
from ..base.weights import WeightsLike, resolve


@with_known_options
def ring(n: int, *, weights: WeightsLike = "metropolis") -> Topology:
    r"""Ring: every agent averages with its predecessor and its successor.

    .. math:: W_{i,i-1} = W_{i,i} = W_{i,i+1} = 1/3 \quad (\mathrm{mod}\ n)

    Parameters
    ----------
    n : int
        Number of agents, at least 1; `ring(2)` has one edge, with weights 1/2.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, doubly stochastic, degree 2, spectral gap O(1/n^2).

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> print(ring(4).W.toarray().round(2))
    [[0.33 0.33 0.   0.33]
     [0.33 0.33 0.33 0.  ]
     [0.   0.33 0.33 0.33]
     [0.33 0.   0.33 0.33]]
    """
    n = check.integer(n, "ring: n")
    return circulant("ring", n, [1, n - 1], weights)


@with_known_options
def complete(n: int, *, weights: WeightsLike = "metropolis") -> Topology:
    """Complete graph: every agent averages with all others, which is exact in one step.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`; by default all entries of W are 1/n.

    Returns
    -------
    Topology
        Undirected, doubly stochastic, degree n - 1, spectral gap 1.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> complete(5).spectral_gap()
    1.0
    """
    n = check.integer(n, "complete: n")
    return circulant("complete", n, np.arange(1, n), weights)


@with_known_options
def exponential(n: int, base: int = 2, *, weights: WeightsLike = "metropolis") -> Topology:
    r"""Static exponential graph: agent i sends to i + 1, i + 2, i + 4, ... (modulo n).

    .. math:: W_{i,i} = W_{i,(i - 2^t) \bmod n} = \frac{1}{1 + \tau}, \qquad t = 0, \dots, \tau - 1,
              \quad \tau = \lceil \log_2 n \rceil

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    base : int
        The hops are the powers of `base` below n.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Directed for n > 3, doubly stochastic, in-degree and out-degree tau; the spectral gap is 2 /
        (1 + tau) for even n and base 2, and larger for odd n.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> exponential(8).out_neighbors(5), exponential(8).in_neighbors(5)
    (array([1, 6, 7]), array([1, 3, 4]))

    References
    ----------
    Ying, Yuan, Chen, Hu, Pan, Yin: Exponential graph is provably efficient for decentralized deep
    training, NeurIPS 2021.
    """
    n, base = check.integer(n, "exponential: n"), check.integer(base, "exponential: base", least=2)
    return circulant("exponential", n, _powers(base, n - 1), weights)


@with_known_options
def symmetric_exponential(
    n: int, base: int = 4, *, weights: WeightsLike = "metropolis"
) -> Topology:
    """Symmetric exponential graph: agents at distance 1, base, base^2, ... on the ring are
    neighbours.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    base : int
        The distances along the ring are the powers of `base` up to n // 2, in both directions.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, regular, doubly stochastic.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> symmetric_exponential(8).neighbors(0)
    array([1, 4, 7])

    References
    ----------
    Ying, Yuan, Hu, Chen, Yin: BlueFog: make decentralized algorithms practical for optimization and
    deep learning, arXiv:2111.04287, 2021.
    """
    where = "symmetric_exponential"
    n, base = check.integer(n, f"{where}: n"), check.integer(base, f"{where}: base", least=2)
    near = _powers(base, n // 2)
    return circulant(where, n, [*near, *(n - h for h in near)], weights)


def _powers(base: int, most: int) -> list[int]:
    powers = [1] if most >= 1 else []
    while powers and powers[-1] * base <= most:
        powers.append(powers[-1] * base)
    return powers


def circulant(
    name: str, n: int, hops: Sequence[int] | NDArray[np.int64], weights: WeightsLike
) -> Topology:
    """Return the topology in which agent i sends to i + h (mod n) for each hop h; zero hops and
    duplicates are dropped.
    """
    return with_weights(weights, lambda weights: _circulant(name, n, hops, weights))


def _circulant(
    name: str, n: int, hops: Sequence[int] | NDArray[np.int64], weights: WeightsLike
) -> Topology:
    distances = np.unique(np.asarray(hops, np.int64) % n)
    distances = distances[distances > 0]
    directed = not np.array_equal(distances, np.sort(n - distances))
    rule = resolve(
        name, weights, True, len(distances), directed, lambda: laplacian_of_group((n,), distances)
    )
    degree = np.array([len(distances)])
    own = rule.own(degree, degree, lambda: np.zeros(1))
    return Topology(
        name, Circulant(n, np.r_[0, distances], np.r_[own, rule.edges(distances, distances)])
    )


class Circulant(Source):
    """Circulant mixing matrix: W[i, (i - h) mod n] is the weight of hop h; hop 0 is the agent
    itself.

    Doubly stochastic for any hops, and normal: its eigenvalues are the Fourier transform of the
    weights.

    Parameters
    ----------
    n : int
        Number of agents.
    hops : (D + 1,) int array
        0 and the D hops to neighbours, ascending and distinct, below n.
    weights : (D + 1,) float array
        One weight per hop; they sum to 1.
    """

    kind = "doubly"

    def __init__(self, n: int, hops: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        self.n, self.hops, self.weights, self.group = n, hops, weights, (n,)
        self.hops.flags.writeable = self.weights.flags.writeable = False
        back, mirrored = self._transpose()
        self.directed = not np.array_equal(hops, back)
        self.symmetric = not self.directed and np.array_equal(weights, mirrored)
        self.connected = bool(np.gcd.reduce(hops, initial=n) == 1)

    @property
    def arcs(self) -> int:
        return self.n * (len(self.hops) - 1)

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return _rows(self.n, self.hops, self.weights, lo, hi)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return _rows(self.n, *self._transpose(), lo, hi)

    def runs(self) -> Iterator[Run]:
        return _runs(self.n, self.hops, self.weights, 0, self.n)

    def token(self) -> bytes:
        digest = hashlib.blake2b(b"circulant", digest_size=16)
        digest.update(self.hops.astype("<i8").tobytes())
        digest.update(self.weights.astype("<f8").tobytes())
        return digest.digest()

    def _transpose(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        order = np.r_[0, np.arange(len(self.hops) - 1, 0, -1)]
        return -self.hops[order] % self.n, self.weights[order]


def _runs(
    n: int, hops: NDArray[np.int64], weights: NDArray[np.float64], lo: int, hi: int
) -> Iterator[Run]:
    """Yield the runs of the rows lo, ..., hi - 1.

    Between two consecutive hops, h_k <= i < h_{k+1}, the sorted columns of row i are i plus a fixed
    pattern: i - h_k < ... < i - h_0 = i, followed by those that wrap around, i + n - h_D < ... < i
    + n - h_{k+1}.
    """
    k = int(np.searchsorted(hops, lo, "right")) - 1
    start = lo
    while start < hi:
        stop = min(hi, int(hops[k + 1])) if k + 1 < len(hops) else hi
        yield (
            start,
            stop,
            np.r_[-hops[k::-1], n - hops[:k:-1]],
            np.r_[weights[k::-1], weights[:k:-1]],
        )
        start, k = stop, k + 1


def _rows(
    n: int, hops: NDArray[np.int64], weights: NDArray[np.float64], lo: int, hi: int
) -> EdgeBlock:
    """Return the rows lo, ..., hi - 1."""
    m, width = hi - lo, len(hops)
    kind = index_type(n, m * width)
    agents = np.arange(lo, hi, dtype=kind)[:, None]
    indptr = np.arange(0, m * width + 1, width, dtype=kind)
    equal = bool(np.all(weights == weights[0]))
    indices = np.empty((m, width), kind)
    data = np.full((m, width), weights[0]) if equal else np.empty((m, width))
    if width == n:
        indices[:] = np.arange(n)
        if not equal:
            data[:] = weights[(agents - np.arange(n)) % n]
        return EdgeBlock(data.ravel(), indices.ravel(), indptr, n)
    for start, stop, pattern, row in _runs(n, hops, weights, lo, hi):
        here = slice(start - lo, stop - lo)
        np.add(agents[here], pattern.astype(kind), out=indices[here])
        if not equal:
            data[here] = row
    return EdgeBlock(data.ravel(), indices.ravel(), indptr, n)
