"""Exact methods: EXTRA, where DGD is biased, and Push-Pull on directed graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import theory, topology
from ...problems import LeastSquares
from ...solvers import DGD, EXTRA, PushDIGing, PushPull, PushSum, Solver
from .. import dense
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, derived, holds
from .running import decline, draw_runs, least_squares, norm, run, slowest_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

StepCell = tuple[str, float, int]  # method, step size times L, seed
UNDIRECTED: Mapping[str, type[Solver]] = {"EXTRA": EXTRA, "DGD": DGD}


@dataclass(frozen=True)
class ExactAndBiased(Experiment[StepCell]):
    """Least squares on random graphs with half of all edges."""

    about: ClassVar = About(
        name="extra-exact",
        source="Shi, Ling, Wu, Yin, SIAM J. Optim. 2015, experiment with decentralized least "
        "squares",
        shows="EXTRA is exact, the error of DGD is proportional to the step size",
        minutes=0.1,
        differs="other random instances; DGD with constant step sizes only",
        quick={"seeds": (0,), "steps": 400, "n": 6, "d": 2},
    )

    n: int = 10
    d: int = 5
    samples: int = 4
    step_sizes: tuple[float, ...] = (0.5, 0.25)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 2500

    def cells(self) -> Iterable[StepCell]:
        """EXTRA with the largest step size, DGD with each."""
        for seed in self.seeds:
            yield "EXTRA", max(self.step_sizes), seed
            yield from (("DGD", size, seed) for size in self.step_sizes)

    def measure(self, cell: StepCell) -> Mapping[str, ArrayLike]:
        """Return the run; rate of EXTRA and error of DGD in the limit, as derived, and the latter
        with a hundredth of the step size, as predicted.
        """
        method, times, seed = cell
        problem = least_squares(self.n, self.samples, self.d, seed)
        graph = topology.erdos_renyi(self.n, 0.5, seed)
        solver, tiny = (
            UNDIRECTED[method](a / problem.smoothness.max()) for a in (times, times / 100)
        )
        grad, W = dense.quadratic(problem), dense.metropolis(graph)
        recursion, a = dense.extra if method == "EXTRA" else dense.dgd, solver.step_size
        wide, H = dense.expanded(W, self.d), dense.curvatures(problem)
        return {
            **run(problem, solver, graph, self.steps, until=1e-14),
            "apart": dense.apart(recursion, grad, W, problem, solver, graph),
            "rate": dense.extra_rate(wide, H, a),
            "limit": self.bias(problem, wide, H, a),
            "small": np.sqrt(theory.steady_state(problem, tiny, graph).bias.mean()) / norm(problem),
        }

    def bias(self, problem: LeastSquares, W: np.ndarray, H: np.ndarray, a: float) -> float:
        """Return the relative error of DGD in the limit: of the solution of (I - W + a H) X = - a
        grad(0).
        """
        zero = np.zeros((self.n, self.d))
        target = -a * dense.quadratic(problem)(zero).ravel()
        X = np.linalg.solve(np.eye(len(W)) - W + a * H, target).reshape(self.n, self.d)
        return float(np.linalg.norm(X - problem.x_star) / np.sqrt(self.n) / norm(problem))

    def judge(self, results: Results[StepCell]) -> Iterable[Line]:
        """Errors and rates of EXTRA, and the error of DGD against the step size."""
        for (method, size, seed), found in results.items():
            what, error = f"{method}, {size:g} / L, seed {seed}", float(found["error"][-1])
            if method == "DGD":
                yield derived(f"{what}: error", float(found["limit"]), error, 0.01)
                continue
            yield holds(f"{what}: error", error <= 1e-10, error, "at most 1e-10", "0")
            yield derived(f"{what}: rate", float(found["rate"]), slowest_mode(found), 0.002)
        for method in UNDIRECTED:
            yield dense.against_dense(method, (results[c] for c in results if c[0] == method))
        sizes = np.log(self.step_sizes)
        for seed in self.seeds if len(sizes) > 1 else ():
            limits = [results["DGD", size, seed]["small"] for size in self.step_sizes]
            slope = float(np.polyfit(sizes, np.log(limits), 1)[0])
            yield holds(
                f"error of DGD, seed {seed}: power of the (small) step size",
                abs(slope - 1) <= 0.05,
                slope,
                "1, within .05",
                1.0,
                CLOSED,
            )

    def draw(self, results: Results[StepCell], figure: Figure) -> None:
        """The relative error of the first seed."""
        lines = {
            f"{method}, {size:g} / L": results[method, size, seed]
            for method, size, seed in results
            if seed == self.seeds[0]
        }
        draw_runs(figure, lines)


GraphCell = tuple[str, str, int]  # method, graph, seed
DIRECTED: Mapping[str, PushPull | PushDIGing | PushSum] = {
    "Push-Pull": PushPull(),
    "AB": PushPull(variant="ab"),
    "Push-DIGing": PushDIGing(),
    "gradient-push": PushSum(),
}

RECURSIONS: Mapping[str, dense.Recursion] = {
    "Push-Pull": dense.push_pull,
    "AB": dense.ab,
    "Push-DIGing": lambda grad, C, *given: dense.push_diging(grad, [C], *given),
    "gradient-push": dense.gradient_push,
}


def links(kind: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return who pulls iterates from whom, and who pushes gradients to whom (rows receive).

    A digraph with a cycle and n more edges, or two trees: pulled from the root, pushed to it.
    """
    rng, pulls = np.random.default_rng(seed), np.eye(n)
    if kind == "trees":
        for child in range(1, n):
            pulls[child, rng.integers(child)] = 1
        return pulls, pulls.T
    pulls[range(n), np.r_[n - 1, 0 : n - 1]] = 1
    pulls[rng.integers(n, size=n), rng.integers(n, size=n)] = 1
    return pulls, pulls


def perron(A: np.ndarray) -> np.ndarray:
    """Return the right eigenvector of the eigenvalue 1, with the sum 1."""
    values, vectors = np.linalg.eig(A)
    v = vectors[:, np.argmax(values.real)].real
    return np.asarray(v / v.sum())


@dataclass(frozen=True)
class DirectedGraphs(Experiment[GraphCell]):
    """Least squares on random digraphs, and on two trees with a common root alone."""

    about: ClassVar = About(
        name="push-pull-linear",
        source="Pu, Shi, Xu, Nedic, IEEE TAC 2021, linear convergence",
        shows="Push-Pull is linear on directed graphs, of two spanning trees even",
        minutes=0.1,
        differs="random instances",
        quick={"seeds": (0,), "steps": 100, "n": 6, "d": 2},
    )

    n: int = 12
    d: int = 4
    size: float = 0.5
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 4000

    def cells(self) -> Iterable[GraphCell]:
        """All methods on the digraph, and Push-Pull and AB on the trees."""
        for seed in self.seeds:
            yield from ((method, "digraph", seed) for method in DIRECTED)
            yield from ((method, "trees", seed) for method in ("Push-Pull", "AB"))

    def measure(self, cell: GraphCell) -> Mapping[str, ArrayLike]:
        """Return the run, its rate as derived, and the progress of small steps over its first
        order.
        """
        method, kind, seed = cell
        problem = least_squares(self.n, 2 * self.d, self.d, seed)
        pulls, pushes = links(kind, self.n, seed)
        R, C = pulls / pulls.sum(axis=1, keepdims=True), pushes / pushes.sum(axis=0)
        graph = topology.from_weights(C, connected=False)
        if isinstance(DIRECTED[method], PushPull):
            graph = topology.push_pull(topology.from_weights(R, connected=False), graph)
        step = self.size / (self.n * problem.smoothness.max())
        solver, tiny = (replace(DIRECTED[method], step_size=a) for a in (step, step / 20))
        H = np.einsum("npd,npe->de", problem.A, problem.A)
        first = tiny.step_size * perron(R.T) @ perron(C) * np.linalg.eigvalsh(H)[0]
        pull, push = dense.shares(pulls, 1), dense.shares(pushes, 0)
        pulled, pushed = (dense.expanded(W, self.d) for W in (pull, push))
        curvatures, pair = dense.curvatures(problem), isinstance(solver, PushPull)
        if not pair:
            pulled = pushed
            curvatures = curvatures / np.repeat(self.n * perron(push), self.d)
        recursion, weights = RECURSIONS[method], (pull, push) if pair else push
        grad = dense.quadratic(problem)
        return {
            **run(problem, solver, graph, self.steps),
            "apart": dense.apart(recursion, grad, weights, problem, solver, graph),
            "rate": dense.tracking_rate(pulled, pushed, curvatures, step, method != "AB"),
            "progress": (1 - theory.rate(problem, tiny, graph)) / first,
        }

    def judge(self, results: Results[GraphCell]) -> Iterable[Line]:
        """Errors, rates and the first order of the progress, each the worst over the seeds."""
        for method, kind in dict.fromkeys(cell[:2] for cell in results):
            found = [results[method, kind, seed] for seed in self.seeds]
            what = f"{method}, {kind}"
            errors = [float(one["error"][-1]) for one in found]
            yield dense.against_dense(what, found)
            if method == "gradient-push":
                yield holds(f"{what}: least error", min(errors) > 1e-4, min(errors), "over 1e-4")
                continue
            yield holds(f"{what}: error", max(errors) <= 1e-9, max(errors), "at most 1e-9", "0")
            pace = [(1 - decline(one)) / (1 - float(one["rate"])) for one in found]
            yield derived(f"{what}: 1 - rate over the exact one", 1.0, _worst(pace), 0.1)
            if method != "Push-DIGing":
                progress = [float(one["progress"]) for one in found]
                yield derived(
                    f"{what}: 1 - rate over alpha (u^T v) n mu", 1.0, _worst(progress), 0.1
                )

    def draw(self, results: Results[GraphCell], figure: Figure) -> None:
        """The relative error of the first seed."""
        seed = self.seeds[0]
        draw_runs(
            figure, {f"{m}, {kind}": results[m, kind, s] for m, kind, s in results if s == seed}
        )


def _worst(ratios: Iterable[float]) -> float:
    return max(ratios, key=lambda ratio: abs(ratio - 1))
