"""Table II, Figures 12 and 13: hierarchical and flat averaging in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ...driver.internals import solve
from ...problems import MiniBatch, Softmax, digits, partition, stack
from ...solvers import DGD
from ...topology import Schedule, Topology
from .. import dense
from ..drawing import curves
from ..experiment import Experiment, Results, alone
from ..verdict import About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int]  # method, seed


def machines(n: int) -> Schedule:
    """Return the one-peer exponential graph of machines of 4 agents (2 or 1, if n is no multiple),
    each of which averages its agents.
    """
    size = math.gcd(n, 4)
    outer = topology.one_peer_exponential(n // size)
    average = np.full((size, size), 1 / size)
    return topology.cycle(
        [
            topology.from_weights(np.kron(outer.at(k).W.toarray(), average), connected=False)
            for k in range(outer.period or 1)
        ]
    )


def of_machines(n: int) -> Sequence[np.ndarray]:
    """Return the weights of `machines`, in turn."""
    size = math.gcd(n, 4)
    outer = dense.one_peer_exponential(n // size)
    return [np.kron(W, np.full((size, size), 1 / size)) for W in outer]


def averages(n: int) -> Sequence[np.ndarray]:
    """Return the weights of all-reduce."""
    return [np.full((n, n), 1 / n)]


class ImageNetMethod(NamedTuple):
    """A row of the table: order of the steps, graph and its weights; published seconds and
    accuracy.
    """

    order: str
    graph: Callable[[int], Topology | Schedule]
    weights: Callable[[int], Sequence[np.ndarray]]
    seconds: float
    accuracy: float


ONE_PEER = topology.one_peer_exponential, dense.one_peer_exponential
MACHINES = machines, of_machines
METHODS = {
    "Horovod": ImageNetMethod("atc", topology.complete, averages, 14648.26, 76.6),
    "H-ATC": ImageNetMethod("atc", *MACHINES, 11255.90, 76.4),
    "ATC": ImageNetMethod("atc", *ONE_PEER, 10437.62, 75.2),
    "H-AWC": ImageNetMethod("awc", *MACHINES, 11568.88, 75.9),
    "AWC": ImageNetMethod("awc", *ONE_PEER, 10228.92, 74.5),
}


@dataclass(frozen=True)
class HierarchicalTraining(Experiment[Cell]):
    """Softmax regression on digits, split by class; 4 machines of 4 agents."""

    about: ClassVar = About(
        name="bluefog-table2-fig12-13",
        source="Ying et al., arXiv:2111.04287, Table II and Figures 12 and 13",
        shows="hierarchical averaging is more accurate than flat, and less fast",
        minutes=0.1,
        differs="softmax regression on digits in place of ResNet-50 on ImageNet",
        quick={"steps": 20, "seeds": (0,)},
        notes=("Throughput (Figure 12) is of 4 to 128 GPUs: not run here.",),
    )

    n: int = 16
    alpha: float = 0.1
    step: float = 0.5
    batch: int = 16
    steps: int = 300
    seeds: tuple[int, ...] = (0, 1, 2)

    def cells(self) -> Iterable[Cell]:
        """Each method and seed."""
        return ((method, seed) for seed in self.seeds for method in METHODS)

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Return the accuracy on a fifth of the data, in the mean over the agents."""
        method, seed = METHODS[cell[0]], cell[1]
        data = digits()
        order = np.random.default_rng(seed).permutation(len(data.y))
        test, train = np.split(order, [len(order) // 5])
        parts = partition(data.y[train], self.n, "dirichlet", alpha=self.alpha, seed=seed)
        A, y, mask = stack(data.A[train], data.y[train], parts, 0, self.n)
        samples = np.ones(y.shape) if mask is None else mask
        problem = Softmax(A, y, 10, mask=mask, weight=1 / A.shape[1])

        def accuracy(X: np.ndarray, agents: range, k: int) -> ArrayLike:
            scores = data.A[test] @ X.reshape(len(X), -1, 10)
            return np.asarray(100 * (scores.argmax(axis=-1) == data.y[test]).mean(axis=1))

        solver, graph = DGD(self.step, order=method.order), method.graph(self.n)
        recursion = partial(dense.changing, order=method.order)
        grad = dense.cross_entropy(np.asarray(A), y, problem.weight * samples, 10)
        apart = dense.apart(recursion, grad, method.weights(self.n), problem, solver, graph)
        with alone(self.n) as net:
            result = solve(
                MiniBatch(problem, self.batch),
                solver,
                graph,
                steps=self.steps,
                net=net,
                seed=seed,
                metrics={"accuracy": accuracy},
            )
        found = {name: result.metrics[name] for name in ("step", "accuracy", "consensus")}
        return {**found, "apart": apart}

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Order of the accuracies; times are those of the paper."""
        means = {
            method: float(np.mean([results[method, seed]["accuracy"][-3:] for seed in self.seeds]))
            for method in METHODS
        }
        for method, row in METHODS.items():
            text = f"{method}: accuracy (%)"
            yield Line(text, row.accuracy, means[method], because="other data")
        for better, worse, least in (
            ("Horovod", "H-ATC", -0.5),
            ("H-ATC", "ATC", 0),
            ("H-AWC", "AWC", 0),
        ):
            gain = means[better] - means[worse]
            published = METHODS[better].accuracy - METHODS[worse].accuracy
            text = f"{better} less {worse}: points"
            yield holds(text, gain >= least, gain, f"at least {least:g}", published)
        yield from dense.each_against_dense(results)
        for method, row in METHODS.items():
            text = f"{method}: seconds of the training"
            yield Line(text, row.seconds, None, because="not run here: needs a cluster of GPUs")

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The accuracy of the first seed against the steps."""
        seed = self.seeds[0]
        lines = {m: (results[m, seed]["step"], results[m, seed]["accuracy"]) for m in METHODS}
        curves(figure.add_subplot(), lines, "steps", "test accuracy (%)", log="")
