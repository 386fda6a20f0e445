"""Measured beside predicted times, on the ranks of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from ..bench.internals import allreduce, computed, gradient, repeated
from ..comm.mixing import Network
from ..comm.mixing.internals import StepOperator
from ..comm.runtime import MPI, ranks_of_node
from ..topology import Schedule, Topology
from .cluster import Cluster
from .counting import PHASES
from .model import mean_cost


def gradient_seconds() -> float:
    """Return the seconds of the gradient of a calibration in this process."""
    return computed(gradient(), MPI.COMM_SELF)


def nodes_of_job(comm: MPI.Intracomm) -> np.ndarray:
    """Return the node of each rank; collective."""
    with Network(comm.size, comm) as net:
        local = ranks_of_node(comm, net.context.ranks_per_node)
    first = comm.allgather(local.bcast(comm.rank))
    local.Free()
    return np.unique(first, return_inverse=True)[1]


def compared(
    graphs: Mapping[str, Topology | Schedule],
    size: float,
    reduced: float,
    node: np.ndarray,
    net: Cluster,
    comm: MPI.Intracomm,
) -> Iterator[tuple[str, float, float]]:
    """Yield the name, and the measured and predicted seconds, of a mixing of rows of `size` bytes
    with each graph, and of an all-reduce of `reduced` bytes; collective.
    """
    d = max(int(size) // 8, 1)
    for name, graph in graphs.items():
        with Network(graph.n, comm) as ranks, closing(ranks.mixer(graph)) as W:
            X, Y = ranks.empty((d,)), ranks.empty((d,))
            X[:] = 1.0
            steps = [W.at(k) for k in range(graph.period or PHASES)]
            seconds = repeated(partial(_each, steps, X, Y), comm) / len(steps)
        yield name, seconds, mean_cost(graph, node, 8 * d, net).seconds
    whole, nodes = 8 * max(int(reduced) // 8, 1), int(node.max()) + 1
    predicted = net.allreduce(nodes, -(-comm.size // nodes), whole)
    yield "all-reduce", repeated(allreduce(comm, whole), comm), predicted


def _each(steps: Sequence[StepOperator], X: np.ndarray, Y: np.ndarray) -> None:
    for step in steps:
        step(X, Y)
