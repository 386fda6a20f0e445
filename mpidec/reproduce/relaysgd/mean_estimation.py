"""Figure 9: workers estimate a mean from one sample per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ..._validation import Array
from ...solvers import RelaySGD
from .. import dense
from ..drawing import panels
from ..experiment import Experiment, Results, alone
from ..verdict import CLOSED, About, Line, derived, holds
from .delayed import delays, gradients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int, int]  # method, n, seed
Estimates = Callable[[int, Iterable[Array]], Iterator[Array]]


@dataclass(frozen=True)
class MeanEstimation(Experiment[Cell]):
    r"""Samples :math:`s_i^t \sim N(1, 1)`, and the squared error of the estimates.

    RelaySum divides the sum of the samples that have arrived by their number.  Gossip averages the
    running means of the workers.  Of the estimates after T steps, the expected errors are

    .. math::
        \frac{1}{n} \sum_i \frac{1}{\sum_j \max(T - \delta_{ij}, 0)}, \qquad
        \frac{1}{n T^2} \sum_k \sum_{t=1}^T \lambda_k^{2t}

    with the delays :math:`\delta_{ij}`, one less than the hops, and the eigenvalues of gossip's W.
    """

    about: ClassVar = About(
        name="relaysgd-fig9",
        source="Vogels et al., NeurIPS 2021, Appendix, Figure 9",
        shows="the error of RelaySum on a chain tends to 1 / (n T), that of all samples, sooner "
        "than that of gossip on a ring",
        minutes=0.2,
        differs="400 repetitions instead of 40, other random numbers",
        quick={"sizes": (8,), "repetitions": 200, "steps": 100},
        notes=(
            "RelaySum's expected error is 1 / (n (T - mean delay)), the mean delay about n / 3: "
            "that of all samples, 1 / (n T), is reached within 5 % after 20 mean delays.",
        ),
    )

    sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    seeds: tuple[int, ...] = (0,)
    steps: int = 400
    repetitions: int = 400

    def cells(self) -> Iterable[Cell]:
        """Both methods, each n and seed."""
        return product(METHODS, self.sizes, self.seeds)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the mean squared error after 1, 2, ... steps, and its expectation."""
        method, n, seed = cell
        rng = np.random.default_rng(seed)
        samples = (1 + rng.standard_normal((n, self.repetitions)) for _ in range(self.steps))
        estimates, expected, apart = METHODS[method]
        errors = [np.square(estimate - 1).mean() for estimate in estimates(n, samples)]
        found: Mapping[str, ArrayLike] = {
            "error": errors,
            "expected": expected(n, np.arange(1.0, self.steps + 1)),
        }
        return {**found, "apart": apart(1 + rng.standard_normal((dense.STEPS, n, 3)))}

    def judge(self, results: Results[Cell]) -> Iterator[Line]:
        """Each method against its expected error, and the expected errors against 1 / (n T)."""
        T = np.arange(1.0, self.steps + 1)
        for n, seed in product(self.sizes, self.seeds):
            for method in METHODS:
                error, expected = (results[method, n, seed][name] for name in ("error", "expected"))
                ratio = float((error / expected)[-self.steps // 2 :].mean())
                yield holds(
                    f"{method}, n = {n}, seed {seed}: mean of error over expected, later half",
                    abs(ratio - 1) <= 4 * (2 / self.repetitions) ** 0.5,
                    ratio,
                    "1 within 4 standard errors of a step",
                    by=CLOSED,
                )
        for n in self.sizes:
            delay, late = delays(topology.chain(n)).mean(), 2 * n < T
            relay, gossip = (results[method, n, self.seeds[0]]["expected"] for method in METHODS)
            if late.any():
                most = float((relay * n * (T - delay))[late].max())
                what = (
                    f"RelaySum, n = {n}: expected error times n (T - mean delay), T > 2 n, largest"
                )
                yield derived(what, 1.0, most, 0.05)
            if 32 <= n <= self.steps:
                ratio = float(gossip[n - 1] / relay[n - 1])
                what = f"n = {n}: expected error of gossip over RelaySum's at T = n"
                yield holds(what, ratio > 2, ratio, "more than 2")
        yield from dense.each_against_dense(results)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """A panel for the error of all samples, and one for each method."""
        T = np.arange(1.0, self.steps + 1)
        lines = {"1 / (n T)": {f"n = {n}": (T, 1 / (n * T)) for n in self.sizes}}
        for method in METHODS:
            lines[method] = {
                f"n = {n}": (T, results[method, n, self.seeds[0]]["error"]) for n in self.sizes
            }
        panels(figure, lines, "steps T", "mean squared error")


def relayed(n: int, samples: Iterable[Array]) -> Iterator[Array]:
    """Yield the estimates of RelaySum on a chain."""
    return (X[:, :-1] / X[:, -1:] for X in summed(n, samples))


def summed(n: int, samples: Iterable[Array]) -> Iterator[Array]:
    """Yield the sums of RelaySum on a chain over n: the last column counts the samples."""
    solver = RelaySGD(1.0, relay="gradient")
    with alone(n) as net:
        W = net.mixer(topology.chain(n))
        s = None
        for sample in samples:
            row = np.column_stack([sample, np.ones(n)])
            s = solver.step(s or solver.init(np.zeros_like(row), W.at(0)), -row, W.at(0))
            yield s.X


def gossiped(n: int, samples: Iterable[Array]) -> Iterator[Array]:
    """Yield the estimates of gossip on a ring."""
    with alone(n) as net:
        W = net.mixer(topology.ring(n))
        Z = np.zeros(())
        for t, sample in enumerate(samples):
            Z = W(Z + (sample - Z) / (t + 1))
            yield Z


def summed_apart(samples: Array) -> float:
    """Return how far the sums of RelaySum are from those of the samples that have arrived."""
    steps, n, d = samples.shape
    *_, X = summed(n, samples)
    rows = iter(np.concatenate([samples, np.ones((steps, n, 1))], axis=2))
    start = np.zeros((n, d + 1))
    late = delays(topology.chain(n))
    return dense.distance(X, gradients(lambda X: -next(rows), late, 1.0, start, steps), start)


def gossiped_apart(samples: Array) -> float:
    """Return how far the estimates of gossip are from products with the weights of the ring."""
    steps, n, d = samples.shape
    *_, X = gossiped(n, samples)
    rows, start, weights = iter(samples), np.zeros((n, d)), [dense.metropolis(topology.ring(n))]
    expected = dense.changing(
        lambda Z: Z - next(rows), weights, lambda t: 1 / (t + 1), start, steps
    )
    return dense.distance(X, expected, start)


def relay_error(n: int, T: Array) -> Array:
    """Return the expected error of RelaySum after T steps."""
    arrived = np.maximum(T[:, None, None] - delays(topology.chain(n)), 0).sum(axis=2)
    return np.asarray((1 / arrived).mean(axis=1))


def gossip_error(n: int, T: Array) -> Array:
    """Return the expected error of gossip after T steps."""
    powers = np.linalg.eigvalsh(topology.ring(n).W.toarray()) ** (2 * T[:, None])
    return np.asarray(np.cumsum(powers.sum(axis=1)) / (n * T**2))


METHODS: Mapping[
    str, tuple[Estimates, Callable[[int, Array], Array], Callable[[Array], float]]
] = {  # estimates, their expected error, how far they are from the equations
    "RelaySum": (relayed, relay_error, summed_apart),
    "gossip": (gossiped, gossip_error, gossiped_apart),
}
