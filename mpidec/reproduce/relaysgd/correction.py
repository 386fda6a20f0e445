"""Figure 6: the correction of the learning rate that delays of RelaySum ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ..._validation import Array
from ...driver.internals import iterate
from ...solvers import RelaySGD, Solver
from ...topology import Topology
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import About, Line, derived

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int]  # tree, n
TREES: Mapping[str, Callable[[int], Topology]] = {
    "chain": topology.chain,
    "binary tree": topology.binary_tree,
    "star": topology.star,
}


def distances(graph: Topology) -> np.ndarray:
    """Return the hops between all pairs of agents."""
    from scipy.sparse.csgraph import shortest_path

    return np.asarray(shortest_path(graph.W, unweighted=True))


def responses(solver: Solver, graph: Topology, update: Array) -> Iterator[Array]:
    """Yield X^1, X^2, ... after the update of step 0 alone, from X^0 = 0."""
    with alone(graph.n) as net:
        W = net.mixer(graph)
        once = lambda X, k: -update if k == 0 else np.zeros_like(X)
        yield from (s.X for s in iterate(solver, once, W, np.zeros_like(update)))


@dataclass(frozen=True)
class CorrectionFactor(Experiment[Cell]):
    """One update of 1 by all workers at step 0, then communication alone: 1 / the limit."""

    about: ClassVar = About(
        name="relaysgd-fig6",
        source="Vogels et al., NeurIPS 2021, Appendix, Figure 6",
        shows="delays make the first steps of RelaySGD smaller, by a factor of the tree",
        minutes=0.1,
        quick={"sizes": (4, 16)},
    )

    sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 80)

    def cells(self) -> Iterable[Cell]:
        """Each tree and n."""
        return ((tree, n) for tree in TREES for n in self.sizes)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the factor of the solver, and 1 + mean of max(d(i, j) - 1, 0)."""
        tree, n = cell
        graph = TREES[tree](n)
        for X in islice(responses(RelaySGD(1.0), graph, np.ones((n, 1))), 100 * n):
            if np.ptp(X) < 1e-13:
                break
        derived = 1 + np.maximum(distances(graph) - 1, 0).mean()
        return {"factor": 1 / X.mean(), "derived": derived}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The solver's factor against the derived one."""
        for (tree, n), found in results.items():
            yield derived(f"{tree}, n = {n}", float(found["derived"]), float(found["factor"]), 1e-6)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The factors against n."""
        lines = {
            tree: (self.sizes, [results[tree, n]["factor"] for n in self.sizes]) for tree in TREES
        }
        curves(figure.add_subplot(), lines, "workers", "correction factor", log="xy", marked=True)
