"""Methods by the equations of their papers, with dense matrices: judges of runs that share nothing
with the solvers, their gradients and their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag

from ..driver.internals import solve
from ..problems import LeastSquares, Problem
from ..solvers import Solver
from ..topology import Schedule, Topology
from .experiment import Arrays, Results, alone
from .verdict import CLOSED, Line, holds

Rows = np.ndarray
Gradient = Callable[[Rows], Rows]
Recursion = Callable[[Gradient, Any, float, Rows, int], Rows]  # weights, step size, rows, steps
C = TypeVar("C", bound=tuple[object, ...])
# Enough for each term of the equations; longer runs forget the beginning.
STEPS = 12


def metropolis(graph: Topology) -> Rows:
    """Return the Metropolis weights of the links of an undirected graph."""
    links = graph.W.toarray() != 0
    np.fill_diagonal(links, False)
    degrees = links.sum(axis=1)
    W = links / (1 + np.maximum(degrees[:, None], degrees))
    return np.asarray(W + np.diag(1 - W.sum(axis=1)))


def exponential(n: int) -> Rows:
    """Return equal weights of an agent and of those 1, 2, 4, ... agents before it."""
    links = np.eye(n)
    for k in range((n - 1).bit_length()):
        links[range(n), np.arange(n) - 2**k] = 1
    return shares(links, 1)


def one_peer_exponential(n: int) -> Sequence[Rows]:
    """Return weights of one half, in turn of the agents 1, 2, 4, ... before each."""
    E = np.eye(n)
    return [(E + np.roll(E, 2**k, axis=0)) / 2 for k in range((n - 1).bit_length() or 1)]


def lazy(W: Rows) -> Rows:
    """Return (I + W) / 2."""
    return np.asarray((np.eye(len(W)) + W) / 2)


def shares(links: Rows, axis: int) -> Rows:
    """Return links with equal weights that sum to 1 along an axis."""
    return np.asarray(links / links.sum(axis=axis, keepdims=True))


def quadratic(problem: LeastSquares) -> Gradient:
    """Return the gradients of least squares, from its data."""
    H = np.einsum("npd,npe->nde", problem.A, problem.A)
    c = np.einsum("npd,np->nd", problem.A, problem.b)
    return lambda X: np.asarray(np.einsum("nde,ne->nd", H, X) - c)


def cross_entropy(A: Rows, y: Rows, weight: Rows, classes: int) -> Gradient:
    """Return the gradients of softmax regression, with a weight of each sample."""
    labels = np.eye(classes)[y.astype(int)]

    def grad(X: Rows) -> Rows:
        scores = np.exp(A @ X.reshape(len(X), -1, classes))
        off = scores / scores.sum(axis=2, keepdims=True) - labels
        return np.asarray(np.einsum("npd,npc->ndc", A, weight[..., None] * off).reshape(X.shape))

    return grad


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


def changing(
    grad: Gradient,
    weights: Sequence[Rows],
    a: float | Callable[[int], float],
    X: Rows,
    steps: int,
    order: str = "atc",
) -> Rows:
    """X <- W_k (X - a_k grad(X)), or W_k X - a_k grad(X) ("awc"), with the weights in turn."""
    for k in range(steps):
        W, size = weights[k % len(weights)], a(k) if callable(a) else a
        X = W @ (X - size * grad(X)) if order == "atc" else W @ X - size * grad(X)
    return X


def d2(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X'' = W (2 X' - X - a (grad(X') - grad(X))), from X' = W (X - a grad(X)) on; with (I + W) / 2
    in place of W exact diffusion.
    """
    before, X = X, W @ (X - a * grad(X))
    for _ in range(steps - 1):
        before, X = X, W @ (2 * X - before - a * (grad(X) - grad(before)))
    return X


def extra(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X'' = (I + W) X' - (I + W) / 2 X - a (grad(X') - grad(X)), from X' = W X - a grad(X) on."""
    half, before, X = lazy(W), X, W @ X - a * grad(X)
    for _ in range(steps - 1):
        before, X = X, 2 * half @ X - half @ before - a * (grad(X) - grad(before))
    return X


def nids(grad: Gradient, W: Rows, a: float, X: Rows, steps: int) -> Rows:
    """X'' = (I + W) / 2 (2 X' - X - a (grad(X') - grad(X))), from X' = X - a grad(X) on."""
    half, before, X = lazy(W), X, X - a * grad(X)
    for _ in range(steps - 1):
        before, X = X, half @ (2 * X - before - a * (grad(X) - grad(before)))
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


def push_diging(grad: Gradient, weights: Sequence[Rows], a: float, X: Rows, steps: int) -> Rows:
    """U' = W_k (U - a Y), w' = W_k w, X' = U' / w', Y' = W_k Y + grad(X') - grad(X)."""
    U, w, G = X, np.ones((len(X), 1)), grad(X)
    Y = G
    for k in range(steps):
        W = weights[k % len(weights)]
        U, w = W @ (U - a * Y), W @ w
        X = U / w
        new = grad(X)
        Y, G = W @ Y + new - G, new
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
    codec: Mapping[str, Any] | None = None,
) -> float:
    """Return how far a solver is from the equations after a few steps, relative to how far these
    have gone.
    """
    n, d = graph.n, problem.d
    start = np.broadcast_to(0.0 if x0 is None else np.asarray(x0, float), (n, d))
    expected = recursion(grad, weights, float(solver.step_size), start, steps)
    with alone(n) as net:
        X = solve(
            problem,
            solver,
            graph,
            steps=steps,
            x0=start,
            net=net,
            mixing=(lambda W: W.compress(**codec)) if codec else None,
            every=steps,
        ).X
    return distance(X, expected, start)


def distance(X: Rows, expected: Rows, start: Rows) -> float:
    """Return how far rows are from the expected ones, relative to how far these have gone."""
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
    worst = float(np.max([one["apart"] for one in found if "apart" in one] or np.nan))
    what = f"{what}: difference from the equations with dense matrices, first steps, worst"
    return holds(what, worst <= 1e-9, worst, "at most 1e-9", by=CLOSED)


def gradient_push(grad: Gradient, C: Rows, a: float, X: Rows, steps: int) -> Rows:
    """U' = C (U - a grad(X)), w' = C w, X' = U' / w'."""
    U, w = X, np.ones((len(X), 1))
    for _ in range(steps):
        U, w = C @ (U - a * grad(U / w)), C @ w
    return U / w


def largest(X: Rows, keep: int) -> Rows:
    """Return rows of which the entries of largest magnitude are kept."""
    least = np.sort(np.abs(X), axis=1)[:, -keep, None]
    return np.where(np.abs(X) >= least, X, 0.0)


class ErrorFeedback:
    """H <- H + C(X - H), then X + gamma (W - I) H, where C keeps the largest entries.

    Parameters
    ----------
    W : array (n, n)
    gamma : float
    keep : int
        Entries of a row.
    """

    def __init__(self, W: Rows, gamma: float, keep: int):
        self.W, self.gamma, self.keep = W, gamma, keep
        self.H: Rows | None = None

    def __call__(self, X: Rows) -> Rows:
        H = np.zeros_like(X) if self.H is None else self.H
        self.H = H + largest(X - H, self.keep)
        return np.asarray(X + self.gamma * (self.W @ self.H - self.H))


def choco(grad: Gradient, W: Rows, a: float, X: Rows, steps: int, gamma: float, keep: int) -> Rows:
    """X <- X - a grad(X), mixed by a `Memory`."""
    mix = ErrorFeedback(W, gamma, keep)
    for _ in range(steps):
        X = mix(X - a * grad(X))
    return X


def lead(grad: Gradient, W: Rows, a: float, X: Rows, steps: int, gamma: float, keep: int) -> Rows:
    """Y = X - a grad(X) - D, with M = gamma (I - W) H / 2 of a `Memory` X' = Y - M, D' = D + M."""
    mix, D = ErrorFeedback(W, gamma, keep), np.zeros_like(X)
    for _ in range(steps):
        Y = X - a * grad(X) - D
        M = (Y - mix(Y)) / 2
        X, D = Y - M, D + M
    return X


def beer(grad: Gradient, W: Rows, a: float, X: Rows, steps: int, gamma: float, keep: int) -> Rows:
    """X' = X - a V, V' = V + grad(X') - grad(X), where X and V are mixed by a `Memory` each."""
    mix_x, mix_v = ErrorFeedback(W, gamma, keep), ErrorFeedback(W, gamma, keep)
    G = V = grad(X)
    for _ in range(steps):
        X = mix_x(X) - a * V
        new = grad(X)
        V, G = mix_v(V) + new - G, new
    return X


def expanded(W: Rows, d: int) -> Rows:
    """Return weights of agents as weights of their d coordinates."""
    return np.kron(W, np.eye(d))


def curvatures(problem: LeastSquares) -> Rows:
    """Return the curvatures of all agents on the diagonal, (n d, n d)."""
    blocks = np.einsum("npd,npe->nde", problem.A, problem.A)
    return np.asarray(block_diag(*blocks))


def slowest(J: Rows) -> float:
    """Return the modulus of the slowest mode of a step, other than the modes 1, which runs do not
    have.
    """
    values = np.linalg.eigvals(J)
    return float(np.abs(values[np.abs(values - 1) > 1e-7]).max())


def extra_rate(W: Rows, H: Rows, a: float) -> float:
    """Return the rate of `extra`."""
    eye = np.eye(len(H))
    lazy = (eye + W) / 2
    return slowest(np.block([[2 * lazy - a * H, a * H - lazy], [eye, 0 * eye]]))


def nids_rate(W: Rows, H: Rows, a: float) -> float:
    """Return the rate of `nids`."""
    eye = np.eye(len(H))
    lazy, forward = (eye + W) / 2, eye - a * H
    return slowest(np.block([[lazy @ (eye + forward), -lazy @ forward], [eye, 0 * eye]]))


def tracking_rate(R: Rows, C: Rows, H: Rows, a: float, atc: bool = True) -> float:
    """Return the rate of `push_pull`, or of `ab`; of `push_diging` with R = C, and H over w in the
    end.
    """
    eye = np.eye(len(H))
    P = R if atc else eye
    return slowest(np.block([[R, -a * P], [H @ (R - eye), C - a * H @ P]]))


def each_against_dense(results: Results[C], place: int = 0) -> Iterator[Line]:
    """Return a line for each method (or graph), which stands at a place of the cells' names."""
    found = {cell: one for cell, one in results.items() if "apart" in one}
    for name in dict.fromkeys(cell[place] for cell in found):
        yield against_dense(str(name), (found[c] for c in found if c[place] == name))
