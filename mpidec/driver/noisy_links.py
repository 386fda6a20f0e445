"""Solvers that integrate the noise of their links, found from their own steps."""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import ClassVar

import numpy as np

from ..comm.mixing import Network
from ..comm.mixing.internals import Channel, Fault, Operator, Round, StepOperator, Wrapped
from ..comm.runtime import ALONE
from ..solvers import Solver
from ..solvers.internals import iterate, name_of, step_size_of, with_step_size
from ..topology import Schedule, Topology, chain
from .stepsize.linear import GradientModel

# Steps with noise, and of a run; the step sizes tried, where curvatures are 1.
NOISY, STEPS, SIZES = 24, 360, (0.1, 0.01)
# Sizes of the noise in the columns of a run; the least part of its effect that stays, and its
# change over the second half of the run; departures from effects in proportion.
PARTS, STAYS, CHANGE, LINEAR = np.array([0.0, 1e-6, 2e-6]), 1e-3, 0.02, 0.02
# Agents of a chain, and at most of the run's own graph, where a solver refuses a chain.
AGENTS, LARGE = 5, 64


class Pulse(Fault):
    """Noise of these sizes in the columns, in the first steps, and none later."""

    call: ClassVar[str] = "noisy"

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def __str__(self) -> str:
        return ""

    def arrive(self, rows: np.ndarray, at: Round, call: int) -> np.ndarray:
        S = len(PARTS)
        width = rows.shape[1] // (2 * S) * 2  # of a problem; weights beside it have no noise
        if at.step < NOISY and width:
            noise = self._rng.standard_normal((len(rows), width, 1)) * PARTS
            rows[:, : width * S] += noise.reshape(len(rows), -1)
        return rows


def integrates(solver: Solver, graph: Topology | Schedule) -> bool:
    """Return whether noise of the links in some steps moves the average of the agents for ever, so
    that noise in every step moves it ever farther.

    It is seen where gradients are linear, from runs with and without noise.  False of steps that
    are not linear, and where nothing can be said.

    Examples
    --------
    >>> import mpidec
    >>> ring = mpidec.topology.ring(5)
    >>> [integrates(solver(0.1), ring) for solver in (mpidec.solvers.Diffusion, mpidec.solvers.EXTRA)]
    [False, True]
    """
    sized = solver.needs.problem and step_size_of(solver) is not None
    for size in SIZES if sized else SIZES[:1]:
        clean, one, two = _averages(with_step_size(solver, size) if sized else solver, graph)
        one, two = one - clean, two - clean
        moved = np.linalg.norm(one, axis=1)
        if not (np.isfinite(moved).all() and np.isfinite(two).all()):
            continue
        half, end, most = moved[STEPS // 2], moved[-1], moved.max()
        linear = np.linalg.norm(two[-1] - 2 * one[-1]) <= LINEAR * 2 * end
        return bool(linear and end > STAYS * most and abs(end - half) <= CHANGE * end)
    return False


def _averages(solver: Solver, graph: Topology | Schedule) -> np.ndarray:
    """Return the agents' average after each step, with each size of the noise, (S, STEPS, 2)."""
    n, S = graph.n, len(PARTS)
    g, X = (Z - Z.mean(axis=0) for Z in np.random.default_rng(0).standard_normal((2, n, 2)))
    model = GradientModel(
        np.tile(np.eye(2), (1, n, 1, 1)),
        g[None],
        X,
        mean=np.eye(2),
        size=1.0,
        curvature=1.0,
        distance=1.0,
    )
    averages = np.empty((STEPS, 2 * S))
    with Network(n, comm=ALONE) as net, closing(net.mixer(graph)) as base:
        W = Channel(base, [Pulse()])
        first = solver.init(np.repeat(X, S, axis=1), W.at(0))
        for k, s in enumerate(iterate(solver, model, W, first, steps=STEPS)):
            averages[k] = s.X.mean(axis=0)
    found: np.ndarray = averages.reshape(STEPS, 2, S).transpose(2, 0, 1)
    return found


def noise_of(mixer: Operator[StepOperator]) -> str:
    """Return the errors that a mixer's faults add to rows, in words, or ""; also where averages
    are no weighted sums, of which nothing is known.
    """
    faults: list[Fault] = []
    W = mixer
    while isinstance(W, Wrapped):
        faults += W.faults if isinstance(W, Channel) else []
        W = W.W
    if not all(fault.weighted for fault in faults):
        return ""
    return " and ".join(str(fault) for fault in faults if fault.additive)


def warning(solver: Solver, mixer: Operator[StepOperator]) -> str:
    """Return why the error of a solver grows without limit over the noisy links of a mixer, with a
    remedy, or "".
    """
    noise, graph = noise_of(mixer), mixer.topology
    if not noise or graph.n == 1 or solver.adaptive:
        return ""
    for tried in (chain(AGENTS), graph):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                solver.check(tried)
                found = tried.n <= LARGE and integrates(solver, tried)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
        return _message(solver, noise) if found else ""
    return ""


def _message(solver: Solver, noise: str) -> str:
    goal, remedy = "average", "end the run once the agents agree"
    if solver.needs.problem:
        goal, remedy = "minimizer", "use a method that does not, such as Diffusion"
    return (
        f"{name_of(solver)} integrates the noise of its links ({noise}): its distance from the "
        f"{goal} grows without bound, like the square root of the number of steps; {remedy}"
    )
