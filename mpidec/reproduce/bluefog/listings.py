"""Listings and tutorial: DGD, exact diffusion, push-sum and push-sum gradient tracking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...driver.internals import iterate
from ...problems import LeastSquares
from ...solvers import DGD, ExactDiffusion, PushDIGing, PushSum, Solver
from ...topology import Schedule, Topology
from .. import dense
from ..experiment import Experiment, Results, alone
from ..others.running import draw_runs, least_squares, norm, run
from ..verdict import CLOSED, About, Line, derived, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, str, int]  # method, graph, seed
METHODS: Mapping[str, Solver] = {
    "DGD": DGD(),
    "exact diffusion": ExactDiffusion(),
    "push-DIGing": PushDIGing(),
}
RECURSIONS: Mapping[str, dense.Recursion] = {
    "DGD": dense.dgd,
    "exact diffusion": dense.d2,
    "push-DIGing": dense.push_diging,
}
PAIRS = (
    ("DGD", "exponential"),
    ("DGD", "ring"),
    ("exact diffusion", "ring"),
    ("push-DIGing", "exponential"),
    ("push-DIGing", "one-peer grid"),
    ("push-sum", "one-peer grid"),
)


def one_peer_grid(n: int) -> Schedule:
    """Return column-stochastic matrices: agent i of a grid sends a half of its row to its
    neighbour number k mod d_i.
    """
    grid = topology.grid(n)
    neighbours = [grid.neighbors(i) for i in range(n)]
    phases = []
    for k in range(int(np.lcm.reduce([len(some) for some in neighbours]))):
        W = np.eye(n) / 2
        for i, some in enumerate(neighbours):
            W[some[k % len(some)], i] += 0.5
        phases.append(topology.from_weights(W, connected=False))
    return topology.cycle(phases)


def fixed_point(problem: LeastSquares, W: np.ndarray, step: float) -> np.ndarray:
    r"""Return where DGD ends: the solution of :math:`(I - W) X + \alpha (A^T A X - A^T b) = 0`."""
    n, d = problem.m, problem.d
    H = np.einsum("npd,npe->nde", problem.A, problem.A)
    left = np.kron(np.eye(n) - W, np.eye(d)).reshape(n, d, n, d)
    left[range(n), :, range(n)] += step * H
    right = step * np.einsum("npd,np->nd", problem.A, problem.b)
    X = np.linalg.solve(left.reshape(n * d, n * d), right.ravel())
    return np.asarray(X.reshape(n, d))


@dataclass(frozen=True)
class Listings(Experiment[Cell]):
    """Linear regression, and the average of Gaussian rows by push-sum."""

    about: ClassVar = About(
        name="bluefog-listings",
        source=(
            "Ying et al., arXiv:2111.04287, (16)-(21) and Listings 1 and 3, and the tutorial, "
            "sections 3 to 6"
        ),
        shows="DGD is biased; exact diffusion, push-sum and push-DIGing are exact",
        minutes=0.1,
        differs="random instances; synchronous push-sum",
        quick={"seeds": (0,), "steps": 150, "n": 6, "d": 2},
    )

    n: int = 16
    d: int = 4
    size: float = 0.25
    steps: int = 2500
    seeds: tuple[int, ...] = (0, 1)

    def cells(self) -> Iterable[Cell]:
        """Each method on its graphs."""
        return ((method, graph, seed) for seed in self.seeds for method, graph in PAIRS)

    def graph(self, name: str) -> Topology | Schedule:
        """Of a name."""
        return one_peer_grid(self.n) if "grid" in name else topology.CATALOGUE[name](self.n)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the run, with the bias of DGD in closed form; or push-sum, with its mass."""
        method, name, seed = cell
        graph = self.graph(name)
        if method == "push-sum":
            return self.push_sum(graph, seed)
        problem = least_squares(self.n, 3 * self.d, self.d, seed)
        step = self.size / float(problem.smoothness.max())
        if method == "push-DIGing":
            step /= 4
        solver, recursion = type(METHODS[method])(step), RECURSIONS[method]
        grad, W = dense.quadratic(problem), self.weights(method, name)
        found = {
            **run(problem, solver, graph, self.steps, until=1e-13),
            "apart": dense.apart(recursion, grad, W, problem, solver, graph),
        }
        if method != "DGD":
            return found
        off = fixed_point(problem, graph.at(0).W.toarray(), step) - problem.x_star
        return {**found, "limit": np.linalg.norm(off) / np.sqrt(self.n) / norm(problem)}

    def weights(self, method: str, name: str) -> Any:
        """Return those of a method on a graph, for the equations."""
        graph = self.graph(name)
        if "push" in method:
            phases = [graph.at(k).W.toarray() for k in range(graph.period or 1)]
            return phases if "grid" in name else [dense.exponential(self.n)]
        W = dense.metropolis(graph.at(0)) if name == "ring" else dense.exponential(self.n)
        return W if method == "DGD" else dense.lazy(W)

    def push_sum(self, graph: Topology | Schedule, seed: int) -> Mapping[str, ArrayLike]:
        """Return the distance from the average, and the largest change of the mass."""
        solver, errors, masses = PushSum(0.0), [], []
        start = np.random.default_rng(seed).standard_normal((self.n, self.d))
        first, mean = solver.init(start), start.mean(axis=0)
        now = first
        with alone(self.n) as net:
            for k, s in enumerate(iterate(solver, None, net.mixer(graph), first, steps=self.steps)):
                errors.append(np.sqrt(((now.X - mean) ** 2).mean()))
                masses.append(abs(now.w.sum() - self.n))
                now = s
                if k < dense.STEPS:
                    reached = s.X
        weights, steps = self.weights("push-sum", "one-peer grid"), min(dense.STEPS, self.steps)
        expected = dense.push_diging(np.zeros_like, weights, 0.0, start, steps)
        return {
            "step": np.arange(self.steps),
            "error": errors,
            "mass": max(masses),
            "apart": dense.distance(reached, expected, start),
        }

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The limits; of the exact methods the worst over the seeds."""
        for seed in self.seeds:
            ends = {}
            for name in ("exponential", "ring"):
                found = results["DGD", name, seed]
                ends[name] = float(found["error"][-1]), float(found["limit"])
                here, limit = ends[name]
                yield derived(f"DGD, {name}, seed {seed}: bias", limit, here, 1e-10)
            here, limit = (r / e for r, e in zip(ends["ring"], ends["exponential"]))
            yield derived(f"DGD: bias, ring over exponential, seed {seed}", limit, here, 1e-9)
        for method, name in PAIRS[2:]:
            error = max(float(results[method, name, seed]["error"][-1]) for seed in self.seeds)
            text = f"{method}, {name}: error"
            yield holds(text, error <= 1e-12, error, "at most 1e-12", "0", CLOSED)
        mass = max(float(results["push-sum", "one-peer grid", s]["mass"]) for s in self.seeds)
        agrees = mass <= 1e-13 * self.n
        yield holds("push-sum: change of the mass", agrees, mass, "at most 1e-13 n", "0", CLOSED)
        yield from dense.each_against_dense(results)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The relative error of the first seed."""
        seed = self.seeds[0]
        draw_runs(figure, {f"{m}, {g}": results[m, g, s] for m, g, s in results if s == seed})
