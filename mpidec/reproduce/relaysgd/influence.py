"""Figure 1: how one update of a worker spreads, by gossip and by RelaySum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ...topology import chain
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, holds
from .correction import distances, responses
from .quadratics import SOLVERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int, int]  # solver, n, worker
TITLES = {"gossip": "gossip", "RelaySGD/Grad": "RelaySum"}


@dataclass(frozen=True)
class Influence(Experiment[Cell]):
    """The part of an update that the models of all workers have, step after step."""

    about: ClassVar = About(
        name="relaysgd-fig1",
        source="Vogels et al., NeurIPS 2021, Figure 1",
        shows="on a chain, RelaySum spreads an update uniformly, gossip does so in the limit alone",
        minutes=0.01,
    )

    sizes: tuple[int, ...] = (7,)
    workers: tuple[int, ...] = (4,)
    steps: int = 12

    def cells(self) -> Iterable[Cell]:
        """Both methods, each n and worker of 1, ..., n."""
        cells = product(TITLES, self.sizes, self.workers)
        return ((solver, n, worker) for solver, n, worker in cells if 1 <= worker <= n)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the parts after 1, 2, ... steps: found, and W^k e or 1 / n after d(i, j) steps."""
        solver, n, worker = cell
        graph, e = chain(n), np.eye(n)[:, worker - 1 : worker]
        run = responses(SOLVERS[solver](1.0), graph, e)
        found = np.hstack(list(islice(run, self.steps)))
        if solver == "gossip":
            W, k = graph.W.toarray(), range(1, self.steps + 1)
            derived = np.hstack([np.linalg.matrix_power(W, power) @ e for power in k])
        else:
            hops = distances(graph)[:, worker - 1]
            derived = (np.maximum(hops, 1)[:, None] <= np.arange(1, self.steps + 1)) / n
        return {"found": found, "derived": derived}

    def judge(self, results: Results[Cell]) -> Iterator[Line]:
        """Each method against its closed form."""
        forms = {"gossip": "W^k e_j", "RelaySGD/Grad": "1/n once k >= d(i, j), else 0"}
        for (solver, n, worker), arrays in results.items():
            error = float(np.abs(arrays["found"] - arrays["derived"]).max())
            what = f"{TITLES[solver]}, n = {n}, worker {worker}: distance from {forms[solver]}"
            yield holds(what, error < 1e-14, error, "rounding errors", 0.0, CLOSED)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The parts of the first update, n times, in each worker and step."""
        cells = [cell for cell in results if cell[1:] == next(iter(results))[1:]]
        for axes, cell in zip(figure.subplots(1, 2, sharey=True), cells):
            solver, n, worker = cell
            extent = (0.5, self.steps + 0.5, n + 0.5, 0.5)
            image = axes.imshow(
                n * results[cell]["found"], vmin=0, vmax=2, extent=extent, aspect="auto"
            )
            axes.set(xlabel="steps", title=TITLES[solver])
            axes.grid(visible=False)
        figure.axes[0].set(ylabel=f"worker (update of {worker})")
        figure.colorbar(image, ax=figure.axes, label="n x its part", shrink=0.7)
