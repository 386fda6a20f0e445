"""The arguments of `solve`, made from an experiment: rank 0 reads the data, every rank receives
its agents' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from operator import methodcaller
from typing import Any

import numpy as np

from .. import problems, registry as catalogue
from ..comm.mixing import Network
from ..comm.mixing.internals import (
    EXCLUDED,
    FAULTS,
    ORDER,
    Operator,
    StepOperator,
    clipped,
    with_feedback,
)
from ..comm.runtime import ALONE, REFUSALS, agreed, message, on_root
from ..driver.internals import (
    Choice,
    Own,
    Progress,
    Queue,
    Result,
    arguments as resolve,
    checked,
    counters_of,
    gradients_for,
    requested_rule,
    solve,
    target_of,
)
from ..exceptions import InputError, Interrupted, ResumeError, RunsError, Unstable
from ..plugins import short
from ..problems import Oracle, OracleLike, Problem
from ..problems.internals import (
    REDUCTIONS,
    Bare,
    DataOptions,
    Prepared,
    adapted,
    prepare,
    scattered,
    targets_of,
    usual_partition,
)
from ..record import Record
from ..solvers import Consensus, Solver
from ..solvers.internals import is_asynchronous, step_size_of
from ..topology import Schedule, Topology
from ..topology.internals import named
from .settings import Experiment, Mixing, parameters


@dataclass(frozen=True)
class Job:
    """Arguments of `solve`, and further facts for the summary."""

    experiment: Experiment
    oracle: Oracle
    solver: Solver
    topology: Topology | Schedule
    x0: np.ndarray | None
    x_star: np.ndarray | None
    samples: int
    d: int
    note: str = ""
    classes: tuple[str, ...] = ()
    label: str = ""
    metrics: Mapping[str, Own] = field(default_factory=dict)

    def mixing(self, W: Operator[StepOperator]) -> Operator[StepOperator]:
        """Return the mixer of the experiment: `W`, compressed and accelerated as the table
        ``[mixing]`` says; with its losses.

        Random codecs draw with the seed of the run, unless the table has its own.

        Raises
        ------
        InputError
            If the codec, the acceleration or their combination with the solver is refused.
        """
        return mixed(W, self.experiment, self.solver)

    def conditions(self, net: Network) -> dict[str, Any]:
        """Return the arguments of synchronous runs only, or delays, losses and paces of
        asynchronous ones.
        """
        wanted = self.experiment.run
        pauses = wanted.pauses()
        if not self.asynchronous:
            return {"mixing": self.mixing}
        faults = {"delay": wanted.delay, "drop": wanted.drop or 0.0, "straggler": pauses or None}
        return {**faults, "clock": Queue() if wanted.simulate else None}

    @property
    def measured(self) -> bool:
        """Whether the minimizer is known, or those of the agents' own functions."""
        return self.x_star is not None or targets_of(self.oracle.problem) is not None

    @property
    def limits(self) -> dict[str, float]:
        """The limits of metrics at which the run stops; without the error, if it is not known."""
        wanted = self.experiment.run
        idle = {"error"} if wanted.stop_error is not None and not self.measured else set()
        return {name: limit for name, limit in wanted.limits().items() if name not in idle}

    def check_limits(self, own: Mapping[str, Own]) -> None:
        """Refuse limits of metrics that the run does not have, or cannot stop at.

        Raises
        ------
        ValueError
        """
        counters = counters_of(self.solver, self.experiment.run.simulate or None)
        with _of_table("run."):
            target_of(self.limits or None, self.oracle.problem, counters, own)

    @property
    def asynchronous(self) -> bool:
        """Whether the solver is asynchronous."""
        return is_asynchronous(self.solver)

    def solve(
        self,
        net: Network,
        path: str,
        resume: bool,
        progress: Progress,
        config: Callable[[Solver], str],
        lost: Callable[[], str] = str,
    ) -> Result:
        """Solve the problem, into the file `path`, whose text `config(solver)` states the
        experiment; collective.

        An interrupt is the outcome of the result.  `lost()` is the attribute `lost` of the file.
        """
        wanted = self.experiment.run
        record = Record(
            path,
            trajectory=wanted.trajectory,
            checkpoint_seconds=wanted.checkpoint,
            resume=resume,
            replace=not resume,
            config=config,
            sources=self.experiment.sources(),
            lost=lost,
        )
        common: dict[str, Any] = {
            "steps": wanted.steps,
            "x0": self.x0,
            "seed": wanted.seed,
            "record": record,
            "every": wanted.every,
            "stop": self.limits or None,
            "progress": progress,
            "metrics": self.metrics,
            "runs": wanted.runs or 1,
        }
        own = self.conditions(net) | ({} if wanted.simulate else {"net": net})
        try:
            gradients_for(self.solver, self.oracle, net.agents, wanted.seed)
        except ValueError as error:
            raise InputError(str(error)) from error
        try:
            return solve(self.oracle, self.solver, self.topology, **common, **own)
        except Interrupted as end:
            result: Result = end.result
            return result
        except (Unstable, ResumeError, RunsError) as error:
            raise InputError(str(error)) from error

    def config(self, solver: Solver) -> str:
        """Return the experiment as TOML text, with the step size of `solver`, which the run has
        found.
        """
        return self.with_step_size(step_size_of(solver)).experiment.to_toml()

    def with_step_size(self, step_size: object) -> Job:
        """Return the job with the step size that the run has found, as an experiment file states
        it.
        """
        wanted = self.experiment.solver
        if "step_size" not in wanted.options:
            return self
        value = float(step_size) if isinstance(step_size, (int, float)) else str(step_size)
        solver = replace(wanted, options={**wanted.options, "step_size": value})
        return replace(self, experiment=replace(self.experiment, solver=solver))

    def spectral_gap(self, choice: Choice | None = None) -> float | None:
        """Return the spectral gap of the topology, or None if it is slow to compute or the schedule
        has no period.

        Of one with the weights "auto", it is that with the weights of the `choice`, and None in a
        run that is resumed.
        """
        topology = self.topology
        if len(topology.choices) > 1:
            if choice is None and requested_rule(self.solver):
                return None
            topology = topology.chosen(choice.weights if choice else "")
        if topology.n > 2000 or topology.period is None:
            return None
        return float(topology.spectral_gap())


def build(experiment: Experiment, net: Network) -> Job:
    """Load, partition and scatter the data, and build the problem, the topology and the solver;
    collective.

    Raises
    ------
    InputError
        On every rank, if the input is refused on any rank.
    """
    with agreed(net):
        topology = topology_of(experiment)
        make = catalogue.PROBLEMS.find(experiment.problem.name)
    # On rank 0: the problem of all agents.
    whole: list[Prepared] = []

    def load() -> tuple[Any, ...]:
        made = _prepared(experiment, net.n)
        # Checked here, so that errors name global agents.
        _oracle(made.whole, experiment)
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
    try:
        problem = scattered(whole.pop() if whole else None, make, net)
    except REFUSALS as error:  # raised on every rank
        raise InputError(message(error)) from error
    solver_options = dict(experiment.solver.options)
    step_size = parameters(catalogue.SOLVERS[experiment.solver.name]).get("step_size")
    # A number: the default of a user-defined solver.
    if step_size is not None and not isinstance(step_size.default, (int, float)):
        solver_options.setdefault("step_size", "auto")
    experiment = replace(
        experiment,
        problem=replace(experiment.problem, partition=partition),
        solver=replace(experiment.solver, options=solver_options),
    )
    with agreed(net):
        oracle = _oracle(problem, experiment)
        solver = catalogue.SOLVERS[experiment.solver.name](**solver_options)
        solver.check(topology)
        experiment = replace(experiment, mixing=_mixing(experiment.mixing, solver, topology))
    x0 = None
    if not solver.needs.problem:
        x0 = np.stack(
            [
                np.random.default_rng([experiment.run.seed, agent]).standard_normal(problem.d)
                for agent in range(net.n)
            ]
        )
        if experiment.mixing.clip is not None and isinstance(solver, Consensus):
            x0 = clipped(x0, experiment.mixing.clip)
    with agreed(net):
        named_so = experiment.run.own_metrics().items()
        metrics = checked({name: catalogue.METRICS.find(place) for name, place in named_so})
    # A user-defined problem, which `solve` would refuse with a traceback.
    with agreed(net):
        X = resolve.initial_rows(x0, problem, net)
        resolve.check_callbacks(problem, X, net.lo, solver.needs.problem)
    note = "; ".join(filter(None, (note, idle_codec(experiment))))
    job = Job(
        experiment,
        oracle,
        solver,
        topology=topology,
        x0=x0,
        x_star=x_star,
        samples=samples,
        d=problem.d,
        note=note,
        classes=classes,
        label=label,
        metrics=metrics,
    )
    with agreed(net):
        job.check_limits(checked(metrics, problem))
    return job


@contextmanager
def _of_table(name: str) -> Iterator[None]:
    """Context in which errors of values begin with the name of their table."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}{error}") from error


def _compressed(W: Operator[StepOperator], wanted: Mixing, seed: int) -> Operator[StepOperator]:
    """Return `W` with the wanted codec."""
    if wanted.codec is None:
        return W
    if wanted.codec in catalogue.CODECS.own:
        return W.compress(
            wanted.codec,
            feedback=wanted.feedback,
            gamma=wanted.gamma,
            **{"seed": seed, **wanted.options},
        )
    codec = catalogue.CODECS.find(wanted.codec)(**wanted.options)
    return W.compress(codec, feedback=wanted.feedback, gamma=wanted.gamma)


def mixed(
    W: Operator[StepOperator], experiment: Experiment, solver: Solver
) -> Operator[StepOperator]:
    """Return the mixer of an experiment, made of `W`; see `Job.mixing`."""
    wanted = experiment.mixing
    if isinstance(solver, Consensus):  # its initial rows are clipped
        wanted = replace(wanted, clip=None)
    try:
        with _of_table("mixing: "):
            W = _compressed(W, wanted, experiment.run.seed)
        feedback, calls = W.feedback, wanted.calls(experiment.run.seed)
        faults = [f"mixing.{calls[call][0]}" for call in FAULTS if call in calls]
        if feedback and faults:
            raise ValueError(
                f"{' and '.join(faults)}: neighbours must have the same estimates of a row, "
                "which the error feedback of "
                f"{wanted.codec} builds up from what arrives: add --set mixing.feedback=false, "
                "with a codec that rounds: "
                "mixing.codec=blockwise8"
            )
        if {"lossy", "robust"} <= calls.keys():
            why = EXCLUDED["lossy", "robust"]
            raise ValueError(f"mixing.robust with mixing.lose: {why}: omit one")
        for call in ORDER:
            if call in calls:
                W = methodcaller(call, **calls[call][1])(W)
        several = calls.keys() & {"accelerate", "repeat", "robust", "triggered"}
        if solver.needs.exchange and (several or feedback):
            raise ValueError(
                f"{experiment.solver.name} sends a row of its own to each neighbour, "
                "which excludes "
                "acceleration, repetition, robust rules, triggered rows and error feedback: use "
                "mixing.codec=blockwise8, or another solver"
            )
    except REFUSALS as error:
        raise InputError(message(error)) from error
    return W


def _mixing(wanted: Mixing, solver: Solver, topology: Topology | Schedule) -> Mixing:
    """Return the table ``[mixing]`` with the error feedback that it leaves to the codec, the
    solver and the graph.
    """
    if wanted.codec is None or wanted.feedback is not None:
        return wanted
    codec = catalogue.CODECS.find(wanted.codec)
    edgewise = solver.needs.exchange and not codec.feedback
    return replace(wanted, feedback=not edgewise and with_feedback(codec, topology))


def accepted(experiment: Experiment) -> bool:
    """Return whether the solver of an experiment can use its graph."""
    topology = topology_of(experiment)
    solver = catalogue.SOLVERS[experiment.solver.name](**experiment.solver.options)
    try:
        solver.check(topology)
    except ValueError:
        return False
    return not solver.unstable(topology)


def idle_codec(experiment: Experiment) -> str:
    """Return the method to which a compressed solver reduces without a codec; empty if there is
    none, or if there is a codec.
    """
    name, method = (
        experiment.solver.name,
        catalogue.SOLVERS[experiment.solver.name].needs.uncompressed,
    )
    if not method or experiment.mixing.codec is not None:
        return ""
    return (
        f"{short(name)} without a codec is {method}: add --set mixing.codec=top_k, or another one"
    )


def seeded(experiment: Experiment, other: Experiment) -> bool:
    """Return whether an experiment may differ from the same one with another seed: False only where
    nothing random is in it.  What is not built in may draw.
    """
    problem, kind = experiment.problem, catalogue.SOLVERS[experiment.solver.name]
    built_in = (
        problem.name in catalogue.PROBLEMS.own,
        experiment.solver.name in catalogue.SOLVERS.own,
        experiment.topology.name in catalogue.TOPOLOGIES.own,
        experiment.mixing.codec in {None, *catalogue.CODECS.own},
    )
    if replace(other, run=experiment.run) != experiment or not all(built_in):
        return True
    samples = np.ones((1, problem.batch_size or 1, 1))
    oracle = _estimated(problems.LeastSquares(samples, samples[..., 0]), experiment)
    if is_asynchronous(kind) or not kind.needs.problem or isinstance(problem.test, float):
        return True
    try:
        solver, topology = kind(**experiment.solver.options), topology_of(experiment)
        if oracle.draws or solver.draws or _mixing_draws(experiment, solver, topology):
            return True
    except (InputError, *REFUSALS):  # the run of each seed says what is refused
        return True
    if problem.data is None:
        return False
    n, how = experiment.run.agents, problem.partition
    return (
        how or usual_partition(problem.data, n, problem.label, dict(problem.options))
    ) != "sorted"


def _mixing_draws(experiment: Experiment, solver: Solver, topology: Topology | Schedule) -> bool:
    """Return whether the graphs, the codec or a fault of an experiment draw random numbers."""
    if isinstance(topology, Schedule) and topology.draws:
        return True
    complete = replace(experiment, mixing=_mixing(experiment.mixing, solver, topology))
    if complete.mixing == Mixing():
        return False
    with Network(topology.n, comm=ALONE) as net, closing(net.mixer(topology)) as W:
        return mixed(W, complete, solver).draws


def topology_of(experiment: Experiment) -> Topology | Schedule:
    """Return the graph of an experiment, of the catalogue or the user's own."""
    make, n = catalogue.TOPOLOGIES.find(experiment.topology.name), experiment.run.agents
    options, weights = dict(experiment.topology.options), None
    # They are those of a networkx graph.
    if "weights" not in parameters(make):
        weights = options.pop("weights", None)
    solver = catalogue.SOLVERS.find(experiment.solver.name)
    graph = make(n, **options) if callable(make) else make
    made = resolve.as_topology(graph, n, weights, solver=solver)
    return named(made, experiment.topology.name)


def _prepared(experiment: Experiment, n: int) -> Prepared:
    """Return the problem of all agents."""
    wanted, run = experiment.problem, experiment.run
    known = [field.name for field in fields(DataOptions)]
    given = {
        **vars(wanted),
        **wanted.options,
        "intercept": bool(wanted.intercept),
        "scale": wanted.scale or "sum",
        "seed": run.seed,
        "data_seed": wanted.options.get("seed"),
    }
    options = DataOptions(**{name: given[name] for name in known if name in given})
    params = {name: value for name, value in wanted.options.items() if name not in known}
    return prepare(wanted.data, n, wanted.name, options, **params)


def _oracle(problem: Problem | OracleLike, experiment: Experiment) -> Oracle:
    """Return the oracle of the gradients of a problem, exact or noisy, as the solver needs it."""
    oracle = _estimated(problem, experiment)
    return resolve.with_subgradients(oracle, catalogue.SOLVERS.find(experiment.solver.name))


def _estimated(problem: Any, experiment: Experiment) -> Oracle:
    """Return the oracle of the exact, or of noisy, gradients of a problem."""
    wanted = experiment.problem
    oracle = adapted(problem) if isinstance(problem, OracleLike) else Bare(problem)
    if wanted.batch_size is not None:
        oracle = problems.MiniBatch(problem, wanted.batch_size)
    if wanted.variance_reduction is not None and wanted.batch_size is not None:
        reduction, period = REDUCTIONS[wanted.variance_reduction], wanted.snapshot_period
        if period is not None and reduction is problems.SAGA:
            raise InputError("problem.snapshot_period: SAGA takes no exact gradients: omit it")
        options = {} if period is None else {"period": period}
        oracle = reduction(problem, wanted.batch_size, **options)
    if wanted.noise is not None:
        oracle = problems.Noisy(oracle, wanted.noise)
    return oracle
