"""Table I and Figure 11: the cost of partial averaging does not grow with the number of agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...predict.internals import mean_cost, modelled, nodes_of
from ...topology import Schedule, Topology
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import CLOSED, About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int]  # graph, n
GRAPHS: Mapping[str, Callable[[int], Topology | Schedule]] = {
    "ring": topology.ring,
    "one-peer exponential": topology.one_peer_exponential,
    "all to all": topology.complete,
}
ALLREDUCE = "ring all-reduce"
SENT: Mapping[str, tuple[str, Callable[[int], float]]] = {  # vectors from an agent in a step
    "ring": ("2", lambda n: min(2, n - 1)),
    "one-peer exponential": ("1", lambda n: 1),
    "all to all": ("n - 1", lambda n: n - 1),
}


@dataclass(frozen=True)
class CommunicationCost(Experiment[Cell]):
    """Counted vectors, and the time by the model of `mpidec predict`."""

    about: ClassVar = About(
        name="bluefog-table1-fig11",
        source="Ying et al., arXiv:2111.04287, Table I and Figure 11",
        shows="the cost of partial averaging does not grow with n, as all-reduce's does",
        minutes=0.1,
        differs=(
            "counted messages, and in the figure a model of their time, in place of up to 100 "
            "cores; the one-peer graph without machines"
        ),
        quick={"sizes": (4, 16)},
        notes=(
            "Ring all-reduce sends 2 (n - 1) / n vectors in 2 (n - 1) messages, one after the other.  "
            "`mpirun -n N mpidec bench` measures times of your machines.",
        ),
    )

    sizes: tuple[int, ...] = (4, 7, 16, 32, 64, 100)
    megabytes: float = 1.0
    gigabits: float = 10.0
    latency: float = 5e-5
    steps: int = 12

    def cells(self) -> Iterable[Cell]:
        """Each graph and n."""
        return ((graph, n) for graph in GRAPHS for n in self.sizes)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Vectors that an agent sends in a step, counted by the mixer."""
        graph, n = cell
        X = np.random.default_rng(n).standard_normal((n, 8))
        with alone(n) as net:
            W = net.mixer(GRAPHS[graph](n))
            for _ in range(self.steps):
                X = W(X)
            return {"sent": W.bytes / (n * self.steps * X[0].nbytes)}

    def seconds(self, graph: str, n: int) -> float:
        """Return the time of a mixing, or of a ring all-reduce, as `mpidec predict` tells it, with
        one agent on a node.
        """
        net = modelled("", self.latency, 1e9 * self.gigabits)
        size = 1e6 * self.megabytes
        if graph == ALLREDUCE:
            return 2 * (n - 1) * net.exchange(1, size / n)
        return mean_cost(GRAPHS[graph](n), nodes_of(n, 1, "slot"), size, net).seconds

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The counts, exactly; times are shown where they were measured."""
        for graph in GRAPHS:
            counts = [float(results[graph, n]["sent"]) for n in self.sizes]
            text, expected = SENT[graph]
            what = f"{graph}: vectors sent by an agent, n = {min(self.sizes)} to {max(self.sizes)}"
            here = f"{min(counts):g} to {max(counts):g}"
            agrees = np.allclose(counts, [expected(n) for n in self.sizes], rtol=1e-12)
            yield holds(what, bool(agrees), here, text, by=CLOSED)
        for what, published in (
            ("Figure 11: time of neighbour averaging against n", "nearly flat"),
            ("Figure 11: time of all-reduce against n", "grows"),
        ):
            because = "not run here: needs many hosts"
            yield Line(what, published, None, because=because)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The time of the model against n."""
        n = np.array(self.sizes)
        lines: dict[str, tuple[ArrayLike, ArrayLike]] = {
            graph: (n, [self.seconds(graph, m) for m in self.sizes])
            for graph in (*list(GRAPHS)[:2], ALLREDUCE)
        }
        title = f"{self.megabytes:g} MB, {self.gigabits:g} Gbit/s, {1e6 * self.latency:g} us"
        y = "seconds (model)"
        curves(figure.add_subplot(), lines, "agents", y, log="", title=title, marked=True)
