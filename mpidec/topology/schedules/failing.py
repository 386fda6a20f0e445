"""Schedules of a graph some of whose links fail, or some of whose agents sleep, in each step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._random import uniform
from ..._words import with_known_options
from ..base.schedule import Schedule, refuse_filter, refuse_striped
from ..base.source import EdgeBlock, Source
from ..base.topology import Topology, fingerprint
from ..base.weights import with_diagonal
from ..derived.pair import push_pull
from .changing import Changing

# Added by an outer schedule to its seed, so that nested schedules of equal seeds draw
# independently: 2^64 divided by the golden ratio, whose multiples are spread evenly modulo 2^64.
LEVEL = 0x9E3779B97F4A7C15
Floats = NDArray[np.float64]


@with_known_options
def failing_links(topology: Topology | Schedule, p: float = 0.1, seed: int = 0) -> Schedule:
    r"""Links that fail: in each step, each link of a graph is down with probability p, and agents
    keep the weight of lost rows.

    With :math:`F^{(k)}` the links (j, i) that are down in step k,

    .. math:: \tilde W_{ij} = \begin{cases} 0 & (j, i) \in F^{(k)} \\ W_{ij} & \text{otherwise} \end{cases}, \qquad
              \tilde W_{ii} = W_{ii} + \sum_{j : (j, i) \in F^{(k)}} W_{ij}

    for symmetric and row-stochastic W.  If W is symmetric, both directions of an edge fail
    together, and :math:`\tilde W` is symmetric and doubly stochastic.  Other W that are doubly or
    column stochastic give a column-stochastic one, by :math:`\tilde W_{jj} = W_{jj} + \sum_{i : (j,
    i) \in F^{(k)}} W_{ij}`: the sender keeps what does not arrive.

    Parameters
    ----------
    topology : Topology or Schedule
        Also a schedule without a period, and a pair of matrices: the receiver keeps the weight of
        R, the sender that of C.
    p : float
        Probability of each link, independent of others and of other steps, in [0, 1).
    seed : int
        Of the draws, at least 0; whether a link is down depends on `seed`, the step and its two
        agents only, and on the seeds of such schedules in `topology`.

    Returns
    -------
    Schedule
        Without a period: of kind "doubly" for symmetric W, else "column", "row" or "pair".

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Notes
    -----
    Every agent must know which of its links are down in a step; for messages that are lost
    unnoticed, see `Mixer.lossy`.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> W = failing_links(ring(6), 0.5, seed=2)
    >>> [W.at(k).neighbors(0).tolist() for k in range(4)]
    [[1], [5], [1], [5]]
    """
    return Failing("failing_links", topology, p, seed)


@with_known_options
def sleeping_agents(topology: Topology | Schedule, p: float = 0.1, seed: int = 0) -> Schedule:
    r"""Agents that sleep: in each step, each agent is without all of its links with probability p.

    The weights are repaired as those of `failing_links`, with all links of an agent that sleeps in
    :math:`F^{(k)}`.  Its solver continues with its own row and gradient.  For agents that take
    fewer steps than others, use an asynchronous solver (`mpidec.solvers.Asynchronous`).

    Parameters
    ----------
    topology : Topology or Schedule
        As of `failing_links`.
    p : float
        Probability of each agent, in [0, 1).
    seed : int
        Of the draws, at least 0; whether an agent sleeps depends on `seed`, the step and the agent
        only.

    Returns
    -------
    Schedule
        Without a period: of kind "doubly" for symmetric W, else "column" or "row".

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type or is out of range.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> W = sleeping_agents(ring(6), 0.3, seed=1)
    >>> [[i for i in range(6) if not len(W.at(k).neighbors(i))] for k in range(3)]
    [[5], [], [3]]
    """
    return Failing("sleeping_agents", topology, p, seed)


class Failing(Schedule):
    """Schedule of a graph without the links that are down in a step; see `failing_links` and
    `sleeping_agents`.
    """

    period = None

    def __init__(self, name: str, topology: Topology | Schedule, p: float, seed: int) -> None:
        if not isinstance(topology, (Topology, Schedule)):
            raise TypeError(
                f"{name}: expected a topology or a schedule, got {topology!r} "
                f"({type(topology).__name__})"
            )
        refuse_striped(name, topology)
        refuse_filter(name, topology)
        if isinstance(topology, Changing):
            raise ValueError(
                f"{name}: expected a graph or a schedule of the package, not a from_function, of "
                "which only the function knows the steps: drop links there"
            )
        self.name, self.n, self.topology = name, topology.n, topology
        self.p = check.number(p, f"{name}: p", least=0, below=1)
        self.seed = check.integer(seed, f"{name}: seed", least=0)
        self.stream: int = self.seed
        if isinstance(topology, Failing):  # others than its draws
            self.stream += topology.stream + LEVEL
        steps = range(min(topology.period or 4, 64))
        symmetric = all(topology.at(k).symmetric for k in steps)
        kept = symmetric or topology.kind in ("row", "pair")
        self.kind = topology.kind if kept else "column"
        alone = name == "failing_links" and not symmetric  # a direction of an edge
        self.directed = topology.directed or alone

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0."""
        k = check.integer(k, f"{self.name}.at: k", least=0)
        return _at(self, k)

    @property
    def parameters(self) -> Mapping[str, object]:
        """Return the probability and the seed, and the parameters of the underlying schedule."""
        below = self.topology.parameters if isinstance(self.topology, Schedule) else {}
        inner = {f"{self.topology.name}.{name}": value for name, value in below.items()}
        return {"p": self.p, "seed": self.seed, **inner}

    def fingerprint(self) -> int:
        """Return a 63-bit hash of the whole schedule, the same on every rank and in every
        process.
        """
        return fingerprint(self.name, self.topology.fingerprint(), self.p, self.seed)


@lru_cache(maxsize=64)
def _at(schedule: Failing, k: int) -> Topology:
    below = schedule.topology.at(k)
    kind, name = schedule.kind, schedule.name
    if schedule.name == "failing_links":
        links = Links(schedule.p, schedule.stream, k, below.symmetric)
    else:
        links = Sleepers(schedule.p, schedule.stream, k)
    if kind == "pair":
        R, C = KeptLinks(below.R.source, links, "row"), KeptLinks(below.C.source, links, "column")
        return push_pull(Topology(name, R), Topology(name, C))
    return Topology(name, KeptLinks(below.source, links, kind))


class Links:
    """Whether links are down in a step.

    Parameters
    ----------
    p : float
    seed, k : int
        Step k.
    both : bool
        Whether both directions of an edge fail together.
    """

    def __init__(self, p: float, seed: int, k: int, both: bool) -> None:
        self.p, self.seed, self.k, self.both = p, seed, k, both

    def down(self, receivers: NDArray[Any], senders: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether each of these links is down."""
        i, j = receivers, senders
        if self.both:
            i, j = np.minimum(receivers, senders), np.maximum(receivers, senders)
        return uniform(self.seed, self.k, i, j) < self.p

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.p.hex()}, {self.seed}, {self.k})"


class Sleepers(Links):
    """Whether links are down in a step because an agent sleeps."""

    def __init__(self, p: float, seed: int, k: int) -> None:
        super().__init__(p, seed, k, True)

    def down(self, receivers: NDArray[Any], senders: NDArray[Any]) -> NDArray[np.bool_]:
        asleep = [uniform(self.seed, self.k, ends, ends) < self.p for ends in (receivers, senders)]
        return asleep[0] | asleep[1]


class KeptLinks(Source):
    """Mixing matrix without the links that are down, whose weights are on the diagonal.

    Parameters
    ----------
    W : Source
    links : Links
    kind : str
        "doubly" of a symmetric W, and "row": the receiver keeps the weight; "column": the sender.
    """

    def __init__(self, W: Source, links: Links, kind: str) -> None:
        self.base, self.links, self.n, self.kind = W, links, W.n, kind
        self.symmetric = W.symmetric

    @cached_property
    def directed(self) -> bool:  # type: ignore[override]
        if not self.base.directed and self.links.both:
            return False
        W = self.rows(0, self.n).csr != 0
        return bool((W != W.T).nnz)

    @cached_property
    def connected(self) -> bool:  # type: ignore[override]
        from scipy.sparse.csgraph import connected_components

        W = self.rows(0, self.n).csr
        return bool(connected_components(W, True, "strong", return_labels=False) == 1)

    @cached_property
    def arcs(self) -> int:
        W = self.rows(0, self.n).csr
        return int(W.nnz - np.count_nonzero(W.diagonal()))

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self._block(lo, hi, transpose=False)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return self._block(lo, hi, transpose=not self.symmetric)

    def token(self) -> bytes:
        return self.base.token() + f" {self.links!r} {self.kind}".encode()

    def _block(self, lo: int, hi: int, transpose: bool) -> EdgeBlock:
        data, columns, indptr, n = (self.base.columns if transpose else self.base.rows)(lo, hi)
        rows = np.repeat(np.arange(lo, hi), np.diff(indptr))
        down = self._down(rows, columns, transpose)
        keeper_is_row = transpose == (self.kind == "column")
        if keeper_is_row:
            kept = _sums(rows[down] - lo, data[down], hi - lo)
        else:
            kept = self._kept_elsewhere(lo, hi, transpose)
        own = rows == columns
        diagonal: Floats = np.zeros(hi - lo)
        diagonal[rows[own] - lo] = data[own]
        left = ~down & ~own
        counts = np.bincount(rows[left] - lo, minlength=hi - lo)
        heads = np.concatenate([[0], np.cumsum(counts)]).astype(indptr.dtype)
        return with_diagonal(lo, n, heads, columns[left], data[left], diagonal + kept)

    def _down(
        self, rows: NDArray[Any], columns: NDArray[Any], transpose: bool
    ) -> NDArray[np.bool_]:
        rows, columns = rows.astype(np.int64), columns.astype(np.int64)
        receivers, senders = (columns, rows) if transpose else (rows, columns)
        down: NDArray[np.bool_] = self.links.down(receivers, senders) & (rows != columns)
        return down

    def _kept_elsewhere(self, lo: int, hi: int, transpose: bool) -> Floats:
        """Return the weights that the agents of a block keep, read from the columns of W."""
        data, columns, indptr, _ = (self.base.rows if transpose else self.base.columns)(lo, hi)
        rows = np.repeat(np.arange(lo, hi), np.diff(indptr))
        down = self._down(rows, columns, not transpose)
        return _sums(rows[down] - lo, data[down], hi - lo)


def _sums(rows: NDArray[Any], data: Floats, m: int) -> Floats:
    sums = np.zeros(m)
    np.add.at(sums, rows, data)
    return sums
