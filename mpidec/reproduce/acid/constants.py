"""Figure 6, Table 2 and Appendix D: constants of graphs, and the communication that they ask
for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...topology import Topology, mixing_constants
from ..drawing import circle
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, str, int]  # what, graph, n or seed
HOPS: Mapping[str, Callable[[int], list[int]]] = {
    "cycle": lambda n: [1, n - 1],
    "exponential": lambda n: [s * 2**k % n for k in range(int(math.log2(n))) for s in (1, -1)],
    "complete": lambda n: list(range(1, n)),
}
EXPONENTS: Mapping[str, tuple[float, float]] = {  # A2CiD2, accelerated synchronous methods
    "star": (1, 1.5),
    "ring": (2, 2),
    "complete": (1, 2),
}


def circulant_rates(graph: str, n: int) -> np.ndarray:
    """Return the rates of the edges: one averaging of each agent in a unit of time, and hops that
    are listed twice twice as often.
    """
    hops = HOPS[graph](n)
    row = np.bincount(hops, minlength=n) / len(hops)
    return np.array([np.roll(row, i) for i in range(n)])


def derived(graph: str, n: int) -> tuple[float, float]:
    """Return chi1 and chi2 from the eigenvalues of a circulant."""
    hops, k = np.array(HOPS[graph](n)), np.arange(1, n)
    waves = 2 * np.sin(np.pi * np.outer(hops, k) / n) ** 2
    values = waves.mean(axis=0)
    return float(1 / values.min()), float((waves / values).sum(axis=1).max() / n)


def communications(graph: Topology) -> tuple[float, float]:
    """Return the averagings and messages over edges in a unit of time, or a step, with which the
    graph does not slow optimization down: of A2CiD2, which needs sqrt(chi1 chi2) <= 1, and of
    accelerated gossip, with sqrt(lambda_max / lambda_2) rounds on all edges.
    """
    L = np.eye(graph.n) - graph.W.toarray()
    rates = np.diag(np.diag(L)) - L
    chi1, chi2 = mixing_constants(graph, rates)
    values = np.linalg.eigvalsh(L)
    edges = np.count_nonzero(rates) / 2
    return (
        math.sqrt(chi1 * chi2) * rates.sum() / 2,
        math.sqrt(values[-1] / values[1]) * edges,
    )


@dataclass(frozen=True)
class Constants(Experiment[Cell]):
    """The constants chi1 and chi2, and how the communication that they ask for grows with n."""

    about: ClassVar = About(
        name="acid-constants",
        source="Nabli et al., NeurIPS 2023, Figure 6, Table 2, Appendix D",
        shows="on rings chi1 grows as n^2, chi2 stays near 1; A2CiD2 never sends more than "
        "synchronous methods",
        minutes=0.2,
        quick={"sizes": (8,), "growth": (8, 32), "seeds": (0,)},
        notes=(
            "Expected are the constants of circulants, from their eigenvalues; the exponential "
            "graph lists the hop n / 2 twice, as published.",
            "Table 2: communications in a unit of time grow as n to this power; fitted over "
            "`growth`.",
            "Appendix D: Erdos-Renyi graphs of 5 to 40 agents with Metropolis weights.",
        ),
    )

    sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    growth: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    graphs: int = 50

    def cells(self) -> Iterable[Cell]:
        """Constants of graphs, communications of larger ones, and random graphs."""
        yield from (("constants", graph, n) for graph in HOPS for n in self.sizes)
        yield from (("growth", graph, n) for graph in EXPONENTS for n in self.growth)
        yield from (("random", "erdos_renyi", seed) for seed in self.seeds)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """chi1 and chi2, or communications of A2CiD2 and of synchronous methods."""
        what, name, n = cell
        if what == "constants":
            graph = topology.complete(n)
            return {"here": mixing_constants(graph, circulant_rates(name, n))}
        if what == "growth":
            return {"here": communications(topology.CATALOGUE[name](n).at(0))}
        draw = np.random.default_rng(n)
        sizes = draw.integers(5, 41, self.graphs).tolist()
        seeds = draw.integers(2**31, size=self.graphs).tolist()
        made = [topology.erdos_renyi(size, seed=seed) for size, seed in zip(sizes, seeds)]
        return {"here": [communications(graph) for graph in made]}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Constants against derived ones, exponents, and the inequality."""
        for graph in HOPS:
            for n in self.sizes:
                expected, here = derived(graph, n), results["constants", graph, n]["here"]
                yield holds(
                    f"chi1, chi2: {graph}, n = {n}",
                    np.allclose(here, expected, rtol=1e-12, atol=0),
                    "{:.6g}, {:.6g}".format(*here),
                    "{:.6g}, {:.6g}, to 12 digits".format(*expected),
                    by=CLOSED,
                )
        for graph, exponents in EXPONENTS.items():
            counts = np.array([results["growth", graph, n]["here"] for n in self.growth])
            slopes = np.polyfit(np.log(self.growth), np.log(counts), 1)[0]
            for method, slope, exponent in zip(("A2CiD2", "synchronous"), slopes, exponents):
                agrees = bool(abs(slope - exponent) <= 0.05)
                what = f"exponent: {graph}, {method}"
                yield Line(what, exponent, float(slope), agrees, "within .05")
        pairs = np.concatenate([results["random", "erdos_renyi", s]["here"] for s in self.seeds])
        worst = float((pairs[:, 0] / pairs[:, 1]).max())
        what = f"A2CiD2 over synchronous, {len(pairs)} random graphs, at most"
        yield holds(what, worst <= 1, worst, "1 or less", "<= 1")

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The graphs of at most 16 agents with their constants."""
        n = max([size for size in self.sizes if size <= 16], default=min(self.sizes))
        for axes, graph in zip(figure.subplots(1, len(HOPS)), HOPS):
            chi1, chi2 = results["constants", graph, n]["here"]
            circle(
                axes, circulant_rates(graph, n), f"{graph}\nchi1 = {chi1:.3g}, chi2 = {chi2:.3g}"
            )
