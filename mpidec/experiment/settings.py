"""Experiment configuration from a TOML file, flags and ``--set``; checked, and written back as
TOML.

Every source is a list of settings ``table.key = value``; later sources take precedence: defaults <
file < flags < ``--set``.  Values are checked against the signatures of the components that receive
them, so a new problem, data set, solver or topology needs no change here.  Equal settings give an
equal `Experiment` and TOML text, whatever their source.

Components of the user's own are named ``FILE.py:NAME`` or ``MODULE:NAME``.  A relative file is
looked up in the folder of the experiment file, then in the working folder; the experiment holds its
absolute path, so that it can be run again and resumed.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

from .. import plugins, registry as catalogue, solvers
from ..datasets import TAKE, maker
from ..exceptions import ConfigError as ConfigError
from ..problems.internals import registry
from ..solvers.internals import SCHEDULES, WORDS, is_asynchronous, parsed as schedule
from . import schema
from .schema import (
    SchemaEntry,
    Setting as Setting,
    Value,
    abbreviate,
    describe,
    entries,
    is_toml_type,
    parse,
    setting,
    to_toml,
)

C = TypeVar("C")
Given = dict[str, dict[str, Setting]]  # by table and key
STEPS, STOP_ERROR = 5000, 1e-8
AGENTS_ALONE = 16


def _data_file(name: str, folder: str) -> str:
    """Return the path of a data file that lies beside the experiment, or the absolute path of a
    plug-in.
    """
    beside = os.path.join(folder, name if not os.path.isabs(name) else os.path.basename(name))
    if os.path.splitext(name)[1] and not os.path.exists(name) and os.path.isfile(beside):
        return beside
    return plugins.located(name, folder)


@dataclass(frozen=True)
class Problem:
    """Table ``[problem]``: the loss, the data set, and its partition over the agents."""

    name: str = setting(
        "logistic",
        flag="problem",
        metavar="P",
        help="loss: logistic (default), least_squares, ...",
        locate=plugins.located,
    )
    data: str | None = setting(
        "breast_cancer",
        metavar="D",
        help="name of a data set, or a file: .npz with A (N, d) and y or b (N,), .csv, LIBSVM",
        locate=_data_file,
    )
    label: int | str | None = None
    features: int | None = setting(None, "> 0")
    test: float | str | None = setting(None, "in (0, 1)", locate=_data_file)
    partition: (
        Literal["iid", "stratified", "sorted", "shards", "labels", "dirichlet", "sizes", "blocks"]
        | None
    ) = None
    alpha: float | None = setting(None, "> 0")
    per_agent: int | None = setting(None, "> 0")
    standardize: bool | Literal["scale"] = False
    intercept: bool | None = None
    scale: Literal["sum", "mean"] | None = None
    l2_total: float | None = setting(None, ">= 0")
    l1: float | None = setting(None, ">= 0")
    l1_total: float | None = setting(None, ">= 0")
    lower: float | None = None
    upper: float | None = None
    simplex: float | None = setting(None, "> 0")
    batch_size: int | None = setting(None, "> 0")
    variance_reduction: Literal["svrg", "lsvrg", "sarah", "saga"] | None = setting(
        None, requires="batch_size"
    )
    snapshot_period: int | None = setting(None, "> 0", requires="variance_reduction")
    noise: float | None = setting(None, ">= 0")
    options: Mapping[str, Any] = field(default_factory=dict)

    def complete(self, agents: int) -> Problem:
        """Return the table with the defaults that depend on other settings."""
        alpha, per_agent, options = self.alpha, self.per_agent, dict(self.options)
        if alpha is None and self.partition in ("dirichlet", "sizes"):
            alpha = 1.0
        if per_agent is None and self.partition in ("shards", "labels"):
            per_agent = 2
        entry = registry.PROBLEMS.get(self.name)
        if entry and entry.l2_total and self.scale != "mean" and self.l2_total is None:
            options.setdefault("l2", entry.l2_total / agents)  # of the sum over all agents
        return replace(self, alpha=alpha, per_agent=per_agent, options=options)


@dataclass(frozen=True)
class Solver:
    """Table ``[solver]``: the method and its parameters."""

    name: str = setting(
        "gradient_tracking",
        flag="solver",
        metavar="S",
        help="method: gradient_tracking (default), exact_diffusion, dgd, ...",
        locate=plugins.located,
    )
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Topology:
    """Table ``[topology]``: the graph or schedule of graphs, and its parameters."""

    name: str = setting(
        "exponential",
        flag="topology",
        metavar="T",
        help="graph: exponential (default if the solver supports it), ring, ...",
        locate=plugins.located,
    )
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mixing:
    """Table ``[mixing]``: rows that are sent only if they have moved, the codec of the rows (by
    default none), attacks, noise, lost messages, robust rules, several mixings.
    """

    triggered: float | None = setting(
        None,
        ">= 0",
        metavar="TAU",
        help="agents send a row only if it has moved by more than TAU since they sent it last; "
        "with --set mixing.decay=R, by more than TAU * R^k in step k",
    )
    decay: float | None = setting(None, "in (0, 1]", requires="triggered")
    conserving: bool | None = setting(None, requires="triggered")
    codec: str | None = setting(None, locate=plugins.located)
    feedback: bool | None = setting(None, requires="codec")
    gamma: float | None = setting(None, "> 0", requires="codec")
    accelerate: int | None = setting(None, "> 0")
    method: Literal["chebyshev", "fastmix"] | None = setting(None, requires="accelerate")
    lose: float | None = setting(None, "in [0, 1]", expected="a probability, in [0, 1]")
    fill: Literal["renormalize", "own", "zero"] | None = setting(None, requires="lose")
    attack: str | None = setting(None)
    noise: float | None = setting(None, ">= 0")
    clip: float | None = setting(None, "> 0", requires="noise")
    robust: Literal["clip", "trimmed_mean"] | None = setting(None)
    tau: float | None = setting(None, ">= 0", requires="robust")
    delta: float | None = setting(None, "> 0", requires="robust")
    trim: int | None = setting(None, "> 0", requires="robust")
    repeat: int | None = setting(None, "> 0")
    options: Mapping[str, Any] = field(default_factory=dict)

    def attacks(self) -> dict[int, str | float]:
        """Return what each attacker sends: the name of an attack, or a number.

        Raises
        ------
        ValueError
            The text is not of the form ``2:sign_flip,5:100``.

        Examples
        --------
        >>> Mixing(attack="2:sign_flip, 5:100").attacks()
        {2: 'sign_flip', 5: 100.0}
        """
        found: dict[int, str | float] = {}
        for part in (self.attack or "").split(",") if self.attack else ():
            agent, colon, what = (text.strip() for text in part.partition(":"))
            if not (colon and what and agent.isdecimal()) or int(agent) in found:
                raise ValueError(
                    "attack: expected AGENT:sign_flip or AGENT:NUMBER, such as 2:sign_flip,5:100, "
                    "each agent once, got "
                    f"{abbreviate(part)}"
                )
            try:
                found[int(agent)] = float(what)
            except ValueError:
                found[int(agent)] = what
        return found

    def calls(self, seed: int) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return the calls that make the mixer of one with a codec or without, each with its key
        and arguments; draws have the seed.
        """
        calls: dict[str, tuple[str, dict[str, Any]]] = {
            "triggered": (
                "triggered",
                {
                    "threshold": self.triggered,
                    "decay": self.decay or 1.0,
                    "conserving": self.conserving is not False,
                },
            ),
            "attacked": ("attack", {"attacks": self.attacks()}),
            "noisy": ("noise", {"sigma": self.noise, "seed": seed, "clip": self.clip}),
            "lossy": (
                "lose",
                {"messages": self.lose, "seed": seed, "fill": self.fill or "renormalize"},
            ),
            "robust": (
                "robust",
                {"rule": self.robust, "tau": self.tau, "delta": self.delta, "trim": self.trim},
            ),
            "repeat": ("repeat", {"S": self.repeat}),
            "accelerate": (
                "accelerate",
                {"K": self.accelerate, "method": self.method or "chebyshev"},
            ),
        }
        return {call: made for call, made in calls.items() if vars(self)[made[0]] is not None}


def metric_files(text: str, folder: str) -> str:
    """Return the metrics with the paths of their files."""
    parts = [part.partition("=") for part in text.split(",")]
    return ",".join(f"{name}{sign}{plugins.located(place, folder)}" for name, sign, place in parts)


def metrics_of(text: str | None) -> dict[str, str]:
    """Return metrics of the user's own, ``FILE.py:F`` or ``MODULE:F``, by name.

    Raises
    ------
    ValueError
        The text is not of the form ``NAME=FILE.py:F,...``, or a name is given twice.
    """
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, _, place = (word.strip() for word in part.partition("="))
        if not (name and plugins.is_plugin(place)):
            raise ValueError(f"expected NAME=FILE.py:F, got {abbreviate(part)}")
        if name in found:
            raise ValueError(f"the metric {name} is given twice")
        found[name] = place
    return found


@dataclass(frozen=True)
class Run:
    """Table ``[run]``: the number of agents and steps, the output, and the delays and stragglers of
    asynchronous runs.
    """

    agents: int = setting(
        AGENTS_ALONE,
        "> 0",
        metavar="N",
        help=f"number of agents (default: one per rank, or {AGENTS_ALONE} in a single process)",
    )
    steps: int = setting(
        STEPS,
        "> 0",
        metavar="K",
        help=f"number of steps (default: until error <= {STOP_ERROR:g}, at most {STEPS})",
    )
    seed: int = setting(0, ">= 0", metavar="S", help="seed of all random numbers (default: 0)")
    runs: int | None = setting(
        None,
        "> 0",
        metavar="R",
        help="number of runs that take their steps together, with the draws of the seeds S, S + 1, "
        "...; metrics are their mean, with a band (default: 1)",
    )
    every: int = setting(10, "> 0", metavar="E", help="steps between two records (default: 10)")
    out: str = setting(
        "run.h5",
        metavar="FILE",
        help="output file (default: run.h5, or run-2.h5, run-3.h5, ... if it exists)",
    )
    stop_error: float | None = setting(
        None, "> 0", metavar="TOL", help="stop when error <= TOL; 'none' takes all steps"
    )
    stop: str | None = setting(
        None,
        metavar="METRIC=VALUE",
        help="stop when METRIC <= VALUE, or >= VALUE of an accuracy; with several, and "
        "--stop-error, when all are reached",
        repeat=True,
    )
    metrics: str | None = setting(
        None,
        flag="metric",
        metavar="NAME=FILE.py:F",
        help="user-defined metric: F(X, agents, k) returns one number per local agent, whose "
        "average is recorded; the flag may be repeated",
        repeat=True,
        locate=metric_files,
    )
    trajectory: bool = True
    checkpoint: float = setting(30.0, "> 0")
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    delay: float | tuple[float, float] | None = setting(
        None,
        ">= 0",
        metavar="T",
        help="asynchronous: each message is held back for T seconds, or LOW,HIGH: uniform in "
        "between",
        expected="a number >= 0, or two: LOW,HIGH with 0 <= LOW <= HIGH",
    )
    drop: float | None = setting(
        None,
        "in [0, 1)",
        metavar="P",
        help="asynchronous: each message is lost with the probability P",
        expected="a probability >= 0 and < 1",
    )
    straggler: str | None = setting(
        None,
        metavar="AGENT:T",
        help="asynchronous: the agent sleeps for T seconds at each of its steps; 0:0.5,3:0.1, or "
        "the flag repeated",
        repeat=True,
    )
    simulate: bool | None = setting(
        None,
        help="asynchronous: simulate the run on a queue of events, in one process, reproducibly; T "
        "is then in units "
        "of the time of one gradient, and a straggler takes 1 + T units for a step",
    )

    def limits(self) -> dict[str, float]:
        """Return the limits of metrics at which the run stops, all of them at one record.

        Raises
        ------
        ValueError
            The text is not of the form ``METRIC=VALUE,...``, or a metric is given twice.

        Examples
        --------
        >>> Run(stop="accuracy=0.95,consensus=1e-6", stop_error=1e-8).limits()
        {'error': 1e-08, 'accuracy': 0.95, 'consensus': 1e-06}
        >>> Run(stop="accuracy=.9").limits()
        {'accuracy': 0.9}
        """
        found = {} if self.stop_error is None else {"error": self.stop_error}
        for part in self.stop.split(",") if self.stop else ():
            name, _, text = (word.strip() for word in part.partition("="))
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not name or not math.isfinite(value):
                raise ValueError(f"expected METRIC=VALUE, got {abbreviate(part)}")
            if name in found:
                raise ValueError(f"the metric {name} is given twice")
            found[name] = value
        return found

    def own_metrics(self) -> dict[str, str]:
        """Return the user's own metrics: ``FILE.py:F`` or ``MODULE:F`` by name.

        Raises
        ------
        ValueError
            The text is not of the form ``NAME=FILE.py:F,...``, or a name is given twice.

        Examples
        --------
        >>> Run(metrics="msd=own.py:msd,worst=own.py:worst").own_metrics()
        {'msd': 'own.py:msd', 'worst': 'own.py:worst'}
        """
        return metrics_of(self.metrics)

    def pauses(self) -> dict[int, float]:
        """Seconds that each straggler sleeps at each of its steps.

        Raises
        ------
        ValueError
            The text is not of the form ``0:0.5,3:0.1``, or an agent is unknown or given twice.

        Examples
        --------
        >>> Run(straggler="0:0.5, 3:0.1").pauses()
        {0: 0.5, 3: 0.1}
        """
        found: dict[int, float] = {}
        for part in (self.straggler or "").split(",") if self.straggler else ():
            match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+(?:\.\d*)?(?:e-?\d+)?|\.\d+)\s*", part)
            if match is None:
                raise ValueError(
                    "expected AGENT:SECONDS, such as 0:0.5, or several with commas, got "
                    f"{abbreviate(part)}"
                )
            agent = int(match[1])
            if agent >= self.agents or agent in found:
                raise ValueError(
                    f"agent {agent} is given twice"
                    if agent in found
                    else f"agent {agent} is unknown, expected 0 .. {self.agents - 1}"
                )
            found[agent] = float(match[2])
        return found


@dataclass(frozen=True)
class Experiment:
    """Complete description of an experiment, sufficient to run it again.

    Examples
    --------
    >>> experiment = load([Setting("solver.name", "dgd", "--solver"), Setting("run.steps", "100", "--steps")])
    >>> experiment.solver.name, experiment.run.steps
    ('dgd', 100)
    >>> load(read_toml(text=experiment.to_toml())) == experiment
    True
    """

    problem: Problem = Problem()
    solver: Solver = Solver()
    topology: Topology = Topology()
    mixing: Mixing = Mixing()
    run: Run = Run()

    def sources(self) -> dict[str, str]:
        """Return the names of data and components of the user's own, by setting: files,
        ``FILE.py:NAME`` and ``MODULE:NAME``.

        Examples
        --------
        >>> load([Setting("problem.data", "mine.csv", "--data")]).sources()
        {'problem.data': 'mine.csv'}
        """
        names = {
            entry.key: vars(vars(self)[entry.table])[entry.name]
            for entry in ENTRIES.values()
            if entry.locate and entry.key != "run.metrics"
        }
        if isinstance(self.problem.test, float):  # a share of the data
            del names["problem.test"]
        own = self.run.own_metrics().items()
        names |= {f"run.metrics.{name}": place for name, place in own}
        return {
            key: name
            for key, name in names.items()
            if name
            and (
                plugins.is_plugin(name)
                or (key in ("problem.data", "problem.test") and name not in catalogue.DATA_SETS)
            )
        }

    def to_toml(self) -> str:
        """Return the complete experiment as TOML text."""
        tables = {}
        for table in TABLES:
            part = vars(vars(self)[table])
            own = {name: part[name] for name in OWN[table]}
            tables[table] = {**own, **dict(sorted(part.get("options", {}).items()))}
        return to_toml(tables)


class _StepSize(SchemaEntry):
    """The step size of a solver: a number, a word, or a schedule."""

    def fits(self, value: Value) -> bool:
        return not _complaint(value) if isinstance(value, str) else super().fits(value)

    def refusal(self, setting: Setting) -> ConfigError:
        word = re.split(r"\W", str(setting.value))[0]
        if isinstance(setting.value, str) and plugins.similar(word, SCHEDULES):
            return ConfigError(f"{setting.origin}: {_complaint(setting.value)}")
        return super().refusal(setting)


TABLES: dict[str, type] = {
    "problem": Problem,
    "solver": Solver,
    "topology": Topology,
    "mixing": Mixing,
    "run": Run,
}
ENTRIES = {key: entry for table in TABLES for key, entry in entries(TABLES[table], table).items()}
OWN = {table: [e.name for e in ENTRIES.values() if e.table == table] for table in TABLES}
STEP_SIZE = _StepSize(
    key="solver.step_size",
    hint=float | str,
    range="> 0",
    flag="--step-size",
    metavar="A",
    help="number, auto (default: the run finds it), safe (a bound), or a schedule: inverse(0.1)",
    expected='a positive number, "auto", "safe", or a schedule, such as "inverse(0.1)" or '
    '"cosine(auto, steps=2000)" '
    f"({', '.join(SCHEDULES)})",
)
FLAGS = (*ENTRIES.values(), STEP_SIZE)
# Keys of [run] for asynchronous solvers.
OWN_PACE = ("delay", "drop", "straggler", "simulate")


read_toml = partial(schema.read_toml, tables=TABLES, keys=ENTRIES)
parse_set = partial(schema.parse_set, tables=TABLES, example="problem.l2=0.05")


def load(settings: Iterable[Setting], ranks: int = 1) -> Experiment:
    """Return the experiment given by `settings`, in increasing order of precedence, and the
    defaults for `ranks` ranks.

    Selecting another component drops parameters from sources of lower precedence that it does not
    have: ``file.toml --solver dgd`` ignores a ``solver.variant`` in the file.

    Raises
    ------
    ConfigError
        A table, key or name is unknown, or a value is not of the expected type.
    """
    draft = _Draft(settings)
    run, mixing = draft.tables["run"], draft.tables["mixing"]
    draft.drop_idle()
    loss = draft.component(catalogue.PROBLEMS, "problem", Problem.name)
    solver = draft.solver()
    graph = solver.needs.graph
    if graph == "exponential" and "accelerate" in mixing:
        graph = "symmetric_exponential"
    topology = draft.component(catalogue.TOPOLOGIES, "topology", graph)
    codec = None
    if "codec" in mixing:
        codec = parameters(draft.component(catalogue.CODECS, "mixing", "", key="codec"))
    draft.check_required()
    own = {key: value for key, value in parameters(loss).items() if key not in registry.RESERVED}
    known = {
        "problem": {**draft.data(), **own},
        "solver": parameters(solver),
        "topology": graph_parameters(topology, draft.tables["topology"]["name"]),
        "mixing": codec or {},
    }
    for table, parameters_of in known.items():
        draft.tables[table]["options"] = draft.options(table, parameters_of)
    run.setdefault("agents", ranks if ranks > 1 else AGENTS_ALONE)
    if not {"steps", "stop"} & run.keys():
        run.setdefault("stop_error", STOP_ERROR)
    if draft.check_pace(solver):
        known["mixing"] = {}
    for table, parameters_of in known.items():
        if "seed" in parameters_of:
            draft.check_runs(table)
            draft.tables[table]["options"].setdefault("seed", run.get("seed", 0))
    made = Experiment(**{table: TABLES[table](**draft.tables[table]) for table in TABLES})
    return replace(made, problem=made.problem.complete(made.run.agents))


class _Draft:
    """An experiment in the making: the values of each table, and the settings that state them."""

    def __init__(self, settings: Iterable[Setting]):
        self.given: Given = {table: {} for table in TABLES}
        for each in settings:
            table, _, key = each.key.partition(".")
            self.given[table][key] = each
        for key, each in self.given["run"].items():
            schema.check_name("key of [run]", key, OWN["run"], each.origin, ENTRIES)
        self.tables: dict[str, dict[str, Any]] = {
            table: {
                key: ENTRIES[each.key].convert(each)
                for key, each in self.given[table].items()
                if key in OWN[table]
            }
            for table in TABLES
        }

    def drop_idle(self) -> None:
        """Drop what a file says of its partition, if a flag names another one."""
        problem, given = self.tables["problem"], self.given["problem"]
        for key, kinds in TAKE.items():
            idle = key in problem and problem.get("partition", kinds[0]) not in kinds
            if idle and given[key].level < given["partition"].level:
                del problem[key]

    def component(
        self, components: plugins.Components[C], table: str, default: str, key: str = "name"
    ) -> C:
        """Return the component that a table names, or the default one, whose name the table then
        has; errors name the setting.
        """
        name = self.tables[table].setdefault(key, default)
        try:
            self.tables[table][key] = components.key(name)
            return components[self.tables[table][key]]
        except ValueError as error:
            raise ConfigError(f"{_origin(self.given[table].get(key))}: {error}") from error

    def solver(self) -> type[solvers.Solver]:
        """Return the solver, and set the options that its name in a paper stands for."""
        given = self.given["solver"]
        paper = catalogue.SOLVERS.options(self.tables["solver"].get("name", Solver.name))
        found = self.component(catalogue.SOLVERS, "solver", Solver.name)
        for key, value in paper.items():
            stated, name = given.get(key), given["name"]
            if stated is not None and stated.level >= name.level:
                raise ConfigError(
                    f"{stated.origin}: {name.value} is {self.tables['solver']['name']} with {key} "
                    f"= {value}: omit it"
                )
            given[key] = Setting(f"solver.{key}", value, name.origin, False, name.level)
        return found

    def check_required(self) -> None:
        """Refuse keys that have no effect without others."""
        for table in ("problem", "mixing"):
            for key in self.tables[table]:
                needed = ENTRIES[f"{table}.{key}"].requires
                if needed and needed not in self.tables[table]:
                    raise ConfigError(
                        f"{self.given[table][key].origin}: has no effect without {table}.{needed}: "
                        f"add --set {table}.{needed}=..."
                    )

    def data(self) -> dict[str, inspect.Parameter]:
        """Complete and check ``problem.data``, and return the parameters of the data set."""
        problem, given = self.tables["problem"], self.given["problem"]
        name = problem["name"]
        if not registry.problem_spec(name).takes_data:
            for key in (
                *("data", "label", "features", "test", "partition", "standardize", "intercept"),
                "scale",
            ):
                if problem.get(key) not in (None, False):
                    raise ConfigError(
                        f"{given[key].origin}: {plugins.short(name)} is made from the numbers of "
                        f"the agents and takes no data: omit {key}"
                    )
            problem["data"] = None
            return {}
        entry = registry.PROBLEMS.get(name)  # a plug-in has no default
        source = problem.setdefault("data", entry and entry.data)
        if source is None:
            raise ConfigError(
                f"problem {plugins.short(name)} requires data: add --data NAME, or --data FILE"
            )
        try:
            make = maker(source)
        except ValueError as error:
            raise ConfigError(f"{_origin(given.get('data'))}: {error}") from error
        if make is None:
            return {}
        problem["data"] = catalogue.DATA_SETS.key(source)
        return parameters(make)

    def check_runs(self, table: str) -> None:
        """Refuse several runs at once that would share the random numbers of their solver."""
        runs = self.given["run"].get("runs")
        options = self.tables[table]["options"]
        if table == "solver" and "seed" not in options and self.tables["run"].get("runs", 1) > 1:
            raise ConfigError(
                f"{_origin(runs)}: the solver draws numbers from a seed of its own, which the runs "
                "share: add --set solver.seed=0, or --seeds in a sweep for runs one by one"
            )

    def check_pace(self, solver: type[solvers.Solver]) -> bool:
        """Check the settings of asynchronous solvers, and return whether this is one.

        Settings for the other kind are refused, or dropped if a source of higher precedence has
        chosen the solver.
        """
        tables, given = self.tables, self.given
        name, run = plugins.short(tables["solver"]["name"]), tables["run"]
        level = given["solver"]["name"].level if "name" in given["solver"] else -1
        own_pace = is_asynchronous(solver)
        table, keys = "run", [key for key in OWN_PACE if key in run]
        remedy = "is synchronous: omit it, or use an asynchronous solver: " + ", ".join(
            known for known, kind in solvers.CATALOGUE.items() if is_asynchronous(kind)
        )
        if own_pace:
            table, keys = "mixing", [*given["mixing"]]
            remedy = "has no mixings that this could change: omit it"
        for key in keys:
            each = given[table][key]
            if each.level >= level and run.get(key) is not False:
                raise ConfigError(f"{each.origin}: {name} {remedy}")
            tables[table].pop(key, None)
            tables[table].get("options", {}).pop(key, None)
        delay = run.get("delay")
        if isinstance(delay, tuple) and delay[0] > delay[1]:
            raise ENTRIES["run.delay"].refusal(given["run"]["delay"])
        wanted = Run(**run)
        for key, read in (
            ("metrics", wanted.own_metrics),
            ("stop", wanted.limits),
            ("straggler", wanted.pauses),
        ):
            try:
                read()
            except ValueError as error:
                raise ConfigError(f"{given['run'][key].origin}: {error}") from None
        return own_pace

    def options(self, table: str, known: Mapping[str, inspect.Parameter]) -> dict[str, Value]:
        """Return the values of the component's parameters; unknown and missing ones are errors."""
        content, given = self.tables[table], self.given[table]
        name = (
            content["name"] if table != "mixing" else content.get("codec", "mixing without a codec")
        )
        level = max(
            (given[key].level for key in ("name", "data", "codec") if key in given), default=-1
        )
        options = {}
        for key, each in sorted(given.items()):
            if key in known and key not in OWN[table]:
                entry = STEP_SIZE if each.key == STEP_SIZE.key else SchemaEntry(each.key)
                options[key] = entry._replace(hint=known[key].annotation).convert(each)
            elif key not in OWN[table] and each.level >= level:
                if each.key == STEP_SIZE.key:
                    raise ConfigError(f"{each.origin}: {name} has no step size: omit it")
                if table == "mixing" and "codec" not in content:
                    _refuse_without_codec(key, each)
                allowed = [*known, *OWN[table]]
                schema.check_name(f"parameter of {name}", key, allowed, each.origin, ENTRIES)
        _refuse_missing(f"{table} {name}", table, known, options)
        return options


def _refuse_missing(
    what: str, table: str, known: Mapping[str, inspect.Parameter], options: Collection[str]
) -> None:
    """Raise if a parameter of a component has neither a value nor a default."""
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in {*options, "step_size"}:
            raise ConfigError(
                f"{what} requires {key}, {describe(parameter.annotation)}: "
                f"add --set {table}.{key}=..."
            )


def _refuse_without_codec(key: str, setting: Setting) -> None:
    """Raise if a key is a parameter of codecs, of which there is none."""
    codecs = [name for name, make in catalogue.CODECS.own.items() if key in parameters(make)]
    if codecs:
        raise ConfigError(
            f"{setting.origin}: has no effect without a codec: add --set mixing.codec={codecs[0]}"
            + (f", or another of {', '.join(codecs)}" if len(codecs) > 1 else "")
        )


def parameters(component: object) -> dict[str, inspect.Parameter]:
    """Return the parameters of a component that an experiment can set: those whose type can be
    written in TOML.
    """
    # A graph or a data set itself, of a plug-in.
    if not callable(component):
        return {}
    try:
        hints = typing.get_type_hints(
            component.__init__ if inspect.isclass(component) else component
        )
    except NameError:
        hints = {}
    result = {}
    for name, parameter in inspect.signature(component).parameters.items():
        hint, default = hints.get(name, parameter.annotation), parameter.default
        if hint is inspect.Parameter.empty and isinstance(default, (bool, int, float, str)):
            hint = type(default)  # of a plug-in without annotations
        elif hint is Any and name == "step_size":
            hint = float | str
        elif hint is Any and isinstance(default, float):
            # The plain one of several forms, such as the rate of averagings.
            hint = float
        if name != "n" and not name.startswith("_") and is_toml_type(hint):
            result[name] = parameter.replace(annotation=hint)
    return result


def graph_parameters(graph: object, name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a graph; one of the user's own has `weights`, those of a networkx
    graph.
    """
    known = parameters(graph)
    if plugins.is_plugin(name) and "weights" not in known:
        hint = str | float
        kind = inspect.Parameter.KEYWORD_ONLY
        known["weights"] = inspect.Parameter("weights", kind, default=None, annotation=hint)
    return known


def is_auto(text: str) -> bool:
    """Return whether `text` is the step size "auto", or a schedule that starts there; True for text
    that is no step size.

    Examples
    --------
    >>> is_auto("auto"), is_auto("inverse(auto)"), is_auto("inverse(0.1)"), is_auto("0.1")
    (True, True, False, False)
    """
    value = parse(text)
    if not isinstance(value, str):
        return False
    return value != "safe" and (
        value in WORDS or bool(_complaint(value)) or schedule(value).start == "auto"
    )


def _complaint(text: str) -> str:
    """Return why `text` is neither a word nor a schedule that a solver takes as its step size,
    or "".
    """
    try:
        return "" if text in WORDS or schedule(text) else text
    except ValueError as error:
        return str(error)


def _origin(setting: Setting | None) -> str:
    return setting.origin if setting else "default"
