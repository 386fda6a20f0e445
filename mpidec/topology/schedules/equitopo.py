"""EquiTopo: random circulant graphs whose consensus rate does not depend on the number of
agents.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Schedule
from ..base.source import Stored
from ..base.topology import Topology, fingerprint
from ..graphs.circulant import Circulant

KINDS = ("OD", "OU", "D-static", "U-static")


@with_known_options
def equitopo(
    n: int, kind: str = "OD", M: int | None = None, eta: float = 0.5, seed: int = 0
) -> Topology | Schedule:
    r"""EquiTopo: graphs drawn among the circulant ones; their consensus rate does not depend on n.

    With the basis :math:`A^{(u)}`, in which agent i receives from agent i + u (mod n),

    .. math:: A^{(u)}_{i,i} = \tfrac1n, \qquad A^{(u)}_{i,(i + u) \bmod n} = \tfrac{n - 1}n, \qquad u = 1, \dots, n - 1,

    and hops :math:`u_1, \dots, u_M` drawn uniformly with replacement, the kinds are

    .. math:: \text{D-static: } W = \frac1M \sum_m A^{(u_m)} \qquad
              \text{U-static: } W = \frac1{2M} \sum_m \bigl(A^{(u_m)} + A^{(u_m) T}\bigr)

    and, with one of the hops drawn anew in each step,

    .. math:: \text{OD: } W^{(k)} = (1 - \eta) I + \eta A^{(u)} \qquad
              \text{OU: } W^{(k)} = (1 - \eta) I + \eta \bigl(\tfrac1n I + \tfrac{n - 1}n Q\bigr)

    where Q swaps pairs of agents at distance u: from a random agent s on, i and i + u are
    matched if both are free.

    Parameters
    ----------
    n : int
        Number of agents, at least 1.
    kind : str
        "OD" (one peer, directed: EquiDyn), "OU" (one peer, undirected), "D-static" or "U-static".
    M : int, optional
        Number of hops drawn.  By default log2(n) of them for a static graph; for one peer all n -
        1, none twice.
    eta : float
        Weight of the exchange, in (0, 1]; for one peer.
    seed : int
        Of the draws; the same on all ranks.

    Returns
    -------
    Topology or Schedule
        Doubly stochastic.  A static graph, or a schedule without a period, whose matrix of step k
        depends on `seed` and k only.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Notes
    -----
    One peer: each agent sends one vector and receives one in each step.  :math:`M \ge 8 \ln(2n / p)
    / (3 \epsilon^2)` gives :math:`\|W - \tfrac1n 1 1^T\|_2 < \epsilon` with probability 1 - p for a
    static graph.

    Examples
    --------
    >>> W = equitopo(6)
    >>> [int(W.at(k).in_neighbors(0)[0]) for k in range(6)]
    [5, 4, 3, 2, 2, 1]
    >>> W.at(2).W[[0], :].toarray().round(3).tolist()
    [[0.583, 0.0, 0.0, 0.417, 0.0, 0.0]]
    >>> equitopo(6, "U-static", M=3).in_neighbors(0).tolist()
    [1, 2, 4, 5]

    References
    ----------
    Song, Li, Jin, Shi, Yan, Yin, Yuan: Communication-efficient topologies for decentralized
    learning with O(1) consensus rate, NeurIPS 2022.
    """
    where = "equitopo"
    n, seed = check.integer(n, f"{where}: n"), check.integer(seed, f"{where}: seed", least=0)
    kind = check.choice(kind, f"{where}: kind", KINDS)
    eta = check.number(eta, f"{where}: eta", above=0, most=1)
    static = kind.endswith("static")
    if M is None and static:
        M = max(1, int(math.log2(n)))
    if M is not None:
        M = check.integer(M, f"{where}: M")
    every = np.arange(1, n) if n > 1 else np.zeros(1, np.int64)
    hops = every if M is None else np.random.RandomState(seed).choice(every, size=M, replace=True)
    if not static:
        return EquiDyn(n, hops, eta, seed, undirected=kind == "OU")
    both = np.r_[hops, -hops] % n if kind == "U-static" else hops
    return Topology(where, _circulant(n, both, 1.0))


def _circulant(n: int, hops: NDArray[np.int64], eta: float) -> Circulant:
    """(1 - eta) I + eta times the mean of A^(u) over the hops u."""
    weights: NDArray[np.float64] = np.bincount(-hops % n, minlength=n) * np.float64(
        eta * (n - 1) / (n * len(hops))
    )
    weights[0] = 1 - weights[1:].sum()
    used = np.union1d(0, np.flatnonzero(weights))
    return Circulant(n, used, weights[used])


class EquiDyn(Schedule):
    """One-peer EquiTopo: a hop u, drawn for each step.

    Parameters
    ----------
    n : int
    hops : sequence of int
        The hops that are drawn from; one that is listed twice is drawn twice as often.
    eta : float
    seed : int
    undirected : bool
        Whether agents are paired ("OU").
    """

    kind, period = "doubly", None

    def __init__(
        self,
        n: int,
        hops: Sequence[int] | NDArray[np.int64],
        eta: float,
        seed: int,
        undirected: bool,
    ) -> None:
        self.name, self.n, self.directed = "equitopo", n, not undirected and n > 2
        self._hops, self._eta, self._seed, self._undirected = (
            np.asarray(hops, np.int64),
            eta,
            seed,
            undirected,
        )
        self._random = np.random.default_rng(seed)
        self._drawn = array("q")  # hop and first agent of each step

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0."""
        k = check.integer(k, "equitopo.at: k", least=0)
        while len(self._drawn) <= 2 * k:
            u = int(self._random.choice(self._hops))
            s = int(self._random.integers(self.n)) if self._undirected else 0
            self._drawn.extend((u, s))
        return self._matrix(*self._drawn[2 * k : 2 * k + 2])

    def _matrix(self, u: int, s: int) -> Topology:
        from scipy.sparse import csr_array, eye_array

        n, eta = self.n, self._eta
        if not self._undirected:
            return Topology(self.name, _circulant(n, np.array([u]), eta))
        partner = self._partners(u, s)
        Q = csr_array((np.ones(n), (np.arange(n), partner)), (n, n))
        return Topology(
            self.name,
            Stored((1 - eta + eta / n) * eye_array(n, format="csr") + eta * (n - 1) / n * Q),
        )

    def _partners(self, u: int, s: int) -> NDArray[np.int64]:
        """Return the partner of each agent, or the agent itself if it has none."""
        n, partner = self.n, list(range(self.n))
        for i in (*range(s, n), *range(s)):
            j = (i + u) % n
            if partner[i] == i and partner[j] == j:
                partner[i], partner[j] = j, i
        return np.array(partner)

    def spectral_gap(self) -> float:
        r"""Return the fraction by which a step reduces the largest disagreement in the mean square,
        over the draws.

        .. math:: 1 - \sqrt{\rho\bigl(E[W^T W] - \tfrac1n 1 1^T\bigr)}
        """
        n, eta = self.n, self._eta
        if n == 1:
            return 1.0
        drawn, counts = np.unique(self._hops, return_counts=True)
        # All A^(u) have the same eigenvectors.
        waves = np.exp(2j * np.pi * np.outer(np.arange(1, n), drawn) / n)
        # W = a I + b Q and Q^2 = I; from all s together, Q is circulant, too.
        if self._undirected:
            a, b = 1 - eta + eta / n, eta * (n - 1) / n
            single = np.array(
                [np.mean(self._partners(u, 0) == np.arange(n)) for u in drawn.tolist()]
            )
            factors = a * a + b * b + 2 * a * b * (single + (1 - single) * waves.real)
        else:
            factors = np.abs(1 - eta + eta * (1 + (n - 1) * waves) / n) ** 2
        return float(1 - math.sqrt(max((factors @ (counts / counts.sum())).max(), 0.0)))

    @property
    def parameters(self) -> Mapping[str, object]:
        """The weight of the neighbours, and the seed."""
        return {"eta": self._eta, "seed": self._seed}

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        return fingerprint(
            self.name, self.n, self._hops.tolist(), self._eta, self._seed, self._undirected
        )
