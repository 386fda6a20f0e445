"""Consensus: Base-(k+1) graphs, exact in finite time, and EquiTopo, of a rate without n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...topology import Topology
from .. import dense
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import CLOSED, About, Line, derived, holds
from .running import gossip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int]  # graph, its k (0: none)


@dataclass(frozen=True)
class FiniteTime(Experiment[Cell]):
    """Products over a period, and the consensus error beside other graphs."""

    about: ClassVar = About(
        name="base-k-consensus",
        source="Takezawa, Sato, Bao, Niwa, Yamada, NeurIPS 2023, finite-time convergence and its "
        "length",
        shows="Base-(k+1) graphs average exactly, for every n, with k neighbours",
        minutes=0.1,
        quick={"largest": 12, "peers": (1,)},
    )

    largest: int = 64
    shown: int = 25
    steps: int = 30
    peers: tuple[int, ...] = (1, 2, 3, 4)

    def cells(self) -> Iterable[Cell]:
        """Each k, and the other graphs."""
        yield from (("base-(k+1)", k) for k in self.peers)
        yield from ((graph, 0) for graph in ("ring", "exponential", "one-peer exponential"))

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Of each n: period, degree, and the largest entry of the product less 1 / n."""
        graph, k = cell
        if not k:
            make = topology.CATALOGUE[graph.replace("-", "_").replace(" ", "_")]
            return gossip(make(self.shown), 1, self.steps, 0)
        found = []
        for n in range(2, self.largest + 1):
            base, product = topology.base_k(n, k), np.eye(n)
            phases = [base.at(j).W.toarray() for j in range(base.period)]
            for W in phases:
                product = W @ product
            degree = max(np.count_nonzero(W - np.diag(np.diag(W)), axis=1).max() for W in phases)
            found.append((base.period, degree, abs(product - 1 / n).max()))
        period, degree, residual = np.transpose(found)
        one = topology.base_k(self.shown, k)
        curve = {**gossip(one, 1, self.steps, 0), "length": one.period}
        return {**curve, "period": period, "degree": degree, "residual": residual}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Products, degrees and periods of all n up to the largest."""
        n, end = np.arange(2, self.largest + 1), 0
        for k in self.peers:
            found = results["base-(k+1)", k]
            what, residual = f"k = {k}, n to {self.largest}", float(found["residual"].max())
            yield holds(
                f"{what}: product less 1/n", residual <= 1e-13, residual, "1e-13", "0", CLOSED
            )
            degree = float(found["degree"].max())
            text = f"{what}: largest degree"
            yield holds(text, degree <= k, degree, f"at most {k}", float(k))
            bound = 2 * np.log(n) / np.log(k + 1) + 2
            ratio = float((found["period"] / bound).max())
            yield holds(
                f"{what}: period over 2 log n + 2", ratio <= 1, ratio, "at most 1", "at most 1"
            )
            length = int(found["length"])
            end, error = max(end, length), float(found["error"][length])
            text = f"k = {k}, n = {self.shown}: error after a period, {length} steps"
            yield holds(text, error <= 1e-12, error, "1e-12", "0", CLOSED)
        for (graph, k), found in results.items():
            if not k:
                error = float(found["error"][end])
                text = f"{graph}, n = {self.shown}: error after {end} steps"
                yield holds(text, error > 1e-6, error, "over 1e-6", "> 0")

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The consensus error against the steps."""
        lines = {
            f"base-{k + 1}" if k else graph: (
                np.arange(self.steps + 1),
                np.maximum(found["error"], 1e-17),
            )
            for (graph, k), found in results.items()
        }
        title = f"n = {self.shown}"
        curves(figure.add_subplot(), lines, "steps", "consensus error", title=title)
        figure.axes[0].legend(loc="center right", bbox_to_anchor=(1, 0.3))


SizeCell = tuple[str, int, int]  # graph, n, seed


def half_way(graph: Topology, X: np.ndarray) -> np.ndarray:
    r"""Return rows that have moved half of the way to :math:`\tfrac1n x_i + \tfrac{n - 1}n x_j`,
    with the only neighbour j that agent i receives from, if any.
    """
    n, received = graph.n, X.copy()
    for i in range(n):
        for j in graph.in_neighbors(i):
            received[i] = X[i] / n + (n - 1) / n * X[j]
    return np.asarray((X + received) / 2)


@dataclass(frozen=True)
class RateOfAnySize(Experiment[SizeCell]):
    """The factor of a step, in the root mean square for graphs that are drawn anew."""

    about: ClassVar = About(
        name="equitopo-rate",
        source=(
            "Song, Li, Jin, Shi, Yan, Yin, Yuan, NeurIPS 2022, consensus rates of EquiStatic and "
            "EquiDyn"
        ),
        shows="the consensus rate of EquiTopo does not depend on n",
        minutes=0.1,
        quick={"sizes": (16, 64), "draws": 60, "seeds": (0, 1, 2)},
    )

    sizes: tuple[int, ...] = (16, 64, 256, 1024)
    draws: int = 300
    seeds: tuple[int, ...] = tuple(range(20))
    epsilon: float = 0.7
    probability: float = 0.1

    def cells(self) -> Iterable[SizeCell]:
        """Each graph and n, and each seed of D-static."""
        for n in self.sizes:
            yield from (("D-static", n, seed) for seed in self.seeds)
            others = ("OD", "OU", "ring", "torus", "exponential")
            yield from ((graph, n, self.seeds[0]) for graph in others)

    def hops(self, n: int) -> int:
        """Return the number of hops that the theorem asks for, of static graphs."""
        return math.ceil(8 * math.log(2 * n / self.probability) / (3 * self.epsilon**2))

    def measure(self, cell: SizeCell) -> Mapping[str, ArrayLike]:
        """Return the factor of a step, in the root mean square over the draws (OD, OU)."""
        kind, n, seed = cell
        if kind == "D-static":
            graph = topology.equitopo(n, kind, M=self.hops(n), seed=seed)
            return {"rate": 1 - graph.spectral_gap()}
        if kind not in ("OD", "OU"):
            return {"rate": 1 - topology.CATALOGUE[kind](n).spectral_gap()}
        rng, squares, differences = np.random.default_rng(seed), [], []
        graph = topology.equitopo(n, kind, seed=seed)
        with alone(n) as net:
            W = net.mixer(graph)
            for k in range(self.draws):
                X = rng.standard_normal((n, 8))
                X -= X.mean(axis=0)
                Y = W.at(k)(X)
                squares.append((Y**2).sum() / (X**2).sum())
                if k < dense.STEPS:
                    differences.append(np.abs(Y - half_way(graph.at(k), X)).max())
        spread = np.std(squares) / math.sqrt(self.draws) / np.mean(squares)
        return {"rate": np.mean(squares) ** 0.5, "spread": spread, "apart": max(differences)}

    def judge(self, results: Results[SizeCell]) -> Iterable[Line]:
        """The factors against what n alone gives, and their order at the largest n."""
        rates = {
            (kind, n): np.array(
                [results[cell]["rate"] for cell in results if cell[:2] == (kind, n)]
            )
            for kind, n, _ in results
        }
        yield dense.against_dense("OD, OU", results.values())
        for n in self.sizes:
            spread = float(results["OD", n, self.seeds[0]]["spread"])
            limit, here = math.sqrt((1 - 1 / n) / 2), float(rates["OD", n][0])
            yield derived(f"OD, n = {n}: factor", limit, here, 4 * spread)
            share = float(np.mean(rates["D-static", n] < self.epsilon))
            yield holds(
                f"D-static, n = {n}, M = {self.hops(n)}: share of graphs below {self.epsilon:g}",
                share >= 1 - self.probability,
                share,
                f"at least {1 - self.probability:g}",
                f">= {1 - self.probability:g}",
            )
        *_, less, n = min(self.sizes), *sorted(self.sizes)
        ratio = float(rates["OU", n][0] / rates["OU", less][0])
        yield holds(
            f"OU: factor, n = {n} over n = {less}",
            abs(ratio - 1) < 0.02 + 1 / less,
            ratio,
            "1, within 2 % + 1 / n",
        )
        order = ["D-static", "exponential", "torus", "ring"]
        largest = [float(rates[graph, n].max()) for graph in order]
        yield holds(
            f"n = {n}: {', '.join(order)}",
            largest == sorted(largest),
            ", ".join(f"{rate:.4g}" for rate in largest),
            "in this order",
        )

    def draw(self, results: Results[SizeCell], figure: Figure) -> None:
        """The factors against n, the mean over the seeds."""
        names = {"OD": "OD-EquiDyn", "OU": "OU-EquiDyn", "D-static": "D-EquiStatic"}
        lines: dict[str, tuple[ArrayLike, ArrayLike]] = {
            names.get(kind, kind): (
                self.sizes,
                [
                    np.mean([results[cell]["rate"] for cell in results if cell[:2] == (kind, n)])
                    for n in self.sizes
                ],
            )
            for kind in dict.fromkeys(cell[0] for cell in results)
        }
        curves(figure.add_subplot(), lines, "agents", "factor of a step", log="x", marked=True)
