"""Figures 2 and 7, Table 6, Section 4.1: gradients and averagings at their own pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...driver.internals import AVERAGING, GRADIENT, meetings, simulate
from ...problems import LeastSquares
from ...solvers import A2CiD2, PairwiseGossip
from ...topology import Topology, edge_rates
from ..drawing import curves, heat
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, derived, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMULATED = "simulated workers, whose gradients and averagings have Poisson clocks"


def quadratic(n: int) -> LeastSquares:
    """Return the sum of x^2 / 2 for each of n agents: the pace does not depend on it."""
    return LeastSquares(np.ones((n, 1, 1)), np.zeros((n, 1)))


RateCell = tuple[float, int]  # rate, seed


@dataclass(frozen=True)
class Rates(Experiment[RateCell]):
    """Averagings of a worker per gradient on a ring."""

    about: ClassVar = About(
        name="acid-rates",
        source="Nabli et al., NeurIPS 2023, Section 4.1",
        shows="workers average as often per gradient as the rate says",
        minutes=1.0,
        differs=SIMULATED,
        quick={"gradients": 100, "seeds": (0,)},
        notes=(
            "Published: measured with the published code, in which each gradient waits for at "
            "least one averaging.",
            "Counts of Poisson clocks vary: agreement is 1 %, or three standard deviations of a "
            "shorter run.",
        ),
    )

    rates: tuple[float, ...] = (1.0, 2.0, 4.0)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    n: int = 16
    gradients: int = 3500

    def cells(self) -> Iterable[RateCell]:
        """Each rate and seed."""
        return ((rate, seed) for rate in self.rates for seed in self.seeds)

    def measure(self, cell: RateCell) -> Mapping[str, ArrayLike]:
        """Gradients and averagings, and the time of records."""
        rate, seed = cell
        steps = self.gradients
        result = simulate(
            quadratic(self.n),
            A2CiD2(0.1, rate=rate),
            topology.ring(self.n),
            steps=steps,
            seed=seed,
            every=steps / 10,
        )
        metrics = result.metrics
        return {
            "time": metrics["time"],
            "gradients": metrics["gradients"],
            "averagings": metrics["messages"],  # two workers, a message each way
        }

    def judge(self, results: Results[RateCell]) -> Iterable[Line]:
        """Averagings over gradients, all seeds together."""
        published = {1.0: 1.010, 2.0: 1.985, 4.0: 3.993}
        for rate in self.rates:
            runs = [results[rate, seed] for seed in self.seeds]
            gradients, averagings = (
                float(sum(run[name][-1] for run in runs)) for name in ("gradients", "averagings")
            )
            here = averagings / gradients
            bound = max(0.01, 3 * math.sqrt(1 / gradients + 2 / averagings))
            agrees = abs(here / rate - 1) <= bound
            expected = f"{rate:g} within {100 * bound:.2g} %"
            yield Line(f"rate {rate:g}", published.get(rate), here, agrees, expected, by=CLOSED)

    def draw(self, results: Results[RateCell], figure: Figure) -> None:
        """The ratio in time, of the first seed."""
        lines = {}
        for rate in self.rates:
            run = results[rate, self.seeds[0]]
            ratio = run["averagings"][1:] / run["gradients"][1:]
            lines[f"rate {rate:g}"] = (run["time"][1:], ratio)
        axes = figure.add_subplot()
        curves(axes, lines, "time", "averagings per gradient", log="")
        axes.set_ylim(bottom=0)


PairCell = tuple[str, int]  # graph, seed
GRAPHS: Mapping[str, Callable[[int], Topology]] = {
    "complete": topology.complete,
    "exponential": lambda n: topology.symmetric_exponential(n, base=2),
    "ring": topology.ring,
}


@dataclass(frozen=True)
class Neighbours(Experiment[PairCell]):
    """How often each pair of workers averages."""

    about: ClassVar = About(
        name="acid-fig7",
        source="Nabli et al., NeurIPS 2023, Appendix E.2, Figure 7",
        shows="each worker averages with all of its neighbours equally often",
        minutes=0.1,
        differs=SIMULATED,
        quick={"steps": 100},
        notes=(
            "Chi-square test of each worker's row against equal counts; the smallest p of n rows "
            "times n.  The exponential graph has",
            "the hop n / 2 once, the published one twice.",
        ),
    )

    seeds: tuple[int, ...] = (0,)
    n: int = 16
    steps: int = 2000

    def cells(self) -> Iterable[PairCell]:
        """Each graph and seed."""
        return ((graph, seed) for graph in GRAPHS for seed in self.seeds)

    def measure(self, cell: PairCell) -> Mapping[str, ArrayLike]:
        """Number of averagings of each pair."""
        name, seed = cell
        n, counts = self.n, np.zeros((self.n, self.n))
        result = simulate(
            None,
            PairwiseGossip(),
            GRAPHS[name](n),
            steps=self.steps,
            x0=np.zeros((n, 1)),
            seed=seed,
        )
        for (i, j), number in result.averagings.items():
            counts[i, j] = counts[j, i] = number
        return {"counts": counts}

    def _counts(self, results: Results[PairCell], graph: str) -> np.ndarray:
        return np.asarray(sum(results[graph, seed]["counts"] for seed in self.seeds))

    def judge(self, results: Results[PairCell]) -> Iterable[Line]:
        """The test of each graph."""
        from scipy.stats import chisquare

        for name, make in GRAPHS.items():
            graph, counts = make(self.n), self._counts(results, name)
            rows = [counts[i, graph.in_neighbors(i)] for i in range(self.n)]
            p = self.n * min(float(chisquare(row).pvalue) for row in rows)
            yield holds(
                f"{name}: smallest p", p > 0.01, min(p, 1.0), "more than .01", "uniform", CLOSED
            )

    def draw(self, results: Results[PairCell], figure: Figure) -> None:
        """The heat map of each graph."""
        for axes, graph in zip(figure.subplots(1, len(GRAPHS)), GRAPHS):
            heat(axes, self._counts(results, graph), "worker", "worker", title=graph)


SizeCell = tuple[int, int]  # n, seed


@dataclass(frozen=True)
class Counts(Experiment[SizeCell]):
    """Gradients of slow and fast workers on a ring, and the time for them."""

    about: ClassVar = About(
        name="acid-table6",
        source="Nabli et al., NeurIPS 2023, Table 6",
        shows="slow workers compute less, and nobody waits for them",
        minutes=0.5,
        differs=f"{SIMULATED}; their speeds are evenly spread, the slowest as in the paper",
        quick={"sizes": (16,), "steps": 50},
        notes=(
            "Slowest and fastest: the mean of an eighth of the workers.  All-reduce waits for the "
            "slowest worker in each step, and all",
            "workers compute equally many gradients; it has no communication in its time here.",
        ),
    )

    sizes: tuple[int, ...] = (64,)
    seeds: tuple[int, ...] = (0,)
    slowest: float = 13 / 14
    steps: int = 1500

    def cells(self) -> Iterable[SizeCell]:
        """Each n and seed."""
        return ((n, seed) for n in self.sizes for seed in self.seeds)

    def _speeds(self, n: int) -> np.ndarray:
        return np.linspace(self.slowest, 1, n)

    def measure(self, cell: SizeCell) -> Mapping[str, ArrayLike]:
        """Gradients of each worker, and the time of the run."""
        n, seed = cell
        result = simulate(
            quadratic(n),
            A2CiD2(0.1),
            topology.ring(n),
            steps=self.steps,
            rates=self._speeds(n),
            seed=seed,
            every=self.steps,
        )
        return {"counts": result.counts, "time": result.metrics["time"][-1]}

    def judge(self, results: Results[SizeCell]) -> Iterable[Line]:
        """The ratio of counts, and times in those of the mean worker."""
        for n in self.sizes:
            speeds, k = self._speeds(n), max(1, n // 8)
            counts = np.mean([results[n, seed]["counts"] for seed in self.seeds], axis=0)
            expected = float(speeds[:k].mean() / speeds[-k:].mean())
            slow, fast = counts[:k], counts[-k:]
            sums = len(self.seeds) * np.array([slow.sum(), fast.sum()])
            bound = max(0.05, 3 * math.sqrt((1 / sums).sum()))
            here = float(slow.mean() / fast.mean())
            yield Line(
                f"n = {n}: gradients, slowest over fastest",
                self.slowest if self.slowest == Counts.slowest else None,
                here,
                abs(here / expected - 1) <= bound,
                f"that of the speeds, {expected:.4g}, within {100 * bound:.2g} %",
                by=CLOSED,
            )
            time = float(np.mean([results[n, seed]["time"] for seed in self.seeds]))
            mean_speed = speeds.mean()
            mean = counts.mean() / mean_speed
            ratio = float(time / mean)
            yield holds(f"n = {n}: time over the mean worker's", ratio <= 1.05, ratio, "<= 1.05")
            reduced = float(counts.mean() / speeds.min() / time)
            what, expected = f"n = {n}: all-reduce's time over it", float(mean_speed / speeds.min())
            yield derived(what, expected, reduced, 0.05)

    def draw(self, results: Results[SizeCell], figure: Figure) -> None:
        """Gradients of each worker, those of all-reduce beside them."""
        n = self.sizes[-1]
        counts = results[n, self.seeds[0]]["counts"]
        reduced = np.full(n, results[n, self.seeds[0]]["time"] * self._speeds(n).min())
        lines = {"asynchronous": (np.arange(n), counts), "all-reduce": (np.arange(n), reduced)}
        curves(
            figure.add_subplot(),
            lines,
            "worker, slowest first",
            "gradients in the same time",
            log="",
        )


@dataclass(frozen=True)
class PaceTimeline(Experiment[tuple[int]]):
    """Gradients and averagings of a few workers in time."""

    about: ClassVar = About(
        name="acid-fig2",
        source="Nabli et al., NeurIPS 2023, Figure 2",
        shows="gradients follow each other, averagings happen meanwhile",
        minutes=0.1,
        differs=SIMULATED,
        quick={"steps": 50},
        notes=(
            "Synchronous: the same gradients, and all workers wait for the slowest in each step: "
            "with Poisson clocks 1 - 1 / H_n of the time,",
            "H_n = 1 + 1/2 + ... + 1/n.",
        ),
    )

    seeds: tuple[int, ...] = (0,)
    n: int = 4
    steps: int = 2000
    shown: float = 8.0

    def cells(self) -> Iterable[tuple[int]]:
        """Each seed."""
        return ((seed,) for seed in self.seeds)

    def measure(self, cell: tuple[int]) -> Mapping[str, ArrayLike]:
        """The events of a simulation, and the gradients that each worker completes in it."""
        (seed,) = cell
        n, ring = self.n, topology.ring(self.n)
        clocks = meetings(seed, np.ones(n), edge_rates(ring))
        kinds = [("time", float), ("kind", int), ("i", int), ("j", int)]
        events = np.array(list(takewhile(lambda event: event[0] < self.steps, clocks)), kinds)
        result = simulate(quadratic(n), A2CiD2(0.1), ring, events=events, every=self.steps)
        return {name: events[name] for name, _ in kinds} | {"counts": result.counts}

    def _durations(self, found: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Of the gradients of each worker, one after the other."""
        mine = [
            found["time"][(found["kind"] == GRADIENT) & (found["i"] == i)] for i in range(self.n)
        ]
        return [np.diff(ends, prepend=0.0) for ends in mine]

    def judge(self, results: Results[tuple[int]]) -> Iterable[Line]:
        """Shares of waiting."""
        harmonic = sum(1 / i for i in range(1, self.n + 1))
        asynchronous, synchronous = [], []
        for found in results.values():
            durations = self._durations(found)
            rounds = min(map(len, durations))
            steps = np.array([of[:rounds] for of in durations])
            synchronous.append(1 - steps.mean() / steps.max(axis=0).mean())
            spent = sum(
                of[:count].sum() for of, count in zip(durations, found["counts"].astype(int))
            )
            last = sum(of.sum() for of in durations)
            asynchronous.append(1 - spent / last)
        waits = float(np.mean(asynchronous))
        yield holds("waiting, asynchronous", waits < 0.05, waits, "less than 5 %", "0")
        yield derived("waiting, synchronous", 1 - 1 / harmonic, float(np.mean(synchronous)), 0.1)

    def draw(self, results: Results[tuple[int]], figure: Figure) -> None:
        """Draw gradients as bars and averagings as links: synchronous and asynchronous."""
        found = results[self.seeds[0],]
        durations = self._durations(found)
        steps = np.array([of[: min(map(len, durations))] for of in durations])
        begins = np.concatenate([[0.0], steps.max(axis=0).cumsum()[:-1]])
        panels = figure.subplots(2, 1, sharex=True)
        for i, of in enumerate(durations):
            panels[0].broken_barh(list(zip(begins, steps[i])), (i - 0.3, 0.6), edgecolor="white")
            free = np.column_stack([of.cumsum() - of, of])
            panels[1].broken_barh(list(map(tuple, free)), (i - 0.3, 0.6), edgecolor="white")
        met = found["kind"] == AVERAGING
        for t, i, j in zip(found["time"][met], found["i"][met], found["j"][met]):
            if t < self.shown:
                panels[1].plot([t, t], [i, j], color="black", marker="o", markersize=3)
        for axes, title in zip(panels, ("synchronous", "asynchronous")):
            axes.set(ylabel="worker", title=title, xlim=(0, self.shown), yticks=range(self.n))
        panels[1].set(xlabel="time")
