"""Runs in one process: the errors of a solver, and how fast they fall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ...driver.internals import solve
from ...problems import LeastSquares, Problem, synthetic_least_squares
from ...solvers import Solver
from ...topology import Schedule, Topology
from ..drawing import curves
from ..experiment import Arrays, alone

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def least_squares(n: int, p: int, d: int, seed: int, heterogeneity: float = 1.0) -> LeastSquares:
    """Return random least squares of n agents, with p samples each, and their minimizer."""
    data = synthetic_least_squares(n, p, d, heterogeneity, seed)
    A, y = np.reshape(data.A, (n, p, d)), np.reshape(data.y, (n, p))
    return LeastSquares(A, y, x_star=data.x_star)


def run(
    problem: Problem,
    solver: Solver,
    graph: Topology | Schedule,
    steps: int,
    *,
    codec: Mapping[str, Any] | None = None,
    metric: str = "error_rms",
    until: float = 1e-12,
    x0: ArrayLike | None = None,
) -> Mapping[str, ArrayLike]:
    """Return steps, mixings, bytes that an agent has sent, and a metric, at 500 records."""
    n = graph.n
    with alone(n) as net:
        result = solve(
            problem,
            solver,
            graph,
            steps=steps,
            x0=x0,
            net=net,
            mixing=(lambda W: W.compress(**codec)) if codec else None,
            every=max(1, steps // 500),
            stop={metric: until},
        )
    found = result.metrics
    counts = {"step": found["step"], "rounds": found["rounds"], "bytes": found["bytes"] / n}
    return {**counts, "error": found[metric]}


def norm(problem: LeastSquares) -> float:
    """Return the norm of the minimizer, which errors are relative to."""
    return float(np.linalg.norm(np.asarray(problem.x_star)))


def gossip(
    graph: Topology | Schedule,
    d: int,
    steps: int,
    seed: int,
    codec: Mapping[str, Any] | None = None,
    until: float = 0.0,
) -> Mapping[str, ArrayLike]:
    """Return the distance of Gaussian rows from their average after 0, 1, ... mixings, until it is
    small enough, and the bytes that an agent has sent.
    """
    X = np.random.default_rng(seed).standard_normal((graph.n, d))
    mean, sent = X.mean(axis=0), []
    errors: list[float] = []
    with alone(graph.n) as net:
        W = net.mixer(graph)
        mixer = W.compress(**codec) if codec else W
        while len(errors) <= steps and (not errors or errors[-1] >= until):
            errors.append(float(np.sqrt(((X - mean) ** 2).mean())))
            sent.append(W.bytes / graph.n)
            X = mixer(X)
    return {"step": np.arange(len(errors)), "bytes": sent, "error": errors}


def decline(found: Arrays, part: float = 0.5) -> float:
    """Return the factor per step of the last part of the fall, where the slowest mode shows, by
    least squares of logarithms; infinite for a run that does not fall.
    """
    step, error = found["step"], np.log(np.maximum(found["error"], 1e-300))
    later = error < error.min() + part * (error[0] - error.min())
    if later.sum() < 2 or not np.isfinite(error).all():
        return np.inf
    return float(np.exp(np.polyfit(step[later], error[later], 1)[0]))


def slowest_mode(found: Arrays, floor: float = 1e-11) -> float:
    r"""Return the factor per step of the slowest mode of a linear run, from records at equal
    distances; infinite for fewer than 20 in the second half of the fall.

    The squared error is a sum of powers, :math:`\sum_{ij} c_{ij} (\lambda_i \bar\lambda_j)^k`:
    these are found by a matrix pencil, in the second half of the logarithm's fall, where fast modes
    have decayed, and above `floor` relative to the first error, where rounding does not show.
    """
    step, error = found["step"], found["error"]
    end = int(np.argmax(np.append(error, 0.0) < floor * error[0]))
    fall = np.log(error[:end])
    begin = int(np.flatnonzero(fall > (fall[0] + fall.min()) / 2)[-1]) + 1
    k, y = step[begin:end], fall[begin:]
    if len(k) < 20:
        return np.inf
    slope = float(np.polyfit(k, y, 1)[0])
    y = np.exp(2 * (y - y[-1] - slope * (k - k[-1])))
    windows = np.lib.stride_tricks.sliding_window_view(y, len(y) // 2)
    _, sizes, V = np.linalg.svd(windows, full_matrices=False)
    V = V[sizes > 0.01 * sizes[0]].T
    z = np.linalg.eigvals(np.linalg.pinv(V[:-1]) @ V[1:])
    z = z[np.abs(z) > 0.1 * np.abs(z).max()]
    parts = np.linalg.lstsq(z ** np.arange(1 - len(y), 1)[:, None], y.astype(complex))[0]
    present = np.abs(parts) >= min(0.01 * y[-len(y) // 4 :].max(), np.abs(parts).max())
    return float(np.exp(slope + np.log(np.abs(z[present]).max()) / (2 * (k[1] - k[0]))))


def draw_runs(
    figure: Figure, runs: Mapping[str, Arrays], x: str = "step", label: str = "", y: str = ""
) -> None:
    """Draw the errors of runs against `x`."""
    lines = {name: (found[x], found["error"]) for name, found in runs.items()}
    curves(figure.add_subplot(), lines, label or "steps", y or "relative error of the agents")
