"""Rows over the links of nodes, counted from the graph and the placement of its agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..comm.runtime import Partition
from ..exceptions import InputError
from ..topology import Schedule, Topology

PLACEMENTS = ("slot", "cyclic")
# Graphs that are counted of a schedule; more are a sample of its period.
PHASES = 32
# Periods of a schedule, and mixings, after half of which ranks are ahead of each other as in a long
# run.
ROUNDS, MIXINGS = 8, 32
# Edges that are counted: 10^8 take some GB and seconds.
MOST_EDGES = 100_000_000


class Traffic(NamedTuple):
    """Largest numbers in a mixing: messages of a rank to, or from, other nodes; messages that both
    ends of one have at least; rows of a rank to, or from, other nodes; rows over a node's link;
    terms of a rank's sums beside its agents' own rows.

    A link carries both directions at once: the larger one counts.
    """

    messages: int
    mutual: int
    rows: int
    link: int
    terms: int

    @property
    def message(self) -> float:
        """Rows in a message to another node."""
        return self.rows / max(self.messages, 1)


def nodes_of(ranks: int, per_node: int, placement: str) -> np.ndarray:
    """Return the node of each rank: filled one after the other ("slot"), or in turn ("cyclic").

    Examples
    --------
    >>> nodes_of(5, 2, "slot").tolist(), nodes_of(5, 2, "cyclic").tolist()
    ([0, 0, 1, 1, 2], [0, 1, 2, 0, 1])
    """
    rank = np.arange(ranks)
    return rank // per_node if placement == "slot" else rank % -(-ranks // per_node)


@dataclass(frozen=True)
class Flow:
    """What a mixing moves between ranks.

    Attributes
    ----------
    far, near : (array, array)
        Ranks that send to, and that receive from, ranks of other nodes, and of their own node.
    traffic : Traffic
    """

    far: tuple[np.ndarray, np.ndarray]
    near: tuple[np.ndarray, np.ndarray]
    traffic: Traffic


def flow(graph: Topology, node: np.ndarray) -> Flow:
    """Return what a mixing moves, with agents in blocks on ranks, which are on the nodes
    `node[rank]`.  A row travels once to each rank that needs it.

    Raises
    ------
    InputError
        The graph has more than 10^8 edges.
    """
    if graph.source.arcs > MOST_EDGES:
        raise InputError(
            f"{graph.name} of {graph.n} agents has {graph.source.arcs:,} edges, expected at most "
            f"{MOST_EDGES:,}: choose fewer --ranks or another graph"
        )
    block = graph.source.columns(0, graph.n)
    sender = np.repeat(np.arange(graph.n), np.diff(block.indptr))
    receiver = block.indices
    host = Partition(graph.n, len(node)).owner(np.arange(graph.n))
    to = host[receiver]
    across = node[host[sender]] != node[to]
    agent, dest = _distinct(sender[across], to[across], len(node))
    far = _distinct(host[agent], dest, len(node))
    ends = [np.bincount(ranks, minlength=len(node))[ranks] for ranks in far]
    counted = Traffic(
        max(map(_most, far)),
        int(np.minimum(*ends).max(initial=0)),
        max(_most(host[agent]), _most(dest)),
        max(_most(node[host[agent]]), _most(node[dest])),
        _most(to[sender != receiver]),
    )
    inside = ~across & (host[sender] != to)
    return Flow(far, (host[sender[inside]], to[inside]), counted)


def overlapped(
    flows: Sequence[Flow], seconds: Sequence[float], held: Sequence[float], ranks: int
) -> float:
    r"""Return the time of a mixing in the mean over many: with the times t in which a row comes to
    another node, and h t after which its sender, and a receiver that waits for no other row, go on,

    .. math:: e_i^{k+1} = \max(e_i^k + h^k t^k [\text{i exchanges with another node}],
        \max_j e_j^k + t^k [\text{j is on another node}])

    over the ranks j that send to i.  Where few ranks of a node exchange rows in each mixing, or
    rows go one way, the others go on meanwhile.
    """
    rounds = max(ROUNDS, MIXINGS // len(flows))
    e, ends = np.zeros(ranks), [0.0]
    for _ in range(rounds):
        for each, t, h in zip(flows, seconds, held):
            (source, dest), after = each.far, e.copy()
            after[source] += h * t
            after[dest] = np.maximum(after[dest], e[dest] + h * t)
            np.maximum.at(after, dest, e[source] + t)
            np.maximum.at(after, each.near[1], e[each.near[0]])
            e = after
        ends.append(float(e.max()))
    return (ends[-1] - ends[rounds // 2]) / (len(flows) * (rounds - rounds // 2))


def _distinct(first: np.ndarray, second: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs without repetitions, with the second numbers below `size`."""
    pairs = np.unique(first.astype(np.int64) * size + second)
    return pairs // size, pairs % size


def _most(numbers: np.ndarray) -> int:
    return int(np.bincount(numbers).max()) if len(numbers) else 0


def phases(graph: Topology | Schedule) -> list[Topology]:
    """Return the graphs of a period, or a sample of `PHASES` of them, the same in each call."""
    if graph.period is None or graph.period <= PHASES:
        return [graph.at(k) for k in range(graph.period or PHASES)]
    drawn = np.random.default_rng(0).choice(graph.period, PHASES, replace=False)
    return [graph.at(int(k)) for k in drawn]
