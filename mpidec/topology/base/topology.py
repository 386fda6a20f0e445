"""Static topologies: a graph with its mixing matrix."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ... import _validation as check
from ..._words import settings
from .drawing import draw
from .source import EdgeBlock, Pair, Source
from .spectra import gap

if TYPE_CHECKING:
    import networkx
    from matplotlib.figure import Figure
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    r"""Graph of n agents with a mixing matrix W.

    .. math:: x_i^+ = \sum_j W_{ij} x_j, \qquad Y = W X

    :math:`W_{ij}` multiplies what agent i receives from agent j; rows are receivers.  Topologies
    are immutable, equal if their fingerprints are equal, and built by the functions of
    `mpidec.topology`.

    Parameters
    ----------
    name : str
        Name of the function that built it, e.g. "ring".
    source : Source
        Source of the entries of W.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> ring(4)
    Topology('ring', n=4, kind='doubly', directed=False)
    >>> ring(4).in_neighbors(0)
    array([1, 3])
    """

    name: str
    source: Source

    period: ClassVar[int] = 1
    divides_columns: ClassVar[bool] = False
    samples: ClassVar[bool] = False

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.source.n

    @property
    def kind(self) -> str:
        """Stochasticity of W, by the sums that are 1: "doubly" (rows and columns), "row" or
        "column"; "pair" of R and C; "any" of a graph filter, which averages nothing.
        """
        return self.source.kind

    @property
    def R(self) -> Topology:
        """The row-stochastic part of a pair (see `push_pull`), which is its W; any other
        topology itself.
        """
        return Topology(self.name, self.source.R) if isinstance(self.source, Pair) else self

    @property
    def C(self) -> Topology:
        """The column-stochastic part of a pair; any other topology itself."""
        return Topology(self.name, self.source.C) if isinstance(self.source, Pair) else self

    @property
    def directed(self) -> bool:
        """Whether some agent sends to another without receiving from it."""
        return self.source.directed

    @property
    def symmetric(self) -> bool:
        """Whether W equals its transpose."""
        return self.source.symmetric

    @property
    def connected(self) -> bool:
        """Whether there is a path from every agent to every other."""
        return self.source.connected

    @property
    def is_tree(self) -> bool:
        """Whether the graph is undirected and connected with n - 1 edges."""
        return not self.directed and self.connected and self.source.arcs == 2 * (self.n - 1)

    @cached_property
    def W(self) -> csr_array:
        """Mixing matrix, shape (n, n), float64, read-only, with sorted columns in each row."""
        return self.source.matrix()

    def rows(self, lo: int, hi: int) -> csr_array:
        """Return the rows lo, ..., hi - 1 of W, shape (hi - lo, n); graphs defined by a rule
        compute only these.
        """
        return self.source.rows(*self._block("rows", lo, hi)).csr

    def columns(self, lo: int, hi: int) -> csr_array:
        """Return the columns lo, ..., hi - 1 of W as rows: W[:, lo:hi].T, shape (hi - lo, n)."""
        return self.source.columns(*self._block("columns", lo, hi)).csr

    def _block(self, method: str, lo: int, hi: int) -> tuple[int, int]:
        """Return the bounds of a block of agents as two ints with 0 <= lo <= hi <= n."""
        where = f"{self.name}.{method}"
        hi = check.integer(hi, f"{where}: hi", least=0, most=self.n)
        return check.integer(lo, f"{where}: lo", least=0, most=hi), hi

    def in_neighbors(self, i: int) -> NDArray[np.int64]:
        """Return the agents that agent i receives from, ascending, without i."""
        i = check.integer(i, f"{self.name}.in_neighbors: agent", least=0, most=self.n - 1)
        return _others(self.source.rows(i, i + 1), i)

    def out_neighbors(self, i: int) -> NDArray[np.int64]:
        """Return the agents that agent i sends to, ascending, without i."""
        i = check.integer(i, f"{self.name}.out_neighbors: agent", least=0, most=self.n - 1)
        return _others(self.source.columns(i, i + 1), i)

    def neighbors(self, i: int) -> NDArray[np.int64]:
        """Return the agents that agent i receives from or sends to, ascending, without i."""
        return np.union1d(self.in_neighbors(i), self.out_neighbors(i))

    @property
    def choices(self) -> tuple[tuple[str, Topology], ...]:
        """The graph with each of the weights among which a search for a step size chooses, by
        their names: several with `weights="auto"`, else itself alone.
        """
        return (("", self),)

    def chosen(self, weights: str) -> Topology:
        """Return the one of the `choices` with this name, or this topology if there is none."""
        return dict(self.choices).get(weights, self)

    def at(self, k: int) -> Topology:
        """Return this topology for any step k, as a schedule would."""
        return self

    def spectral_gap(self) -> float:
        r"""Return the spectral gap: the fraction by which one mixing reduces the largest
        disagreement.

        .. math:: 1 - \sigma_2(W)

        with the second largest singular value of a doubly stochastic W.  For a row or column
        stochastic W it is :math:`1 - |\lambda_2(W)|` with the second largest modulus of an
        eigenvalue, and for a pair the smaller one of R and C.  1 means an exact average in one
        step, 0 that a step need not reduce the disagreement.

        Notes
        -----
        Computed by a Fourier transform of the weights for circulants, tori and hypercubes of any
        size, from a dense matrix for up to 600 agents, and by ARPACK beyond, which is slow if the
        gap is tiny (a chain of thousands).

        Examples
        --------
        >>> from mpidec.topology import exponential
        >>> round(exponential(16).spectral_gap(), 12)          # 2 / (1 + log2 n)
        0.4
        """
        return gap([self.source], self.kind)

    def to_networkx(self) -> networkx.Graph:
        """Return a networkx Graph, or a DiGraph with an edge j -> i for each weight W[i, j] if the
        graph is directed.

        Every agent is a node with its own weight as the attribute "self_weight".  W[i, j] is the
        attribute "weight" of the edge if W is symmetric or the graph is directed.  Self-loops are
        omitted.
        """
        import networkx

        W = self.W.tocoo()
        off = W.row != W.col
        G = networkx.DiGraph() if self.directed else networkx.Graph()
        G.add_nodes_from((i, {"self_weight": w}) for i, w in enumerate(self.W.diagonal().tolist()))
        edges = zip(W.col[off].tolist(), W.row[off].tolist(), W.data[off].tolist())
        if self.directed or self.symmetric:
            G.add_weighted_edges_from(edges)
        else:
            G.add_edges_from((j, i) for j, i, _ in edges)
        return G

    def plot(self, style: str = "screen") -> Figure:
        r"""Plot the graph and the eigenvalues of W.

        Parameters
        ----------
        style : str
            "screen" or "paper" (serif letters).

        Returns
        -------
        matplotlib.figure.Figure
            A figure without a window: ``figure.savefig("ring.png")`` writes it, and a notebook
            displays it.  Eigenvalues are drawn by size if W is symmetric, else in the complex
            plane; the shaded band or disc has the second largest modulus.

        Raises
        ------
        ValueError
            There are more than 512 agents.

        Examples
        --------
        >>> from mpidec.topology import exponential
        >>> len(exponential(8).plot().axes)
        2
        """
        known = None if self.kind == "any" else self.spectral_gap()
        return draw(self.name, [self], self.kind, known, "", style)

    def fingerprint(self) -> int:
        """Return a 63-bit hash of name, n and W, the same on every rank and in every process."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> int:
        more = [*settings(self).values()][2:]
        return fingerprint(self.name, self.n, self.source.token(), more)

    def __eq__(self, other: object) -> bool:
        return (
            self.fingerprint() == other.fingerprint()
            if isinstance(other, Topology)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return self.fingerprint()

    def __getstate__(self) -> dict[str, Any]:
        # Without cached values.
        return settings(self)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, n={self.n}, kind={self.kind!r}, "
            f"directed={self.directed})"
        )


def sums_in_words(kind: str) -> str:
    """Describe a W of this kind, for messages.

    Examples
    --------
    >>> sums_in_words("row"), sums_in_words("pair"), sums_in_words("any")
    ('row stochastic', 'a pair', 'a graph filter')
    """
    return {"pair": "a pair", "any": "a graph filter"}.get(kind, f"{kind} stochastic")


def fingerprint(*parts: Any) -> int:
    """Return a 63-bit hash of the representations of the parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _others(row: EdgeBlock, i: int) -> NDArray[np.int64]:
    result: NDArray[np.int64] = row.indices[row.indices != i].astype(np.int64)
    return result


def undirected_edges(where: str, topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the edges (i, j), i < j, of an undirected graph.

    Raises
    ------
    TypeError, ValueError
        It is no topology, a schedule, or directed.
    """
    if not isinstance(topology, Topology):
        raise TypeError(
            f"{where}: expected a constant topology such as topology.ring(16), got {topology!r:.60}"
        )
    if topology.directed:
        raise ValueError(
            f"{where}: {topology.name} is directed, expected an undirected graph, such as ring or "
            "symmetric_exponential"
        )
    W = topology.W.tocoo()
    upper = W.row < W.col
    return W.row[upper].astype(np.int64), W.col[upper].astype(np.int64)
