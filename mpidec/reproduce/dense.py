"""Methods by the equations of their papers, with dense matrices: judges of runs that share nothing
with the solvers, their gradients and their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..driver.solve import solve
from ..problems import LeastSquares, Problem
from ..solvers import Solver
from ..topology import Schedule, Topology
from .experiment import Arrays, alone
from .verdict import CLOSED, Line, holds

Rows = np.ndarray
Gradient = Callable[[Rows], Rows]
Recursion = Callable[[Gradient, Any, float, Rows, int], Rows]  # weights, step size, rows, steps
STEPS = 12  # enough for each term of the equations; longer runs forget the beginning


def metropolis(graph: Topology) -> Rows:
    """Return the Metropolis weights of the links of an undirected graph."""
    links = graph.W.toarray() != 0
    np.fill_diagonal(links, False)
    degrees = links.sum(axis=1)
    W = links / (1 + np.maximum(degrees[:, None], degrees))
    return np.asarray(W + np.diag(1 - W.sum(axis=1)))


def shares(links: Rows, axis: int) -> Rows:
    """Return links with equal weights that sum to 1 along an axis."""
    return np.asarray(links / links.sum(axis=axis, keepdims=True))


def quadratic(problem: LeastSquares) -> Gradient:
    """Return the gradients of least squares, from its data."""
    H = np.einsum("npd,npe->nde", problem.A, problem.A)
    c = np.einsum("npd,np->nd", problem.A, problem.b)
    return lambda X: np.asarray(np.einsum("nde,ne->nd", H, X) - c)


def dgd(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X <- W X - a grad(X)."""
    for _ in range(steps):
        X = W @ X - a * grad(X)
    return X


def diffusion(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X <- W (X - a grad(X)), adapt then combine."""
    for _ in range(steps):
        X = W @ (X - a * grad(X))
    return X


def extra(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X'' = (I + W) X' - (I + W) / 2 X - a (grad(X') - grad(X)), from X' = W X - a grad(X) on."""
    lazy, before, X = (np.eye(len(W)) + W) / 2, X, W @ X - a * grad(X)
    for _ in range(steps - 1):
        before, X = X, 2 * lazy @ X - lazy @ before - a * (grad(X) - grad(before))
    return X


def nids(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X'' = (I + W) / 2 (2 X' - X - a (grad(X') - grad(X))), from X' = X - a grad(X) on."""
    lazy, before, X = (np.eye(len(W)) + W) / 2, X, X - a * grad(X)
    for _ in range(steps - 1):
        before, X = X, lazy @ (2 * X - before - a * (grad(X) - grad(before)))
    return X


def push_pull(grad: Gradient, pair: tuple[Rows, Rows], a: float, X: Rows, steps: int) -> Rows:
    """X' = R (X - a Y), Y' = C Y + grad(X') - grad(X)."""
    (R, C), G = pair, grad(X)
    Y = G
    for _ in range(steps):
        X = R @ (X - a * Y)
        new = grad(X)
        Y, G = C @ Y + new - G, new
    return X


def ab(grad: Gradient, pair: tuple[Rows, Rows], a: float, X: Rows, steps: int) -> Rows:
    """X' = R X - a Y, Y' = C Y + grad(X') - grad(X)."""
    (R, C), G = pair, grad(X)
    Y = G
    for _ in range(steps):
        X = R @ X - a * Y
        new = grad(X)
        Y, G = C @ Y + new - G, new
    return X


def skipping(
    grad: Gradient, W: Rows, a: float, X: Rows, steps: int, coins: Sequence[bool], p: float
) -> Rows:
    """ProxSkip: Z = X - a grad(X) - Y; on heads X = (I + W) / 2 Z and Y grows by p (Z - X)."""
    Y = np.zeros_like(X)
    for heads in coins[:steps]:
        X = Z = X - a * grad(X) - Y
        if heads:
            X = (Z + W @ Z) / 2
            Y = Y + p * (Z - X)
    return X


def apart(
    recursion: Recursion,
    grad: Gradient,
    weights: Any,
    problem: Problem,
    solver: Solver,
    graph: Topology | Schedule,
    x0: ArrayLike | None = None,
    steps: int = STEPS,
) -> float:
    """Return how far a solver is from the equations after a few steps, relative to how far these
    have gone.
    """
    n, d = graph.n, problem.d
    start = np.broadcast_to(0.0 if x0 is None else np.asarray(x0, float), (n, d))
    expected = recursion(grad, weights, float(solver.step_size), start, steps)
    with alone(n) as net:
        X = solve(problem, solver, graph, steps=steps, x0=start, net=net, every=steps).X
    return float(np.abs(X - expected).max() / np.abs(expected - start).max())


def tracked(grad: Gradient, W: Rows, a: float, X: Rows, steps: int, local: int) -> Rows:
    """K-GT: local steps Y <- Y - a (grad(Y) + C), then X' = W Y, C' = C - (I - W) (X - Y) / (K a);
    with the average of all agents SCAFFOLD.
    """
    C = np.zeros_like(X)
    for _ in range(steps // local):
        Y = X
        for _ in range(local):
            Y = Y - a * (grad(Y) + C)
        D = (X - Y) / (local * a)
        X, C = W @ Y, C - D + W @ D
    return X


def local_dgd(grad: Gradient, W: Rows, a: float, X: Rows, steps: int, local: int) -> Rows:
    """X' = W Y, after local steps Y <- Y - a grad(Y) from X on."""
    for _ in range(steps // local):
        for _ in range(local):
            X = X - a * grad(X)
        X = W @ X
    return X


def against_dense(what: str, found: Iterable[Arrays]) -> Line:
    """Return the line for the largest distance `apart` of several cells."""
    worst = max((float(one["apart"]) for one in found if "apart" in one), default=np.nan)
    what = f"{what}: difference from the equations with dense matrices, first steps, worst"
    return holds(what, worst <= 1e-9, worst, "at most 1e-9", by=CLOSED)
