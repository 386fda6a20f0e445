"""Local steps: K-GT and SCAFFOLD, which do not drift, and ProxSkip, which skips communications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...problems import Custom, LeastSquares
from ...solvers import KGT, SCAFFOLD, LocalDGD, ProxSkip
from .. import dense
from ..drawing import curves, panels
from ..experiment import Experiment, Results
from ..verdict import CLOSED, About, Line, derived, holds
from .running import decline, draw_runs, least_squares, norm, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Method, local steps, heterogeneity (G).
Cell = tuple[str, int, float]
TRACKING: Mapping[str, type[KGT] | type[LocalDGD]] = {"K-GT": KGT, "local DSGD": LocalDGD}


def drift(problem: LeastSquares, W: np.ndarray, step: float, K: int) -> np.ndarray:
    r"""Return where local DSGD ends, less the minimizer: the solution of :math:`X = W (P X + (I -
    P) S)`, with the minimizers S of the agents and :math:`P = (I - \alpha H)^K`.
    """
    n, d = problem.m, problem.d
    H = np.einsum("npd,npe->nde", problem.A, problem.A)
    S = np.linalg.solve(H, np.einsum("npd,np->nd", problem.A, problem.b)[..., None])
    P = np.linalg.matrix_power(np.eye(d) - step * H, K)
    step_map = np.einsum("ij,jde->idje", W, P).reshape(n * d, n * d)
    target = np.einsum("ij,jd->id", W, ((np.eye(d) - P) @ S)[..., 0]).ravel()
    X = np.linalg.solve(np.eye(n * d) - step_map, target).reshape(n, d)
    return np.asarray(X - problem.x_star)


@dataclass(frozen=True)
class LocalSteps(Experiment[Cell]):
    """Least squares on a ring, exact gradients."""

    about: ClassVar = About(
        name="kgt-drift",
        source="Liu, Lin, Koloskova, Stich, Optim. Methods Softw. 2024, local steps and "
        "heterogeneity",
        shows="K local steps save communication without a drift, however different the functions "
        "are",
        minutes=0.1,
        differs="least squares with exact gradients",
        quick={
            "local": (1, 4),
            "heterogeneity": (1.0,),
            "steps": 160,
            "n": 4,
            "d": 2,
        },
    )

    n: int = 8
    d: int = 4
    size: float = 0.05
    local: tuple[int, ...] = (1, 4, 8)
    heterogeneity: tuple[float, ...] = (1.0, 100.0)
    steps: int = 3200
    seed: int = 0

    def cells(self) -> Iterable[Cell]:
        """Each method, K and heterogeneity."""
        for method in TRACKING:
            for K in self.local:
                yield from ((method, K, scale) for scale in self.heterogeneity)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the run, and the limit of local DSGD in closed form."""
        method, K, scale = cell
        problem = least_squares(self.n, 3 * self.d, self.d, self.seed, scale)
        step, graph = self.size / problem.smoothness.max(), topology.ring(self.n)
        solver = TRACKING[method](step, local_steps=K)
        found = run(problem, solver, graph, self.steps, until=1e-11)
        recursion = partial(dense.tracked if method == "K-GT" else dense.local_dgd, local=K)
        grad, W = dense.quadratic(problem), dense.metropolis(graph)
        apart = dense.apart(recursion, grad, W, problem, solver, graph, steps=4 * K)
        off = drift(problem, W, step, K)
        limit = np.linalg.norm(off) / np.sqrt(self.n) / norm(problem)
        return {**found, "limit": limit, "apart": apart}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Errors at the end, drifts, and rounds of communication."""
        for (method, K, scale), found in results.items():
            what, error = f"{method}, K = {K}, heterogeneity {scale:g}", float(found["error"][-1])
            if method == "K-GT":
                drifted = float(results["local DSGD", K, scale]["limit"])
                agrees = error <= 1e-3 * drifted
                yield holds(f"{what}: error", agrees, error, "1e-3 of that of local DSGD", "0")
            else:
                yield derived(f"{what}: error", float(found["limit"]), error, 0.01)
        for method in TRACKING:
            yield dense.against_dense(method, (results[c] for c in results if c[0] == method))
        least, most = min(self.heterogeneity), max(self.heterogeneity)
        few, many = min(self.local), max(self.local)
        for K in self.local:
            limits = [
                float(results["local DSGD", K, scale]["error"][-1]) for scale in (least, most)
            ]
            growth = float(np.sqrt(most / least))
            yield derived(
                f"local DSGD, K = {K}: drift, over heterogeneities",
                growth,
                limits[1] / limits[0],
                1e-3,
            )
        drifts = [float(results["local DSGD", K, most]["error"][-1]) for K in (few, many)]
        yield holds(
            "local DSGD: drift grows with K",
            few == many or drifts[1] > drifts[0],
            drifts[1] / drifts[0],
            "over 1",
        )
        rounds = [
            float(found["rounds"][np.argmax(found["error"] < 1e-6)])
            for found in (results["K-GT", K, least] for K in (few, many))
        ]
        saved = rounds[0] / max(rounds[1], 1.0)
        yield holds(
            f"K-GT: rounds to 1e-6, K = {few} over K = {many}",
            saved >= many / few / 4,
            saved,
            f"at least a quarter of {many / few:g}",
        )

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The error against rounds of communication, with the largest heterogeneity."""
        scale = max(self.heterogeneity)
        runs = {f"{m}, K = {K}": results[m, K, s] for m, K, s in results if s == scale}
        draw_runs(figure, runs, "rounds", "rounds of communication")


FEDERATED: Mapping[str, type[SCAFFOLD] | type[LocalDGD]] = {
    "FedAvg": LocalDGD,
    "SCAFFOLD": SCAFFOLD,
}


@dataclass(frozen=True)
class ClientDrift(Experiment[Cell]):
    r"""Two clients, :math:`f_1 = \mu x^2 + G x` and :math:`f_2 = - G x`; no noise, no sampling."""

    about: ClassVar = About(
        name="scaffold-quadratics",
        source="Karimireddy et al., ICML 2020, experiments with simulated quadratics",
        shows="FedAvg drifts with the heterogeneity G and the local steps K, SCAFFOLD does not",
        minutes=0.1,
        differs="its own step size and starting point",
        quick={"local": (2,), "heterogeneity": (1.0, 10.0)},
    )

    step: float = 0.05
    mu: float = 1.0
    rounds: int = 600
    local: tuple[int, ...] = (1, 2, 10)
    heterogeneity: tuple[float, ...] = (1.0, 10.0, 100.0)

    def cells(self) -> Iterable[Cell]:
        """Each method, K and G."""
        for method in FEDERATED:
            for K in self.local:
                yield from ((method, K, G) for G in self.heterogeneity)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the distance from the minimizer 0, from 1 on."""
        method, K, G = cell
        square, slope = np.array([[self.mu], [0.0]]), np.array([[G], [-G]])
        problem = Custom(
            lambda X: (square * X**2 + slope * X)[:, 0],
            lambda X: 2 * square * X + slope,
            m=2,
            d=1,
            x_star=[0.0],
        )
        solver = FEDERATED[method](self.step, local_steps=K)
        graph = topology.complete(2)
        recursion = partial(dense.tracked if method == "SCAFFOLD" else dense.local_dgd, local=K)
        W, x0 = np.full((2, 2), 0.5), [1.0]
        apart = dense.apart(
            recursion,
            lambda X: 2 * square * X + slope,
            W,
            problem,
            solver,
            graph,
            x0=x0,
            steps=4 * K,
        )
        return {**run(problem, solver, graph, self.rounds * K, x0=x0, until=1e-12), "apart": apart}

    def drift(self, K: int, G: float) -> float:
        r"""Return the limit of FedAvg, :math:`G (\eta K / (1 - q^K) - 1 / (2 \mu))`, q = 1 - 2 eta
        mu.
        """
        q = 1 - 2 * self.step * self.mu
        return G * (self.step * K / (1 - q**K) - 1 / (2 * self.mu))

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """The limits, and the rates of SCAFFOLD."""
        G = max(self.heterogeneity)
        for K in self.local:
            off = max(
                abs(results["FedAvg", K, g]["error"][-1] - self.drift(K, g)) / g
                for g in self.heterogeneity
            )
            yield holds(
                f"FedAvg, K = {K}: distance / G, difference from the closed form, worst",
                off <= 1e-9,
                float(off),
                "at most 1e-9",
                by=CLOSED,
            )
            error = max(float(results["SCAFFOLD", K, g]["error"][-1]) for g in self.heterogeneity)
            yield holds(f"SCAFFOLD, K = {K}: distance, worst", error <= 1e-10, error, "1e-10", "0")
            rates = [decline(results["SCAFFOLD", K, g]) for g in self.heterogeneity]
            spread = float(np.ptp(rates))
            yield holds(f"SCAFFOLD, K = {K}: rate, over G", spread <= 2e-3, spread, "2e-3", "0")
        for method in FEDERATED:
            yield dense.against_dense(method, (results[c] for c in results if c[0] == method))
        ends = [float(results["FedAvg", K, G]["error"][-1]) for K in self.local]
        yield holds(
            f"FedAvg, G = {G:g}: distance grows with K", ends == sorted(ends), ends[-1], "in order"
        )
        for K in self.local:
            pace = 1 - decline(results["SCAFFOLD", K, G]) ** K
            yield derived(f"SCAFFOLD, K = {K}: progress of a round", self.pace(K), pace, 0.02)

    def pace(self, K: int) -> float:
        """1 - rate of SCAFFOLD's rounds, from the eigenvalues of a round."""
        e, q = self.step * K, (1 - 2 * self.step * self.mu) ** K
        s = (1 - q) / (2 * self.mu)
        # of x and w = c - c_1 = c_2 - c: y_1 = q x - s (G + w), y_2 = x + e (G + w),
        # x <- (y_1 + y_2) / 2, w <- w + (y_1 - y_2) / (2 e)
        rounds = np.array([[(1 + q) / 2, (e - s) / 2], [(q - 1) / (2 * e), (1 - s / e) / 2]])
        return float(1 - max(abs(np.linalg.eigvals(rounds))))

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The distances against rounds: FedAvg above, SCAFFOLD below, a column for each G."""
        parts = figure.subfigures(len(FEDERATED), 1, squeeze=False).flat
        for part, method in zip(parts, FEDERATED):
            found = {
                f"{method}, G = {G:g}": {
                    f"K = {K}": (results[method, K, G]["rounds"], results[method, K, G]["error"])
                    for K in self.local
                }
                for G in self.heterogeneity
            }
            panels(part, found, "rounds", "distance")


CoinCell = tuple[str, float, int]  # method, condition number, seed


@dataclass(frozen=True)
class SkippedCommunications(Experiment[CoinCell]):
    """Quadratics with curvatures from 1 / kappa to 1, and an exact average of all agents."""

    about: ClassVar = About(
        name="proxskip-communications",
        source="Mishchenko, Malinovsky, Stich, Richtarik, ICML 2022, main theorem",
        shows=(
            "with p = 1 / sqrt(kappa), ProxSkip takes sqrt(kappa) communications, gradient descent "
            "kappa"
        ),
        minutes=0.2,
        differs="quadratics in place of logistic regression",
        quick={"conditions": (4.0, 9.0), "seeds": (0,)},
    )

    n: int = 10
    d: int = 5
    conditions: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0)
    seeds: tuple[int, ...] = (0, 1)
    target: float = 1e-6

    def cells(self) -> Iterable[CoinCell]:
        """Gradient descent once, ProxSkip with the coins of each seed."""
        for kappa in self.conditions:
            yield "gradient descent", kappa, self.seeds[0]
            yield from (("ProxSkip", kappa, seed) for seed in self.seeds)

    def measure(self, cell: CoinCell) -> Mapping[str, ArrayLike]:
        """Return the run, and its squared error over the bound of the theorem."""
        method, kappa, seed = cell
        p = 1.0 if method == "gradient descent" else kappa**-0.5
        scale = np.sqrt(np.geomspace(1 / kappa, 1, self.d))
        b = np.random.default_rng(0).standard_normal((self.n, self.d))
        x_star = b.mean(axis=0) / scale
        problem = LeastSquares(np.tile(np.diag(scale), (self.n, 1, 1)), b, x_star=x_star)
        average = np.full((self.n, self.n), 2 / self.n) - np.eye(self.n)  # (I + W) / 2 averages
        graph = topology.from_weights(average, signed=True)
        steps = int(kappa * np.log(self.target**-2 * 1e4))
        solver = ProxSkip(1.0, p, seed=seed)
        found = run(problem, solver, graph, steps, until=self.target)
        coins = [np.random.default_rng([seed, k]).random() < p for k in range(dense.STEPS)]
        recursion = partial(dense.skipping, coins=coins, p=p)
        apart = dense.apart(recursion, dense.quadratic(problem), average, problem, solver, graph)
        start = self.n * x_star @ x_star + (scale**2 * (x_star - b / scale) ** 2).sum() / p**2
        squares = self.n * x_star @ x_star * np.square(found["error"])
        bound = start * (1 - 1 / kappa) ** np.asarray(found["step"])
        return {**found, "bounded": squares / bound, "apart": apart}

    def judge(self, results: Results[CoinCell]) -> Iterable[Line]:
        """The bound of each condition number, and communications against them."""
        yield dense.against_dense("ProxSkip, gradient descent", results.values())
        for kappa in self.conditions:
            runs = [results["ProxSkip", kappa, seed]["bounded"] for seed in self.seeds]
            short = min(map(len, runs))
            most = float(np.mean([one[:short] for one in runs], axis=0).max())
            text = f"kappa = {kappa:g}: squared error over (1 - 1 / kappa)^k Psi_0, largest"
            yield holds(text, most <= 1, most, "at most 1", "<= 1")
        powers = {"ProxSkip": 0.5, "gradient descent": 1.0}
        for method, expected in powers.items() if len(self.conditions) > 1 else ():
            counts = self.communications(results, method)
            slope = float(np.polyfit(np.log(self.conditions), np.log(counts), 1)[0])
            text = f"{method}: power of kappa in the communications"
            yield holds(text, abs(slope - expected) <= 0.12, slope, "within .12", expected, CLOSED)

    def communications(self, results: Results[CoinCell], method: str) -> list[float]:
        """Return the communications to the target of each condition number, in the mean over the
        coins.
        """
        return [
            float(
                np.mean(
                    [
                        f["rounds"][-1]
                        for (m, k, _), f in results.items()
                        if (m, k) == (method, kappa)
                    ]
                )
            )
            for kappa in self.conditions
        ]

    def draw(self, results: Results[CoinCell], figure: Figure) -> None:
        """The errors of the largest condition number, and communications against it."""
        left, right = figure.subplots(1, 2)
        kappa, seed = max(self.conditions), self.seeds[0]
        methods = ("ProxSkip", "gradient descent")
        runs = {method: results[method, kappa, seed] for method in methods}
        errors = {method: (found["rounds"], found["error"]) for method, found in runs.items()}
        title = f"condition number {kappa:g}"
        curves(left, errors, "communications", "relative error", log="xy", title=title)
        counts = {m: (self.conditions, self.communications(results, m)) for m in methods}
        y = f"communications to {self.target:g}"
        curves(right, counts, "condition number", y, log="xy", marked=True)
