"""Steps of solvers as one writes them by hand in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from ..comm.runtime.mpi import MPI
from .cells import aligned

Mixing = Callable[[np.ndarray], None]  # by hand: mixes rows that it knows into its argument
Bind = Callable[..., list[Mixing]]  # a mixing of the given rows for each phase


def dgd_allreduce(
    comm: MPI.Intracomm, X: np.ndarray, G: np.ndarray, a: float
) -> Iterator[np.ndarray]:
    """X+ = mean of X - a G over all agents, by hand."""
    T = aligned(X.shape)
    while True:
        np.multiply(G, a, out=T)
        np.subtract(X, T, out=T)
        comm.Allreduce(T, X)
        np.divide(X, comm.size, out=X)
        yield X


def dgd(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """X+ = W (X - a G), by hand."""
    T = aligned(X.shape)
    for W in cycle(bind(T)):
        np.multiply(G, a, out=T)
        np.subtract(X, T, out=T)
        W(X)
        yield X


def exact_diffusion(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """Psi+ = X - a G, X+ = (I + W) / 2 (Psi+ + X - Psi), by hand."""
    Psi, Phi = aligned(X.shape), aligned(X.shape)
    Psi[:] = X
    for lazy_W in cycle(bind(Phi, lazy=True)):
        np.subtract(X, Psi, out=Phi)
        np.multiply(G, a, out=Psi)
        np.subtract(X, Psi, out=Psi)
        np.add(Phi, Psi, out=Phi)
        lazy_W(X)
        yield X


def extra(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """X+ = W X - a G - D, D+ = D + (X - W X) / 2, by hand."""
    WX, D, T = aligned(X.shape), aligned(X.shape), aligned(X.shape)
    D[:] = 0
    for W in cycle(bind(X)):
        W(WX)
        np.subtract(X, WX, out=T)
        np.multiply(G, a, out=X)
        np.add(X, D, out=X)
        np.subtract(WX, X, out=X)
        np.multiply(T, 0.5, out=T)
        np.add(D, T, out=D)
        yield X


def gradient_tracking(bind: Bind, X: np.ndarray, G: np.ndarray, a: float) -> Iterator[np.ndarray]:
    """Y = W (Y + G - (G of the step before)), X+ = W (X - a Y), by hand; Y = G in the first step."""
    Y, T, before = aligned(X.shape), aligned(X.shape), G
    for k, W in enumerate(cycle(bind(T))):
        if k == 0:
            np.copyto(Y, G)
        else:
            np.add(Y, G, out=T)
            np.subtract(T, before, out=T)
            W(Y)
        np.multiply(Y, a, out=T)
        np.subtract(X, T, out=T)
        W(X)
        yield X
