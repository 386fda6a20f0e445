"""Assembly of the arguments of `solve` from an experiment: rank 0 reads the data, every rank receives its agents' rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from .. import problems
from .. import registry as catalogue
from ..comm.runtime.collectives import portable
from ..driver import arguments as resolve
from ..driver.asynchronous import AsyncResult, simulate
from ..driver.solve import Progress, Result, solve
from ..exceptions import InputError as InputError
from ..exceptions import Interrupted, ResumeError, Unstable, mark
from ..problems.loading import Prepared, prepare, scattered
from ..record import Record
from .settings import Experiment, parameters

T = TypeVar("T")
REFUSALS = (
    ValueError,
    TypeError,
    OSError,
    MemoryError,
    ImportError,
    OverflowError,
)  # raised for invalid input


def on_root(comm: Any, act: Callable[..., T], *args: Any) -> T:
    """Return on every rank the result of `act(*args)` on rank 0; the others sleep meanwhile to leave the cores to rank 0.

    Raises
    ------
    InputError
        On every rank, if `act` raises one of REFUSALS.
    Exception
        On every rank, if `act` raises another one.
    """
    outcome: tuple[Any, str | None, Exception | None] = (None, None, None)
    if comm.rank == 0:
        try:
            outcome = (act(*args), None, None)
        except REFUSALS as error:
            outcome = (None, _message(error), None)
        except Exception as error:
            comm.Ibarrier().Wait()
            comm.bcast((None, None, portable(error)))
            mark(error, on_all_ranks=True)
            raise
    done, pause = comm.Ibarrier(), 0.001
    while not done.Test():
        time.sleep(pause)
        pause = min(1.2 * pause, 0.02)
    result, refusal, failure = comm.bcast(outcome)
    if refusal is not None:
        raise InputError(refusal)
    if failure is not None:
        mark(failure, on_all_ranks=True, from_another_rank=True)
        raise failure
    value: T = result
    return value


def agreed(net: Any, act: Callable[..., T], *args: Any) -> T:
    """Return the result of `act(*args)` on each rank; if one rank refuses its input, all ranks raise its `InputError`.

    Other exceptions are raised on all ranks as they are.
    """
    result: Any = None
    error: Exception | None = None
    try:
        result = act(*args)
    except REFUSALS as caught:
        error = InputError(_message(caught))
    except Exception as caught:
        error = caught
    net.agree(error)
    made: T = result
    return made


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


@dataclass(frozen=True)
class Assembly:
    """Arguments of `solve`, and further facts for the summary."""

    experiment: Experiment
    oracle: Any
    solver: Any
    topology: Any
    x0: np.ndarray | None
    x_star: np.ndarray | None
    samples: int
    d: int
    note: str = ""
    classes: tuple[str, ...] = ()
    label: str = ""

    def mixing(self, W: Any) -> Any:
        """Return the mixer of the experiment: `W`, compressed and accelerated according to the table ``[mixing]``.

        Random codecs draw with the seed of the run, unless the table has its own.

        Raises
        ------
        InputError
            If the codec, the acceleration or their combination with the solver is refused.
        """
        wanted = self.experiment.mixing
        try:
            if wanted.codec is not None:
                own = wanted.codec in catalogue.codecs().own
                codec = (
                    wanted.codec if own else catalogue.codecs().find(wanted.codec)(**wanted.options)
                )
                options = {"seed": self.experiment.run.seed, **wanted.options} if own else {}
                W = W.compress(codec, feedback=wanted.feedback, gamma=wanted.gamma, **options)
            if wanted.accelerate is not None:
                W = W.accelerate(wanted.accelerate, wanted.method or "chebyshev")
            if self.solver.edgewise and (wanted.accelerate or getattr(W, "feedback", False)):
                raise ValueError(
                    f"{self.experiment.solver.name} sends a row of its own to each neighbour, which excludes "
                    "acceleration and error feedback: use mixing.codec=blockwise8, or another solver"
                )
        except REFUSALS as error:
            raise InputError(_message(error)) from error
        return W

    @property
    def asynchronous(self) -> bool:
        """Whether agents take steps at times of their own."""
        return bool(getattr(self.solver, "asynchronous", False))

    def solve(
        self, net: Any, path: str, resume: bool, progress: Progress, config: Callable[[Any], str]
    ) -> Result | AsyncResult:
        """Solve the problem, into the file `path`, whose text `config(solver)` states the experiment; collective.

        An interrupt is the outcome of the result.
        """
        wanted = self.experiment.run
        stop = (
            None
            if wanted.stop_error is None or self.x_star is None
            else {"error": wanted.stop_error}
        )
        record = Record(
            path,
            trajectory=wanted.trajectory,
            checkpoint_seconds=wanted.checkpoint,
            resume=resume,
            replace=not resume,
            config=config,
            sources=self.experiment.sources(),
        )
        common: dict[str, Any] = {
            "steps": wanted.steps,
            "x0": self.x0,
            "seed": wanted.seed,
            "record": record,
            "every": wanted.every,
            "stop": stop,
            "progress": progress,
        }
        own_pace: dict[str, Any] = (
            {"delay": wanted.delay, "drop": wanted.drop or 0.0} if self.asynchronous else {}
        )
        pauses = wanted.pauses()
        result: Result | AsyncResult
        try:
            if wanted.simulate:
                rates = (
                    [1 / (1 + pauses.get(agent, 0.0)) for agent in range(net.n)] if pauses else None
                )
                result = simulate(
                    self.oracle, self.solver, self.topology, rates=rates, **common, **own_pace
                )
            elif self.asynchronous:
                result = solve(
                    self.oracle,
                    self.solver,
                    self.topology,
                    net=net,
                    straggler=pauses or None,
                    **common,
                    **own_pace,
                )
            else:
                result = solve(
                    self.oracle, self.solver, self.topology, net=net, mixing=self.mixing, **common
                )
            return result
        except Interrupted as end:
            result = end.result
            return result
        except (Unstable, ResumeError) as error:
            raise InputError(str(error)) from error

    def config(self, solver: Any) -> str:
        """Return the experiment as TOML text, with the step size of `solver`, which the run has found."""
        return self.with_step_size(getattr(solver, "step_size", None)).experiment.to_toml()

    def with_step_size(self, step_size: Any) -> Assembly:
        """Return the assembly with the step size that the run has found, as an experiment file states it."""
        wanted = self.experiment.solver
        if "step_size" not in wanted.options:
            return self
        value = float(step_size) if isinstance(step_size, (int, float)) else str(step_size)
        solver = replace(wanted, options={**wanted.options, "step_size": value})
        return replace(self, experiment=replace(self.experiment, solver=solver))

    def spectral_gap(self) -> float | None:
        """Return the spectral gap of the topology, or None if it is slow to compute or the schedule has no period."""
        if self.topology.n > 2000 or self.topology.period is None:
            return None
        return float(self.topology.spectral_gap())


def is_asynchronous(experiment: Experiment) -> bool:
    """Whether the agents of an experiment take steps at times of their own."""
    return bool(getattr(catalogue.solvers()[experiment.solver.name], "asynchronous", False))


def build(experiment: Experiment, net: Any) -> Assembly:
    """Load, partition and scatter the data, and build the problem, the topology and the solver; collective.

    Raises
    ------
    InputError
        On every rank, if the input is refused on any rank.
    """
    topology = agreed(net, _topology, experiment)
    whole: list[Prepared] = []  # on rank 0: the problem of all agents

    def load() -> tuple[Any, ...]:
        made = _prepared(experiment, net.n)
        _oracle(made.whole, experiment)  # checked here, so that errors name global agents
        whole.append(made)
        return (
            made.x_star,
            made.note,
            made.partition or None,
            made.samples,
            made.classes,
            made.label,
        )

    x_star, note, partition, samples, classes, label = on_root(net.comm, load)
    make = agreed(net, catalogue.problems().find, experiment.problem.name)
    try:
        problem = scattered(whole.pop() if whole else None, make, net)
    except REFUSALS as error:  # raised on every rank
        raise InputError(_message(error)) from error
    oracle = agreed(net, _oracle, problem, experiment)
    solver_options = dict(experiment.solver.options)
    step_size = parameters(catalogue.solvers()[experiment.solver.name]).get("step_size")
    if step_size is not None and not isinstance(
        step_size.default, (int, float)
    ):  # a number: the default of one's own solver
        solver_options.setdefault("step_size", "auto")
    experiment = replace(
        experiment,
        problem=replace(experiment.problem, partition=partition),
        solver=replace(experiment.solver, options=solver_options),
    )
    solver = agreed(net, lambda: catalogue.solvers()[experiment.solver.name](**solver_options))
    agreed(net, solver.check, topology)
    x0 = None
    if solver.uses == "nothing":
        x0 = np.stack(
            [
                np.random.default_rng([experiment.run.seed, agent]).standard_normal(problem.d)
                for agent in range(net.n)
            ]
        )
    return Assembly(
        experiment, oracle, solver, topology, x0, x_star, samples, problem.d, note, classes, label
    )


def _topology(experiment: Experiment) -> Any:
    make, n = catalogue.topologies().find(experiment.topology.name), experiment.run.agents
    return resolve.as_topology(
        make(n, **experiment.topology.options) if callable(make) else make, n
    )


def _prepared(experiment: Experiment, n: int) -> Prepared:
    """Return the problem of all agents."""
    wanted = experiment.problem
    given = {
        key: getattr(wanted, key)
        for key in ("l2_total", "l1", "l1_total", "lower", "upper", "simplex")
    }
    options = dict(wanted.options)
    seed = options.pop("seed", None)
    return prepare(
        wanted.data,
        n,
        wanted.name,
        label=wanted.label,
        partition=wanted.partition,
        alpha=wanted.alpha or 1.0,
        seed=experiment.run.seed,
        standardize=wanted.standardize,
        intercept=bool(wanted.intercept),
        scale=wanted.scale or "sum",
        data_seed=seed,
        **given,
        **options,
    )


def _oracle(problem: Any, experiment: Experiment) -> Any:
    """Return the problem itself, or an oracle of its noisy gradients."""
    wanted, oracle = experiment.problem, problem
    if wanted.batch_size is not None:
        oracle = problems.MiniBatch(problem, wanted.batch_size)
    if wanted.noise is not None:
        oracle = problems.Noisy(oracle, wanted.noise)
    return resolve.with_subgradients(oracle, catalogue.solvers().find(experiment.solver.name))
