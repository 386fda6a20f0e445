"""BlueFog's graphs and schedules: `networkx.DiGraph` with A[i, j] the weight of what i sends to j,
that is A = W^T.

A schedule is a generator without end: each step yields the ranks to which a rank sends, and those
from which it receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import networkx as nx
import numpy as np

from ... import topology as graphs

Ranks = Iterator[tuple[list[int], list[int]]]


def _graph(topology: graphs.Topology) -> nx.DiGraph:
    return nx.from_numpy_array(topology.W.toarray().T, create_using=nx.DiGraph)


def matrix(graph: nx.DiGraph) -> np.ndarray:
    """Return a in the order of the ranks, whatever the order in which the nodes were added."""
    return np.asarray(nx.to_numpy_array(graph, sorted(graph.nodes)))


# Graphs


def ExponentialTwoGraph(size: int) -> nx.DiGraph:
    """Each rank sends to those at the distances 1, 2, 4, ..., with equal weights."""
    return ExponentialGraph(size, 2)


def ExponentialGraph(size: int, base: int = 2) -> nx.DiGraph:
    """Each rank sends to those at the distances 1, base, base^2, ..., with equal weights."""
    return _graph(graphs.exponential(size, base))


def SymmetricExponentialGraph(size: int, base: int = 4) -> nx.DiGraph:
    """Ranks at the distances 1, base, base^2, ... on the ring are neighbours, with equal
    weights.
    """
    return _graph(graphs.symmetric_exponential(size, base))


def MeshGrid2DGraph(size: int, shape: tuple[int, int] | None = None) -> nx.DiGraph:
    """Grid, as square as possible or of the given shape, with the weights of Metropolis and
    Hastings.
    """
    return _graph(graphs.grid(size, shape))


def StarGraph(size: int, center_rank: int = 0) -> nx.DiGraph:
    """All ranks are neighbours of one, with the weight 1 / size."""
    return _graph(graphs.star(size, center=center_rank))


def RingGraph(size: int, connect_style: int = 0) -> nx.DiGraph:
    """Ring with equal weights: to both sides (0), to the left (1) or to the right (2)."""
    if connect_style not in (0, 1, 2):
        raise ValueError(
            f"RingGraph: connect_style is {connect_style!r}, expected 0 (both sides), 1 (left) or "
            "2 (right)"
        )
    if connect_style == 0:
        return _graph(graphs.ring(size))
    A = (
        np.eye(size)
        if size == 1
        else (np.eye(size) + np.roll(np.eye(size), 3 - 2 * connect_style, 0)) / 2
    )
    return nx.from_numpy_array(A, create_using=nx.DiGraph)


def FullyConnectedGraph(size: int) -> nx.DiGraph:
    """All ranks are neighbours, with the weight 1 / size."""
    return _graph(graphs.complete(size))


# What is asked of a graph


def IsTopologyEquivalent(topo1: nx.DiGraph | None, topo2: nx.DiGraph | None) -> bool:
    """Return whether both graphs have the same edges and the same matrix."""
    if topo1 is None or topo2 is None or set(topo1.nodes) != set(topo2.nodes):
        return False
    same_edges = set(topo1.edges) == set(topo2.edges)  # those of weight 0 among them
    return same_edges and np.array_equal(matrix(topo1), matrix(topo2))


def IsRegularGraph(topo: nx.DiGraph) -> bool:
    """Return whether all ranks have as many in-neighbours, and as many out-neighbours."""
    return len({(topo.in_degree(r), topo.out_degree(r)) for r in topo.nodes}) <= 1


def _split(
    weights: np.ndarray, rank: int, neighbors: Iterable[int]
) -> tuple[float, dict[int, float]]:
    return float(weights[rank]), {int(j): float(weights[j]) for j in sorted(neighbors) if j != rank}


def GetRecvWeights(topo: nx.DiGraph, rank: int) -> tuple[float, dict[int, float]]:
    """Return the weight of a rank for itself, and those of what it receives, also of weight 0."""
    return _split(matrix(topo)[:, rank], rank, topo.predecessors(rank))


def GetSendWeights(topo: nx.DiGraph, rank: int) -> tuple[float, dict[int, float]]:
    """Return the weight of a rank for itself, and those of what it sends, also of weight 0."""
    return _split(matrix(topo)[rank], rank, topo.successors(rank))


def isPowerOf(x: int, base: int) -> bool:
    """Return whether x is 1, base, base^2, ...

    Examples
    --------
    >>> isPowerOf(243, 3), isPowerOf(6, 2)
    (True, False)
    """
    if base < 2 or x < 1:
        raise ValueError(f"isPowerOf: x is {x}, base {base}, expected x >= 1 and base >= 2")
    while x % base == 0:
        x //= base
    return x == 1


# Schedules


def GetDynamicOnePeerSendRecvRanks(topo: nx.DiGraph, self_rank: int) -> Ranks:
    """Each rank sends to one out-neighbour after the other, beginning with the next one
    clockwise.
    """
    size = topo.number_of_nodes()
    near = {
        rank: sorted(
            (r for r in topo.successors(rank) if r != rank), key=lambda r: (r - rank) % size
        )
        for rank in topo.nodes
    }
    step = 0
    while True:
        dest = {rank: ranks[step % len(ranks)] for rank, ranks in near.items() if ranks}
        yield (
            [dest[self_rank]] if self_rank in dest else [],
            sorted(rank for rank, its in dest.items() if its == self_rank),
        )
        step += 1


def GetExp2DynamicSendRecvMachineRanks(
    world_size: int, local_size: int, self_rank: int, local_rank: int
) -> Ranks:
    """Machines at the distances 1, 2, 4, ..., one after the other."""
    machine, machines = self_rank // local_size, world_size // local_size
    if world_size % local_size or machines < 2 or self_rank % local_size != local_rank:
        raise ValueError(
            f"GetExp2DynamicSendRecvMachineRanks: {world_size} ranks, {local_size} per machine, "
            f"rank {self_rank} with the "
            f"place {local_rank}, expected at least two machines with equally many ranks, in blocks"
        )
    period = (machines - 1).bit_length()
    step = 0
    while True:
        distance = 2 ** (step % period)
        yield [(machine + distance) % machines], [(machine - distance) % machines]
        step += 1


def GetInnerOuterRingDynamicSendRecvRanks(
    world_size: int, local_size: int, self_rank: int
) -> Ranks:
    """On each machine one rank after the other talks to the next machine, and the others along a
    ring on the machine.
    """
    schedule = graphs.inner_outer(world_size, local_size, "ring")
    step = 0
    while True:
        graph = _graph(schedule.at(step))
        yield list(GetSendWeights(graph, self_rank)[1]), list(GetRecvWeights(graph, self_rank)[1])
        step += 1


def GetInnerOuterExpo2DynamicSendRecvRanks(
    world_size: int, local_size: int, self_rank: int
) -> Ranks:
    """Return the same with the distances 1, 2, 4, ... on the machines and between them, where step
    k has the distance of 2^k.

    `mpidec.topology.inner_outer(n, machine_size, "exponential")` changes the distance between
    machines after `local_size` steps instead, so that each rank meets each distance.
    """
    machines = world_size // local_size
    if world_size % local_size or machines < 2 or local_size < 3:
        raise ValueError(
            f"GetInnerOuterExpo2DynamicSendRecvRanks: {world_size} ranks, {local_size} per "
            "machine, expected at least two "
            "machines with three ranks each: mpidec.topology.schedules.inner_outer takes any numbers"
        )
    machine, place = divmod(self_rank, local_size)
    outer, inner = (machines - 1).bit_length(), (local_size - 2).bit_length()
    step = 0
    while True:
        # The place of the ranks that talk to other machines.
        outside = step % local_size
        if place == outside:
            distance = 2 ** (step % outer) * local_size
            yield [(self_rank + distance) % world_size], [(self_rank - distance) % world_size]
        else:
            distance, base = 2 ** (step % inner), machine * local_size
            ahead = distance + (distance >= (outside - place) % local_size)
            behind = distance + (distance >= (place - outside) % local_size)
            yield [base + (place + ahead) % local_size], [base + (place - behind) % local_size]
        step += 1
