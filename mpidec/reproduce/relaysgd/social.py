"""Figure 3: spanning trees of a social network against the whole network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...topology import Topology
from ..dense import each_against_dense
from ..drawing import panels
from ..experiment import Arrays, Experiment, Results
from ..verdict import CLOSED, About, Line, holds
from .correction import distances
from .delayed import checked
from .quadratics import SOLVERS, Trial, iterates, random_quadratics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Solver, root of the tree or -1 for the network, seed.
Cell = tuple[str, int, int]
RATES = {"exact diffusion": 0.1, "RelaySGD": 0.3}
# Steps whose mean error is compared.
LAST = 50


def network() -> Topology:
    """Return the graph of Davis, Gardner and Gardner's 18 women and 14 events."""
    import networkx

    davis = networkx.davis_southern_women_graph()
    return topology.from_networkx(networkx.convert_node_labels_to_integers(davis))


@dataclass(frozen=True)
class SocialNetwork(Experiment[Cell]):
    """Noisy quadratics of 32 workers, errors against steps and against the vectors sent."""

    about: ClassVar = About(
        name="relaysgd-fig3",
        source="Vogels et al., NeurIPS 2021, Figure 3",
        shows="RelaySGD on any spanning tree of a social network is faster than gossip on all of "
        "it",
        minutes=0.5,
        differs="20 runs side by side instead of one, other noise",
        quick={"roots": (0, 5), "runs": 2, "steps": 100},
        notes=(
            "With the step sizes of the published program, all end at one level of the noise, "
            "about alpha sigma^2 / (2 n): RelaySGD is there sooner.",
        ),
    )

    seeds: tuple[int, ...] = (1,)
    roots: tuple[int, ...] = tuple(range(32))
    steps: int = 500
    runs: int = 20
    sigma: float = 0.1

    def cells(self) -> Iterable[Cell]:
        """The network with gossip and exact diffusion, and a tree for each root, with RelaySGD."""
        for seed in self.seeds:
            yield "gossip", -1, seed
            yield "exact diffusion", -1, seed
            yield from (("RelaySGD", root, seed) for root in self.roots)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the error of X^0, X^1, ..., the vectors sent per step, the diameter."""
        solver, root, seed = cell
        f, graph = random_quadratics(32, 0.1, 1.0, seed, mu=None), network()
        if root >= 0:
            graph = topology.spanning_tree(graph, root)
        hops = distances(graph)
        step_size = RATES.get(solver)
        if step_size is None:
            trial = Trial(f, SOLVERS[solver], graph, True, target=1e-5)
            step_size = trial.search(1.0).step_size / 1.1
        noisy = iterates(
            f, SOLVERS[solver](step_size), graph, sigma=self.sigma, copies=self.runs, seed=seed
        )
        steps = self.steps * (3 if root >= 0 else 1)
        return {
            "error": [f.error(X).mean() for X in islice(noisy, steps + 1)],
            "vectors": (hops == 1).sum(),
            "diameter": hops.max(),
            "step_size": step_size,
            **checked(f, solver, graph),
        }

    def judge(self, results: Results[Cell]) -> Iterator[Line]:
        """The worst tree against gossip on the network, at equal steps and at equal cost."""
        for seed in self.seeds:
            trees = [results["RelaySGD", root, seed] for root in self.roots]
            whole = results["gossip", -1, seed]
            level = _level(whole, self.steps)
            reached = [_reached(found, 10 * level) for found in (whole, *trees)]
            worst = max(reached[1:]) / reached[0]
            cheaper = float(trees[0]["vectors"] / whole["vectors"])
            for what, ratio in (("steps", worst), ("vectors sent", worst * cheaper)):
                yield holds(
                    f"seed {seed}: {what} to 10 times gossip's level, worst tree over gossip",
                    ratio < 1,
                    ratio,
                    "less than 1",
                )
            for solver, found in (
                ("exact diffusion", [results["exact diffusion", -1, seed]]),
                ("RelaySGD, worst tree", trees),
            ):
                ratio = max(_level(one, self.steps) for one in found) / level
                yield Line(f"seed {seed}: level of {solver} over gossip's", None, ratio)
            sent = {int(whole["vectors"]), *(int(tree["vectors"]) for tree in trees)}
            yield holds(
                f"seed {seed}: vectors per step, network and trees",
                sent == {178, 62},
                _text(sent),
                "178, 62",
                by=CLOSED,
            )
            diameters = {int(tree["diameter"]) for tree in trees}
            yield holds(
                f"seed {seed}: diameters of the trees",
                diameters <= {5, 6, 7},
                _text(diameters),
                "5 to 7",
            )
        yield from each_against_dense(results)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """Errors of the first seed against the steps, and against the vectors sent."""
        trees = [results["RelaySGD", root, self.seeds[0]] for root in self.roots]
        some = {
            "gossip": results["gossip", -1, self.seeds[0]],
            "exact diffusion": results["exact diffusion", -1, self.seeds[0]],
            "RelaySGD, on each tree": trees[0],
        }
        lines = {
            "steps": {label: _against(found, False) for label, found in some.items()},
            "vectors sent and received": {
                label: _against(found, True) for label, found in some.items()
            },
        }
        row = panels(figure, lines, "", r"$f(\bar{x}) - f(x^\star)$")
        for axes, cost in zip(row, (False, True)):
            colour = axes.lines[-1].get_color()
            for tree in trees[1:]:
                axes.plot(*_against(tree, cost), color=colour, alpha=0.3, zorder=1)
            axes.set(xlim=(0, self.steps * (160 if cost else 1)), ylim=(1e-6, 1))


def _level(found: Arrays, k: int) -> float:
    return float(found["error"][: k + 1][-LAST:].mean())


def _reached(found: Arrays, error: float) -> float:
    """Return the first step with an error below a given one, infinity without one."""
    below = np.flatnonzero(found["error"] < error)
    return float(below[0]) if len(below) else math.inf


def _against(found: Arrays, cost: bool) -> tuple[np.ndarray, np.ndarray]:
    steps = np.arange(len(found["error"]))
    return steps * (found["vectors"] if cost else 1), found["error"]


def _text(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
