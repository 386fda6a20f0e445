"""Figures 5 and 6: the exact mean after ceil(log2 n) rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ..drawing import curves
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, holds, within
from .running import CECA, DRAWN, FIXED, averaging_errors, possible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNIT = (
    "Errors are those of the published code, sqrt(n) times the norm of the deviations from the "
    "mean.",
)


def rounds_of(n: int) -> int:
    """Return tau = ceil(log2 n)."""
    return (n - 1).bit_length()


Cell = tuple[int, int, int]  # n, ports, seed
BEFORE = {50: 7.418746221200046, 100: 7.791411505247216, 500: 22.565229598396296}


@dataclass(frozen=True)
class ExactConsensus(Experiment[Cell]):
    """Error of CECA's averages against the rounds."""

    about: ClassVar = About(
        name="ceca-fig5",
        source="Ding et al., ICML 2023, Figure 5",
        shows="CECA has the exact mean after ceil(log2 n) rounds, for every n",
        minutes=0.1,
        quick={"sizes": (6, 50)},
        notes=(
            *UNIT,
            "Published: the mean of the published code's three runs, one round before tau.",
        ),
    )

    sizes: tuple[int, ...] = (6, 50, 100, 500, 1000, 5000)
    seeds: tuple[int, ...] = (100, 101, 102)
    rounds: int = 25

    def cells(self) -> Iterable[Cell]:
        """Each n, with one port where n is even, or two."""
        for n in self.sizes:
            for ports in (1, 2) if n % 2 == 0 else (2,):
                for seed in self.seeds:
                    yield n, ports, seed

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the error after 0, 1, ... rounds."""
        n, ports, seed = cell
        return {
            "error": averaging_errors(
                FIXED[CECA[ports - 1]](n), seed, max(self.rounds, rounds_of(n))
            )
        }

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The error one round before tau, and at tau."""
        for n, ports in dict.fromkeys((n, ports) for n, ports, _ in results):
            tau = rounds_of(n)
            errors = np.array([results[n, ports, seed]["error"] for seed in self.seeds])
            yield holds(
                f"n = {n}, {ports}P: at tau = {tau}, tau - 1",
                bool(
                    errors[:, tau].max() <= 1e-13 * n
                    and (tau == 0 or errors[:, tau - 1].min() >= 1e-2)
                ),
                f"{errors[:, tau].max():.1e}, {errors[:, tau - 1].min():.2g}",
                "rounding error at tau, more than .01 before",
                "0, > 0",
                CLOSED,
            )
            if ports == 1 and n in BEFORE and self.seeds == ExactConsensus.seeds:
                here = float(errors[:, tau - 1].mean())
                yield within(f"n = {n}, 1P: at tau - 1, mean", BEFORE[n], here, 1e-10)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The mean over the seeds, with one port where possible."""
        lines = {}
        for n in self.sizes:
            runs = [results[n, 1 + n % 2, seed]["error"] for seed in self.seeds]
            lines[f"n = {n}"] = (np.arange(len(runs[0])), np.mean(runs, axis=0))
        curves(figure.add_subplot(), lines, "rounds", "error of the averages")


NAMES = (*CECA, "one-peer exponential", *DRAWN, "grid", "ring")
AT = (9, 40)  # rounds
PUBLISHED: Mapping[int, Mapping[str, tuple[float, float]]] = {
    130: {
        "one-peer exponential": (0.960149303894, 4.0733454653e-08),
        "OD-EquiDyn": (4.33325372435, 1.11795814242e-05),
        "OU-EquiDyn": (7.85513625965, 0.000666673737155),
        "grid": (25.1294131477, 8.81140114241),
        "ring": (44.33129823, 32.1286598257),
    },
    258: {
        "one-peer exponential": (1.01601220929, 2.46737857579e-07),
        "OD-EquiDyn": (10.8282819392, 0.000145764949442),
        "OU-EquiDyn": (17.216507141, 0.00143793464321),
        "grid": (43.0784250018, 20.1487922244),
        "ring": (89.9870164539, 66.8883764646),
    },
}
ROWS = "the last, incomplete row of the published grid is joined otherwise"
# Part of an error that the form of the last row of a grid may change.
RAGGED = 0.15

Run = tuple[int, str, int, int]  # n, graph, seed, draw


@dataclass(frozen=True)
class OtherGraphs(Experiment[Run]):
    """Error of the averages against the rounds: CECA, and graphs that are not exact."""

    about: ClassVar = About(
        name="ceca-fig6",
        source="Ding et al., ICML 2023, Figure 6",
        shows="CECA reaches the exact mean, other graphs only approach it",
        minutes=0.3,
        quick={"sizes": (10,), "seeds": (0,), "draws": 2},
        notes=(
            *UNIT,
            "Published: means of the published code's three runs.  Random graphs: one sequence in "
            "all of its runs, here the median",
            "of `draws` sequences for each seed; agreement is a published mean within the range of "
            "these runs.",
            "The published grid has rows of floor(sqrt n) agents, of which the last is incomplete; "
            "how it is joined at these n is not known.",
            "Ours has rows of nearly sqrt n agents, and Metropolis weights.",
        ),
    )

    sizes: tuple[int, ...] = (130, 258)
    seeds: tuple[int, ...] = (0, 100, 200)
    draws: int = 10
    rounds: int = 40

    def cells(self) -> Iterable[Run]:
        """Each n, graph and seed; random graphs are drawn several times."""
        for n in self.sizes:
            for name in possible(n, NAMES):
                for seed in self.seeds:
                    for draw in range(self.draws if name in DRAWN else 1):
                        yield n, name, seed, draw

    def measure(self, cell: Run) -> Mapping[str, ArrayLike]:
        """Return the error after 0, 1, ... rounds."""
        n, name, seed, draw = cell
        graph = (
            topology.equitopo(n, DRAWN[name], seed=100 + 1000 * seed + draw)
            if name in DRAWN
            else FIXED[name](n)
        )
        return {"error": averaging_errors(graph, seed, max(self.rounds, rounds_of(n)))}

    def _errors(self, results: Results[Run], n: int, name: str) -> np.ndarray:
        """All runs of a graph."""
        return np.array([results[run]["error"] for run in results if run[:2] == (n, name)])

    def judge(self, results: Results[Run]) -> Iterable[Line]:
        """CECA at tau, and the published errors."""
        for n in self.sizes:
            tau, names = rounds_of(n), possible(n, NAMES)
            at_tau = {name: self._errors(results, n, name)[:, tau].max() for name in names}
            exact = {name for name in names if at_tau[name] <= 1e-13 * n}
            expected = {
                name for name in names if name in CECA or (n & (n - 1) == 0 and name == NAMES[2])
            }
            yield Line(
                f"n = {n}: exact at tau = {tau}",
                "CECA",
                ", ".join(sorted(exact)),
                exact == expected if n > 4 else None,
                "CECA alone, and the one-peer graph if n is a power of 2",
                by=CLOSED,
            )
            for name, published in PUBLISHED.get(n, {}).items():
                if self.seeds == OtherGraphs.seeds:
                    yield from self._compared(n, name, self._errors(results, n, name), published)

    def _compared(
        self, n: int, name: str, errors: np.ndarray, published: Sequence[float]
    ) -> Iterable[Line]:
        for k, value in zip(AT, published):
            if k >= errors.shape[1]:
                continue
            what = f"n = {n}, {name}: round {k}"
            if name in DRAWN:
                low, here, high = np.quantile(errors[:, k], (0, 0.5, 1))
                agrees = low <= value <= high
                yield Line(what, value, float(here), bool(agrees), f"in {low:.2g} .. {high:.2g}")
            else:
                here = float(errors[:, k].mean())
                agrees = abs(here - value) <= 1e-10 * value + 1e-15 * n
                because = ROWS if name == "grid" else ""
                near = abs(here - value) <= RAGGED * value if because else None
                expected = "1e-10 of it and rounding"
                yield Line(what, value, here, agrees, expected, because, explains=near)

    def draw(self, results: Results[Run], figure: Figure) -> None:
        """A panel for each n: means over the runs."""
        panels = figure.subplots(1, len(self.sizes), squeeze=False)[0]
        for axes, n in zip(panels, self.sizes):
            lines = {}
            for name in possible(n, NAMES):
                errors = self._errors(results, n, name).mean(axis=0)
                lines[name] = (np.arange(len(errors)), errors)
            curves(axes, lines, "rounds", "error of the averages", title=f"n = {n}")
            axes.get_legend().remove()
        panels[0].legend(fontsize=6, loc=(0.4, 0.08))
