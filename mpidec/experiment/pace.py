"""Why a run is slow: more ranks than cores, or ranks that wait for each other longer than
they compute.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from ..comm.mixing import Network
from ..comm.runtime import cores_of_node
from ..driver.internals import Result, gradients_for
from .build import Job

# Seconds: a step in one process, beside the gradients.
STEP = 1e-4
# One process is named where it takes less than the time of a step / FACTOR.
FACTOR = 4


def pace(job: Job, result: Result, net: Network) -> str:
    """Return what makes a run on several ranks slow, in one line; empty if nothing does.
    Collective.
    """
    if net.size == 1:
        return ""
    seconds = 0.0 if job.asynchronous else float(net.sum(_gradients(job, result, net))[0])
    return remark(_most_crowded(net), _step(result), seconds, job.topology.n)


def _most_crowded(net: Network) -> tuple[int, int]:
    """Return the ranks and cores of the node with most ranks for a core."""
    ranks, cores = cores_of_node(net.comm)
    most = -float(net.collectives.minimum(np.array([-ranks / cores]), "the pace")[0])
    mine = ranks if ranks / cores == most else 0
    ranks = -int(net.collectives.minimum(np.array([-mine]), "the pace")[0])
    return ranks, round(ranks / most)


def remark(crowded: tuple[int, int], step: float, gradients: float, n: int) -> str:
    """Return the line about a node with ranks and cores, the seconds of a step, and those of the
    gradients of all n agents; 0: unknown.

    Examples
    --------
    >>> remark((4, 2), 0.0, 0.0, 16)
    'the 4 ranks of a node share 2 cores: each waits for others; start at most 2'
    >>> remark((4, 8), 2e-3, 1e-4, 16)
    'a step took 2 ms, the gradients of all 16 agents take 0.1 ms: one process, without mpirun, is probably faster'
    >>> remark((4, 8), 2e-3, 1e-3, 16)
    ''
    """
    ranks, cores = crowded
    parts = []
    if ranks > cores:
        share = f"share {cores} core{'s' * (cores > 1)}"
        parts.append(
            f"the {ranks} ranks of a node {share}: each waits for others; start at most {cores}"
        )
    if gradients and step > FACTOR * (gradients + STEP):
        took = f"a step took {1e3 * step:.3g} ms, the gradients of all {n} agents take {1e3 * gradients:.3g} ms"
        parts.append(f"{took}: one process, without mpirun, is probably faster")
    return "; ".join(parts)


def _step(result: Result) -> float:
    steps, times = result.metrics["step"], result.metrics["time"]
    return float((times[-1] - times[0]) / max(steps[-1] - steps[0], 1)) if len(steps) > 1 else 0.0


def _gradients(job: Job, result: Result, net: Network) -> np.ndarray:
    """Seconds of the gradients of each agent of this rank, (m, 1), the least of three; 0 where a
    step takes no gradients.
    """
    gradients = gradients_for(job.solver, job.oracle, net.agents, job.experiment.run.seed)
    if gradients is None or job.solver.needs.functions != ("grad",):
        return np.zeros((net.m, 1))
    times = []
    for k in range(3):
        begin = perf_counter()
        gradients(result.X, k)
        times.append(perf_counter() - begin)
    return np.full((net.m, 1), min(times) / max(net.m, 1))
