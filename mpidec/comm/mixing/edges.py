"""Edges of a graph into and out of some agents, in the order of `W.exchange`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ...topology import Topology
    from ...topology.source import Block


class Edges(NamedTuple):
    """Edges as arrays of the same length: the agents at both ends, and the weight W[receiver, sender]."""

    receivers: np.ndarray
    senders: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=64)
def edges_into(topology: Topology, lo: int, hi: int) -> Edges:
    """The edges into the agents `lo:hi`, sorted by receiver, then sender.

    Examples
    --------
    >>> from mpidec.topology import chain
    >>> edges = edges_into(chain(3), 0, 2)
    >>> edges.receivers.tolist(), edges.senders.tolist()
    ([0, 1, 1], [1, 0, 2])
    """
    return Edges(*_entries(topology.source.rows(lo, hi), lo))


@lru_cache(maxsize=64)
def edges_out_of(topology: Topology, lo: int, hi: int) -> Edges:
    """The edges out of the agents `lo:hi`, sorted by sender, then receiver."""
    senders, receivers, weights = _entries(topology.source.columns(lo, hi), lo)
    return Edges(receivers, senders, weights)


def _entries(block: Block, lo: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of the entries of a block of a matrix that are not on its diagonal."""
    row = lo + np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    column = block.indices.astype(np.int64)
    others = row != column
    return row[others], column[others], block.data[others]
