"""Table 2, Figures 8, 9 and 10: training of 17 and of 5 workers, no powers of two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..drawing import curves
from ..experiment import Results
from ..training import Cell, Column, TrainingExperiment
from ..verdict import CLOSED, ORDER, About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IID = "iid"


class CecaMethod(NamedTuple):
    """A row: algorithm, topology with its options, momentum, learning rate, published accuracy."""

    algorithm: str
    topology: str | None
    options: Mapping[str, str]
    momentum: float
    rate: float
    published: float | None = None


CENTRAL, RING, ONE_PEER = "central (all-reduce)", "ring", "one-peer exponential"
CECA = "DSGD-CECA-2P"
METHODS = {
    CENTRAL: CecaMethod("allreduce", None, {}, 0.5, 0.8, 98.34),
    RING: CecaMethod("atc", "ring", {}, 0.5, 0.8, 98.32),
    ONE_PEER: CecaMethod("atc", "one_peer_exponential", {}, 0.5, 0.8, 98.33),
    "OD-EquiDyn": CecaMethod("atc", "equitopo", {"kind": "OD"}, 0.5, 0.8, 98.36),
    "OU-EquiDyn": CecaMethod("atc", "equitopo", {"kind": "OU"}, 0.5, 0.8, 98.03),
    CECA: CecaMethod("ceca", "ceca", {}, 0.0, 1.2, 98.50),
    f"{ONE_PEER}, no momentum": CecaMethod("atc", "one_peer_exponential", {}, 0.0, 1.2),
    f"{CECA}, momentum": CecaMethod("ceca", "ceca", {}, 0.5, 0.8),
}
CIFAR = {ONE_PEER: 90.99, CECA: 92.07}  # published accuracies of Figure 10


@dataclass(frozen=True)
class CecaTable2(TrainingExperiment):
    """Equal data on all workers; the average of their models."""

    about: ClassVar = About(
        name="ceca-table2",
        source="Ding et al., ICML 2023, Table 2",
        shows="one partner per step is enough for the accuracy of all-reduce",
        minutes=0.7,
        differs="digits, a perceptron with 64 hidden units, batch 16, 40 epochs (MNIST, batch 64, "
        "20 epochs)",
        quick={
            "rows": (CENTRAL, RING, ONE_PEER, CECA),
            "seeds": (1,),
            "epochs": 1,
        },
        notes=(
            "After 20 epochs of digits, 100 steps, DSGD-CECA-2P without momentum is still 1.2 "
            "points below all-reduce.",
            "Momentum 0.5, none for DSGD-CECA-2P, as published; two more rows are the other way "
            "round.",
            "The published training losses are of a softmax over the batch, and are left out.",
        ),
    )

    workers: int = 17
    rows: tuple[str, ...] = tuple(METHODS)

    def columns(self) -> Iterable[tuple[str, Column]]:
        """Each method."""
        return ((row, IID) for row in self.rows)

    def settings(self, row: str, column: Column) -> Mapping[str, object]:
        """Of a method."""
        method = METHODS[row]
        return {
            "algorithm": method.algorithm,
            "topology": method.topology,
            "topology_options": method.options,
            "momentum": method.momentum,
            "lr": method.rate,
            "alpha": IID,
        }

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The accuracies beside that of all-reduce, and the bytes beside those of the ring."""
        yield from TrainingExperiment.judge(self, results)
        found = {row: self.final(results, row, IID, "accuracy_consensus") for row in self.rows}
        central = found[CENTRAL].mean()
        for row, values in found.items():
            agrees = bool(abs(values.mean() - central) <= 1) if row != CENTRAL else None
            here = f"{values.mean():.2f} ± {values.std():.2f}"
            published = METHODS[row].published
            yield Line(f"{row}: accuracy (%)", published, here, agrees, "within 1 of all-reduce")
        apart = max(values.mean() for values in found.values()) - min(map(np.mean, found.values()))
        yield Line(
            "most accurate minus least (points); standard deviation of a seed",
            98.50 - 98.03,
            f"{apart:.2f}; {np.mean([values.std() for values in found.values()]):.2f}",
        )
        ring = self.sent(results, RING)[-1]
        for row in (ONE_PEER, CECA):
            part = self.sent(results, row)[-1] / ring
            what = f"{row}: data sent, over the ring's"
            yield holds(what, part == 0.5, part, "1/2, exactly", 0.5, CLOSED)

    def sent(self, results: Results[Cell], row: str) -> NDArray[np.float64]:
        """Return the bytes that a worker has sent after each evaluation; of all-reduce what a
        server has sent to n - 1 workers.
        """
        each = results[row, IID, self.seeds[0]]["bytes"] / self.workers
        return each * (self.workers - 1) if row == CENTRAL else each

    def mean(self, results: Results[Cell], row: str, what: str) -> NDArray[np.float64]:
        """Return a curve in the mean over the seeds."""
        curves = [results[row, IID, seed][what] for seed in self.seeds]
        return np.asarray(np.mean(curves, axis=0))

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """Test loss and accuracy against the epochs."""
        for axes, what in zip(figure.subplots(1, 2), ("loss_mean", "accuracy_consensus")):
            lines = {
                row: (self.mean(results, row, "epoch"), self.mean(results, row, what))
                for row in self.rows
            }
            curves(axes, lines, "epoch", what.split("_")[0], log="")
            axes.legend().remove()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)


@dataclass(frozen=True)
class Figure8(CecaTable2):
    """The curves."""

    about: ClassVar = CecaTable2.about._replace(
        name="ceca-fig8",
        source="Ding et al., ICML 2023, Figure 8",
        shows="all methods follow the curve of all-reduce",
    )

    rows: tuple[str, ...] = tuple(row for row in METHODS if METHODS[row].published)

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The mean over the epochs of the second half."""
        yield from TrainingExperiment.judge(self, results)
        half, central = self.epochs // 2, 0.0
        for row in self.rows:
            accuracy = 100 * self.mean(results, row, "accuracy_consensus")[-half - 1 :].mean()
            central = central or accuracy
            what = f"{row}: accuracy (%), mean of the second half of the epochs"
            agrees = bool(abs(accuracy - central) <= 1) if row != CENTRAL else None
            yield Line(what, None, accuracy, agrees, "within 1 of all-reduce")


@dataclass(frozen=True)
class Figure9(Figure8):
    """The accuracy against the data that the busiest node sends."""

    about: ClassVar = Figure8.about._replace(
        name="ceca-fig9",
        source="Ding et al., ICML 2023, Figure 9",
        shows="methods with one partner need less data than rings, and these than a server",
    )

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The data until the accuracy is 3 points below the final one of all-reduce."""
        yield from TrainingExperiment.judge(self, results)
        final = self.final(results, CENTRAL, IID, "accuracy_consensus").mean() / 100
        needed = {}
        for row in self.rows:
            there = self.mean(results, row, "accuracy_consensus") >= final - 0.03
            needed[row] = self.sent(results, row)[there.argmax()] / 1e3 if there.any() else np.inf
        for row in (ONE_PEER, CECA):
            values = needed[row], needed[RING], needed[CENTRAL]
            yield holds(
                f"kB sent until 3 points below all-reduce: {row} < ring < central",
                values[0] < values[1] < values[2],
                " < ".join(f"{value:.0f}" for value in values),
                "growing",
            )

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """Accuracy against bytes."""
        lines = {
            row: (
                self.sent(results, row)[1:] / 1e3,
                self.mean(results, row, "accuracy_consensus")[1:],
            )
            for row in self.rows
        }
        curves(figure.add_subplot(), lines, "kB sent by the busiest node", "accuracy", log="x")


@dataclass(frozen=True)
class Figure10(CecaTable2):
    """A residual network, without momentum."""

    about: ClassVar = CecaTable2.about._replace(
        name="ceca-fig10",
        source="Ding et al., ICML 2023, Appendix C, Figure 10",
        shows="DSGD-CECA against one-peer exponential graphs on 5 workers",
        minutes=0.8,
        differs="digits, a small convolutional network, 10 epochs (CIFAR-10, ResNet-18, 130 "
        "epochs)",
        quick={"seeds": (1,), "epochs": 1, "model": "mlp"},
        notes=(),
    )

    rows: tuple[str, ...] = (ONE_PEER, CECA)
    workers: int = 5
    epochs: int = 10
    model: str = "cnn"
    lr: float = 0.2

    def settings(self, row: str, column: Column) -> Mapping[str, object]:
        """Of a method without momentum, with the network."""
        network = {"model": self.model, "model_options": {}, "momentum": 0.0, "lr": self.lr}
        return {**super().settings(row, column), **network}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The order of the two."""
        yield from TrainingExperiment.judge(self, results)
        values = {row: self.final(results, row, IID, "accuracy_consensus") for row in self.rows}
        for row, found in values.items():
            here = f"{found.mean():.2f} ± {found.std():.2f}"
            yield Line(f"{row}: accuracy (%)", CIFAR[row], here)
        gains = values[CECA] - values[ONE_PEER]  # with the same seeds
        gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(max(len(gains) - 1, 1))
        because = (
            f"the seeds leave a standard error of {error:.2g}" if abs(gain) < 2 * error else ""
        )
        what, published = "gain of DSGD-CECA (points)", CIFAR[CECA] - CIFAR[ONE_PEER]
        agrees, known = gain > 0, bool(because)
        yield Line(what, published, gain, agrees, "positive", because, explains=known, by=ORDER)
