"""Random quadratics of RelaySGD's experiments, methods on them, and the search for step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ... import topology
from ..._validation import Array
from ...driver.internals import iterate
from ...exceptions import ConfigError
from ...solvers import D2, DGD, ExactDiffusion, GradientTracking, RelaySGD, Solver
from ...topology import Schedule, Topology
from ..experiment import alone
from ..graphs import two_half_rounds

_gossip = partial(DGD, order="atc")
SOLVERS: Mapping[str, Callable[[float], Solver]] = {
    "RelaySGD": RelaySGD,
    "RelaySGD/Grad": partial(RelaySGD, relay="gradient"),
    "D2": D2,
    "exact diffusion": ExactDiffusion,
    "gradient tracking": partial(GradientTracking, variant="semi-atc"),
    "gossip": _gossip,
    "SGP": _gossip,
    "all-reduce": _gossip,
}
GRAPHS: Mapping[str, Callable[[int], Topology | Schedule]] = {
    "chain": topology.chain,
    "tree": topology.binary_tree,
    "star": topology.star,
    "ring": topology.ring,
    "exponential": two_half_rounds,
    "complete": topology.complete,
}
# Tuned to a plateau, where zeta2 > 0.
BIASED = ("gossip", "RelaySGD/Grad")


class Instance(NamedTuple):
    r""":math:`f(x) = \tfrac{1}{n} \sum_i \|A_i x - b_i\|^2`, with half of its gradient as in the
    published code.
    """

    H: Array  # A_i^T A_i, (n, d, d)
    c: Array  # A_i^T b_i, (n, d)
    x_star: Array

    def grad(self, X: Array) -> Array:
        """Half the gradient of f_i at row i, for rows of one or more points side by side."""
        points = X.reshape(len(X), -1, len(self.x_star))
        G: Array = points @ self.H - self.c[:, None]
        return G.reshape(X.shape)

    def error(self, X: Array) -> Array:
        """f(mean of the rows) - f(x*), of each of the points side by side."""
        e = X.mean(axis=0).reshape(-1, len(self.x_star)) - self.x_star
        return np.asarray(np.einsum("ri,ij,rj->r", e, self.H.mean(axis=0), e))


def random_quadratics(
    n: int, zeta2: float, r0: float, seed: int, *, mu: float | None = 0.5, d: int = 10
) -> Instance:
    r"""Return a published instance: singular values of A_i from mu to 1, a given heterogeneity
    :math:`\zeta^2 = \tfrac{1}{n} \sum_i \|\nabla f_i(x^\star)\|^2` and :math:`r_0 = \|x^\star\|`.

    Notes
    -----
    The numbers are those of PyTorch's generator.  The published code finds the scale of the local
    minimizers by bisection, until zeta2 is right within 1e-5, which is done here, too.

    Raises
    ------
    ConfigError
        For a zeta2 at which it does not end; that of one worker is 0.
    """
    most = 1e9 if n > 1 else 0.0
    if not 0 <= zeta2 <= most:
        raise ConfigError(f"zeta2 of {n} workers is {zeta2:g}, expected 0 to {most:g}")
    import torch

    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    A = draw(n, d, d).numpy()
    offsets = draw(n, d, 1).numpy()
    direction = draw(d, 1).numpy()[:, 0]
    U, S, Vt = np.linalg.svd(A)
    A = A / S[:, :1, None] if mu is None else U * np.linspace(mu, 1, d) @ Vt
    H = A.transpose(0, 2, 1) @ A
    Hd = (H @ offsets)[:, :, 0]
    g = Hd - H @ np.linalg.solve(H.mean(axis=0), Hd.mean(axis=0))
    x_star = r0 * direction / np.linalg.norm(direction)
    return Instance(H, _scale(np.square(g).sum(axis=1).mean(), zeta2) * g + H @ x_star, x_star)


def _scale(unit: float, zeta2: float) -> float:
    """Return the factor at which the published bisection ends, for offsets with a given zeta2."""
    used, scale, low, high = 0.0, 1.0, 0.0, math.inf
    while abs(used * used * unit - zeta2) > 1e-5:
        used = scale
        low, high = (used, high) if used * used * unit < zeta2 else (low, used)
        scale = 2 * used if high == math.inf else (low + high) / 2
    return used


def iterates(
    f: Instance,
    solver: Solver,
    graph: Topology | Schedule,
    *,
    sigma: float = 0.0,
    copies: int = 1,
    seed: int = 0,
) -> Iterator[Array]:
    """Yield X^0 = 0, X^1, ..., with noise of the gradients, E ||noise||^2 = sigma^2, in independent
    runs side by side.
    """
    n, d = f.c.shape
    rng, start = np.random.default_rng(seed), np.zeros((n, copies * d))

    def gradient(X: Array, k: int) -> Array:
        noise = sigma / math.sqrt(d) * rng.standard_normal(X.shape) if sigma else 0.0
        return np.asarray(f.grad(X) + noise)

    with alone(n) as net:
        yield start
        yield from (s.X for s in iterate(solver, gradient, net.mixer(graph), start))


def sampled_steps(most: int) -> Array:
    """Return the steps at which the published code looks at the error: 1000 on a log scale."""
    return np.unique(np.round(np.logspace(0, math.log2(most), 1000, base=2)).astype(int))


class Found(NamedTuple):
    """What a search has found: the step at which the target is reached, and the step size."""

    steps: float = math.inf
    step_size: float = math.nan


@dataclass(frozen=True)
class Trial:
    """Runs of a method on an instance until the error is below a target.

    Parameters
    ----------
    f : Quadratics
    solver : callable
        Makes the solver of a step size.
    graph : Topology or Schedule
    plateau : bool
        Whether the error must stay below the target: three errors in sequence that differ by less
        than 1 %.
    target : float
    max_steps : int
    """

    f: Instance
    solver: Callable[[float], Solver]
    graph: Topology | Schedule
    plateau: bool = False
    target: float = 1e-6
    max_steps: int = 20000

    def errors(self, step_size: float) -> Iterator[tuple[int, float]]:
        """Yield the test steps with their errors."""
        wanted = set(sampled_steps(self.max_steps).tolist())
        for k, X in enumerate(iterates(self.f, self.solver(step_size), self.graph)):
            if k >= self.max_steps:
                return
            if k in wanted:
                yield k, float(self.f.error(X)[0])

    def run(self, step_size: float, best: float = math.inf) -> tuple[str, int]:
        """Return how a run ends, and when: "reached", "near" (reached, with a plateau just below
        the target), "large" or "slow" (of the step size).
        """
        recent: list[float] = []
        first, k, tolerance = math.inf, 0, self.target / (100 if self.plateau else 10)
        for k, error in self.errors(step_size):
            if error < self.target and not self.plateau:
                return "reached", k
            if k > 10 * best:
                break
            first = first if recent else error
            rises = error > max(recent[-1:], default=error) and error > self.target
            if rises or not error <= first:
                return "large", k
            recent = [*recent[-2:], error]
            mean = sum(recent) / 3
            if len(recent) == 3 and max(abs(e - mean) for e in recent) < tolerance:
                return self._settled(mean), k
        return "slow", k

    def _settled(self, mean: float) -> str:
        if mean > self.target:
            return "large"
        return "near" if mean > self.target / 1.1 else "reached"

    def steps(self, step_size: float) -> float:
        """Return the step at which the target is reached, infinity if it is not."""
        end, k = self.run(step_size)
        return k if end in ("reached", "near") else math.inf

    def search(self, start: float) -> Found:
        """Return the best of up to 30 step sizes, as the published code chooses them: half of it
        until a run gets there, and for the fastest one until that takes longer, then bisection.
        """
        low, high, best = 0.0, 2 * start, Found()
        step_size = start if self.plateau else high
        for _ in range(30):
            end, k = self.run(step_size, best.steps)
            slower = end == "slow" or k >= best.steps
            if end == "large":
                high = step_size
            else:
                low, high = self._narrowed(low, high, step_size, end, slower)
                best = best if slower else Found(k, step_size)
            if end == "near" or (low and high - low <= (1e-6 if self.plateau else 1e-4)):
                break
            step_size = (low + high) / 2 if low else step_size / 2
        return best

    def _narrowed(
        self, low: float, high: float, step_size: float, end: str, slower: bool
    ) -> tuple[float, float]:
        """Return the limits after a step size that was not too large; 0 for no lower one."""
        if not (self.plateau or slower or low):
            return low, high
        keeps = self.plateau or end == "slow"
        return step_size, high if keeps else min(4 * step_size, high)
