"""What a step sends, and how many steps an accuracy takes, from runs in one process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, log
from typing import cast

import numpy as np

from ..comm.mixing import Network
from ..comm.runtime import ALONE
from ..driver.internals import Result, iterate, requested_rule, solve, tune
from ..exceptions import InputError
from ..experiment import Experiment, build
from ..plugins import is_plugin
from ..problems import LeastSquares
from ..problems.internals import adapted
from ..registry import SOLVERS
from ..solvers.internals import is_asynchronous, with_step_size
from ..theory import Quadratic, rate
from ..topology import Schedule, Topology, from_weights
from .counting import MOST_EDGES

AGENTS = 16  # of the runs in which a step is counted
COUNTED = 12  # their steps
TIMED = 3  # their number: the first one sets up, and other processes disturb some
SEARCHED = 16  # agents up to which "auto" is searched for; beyond, the safe step size is taken
UNKNOWNS, SAMPLES = 10, 12  # of the synthetic problem of a simulation
NUMBERS = 4_000_000  # data of the synthetic problem in which a step is counted, at most
MOST_STEPS = 100_000


@dataclass(frozen=True)
class Demand:
    """What a step needs: mixings, bytes of a row in each, gradients of an agent, and on this machine
    seconds of an agent's gradients and updates, and of what a rank has to do with any agents.
    """

    mixings: float
    size: float
    gradients: float
    compute: float
    overhead: float = 0.0


@dataclass(frozen=True)
class Course:
    """Steps to an accuracy; infinite if it is never reached, and None if that is not known.

    Attributes
    ----------
    steps : float or None
    how : str
        "" of a simulation, or "~" with the rate of theory.
    simulated : int
        Steps that were simulated.
    """

    steps: float | None
    how: str = ""
    simulated: int = 0


class Simulator:
    """Runs of an experiment in this process.

    Parameters
    ----------
    experiment : Experiment
    dimension : int, optional
        Numbers in a row, in place of those of the experiment's data.
    agents : int, optional
        The only number of agents that the experiment can have, such as that of the user's graph.

    Attributes
    ----------
    d : int

    Raises
    ------
    InputError
        The solver is asynchronous.
    """

    def __init__(self, experiment: Experiment, dimension: int | None, agents: int | None = None):
        if is_asynchronous(SOLVERS[experiment.solver.name]):
            raise InputError(
                f"{experiment.solver.name} is asynchronous: predict tells the time of steps that "
                "all agents take together"
            )
        self.experiment, self.own = experiment, dimension is None
        if agents is None and not is_plugin(experiment.topology.name):
            self._small = self._build(self._of(2))
        else:  # the graph may have no other number of agents
            pair = replace(experiment.topology, name="complete", options={})
            try:
                self._small = self._build(replace(self._of(2), topology=pair))
            except InputError:  # of the solver
                self._small = self._build(self._of(agents or 2))
        self.d = dimension or self._small.d
        self._built: dict[tuple[int, int], build.Job] = {}

    def graph(self, n: int) -> Topology | Schedule:
        """Return the graph of n agents."""
        return build.topology_of(self._of(n))

    def _of(self, n: int) -> Experiment:
        return replace(self.experiment, run=replace(self.experiment.run, agents=n))

    def _build(self, experiment: Experiment) -> build.Job:
        with Network(experiment.run.agents, comm=ALONE) as net:
            return build.build(experiment, net)

    def synthetic(self, n: int) -> bool:
        """Return whether n agents have a synthetic problem: data of other rows, or too few."""
        return not self.own or n > self._small.samples

    def _job(self, topology: Topology | Schedule, unknowns: int) -> build.Job:
        n = topology.n
        key = (n, unknowns if self.synthetic(n) else 0)
        if key not in self._built:
            self._built.clear()
            if self.synthetic(n):
                problem = synthetic(n, unknowns)
                oracle, x_star = adapted(problem), problem.x_star
                self._built[key] = replace(self._small, oracle=oracle, x0=None, x_star=x_star)
            else:
                self._built[key] = self._build(self._of(n))
        # Whether a codec has error feedback depends on the graph.
        experiment = replace(self._built[key].experiment, mixing=self.experiment.mixing)
        return replace(self._built[key], topology=topology, experiment=experiment)

    def demand(self, topology: Topology | Schedule) -> Demand:
        """Return what a step needs."""
        job = self._job(topology, self.d)
        counted, seconds = _counted(job)
        compute, overhead = seconds / topology.n, 0.0
        few, n = self._small, self._small.topology.n
        if n < topology.n:
            if self.synthetic(topology.n):
                few = replace(few, oracle=adapted(synthetic(n, self.d)), x0=None)
            less = min(_counted(few)[1], seconds)
            compute = (seconds - less) / (topology.n - n)
            overhead = max(less - n * compute, 0.0)
        sent = {name: float(counted[name][-1]) for name in ("rounds", "rows", "bytes")}
        return Demand(
            sent["rounds"] / COUNTED,
            sent["bytes"] / max(sent["rows"], 1),
            float(counted["gradients"][-1]) / COUNTED,
            compute,
            overhead,
        )

    def course(self, topology: Topology | Schedule, accuracy: float, seconds: float) -> Course:
        """Return the steps until the relative error of the average of the agents, at which runs
        stop, is `accuracy`, in a simulation of so many seconds, and from there on by the rate of
        theory.

        Raises
        ------
        Unstable
            No step size converges on the graph.
        """
        job = self._job(topology, min(self.d, UNKNOWNS))
        if job.x_star is None:
            return Course(None)
        if rule := requested_rule(job.solver):
            size = _searched(job) if rule == "auto" and topology.n <= SEARCHED else _safe(job)
            job = replace(job, solver=with_step_size(job.solver, size))
        steps, error = _simulated(job, accuracy, seconds)
        if error <= accuracy:
            return Course(steps, simulated=steps)
        if not job.solver.exact or not np.isfinite(error):
            return Course(inf, simulated=steps)
        factor = _rate(job)
        if factor is None:
            return Course(None, simulated=steps)
        further = log(error / accuracy) / -log(factor) if factor < 1 else inf
        return Course(steps + further, "~", steps)


def synthetic(n: int, d: int) -> LeastSquares:
    """Return least squares with equally distributed data, whose minimizer is known."""
    random = np.random.default_rng(0)
    samples = int(np.clip(NUMBERS / (n * d), 1, SAMPLES)) if d > UNKNOWNS else SAMPLES
    A = random.standard_normal((n, samples, d))
    b = A @ random.standard_normal(d) + 0.1 * random.standard_normal((n, samples))
    if d > UNKNOWNS:  # only counted
        return LeastSquares(A, b)
    H, g = np.einsum("nki,nkj->ij", A, A), np.einsum("nki,nk->i", A, b)
    return LeastSquares(A, b, x_star=np.linalg.solve(H, g))


def _counted(job: build.Job) -> tuple[Mapping[str, np.ndarray], float]:
    """Return the metrics of some steps, and the seconds of one."""
    # What is sent depends on no step size, and nothing diverges.
    if requested_rule(job.solver) is not None:
        job = replace(job, solver=with_step_size(job.solver, 1e-9))
    runs = [_solved(job, COUNTED).metrics for _ in range(TIMED)]
    return runs[-1], min(float(each["time"][-1]) for each in runs) / COUNTED


def _solved(job: build.Job, steps: int) -> Result:
    """Return the result of some steps in this process."""
    with Network(job.topology.n, comm=ALONE) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return solve(
            job.oracle,
            job.solver,
            job.topology,
            steps=steps,
            x0=job.x0,
            net=net,
            seed=job.experiment.run.seed,
            every=steps,
            mixing=job.mixing,
        )


def _searched(job: build.Job) -> float:
    """Return the step size that is found for a run of the experiment."""
    with Network(job.topology.n, comm=ALONE) as net, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return tune(
            job.oracle,
            job.solver,
            job.topology,
            steps=job.experiment.run.steps,
            x0=job.x0,
            net=net,
            seed=job.experiment.run.seed,
            mixing=job.mixing,
        ).step_size


def _safe(job: build.Job) -> float:
    """Return the safe step size."""
    return cast(
        "float", _solved(replace(job, solver=with_step_size(job.solver, "safe")), 1).step_size
    )


def _simulated(job: build.Job, accuracy: float, seconds: float) -> tuple[int, float]:
    """Return the steps, and the relative error of the average after them, when it is small enough
    or the time has come.
    """
    n, x_star = job.topology.n, np.asarray(job.x_star)
    X = np.zeros((n, len(x_star))) if job.x0 is None else job.x0
    steps, error, unit = 0, inf, float(np.linalg.norm(x_star)) or 1.0
    with Network(n, comm=ALONE) as net, np.errstate(over="ignore", invalid="ignore"):
        W = job.mixing(net.mixer(job.topology))
        seed, end = job.experiment.run.seed, time.perf_counter() + seconds
        for state in iterate(job.solver, job.oracle, W, X, steps=MOST_STEPS, seed=seed):
            steps += 1
            error = float(np.linalg.norm(state.X.mean(axis=0) - x_star)) / unit
            if error <= accuracy or not np.isfinite(error) or time.perf_counter() > end:
                break
    return steps, error


def _rate(job: build.Job) -> float | None:
    r"""Return the factor by which the error falls in a step in the end, where all agents have the
    mean curvature: that of two agents with :math:`\rho = \sigma_2(W)` of the graph.  None where
    theory does not apply, or the matrices of a period do not fit in memory.
    """
    graph, problem = job.topology, job.oracle.problem
    if (graph.period or 1) * graph.at(0).source.arcs > MOST_EDGES:
        return None
    rho = 1 - float(graph.spectral_gap())
    pair = from_weights(np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2)
    try:
        if isinstance(problem, LeastSquares):
            H = np.einsum("nki,nkj->ij", problem.A, problem.A) / job.topology.n
        else:
            H = Quadratic.of(problem).H.mean(axis=0)
        model = Quadratic(np.zeros(len(H)), np.stack([H, H]), np.zeros((2, len(H))))
        return rate(model, job.solver, pair)
    except (ValueError, TypeError):
        return None
