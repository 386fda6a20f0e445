"""Interface of a published experiment: cells to measure, lines to judge, a figure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..comm.mixing import Network
from ..comm.runtime import ALONE
from .verdict import About, Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = Mapping[str, NDArray[np.float64]]
C = TypeVar("C", bound=tuple[object, ...])
Results = Mapping[C, Arrays]


class Experiment(ABC, Generic[C]):
    """A figure, a table or a statement of a paper.

    Derive a frozen dataclass, and give each field a default: those that are tuples are the axes of
    the experiment, the others its settings; ``--set NAME=VALUE`` changes them.

    Attributes
    ----------
    about : About
        What the list and the report say of it.

    Examples
    --------
    >>> from mpidec import reproduce
    >>> experiment = reproduce.EXPERIMENTS["ceca-fig5"](sizes=(6,), seeds=(0,))
    >>> list(experiment.cells())
    [(6, 1, 0), (6, 2, 0)]
    >>> results = {cell: experiment.measure(cell) for cell in experiment.cells()}
    >>> [line.verdict for line in experiment.judge(results)]
    ['agrees', 'agrees']
    """

    about: ClassVar[About]

    @abstractmethod
    def cells(self) -> Iterable[C]:
        """What is to be measured: tuples of strings and numbers, which name it in the file."""

    @abstractmethod
    def measure(self, cell: C) -> Mapping[str, ArrayLike]:
        """Return what one cell gives: numbers that follow from the cell and the settings alone, in
        one process.
        """

    @abstractmethod
    def judge(self, results: Results[C]) -> Iterable[Line]:
        """Return the lines of the report."""

    @abstractmethod
    def draw(self, results: Results[C], figure: Figure) -> None:
        """Draw the figure of the paper into an empty one."""


def alone(n: int) -> Network:
    """Return a network of n agents in this process, whatever the number of ranks."""
    return Network(n, ALONE)
