"""The first steps of trainings by the equations of the algorithms, with dense matrices: judges that
share data, batches and start with `mpidec.train`, but neither optimizer nor weights nor mixing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import images
from ..topology import Schedule, Striped, Topology
from ..train import Settings
from ..train.internals import Training, graph as graph_of
from .dense import Rows, metropolis, shares
from .experiment import alone

if TYPE_CHECKING:
    import torch

# Yields the points of the gradients, and is sent the updates of the optimizer there.
Steps = Generator[Rows, Rows, None]
Matrices = Callable[[int], Rows]  # W of step k
MOMENTUM = 0.9  # of methods with their own


def matrices(graph: Topology | Schedule) -> Matrices:
    """Return the weights of a graph by its links: those of EquiTopo's graphs, of Metropolis, or
    equal ones on directed graphs.
    """

    def at(k: int) -> Rows:
        links, n = graph.at(k).W.toarray() != 0, graph.n
        if graph.name.startswith("equitopo"):
            W = (n - 1) / (2 * n) * (links & ~np.eye(n, dtype=bool))
            return np.asarray(W + np.diag(1 - W.sum(axis=1)))
        return metropolis(graph.at(k)) if (links == links.T).all() else shares(links * 1.0, 1)

    return at


def combining(X: Rows, W: Matrices) -> Steps:
    """X <- W (X + u)."""
    for k in count():
        X = W(k) @ (X + (yield X))


def d2(X: Rows, W: Matrices) -> Steps:
    """X'' = W (2 X' - X + u' - u), from X' = W (X + u) on."""
    u = yield X
    before, X = X, W(0) @ (X + u)
    for k in count(1):
        last, u = u, (yield X)
        before, X = X, W(k) @ (2 * X - before + u - last)


def push_sum(X: Rows, W: Matrices) -> Steps:
    """U <- W (U + u), w <- W w, X = U / w."""
    U, w = X, np.ones((len(X), 1))
    for k in count():
        U, w = W(k) @ (U + (yield U / w)), W(k) @ w


def quasi_global(X: Rows, W: Matrices, rate: float) -> Steps:
    """X' = W (X - a (G + b (b M + G))), M' = b M + (1 - b) (X - X') / a."""
    M = np.zeros_like(X)
    for k in count():
        G = -(yield X) / rate
        before, X = X, W(k) @ (X - rate * (G + MOMENTUM * (MOMENTUM * M + G)))
        M = MOMENTUM * M + (1 - MOMENTUM) * (before - X) / rate


def mixed_momentum(X: Rows, W: Matrices, rate: float) -> Steps:
    """M <- b M + G, X <- W (X - a M), M <- W M."""
    M = np.zeros_like(X)
    for k in count():
        M = MOMENTUM * M - (yield X) / rate
        X, M = W(k) @ (X - rate * M), W(k) @ M


def relay(X: Rows, tree: Topology, relay: str = "model", missing: str = "initial") -> Steps:
    """X_i <- the mean of the V_j = X_j + u_j (or X_i and that of the V_j = u_j, "gradient") of one
    step less ago than there are hops from j to i; missing ones are X^0, 0, or X_i ("current").
    """
    n, start, past = tree.n, X, list[Rows]()
    hops, reached = np.full((n, n), -1), np.eye(n, dtype=int)
    for distance in range(n):
        hops[(reached > 0) & (hops < 0)] = distance
        reached = (tree.W.toarray() != 0).astype(int) @ reached
    late = np.maximum(hops - 1, 0)
    for k in count():
        u = yield X
        past.append(u if relay == "gradient" else X + u)
        instead = {"current": X, "initial": start}[missing] * (relay != "gradient")
        total = np.zeros_like(X)
        for ago in range(int(late.max()) + 1):
            now = late == ago
            here = past[k - ago] if ago <= k else None
            total += now.sum(axis=1)[:, None] * instead if here is None else now @ here
        X = total / n + (X if relay == "gradient" else 0)


def ceca(X: Rows) -> Steps:
    """X and Y are averages of n_r + 1 and of n_r agents, and n_(r+1) = 2 n_r + a digit of n - 1."""
    n, Y = len(X), X
    digits = [int(digit) for digit in f"{n - 1:b}"]
    m = 0
    for k in count():
        digit = digits[k % len(digits)]
        m = 0 if k % len(digits) == 0 else m
        u = yield X if digit else Y
        sender = (np.arange(n) - m - digit) % n
        X, Y = X + u, Y + u
        if digit:
            X, Y = (X + X[sender]) / 2, ((m + 1) * X[sender] + m * Y) / (2 * m + 1)
        else:
            X, Y = ((m + 1) * X + m * Y[sender]) / (2 * m + 1), (Y + Y[sender]) / 2
        m = 2 * m + digit


def steps_of(settings: Settings, graph: Topology | Schedule | None, X: Rows) -> Steps:
    """Return the equations of an algorithm over a graph."""
    if graph is None:
        return combining(X, lambda k: np.full((len(X), len(X)), 1 / len(X)))
    if settings.algorithm == "relay":
        return relay(X, graph.at(0), **settings.algorithm_options)
    if settings.algorithm == "ceca":
        return ceca(X)
    W = matrices(graph)
    if settings.algorithm in ("qg", "mixed_momentum"):
        own = {"qg": quasi_global, "mixed_momentum": mixed_momentum}[settings.algorithm]
        return own(X, W, float(settings.lr or 0))
    return {"atc": combining, "d2": d2, "push_sum": push_sum}[settings.algorithm](X, W)


def gradients(
    settings: Settings, model: torch.nn.Module
) -> Callable[[Rows, NDArray[np.intp]], Rows]:
    """Return the function of rows, and of a batch of samples for each, that gives the gradients of
    a model in double precision.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    data, model = images(settings.data, settings.path, settings.seed), model.double()
    x, y = torch.from_numpy(data.train_x).double(), torch.from_numpy(data.train_y)

    def of(X: Rows, samples: NDArray[np.intp]) -> Rows:
        rows = []
        for row, batch in zip(X, samples):
            vector_to_parameters(torch.from_numpy(row), model.parameters())
            model.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            parts = [p.grad for p in model.parameters() if p.grad is not None]
            rows.append(parameters_to_vector(parts).numpy())
        return np.array(rows)

    return of


def divided(model: torch.nn.Module, K: int) -> list[NDArray[np.intp]]:
    """Return the columns of each of K graphs: equal parts of a row that holds the last parameter
    first, each from a multiple of 16 numbers on.
    """
    ends = np.cumsum([0, *(p.numel() for p in model.parameters())])
    places, begin = np.empty(ends[-1], int), 0
    for low, high in reversed(list(pairwise(ends.tolist()))):
        places[low:high] = begin + np.arange(high - low)
        begin += -(-(high - low) // 16) * 16
    part = np.searchsorted([begin * j // K for j in range(1, K)], places, side="right")
    return [np.flatnonzero(part == j) for j in range(K)]


def difference(workers: int, changes: Mapping[str, Any]) -> float:
    """Return how far a training of one epoch with a constant rate is from the equations, relative
    to how far these have gone.
    """
    with (
        alone(workers) as net,
        Training(Settings(**{**changes, "epochs": 1}), net) as training,
    ):
        made, settings = training.workers, training.settings
        model, start = made.model.worker(0), made.rows().astype(float)
        begun = made.batches.state()
        batches = [made.batches.draw() for _ in range(made.batches.per_epoch)]
        made.batches.load(begun)
        training.run()
        found = made.rows()
    graph, X, B = graph_of(settings, workers), np.empty_like(start), np.zeros_like(start)
    graphs = list(graph) if isinstance(graph, (Striped, list)) else [graph]
    columns = divided(model, len(graphs))
    runs = [steps_of(settings, each, start[:, of]) for each, of in zip(graphs, columns)]
    for run, of in zip(runs, columns):
        X[:, of] = next(run)
    grad, b = gradients(settings, model), settings.momentum or 0.0
    for batch in batches:
        G = grad(X, batch) + settings.weight_decay * X
        B = b * B + G
        u = -(settings.lr or 0.0) * (G + b * B if settings.nesterov else B)
        for run, of in zip(runs, columns):
            X[:, of] = run.send(u[:, of])
    return float(np.abs(found - X).max() / np.abs(X - start).max())
