"""Table III: momentum SGD on static and on changing exponential graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..drawing import curves
from ..experiment import Results
from ..training import Cell, Column, TrainingExperiment
from ..verdict import CLOSED, About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = {"static": "exponential", "dynamic": "one_peer_exponential"}
# algorithm and momentum of the optimizer; published top-1 accuracies of ResNet-50
METHODS = {
    "vanilla DmSGD": ("atc", 0.9, (76.14, 76.06)),
    "DmSGD": ("mixed_momentum", 0.0, (76.50, 76.52)),
    "QG-DmSGD": ("qg", 0.0, (76.43, 76.35)),
}
PARALLEL = "parallel SGD"


@dataclass(frozen=True)
class Table3(TrainingExperiment):
    """Three algorithms on two graphs."""

    about: ClassVar = About(
        name="bluefog-table3",
        source="Ying et al., arXiv:2111.04287, Table III",
        shows="one peer per step costs no accuracy",
        minutes=0.6,
        differs="digits, a perceptron with 64 hidden units, 16 workers (ImageNet; ResNet-50, "
        "MobileNet-v2 and EfficientNet)",
        quick={"workers": 8, "seeds": (1,), "epochs": 1},
    )
    last: ClassVar[int] = 10
    lr: float = 0.1

    def columns(self) -> Iterable[tuple[str, Column]]:
        """Each algorithm on both graphs, and all-reduce."""
        yield PARALLEL, "-"
        yield from ((row, graph) for row in METHODS for graph in GRAPHS)

    def settings(self, row: str, column: Column) -> Mapping[str, object]:
        """Equal data on all workers."""
        algorithm, momentum, _ = METHODS.get(row, ("allreduce", 0.9, ()))
        return {
            "algorithm": algorithm,
            "topology": GRAPHS.get(str(column)),
            "momentum": momentum,
            "lr": self.lr,
            "alpha": "iid",
        }

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Accuracies of the average model, and bytes."""
        yield from TrainingExperiment.judge(self, results)
        parallel = self.final(results, PARALLEL, "-", "accuracy_consensus").mean()
        yield Line(f"{PARALLEL}: accuracy (%)", 76.21, parallel)
        for row, (_, _, published) in METHODS.items():
            static, dynamic = (
                self.final(results, row, graph, "accuracy_consensus").mean() for graph in GRAPHS
            )
            yield holds(
                f"{row}: accuracy (%), static / dynamic",
                static - dynamic < 0.5,
                f"{static:.2f} / {dynamic:.2f}",
                "at most 0.5 less on the dynamic graph",
                f"{published[0]} / {published[1]}",
            )
            sent = [results[row, graph, self.seeds[0]]["bytes"][-1] for graph in GRAPHS]
            peers = math.ceil(math.log2(self.workers))
            expected = f"1 / {peers}, exactly"
            what = f"{row}: bytes, dynamic / static"
            yield holds(
                what, sent[1] * peers == sent[0], sent[1] / sent[0], expected, 1 / peers, CLOSED
            )

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """Accuracy of the average model against what has been sent."""
        lines = {}
        for row in METHODS:
            for graph in GRAPHS:
                found = results[row, graph, self.seeds[0]]
                lines[f"{row}, {graph}"] = found["bytes"][1:] / 1e6, found["accuracy_consensus"][1:]
        curves(figure.add_subplot(), lines, "MB of all workers", "accuracy", log="x")
