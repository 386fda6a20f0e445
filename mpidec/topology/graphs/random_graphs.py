"""Random connected graphs, drawn from a seed and identical on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.optimized import with_weights
from ..base.topology import Topology
from ..base.weights import WeightsLike, stored

# Graphs drawn from one seed before giving up.
ATTEMPTS = 100

Edges = tuple[NDArray[Any], NDArray[Any]]


@with_known_options
def erdos_renyi(
    n: int, p: float | None = None, seed: int = 0, *, weights: WeightsLike = "metropolis"
) -> Topology:
    r"""Connected Erdos-Renyi graph: each pair of agents is joined independently with probability p.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    p : float, optional
        Probability of an edge, in (0, 1]; by default :math:`2 \ln n / n`, twice the threshold of
        connectivity, or 1 if that is smaller.
    seed : int
        Non-negative; at most 100 graphs are drawn from it until one is connected.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, connected, doubly stochastic with metropolis weights.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or none of the graphs drawn was
        connected.

    Examples
    --------
    >>> erdos_renyi(20, seed=1) == erdos_renyi(20, seed=1)
    True

    References
    ----------
    Erdos, Renyi: On the evolution of random graphs, 1960.
    """
    where = "erdos_renyi"
    n = check.integer(n, f"{where}: n")
    p = min(1.0, _default_p(n)) if p is None else check.number(p, f"{where}: p", above=0, most=1)

    def draw(rng: np.random.Generator) -> Edges:
        pairs = n * (n - 1) // 2
        gaps: list[NDArray[np.int64]] = []
        last = -1
        # Gaps between edge numbers are geometric.
        while last < pairs:
            block = np.minimum(rng.geometric(p, int(min(pairs * p, 1e6)) + 10), pairs + 1)
            gaps.append(last + np.cumsum(block))
            last = int(gaps[-1][-1])
        edge = np.concatenate(gaps)
        # Edge i (i - 1) / 2 + j is the pair (i, j), j < i.
        edge = edge[edge < pairs]
        i = ((1 + np.sqrt(1 + 8 * edge.astype(float))) / 2).astype(np.int64)
        i += (i * (i + 1) // 2 <= edge).astype(np.int64) - (i * (i - 1) // 2 > edge)
        return i, edge - i * (i - 1) // 2

    return _draw(
        where,
        n,
        seed,
        weights=weights,
        draw=draw,
        what=f"p = {p:.4g}",
        remedy=f"raise p; the default is {min(1.0, _default_p(n)):.4g}",
    )


@with_known_options
def geometric(
    n: int, radius: float | None = None, seed: int = 0, *, weights: WeightsLike = "metropolis"
) -> Topology:
    r"""Connected random geometric graph: agents at random points of the unit square, joined within
    a radius.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    radius : float, optional
        Largest distance between neighbours, by default :math:`\sqrt{2 \ln n / n}`.
    seed : int
        Non-negative; at most 100 graphs are drawn from it until one is connected.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, connected, doubly stochastic with metropolis weights.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or none of the graphs drawn was
        connected.

    Examples
    --------
    >>> geometric(20).connected
    True

    References
    ----------
    Gilbert: Random plane networks, 1961.
    """
    where = "geometric"
    n = check.integer(n, f"{where}: n")
    reach = (
        math.sqrt(_default_p(n))
        if radius is None
        else check.number(radius, f"{where}: radius", above=0)
    )

    def draw(rng: np.random.Generator) -> Edges:
        from scipy.spatial import cKDTree

        points[:] = rng.random((n, 2))
        pairs = cKDTree(points).query_pairs(reach, output_type="ndarray")
        return pairs[:, 0], pairs[:, 1]

    points = np.empty((n, 2))
    made = _draw(
        where,
        n,
        seed,
        weights=weights,
        draw=draw,
        what=f"radius = {reach:.4g}",
        remedy=f"raise radius; the default is {math.sqrt(_default_p(n)):.4g}",
    )
    made.source.places = points
    return made


@with_known_options
def small_world(
    n: int, k: int = 4, p: float = 0.1, seed: int = 0, *, weights: WeightsLike = "metropolis"
) -> Topology:
    """Connected Watts-Strogatz graph: a ring with k nearest neighbours per agent, some edges
    rewired at random.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    k : int
        Even number of nearest neighbours on the ring, at least 2; all other agents if there are
        fewer than k.
    p : float
        Probability that an edge (u, u + j) is rewired to (u, w), with w drawn from the agents not
        joined to u.
    seed : int
        Non-negative; at most 100 graphs are drawn from it until one is connected.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.

    Returns
    -------
    Topology
        Undirected, connected, doubly stochastic with metropolis weights.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or none of the graphs drawn was
        connected.

    Examples
    --------
    >>> small_world(10, p=0).neighbors(0)
    array([1, 2, 8, 9])

    References
    ----------
    Watts, Strogatz: Collective dynamics of small-world networks, Nature 393, 1998.
    """
    where = "small_world"
    n, k = check.integer(n, f"{where}: n"), check.integer(k, f"{where}: k", least=2)
    if k % 2:
        raise ValueError(
            f"{where}: k is {k}, expected an even number (k / 2 neighbours on each side), such as "
            f"{k - 1}"
        )
    p = check.number(p, f"{where}: p", least=0, most=1)

    return _draw(
        where,
        n,
        seed,
        weights=weights,
        draw=lambda rng: _rewired(n, k, p, rng),
        what=f"k = {k}, p = {p:.4g}",
        remedy="raise k or lower p",
    )


def _rewired(n: int, k: int, p: float, rng: np.random.Generator) -> Edges:
    """The edges of a ring with k nearest neighbours, each rewired with probability p."""
    near: list[set[int]] = [set() for _ in range(n)]
    edges = [(u, (u + j) % n) for j in range(1, min(k // 2, n // 2) + 1) for u in range(n)]
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)
    # Each edge (u, v) is rewired at most once, at its end v; an agent joined to all others
    # keeps its edges.
    for e in np.flatnonzero(rng.random(len(edges)) < p):
        u, v = edges[e]
        if v not in near[u] or len(near[u]) >= n - 1:
            continue
        w = int(rng.integers(n))
        while w == u or w in near[u]:
            w = int(rng.integers(n))
        near[u].remove(v)
        near[v].remove(u)
        near[u].add(w)
        near[w].add(u)
    low = [(u, v) for u in range(n) for v in near[u] if u < v]
    return np.array([u for u, _ in low], np.int64), np.array([v for _, v in low], np.int64)


def _default_p(n: int) -> float:
    return 2 * math.log(n) / n if n > 1 else 1.0


def _draw(
    where: str,
    n: int,
    seed: int,
    weights: WeightsLike,
    draw: Callable[[np.random.Generator], Edges],
    what: str,
    remedy: str,
) -> Topology:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    seed = check.integer(seed, f"{where}: seed", least=0)
    for attempt in range(ATTEMPTS):
        # Philox counter: the attempt is the highest word; draws increment the lowest, so streams
        # never overlap.
        rng = np.random.Generator(
            np.random.Philox(np.random.SeedSequence(seed), counter=[0, 0, 0, attempt])
        )
        i, j = draw(rng)
        entries = np.ones(2 * len(i)), (np.r_[i, j], np.r_[j, i])
        adjacency = csr_array(entries, shape=(n, n))
        if connected_components(adjacency, False, return_labels=False) == 1:
            break
    else:
        raise ValueError(
            f"{where}: none of {ATTEMPTS} graphs with n = {n}, {what} from seed {seed} was "
            f"connected ({remedy})"
        )
    return with_weights(weights, lambda weights: Topology(where, stored(where, adjacency, weights)))
