"""Tables of published and measured figures, and the trainings that are measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..cli.tables import csv_text, grouped
from ..comm.mixing import Network

NONE = "-"
OnLine = Callable[[str], None]


class Cell(NamedTuple):
    """A published figure and the measured ones.

    Parameters
    ----------
    published : float, optional
        None if the paper has none.
    measured : tuple of float
        One for each seed; empty if the experiment leaves this cell out.
    settings : str
        Those that belong to this cell alone, such as the learning rate.

    Examples
    --------
    >>> Cell(87.4, (96.0, 97.0)).text()
    ('87.4', '96.5 ± 0.7')
    """

    published: float | None
    measured: tuple[float, ...] = ()
    settings: str = ""

    @property
    def mean(self) -> float | None:
        """Mean over the seeds, None without any."""
        return statistics.fmean(self.measured) if self.measured else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds, None with less than two."""
        return statistics.stdev(self.measured) if len(self.measured) > 1 else None

    def text(self) -> tuple[str, str]:
        """The published figure and the mean of the measured ones, with their standard deviation."""
        published = NONE if self.published is None else f"{self.published:g}"
        if self.mean is None:
            return published, NONE
        form = ".1f" if self.mean >= 10 else ".2g"  # percentages, or losses and distances
        return published, f"{self.mean:{form}}" + (
            f" ± {self.deviation:{form}}" if self.deviation is not None else ""
        )


@dataclass(frozen=True)
class Table:
    """Published and measured figures of an experiment.

    Parameters
    ----------
    name : str
    quantity : str
        What the figures are.
    published, measured : str
        What was trained in the paper and here, in a line each.
    columns : tuple of str
    rows : dict {label: tuple of Cell}
        A cell for each column.
    notes : tuple of str
        Differences from the paper.

    Examples
    --------
    >>> table = Table("table2", "accuracy (%)", "CIFAR-10", "digits", ("iid", "0.01"),
    ...               {"gossip": (Cell(None), Cell(53.9, (81.0, 82.0)))})
    >>> print(table)
    table2: accuracy (%)
    published: CIFAR-10
    here:      digits
    <BLANKLINE>
             iid                   0.01
            here  published        here
    gossip     -       53.9  81.5 ± 0.7
    """

    name: str
    quantity: str
    published: str
    measured: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = [
            f"{self.name}: {self.quantity}",
            f"published: {self.published}",
            f"here:      {self.measured}",
            "",
        ]
        return "\n".join([*head, *self._body(), *([""] if self.notes else []), *self.notes])

    def _body(self) -> list[str]:
        columns = {}
        for j, column in enumerate(self.columns):
            pairs = [cells[j].text() for cells in self.rows.values()]
            known = any(published != NONE for published, _ in pairs)
            lines = [("published", "here"), *pairs]
            columns[column] = lines if known else [(here,) for _, here in lines]
        return grouped(["", "", *self.rows], columns)

    def csv(self) -> str:
        """The cells as CSV: row, column, published, mean, deviation, settings, and the figure of
        each seed.
        """
        cells = [
            (label, column, cell)
            for label, row in self.rows.items()
            for column, cell in zip(self.columns, row)
        ]
        seeds = max((len(cell.measured) for _, _, cell in cells), default=0)
        head = ["row", "column", "published", "mean", "deviation", "settings"]
        lines = [[*head, *(f"seed{s + 1}" for s in range(seeds))]]
        for label, column, cell in cells:
            if cell.published is not None or cell.measured:
                figures = [
                    "" if x is None else f"{x:.6g}"
                    for x in (cell.published, cell.mean, cell.deviation)
                ]
                measured = [f"{x:.6g}" for x in cell.measured]
                lines.append([label, column, *figures, cell.settings, *measured])
        return csv_text(lines)


def trained(net: Network, **settings: Any) -> Any:
    """Result of `mpidec.train.fit` with these settings.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C has ended the training.
    """
    from ..train import fit

    result = fit(net=net, **settings)
    if result.outcome == "interrupted":
        raise KeyboardInterrupt
    return result


def worst(accuracy: np.ndarray, last: int) -> float:
    """Accuracy in percent of the worst worker, each in the mean over its `last` evaluations.

    Parameters
    ----------
    accuracy : (evaluations, n) array
    last : int

    Examples
    --------
    >>> import numpy as np
    >>> float(worst(np.array([[0.1, 0.1], [0.75, 1.0], [1.0, 0.5]]), last=2))
    75.0
    """
    return 100 * float(accuracy[-last:].mean(axis=0).min())
