"""Averaging in pairs: rates of the edges, and the constants of the graph on which its speed
depends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._words import with_known_options
from .base.spectra import DENSE, _lanczos
from .base.topology import Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Rate = float | Mapping[tuple[int, int], float] | Any
# Edges whose resistances are computed at once.
BLOCK = 256


@with_known_options
def edge_rates(topology: Topology, rate: Rate = 1.0) -> csr_array:
    r"""Return the rates of averaging of the edges, a symmetric (n, n) sparse array.

    Parameters
    ----------
    topology : Topology
        Undirected graph; its weights are not used.
    rate : float, dict or (n, n) matrix
        A number: each agent rings `rate` / 2 times in a unit of time, and averages with a neighbour
        chosen uniformly, so that :math:`\lambda_{ij} = \tfrac{1}{2} \text{rate} (1 / d_i + 1 /
        d_j)` with the degrees d; on a regular graph, each agent averages `rate` times in a unit of
        time.  A dict ``{(i, j): rate}`` or a symmetric matrix: the rates themselves, of edges of
        the graph; edges that are not named have the rate 0.

    Raises
    ------
    TypeError, ValueError
        The graph is a schedule or directed, or the rates are no finite numbers >= 0 of its edges.

    Examples
    --------
    >>> from mpidec.topology import star
    >>> edge_rates(star(3)).toarray()
    array([[0.  , 0.75, 0.75],
           [0.75, 0.  , 0.  ],
           [0.75, 0.  , 0.  ]])
    """
    from scipy.sparse import coo_array, csr_array

    if not isinstance(topology, Topology):
        raise TypeError(
            "edge_rates: expected a constant topology such as topology.ring(16), got "
            f"{topology!r:.60}"
        )
    n = topology.n
    if topology.directed:
        raise ValueError(
            f"edge_rates: {topology.name} is directed, expected an undirected graph, such as ring "
            "or "
            "symmetric_exponential: two neighbours exchange"
        )
    W = topology.W.tocoo()
    off = W.row != W.col
    i, j = W.row[off].astype(np.int64), W.col[off].astype(np.int64)
    if isinstance(rate, Mapping) or (hasattr(rate, "shape") and np.ndim(rate) != 0):
        return _given(topology, rate)
    value = check.number(rate, "edge_rates: rate", above=0)
    degree = np.bincount(i, minlength=n)
    rates = 0.5 * value * (1 / degree[i] + 1 / degree[j])
    return csr_array(coo_array((rates, (i, j)), shape=(n, n)))


def _given(topology: Topology, rate: Mapping[tuple[int, int], float] | ArrayLike) -> csr_array:
    from scipy.sparse import coo_array, csr_array

    n = topology.n
    if isinstance(rate, Mapping):
        pairs = [
            (
                check.integer(i, "edge_rates: agent", least=0, most=n - 1),
                check.integer(j, "edge_rates: agent", least=0, most=n - 1),
                float(value),
            )
            for (i, j), value in rate.items()
        ]
        whole = {(i, j): value for i, j, value in pairs} | {(j, i): value for i, j, value in pairs}
        i, j = np.array(list(whole), np.int64).reshape(-1, 2).T
        R = csr_array(coo_array((list(whole.values()), (i, j)), shape=(n, n), dtype=float))
    else:
        R = csr_array(rate)
        R.data = check.floats(R.data, "edge_rates: rate")
        if R.shape != (n, n) or abs(R - R.T).max() > 0:
            raise ValueError(
                f"edge_rates: rate has shape {R.shape}, expected a symmetric matrix of shape "
                f"{(n, n)}"
            )
    R.eliminate_zeros()
    if not np.isfinite(R.data).all() or (R.data < 0).any():
        raise ValueError(
            "edge_rates: some rates of edges are negative or not finite, expected finite numbers "
            ">= 0"
        )
    C = R.tocoo()
    edges = topology.W
    wrong = [(int(a), int(b)) for a, b in zip(C.row, C.col) if a == b or edges[a, b] == 0]
    if wrong:
        raise ValueError(f"edge_rates: {wrong[0]} is no edge of {topology.name}")
    return R


def mixing_constants(topology: Topology, rate: Rate = 1.0) -> tuple[float, float]:
    r"""Return the constants :math:`\chi_1, \chi_2` of a graph whose neighbours average in pairs.

    .. math::
        L &= \sum_{(i, j)} \lambda_{ij} (e_i - e_j)(e_i - e_j)^T, \\
        \chi_1 &= \frac{1}{\lambda_2(L)}, \qquad
        \chi_2 = \max_{(i, j)} \tfrac12 (e_i - e_j)^T L^+ (e_i - e_j) \le \chi_1

    Randomized gossip needs a time of :math:`\chi_1`, `A2CiD2` of :math:`\sqrt{\chi_1 \chi_2}`.

    Parameters
    ----------
    topology, rate
        As for `edge_rates`.

    Returns
    -------
    tuple of float
        :math:`\chi_1` and :math:`\chi_2`; (0, 0) for a single agent.

    Raises
    ------
    TypeError, ValueError
        As `edge_rates`, or the graph is not connected by edges of positive rate.

    Notes
    -----
    Computed in closed form for circulants, tori and hypercubes, from a dense matrix for up to 600
    agents, and by a sparse factorization beyond.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> chi1, chi2 = mixing_constants(ring(16))
    >>> round(chi1, 4), round(chi2, 4)
    (13.1371, 0.9375)

    References
    ----------
    A. Nabli, E. Belilovsky, E. Oyallon, "A2CiD2: accelerating asynchronous communication in
    decentralized deep learning", NeurIPS 2023.
    """
    uniform = not isinstance(rate, Mapping) and np.ndim(rate) == 0
    group = (
        topology.source.group
        if isinstance(topology, Topology) and not topology.directed and uniform
        else None
    )
    if group is not None:
        if topology.n == 1:
            return 0.0, 0.0
        value = check.number(rate, "mixing_constants: rate", above=0)
        adjacent = topology.columns(0, 1).tocoo()
        hops = adjacent.coords[1][adjacent.coords[1] != 0]
        if len(hops) and topology.connected:
            return _of_group(group, hops, value / len(hops))
    R = edge_rates(topology, rate)
    if topology.n == 1:
        return 0.0, 0.0
    from scipy.sparse.csgraph import connected_components

    if connected_components(R, directed=False)[0] > 1:
        raise ValueError(
            f"mixing_constants: {topology.name} is not connected by edges of positive rate, so "
            "that the agents never "
            "agree: add edges"
        )
    return _dense(R) if topology.n <= DENSE else _sparse(R)


def _of_group(group: tuple[int, ...], hops: NDArray[Any], rate: float) -> tuple[float, float]:
    """Return the constants of a graph with the edges i, i + hop on a product of cyclic groups,
    all of one rate.
    """
    n = math.prod(group)
    if len(hops) == n - 1:
        return 1 / (rate * n), 1 / (rate * n)
    grids = np.meshgrid(*(np.fft.fftfreq(size) for size in group), indexing="ij", sparse=True)

    def wave(hop: int) -> NDArray[np.float64]:
        """Return 1 - cos of the phases of a hop, for each character of the group."""
        steps = [
            int(h) if 2 * h <= size else int(h) - size
            for h, size in zip(np.unravel_index(hop, group), group)
        ]
        squares: NDArray[np.float64] = (
            2 * np.sin(np.pi * sum(h * grid for h, grid in zip(steps, grids))).ravel() ** 2
        )
        return squares

    values = np.zeros(n)
    for hop in hops:
        values += rate * wave(hop)
    rest = values[1:]
    return float(1 / rest.min()), float(max((wave(hop)[1:] / rest).sum() / n for hop in hops))


def _dense(R: csr_array) -> tuple[float, float]:
    A = R.toarray()
    values, vectors = np.linalg.eigh(np.diag(A.sum(axis=1)) - A)
    half = vectors[:, 1:] / np.sqrt(values[1:])
    i, j = np.nonzero(np.triu(A))
    return float(1 / values[1]), float(0.5 * ((half[i] - half[j]) ** 2).sum(axis=1).max())


def _sparse(R: csr_array) -> tuple[float, float]:
    from scipy.sparse import csc_array, diags_array
    from scipy.sparse.linalg import splu

    n = R.shape[0]
    L = csc_array(diags_array(np.asarray(R.sum(axis=1)).ravel()) - R)
    factor = splu(L[1:, 1:])  # agent 0 is grounded

    def inverse(x: NDArray[np.float64]) -> NDArray[np.float64]:
        y = np.zeros_like(x)
        y[1:] = factor.solve(x[1:] - x.mean())
        result: NDArray[np.float64] = y - y.mean()
        return result

    C = R.tocoo()
    upper = C.row < C.col
    i, j, worst = C.row[upper], C.col[upper], 0.0
    for lo in range(0, len(i), BLOCK):
        a, b = i[lo : lo + BLOCK], j[lo : lo + BLOCK]
        k = np.arange(len(a))
        E = np.zeros((n, len(a)))
        E[a, k], E[b, k] = 1, -1
        E[1:] = factor.solve(E[1:])
        E[0] = 0
        worst = max(worst, float((E[a, k] - E[b, k]).max()))
    return _lanczos(inverse, n, "LA"), 0.5 * worst
