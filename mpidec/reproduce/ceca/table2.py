"""Table 2 of DSGD-CECA: 17 workers, not a power of two."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...cli.tables import plural
from ...comm.mixing import Network
from ...comm.runtime.mpi import MPI
from ..tables import Cell, OnLine, Table, trained, worst

NAME = "ceca-table2"
WORKERS, EPOCHS, LAST, QUICK = 17, 20, 5, 3
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "model_options": {"hidden": [64]},
    "alpha": "iid",
    "batch": 16,
    "schedule": "constant",
}
COLUMNS = ("average of the workers (%)", "worst worker (%)", "test loss")


class Method(NamedTuple):
    """A row: algorithm, topology with its options, momentum, learning rate, published accuracy."""

    algorithm: str
    topology: str | None
    options: dict[str, Any]
    momentum: float
    rate: float
    published: float | None


METHODS = {
    "central (all-reduce)": Method("allreduce", None, {}, 0.5, 0.8, 98.34),
    "ring": Method("atc", "ring", {}, 0.5, 0.8, 98.32),
    "one-peer exponential": Method("atc", "one_peer_exponential", {}, 0.5, 0.8, 98.33),
    "OD-EquiDyn": Method("atc", "equitopo", {"kind": "OD"}, 0.5, 0.8, 98.36),
    "OU-EquiDyn": Method("atc", "equitopo", {"kind": "OU"}, 0.5, 0.8, 98.03),
    "DSGD-CECA-2P": Method("ceca", "ceca", {}, 0.0, 1.2, 98.50),
    "one-peer exponential, no momentum": Method("atc", "one_peer_exponential", {}, 0.0, 1.2, None),
    "DSGD-CECA-2P, momentum": Method("ceca", "ceca", {}, 0.5, 0.8, None),
}


def measured(
    net: Network, method: Method, seed: int, epochs: int = EPOCHS
) -> tuple[float, float, float]:
    """Test accuracy in percent of the average of the workers' parameters, and of the worst worker;
    mean test loss of the workers.

    All in the mean over the evaluations after each of the last epochs.

    Parameters
    ----------
    net : Network
        Of 17 workers.
    method : Method
    seed, epochs : int
    """
    result = trained(
        net,
        **SETTINGS,
        algorithm=method.algorithm,
        topology=method.topology,
        topology_options=method.options,
        momentum=method.momentum,
        lr=method.rate,
        epochs=epochs,
        every=1,
        seed=seed,
    )
    last = min(LAST, epochs)
    average, loss = (
        float(result.metrics[name][-last:].mean()) for name in ("accuracy_consensus", "loss_mean")
    )
    return 100 * average, worst(result.accuracy, last), loss


def table(
    comm: MPI.Intracomm, seeds: int = 3, quick: bool = False, on_line: OnLine = lambda line: None
) -> Table:
    """All rows, on all ranks of `comm`.  Collective."""
    epochs, rows = QUICK if quick else EPOCHS, {}
    with Network(WORKERS, comm) as net:
        for label, method in METHODS.items():
            figures = list(
                zip(*[measured(net, method, seed, epochs) for seed in range(1, seeds + 1)])
            )
            settings = f"lr={method.rate:g} momentum={method.momentum:g}"
            rows[label] = tuple(
                Cell(method.published if j == 0 else None, tuple(values), settings)
                for j, values in enumerate(figures)
            )
            on_line(f"{label}: " + "  ".join(cell.text()[1] for cell in rows[label]))
    return Table(
        name=NAME,
        quantity=f"test accuracy and loss of {WORKERS} workers, iid data",
        published="Ding et al., ICML 2023, Table 2: MNIST, 20 epochs, batch 64",
        measured=f"another data set: digits, mlp with 64 hidden units, {epochs} epochs, batch 16, "
        f"{plural(seeds, 'seed')}"
        f"{' (quick)' if quick else ''}",
        columns=COLUMNS,
        rows=rows,
        notes=(
            f"In the mean over the last {min(LAST, epochs)} epochs; the worst worker is the one "
            "with the lowest such mean.",
            "Momentum 0.5, but none for DSGD-CECA-2P, as published; two more rows are the other "
            "way round.",
            "Learning rates are chosen for each row, on seeds that the table does not use.",
            "The published training losses are of a softmax over the batch, and are left out.",
        ),
    )
