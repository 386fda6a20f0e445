"""Table 2 of RelaySGD: the worst of 16 workers, with data of different heterogeneity."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...cli.tables import plural
from ...comm.mixing import Network
from ...comm.runtime.mpi import MPI
from ..tables import Cell, OnLine, Table, trained, worst

NAME = "relaysgd-table2"
WORKERS, EPOCHS, QUICK = 16, 40, 8
LAST = 1 / 8  # of the epochs: those whose accuracies count
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "model_options": {"hidden": [64]},
    "batch": 16,
    "weight_decay": 1e-4,
    "schedule": "constant",
}
COLUMNS: dict[str, Any] = {"iid": "iid", "alpha = 1": 1.0, "alpha = 0.1": 0.1, "alpha = 0.01": 0.01}


class Method(NamedTuple):
    """A row: algorithm, topology, local momentum; published accuracies, and learning rates here,
    of the columns with such.
    """

    algorithm: str
    topology: str | None
    momentum: float
    published: tuple[float, ...]
    rates: tuple[float, ...]


TREES, SGP = "double_binary_trees", "mpidec.reproduce.graphs:two_half_rounds"
METHODS = {
    "all-reduce": Method("allreduce", None, 0.0, (87.0,), (0.8,)),
    "all-reduce, momentum": Method("allreduce", None, 0.9, (90.2,), (0.4,)),
    "RelaySGD, double trees": Method("relay", TREES, 0.0, (87.4, 86.9, 84.6), (1.6, 1.6, 1.6)),
    "RelaySGD, double trees, local momentum": Method(
        "relay", TREES, 0.9, (90.2, 89.5, 89.1), (0.4, 0.4, 0.4)
    ),
    "RelaySGD, chain": Method("relay", "chain", 0.0, (87.3, 87.2, 86.5), (1.6, 1.6, 1.6)),
    "RelaySGD, chain, local momentum": Method(
        "relay", "chain", 0.9, (89.5, 89.2, 88.4), (0.4, 0.4, 0.4)
    ),
    "DP-SGD, ring": Method("atc", "ring", 0.0, (87.4, 79.9, 53.9), (1.2, 0.8, 0.4)),
    "DP-SGD, ring, quasi-global momentum": Method(
        "qg", "ring", 0.0, (89.5, 84.8, 63.3), (0.4, 0.4, 0.4)
    ),
    "D2, ring": Method("d2", "ring", 0.0, (87.2, 84.0, 38.2), (0.8, 0.8, 0.4)),
    "D2, ring, local momentum": Method("d2", "ring", 0.9, (88.2, 88.5, 61.0), (0.2, 0.2, 0.1)),
    "SGP, time-varying exponential": Method(
        "push_sum", SGP, 0.0, (87.4, 86.7, 86.7), (1.2, 0.8, 0.2)
    ),
    "SGP, time-varying exponential, local momentum": Method(
        "push_sum", SGP, 0.9, (89.5, 89.2, 87.5), (0.4, 0.4, 0.4)
    ),
}


def accuracy(
    net: Network, method: Method, alpha: float | str, seed: int, epochs: int = EPOCHS
) -> float:
    """Test accuracy in percent of the worst worker, in the mean over its evaluations after each of
    the last epochs.

    Parameters
    ----------
    net : Network
        Of 16 workers.
    method : Method
    alpha : float or "iid"
        One that the method has a learning rate for.
    seed, epochs : int
    """
    local = {"momentum": method.momentum, "nesterov": method.momentum > 0}
    result = trained(
        net,
        **SETTINGS,
        **local,
        algorithm=method.algorithm,
        topology=method.topology,
        alpha=alpha,
        epochs=epochs,
        every=1,
        lr=rate(method, alpha),
        seed=seed,
    )
    return worst(result.accuracy, _last(epochs))


def _last(epochs: int) -> int:
    return max(1, round(LAST * epochs))


def alphas(method: Method) -> list[Any]:
    """The columns that a method has: iid for all-reduce, else all values of alpha."""
    values = list(COLUMNS.values())
    return values[:1] if method.algorithm == "allreduce" else values[1:]


def rate(method: Method, alpha: float | str) -> float:
    """Learning rate of a method."""
    return method.rates[alphas(method).index(alpha)]


def table(
    comm: MPI.Intracomm, seeds: int = 3, quick: bool = False, on_line: OnLine = lambda line: None
) -> Table:
    """All rows, on all ranks of `comm`.  Collective."""
    epochs, rows = QUICK if quick else EPOCHS, {}
    with Network(WORKERS, comm) as net:
        for label, method in METHODS.items():
            cells = {}
            for alpha, published in zip(alphas(method), method.published):
                figures = tuple(
                    accuracy(net, method, alpha, seed, epochs) for seed in range(1, seeds + 1)
                )
                cells[alpha] = Cell(published, figures, f"lr={rate(method, alpha):g}")
            rows[label] = tuple(cells.get(alpha, Cell(None)) for alpha in COLUMNS.values())
            on_line(f"{label}: " + "  ".join(cell.text()[1] for cell in cells.values()))
    return Table(
        name=NAME,
        quantity=f"test accuracy (%) of the worst of {WORKERS} workers, by the concentration alpha "
        "of the Dirichlet split",
        published="Vogels et al., NeurIPS 2021, Table 2: CIFAR-10, VGG-11, 200 epochs, batch 32, "
        "mean of 3 seeds",
        measured=f"another data set: digits, mlp with 64 hidden units, {epochs} epochs, batch 16, "
        f"{plural(seeds, 'seed')}"
        f"{' (quick: too short to compare)' if quick else ''}",
        columns=tuple(COLUMNS),
        rows=rows,
        notes=(
            f"Evaluations in the mean: {_last(epochs)}, after each of the last epochs; the worst "
            "worker has the lowest mean.",
            "The split is that of the published code.  Momentum: Nesterov, 0.9.",
            "Learning rates are chosen for each row and alpha, on seeds that the table does not "
            "use, and are constant; published",
            "ones are divided by 10 at epochs 150 and 180, which on digits removes most of the "
            "bias of gossip.",
            "RelaySGD on double trees gives each tree a contiguous half of the parameters; the "
            "published code alternates.",
            "D2: the ring's weights of 1/3 have the smallest eigenvalue -1/3, where D2 is only "
            "marginally stable.",
            "SGP: two rounds of the one-peer exponential graph in each step, as published.",
        ),
    )
