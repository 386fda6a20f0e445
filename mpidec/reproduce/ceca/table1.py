"""Table 1: messages, sizes and transients of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..dense import each_against_dense
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import CLOSED, About, Line, holds
from .consensus import rounds_of
from .running import (
    CECA,
    FIXED,
    averaging_errors,
    descent,
    iterates,
    possible,
    pulled_apart,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, str, int, int]  # what, graph, n, seed
NAMES = ("ring", "grid", "exponential", "one-peer exponential", *CECA)
ONE = {"CECA-1P": "even n", "CECA-2P": "all n", "one-peer exponential": "n = 2^k"}
EXPONENTS = {"ring": 2.0, "grid": 1.25}  # of n log n about n = 30; others: 1


@dataclass(frozen=True)
class Transients(Experiment[Cell]):
    """Messages of an agent in a step, exact averages, and steps until DSGD is as good as parallel
    SGD.
    """

    about: ClassVar = About(
        name="ceca-table1",
        source="Ding et al., ICML 2023, Table 1",
        shows="CECA sends one message and is exact for every n; its transients grow as the best "
        "graphs' do",
        minutes=0.3,
        differs=(
            "transients of x^2 / 2 with noise and step size 1 / (k + 1), where they are derived; "
            "the paper's are bounds for nonconvex functions"
        ),
        quick={"exact": (6,), "sizes": (9, 16), "seeds": (0,)},
        notes=(
            "Transient: steps until the disagreement is a tenth of parallel SGD's error 1 / (n k), "
            "10 sum_m l_m^2 / (1 - l_m^2) for a constant W",
            "with eigenvalues l_m: of order n^2 on the ring, n log n on the grid, n on the others; "
            "least on the exponential graph, of log2 n messages.",
            "directed: messages go one way.",
        ),
    )

    exact: tuple[int, ...] = (6, 7, 12, 16, 30)
    sizes: tuple[int, ...] = (16, 36, 64)
    seeds: tuple[int, ...] = (0, 1)
    columns: int = 64

    def cells(self) -> Iterable[Cell]:
        """Averages of each n, transients of each n and seed."""
        for n in self.exact:
            yield from (("average", name, n, self.seeds[0]) for name in possible(n, NAMES))
        for n in self.sizes:
            for name in possible(n, NAMES):
                yield from (("transient", name, n, seed) for seed in self.seeds)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Error of the averages at tau and messages, or the transient."""
        what, name, n, seed = cell
        return (
            self._transient(name, n, seed) if what == "transient" else self._average(name, n, seed)
        )

    def _average(self, name: str, n: int, seed: int) -> Mapping[str, ArrayLike]:
        graph, tau = FIXED[name](n), rounds_of(n)
        with alone(n) as net:
            W = net.mixer(graph)
            for k in range(tau):
                W.at(k)(np.zeros((n, 1)))
            messages = W.messages / (n * tau)
        error = averaging_errors(graph, seed, tau)[tau]
        return {"error": error, "messages": messages, "directed": graph.directed}

    def _transient(self, name: str, n: int, seed: int) -> Mapping[str, ArrayLike]:
        graph, draw = FIXED[name](n), np.random.default_rng(seed)
        steps = 2 * n * n if name == "ring" else 5 * n * rounds_of(n)
        start = np.zeros((n, self.columns))

        def noisy(X: np.ndarray, k: int) -> np.ndarray:
            return X + draw.standard_normal(X.shape)

        rows = iterates(descent(graph, self.rate), graph, start, steps, noisy)
        spread = np.array([X.var(axis=0).mean() for X in rows])
        above = np.flatnonzero(spread * n * np.arange(steps + 1) > 0.1)
        off = pulled_apart(name, graph, self.rate, seed)
        return {"steps": above[-1] + 1 if len(above) else 0, "apart": off}

    @staticmethod
    def rate(k: int) -> float:
        """Return the step size of step k."""
        return 1 / (k + 1)

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Each graph's messages and sizes; slopes and order of the transients."""
        for name in NAMES:
            runs = {
                n: run
                for (what, graph, n, _), run in results.items()
                if (what, graph) == ("average", name) and n > 4
            }
            if runs:
                yield self._sends(name, runs)
        steps = {name: self._steps(results, name) for name in NAMES}
        for name, (sizes, values) in steps.items():
            if len(sizes) > 1:
                yield _slope(name, sizes, values)
        last = {name: values[-1] for name, (_, values) in steps.items() if len(values)}
        ceca, peer = last["CECA-2P"], last["one-peer exponential"]
        others = max(value for name, value in last.items() if name != "ring")
        agrees = last["ring"] > 2 * others and abs(ceca / peer - 1) < 0.5
        yield Line(
            f"n = {self.sizes[-1]}: ring, next, one-peer, CECA-2P",
            None,
            f"{last['ring']:.0f}, {others:.0f}, {peer:.0f}, {ceca:.0f}",
            bool(agrees) if self.sizes[-1] >= 32 else None,
            "ring above twice the others, CECA within 50 % of the one-peer graph",
        )
        yield from each_against_dense(results, 1)

    def _sends(self, name: str, runs: Mapping[int, Mapping[str, np.ndarray]]) -> Line:
        """Return the line of a graph."""
        exact = {n for n, run in runs.items() if run["error"] <= 1e-13 * n}
        expected = {n for n in runs if name in CECA or (name in ONE and n & (n - 1) == 0)}
        messages = [float(run["messages"]) for run in runs.values()]
        kind = "directed" if any(run["directed"] for run in runs.values()) else "undirected"
        least, most = min(messages), max(messages)
        return holds(
            f"{name}, {kind}: messages, exact n",
            exact == expected and (most == 1) == (name in ONE),
            f"{least:.2g} .. {most:.2g}; {', '.join(map(str, sorted(exact))) or 'none'}",
            f"exact for {expected or 'none'}",
            f"1; {ONE[name]}" if name in ONE else "degree; none",
            CLOSED,
        )

    def _steps(self, results: Results[Cell], name: str) -> tuple[list[int], list[float]]:
        """Sizes and transients of a graph, in the mean over the seeds."""
        sizes = [n for n in self.sizes if name in possible(n, NAMES)]
        return sizes, [
            float(np.mean([results["transient", name, n, s]["steps"] for s in self.seeds]))
            for n in sizes
        ]

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """Transients against n."""
        lines = {name: self._steps(results, name) for name in NAMES}
        curves(figure.add_subplot(), lines, "agents", "transient steps", log="xy", marked=True)


def _slope(name: str, sizes: Sequence[int], values: Sequence[float]) -> Line:
    """The growth of the transients of a graph with n, against the derived exponent."""
    slope = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    exponent = EXPONENTS.get(name, 1.0)
    agrees = abs(slope - exponent) <= 0.25 if sizes[-1] >= 4 * sizes[0] else None
    told = ", ".join(f"{value:.0f}" for value in values)
    what = f"{name}: slope of the transients {told}"
    return Line(what, None, slope, agrees, f"{exponent:g}, derived, within .25", by=CLOSED)
