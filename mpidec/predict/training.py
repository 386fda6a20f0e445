"""What a step of a training sends, counted in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from .. import topology
from ..comm.mixing import Network
from ..comm.runtime import ALONE
from ..driver.internals import as_topology
from ..experiment import Setting
from ..registry import TOPOLOGIES
from ..topology import Schedule, Topology
from .counting import phases
from .simulation import Demand

Graph = Callable[[int], Topology | Schedule]

WORKERS = 8  # of the training in which a step is counted
STEPS = 12  # as many as periods of common algorithms divide
# Of a training; those that an experiment has, too, do not tell it from one.
TABLES = ("data", "model", "criterion", "algorithm", "topology", "optimizer", "train")


def demand(given: Iterable[Setting]) -> tuple[Demand, float, str, Graph]:
    """Return what a step of a training needs, the bytes of a gradient, and its topology, a name and
    a function of the number of workers; "" for all-reduce.
    """
    from ..train import Settings
    from ..train.internals import Training, graph, graph_name

    settings = replace(Settings.load(given), out=None, trace=None, log=None, workers=WORKERS)
    with Network(WORKERS, comm=ALONE) as net, Training(settings, net) as training:
        seconds = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            training.optimizer.zero_grad()
            training.optimizer.observe(training.workers.gradients(settings.accumulate))
            training.optimizer.step()
            seconds.append(time.perf_counter() - begin)
        averager = training.optimizer.averager
        rounds, sent = averager.rounds, averager.sent_bytes
        size = 4 * training.workers.rows().shape[1]
    compute = float(np.median(seconds)) / WORKERS
    found = graph(settings, WORKERS)
    if found is None or isinstance(found, list):
        return Demand(0.0, size, 1.0, compute), size, "", topology.ring
    name, options = graph_name(settings), dict(settings.topology_options)

    def of(n: int) -> Topology | Schedule:
        make = TOPOLOGIES.find(name)
        return as_topology(make(n, **options) if callable(make) else make, n)

    made = found if isinstance(found, (Topology, Schedule)) else as_topology(found, len(found))
    row = sent / max(rounds * _arcs(made), 1)
    return Demand(rounds / STEPS, row, 1.0, compute), size, name, of


def _arcs(graph: Topology | Schedule) -> float:
    """Return the edges of a graph, without loops, in the mean over its phases."""
    counts = []
    for each in phases(graph):
        block = each.source.columns(0, each.n)
        senders = np.repeat(np.arange(each.n), np.diff(block.indptr))
        counts.append(np.count_nonzero(senders != block.indices))
    return float(np.mean(counts))


def trains(settings: Iterable[Setting]) -> bool:
    """Return whether settings are those of a training."""
    return any(each.key.partition(".")[0] in {*TABLES} - {"topology"} for each in settings)
