"""Schedules of symmetric matrices whose product over a period is the exact average, for any
number of agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.rules import Cliques, clique
from ..base.schedule import Periodic, Schedule
from ..base.source import Computed
from ..base.topology import Topology
from ..base.weights import EdgeWeights, Weighted


@with_known_options
def hypercuboid(n: int, factors: Sequence[int] | None = None) -> Schedule:
    r"""Hyper-cuboid: exact averaging of n agents, in each step within groups of p agents, where p
    is a factor of n.

    With :math:`n = p_0 p_1 \cdots p_{\tau-1}` and the digits :math:`i = i_0 + p_0 (i_1 + p_1 (i_2 +
    \dots))`, the agents that differ only in digit r average in the steps :math:`k \equiv r \pmod
    \tau`:

    .. math:: W^{(k)}_{ij} = \frac1{p_r} \text{ if } i_s = j_s \text{ for all } s \ne r, \text{ otherwise } 0

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    factors : sequence of int, optional
        The factors in the order of the steps, with product n; by default the prime factors in
        ascending order.

    Returns
    -------
    Schedule
        Doubly stochastic and symmetric, with one phase per factor; degree p - 1.  The product over
        any phases in sequence whose number is the period is the exact average.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or the factors have another product.

    Notes
    -----
    With factors 2 it is the one-peer hypercube.  With :math:`p_0` agents on each machine, the first
    step of a period stays within the machines.  If n is prime it is the complete graph: `base_k`
    has a smaller degree.

    Examples
    --------
    >>> W = hypercuboid(12)
    >>> W.period, [W.at(k).neighbors(0).tolist() for k in range(3)]
    (3, [[1], [2], [4, 8]])
    >>> hypercuboid(12, factors=[4, 3]).spectral_gap()
    1.0

    References
    ----------
    Nguyen, Jiang, Ying, Uribe: On graphs with finite-time consensus and their use in gradient
    tracking, arXiv:2311.01317, 2023.
    """
    name = "hypercuboid"
    n = check.integer(n, f"{name}: n")
    if factors is None:
        sizes = primes(n)
    else:
        if isinstance(factors, (str, bytes)) or not isinstance(factors, (Sequence, np.ndarray)):
            raise TypeError(
                f"{name}: factors is {factors!r}, expected a sequence of integers with product n = "
                f"{n}, e.g. {primes(n)}"
            )
        sizes = [check.integer(p, f"{name}: factors") for p in factors]
        if int(np.prod(sizes, dtype=object)) != n:
            raise ValueError(
                f"{name}: factors {sizes} have product {np.prod(sizes, dtype=object)}, expected n "
                f"= {n}, e.g. {primes(n)}"
            )
    return _cuboid(name, [p for p in sizes if p > 1])


@with_known_options
def one_peer_hypercube(n: int) -> Schedule:
    r"""One-peer hypercube: in each step an agent exchanges with a single peer; exact averaging of
    any number of agents.

    If n is a power of two, agents whose numbers differ in binary digit r average in the steps
    :math:`k \equiv r \pmod{\log_2 n}`:

    .. math:: W^{(k)}_{i,i} = W^{(k)}_{i,i \oplus 2^r} = \tfrac12

    For other n it is `base_k(n, 1)`, whose phases are pairs of agents, too; some have weights other
    than 1/2, and some agents are idle in some steps.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.

    Returns
    -------
    Schedule
        Doubly stochastic and symmetric, degree at most 1; the product over a period is the exact
        average.  The period is log2 n for a power of two, otherwise at most :math:`2 \lfloor \log_2
        n \rfloor + 1`.

    Raises
    ------
    TypeError, ValueError
        n is not an integer >= 1.

    Notes
    -----
    Each agent sends at most one vector and receives one in each step.  Unlike `ceca`, which
    averages any n in ceil(log2 n) steps with two vectors per agent, it needs no solver of its own.

    Examples
    --------
    >>> [one_peer_hypercube(8).at(k).neighbors(5).tolist() for k in range(3)]
    [[4], [7], [1]]
    >>> one_peer_hypercube(6).period, one_peer_hypercube(6).spectral_gap()
    (4, 1.0)

    References
    ----------
    Shi, Li, Johansson, Johansson: Finite-time convergent gossiping, IEEE/ACM Transactions on
    Networking 24, 2016. Nguyen, Jiang, Ying, Uribe: On graphs with finite-time consensus and their
    use in gradient tracking, arXiv:2311.01317, 2023.
    """
    name = "one_peer_hypercube"
    n = check.integer(n, f"{name}: n")
    return Periodic(name, tuple(Topology(name, phase.source) for phase in base_k(n, 1).phases))


@with_known_options
def base_k(n: int, k: int = 1) -> Periodic:
    r"""Base-(k+1) graph: exact averaging of any number of agents, each with at most k neighbours
    per step.

    The Simple Base-(k+1) graph writes n in base k + 1,

    .. math:: n = \sum_{l=1}^L a_l (k+1)^{p_l}, \quad p_1 > p_2 > \dots, \quad 1 \le a_l \le k,

    and divides the agents into sets :math:`V_l` of :math:`a_l (k+1)^{p_l}` agents, and these into
    :math:`a_l` blocks.  First, each set averages by a `hypercuboid`.  In step l after that, each
    agent of :math:`V_{l+1}, \dots, V_L` has one neighbour in each block of :math:`V_l`, with edges
    of the weight

    .. math:: \frac{(k+1)^{p_l}}{|V_l| + |V_{l+1}| + \dots + |V_L|},

    after which each block of :math:`V_l` has the average of all agents; a `hypercuboid` spreads it
    within :math:`V_l`.

    The Base-(k+1) graph writes n = p q, where p has all prime factors up to k + 1: the simple graph
    within p sets of q agents is followed by a `hypercuboid` across them.  The shorter of the two is
    returned.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    k : int
        Largest number of neighbours in a step, at least 1.

    Returns
    -------
    Periodic
        Doubly stochastic and symmetric, degree at most k; the product over a period, from its first
        phase on, is the exact average.  The period is at most :math:`2 \log_{k+1} n + 2`.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Notes
    -----
    Products over the period that begin with another phase are not exact; those of 2 period - 1
    phases always are.

    Examples
    --------
    >>> W = base_k(5)
    >>> W.period, W.spectral_gap(), [W.at(k).neighbors(4).tolist() for k in range(5)]
    (5, 1.0, [[], [], [0], [], []])
    >>> [base_k(47, k).period for k in (1, 2, 4)]
    [11, 7, 5]

    References
    ----------
    Takezawa, Sato, Bao, Niwa, Yamada: Beyond exponential graph: communication-efficient topologies
    for decentralized learning via finite-time convergence, NeurIPS 2023.
    """
    name = "base_k"
    n, k = check.integer(n, f"{name}: n"), check.integer(k, f"{name}: k")
    smooth = n
    for p in primes(n):
        if p > k + 1:
            smooth //= p
    outer = fewest_factors(smooth, k + 1)
    q = n // smooth
    whole, sets = _phases(n, k), _phases(q, k)
    if whole < sets + len(outer):
        q, sets, outer = n, whole, ()
    phases = [Topology(name, Base(n, q, k, m)) for m in range(sets)] + _across(name, outer, q)
    return Periodic(name, tuple(phases or _across(name, [1], 1)))


@dataclass(frozen=True)
class Base(Computed):
    """Phase m of the Simple Base-(k+1) graph, within each of the sets of q consecutive agents."""

    n: int
    q: int
    k: int
    m: int

    directed, symmetric = False, True

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self.n <= self.k + 1

    @property
    def arcs(self) -> int:
        weights = self.senders(np.arange(self.q))[1]
        return self.n // self.q * (int(np.count_nonzero(weights)) - self.q)

    def senders(self, agents: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        j = agents % self.q
        columns = np.repeat(agents[:, None], self.k + 1, axis=1)
        weights = np.zeros(columns.shape)
        weights[:, 0] = 1
        parts = powers(self.q, self.k + 1)
        ends = [0, *accumulate(a * b for a, b in parts)]
        for s, (lo, hi) in enumerate(pairwise(ends)):
            mine = (lo <= j) & (j < hi)
            found, w = self._set(s, parts, ends, j[mine] - lo)
            width = found.shape[1]
            columns[mine, :width] = (agents - j)[mine, None] + found
            weights[mine, :width] = w
        return columns, weights

    def _set(
        self, s: int, parts: list[tuple[int, int]], ends: list[int], j: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.float64] | float]:
        """Return the table of the agents j of set s, counted from its first one."""
        last, start, k = len(parts) - 1, ends[s], self.k
        averaging = len(fewest_factors(parts[0][0] * parts[0][1], k + 1))
        # The set that all later ones meet in this phase.
        t = self.m - averaging
        if t < 0:
            return self._cuboid(j, parts[s][0] * parts[s][1], self.m, start)
        if t > s or t == s == last:
            return self._cuboid(j, parts[s][1], t - s - (s < last), start)
        a, block = parts[t]
        later, w = self.q - ends[t + 1], block / (self.q - ends[t])
        if t < s:
            number = start - ends[t + 1] + j
            found = np.c_[start + j, ends[t] + number[:, None] + np.arange(a) * block]
            return found, np.r_[1 - a * w, np.full(a, w)]
        place = j % block
        found = np.repeat(start + j[:, None], k + 1, axis=1)
        weights = np.zeros(found.shape)
        meets = place < later
        found[meets, 1] = ends[t + 1] + place[meets]
        weights[:, 0], weights[meets, 0], weights[meets, 1] = 1, 1 - w, w
        # The others of set t average in groups.
        rest = ~meets
        number = (j // block * (block - later) + place - later)[rest]
        total = a * (block - later)
        first = number // (k + 1) * (k + 1)
        member = first[:, None] + np.arange(k + 1)
        size = np.minimum(total - first, k + 1)[:, None]
        whose = member // max(block - later, 1) * block + member % max(block - later, 1) + later
        found[rest] = start + whose
        weights[rest] = np.where(member < total, 1 / size, 0)
        return found, weights

    def _cuboid(
        self, j: NDArray[Any], size: int, phase: int, start: int
    ) -> tuple[NDArray[Any], float]:
        sizes = fewest_factors(size, self.k + 1) or (1,)
        r = phase % len(sizes)
        return start + clique(j, sizes[r], int(np.prod(sizes[:r], dtype=int))), 1 / sizes[r]


def _phases(n: int, k: int) -> int:
    """Return the length of the Simple Base-(k+1) graph."""
    parts = powers(n, k + 1)
    a, block = parts[0]
    averaging = len(fewest_factors(a * block, k + 1))
    return averaging + (1 + len(fewest_factors(block, k + 1)) if len(parts) > 1 else 0)


def _cuboid(name: str, factors: Sequence[int]) -> Periodic:
    return Periodic(name, tuple(_across(name, factors or [1], 1)))


def _across(name: str, factors: Sequence[int], q: int) -> list[Topology]:
    """Return the phases of a hyper-cuboid of sets of q consecutive agents."""
    shape = (*factors[::-1], q) if q > 1 else tuple(factors[::-1])
    return [
        Topology(
            name, Weighted(Cliques(shape, len(factors) - 1 - r), EdgeWeights("regular", 1 / p))
        )
        for r, p in enumerate(factors)
    ]


def powers(n: int, base: int) -> list[tuple[int, int]]:
    """Return the nonzero digits of n with the powers of the base that they multiply, the largest
    first.

    >>> powers(25, 3)
    [(2, 9), (2, 3), (1, 1)]
    """
    found, power = [], 1
    while n:
        n, digit = divmod(n, base)
        if digit:
            found.append((digit, power))
        power *= base
    return found[::-1]


def primes(n: int) -> list[int]:
    """Return the prime factors of n in ascending order.

    >>> primes(360)
    [2, 2, 2, 3, 3, 5]
    """
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            n //= p
            found.append(p)
        p += 1
    return [*found, n] if n > 1 else found


@lru_cache(maxsize=4096)
def fewest_factors(n: int, most: int) -> tuple[int, ...]:
    """Return as few factors as possible, each from 2 to `most`, with product n, which has no larger
    prime factors.

    >>> fewest_factors(24, 5), fewest_factors(36, 6), fewest_factors(1, 2)
    ((4, 3, 2), (6, 6), ())
    """
    if n == 1:
        return ()
    if n <= most:
        return (n,)
    divisors = (d for d in range(most, 1, -1) if n % d == 0)
    found = [(d, *fewest_factors(n // d, most)) for d in divisors if max(primes(n // d)) <= most]
    return min(found, key=len)
