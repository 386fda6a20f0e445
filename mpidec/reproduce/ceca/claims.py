"""Lemmas 4.1 and 4.2, Theorem 4.4: products of CECA's matrices, and the linear speed-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ...driver.internals import iterate
from ...solvers import DSGDCECA
from ..dense import each_against_dense
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import CLOSED, About, Line, holds
from .consensus import rounds_of
from .running import CECA, FIXED, descent, iterates, pulled_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int, int]  # what, n, ports or seed
Matrix = np.ndarray


def products(n: int, ports: int, first: int, rounds: int) -> Iterator[Matrix]:
    """The matrices, 2n x 2n, by which 1, 2, ... rounds from the round `first` on mix x and y."""
    graph, solver = FIXED[CECA[ports - 1]](n), DSGDCECA(0.0)
    digit = f"{n - 1:b}"[first] == "1"
    with alone(n) as net:
        W = net.mixer(graph)
        start = solver.State(np.eye(n, 2 * n), np.eye(n, 2 * n, k=n), int(digit))
        for s in iterate(solver, None, W, start, first, rounds):
            yield np.concatenate([s.X, s.Y])


def outside(M: Matrix) -> float:
    """Return how far a matrix is from the family of Lemma 4.1: blocks c_1 A_1, (1 - c_1) B_1; c_2
    A_2, (1 - c_2) B_2 with doubly stochastic A and B.
    """
    n = len(M) // 2
    blocks = M.reshape(2, n, 2, n).swapaxes(1, 2)
    rows, columns = blocks.sum(axis=3), blocks.sum(axis=2)
    shares = blocks.sum(axis=(2, 3)) / n
    return float(
        max(
            np.abs(rows - shares[..., None]).max(),
            np.abs(columns - shares[..., None]).max(),
            np.abs(shares.sum(axis=1) - 1).max(),
            -M.min(),
        )
    )


def apart(M: Matrix) -> float:
    """Return how much the rows of a matrix differ in an entry of each column, and the columns of x
    and of y.
    """
    n = M.shape[1] // 2
    return float(max(np.ptp(M[:, :n]), np.ptp(M[:, n:])))


@dataclass(frozen=True)
class CecaClaims(Experiment[Cell]):
    """Products of the rounds' matrices, and the error that noise leaves."""

    about: ClassVar = About(
        name="ceca-claims",
        source="Ding et al., ICML 2023, Lemmas 4.1 and 4.2, Theorem 4.4",
        shows="products of CECA's matrices average; its noise shrinks as 1 / n",
        minutes=0.2,
        quick={
            "sizes": (5, 6),
            "agents": (4, 8),
            "steps": 200,
            "seeds": (0,),
        },
        notes=(
            "Products are taken from each round of the period on, of up to 2 tau rounds; the worst "
            "is shown.",
            "Speed-up: E |mean|^2 of noisy gradients of x^2 / 2 with a constant step size, against "
            "n.",
        ),
    )

    sizes: tuple[int, ...] = tuple(range(2, 65))
    agents: tuple[int, ...] = (4, 8, 16, 32, 64)
    seeds: tuple[int, ...] = (0, 1)
    step_size: float = 0.05
    steps: int = 2000
    columns: int = 64

    def cells(self) -> Iterable[Cell]:
        """Products for each n and number of ports, noise for each n and seed."""
        for n in self.sizes:
            yield from (("products", n, ports) for ports in ((1, 2) if n % 2 == 0 else (2,)))
        yield from (("noise", n, seed) for n in self.agents for seed in self.seeds)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Distances from the family and from averaging, or the mean square of the average."""
        what, n, number = cell
        return self._noise(n, number) if what == "noise" else self._products(n, number)

    def _products(self, n: int, ports: int) -> Mapping[str, ArrayLike]:
        tau = rounds_of(n)
        made = [list(products(n, ports, first, 2 * tau)) for first in range(tau)]
        return {
            "family": max(outside(M) for rounds in made for M in rounds),
            "x": apart(made[0][tau - 1][:n]),
            "x before": apart(made[0][tau - 2][:n]) if tau > 1 else 1.0,
            "both": apart(made[0][tau]),
            "any": max(apart(rounds[-1]) for rounds in made),
        }

    def _noise(self, n: int, seed: int) -> Mapping[str, ArrayLike]:
        graph, draw = FIXED["CECA-2P"](n), np.random.default_rng(seed)
        rows = iterates(
            descent(graph, self.step_size),
            graph,
            np.zeros((n, self.columns)),
            self.steps,
            lambda X, k: X + draw.standard_normal(X.shape),
        )
        squares = [float((X.mean(axis=0) ** 2).mean()) for X in rows]
        off = pulled_apart("CECA-2P", graph, lambda k: self.step_size, seed)
        return {"error": np.mean(squares[self.steps // 10 :]), "apart": off}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The worst n for each statement, and the slope."""
        found = {cell: values for cell, values in results.items() if cell[0] == "products"}
        tolerance = 1e-14 * max(self.sizes)
        for key, what in (
            ("family", "products: distance from the family of Lemma 4.1"),
            ("x", "tau rounds from the first: x is not the mean by"),
            ("both", "tau + 1 rounds from the first: x and y by"),
            ("any", "2 tau rounds from any: x and y by"),
        ):
            worst = max(float(values[key]) for values in found.values())
            yield holds(what, worst <= tolerance, worst, f"{tolerance:.0e}", "0", CLOSED)
        least = min(float(values["x before"]) for values in found.values())
        yield holds(
            "tau - 1 rounds from the first: at least", least > 0.1 / max(self.sizes), least, "not 0"
        )
        errors = [self._error(results, n) for n in self.agents]
        slope = float(np.polyfit(np.log(self.agents), np.log(errors), 1)[0])
        what = f"slope of the error for n = {self.agents[0]} to {self.agents[-1]}"
        yield Line(what, -1.0, slope, abs(slope + 1) <= 0.1, "within .1", by=CLOSED)
        yield from each_against_dense(results)

    def _error(self, results: Results[Cell], n: int) -> float:
        return float(np.mean([results["noise", n, seed]["error"] for seed in self.seeds]))

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The error against n."""
        step = self.step_size / (2 - self.step_size)
        lines = {
            "DSGD-CECA": (self.agents, [self._error(results, n) for n in self.agents]),
            "parallel SGD, derived": (self.agents, [step / n for n in self.agents]),
        }
        curves(figure.add_subplot(), lines, "agents", "mean square error", log="xy", marked=True)
