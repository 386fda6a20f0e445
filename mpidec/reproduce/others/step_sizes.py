"""Step sizes: NIDS, whose range no network changes, and exact diffusion beside EXTRA."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import theory, topology
from ...solvers import DGD, EXTRA, NIDS, ExactDiffusion, Solver
from ...theory import Quadratic
from ...topology import Topology
from ..drawing import curves
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, derived, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NetworkCell = tuple[str, int]  # graph, n
GRAPHS: Mapping[str, Callable[[int], Topology]] = {
    "complete": topology.complete,
    "exponential": topology.symmetric_exponential,
    "ring": topology.ring,
    "chain": topology.chain,
    "star": topology.star,
}


def shared_curvatures(n: int, curvatures: ArrayLike) -> Quadratic:
    """Return costs of n agents with the same curvatures, and other minimizers."""
    h = np.asarray(curvatures, float)
    g = np.random.default_rng(n).standard_normal((n, len(h)))
    return Quadratic(0 * h, np.tile(np.diag(h), (n, 1, 1)), g - g.mean(axis=0))


def eigenvalues(graph: Topology) -> np.ndarray:
    """Return the eigenvalues of a symmetric W, in ascending order."""
    return np.asarray(np.linalg.eigvalsh(graph.W.toarray()))


@dataclass(frozen=True)
class StepOfAnyNetwork(Experiment[NetworkCell]):
    """Quadratics with curvatures from mu to L = 1 on graphs of very different spectra."""

    about: ClassVar = About(
        name="nids-steps",
        source="Li, Shi, Yan, IEEE TSP 2019, step size and linear rate of the convergence theorems",
        shows="NIDS takes steps up to 2 / L on any network; its rate is separated",
        minutes=0.1,
        differs="exact rates of quadratics in place of runs",
        quick={"graphs": ("ring", "star"), "sizes": (4,)},
    )

    graphs: tuple[str, ...] = tuple(GRAPHS)
    sizes: tuple[int, ...] = (5, 10, 20)
    condition: float = 50.0

    def cells(self) -> Iterable[NetworkCell]:
        """Each graph and n."""
        return ((graph, n) for graph in self.graphs for n in self.sizes)

    def measure(self, cell: NetworkCell) -> Mapping[str, ArrayLike]:
        """Largest step sizes, the rate of NIDS with 1 / L, and eigenvalues of W."""
        graph = GRAPHS[cell[0]](cell[1])
        costs = shared_curvatures(cell[1], [1 / self.condition, 1.0])
        return {
            "NIDS": theory.largest_step(costs, NIDS(1.0), graph).high,
            "EXTRA": theory.largest_step(costs, EXTRA(1.0), graph).high,
            "rate": theory.rate(costs, NIDS(1.0), graph),
            "eigenvalues": eigenvalues(graph)[[0, -2]],
        }

    def judge(self, results: Results[NetworkCell]) -> Iterable[Line]:
        """The step sizes, and the rate against the larger of both parts."""
        steps = np.array([found["NIDS"] for found in results.values()])
        yield holds(
            f"NIDS: largest step size times L, {len(steps)} networks",
            np.abs(steps - 2).max() <= 0.002,
            f"{steps.min():.4g} to {steps.max():.4g}",
            "2 on each, within .1 %",
            2.0,
            CLOSED,
        )
        off = [
            found["EXTRA"] / min((5 + 3 * found["eigenvalues"][0]) / 4, 2) - 1
            for found in results.values()
        ]
        yield holds(
            "EXTRA: largest step size against (5 + 3 lambda_min) / (4 L) (Li and Yan), worst "
            "difference",
            np.abs(off).max() <= 0.002,
            float(np.abs(off).max()),
            "at most .2 %",
            by=CLOSED,
        )
        for graph in self.graphs:
            squares = [
                (results[graph, n]["rate"] ** 2, (1 + results[graph, n]["eigenvalues"][1]) / 2)
                for n in self.sizes
            ]
            excess = max(
                float(rate - max(network, 1 - 1 / self.condition)) for rate, network in squares
            )
            yield holds(
                f"{graph}: rate^2 less max(1 - mu / L, (1 + lambda_2) / 2), largest",
                excess <= 1e-9,
                excess,
                "at most 0",
            )

    def draw(self, results: Results[NetworkCell], figure: Figure) -> None:
        """Largest step sizes and squared rates against the gap of the network."""
        left, right = figure.subplots(1, 2)
        least, second = np.transpose([found["eigenvalues"] for found in results.values()])

        def against(x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
            order = np.argsort(x)
            return x[order], np.array([found[name] for found in results.values()])[order]

        steps = {method: against(least, method) for method in ("NIDS", "EXTRA")}
        y = "largest step size, times L"
        curves(left, steps, "smallest eigenvalue of W", y, log="", marked=True)
        gaps, rates = against(1 - second, "rate")
        parts = {
            "NIDS, squared rate": (gaps, 1 - rates**2),
            "network": (gaps, gaps / 2),
            "functions": (gaps, np.full(len(gaps), 1 / self.condition)),
        }
        curves(right, parts, "spectral gap", "1 - rate", log="xy", marked=True)


RangeCell = tuple[str, float]  # method, smallest eigenvalue of W
METHODS: Mapping[str, type[Solver]] = {
    "exact diffusion": ExactDiffusion,
    "EXTRA": EXTRA,
    "DGD": DGD,
}
LIMITS: Mapping[str, Callable[[float], float]] = {  # times L, of quadratics with equal curvatures
    "exact diffusion": lambda least: 2.0,
    "EXTRA": lambda least: (5 + 3 * least) / 4,  # Li and Yan 2021
    "DGD": lambda least: 1 + least,
}


@dataclass(frozen=True)
class StabilityRange(Experiment[RangeCell]):
    """Rings of n agents, n even, with weights that give W any smallest eigenvalue."""

    about: ClassVar = About(
        name="exact-diffusion-range",
        source="Yuan, Ying, Zhao, Sayed, IEEE TSP 2019, part II, comparison of the stability "
        "ranges",
        shows="exact diffusion has a wider stability range than EXTRA",
        minutes=0.1,
        differs="exact limits of quadratics with equal curvatures",
        quick={"least": (-0.5,), "n": 4},
    )

    n: int = 10
    least: tuple[float, ...] = (-0.98, -0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)

    def cells(self) -> Iterable[RangeCell]:
        """Each method and eigenvalue."""
        return ((method, least) for method in METHODS for least in self.least)

    def measure(self, cell: RangeCell) -> Mapping[str, ArrayLike]:
        """Return the largest stable step size with L = 1."""
        method, least = cell
        shift = np.eye(self.n)[:, np.r_[1 : self.n, 0]]
        share = (1 - least) / 2
        graph = topology.from_weights((1 - share) * np.eye(self.n) + share * (shift + shift.T) / 2)
        costs = shared_curvatures(self.n, [0.1, 1.0])
        return {"step": theory.largest_step(costs, METHODS[method](1.0), graph).high}

    def judge(self, results: Results[RangeCell]) -> Iterable[Line]:
        """The limits against the closed forms, and their order."""
        for method in METHODS:
            for least in sorted({min(self.least), max(self.least)}):
                here = float(results[method, least]["step"])
                limit = LIMITS[method](least)
                yield derived(f"{method}, lambda_min = {least:g}", limit, here, 0.002)
            off = max(
                abs(float(results[method, least]["step"]) / LIMITS[method](least) - 1)
                for least in self.least
            )
            what = f"{method}: difference from the closed form, worst of all"
            yield holds(what, off <= 0.002, off, "within .2 %", by=CLOSED)
        ratio = min(
            float(results["exact diffusion", least]["step"] / results["EXTRA", least]["step"])
            for least in self.least
        )
        yield holds("exact diffusion over EXTRA, least", ratio > 1, ratio, "over 1", "> 1")

    def draw(self, results: Results[RangeCell], figure: Figure) -> None:
        """The limits against the smallest eigenvalue."""
        lines = {
            method: (self.least, [results[method, least]["step"] for least in self.least])
            for method in METHODS
        }
        x, y = "smallest eigenvalue of W", "largest stable step size, times L"
        curves(figure.add_subplot(), lines, x, y, log="", marked=True)
