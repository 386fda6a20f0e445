"""Figure 5: the exact mean after ceil(log2 n) rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...solvers import DSGDCECA
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[int, int, int]  # n, ports, seed


@dataclass(frozen=True)
class ExactConsensus(Experiment[Cell]):
    """Error of CECA's averages, sqrt(sum_i ||x_i - x_bar||^2), against the rounds."""

    name: ClassVar[str] = "ceca-fig5"
    source: ClassVar[str] = "Ding et al., ICML 2023, Figure 5"
    shows: ClassVar[str] = "CECA has the exact mean after ceil(log2 n) rounds, for every n"
    minutes: ClassVar[float] = 0.1
    quick: ClassVar[Mapping[str, object]] = {"sizes": (6, 50)}

    sizes: tuple[int, ...] = (6, 50, 100, 500, 1000, 5000)
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 25

    def cells(self) -> Iterable[Cell]:
        """Each n, with one port where n is even, or two."""
        for n in self.sizes:
            for ports in (1, 2) if n % 2 == 0 else (2,):
                for seed in self.seeds:
                    yield n, ports, seed

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """The error after 0, 1, ... rounds."""
        n, ports, seed = cell
        solver = DSGDCECA(0.0)
        s = solver.init(np.random.RandomState(seed).randn(n, 1))
        mean, errors = s.X.mean(axis=0), []
        with alone(n) as net:
            W = net.mixer(topology.ceca(n, ports=ports))
            for k in range(self.rounds + 1):
                errors.append(np.linalg.norm(s.X - mean))
                s = solver.step(s, np.zeros_like(s.X), W.at(k))
        return {"error": errors}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The error one round before tau, and at tau."""
        for n, ports, seed in results:
            error, tau = results[n, ports, seed]["error"], math.ceil(math.log2(n))
            yield holds(
                f"n = {n}, {ports}P, seed {seed}: at tau = {tau}, tau - 1",
                error[tau] <= 1e-13 * n and error[tau - 1] >= 1e-2,
                f"{error[tau]:.1e}, {error[tau - 1]:.2g}",
                "rounding error at tau, more than .01 before",
                "0, > 0",
            )

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The first seed with two ports."""
        lines = {
            f"n = {n}": (np.arange(self.rounds + 1), results[n, 2, self.seeds[0]]["error"])
            for n in self.sizes
        }
        curves(figure.add_subplot(), lines, "rounds", "error of the averages")
