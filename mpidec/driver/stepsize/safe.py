"""Safe step size: a bound from the smoothness constant and the graph, found by the solver's own steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from .linear import LinearModel
from .race import Stack

SPARE = 0.5  # allows for agents of different curvatures
UNKNOWN = 0.25  # in units of 1 / L, where every step size is unstable
MANY = 10_000  # agents from which on fewer step sizes and steps are tried


def safe(solver: Any, W: Any, smoothness: float) -> float:
    """Half of the largest step size at which the solver is stable on quadratics of equal curvature.

    The agents' functions have one curvature h, for several h from L / 1000 to L; the step sizes tried are 2 / L, and smaller by
    factors of sqrt(2).  Agents could agree on it by themselves: it takes the largest L of all agents, and nothing else of their
    data.  If L is 0, the step size is 1.

    Parameters
    ----------
    solver : Solver
    W : mixer
        Of all agents, in one process.
    smoothness : float
        Largest smoothness constant L of any agent.
    """
    if not smoothness > 0:
        return 1.0
    few = W.n > MANY
    h = smoothness * np.geomspace(1e-3, 1, 2 if few else 6)
    sizes = 2 / smoothness * 0.5 ** (np.arange(6) if few else np.arange(0, 14, 0.5))
    r, steps = len(h), 64 if few else 512
    start = np.random.default_rng(1).standard_normal((W.n, r))
    H = np.broadcast_to(np.diag(h), (1, W.n, r, r))
    model = LinearModel(H, np.zeros((1, W.n, r)), start, np.diag(h), 1.0, smoothness, 1.0)
    stack = Stack(solver, lambda k: 1.0, W, model, sizes, start)
    norms = []
    for until in (0, steps // 2, steps):
        stack.run(until)
        norms.append(np.sqrt((stack.E**2).sum(axis=(0, 1))))
    good = (norms[2] <= 1.02 * norms[1]) | (norms[2] <= 1e-3 * norms[0])
    stable = np.flatnonzero([good[j:].all() for j in range(len(good))])
    return float(SPARE * sizes[stable[0]] if len(stable) else UNKNOWN / smoothness)
