r"""Time of a mixing: of a rank that sends or receives q rows of s bytes in k messages to other
nodes, and R rows over the link of its node,

.. math:: T = \max(T_m(r), L(r) + (k - 1) o + q s G, L(r) + R s G') + t s M,\quad r = q s / k

L is the latency of a message, o what a further one adds, and t the number of rows in a weighted
sum; G is the time of a byte on the link, G' that while several ranks of a node use it, and M that
of a byte in memory.  k, q, R and t are the largest ones of all ranks and nodes.  A message shares
the links of both its ends with other messages, as in the measured T_m, only if both ends have m of
them; those of a hub with k messages, and those of the ranks of a node, are under way at the same
time and share one link.  In a schedule, and where rows go one way, latencies of different ranks
overlap; bytes share the link.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np

from ..topology import Schedule, Topology
from .cluster import Cluster
from .counting import Traffic, flow, overlapped, phases


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

    def times(self, mixings: float) -> Cost:
        """Return the cost of several mixings, one after the other."""
        latency, own, link, kernel = (mixings * part for part in astuple(self)[:-1])
        return Cost(latency, own, link, kernel, self.rows)


def cost(counted: Traffic, size: float, net: Cluster) -> Cost:
    """Return the cost of a mixing alone with rows of `size` bytes."""
    k, mutual, rows, link, terms = counted
    message = counted.message * size
    total = max(net.exchange(mutual, message), net.hub(k, message))
    own = min(rows * size * net.seconds_per_byte, total)
    shared = net.stream(message, link * size, net.shared_per_byte)
    further = max(shared - total, 0.0) * (link > rows)
    return Cost(total - own, own, further, terms * size * net.memory, link)


def mean_cost(graph: Topology | Schedule, node: np.ndarray, size: float, net: Cluster) -> Cost:
    """Return the cost of a mixing in the mean over many, with agents in blocks on ranks on the
    nodes `node[rank]`.
    """
    flows = [flow(each, node) for each in phases(graph)]
    costs = [cost(each.traffic, size, net) for each in flows]
    mean = Cost(*np.mean([astuple(each) for each in costs], axis=0).tolist())
    held = [net.held(each.traffic.message * size) for each in flows]
    if len(flows) == 1 and (held == [1.0] or not graph.directed):
        return mean
    latencies = [each.latency for each in costs]
    return replace(mean, latency=overlapped(flows, latencies, held, len(node)))
