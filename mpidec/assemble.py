"""From an experiment to what `solve` takes: rank 0 reads the data and every rank receives its own agents' rows."""
from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from . import catalogue, problems
from .config import Experiment, parameters
from .stepsize import safe

T = TypeVar("T")
EDGE_BY_EDGE = ("relaysgd", "dsgd_ceca")
REFUSALS = (ValueError, TypeError, OSError, MemoryError, ImportError, OverflowError)


class InputError(Exception):
    """What is wrong with the input: the same on every rank, to be said once; `status` is the exit status."""

    def __init__(self, message: str, status: int = 2):
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


def on_root(comm: Any, act: Callable[..., T], *args: Any) -> T:
    """What `act(*args)` returns on rank 0, on every rank; the others sleep meanwhile, so that rank 0 has the cores.

    Raises
    ------
    InputError
        On every rank, if `act` refuses its input.
    """
    outcome: tuple[Any, str | None] = (None, None)
    if comm.rank == 0:
        try:
            outcome = (act(*args), None)
        except REFUSALS as error:
            outcome = (None, _said(error))
    done, pause = comm.Ibarrier(), 0.001
    while not done.Test():
        time.sleep(pause)
        pause = min(1.2 * pause, 0.02)
    result, refusal = comm.bcast(outcome)
    if refusal is not None:
        raise InputError(refusal)
    return result


def agreed(net: Any, act: Callable[..., T], *args: Any) -> T:
    """What `act(*args)` returns on each rank; if it is refused on one, every rank raises that rank's `InputError`."""
    result, error = None, None
    try:
        result = act(*args)
    except REFUSALS as caught:
        error = InputError(_said(caught))
    net.agree(error)
    return result                                                                                   # type: ignore[return-value]


def _said(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


@dataclass(frozen=True)
class Assembly:
    """All that `solve` takes, and what the summary says of it."""

    experiment: Experiment
    oracle: Any
    solver: Any
    topology: Any
    x0: np.ndarray | None
    x_star: np.ndarray | None
    samples: int
    d: int
    note: str = ""

    def mixing(self, W: Any) -> Any:
        """The mixer that the experiment asks for, made of that of its topology.

        Raises
        ------
        InputError
            If it is refused.
        """
        wanted = self.experiment.mixing
        try:
            if wanted.codec is not None:
                W = W.compress(wanted.codec, feedback=wanted.feedback, gamma=wanted.gamma, **wanted.options)
            if wanted.accelerate is not None:
                W = W.accelerate(wanted.accelerate, wanted.method or "chebyshev")
            if self.experiment.solver.name in EDGE_BY_EDGE and (wanted.accelerate or getattr(W, "feedback", False)):
                raise ValueError(f"{self.experiment.solver.name} sends a row of its own to each neighbour, which goes without "
                                 "acceleration and without feedback: take mixing.codec=blockwise8, or another solver")
        except REFUSALS as error:
            raise InputError(_said(error)) from error
        return W

    def spectral_gap(self) -> float | None:
        """The spectral gap of the topology, or None where it would take long."""
        if self.topology.n > 2000 or self.topology.period is None:
            return None
        return float(self.topology.spectral_gap())


def build(experiment: Experiment, net: Any) -> Assembly:
    """Load, partition and scatter the data, and make the problem, the topology and the solver; collective.

    Raises
    ------
    InputError
        On every rank, if anything is refused on any.
    """
    topology = agreed(net, _topology, experiment)
    whole: list[Any] = []                                     # rank 0: the problem of all agents

    def load() -> tuple[Any, ...]:
        made, partition, samples = _load(experiment, net.n)
        _oracle(made, experiment)                             # refuses here, where all agents are known
        whole.append(made)
        x_star, note = made.x_star, ""
        if x_star is None:
            try:
                x_star = made.solution()
            except ValueError as error:
                note = f"the error is not known: {error}"
        return type(made), made.options, made.mask is not None, x_star, note, partition, samples

    make, options, padded, x_star, note, partition, samples = on_root(net.comm, load)
    A, y, mask = (net.scatter(getattr(whole[0], name) if whole else None) if there else None
                  for name, there in (("A", True), ("y", True), ("mask", padded)))
    whole.clear()

    def local() -> tuple[Any, Any]:
        problem = make(A, y, mask=mask, x_star=x_star, **options)
        return problem, _oracle(problem, experiment)

    problem, oracle = agreed(net, local)
    solver_options = dict(experiment.solver.options)
    if "step_size" not in solver_options and "step_size" in parameters(catalogue.solvers()[experiment.solver.name]):
        largest = max(net.comm.allgather(float(problem.smoothness.max(initial=0.0))))
        solver_options["step_size"] = on_root(net.comm, safe, experiment.solver.name, solver_options, topology, largest)
    experiment = replace(experiment, problem=replace(experiment.problem, partition=partition),
                         solver=replace(experiment.solver, options=solver_options))
    solver = agreed(net, lambda: catalogue.solvers()[experiment.solver.name](**solver_options))
    agreed(net, solver.check, topology)
    x0 = None
    if solver.uses == "nothing":
        x0 = np.stack([np.random.default_rng([experiment.run.seed, agent]).standard_normal(problem.d) for agent in range(net.n)])
    return Assembly(experiment, oracle, solver, topology, x0, x_star, samples, problem.d, note)


def _topology(experiment: Experiment) -> Any:
    make = catalogue.topologies()[experiment.topology.name]
    return make(experiment.run.agents, **experiment.topology.options)


def _load(experiment: Experiment, n: int) -> tuple[Any, str, int]:
    """The problem of all agents, the partition that was taken, and the number of samples."""
    wanted = experiment.problem
    takes = parameters(catalogue.problems()[wanted.name])
    of_data = {name: value for name, value in wanted.options.items() if name not in takes}
    if wanted.data in catalogue.data_sets() and "n" in inspect.signature(catalogue.data_sets()[wanted.data]).parameters:
        of_data["n"] = n
    data = problems.load(wanted.data, standardize=wanted.standardize, **of_data)
    how = wanted.partition or data.partition
    parts = problems.partition(data.y, n, how, alpha=wanted.alpha or 1.0, seed=experiment.run.seed)
    of_problem = {name: value for name, value in wanted.options.items() if name in takes}
    return problems.build(wanted.name, data, parts, 0, n, **of_problem), how, len(data.y)


def _oracle(problem: Any, experiment: Experiment) -> Any:
    """The problem itself, or what makes noisy gradients of it."""
    wanted, oracle = experiment.problem, problem
    if wanted.batch_size is not None:
        oracle = problems.MiniBatch(problem, wanted.batch_size)
    return oracle if wanted.noise is None else problems.Noisy(oracle, wanted.noise)
