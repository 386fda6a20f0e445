"""Rows over the links of nodes, counted from the graph and the placement of its agents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..exceptions import InputError
from ..topology import Schedule, Topology

PLACEMENTS = ("slot", "cyclic")
# Graphs that are counted of a schedule; more are a sample of its period.
PHASES = 32
# Edges that are counted: 10^8 take some GB and seconds.
MOST_EDGES = 100_000_000


class Rows(NamedTuple):
    """Largest numbers of rows in a mixing: over a rank's share of the link, over a node's link, and
    into a rank from its own node.
    """

    rank: int
    link: int
    inside: int


def nodes_of(ranks: int, per_node: int, placement: str) -> np.ndarray:
    """Return the node of each rank: filled one after the other ("slot"), or in turn ("cyclic").

    Examples
    --------
    >>> nodes_of(5, 2, "slot").tolist(), nodes_of(5, 2, "cyclic").tolist()
    ([0, 0, 1, 1, 2], [0, 1, 2, 0, 1])
    """
    rank = np.arange(ranks)
    return rank // per_node if placement == "slot" else rank % -(-ranks // per_node)


def rows(graph: Topology, node: np.ndarray) -> Rows:
    """Return the rows of a mixing with one agent per rank, of which agent i is on `node[i]`.

    A link carries both directions at once: the larger one counts.

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
    across = node[sender] != node[receiver]
    inside = ~across & (sender != receiver)
    ends = sender[across], receiver[across]
    return Rows(
        max(_most(end) for end in ends),
        max(_most(node[end]) for end in ends),
        _most(receiver[inside]),
    )


def _most(numbers: np.ndarray) -> int:
    return int(np.bincount(numbers).max()) if len(numbers) else 0


def phases(graph: Topology | Schedule) -> list[Topology]:
    """Return the graphs of a period, or a sample of `PHASES` of them, the same in each call."""
    if graph.period is None or graph.period <= PHASES:
        return [graph.at(k) for k in range(graph.period or PHASES)]
    drawn = np.random.default_rng(0).choice(graph.period, PHASES, replace=False)
    return [graph.at(int(k)) for k in drawn]
