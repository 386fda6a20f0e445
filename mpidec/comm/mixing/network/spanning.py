"""Spanning tree by messages between neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ....topology import Topology
    from ..base.step import StepOperator


def flood(W: StepOperator, topology: Topology, agents: range, rounds: int) -> np.ndarray:
    """Return what the local agents know after so many rounds of messages: root, distance and
    parent.

    Each agent knows a root, its distance from it and its parent: at first itself, 0 and itself.  In
    each round it tells its neighbours the root and the distance, and takes the least (root,
    distance + 1, neighbour) that it hears if this is less than what it knows.  After as many rounds
    as the diameter, the root is agent 0 everywhere and the distances are right.
    """
    own = np.arange(agents.start, agents.stop)
    known: np.ndarray = np.c_[own, np.zeros_like(own), own]
    receivers = np.repeat(own, [len(topology.in_neighbors(i)) for i in agents])
    for _ in range(rounds):
        heard = W.exchange(W.to_edges(np.c_[known[:, :2], own]))
        heard[:, 1] += 1
        offers, whose = np.r_[known, heard], np.r_[own, receivers]
        order = np.lexsort((offers[:, 2], offers[:, 1], offers[:, 0], whose))
        known = offers[order[np.searchsorted(whose[order], own)]]
    return known


def found_tree(known: np.ndarray, topology: Topology, rounds: int) -> Topology:
    """Return the tree that all agents know; one that has not heard of agent 0 is an error."""
    from ....topology.internals import tree_of_parents

    unaware = np.flatnonzero(known[:, 0])
    if len(unaware):
        raise ValueError(
            f"net.spanning_tree: agent {unaware[0]} has not heard of agent 0 after {rounds} "
            f"rounds: {topology.name} has "
            "a larger diameter or is not connected (rounds=None suffices for any connected graph)"
        )
    return tree_of_parents(known[:, 2])
