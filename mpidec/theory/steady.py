"""Rate, bias and steady state of a solver on a problem and a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import integer, number
from ..comm.mixing import Mixer, Network
from ..comm.runtime import ALONE
from ..driver.internals import TopologyLike, as_oracle, as_solver, as_topology
from ..problems import Oracle, OracleLike, Problem
from ..problems.internals import moves
from ..solvers import Solver
from ..solvers.internals import Asynchronous, PairwiseSolver, name_of, step_size_of, with_step_size
from ..topology import Schedule, Topology
from . import filters
from .linear import Array, LinearSteps
from .links import LinkedSteps
from .moments import course, deviations
from .noise import Noise, covariance
from .pairwise import PairwiseMoments
from .quadratic import Quadratic
from .walk import WalkingSteps


@dataclasses.dataclass(frozen=True)
class SteadyState:
    r"""Stationary state of a solver with a constant step size, under noisy gradients and links.

    Attributes
    ----------
    msd : array (n,)
        Mean-square deviation of each agent, :math:`\mathbb{E} \|x_i - x^\star\|^2`, from the
        minimizer, or from its target, in the mean over a cycle: the sum of the other two.
    bias : array (n,)
        The part of the mean, :math:`\|\mathbb{E} x_i - x^\star\|^2`.
    noise : array (n,)
        The part of the noise of gradients, links and a minimizer that walks.
    draws : int
        Draws of each agent's gradient from which the noise is estimated; 0 if it was given.

    All are infinite where the solver diverges, and where it integrates the noise of its links, as
    exact methods do: the mean-square deviation then grows with each step.
    """

    msd: NDArray[np.float64]
    bias: NDArray[np.float64]
    noise: NDArray[np.float64]
    draws: int = 0

    @property
    def msd_db(self) -> float:
        """The mean over the agents in decibel, :math:`10 \\log_{10} \\mathrm{msd}`."""
        with np.errstate(divide="ignore"):
            return float(10 * np.log10(self.msd.mean()))


def steady_state(
    problem: Problem | OracleLike | Quadratic,
    solver: Solver,
    topology: TopologyLike,
    *,
    noise: ArrayLike | None = None,
    link_noise: float = 0.0,
    walk: ArrayLike | None = None,
    x0: ArrayLike | None = None,
    target: ArrayLike | None = None,
) -> SteadyState:
    r"""Return the steady state of a solver: mean-square deviation, bias and noise of each agent.

    On quadratic costs, a step is an affine map of the state, and noise of the gradients enters
    linearly.  With the map M of a step, the matrix E of the noise, its covariance
    :math:`\Sigma` and the matrix C that takes x out of the state z,

    .. math::
        z = M z + b, \qquad V = M V M^* + E \Sigma E^*, \qquad
        \mathrm{msd}_i = \|C_i z - x^\star\|^2 + \mathrm{tr}\, C_i V C_i^*

    M and E are found by probing `step`, so that any solver will do whose step is linear.  Noise of
    links enters in the same way, by a matrix of its own.  Where an eigenvalue of modulus 1 of M is
    excited by it, and seen in x, V has no limit.

    Solvers of samples, diffusion RLS on a `Stream` and Kalman filters on a `StateSpace`, have the
    gains of their own steady state: RLS to first order in :math:`1 - \lambda`, Kalman filters
    those of the Riccati equation.

    Parameters
    ----------
    problem : Problem, Oracle or Quadratic
        All agents, in this process; costs that are not quadratic are linearized at the minimizer.
    solver : Solver
        With a number as step size; also a pairwise method, `PairwiseGossip` or `A2CiD2`, with
        gradients and averagings at random times, of which a step is one unit of time.
    topology : Topology or Schedule
        Of the n agents.  Schedules are taken by their period; those that never repeat by an
        average over many steps.
    noise : float, array (n,), (n, d) or (n, d, d), optional
        Standard deviation of the noise of each agent's gradients, in each coordinate (for complex
        rows, of its modulus), or its covariance; independent between agents and steps.  By default
        that of the oracle, from draws, and with it what the noise gains with the distance from the
        minimizer; none for a problem.
    link_noise : float
        Standard deviation of independent noise that the links add to each number that arrives in
        each step, as `W.noisy` does.
    walk : float or array (d, d), optional
        For a minimizer that moves, :math:`x^{\star, k+1} = x^{\star, k} + q^k`, that of all agents
        by the same: the standard deviation of each coordinate of :math:`q^k`, or its covariance.
        Deviations are then from the minimizer that the gradients of the next step see, and `noise`
        has the part of the walk, too.
    x0 : array (d,) or (n, d), optional
        The initial point, zero by default, on which no limit should depend.

    target : array (n, d), optional
        From which the deviation of each agent is measured, such as its own parameters in a network
        with several tasks; by default the targets of a `Stream`, or else the minimizer of the
        average.

    Returns
    -------
    SteadyState

    Raises
    ------
    ValueError

    Notes
    -----
    No communication: each caller computes all.  The noise of a random oracle is known from draws,
    `SteadyState.draws` of each agent, at least 20,000 in all: for Gaussian samples, msd has a
    relative standard error of some :math:`2 / \sqrt{n \cdot \mathrm{draws}}`, 0.06 dB.  The
    curvatures of a `Stream` are those of its held-out samples, with relative errors of some
    :math:`1 / \sqrt{n \cdot \mathrm{held\_out}}`, and so are its agents' gradients at the
    minimizer, which adds some percent of bias on graphs that mix slowly:
    ``Stream(..., held_out=10_000)`` takes more.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.zeros((4, 1)))
    >>> ring = mpidec.topology.ring(4)
    >>> s = steady_state(problem, mpidec.solvers.Diffusion(0.1), ring, noise=1.0)
    >>> s.msd.round(6), float(s.bias.max())
    (array([0.014074, 0.014074, 0.014074, 0.014074]), 0.0)

    References
    ----------
    A. H. Sayed, *Adaptation, Learning, and Optimization over Networks*, Foundations and Trends in
    Machine Learning 7 (2014), chapter 11.
    """
    method = as_solver(solver)
    if method.needs.data:
        oracle = None if isinstance(problem, Quadratic) else as_oracle(problem)
        with np.errstate(over="ignore", invalid="ignore"):
            found = filters.msd(oracle, method, topology)
        return SteadyState(found, np.zeros(len(found)), found)
    bias, spread, draws = np.zeros(()), np.zeros(()), 0
    for block in _blocks(
        problem, solver, topology, noise, link_noise, walk=walk, x0=x0, target=target
    ):
        sums = block.limit()
        bias, spread = bias + sums[0], spread + sums[1]
        draws = block.noise.draws if block.noise is not None else 0
    return SteadyState(bias + spread, bias, spread, draws)


@dataclasses.dataclass(frozen=True)
class Transient:
    r"""Expected course of a solver from its initial point, under noisy gradients and links.

    Attributes
    ----------
    msd : array (steps + 1, n)
        Mean-square deviation of each agent, :math:`\mathbb{E} \|x_i^k - x^\star\|^2`: the sum of
        the other two.
    bias : array (steps + 1, n)
        The part of the mean, :math:`\|\mathbb{E} x_i^k - x^\star\|^2`.
    noise : array (steps + 1, n)
        The part of the noise of gradients, links and a minimizer that walks.
    """

    msd: NDArray[np.float64]
    bias: NDArray[np.float64]
    noise: NDArray[np.float64]

    @property
    def msd_db(self) -> NDArray[np.float64]:
        """The means over the agents in decibel, (steps + 1,)."""
        with np.errstate(divide="ignore"):
            return np.asarray(10 * np.log10(self.msd.mean(axis=1)))


def transient(
    problem: Problem | OracleLike | Quadratic,
    solver: Solver,
    topology: TopologyLike,
    *,
    steps: int,
    noise: ArrayLike | None = None,
    link_noise: float = 0.0,
    walk: ArrayLike | None = None,
    x0: ArrayLike | None = None,
    target: ArrayLike | None = None,
) -> Transient:
    r"""Return the learning curve of a solver: mean and mean square of the deviations, step by step.

    Mean z and covariance V of the state follow from the maps of `steady_state`,

    .. math:: z^{k+1} = M_k z^k + b, \qquad V^{k+1} = M_k V^k M_k^* + E_k \Sigma^k E_k^*

    from the state of the initial point, which has no noise.  Near the end of the transient they
    reach those of the steady state, where there is one.

    Parameters
    ----------
    problem, solver, topology, noise, link_noise, walk, target : see `steady_state`
    steps : int
    x0 : array (d,) or (n, d), optional
        The initial point, zero by default.

    Returns
    -------
    Transient
        Entry k is that after k steps.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((4, 1, 1)), np.ones((4, 1)))
    >>> ring = mpidec.topology.ring(4)
    >>> t = transient(problem, mpidec.solvers.Diffusion(0.1), ring, steps=60, noise=1.0)
    >>> t.msd[[0, 1, 60], 0].round(4), t.bias[[0, 1, 60], 0].round(4)
    (array([1.    , 0.8133, 0.0141]), array([1.  , 0.81, 0.  ]))
    """
    integer(steps, "theory: steps", least=0)
    curves = sum(
        block.course(steps)
        for block in _blocks(
            problem, solver, topology, noise, link_noise, walk=walk, x0=x0, target=target
        )
    )
    bias, spread = np.moveaxis(np.asarray(curves), 1, 0)
    return Transient(bias + spread, bias, spread)


class _Block(NamedTuple):
    """Coordinates that depend on each other, and a synchronous method."""

    steps: LinearSteps
    part: Quadratic
    X: Array
    noise: Noise

    def limit(self) -> Array:
        return deviations(*self)

    def course(self, count: int) -> Array:
        return course(*self, count)


def _blocks(
    problem: Problem | OracleLike | Quadratic,
    solver: Solver,
    topology: TopologyLike,
    noise: ArrayLike | None,
    link_noise: float,
    walk: ArrayLike | None,
    x0: ArrayLike | None,
    target: ArrayLike | None,
) -> Iterator[_Block | PairwiseMoments]:
    """The blocks of coordinates; the arguments are those of `steady_state`."""
    sigma = number(link_noise, "theory: link_noise", least=0)
    model, oracle, solver, topology = modelled(
        problem, solver, topology, walk is not None, averages=sigma > 0, pairwise=True
    )
    model = model if target is None else model.about(target)
    n, d = model.g.shape
    if walk is not None and model.x_star.ndim == 2:
        raise ValueError(
            "theory: the agents have targets of their own, and walk moves a common minimizer, "
            "expected one or the other"
        )
    if noise is None and oracle is not None:
        v = Noise.of(oracle, model)
    else:
        v = Noise.given(0.0 if noise is None else noise, n, d)
    start = np.broadcast_to(0.0 if x0 is None else x0, (n, d))
    parts = model.parts() if v.change is None else [(np.eye(d), model)]
    if isinstance(solver, PairwiseSolver):
        _check_pairwise(solver, model, sigma, walk)
        for Q, part in parts:
            yield PairwiseMoments(solver, topology.at(0), part, v.within(Q), start @ Q.conj())
        return
    with mixer(topology) as W:
        for Q, part in parts:
            steps = LinkedSteps(solver, W, part.H, sigma)
            if walk is not None:
                steps = WalkingSteps(solver, W, part.H, Q.conj().T @ _walk(walk, d) @ Q, sigma)
            yield _Block(steps, part, start @ Q.conj(), v.within(Q))


def _check_pairwise(
    solver: PairwiseSolver, model: Quadratic, sigma: float, walk: ArrayLike | None
) -> None:
    """Refuse what the moments of pairwise methods do not have."""
    if sigma or walk is not None or model.x_star.ndim == 2:
        raise ValueError(
            f"theory: {name_of(solver)} averages in pairs, expected no link_noise, no walk and one "
            "minimizer of all agents"
        )


def _walk(walk: ArrayLike, d: int) -> Array:
    """Return the covariance of the steps of a minimizer."""
    q = np.asarray(walk)
    if q.shape not in ((), (d, d)):
        raise ValueError(
            f"theory: walk has the shape {q.shape}, expected a number or ({d}, {d}): the standard "
            "deviation of the minimizer's steps, or their covariance"
        )
    return covariance(np.abs(q) ** 2 * np.eye(d) if q.ndim == 0 else q, "walk")


def rate(
    problem: Problem | OracleLike | Quadratic | None, solver: Solver, topology: TopologyLike
) -> float:
    """Return the factor per step by which the error of a solver falls in the end: that of the
    slowest mode that runs excite and iterates show.

    The error of an exact solver is that from the minimizer, of a biased one that from its own
    limit, and of a solver that only averages the disagreement.  Of pairwise methods it is the root
    mean square, and a step one unit of time.

    Parameters
    ----------
    problem, solver, topology : see `steady_state`
        The schedule must repeat.  Without a problem, pairwise methods average, on a `Topology`.

    Returns
    -------
    float
        Over 1 if the solver diverges; 1, up to rounding, if nothing falls, as the disagreement
        between the parts of a graph that is not connected.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> problem = mpidec.problems.LeastSquares(np.ones((2, 1, 1)), [[1.0], [3.0]])
    >>> round(rate(problem, mpidec.solvers.Diffusion(0.4), mpidec.topology.ring(2)), 9)
    0.6
    """
    if problem is None and isinstance(solver, PairwiseSolver) and isinstance(topology, Topology):
        solver.check(topology)
        n = topology.n
        nothing = Quadratic(np.zeros(1), np.zeros((n, 1, 1)), np.zeros((n, 1)))
        return PairwiseMoments(solver, topology, nothing).rate()
    model, _, solver, topology = modelled(problem, solver, topology, averages=True, pairwise=True)
    if isinstance(solver, PairwiseSolver):
        graph = topology.at(0)
        exact = [(part, Noise.given(0.0, *part.g.shape)) for _, part in model.parts()]
        return max(PairwiseMoments(solver, graph, part, v).rate() for part, v in exact)
    with mixer(topology) as W:
        return factor(solver, W, model)


def against_step(
    model: Quadratic,
    solver: Solver,
    topology: Topology | Schedule,
    sizes: ArrayLike,
    noise: ArrayLike,
    link_noise: float = 0.0,
) -> Array:
    """Mean-square deviation and bias, in the mean over the agents, and rate with each step size,
    (S, 3).

    Parameters
    ----------
    model, solver, topology, noise, link_noise : see `steady_state`
        The rates of schedules that never repeat are not numbers.
    sizes : array (S,)

    Examples
    --------
    >>> import mpidec
    >>> model = Quadratic(np.zeros(1), np.ones((4, 1, 1)), np.zeros((4, 1)))
    >>> against_step(
    ...     model, mpidec.solvers.Diffusion(), mpidec.topology.ring(4), [0.1, 3.0], 1.0
    ... ).round(4)
    array([[0.0141, 0.    , 0.9   ],
           [   inf,    inf, 2.    ]])
    """
    steps_tried = np.asarray(sizes, float)
    found = np.zeros((len(steps_tried), 3))
    noises = Noise.given(noise, *model.g.shape)
    with mixer(topology) as W:
        for row, size in zip(found, steps_tried):
            for Q, part in model.parts():
                steps = LinkedSteps(with_step_size(solver, size), W, part.H, link_noise)
                X = 0 * part.g
                bias, spread = deviations(steps, part, X, noises.within(Q))
                row[:2] += (bias + spread).mean(), bias.mean()
                row[2] = max(row[2], steps.radius() if steps.periodic else np.nan)
    return found


def _check_linear(solver: Solver, averages: bool, pairwise: bool) -> None:
    """Raise unless the steps of a solver are linear in gradients and state."""
    if isinstance(solver, Asynchronous) and not (pairwise and isinstance(solver, PairwiseSolver)):
        raise ValueError(
            f"theory: {name_of(solver)} is asynchronous, expected a synchronous solver"
        )
    if not (averages or solver.needs.problem):
        raise ValueError(
            f"theory: {name_of(solver)} minimizes nothing, expected a solver that does, or a rate"
        )
    if solver.needs.data:
        raise ValueError(
            f"theory: {name_of(solver)} takes samples, expected a solver that takes gradients: only "
            "theory.steady_state has filters"
        )
    if solver.adaptive:
        raise ValueError(
            f"theory: {name_of(solver)} adapts its steps to the gradients, expected a solver whose "
            "step is linear in gradients and state"
        )
    step = step_size_of(solver)
    if not isinstance(step, (int, float, type(None))):
        raise ValueError(
            f"theory: {name_of(solver)} has the step size {step!r}, expected a number: choose one "
            "with mpidec.tune(problem, solver, topology)"
        )


def modelled(
    problem: Problem | OracleLike | Quadratic | None,
    solver: Solver,
    topology: TopologyLike,
    walking: bool = False,
    averages: bool = False,
    pairwise: bool = False,
) -> tuple[Quadratic, Oracle | None, Solver, Topology | Schedule]:
    """Return the quadratic model, the oracle, the solver and the graph, after checking that the
    theory applies; moving minimizers, averaging and pairwise solvers are accepted if requested.
    """
    oracle = None if isinstance(problem, Quadratic) else as_oracle(problem)
    if isinstance(problem, Quadratic):
        model, n = problem, len(problem.g)
    elif oracle is None:
        raise TypeError("theory: problem is None, expected a problem")
    else:
        n = oracle.problem.m
    solver = as_solver(solver)
    _check_linear(solver, averages, pairwise)
    try:
        graph = as_topology(topology, n)
    except ValueError as error:
        name = name_of(problem if oracle is None else oracle.problem)
        raise ValueError(
            f"theory: {name} has {n} agents, expected all of them in each process, and a graph for "
            f"them: {error}"
        ) from None
    solver.check(graph)
    if oracle is None:
        return model, oracle, solver, graph
    if moves(oracle.problem) and not walking:
        raise ValueError(
            f"theory: the minimizer of {name_of(oracle.problem)} moves, expected a constant one, "
            "or walk=, the standard deviation of its steps"
        )
    return Quadratic.of(oracle.problem), oracle, solver, graph


@contextmanager
def mixer(topology: Topology | Schedule) -> Iterator[Mixer]:
    """Return a mixer of all agents in this process."""
    with Network(topology.n, comm=ALONE) as net:
        yield net.mixer(topology)


def factor(solver: Solver, W: Mixer, model: Quadratic, own_limit: bool = False) -> float:
    """Return the rate of a solver on a model; `own_limit`: towards the limit of an exact solver
    itself.

    Raises
    ------
    ValueError
        If the schedule does not repeat.
    """
    rates = []
    for H in {part.H.tobytes(): part.H for _, part in model.parts()}.values():
        steps = LinearSteps(solver, W, H)
        if not steps.periodic:
            raise ValueError(
                f"theory: the {W.topology.name} schedule does not repeat within 64 steps, expected "
                "one with a period for the rate of a solver; steady_state averages over it"
            )
        rates.append(steps.radius(own_limit))
    return max(rates)
