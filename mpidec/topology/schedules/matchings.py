"""Random schedules on a given graph: in each step, agents average over some of its matchings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Schedule
from ..base.source import Computed
from ..base.spectra import DENSE, _lanczos
from ..base.topology import Topology, fingerprint, undirected_edges

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# from which the expectation of random matchings is estimated; fewer for more than 1000 agents
DRAWS = 1000
# Most edges of a graph for which probabilities are optimized.
EDGES = 3000
# Of probabilities and weights; rounded, so that they are the same on all ranks.
ACCURACY, DIGITS = (
    1e-8,
    6,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@with_known_options
def random_matchings(topology: Topology, seed: int = 0) -> Schedule:
    r"""Random matchings: in each step, pairs of neighbours average, and each agent belongs to at
    most one pair.

    The edges are taken in a random order, and one whose ends are both free becomes a pair, so that
    no edge is left between two free agents.  With the partner :math:`\pi(i)` of agent i in the
    step, or i itself,

    .. math:: W^{(k)} &= \tfrac12 (I + P), \quad P_{i,\pi(i)} = 1, \\
              E[W] &= I - \tfrac12 \sum_{(i,j)} p_{ij} (e_i - e_j)(e_i - e_j)^T, \quad p_{ij} \ge
              \frac{1}{d_i + d_j - 1}

    with the degrees d and the probability p of each edge.

    Parameters
    ----------
    topology : Topology
        Undirected graph; its weights are not used.
    seed : int
        Of the draws, at least 0; the matching of step k depends on `seed` and k only.

    Returns
    -------
    Schedule
        Doubly stochastic and symmetric, without a period, degree at most 1.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, or the graph is directed.

    Notes
    -----
    Every rank computes the matchings of all agents from the list of edges, without communication.
    `spectral_gap()` is :math:`1 - \sqrt{\rho(E[W] - \tfrac1n 1 1^T)}`, since :math:`W^T W = W`,
    with E[W] estimated from 1000 draws (fewer for more than 1000 agents).

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> W = random_matchings(ring(6), seed=1)
    >>> [[int(j) for i in range(6) for j in W.at(k).neighbors(i)] for k in range(2)]
    [[1, 0, 3, 2, 5, 4], [2, 1, 5, 4]]

    References
    ----------
    Boyd, Ghosh, Prabhakar, Shah: Randomized gossip algorithms, IEEE Transactions on Information
    Theory 52, 2006.
    """
    where = "random_matchings"
    edges = undirected_edges(where, topology)
    return RandomMatchings(topology, edges, check.integer(seed, f"{where}: seed", least=0))


@with_known_options
def matcha(topology: Topology, budget: float = 0.5, seed: int = 0) -> Matcha:
    r"""MATCHA: the edges of a graph, divided into matchings that are active at random, the
    important ones more often.

    With the Laplacians :math:`L_1, \dots, L_M` of matchings that make up the graph, and independent
    :math:`B_j^{(k)} \in \{0, 1\}` with the probabilities :math:`p_j`,

    .. math:: W^{(k)} = I - \alpha \sum_j B_j^{(k)} L_j, \qquad
              p = \arg\max_{0 \le p \le 1} \lambda_2\Bigl(\sum_j p_j L_j\Bigr) \text{ with } \sum_j
              p_j \le C M,

    .. math:: \alpha &= \arg\min_\alpha \rho\bigl(E[W^T W] - \tfrac1n 1 1^T\bigr), \qquad
              \bar L = \sum_j p_j L_j, \\
              E[W^T W] &= I - 2 \alpha \bar L
              + \alpha^2 \Bigl(\bar L^2 + 2 \sum_j p_j (1 - p_j) L_j\Bigr).

    Parameters
    ----------
    topology : Topology
        Undirected graph; its weights are not used.
    budget : float
        C, in (0, 1]: the fraction of the matchings that are active on average.
    seed : int
        Of the draws, at least 0; the matrix of step k depends on `seed` and k only.

    Returns
    -------
    Matcha
        Schedule of symmetric matrices whose rows sum to 1, without a period; with the attributes
        `matchings`, `probabilities` and `alpha`.  If many matchings of an agent are active, its own
        weight may be negative.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range, or the graph is directed or not
        connected.

    Notes
    -----
    With budget 1 it is the graph with `best_constant` weights.  The matchings are an edge colouring
    of Misra and Gries, at most one more than the largest degree.  p comes from an interior point
    method; for more than 600 agents or 3000 edges all p are equal.  `spectral_gap()` is :math:`1 -
    \sqrt{\rho}` at the best alpha.

    Examples
    --------
    >>> from mpidec.topology import star
    >>> W = matcha(star(5), budget=0.5)
    >>> W.probabilities.round(6).tolist(), round(W.alpha, 4), round(W.spectral_gap(), 4)
    ([0.5, 0.5, 0.5, 0.5], 0.5, 0.1708)

    References
    ----------
    Wang, Sahu, Yang, Joshi, Kar: MATCHA: speeding up decentralized SGD via matching decomposition
    sampling, ICC 2019.
    """
    where = "matcha"
    i, j = undirected_edges(where, topology)
    budget = check.number(budget, f"{where}: budget", above=0, most=1)
    seed = check.integer(seed, f"{where}: seed", least=0)
    if not topology.connected:
        raise ValueError(f"{where}: {topology.name} is not connected, expected a connected graph")
    return Matcha(topology.n, matching_decomposition(topology.n, i, j), budget, seed)


class Matchings(Computed):
    """W = I - weight * sum of the Laplacians of some matchings.

    Parameters
    ----------
    partners : (M, n) int array
        The partner of each agent in each matching, or the agent itself.
    weight : float
    """

    directed, symmetric = False, True

    def __init__(self, partners: Ints, weight: float) -> None:
        self.partners, self.weight, self.n = partners, weight, partners.shape[1]

    @property
    def arcs(self) -> int:
        return int(np.count_nonzero(self.partners != np.arange(self.n)))

    @cached_property
    def connected(self) -> bool:  # type: ignore[override]
        from scipy.sparse.csgraph import connected_components

        return bool(connected_components(self.rows(0, self.n).csr, directed=False)[0] == 1)

    def senders(self, agents: NDArray[Any]) -> tuple[NDArray[Any], Floats]:
        columns = np.c_[agents, self.partners[:, agents].T]
        weights = np.where(columns == agents[:, None], 0.0, self.weight)
        weights[:, 0] = 1 - weights[:, 1:].sum(axis=1)
        return columns, weights

    def token(self) -> bytes:
        digest = hashlib.blake2b(b"matchings", digest_size=16)
        digest.update(self.partners.astype("<i8").tobytes())
        return digest.digest() + self.weight.hex().encode()


class RandomMatchings(Schedule):
    """One maximal matching of a graph in each step, drawn from the seed and the number of the
    step.
    """

    name, kind, period, directed = "random_matchings", "doubly", None, False

    def __init__(self, topology: Topology, edges: tuple[Ints, Ints], seed: int) -> None:
        self.n, self.topology, self._edges, self._seed = topology.n, topology, edges, seed
        self._ends = list(zip(edges[0].tolist(), edges[1].tolist()))

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0."""
        k = check.integer(k, f"{self.name}.at: k", least=0)
        return Topology(self.name, Matchings(self._partners(k)[None], 0.5))

    def _partners(self, k: int) -> Ints:
        order = np.argsort(generator(self._seed, k).permutation(len(self._ends)))
        partner, ends = list(range(self.n)), self._ends
        for e in order.tolist():
            i, j = ends[e]
            if partner[i] == i and partner[j] == j:
                partner[i], partner[j] = j, i
        return np.array(partner)

    def spectral_gap(self) -> float:
        r"""Return the fraction by which a step reduces the largest disagreement in the mean
        square, estimated from draws.
        """
        if self.n == 1:
            return 1.0
        draws = max(20, min(DRAWS, 10**6 // self.n))
        drawn = np.stack([self._partners(k) for k in range(draws)])
        L = laplacian(drawn, np.full(draws, 0.5 / draws))
        return 1 - math.sqrt(largest_eigenvalue(lambda x: x - L @ x, self.n))

    @property
    def parameters(self) -> Mapping[str, object]:
        """The seed."""
        return {"seed": self._seed}

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        i, j = self._edges
        return fingerprint(self.name, self.n, i.tobytes(), j.tobytes(), self._seed)


class Matcha(Schedule):
    """Matchings of a graph that are active at random.

    Parameters
    ----------
    n : int
    matchings : (M, n) int array
        The partner of each agent in each matching, or the agent itself.
    budget : float
    seed : int

    Attributes
    ----------
    probabilities : (M,) float array
        Of the matchings to be active.
    alpha : float
        Weight of an active edge.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> matcha(ring(4), budget=0.5).matchings.tolist()
    [[1, 0, 3, 2], [3, 2, 1, 0]]
    """

    name, kind, period, directed = "matcha", "doubly", None, False

    def __init__(self, n: int, matchings: Ints, budget: float, seed: int) -> None:
        self.n, self.matchings, self._seed = n, matchings, seed
        self.probabilities = activation_probabilities(matchings, budget)
        self.alpha, self._rho = best_weight(matchings, self.probabilities)

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0."""
        k = check.integer(k, f"{self.name}.at: k", least=0)
        active = generator(self._seed, k).random(len(self.matchings)) < self.probabilities
        return Topology(self.name, Matchings(self.matchings[active], self.alpha))

    def spectral_gap(self) -> float:
        r"""Return the fraction by which a step reduces the largest disagreement in the mean square.

        .. math:: 1 - \sqrt{\rho\bigl(E[W^T W] - \tfrac1n 1 1^T\bigr)}
        """
        return 1 - math.sqrt(self._rho)

    @property
    def parameters(self) -> Mapping[str, object]:
        """The mean number of matchings that are active, and the seed."""
        return {"active": float(self.probabilities.sum()), "seed": self._seed}

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        return fingerprint(
            self.name,
            self.n,
            self.matchings.tobytes(),
            self.probabilities.tolist(),
            self.alpha,
            self._seed,
        )


def generator(seed: int, k: int) -> np.random.Generator:
    """Return the random numbers of step k: the highest word of Philox's counter is k, draws
    increment the lowest.
    """
    return np.random.Generator(np.random.Philox(key=_key(seed), counter=[0, 0, 0, k]))


@lru_cache(maxsize=64)
def _key(seed: int) -> NDArray[np.uint64]:
    """Return the key of Philox that belongs to a seed."""
    return np.asarray(np.random.SeedSequence(seed).generate_state(2, np.uint64), np.uint64)


class _EdgeColouring:
    """A proper colouring of the edges of a graph, to which edges are added.

    Attributes
    ----------
    across : list of dict
        The neighbour of each agent by the colour of the edge.
    """

    def __init__(self, n: int):
        self.across: list[dict[int, int]] = [{} for _ in range(n)]
        self._colours: list[dict[int, int]] = [{} for _ in range(n)]  # by neighbour

    def add(self, u: int, v: int, most: int) -> None:
        """Add the edge (u, v) in a colour below `most` that is free at both ends, or rotate a
        fan of u.
        """
        across = self.across
        both = next((c for c in range(most) if c not in across[u] and c not in across[v]), None)
        if both is not None:
            self._paint(u, v, both)
            return
        # No common free colour.  Exchange c and d on a path from u, so that d is free at u, then
        # shift the colours along the fan up to an agent where d is free, too.
        fan = self._fan(u, v)
        c, d = self._free(u), self._free(fan[-1])
        self._exchange(u, c, d)
        end = next(k for k, w in enumerate(fan) if d not in across[w])
        for w, following in pairwise(fan[: end + 1]):  # rotate
            self._paint(u, w, self._erase(u, following))
        self._paint(u, fan[end], d)

    def _fan(self, u: int, v: int) -> list[int]:
        """Neighbours of u from v on: the colour of each edge to u is free at the one before."""
        fan = [v]
        while more := [
            w for w, c in self._colours[u].items() if w not in fan and c not in self.across[fan[-1]]
        ]:
            fan.append(min(more))
        return fan

    def _exchange(self, u: int, c: int, d: int) -> None:
        """Exchange two colours along the path from u on that begins with d."""
        path, colour = [u], d
        while colour in self.across[path[-1]]:
            path.append(self.across[path[-1]][colour])
            colour = c if colour == d else d
        colours = [self._erase(a, b) for a, b in pairwise(path)]
        for (a, b), old in zip(pairwise(path), colours):
            self._paint(a, b, c if old == d else d)

    def _paint(self, u: int, v: int, colour: int) -> None:
        for a, b in ((u, v), (v, u)):
            self._colours[a][b], self.across[a][colour] = colour, b

    def _erase(self, u: int, v: int) -> int:
        colour = self._colours[u][v]
        for a, b in ((u, v), (v, u)):
            del self._colours[a][b], self.across[a][colour]
        return colour

    def _free(self, u: int) -> int:
        return next(c for c in range(len(self._colours[u]) + 1) if c not in self.across[u])


def matching_decomposition(n: int, i: Ints, j: Ints) -> Ints:
    """Return matchings, at most one more than the largest degree, in which each edge (i, j) lies
    once, shape (M, n).

    Misra and Gries: A constructive proof of Vizing's theorem, Information Processing Letters 41,
    1992.
    """
    colouring = _EdgeColouring(n)
    most = int(np.bincount(np.r_[i, j]).max()) if len(i) else 0
    for u, v in zip(i.tolist(), j.tolist()):
        colouring.add(u, v, most)
    across = colouring.across
    count = 1 + max((c for colours in across for c in colours), default=-1)
    partners = np.tile(np.arange(n), (count, 1))
    for u, colours_of_u in enumerate(across):
        for c, v in colours_of_u.items():
            partners[c, u] = v
    return partners


def laplacian(partners: Ints, weights: Floats) -> csr_array:
    """Return the weighted sum of the Laplacians of matchings."""
    from scipy.sparse import coo_array, csr_array, diags_array

    M, n = partners.shape
    i = np.tile(np.arange(n), M)
    j, w = partners.ravel(), np.repeat(weights, n)
    off = i != j
    A = csr_array(coo_array((w[off], (i[off], j[off])), shape=(n, n)))
    return csr_array(diags_array(np.asarray(A.sum(axis=1))) - A)


def activation_probabilities(partners: Ints, budget: float) -> Floats:
    r"""Return the p with mean at most `budget` that maximize the second smallest eigenvalue of
    sum_j p_j L_j.

    This is the largest t with :math:`S = \sum_j p_j L_j - t (I - J) + J \succ 0`, :math:`J =
    \tfrac1n 1 1^T`, by an interior point method: Newton steps for the maximum of :math:`t / \mu +
    \log \det S + \sum_j (\log p_j + \log (1 - p_j)) + \log (C M - \sum_j p_j)` with :math:`\mu \to
    0`.
    """
    M, n = partners.shape
    matching, i = np.nonzero(partners > np.arange(n))
    j, edges = partners[matching, i], len(i)
    if M < 2 or budget == 1 or n > DENSE or edges > EDGES:
        return np.full(M, budget)
    B = np.zeros((n, edges))  # columns e_i - e_j
    B[i, range(edges)], B[j, range(edges)] = 1, -1
    member = (matching == np.arange(M)[:, None]).astype(float)
    centre = np.eye(n) - 1 / n

    def matrix(x: Floats) -> Floats:
        S: Floats = (B * x[matching]) @ B.T - x[M] * centre + 1 / n
        return S

    def objective(x: Floats, mu: float) -> float:
        inside = np.r_[x[:M], 1 - x[:M], budget * M - x[:M].sum()]
        try:
            root = np.linalg.cholesky(matrix(x))
        except np.linalg.LinAlgError:
            return -np.inf
        if inside.min() <= 0:
            return -np.inf
        return float(x[M] / mu + 2 * np.log(np.diag(root)).sum() + np.log(inside).sum())

    # The unknowns are p and t.  Start inside: equal probabilities within the budget, and half of
    # the t that they allow.
    x = np.r_[np.full(M, 0.9 * budget), 0.0]
    x[M] = np.linalg.eigvalsh(matrix(x))[0] / 2
    # At its optimum the barrier costs at most about mu (n + 2 M): lower mu until that is small
    # relative to t.
    mu = x[M]
    while mu * (n + 2 * M) > ACCURACY * x[M]:
        mu /= 10
        for _ in range(50):
            p, rest = x[:M], budget * M - x[:M].sum()
            P = np.linalg.inv(matrix(x)) - 1 / n
            PB = P @ B
            D = B.T @ PB
            slope = np.r_[
                member @ np.diag(D) + 1 / p - 1 / (1 - p) - 1 / rest, 1 / mu - np.trace(P)
            ]
            H = np.empty((M + 1, M + 1))  # minus the second derivatives
            H[:M, :M] = member @ D**2 @ member.T + np.diag(p**-2 + (1 - p) ** -2) + rest**-2
            H[:M, M] = H[M, :M] = -member @ (PB**2).sum(axis=0)
            H[M, M] = (P**2).sum()
            step = np.linalg.solve(H, slope)
            gain, length, now = float(slope @ step), 1.0, objective(x, mu)
            if gain < 1e-9:
                break
            while objective(x + length * step, mu) < now + 0.1 * length * gain and length > 1e-9:
                length /= 2
            x = x + length * step
    found: Floats = np.clip(x[:M].round(DIGITS), 0, 1)
    return found


def best_weight(partners: Ints, p: Floats) -> tuple[float, float]:
    """Return the weight alpha of active edges with the least rho(E[W^T W] - 11^T / n), and this
    rho.
    """
    if partners.shape[1] == 1:
        return 0.5, 0.0
    from scipy.optimize import minimize_scalar

    mean, spread = laplacian(partners, p), laplacian(partners, p * (1 - p))

    def rho(alpha: float) -> float:
        def apply(x: Floats) -> Floats:
            y = mean @ x
            z: Floats = x - 2 * alpha * y + alpha**2 * (mean @ y + 2 * (spread @ x))
            return z

        return largest_eigenvalue(apply, partners.shape[1])

    alpha = round(
        float(minimize_scalar(rho, bounds=(0, 1), method="bounded", options={"xatol": 1e-8}).x),
        DIGITS,
    )
    return alpha, rho(alpha)


def largest_eigenvalue(apply: Callable[[Floats], Floats], n: int) -> float:
    """Return the largest eigenvalue, at least 0, of a symmetric matrix on the vectors orthogonal
    to 1.
    """

    def centred(x: Floats) -> Floats:
        y: Floats = apply(x - x.mean(axis=0))
        return y

    if n <= DENSE:
        return max(float(np.linalg.eigvalsh(centred(np.eye(n)))[-1]), 0.0)
    return max(_lanczos(centred, n, "LA"), 0.0)
