"""Compressed rows: CHOCO-gossip, LEAD and BEER."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...problems import Custom, LogisticRegression, breast_cancer, partition, stack
from ...solvers import BEER, CHOCO, LEAD, NIDS, Diffusion, Solver
from .. import dense
from ..experiment import Arrays, Experiment, Results
from ..verdict import About, Line, derived, holds
from .running import decline, draw_runs, gossip, least_squares, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bytes_to(found: Arrays, error: float) -> float:
    """Return the bytes that an agent has sent when its error falls below `error`."""
    below = found["error"] < error
    return float(found["bytes"][np.argmax(below)]) if below.any() else np.inf


GossipCell = tuple[str, int]  # method, seed


@dataclass(frozen=True)
class Gossip(Experiment[GossipCell]):
    """Average consensus of Gaussian rows on a ring, with and without a memory of the estimates."""

    about: ClassVar = About(
        name="choco-gossip",
        source="Koloskova, Stich, Jaggi, ICML 2019, experiments with average consensus on a ring",
        shows="CHOCO-gossip is linear with compression, gossip of rounded rows is not",
        minutes=0.1,
        differs="Gaussian rows of 200 numbers; 127 levels in place of 256, 10 % in place of 1 %",
        quick={"n": 5, "d": 80, "steps": 100, "seeds": (0,)},
    )

    n: int = 25
    d: int = 200
    fraction: float = 0.1
    steps: int = 800
    seeds: tuple[int, ...] = (0, 1)

    def cells(self) -> Iterable[GossipCell]:
        """Each method and seed."""
        return ((method, seed) for seed in self.seeds for method in self.codecs())

    def codecs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the arguments of `compress`."""
        fine = {"codec": "qsgd", "levels": 127, "bucket": self.d}
        sparse = {"fraction": self.fraction, "feedback": True}
        return {
            "exact gossip": {},
            "CHOCO, qsgd": {**fine, "feedback": True},
            "rounded rows, qsgd": {**fine, "feedback": False},
            "CHOCO, top": {**sparse, "codec": "top_k", "gamma": 3 * self.fraction},
            "CHOCO, random": {**sparse, "codec": "rand_k", "gamma": self.fraction},
            "rows cut, top": {"codec": "top_k", "fraction": self.fraction, "feedback": False},
        }

    def measure(self, cell: GossipCell) -> Mapping[str, ArrayLike]:
        """Return the error after 0, 1, ... mixings, and the bytes that an agent has sent."""
        graph, codec = topology.ring(self.n), self.codecs()[cell[0]]
        found = gossip(graph, self.d, self.steps, cell[1], codec, until=1e-12)
        if cell[0] not in ("exact gossip", "CHOCO, top"):
            return found
        keep = round(float(codec.get("fraction", 1.0)) * self.d)
        mix = dense.ErrorFeedback(dense.metropolis(graph), float(codec.get("gamma", 1.0)), keep)
        X = np.random.default_rng(cell[1]).standard_normal((self.n, self.d))
        first, errors = X.mean(axis=0), []
        for _ in range(dense.STEPS):
            errors.append(np.sqrt(((X - first) ** 2).mean()))
            X = mix(X)
        off = np.abs(np.divide(np.asarray(found["error"])[: dense.STEPS], errors) - 1).max()
        return {**found, "apart": off}

    def judge(self, results: Results[GossipCell]) -> Iterable[Line]:
        """Rates against those of the slowest mode, and bytes; the worst over the seeds."""
        yield dense.against_dense("exact gossip; CHOCO, top", results.values())
        gap = (1 - np.cos(2 * np.pi / self.n)) * 2 / 3
        for method, options in self.codecs().items():
            slowest = float(options.get("gamma", 1.0)) * gap
            if options.get("feedback", True):
                gaps = [1 - decline(results[method, seed]) for seed in self.seeds]
                worst = max(gaps, key=lambda x: abs(x - slowest))
                tolerance = 0.3 if "random" in method else 0.15  # random rates fluctuate
                yield derived(f"{method}: 1 - rate", slowest, worst, tolerance)
        for coarse, choco in (
            ("rounded rows, qsgd", "CHOCO, qsgd"),
            ("rows cut, top", "CHOCO, top"),
        ):
            ratio = min(
                float(results[coarse, seed]["error"][-1] / results[choco, seed]["error"][-1])
                for seed in self.seeds
            )
            yield holds(f"{coarse}: error over that of {choco}", ratio > 10, ratio, "over 10")
        exact, fine = (results[method, self.seeds[0]] for method in list(self.codecs())[:2])
        ratio = bytes_to(exact, 0.01) / bytes_to(fine, 0.01)
        yield holds("bytes to .01, exact gossip over CHOCO, qsgd", ratio > 6, ratio, "over 6")

    def draw(self, results: Results[GossipCell], figure: Figure) -> None:
        """The error of the first seed against mixings and bytes."""
        seed = self.seeds[0]
        runs = {method: results[method, seed] for method in self.codecs()}
        draw_runs(figure, runs, y="distance from the average")


QuantizedCell = tuple[str, float]  # method, heterogeneity
Made = Callable[[float], Solver]  # with a step size
Compared = Callable[..., np.ndarray]  # its equations with dense matrices
QUANTIZED: Mapping[str, tuple[Made, int, Compared]] = {  # levels of the quantizer, 0 for none
    "NIDS": (NIDS, 0, dense.nids),
    "LEAD, 5 bits": (partial(LEAD, dual=1.0), 15, dense.lead),
    "LEAD, 6 bits": (partial(LEAD, dual=1.0), 31, dense.lead),
    "CHOCO-SGD, 5 bits": (CHOCO, 15, dense.choco),
    "DGD": (Diffusion, 0, dense.diffusion),
}


@dataclass(frozen=True)
class QuantizedRows(Experiment[QuantizedCell]):
    """Least squares on a ring of 8 agents, with the weights 1/3."""

    about: ClassVar = About(
        name="lead-bits",
        source="Liu, Li, Wang, Tang, Yan, ICLR 2021, experiment with linear regression",
        shows="LEAD is linear with quantized rows, as NIDS is, with fewer bits",
        minutes=0.1,
        differs=(
            "random instances; 5 and 6 bits per number by the 2-norm (QSGD) in place of 2 bits by "
            "the largest entry"
        ),
        quick={"d": 16, "steps": 60, "heterogeneity": (1.0,)},
    )

    n: int = 8
    d: int = 64
    steps: int = 300
    heterogeneity: tuple[float, ...] = (1.0, 100.0)
    seed: int = 0

    def cells(self) -> Iterable[QuantizedCell]:
        """Each method and heterogeneity."""
        return ((method, scale) for scale in self.heterogeneity for method in QUANTIZED)

    def measure(self, cell: QuantizedCell) -> Mapping[str, ArrayLike]:
        """Return the run with the step size 1 / L, and the paper's method: gamma and beta are 1."""
        method, levels, recursion = QUANTIZED[cell[0]]
        problem = least_squares(self.n, 3 * self.d, self.d, self.seed, cell[1])
        solver, graph = method(1 / problem.smoothness.max()), topology.ring(self.n)
        codec, known = None, None  # the latter is not random
        if levels:
            remembers = {"feedback": True, "gamma": 1.0}
            codec = {"codec": "qsgd", "levels": levels, "bucket": self.d, **remembers}
            known = {"codec": "top_k", "fraction": 0.5, **remembers}
            recursion = partial(recursion, gamma=1.0, keep=round(self.d / 2))
        grad, W = dense.quadratic(problem), dense.metropolis(graph)
        off = dense.apart(recursion, grad, W, problem, solver, graph, codec=known)
        found = {**run(problem, solver, graph, self.steps, codec=codec), "apart": off}
        if cell[0] == "NIDS":
            wide, H = dense.expanded(W, self.d), dense.curvatures(problem)
            found["rate"] = dense.nids_rate(wide, H, solver.step_size)
        return found

    def judge(self, results: Results[QuantizedCell]) -> Iterable[Line]:
        """Errors, rates and bytes."""
        for (method, scale), found in results.items():
            what, error = f"{method}, heterogeneity {scale:g}", float(found["error"][-1])
            if method.startswith(("NIDS", "LEAD")):
                yield holds(f"{what}: error", error <= 1e-8, error, "at most 1e-8", "0")
            else:
                yield holds(f"{what}: error", error >= 1e-3, error, "at least 1e-3: biased")
        for method in QUANTIZED:
            yield dense.against_dense(method, (results[c] for c in results if c[0] == method))
        for method in list(QUANTIZED)[1:3]:
            rates = [decline(results[method, scale]) for scale in self.heterogeneity]
            off = float(np.ptp(rates))
            yield holds(f"{method}: rate, over heterogeneities", off <= 0.01, off, "the same, .01")
        nids, lead = (results[method, self.heterogeneity[0]] for method in list(QUANTIZED)[:2])
        rate = float(nids["rate"])
        yield derived("LEAD, 5 bits: rate, as of NIDS", rate, decline(lead), 0.03)
        ratio = bytes_to(nids, 1e-6) / bytes_to(lead, 1e-6)
        yield holds("bytes to 1e-6, NIDS over LEAD, 5 bits", ratio > 8, ratio, "over 8")

    def draw(self, results: Results[QuantizedCell], figure: Figure) -> None:
        """The error against bytes."""
        scale = self.heterogeneity[0]
        runs = {method: results[method, scale] for method in QUANTIZED}
        draw_runs(figure, runs, "bytes", "bytes sent by an agent")


MethodCell = tuple[str]  # method
NONCONVEX: Mapping[str, tuple[Made, bool, Compared]] = {  # whether rows are compressed
    "BEER": (BEER, True, dense.beer),
    "CHOCO-SGD": (CHOCO, True, dense.choco),
    "DSGD": (Diffusion, False, dense.diffusion),
}


def logistic(n: int, penalty: float) -> tuple[Custom, dense.Gradient]:
    r"""Return logistic regression with the penalty :math:`\lambda \sum_j x_j^2 / (1 + x_j^2)`, and
    data that are sorted by class; and its gradients from the data.
    """
    data = breast_cancer()
    A, y, mask = stack(data.A, data.y, partition(data.y, n, "sorted"), 0, n)
    smooth = LogisticRegression(A, y, mask=mask, weight=1 / A.shape[1])

    def gradients(X: np.ndarray) -> np.ndarray:
        errors = -y / (1 + np.exp(y * np.einsum("npd,nd->np", A, X)))
        sums = np.einsum("npd,np->nd", A, errors) / A.shape[1]
        return np.asarray(sums + penalty * 2 * X / (1 + X**2) ** 2)

    problem = Custom(
        lambda X: smooth.value(X) + penalty * (X**2 / (1 + X**2)).sum(axis=1),
        lambda X: smooth.grad(X) + 2 * penalty * X / (1 + X**2) ** 2,
        m=n,
        d=smooth.d,
        smoothness=smooth.smoothness + 2 * penalty,
        check=False,
    )
    return problem, gradients


@dataclass(frozen=True)
class VanishingGradients(Experiment[MethodCell]):
    """Breast cancer data sorted by class, on a ring; a fifth of each row is sent."""

    about: ClassVar = About(
        name="beer-gradients",
        source=(
            "Zhao, Li, Li, Richtarik, Chi, NeurIPS 2022, logistic regression with a nonconvex "
            "penalty, and the rate O(1/T)"
        ),
        shows="BEER finds stationary points, CHOCO-SGD and DSGD stop before",
        minutes=0.2,
        differs="breast cancer data in place of a9a; all samples in each gradient",
        quick={"steps": 60},
    )

    n: int = 10
    fraction: float = 0.2
    gamma: float = 0.3
    penalty: float = 0.05
    steps: int = 1500

    def cells(self) -> Iterable[MethodCell]:
        """Each method."""
        return ((method,) for method in NONCONVEX)

    def measure(self, cell: MethodCell) -> Mapping[str, ArrayLike]:
        """Return the norm of the gradient at the average, with the step size 1 / L."""
        method, compressed, recursion = NONCONVEX[cell[0]]
        problem, grad = logistic(self.n, self.penalty)
        solver, graph = method(1 / np.max(problem.smoothness)), topology.ring(self.n)
        codec = None
        if compressed:
            codec = {"codec": "top_k", "fraction": self.fraction, "gamma": self.gamma}
            keep = round(self.fraction * problem.d)
            recursion = partial(recursion, gamma=self.gamma, keep=keep)
        W = dense.metropolis(graph)
        off = dense.apart(recursion, grad, W, problem, solver, graph, codec=codec)
        found = run(problem, solver, graph, self.steps, codec=codec, metric="gradient_norm")
        return {**found, "apart": off}

    def judge(self, results: Results[MethodCell]) -> Iterable[Line]:
        """The gradients at the end, and the mean of their squares against the steps."""
        for method in NONCONVEX:
            yield dense.against_dense(method, [results[method,]])
        beer, *others = (float(results[method,]["error"][-1]) for method in NONCONVEX)
        for method, end in zip(list(NONCONVEX)[1:], others):
            yield holds(f"{method}: gradient", end >= 1e-3, end, "at least 1e-3: biased")
        yield holds("BEER: gradient", beer <= 1e-3 * min(others), beer, "1e-3 of these", "0")
        step, squares = results["BEER",]["step"][1:], results["BEER",]["error"] ** 2
        means = np.cumsum(squares)[1:] / np.arange(2, len(squares) + 1)
        later = step >= step[-1] / 10
        slope = float(np.polyfit(np.log(step[later]), np.log(means[later]), 1)[0])
        yield holds("BEER: power of T of the mean square", slope <= -0.9, slope, "-1", "-1")

    def draw(self, results: Results[MethodCell], figure: Figure) -> None:
        """The gradients against the bytes."""
        runs = {method: found for (method,), found in results.items()}
        draw_runs(figure, runs, "bytes", "bytes sent by an agent", "norm of the gradient")
