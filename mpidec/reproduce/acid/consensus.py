"""Figure 5b and Proposition 3.6: how fast the agents agree without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...driver.internals import simulate
from ...solvers import A2CiD2
from .. import dense
from ..drawing import curves
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line
from .replay import difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[int, str, int]  # n, order, seed
TIME, RECORDS = 60, 20  # units of time, and records in them
ENOUGH = 10  # seeds whose range a published run should be in
ORDERS = ("baseline", "code", "algorithm", "sde")
PUBLISHED: Mapping[int, Mapping[str, float]] = {
    16: {"baseline": 0.16305, "code": 0.070755, "algorithm": 0.0057347, "sde": 0.0078927},
    32: {"baseline": 0.786, "code": 0.427, "algorithm": 0.331, "sde": 0.105},
}


def constants(n: int) -> tuple[float, float]:
    """Time that gossip needs on a ring, and A2CiD2: chi1, sqrt(chi1 chi2)."""
    chi1, chi2 = 1 / (1 - math.cos(2 * math.pi / n)), 1 - 1 / n
    return chi1, math.sqrt(chi1 * chi2)


@dataclass(frozen=True)
class ConsensusTimes(Experiment[Cell]):
    r"""Distance from the mean, :math:`\sqrt{\sum_i (x_i - \bar x)^2}`, on rings: gossip, and the
    three orders of `A2CiD2`.
    """

    about: ClassVar = About(
        name="acid-consensus",
        source="Nabli et al., NeurIPS 2023, Section 4.2, Figure 5b, Proposition 3.6",
        shows=(
            "A2CiD2 agrees in a time of sqrt(chi1 chi2), gossip in chi1; the published code loses "
            "most of it"
        ),
        minutes=1.5,
        differs="averagings alone, of random numbers; the paper trains on ImageNet",
        quick={"sizes": (8,), "seeds": (0, 1)},
        notes=(
            f"Published: one run of the published code each, after {TIME} units of time; agreement "
            "is a value within the range of the seeds.",
            "sde: both agents integrate to the time of their averaging, as in the equations; "
            "algorithm: as in Algorithm 1; code: as published,",
            "which sends before and subtracts after it has integrated, and so does not keep the "
            "mean.",
            f"The order is judged from chi1 to 5 chi1, for {ENOUGH} seeds or more.",
            "Rates are fitted to the last two thirds of longer runs; expected are the ratios of "
            "chi1, and of sqrt(chi1 chi2).",
        ),
    )

    sizes: tuple[int, ...] = (16, 32, 64)
    seeds: tuple[int, ...] = tuple(range(30))

    def cells(self) -> Iterable[Cell]:
        """Each ring, method and seed."""
        return ((n, order, seed) for n in self.sizes for order in ORDERS for seed in self.seeds)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Time and distance; the rate at which it decays of gossip and of A2CiD2; how far the first
        events are from the equations.
        """
        n, order, seed = cell
        solver = A2CiD2(0.0, eta=0.0) if order == "baseline" else A2CiD2(0.0, order=order)
        graph, x0 = topology.ring(n), np.random.RandomState(seed).randn(n, 1)
        longer = {"baseline": (n / 16) ** 2, "sde": n / 8}.get(order, 1)
        result = simulate(
            None,
            solver,
            graph,
            steps=math.ceil(TIME * max(1, longer)),
            x0=x0,
            seed=seed,
            every=TIME / RECORDS,
        )
        time, distance = result.metrics["time"], math.sqrt(n) * result.metrics["consensus"]
        late = time >= time[-1] / 3
        rate = -np.polyfit(time[late], np.log(distance[late]), 1)[0]
        compared = difference(None, solver, graph, x0, seed)
        return {"time": time, "distance": distance, "rate": rate, **compared}

    def _of(self, results: Results[Cell], n: int, order: str, name: str) -> np.ndarray:
        """One array of all seeds."""
        return np.array([results[n, order, seed][name] for seed in self.seeds])

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Distances after the published time, their order, and the rates between sizes."""
        for order in ORDERS:
            yield dense.against_dense(order, (results[c] for c in results if c[1] == order))
        for n in self.sizes:
            ends = {o: self._of(results, n, o, "distance")[:, RECORDS] for o in ORDERS}
            medians = {order: float(np.median(values)) for order, values in ends.items()}
            for order, here in medians.items():
                low, high = ends[order].min(), ends[order].max()
                value = PUBLISHED.get(n, {}).get(order)
                judged = value is not None and len(self.seeds) >= ENOUGH
                agrees = bool(low <= value <= high) if judged else None
                yield Line(f"n = {n}, {order}", value, here, agrees, f"in {low:.2g} .. {high:.2g}")
            falling = sorted(medians, key=medians.__getitem__, reverse=True)
            needed, _ = constants(n)
            judged = needed <= TIME <= 5 * needed and len(self.seeds) >= ENOUGH
            yield Line(
                f"n = {n}: order",
                None,
                " > ".join(falling),
                falling == list(ORDERS) if judged else None,
                " > ".join(ORDERS),
                "" if judged else f"not judged (chi1 = {needed:.0f}, {len(self.seeds)} seeds)",
            )
        for few, many in pairwise(self.sizes):
            yield self._slower(results, "baseline", few, many)
            yield self._slower(results, "sde", few, many)

    def _slower(self, results: Results[Cell], order: str, few: int, many: int) -> Line:
        """How much slower a larger ring is."""
        rates = np.array([self._of(results, n, order, "rate") for n in (few, many)])
        place = ("baseline", "sde").index(order)
        expected = constants(many)[place] / constants(few)[place]
        medians, m = np.median(rates, axis=1), len(self.seeds)
        here = float(medians[0] / medians[1])
        errors = 1.25 * rates.std(axis=1, ddof=min(1, m - 1)) / medians / math.sqrt(m)
        bound = max(0.15, 3 * float(np.hypot(*errors)))
        agrees = bool(abs(here / expected - 1) <= bound) if m >= 3 else None
        what = f"{order}: slower from n = {few} to {many}"
        words = f"{expected:.4g}, within {100 * bound:.2g} %"
        return Line(what, None, here, agrees, words, by=CLOSED)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """Medians over the seeds, on the largest ring whose chi1 is over by then."""
        n = max([n for n in self.sizes if constants(n)[0] <= TIME], default=min(self.sizes))
        lines = {}
        for order in ORDERS:
            time = results[n, order, self.seeds[0]]["time"][: 2 * RECORDS + 1]
            distances = self._of(results, n, order, "distance")[:, : len(time)]
            lines[order] = (time, np.median(distances, axis=0))
        curves(figure.add_subplot(), lines, "time", "distance from the mean", title=f"ring of {n}")
