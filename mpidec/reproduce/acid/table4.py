"""Table 4 of A2CiD2: rings of asynchronous workers, simulated, or one on each rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from ... import solvers, topology
from ...cli.tables import plural
from ...comm.mixing import Network
from ...comm.runtime.interrupts import interrupts
from ...comm.runtime.mpi import MPI
from ...driver.asynchronous import simulate
from ...driver.asynchronous.result import AsyncResult
from ...driver.result import Result
from ...driver.solve import solve
from ..tables import Cell, OnLine, Table

NAME = "acid-table4"
WORKERS, EPOCHS, QUICK = (16, 32, 64), 40, 4
BATCH, RATE, MOMENTUM, HIDDEN = 8, 0.1, 0.9, 32
WARMUP = 0.05  # of the run
COLUMNS = ("average of the workers (%)", "worst worker (%)", "consensus")
PUBLISHED = {
    "AD-PSGD (eta = 0)": {4: 95.02, 8: 95.01, 16: 95.00, 32: 93.95, 64: 91.90},
    "A2CiD2": {4: 94.95, 8: 95.01, 16: 95.03, 32: 94.61, 64: 93.08},
}
METHODS: dict[str, float | None] = {"AD-PSGD (eta = 0)": 0.0, "A2CiD2": None}


def measured(
    n: int, eta: float | None, seed: int, epochs: int = EPOCHS, comm: MPI.Intracomm | None = None
) -> tuple[float, float, float]:
    """Test accuracy in percent of the average of the workers' parameters, and of the worst worker;
    consensus distance.

    Parameters
    ----------
    n : int
        Number of workers on the ring.
    eta : float, optional
        Of `mpidec.solvers.A2CiD2`; 0 for AD-PSGD, None for that of the graph.
    seed, epochs : int
    comm : Comm, optional
        With several ranks, the workers run on them in real time, else the run is simulated.
    """
    from ...datasets.images import images
    from ...nn import models
    from ...nn.schedules import goyal
    from ...problems import MiniBatch, Neural

    data = images("digits")
    samples = len(data.train_x)
    steps = epochs * samples // (BATCH * n)
    scale = BATCH * n / 256

    def rate(k: int) -> float:
        return RATE * goyal(k * n * BATCH / samples, epochs, scale, warmup=WARMUP * epochs)

    def problem(m: int) -> Any:
        model = models.make("mlp", data.shape, data.classes, seed=seed, hidden=[HIDDEN])
        return Neural(model, ([data.train_x] * m, [data.train_y] * m))

    solver = solvers.A2CiD2(rate, eta=eta, momentum=MOMENTUM)
    ring = topology.ring(n)
    with ExitStack() as stack:
        if comm is None or comm.size == 1:
            local = problem(n)
            run: Callable[..., Result | AsyncResult] = simulate
        else:
            net = stack.enter_context(Network(n, comm))
            local, run = problem(net.m), partial(solve, net=net)
        x0 = local.initial()
        result = run(
            MiniBatch(local, BATCH), solver, ring, steps=steps, x0=x0, seed=seed, every=steps
        )
        accuracies = local.accuracy(result.X, data.test_x, data.test_y)
        if comm is not None:
            accuracies = np.concatenate(comm.allgather(accuracies))
    return (
        100 * float(local.accuracy(result.x, data.test_x, data.test_y)[0]),
        100 * float(accuracies.min()),
        float(result.metrics["consensus"][-1]),
    )


def table(
    comm: MPI.Intracomm, seeds: int = 3, quick: bool = False, on_line: OnLine = lambda line: None
) -> Table:
    """All rows: in a single process simulated rings of 16, 32 and 64 workers; on several ranks a
    ring of them.  Collective.
    """
    epochs, rows = QUICK if quick else EPOCHS, {}
    sizes = WORKERS if comm.size == 1 else (comm.size,)
    with interrupts() as interrupted:
        for n in sizes:
            for method, eta in METHODS.items():
                runs = []
                for seed in range(1, seeds + 1):
                    runs.append(measured(n, eta, seed, epochs, comm))
                    if interrupted():
                        raise KeyboardInterrupt
                label = f"n = {n}, {method}"
                published = (PUBLISHED[method].get(n), None, None)
                rows[label] = tuple(
                    Cell(known, tuple(values), f"lr={RATE:g} * {BATCH * n}/256")
                    for known, values in zip(published, zip(*runs))
                )
                on_line(f"{label}: " + "  ".join(cell.text()[1] for cell in rows[label]))
    return Table(
        name=NAME,
        quantity="test accuracy on a ring of asynchronous workers",
        published="Nabli et al., NeurIPS 2023, Table 4: CIFAR-10, ResNet-18, 300 epochs over all "
        "workers, batch 128",
        measured=f"another data set: digits, mlp with {HIDDEN} hidden units, {epochs} epochs over "
        f"all workers, batch {BATCH}, "
        f"{plural(seeds, 'seed')}"
        f"{' (quick)' if quick else ''}, "
        f"{'simulated' if comm.size == 1 else f'on {comm.size} ranks'}",
        columns=COLUMNS,
        rows=rows,
        notes=(
            "Each worker draws from all samples; one averaging per gradient; schedule, base rate "
            "and momentum as published.",
            "Consensus is the distance of the workers from their average, before they are "
            "averaged.",
        ),
    )
