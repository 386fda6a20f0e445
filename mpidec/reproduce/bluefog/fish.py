"""Figures 5 and 6: a school of fish flees from a predator, and encircles it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ... import topology
from ..._style import COLOURS
from ..experiment import Experiment, Results, alone
from ..verdict import CLOSED, About, Line, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[str, int]  # how the fish estimate, seed
PREDATOR = np.array([14.0, 8.0])


@dataclass(frozen=True)
class School(Experiment[Cell]):
    """Diffusion LMS over the current graph, with Metropolis weights, or by each fish alone.

    Each fish measures the direction of the predator and the distance from it, with noise.
    """

    about: ClassVar = About(
        name="bluefog-fig5-6",
        source="Ying et al., arXiv:2111.04287, Figures 5 and 6",
        shows="a school of fish estimates where a predator is, flees and encircles it",
        minutes=0.1,
        differs="the paper has pictures, without its settings",
        quick={"n": 10, "flee": 20, "encircle": 60, "seeds": (3,)},
    )

    n: int = 24
    flee: int = 60
    encircle: int = 340
    step: float = 0.4
    pace: float = 0.1
    sight: float = 6.0
    apart: float = 3.0
    radius: float = 5.0
    seeds: tuple[int, ...] = (3, 4, 5)

    def cells(self) -> Iterable[Cell]:
        """Together and alone, with each seed."""
        return ((how, seed) for seed in self.seeds for how in ("together", "alone"))

    def measure(self, cell: Cell) -> Mapping[str, ArrayLike]:
        """Places at three moments, and at each step the errors of the estimates and the distances
        from the predator.
        """
        how, seed = cell
        rng, n = np.random.default_rng(seed), self.n
        P, X = rng.uniform(-4, 4, (n, 2)), np.zeros((n, 2))
        places, errors, distances, apart = [], [], [], 0.0
        with alone(n) as net:
            for k in range(self.flee + self.encircle):
                far = np.linalg.norm(PREDATOR - P, axis=1, keepdims=True)
                U = (PREDATOR - P) / far + 0.1 * rng.standard_normal((n, 2))
                y = far + (U * P).sum(axis=1, keepdims=True) + 0.3 * rng.standard_normal((n, 1))
                X = X - self.step * U * ((U * X).sum(axis=1, keepdims=True) - y)
                if how == "together":
                    weights = self.weights(P)
                    W = net.mixer(topology.from_weights(weights, connected=False))
                    expected, X = weights @ X, W(X)
                    apart = max(apart, float(np.abs(X - expected).max()))
                    W.close()
                if k in (0, self.flee, self.flee + self.encircle - 1):
                    places.append(P)
                errors.append(np.sqrt(((X - PREDATOR) ** 2).sum(axis=1).mean()))
                distances.append(far[:, 0])
                P = P + self.pace * self.velocity(P, X, k >= self.flee)
        return {"places": places, "errors": errors, "distances": distances, "apart": apart}

    def weights(self, P: np.ndarray) -> np.ndarray:
        """Metropolis weights of the fish that see each other."""
        near = np.linalg.norm(P[:, None] - P, axis=2) < self.sight
        degrees = near.sum(axis=1)
        W = (near & ~np.eye(len(P), dtype=bool)) / np.maximum.outer(degrees, degrees)
        return np.asarray(W + np.diag(1 - W.sum(axis=1)))

    def velocity(self, P: np.ndarray, X: np.ndarray, encircle: bool) -> np.ndarray:
        """Return velocities away from the estimates X, or onto a circle about them, and away from
        fish that are too near.
        """
        far = np.linalg.norm(X - P, axis=1, keepdims=True)
        wish = (2 * (far - self.radius) if encircle else -1) * (X - P) / far
        gaps = P[:, None] - P
        near = np.linalg.norm(gaps, axis=2, keepdims=True)
        push = gaps / np.maximum(near, 1e-9) * np.maximum(self.apart - near, 0)
        return np.asarray(np.clip(wish, -2, 2) + push.sum(axis=1) / 2)

    def judge(self, results: Results[Cell]) -> Iterable[Line]:
        """Distances in flight, the circle, and the estimates; the worst over the seeds."""
        together = [results["together", seed] for seed in self.seeds]
        half = self.flee // 2
        grows = min(
            float(np.diff(found["distances"][half : self.flee].mean(axis=1)).min())
            for found in together
        )
        text = "Figure 5: growth of the mean distance per step, second half of the flight, least"
        yield holds(text, grows > 0, grows, "over 0", "disperses")
        off = max(float(abs(found["distances"][-1] - self.radius).mean()) for found in together)
        yield holds("Figure 6: distance from the circle", off < 0.6, off, "below .6", "encircles")
        errors = {
            how: [float(results[how, seed]["errors"][-50:].mean()) for seed in self.seeds]
            for how in ("together", "alone")
        }
        worst = max(errors["together"])
        yield holds("error of the estimates at the end", worst < 0.2, worst, "below .2")
        ratio = min(np.divide(errors["alone"], errors["together"]))
        yield holds("error, alone over together, least", ratio > 2, float(ratio), "over 2")
        worst = max(float(found["apart"]) for found in together)
        text = "estimates together: difference from products with dense matrices, largest"
        yield holds(text, worst <= 1e-9, worst, "at most 1e-9", by=CLOSED)

    def draw(self, results: Results[Cell], figure: Figure) -> None:
        """The school at the beginning, dispersed, and around the predator."""
        moments = (0, self.flee, self.flee + self.encircle - 1)
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        for axes, k, P in zip(panels, moments, results["together", self.seeds[0]]["places"]):
            for i, j in np.argwhere(np.triu(self.weights(P), 1)):
                axes.plot(*P[[i, j]].T, color="0.85", linewidth=0.6)
            axes.plot(*P.T, "o", color=COLOURS[0], markersize=4)
            axes.plot(*PREDATOR, "*", color=COLOURS[1], markersize=12)
            axes.set(title=f"step {k}", aspect="equal")
