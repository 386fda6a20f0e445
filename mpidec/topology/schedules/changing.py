"""Schedules defined by a function of the step, such as the graphs of moving agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import with_known_options
from ..base.schedule import Schedule
from ..base.source import TOLERANCE, EdgeBlock, Source, Stored, block_of, canonical, sealed
from ..base.topology import Topology, fingerprint
from ..base.weights import OPTIMIZED, AgentWeights, WeightsLike, entries
from ..graphs.explicit import (
    check_entries,
    check_sums,
    from_networkx,
    is_networkx,
    matrix_of,
    sorted_nodes,
)

KINDS = ("doubly", "row", "column")
SUMS = {"metropolis": "doubly", "lazy": "doubly", "uniform": "row", "push": "column"}
# Agents up to which an array is the quickest form of a matrix.
DENSE = 1024


@with_known_options
def from_function(
    n: int,
    f: Callable[[int], Any],
    *,
    kind: str = "doubly",
    weights: WeightsLike = "metropolis",
    signed: bool = False,
) -> Changing:
    """Schedule defined by a function of the step, for moving agents or weights that adapt.

    Parameters
    ----------
    n : int
        Number of agents.
    f : callable
        `f(k)` is the graph of step k = 0, 1, 2, ...: a mixing matrix of floats, shape (n, n); an
        array of bools, shape (n, n), whether agent i receives from agent j, which gets `weights`;
        a networkx graph, which gets them, too; or a topology.  It need not be connected.
    kind : {"doubly", "row", "column"}
        Which sums of all matrices are 1, within 1e-10.
    weights : str or float
        Edge weights, see `mpidec.topology.base.weights`.
    signed : bool
        Whether negative weights are accepted.

    Returns
    -------
    Changing
        Schedule without a period.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type; and in the step in which it happens: `f` returns something
        else, a matrix of another shape, with entries that are not finite or negative, or other
        sums.

    Notes
    -----
    In one process, a mixer makes no plan of what travels: it reads the matrix and mixes.  Arrays of
    floats, and of bools with metropolis or lazy weights, are the quickest.  On several ranks, each
    calls `f` and finds its part of the graph by itself, so `f` must return the same everywhere; the
    ranks compare step 0 when the mixer is made.  The mixer calls `f` once per step, when it comes
    to it.  `spectral_gap()` is estimated from 200 steps.

    Examples
    --------
    Agents on circles, who hear each other within a distance:

    >>> import mpidec, numpy as np
    >>> from mpi4py import MPI
    >>> def near(k):
    ...     angles = 0.05 * k * np.arange(1, 7) + np.arange(6)
    ...     places = np.column_stack([np.cos(angles), np.sin(angles)])
    ...     return np.linalg.norm(places[:, None] - places, axis=2) < 1.2
    >>> with mpidec.Network(6, comm=MPI.COMM_SELF) as net:
    ...     W, X = net.mixer(from_function(6, near)), np.eye(6)
    ...     for k in range(100):
    ...         X = W(X)
    ...     float(abs(X - 1 / 6).max()) < 1e-3
    True
    """
    where = "from_function"
    n = check.integer(n, f"{where}: n")
    check.takes(f, f"{where}: f", "k")
    if weights in OPTIMIZED or weights == "push-pull":
        raise ValueError(
            f"{where}: weights is {weights!r}, expected weights that agents know of their "
            "neighbours, "
            'such as "metropolis": f may return topologies with others'
        )
    return Changing(n, f, check.choice(kind, f"{where}: kind", KINDS), weights, bool(signed))


class Changing(Schedule):
    """Schedule of the graphs that a function returns; made by `from_function`.

    Attributes
    ----------
    signed : bool
        Whether negative weights are accepted.
    gamma : float or None
        Bools get the weights gamma / (1 + max(d_i, d_j)), if it is not None.

    Examples
    --------
    >>> from_function(4, lambda k: np.full((4, 4), 0.25))
    Schedule('from_function', n=4, kind='doubly', directed=False, period=None)
    """

    name, period = "from_function", None

    def __init__(
        self, n: int, f: Callable[[int], Any], kind: str, weights: WeightsLike, signed: bool
    ) -> None:
        self.n, self.kind, self._f, self._weights, self.signed = n, kind, f, weights, signed
        rule = str(weights).split("(")[0] if isinstance(weights, str) else "uniform"
        self._sums = SUMS.get(rule, "")
        self.gamma = {"metropolis": 1.0, "lazy": 0.5}.get(str(weights))
        self._one = np.ones(n)
        self._given: tuple[int, Any] = -1, None
        self._last: tuple[int, Topology] | None = None

    @property
    def function(self) -> Callable[[int], Any]:
        """The function that returns the graphs."""
        return self._f

    @cached_property
    def directed(self) -> bool:  # type: ignore[override]
        """Whether the graph of step 0 is directed, or W need not be doubly stochastic."""
        return self.kind != "doubly" or self.at(0).directed

    def at(self, k: int) -> Topology:
        """Return the topology of step k >= 0."""
        if not (type(k) is int and k >= 0):
            k = check.integer(k, f"{self.name}.at: k", least=0)
        if self._last is None or self._last[0] != k:
            given = self.given(k)
            self._given = -1, None  # after an error, the function is called again
            self._last = k, self.topology(k, given)
            self._given = k, given
        return self._last[1]

    def given(self, k: int) -> Any:
        """Return what the function returns for step k, as a new array where that is quick; calls
        with the same k in a row call it once.
        """
        if self._given[0] != k:
            given = self._f(k)
            if given is None:
                raise TypeError(f"{self.name}: f({k}) returned None, expected a graph or weights")
            self._given = k, given.copy() if type(given) is np.ndarray else self._as_array(given)
        return self._given[1]

    def _as_array(self, given: Any) -> Any:
        """Return a copy as an array if that is cheap, else `given` itself."""
        if self.n > DENSE:
            return given
        from scipy.sparse import issparse

        if issparse(given) and given.shape == (self.n, self.n) and given.dtype == np.float64:
            return given.toarray(order="C")
        if self.gamma is not None and is_networkx(given):
            import networkx

            undirected = isinstance(given, networkx.Graph) and not given.is_directed()
            if undirected and given.number_of_nodes() == self.n:
                return networkx.to_numpy_array(given, sorted_nodes(given), bool, weight=None)
        return given

    def topology(self, k: int, given: Any) -> Topology:
        """Return the topology of what was `given` for step k."""
        where = f"{self.name}: step {k}"
        if type(given) is np.ndarray and given.shape == (self.n, self.n):
            if given.dtype == bool:
                block = self._weighted(where, given)
                if self._sums in ("doubly", self.kind):
                    return Topology(self.name, GivenSchedule(block, self.kind))
                given = Topology(self.name, Stored(block.csr))
            elif given.dtype == np.float64 and self._fits(given):
                return Topology(self.name, Dense(given, self.kind))
        if is_networkx(given):
            given = from_networkx(given, self._weights, connected=False)
        if not isinstance(given, Topology):
            matrix = matrix_of(given, where)
            check_entries(matrix, self.signed, where)
            check_sums(matrix, where, self.kind)
            W = canonical(matrix)
            block = EdgeBlock(W.data, W.indices, W.indptr, W.shape[0])
            given = Topology(self.name, GivenSchedule(block, self.kind))
        if given.n != self.n:
            raise ValueError(f"{where}: the graph has {given.n} agents, expected {self.n}")
        if given.kind == "any":
            raise ValueError(
                f"{where}: {given.name} is a graph filter, expected {self.kind} stochastic: make a "
                "mixer of each filter"
            )
        if given.kind not in ("doubly", self.kind):
            raise ValueError(
                f"{where}: {given.name} is {given.kind} stochastic, expected {self.kind} "
                f'stochastic: from_function(..., kind="{given.kind}")'
            )
        topology: Topology = given
        return topology

    def _fits(self, A: NDArray[np.float64]) -> bool:
        """Quick test of entries and sums; `from_weights` describes what is wrong."""
        one = self._one
        rows, columns = A @ one - one, one @ A - one
        return (
            (self.kind == "column" or abs(rows).max() <= TOLERANCE)
            and (self.kind == "row" or abs(columns).max() <= TOLERANCE)
            and (self.signed or bool(A.min() >= 0))
        )

    def _weighted(self, where: str, edges: NDArray[np.bool_]) -> EdgeBlock:
        if edges.diagonal().any():
            edges = edges & ~np.eye(self.n, dtype=bool)
        block, directed = block_of(edges), not np.array_equal(edges, edges.T)
        if isinstance(self._weights, AgentWeights):
            return self._weights.of(where, block, directed)
        return cast("EdgeBlock", entries(where, block, directed, self._weights))

    def fingerprint(self) -> int:
        """Return a 63-bit hash of step 0, the same on every rank and in every process."""
        return fingerprint(self.name, self.n, self.kind, self.at(0).fingerprint())


class GivenSchedule(Source):
    """Mixing matrix of which nothing but its rows is known before it is asked for."""

    def __init__(self, block: EdgeBlock, kind: str) -> None:
        self.block, self.kind, self.n = sealed(block), kind, block.n

    @cached_property
    def _stored(self) -> Stored:
        return Stored(self.block.csr)

    @property
    def directed(self) -> bool:  # type: ignore[override]
        return self._stored.directed

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self._stored.symmetric

    @property
    def connected(self) -> bool:  # type: ignore[override]
        return self._stored.connected

    @property
    def arcs(self) -> int:
        return self._stored.arcs

    def rows(self, lo: int, hi: int) -> EdgeBlock:
        return self.block if hi - lo == self.n else self._stored.rows(lo, hi)

    def columns(self, lo: int, hi: int) -> EdgeBlock:
        return self._stored.columns(lo, hi)

    def token(self) -> bytes:
        return self._stored.token()


class Dense(GivenSchedule):
    """Mixing matrix given as an array."""

    def __init__(self, A: NDArray[np.float64], kind: str) -> None:
        self.kind, self.n = kind, len(A)
        self._A = A
        if kind != "column":
            self.dense = A

    @cached_property
    def block(self) -> EdgeBlock:  # type: ignore[override]
        return sealed(block_of(self._A))
