r"""Time of a mixing: with k rows of s bytes between a rank and other nodes, and R rows over the
link of the node that has most,

.. math:: T = [T_k(s) - k s G] + k s G + \max(R - k, 0) s G + (k + k') s M

are the latency, the bytes of the rank, those of the other ranks of its node, which share the link,
and the weighted sum, which reads also k' rows of the same node; G is the time of a byte on the
link and M in memory.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from ..topology import Schedule, Topology
from .counting import Rows, phases, rows
from .network import Network

MEMORY = 5e-11  # seconds per byte of a weighted sum: 20 GB/s, one rank's share of a node's memory


@dataclass(frozen=True)
class Cost:
    """Seconds of a mixing, by part, and the largest number of rows over a node's link."""

    latency: float
    bytes: float
    link: float
    kernel: float
    rows: float

    @property
    def seconds(self) -> float:
        """Sum of the parts."""
        return self.latency + self.bytes + self.link + self.kernel


def cost(counted: Rows, size: float, network: Network) -> Cost:
    """Return the cost of a mixing with rows of `size` bytes."""
    k, link, inside = counted
    own = k * size * network.seconds_per_byte
    total = network.exchange(k, size)
    return Cost(
        max(total - own, 0.0),
        min(own, total),
        max(link - k, 0) * size * network.seconds_per_byte,
        (k + inside) * size * MEMORY,
        link,
    )


def mean_cost(graph: Topology | Schedule, node: np.ndarray, size: float, network: Network) -> Cost:
    """Return the cost of a mixing in the mean over the phases of a schedule."""
    costs = [astuple(cost(rows(each, node), size, network)) for each in phases(graph)]
    return Cost(*np.mean(costs, axis=0).tolist())
