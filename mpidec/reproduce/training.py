"""Trainings of several workers in one process: what experiments on networks measure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .experiment import Arrays, Experiment, Results, alone
from .verdict import CLOSED, Line, holds

Column = float | str
Cell = tuple[str, Column, int]  # row, column, seed
CURVES = ("epoch", "bytes", "consensus", "accuracy_consensus", "loss_mean")
DIGITS: Mapping[str, object] = {
    "data": "digits",
    "model": "mlp",
    "model_options": {"hidden": [64]},
    "batch": 16,
    "schedule": "constant",
    "every": 1,
}


@dataclass(frozen=True)
class TrainingExperiment(Experiment[Cell]):
    """Rows of a table of methods, with the columns that each has, each with several seeds.

    Attributes
    ----------
    last : int
        Evaluations at the end of a training, whose mean counts.
    """

    last: ClassVar[int] = 5

    seeds: tuple[int, ...] = (1, 2, 3)
    workers: int = 16
    epochs: int = 40

    @abstractmethod
    def columns(self) -> Iterable[tuple[str, Column]]:
        """The rows, with their columns."""

    @abstractmethod
    def settings(self, row: str, column: Column) -> Mapping[str, object]:
        """Return those of `mpidec.train.fit` that differ from `DIGITS`."""

    def cells(self) -> Iterable[Cell]:
        """Each row and column with each seed."""
        return ((*place, seed) for place in self.columns() for seed in self.seeds)

    def measure(self, cell: Cell) -> Arrays:
        """Return the curves of a training, and the accuracy of each worker; with the first seed,
        how far the first epoch is from the equations, where no messages are lost.
        """
        row, column, seed = cell
        given = {**DIGITS, "epochs": self.epochs, "seed": seed, **self.settings(row, column)}
        found = trained(self.workers, given)
        if seed != self.seeds[0] or given.get("lose"):
            return found
        from .dense_training import difference

        return {**found, "apart": np.asarray(difference(self.workers, given))}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The first epoch of each row, in single precision, against the equations."""
        for row in dict.fromkeys(row for row, _, _ in results):
            found = [one for cell, one in results.items() if cell[0] == row and "apart" in one]
            worst = float(np.max([one["apart"] for one in found] or np.nan))
            what = f"{row}: difference from the equations with dense matrices, first epoch, worst"
            yield holds(what, worst <= 1e-4, worst, "at most 1e-4", by=CLOSED)

    def final(
        self, results: Results[Cell], row: str, column: Column, what: str = "worst"
    ) -> NDArray[np.float64]:
        """Return the mean over the last evaluations, of each seed: accuracies in percent of the
        "worst" worker or of the average of all ("average"), or another curve.
        """
        return np.array(
            [_final(results[row, column, seed], what, self.last) for seed in self.seeds]
        )


def trained(workers: int, settings: Mapping[str, object]) -> Arrays:
    """Return the curves of a training; one that diverges ends with the accuracy 0.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C has ended it.
    """
    from ..train import fit

    with alone(workers) as net:
        try:
            result = fit(net=net, **settings)  # type: ignore[arg-type]
        except FloatingPointError:
            return {"accuracy": np.zeros((1, workers)), **dict.fromkeys(CURVES, np.full(1, np.nan))}
    if result.outcome == "interrupted":
        raise KeyboardInterrupt
    return {"accuracy": result.accuracy, **{name: result.metrics[name] for name in CURVES}}


def _final(found: Arrays, what: str, last: int) -> float:
    if what == "worst":
        return 100 * float(found["accuracy"][-last:].mean(axis=0).min())
    scale = 100 if what == "accuracy_consensus" else 1
    return scale * float(found[what][-last:].mean())
