"""Figure 2: steps until f(mean) - f* < 1e-6 on random quadratics, against the number of workers.

``published.csv`` has what the notebook of this figure in github.com/epfml/relaysgd (MIT licence)
printed.
"""

from __future__ import annotations

import csv
import math
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..dense import each_against_dense
from ..drawing import panels
from ..experiment import Experiment, Results
from ..verdict import ORDER, PRINTED, About, Line, holds, within
from .correction import distances
from .delayed import checked
from .quadratics import BIASED, GRAPHS, SOLVERS, Found, Trial, random_quadratics, sampled_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, str, int, float, int]  # solver, graph, n, zeta2, seed
NOTES = (
    "The published search for the fastest step size halves it before it prints it: each step size "
    "that it names is half of the one that took these steps.",
    "With twice the printed ones, the steps are the published ones.  The search for a plateau "
    "(gossip and RelaySGD/Grad, zeta2 > 0) has no such fault.",
)


@cache
def published() -> Mapping[Cell, Found]:
    """Return the published steps of each run, with the step size that took them."""
    found = {}
    path = os.path.join(os.path.dirname(__file__), "published.csv")
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            solver, zeta2, printed = row["method"], float(row["zeta2"]), float(row["lr"])
            cell = solver, row["graph"], int(row["n"]), zeta2, int(row["seed"])
            step_size = printed if to_plateau(solver, zeta2) else 2 * printed
            found[cell] = Found(int(row["steps"]), step_size)
    return found


def to_plateau(solver: str, zeta2: float) -> bool:
    """Return whether the published search is for a plateau, instead of the fastest step size."""
    return solver in BIASED and zeta2 > 0


def apart(steps: float, other: float) -> float:
    """Return how many of the test steps lie between two numbers of steps."""
    if math.isinf(steps):
        return math.inf
    grid = sampled_steps(20000)
    return float(abs(np.searchsorted(grid, steps) - np.searchsorted(grid, other)))


@dataclass(frozen=True)
class Scalability(Experiment[Cell]):
    """Steps of each method at its best step size.

    Attributes
    ----------
    sizes, zeta2s, seeds : tuple
        Without published step sizes, the search of the published code finds them.
    search : bool
        Whether it finds all of them.
    """

    pairs: ClassVar[Sequence[tuple[str, str]]]
    r0: ClassVar[float]
    start: ClassVar[float]
    most: ClassVar[float]  # steps, in the figure

    sizes: tuple[int, ...] = ()
    zeta2s: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    search: bool = False

    def of(self, solver: str) -> tuple[int, ...]:
        """Return the numbers of workers of a method."""
        return self.sizes

    def cells(self) -> Iterable[Cell]:
        """Each method on its graphs, n, zeta2 and seed."""
        for solver, graph in self.pairs:
            for n in self.of(solver):
                for zeta2 in self.zeta2s:
                    for seed in self.seeds:
                        yield solver, graph, n, zeta2, seed

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the steps at the published step size, or at that of the search."""
        solver, graph, n, zeta2, seed = cell
        f = random_quadratics(n, zeta2, self.r0, seed)
        trial = Trial(f, SOLVERS[solver], GRAPHS[graph](n), to_plateau(solver, zeta2))
        known = published().get(cell)
        if known is None or self.search:
            steps, step_size = trial.search(self.start)
        else:
            steps, step_size = trial.steps(known.step_size), known.step_size
        return {"steps": steps, "step_size": step_size, **checked(f, solver, trial.graph)}

    def mean(
        self, results: Results[Cell], solver: str, graph: str, zeta2: float
    ) -> dict[int, float]:
        """Steps in the mean over the seeds, by n."""
        return {
            n: float(
                np.mean([results[solver, graph, n, zeta2, seed]["steps"] for seed in self.seeds])
            )
            for n in self.of(solver)
        }

    def judge(self, results: Results[Cell]) -> Iterator[Line]:
        """Each method and zeta2 against the published steps, and how they grow."""
        for pair, zeta2 in product(self.pairs, self.zeta2s):
            yield self._compared(
                f"{', '.join(pair)}, zeta2 = {zeta2:g}",
                {
                    cell: float(found["steps"])
                    for cell, found in results.items()
                    if cell[:2] == pair and cell[3] == zeta2
                },
            )
        yield from self.statements(results)
        yield from each_against_dense(results)

    def _compared(self, what: str, runs: Mapping[Cell, float]) -> Line:
        """Means over the runs that are published, or over all for an n of which none is."""
        steps = {cell: published()[cell].steps for cell in runs if cell in published()}
        means = {n: _means(n, steps, runs) for n in sorted({cell[2] for cell in runs})}
        theirs, here = ("/".join(texts) for texts in zip(*means.values()))
        what = f"{what}: n = {'/'.join(map(str, means))}"
        if not steps:
            return Line(what, None, here)
        if self.search:
            agrees = all(runs[cell] <= 1.05 * most for cell, most in steps.items())
            return Line(what, theirs, here, agrees, "at most 5 % more steps in each run", by=ORDER)
        agrees = all(apart(runs[cell], other) <= 1 for cell, other in steps.items())
        expected = "each run within one of the 1000 test steps on a log scale"
        return Line(what, theirs, here, agrees, expected, by=PRINTED)

    @abstractmethod
    def statements(self, results: Results[Cell]) -> Iterator[Line]:
        """What the figure shows."""

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """A panel for each zeta2."""
        lines = {}
        for zeta2 in self.zeta2s:
            means = {pair: self.mean(results, *pair, zeta2) for pair in self.pairs}
            lines[rf"$\zeta^2$ = {zeta2:g}"] = {
                ", ".join(pair): (list(steps), list(steps.values()))
                for pair, steps in means.items()
            }
        x, y = "number of workers n", "steps to $10^{-6}$"
        panels(figure, lines, x, y, log="", marked=True)[0].set_ylim(0, self.most)


def _means(n: int, steps: Mapping[Cell, float], runs: Mapping[Cell, float]) -> tuple[str, str]:
    """The means of the published `steps` with n workers, and of the same `runs`."""
    known = {cell: k for cell, k in steps.items() if cell[2] == n}
    mine = [k for cell, k in runs.items() if cell in known or (not known and cell[2] == n)]
    return _text([*known.values()]) if known else "-", _text(mine)


def _text(steps: Sequence[float]) -> str:
    mean = np.mean(steps)
    return f"{mean:.3g}" if mean < 100 else f"{mean:.0f}"


@dataclass(frozen=True)
class Biased(Scalability):
    """Gossip against RelaySGD/Grad."""

    about: ClassVar = About(
        name="relaysgd-fig2a",
        source="Vogels et al., NeurIPS 2021, Figure 2, first row",
        shows="with equal data gossip is fast for any n, with heterogeneous data RelaySGD/Grad is",
        minutes=1,
        quick={"sizes": (4, 8), "seeds": (0,), "zeta2s": (0.0, 0.01)},
        notes=NOTES,
    )
    pairs = (
        ("gossip", "ring"),
        ("gossip", "tree"),
        ("RelaySGD/Grad", "chain"),
        ("RelaySGD/Grad", "tree"),
    )
    r0, start, most = 10.0, 100.0, 4000.0

    sizes: tuple[int, ...] = (4, 6, 8, 12, 16, 24, 32, 48, 64)
    zeta2s: tuple[float, ...] = (0.0, 0.01, 0.1)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)

    def statements(self, results: Results[Cell]) -> Iterator[Line]:
        """Which of both is faster."""
        n = max(self.sizes)
        for ours, theirs in (("chain", "ring"), ("tree", "tree")):
            for zeta2 in self.zeta2s:
                gossip = self.mean(results, "gossip", theirs, zeta2)
                relay = self.mean(results, "RelaySGD/Grad", ours, zeta2)
                what = f"steps of gossip on the {theirs} over RelaySGD/Grad on the {ours}, zeta2 = "
                if zeta2 == 0:
                    most = max(gossip[m] / relay[m] for m in self.sizes)
                    yield holds(f"{what}0, largest", most <= 1, most, "at most 1 for all n")
                elif zeta2 >= 0.1 and n >= 16:
                    least, ratio = 20 if n >= 64 else 2, gossip[n] / relay[n]
                    yield holds(
                        f"{what}{zeta2:g}, n = {n}", ratio >= least, ratio, f"at least {least}"
                    )


@dataclass(frozen=True)
class Unbiased(Scalability):
    """Methods that converge linearly."""

    about: ClassVar = About(
        name="relaysgd-fig2b",
        source="Vogels et al., NeurIPS 2021, Figure 2, second row",
        shows="steps of RelaySGD grow with the diameter, not with the spectral gap, and not with "
        "zeta2",
        minutes=0.8,
        quick={
            "sizes": (6, 12),
            "powers": (4, 8),
            "seeds": (0,),
            "zeta2s": (0.01,),
        },
        notes=NOTES,
    )
    pairs = (
        ("RelaySGD", "chain"),
        ("RelaySGD", "tree"),
        ("D2", "ring"),
        ("gradient tracking", "ring"),
        ("gradient tracking", "tree"),
        ("SGP", "exponential"),
        ("all-reduce", "complete"),
    )
    r0, start, most = 100.0, 10.0, 500.0

    sizes: tuple[int, ...] = (6, 12, 24, 48, 96)
    zeta2s: tuple[float, ...] = (0.01, 1.0)
    seeds: tuple[int, ...] = tuple(range(10))
    powers: tuple[int, ...] = (4, 8, 16, 32, 64)  # more numbers of workers for SGP

    def of(self, solver: str) -> tuple[int, ...]:
        """Return the numbers of workers of a method."""
        return tuple(sorted({*self.sizes, *self.powers})) if solver == "SGP" else self.sizes

    def statements(self, results: Results[Cell]) -> Iterator[Line]:
        """RelaySGD's steps against n, the diameter and zeta2."""
        few, many, zeta2 = min(self.sizes), max(self.sizes), max(self.zeta2s)
        per_hop = []
        for graph in ("chain", "tree"):
            steps = self.mean(results, "RelaySGD", graph, zeta2)
            per_hop += [steps[n] / distances(GRAPHS[graph](n).at(0)).max() for n in self.sizes]
            if growth := self._growth(graph, few, many, zeta2):
                what = f"RelaySGD, {graph}: steps at n = {many} over n = {few}"
                yield within(what, growth, steps[many] / steps[few], 0.1)
        yield holds(
            "RelaySGD: steps over the diameter, from least to most",
            max(per_hop) <= 3 * min(per_hop),
            f"{min(per_hop):.3g} to {max(per_hop):.3g}",
            "within a factor of 3",
        )
        runs = (
            [float(results["RelaySGD", graph, n, zeta2, seed]["steps"]) for zeta2 in self.zeta2s]
            for graph, n, seed in product(("chain", "tree"), self.sizes, self.seeds)
        )
        ratio = max(max(steps) / min(steps) for steps in runs)
        what = "RelaySGD: steps at the worst zeta2 over those at the best, largest"
        yield holds(what, ratio <= 1.15, ratio, "at most 1.15")

    def _growth(self, graph: str, few: int, many: int, zeta2: float) -> float | None:
        """That of the published steps, if there are any of these seeds."""
        least, most = (
            sum(
                published().get(("RelaySGD", graph, n, zeta2, seed), Found()).steps
                for seed in self.seeds
            )
            for n in (few, many)
        )
        return most / least if many > few and math.isfinite(most + least) else None
