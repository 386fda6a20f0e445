"""Experiments: what to run, from a TOML file, from flags and from ``--set``, checked and written back as TOML.

Every source is a list of settings ``table.key = value``; later sources win: defaults < file < flags < ``--set``.  A
value is checked against the signature of the component that takes it, so that a new problem, data set, solver or topology
needs nothing here.  The same experiment has the same `Experiment` and the same text whichever way it was said.
"""
from __future__ import annotations

import difflib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from . import catalogue, values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "ConfigError", "Experiment", "Mixing", "Problem", "Run", "Setting", "Solver", "Topology", "load", "parameters", "parse_set",
    "read_toml", "unknown"]

STEPS, STOP_ERROR = 5000, 1e-8
AGENTS_ALONE = 16


class ConfigError(ValueError):
    """A setting that cannot be used: the message says which, from where, and what was expected."""


@dataclass(frozen=True)
class Problem:
    """Table ``[problem]``: the loss, the data, and how they are split over the agents."""

    name: str = "logistic"
    data: str = "breast_cancer"
    partition: Literal["iid", "sorted", "dirichlet", "blocks"] | None = None
    alpha: float | None = None
    standardize: bool = False
    batch_size: int | None = None
    noise: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Solver:
    """Table ``[solver]``: the method and its parameters."""

    name: str = "gradient_tracking"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Topology:
    """Table ``[topology]``: the graph or the schedule of graphs, and its parameters."""

    name: str = "exponential"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mixing:
    """Table ``[mixing]``: how rows are encoded (by default not at all), and how often a solver's mixing is repeated."""

    codec: str | None = None
    feedback: bool | None = None
    gamma: float | None = None
    accelerate: int | None = None
    method: Literal["chebyshev", "fastmix"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Table ``[run]``: how many agents, how long, and what is written where."""

    agents: int = AGENTS_ALONE
    steps: int = STEPS
    seed: int = 0
    every: int = 10
    out: str = "run.h5"
    stop_error: float | None = None
    trajectory: bool = True
    checkpoint: float = 30.0
    progress: Literal["auto", "bar", "lines", "none"] = "auto"


@dataclass(frozen=True)
class Experiment:
    """All that is needed to run an experiment, and to run it again.

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

    def to_toml(self) -> str:
        """The TOML text that says this experiment, whole."""
        lines = []
        for table in fields(self):
            part = getattr(self, table.name)
            own = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "options"}
            settings = {**own, **dict(sorted(getattr(part, "options", {}).items()))}
            said = {key: value for key, value in settings.items() if value is not None}
            if not said:
                continue
            lines += [f"[{table.name}]", *(f"{key} = {values.text(value)}" for key, value in said.items()), ""]
        return "\n".join(lines)


class Setting(NamedTuple):
    """``table.key = value`` and where it was said; a `str` from the command line is converted to what is expected."""

    key: str
    value: Any
    origin: str
    text: bool = True
    level: int = 1


TABLES: dict[str, type] = {"problem": Problem, "solver": Solver, "topology": Topology, "mixing": Mixing, "run": Run}
NEEDS = {"feedback": "codec", "gamma": "codec", "method": "accelerate"}
RIDGE = {"logistic": 16.0, "softmax": 16.0}         # l2 of all agents together: the solution is the same for any number
GRAPH = {"extra": "symmetric_exponential", "exact_diffusion": "symmetric_exponential", "d2": "ring",
         "relaysgd": "binary_tree", "dsgd_ceca": "ceca"}
TUNED = 1 / 400                                     # step size per agent of the default experiment, in 370 steps to 1e-8
POSITIVE = {"run.agents", "run.steps", "run.every", "run.stop_error", "run.checkpoint", "problem.alpha", "problem.batch_size",
            "mixing.accelerate", "mixing.gamma"}
NOT_NEGATIVE = {"run.seed", "problem.noise", "solver.step_size"}
LARGEST, LARGEST_SEED = 2**63 - 1, 2**32 - 1


def read_toml(path: str = "", *, text: str | None = None) -> list[Setting]:
    """The settings of an experiment file, or of its text.

    Raises
    ------
    ConfigError
        The file cannot be read, is not TOML, or is not made of tables.
    """
    name = path or "config"
    try:
        if text is None:
            with open(path, "rb") as file:
                text = file.read().decode()
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{name}: cannot read the experiment: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not a TOML file: byte {error.start} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    settings = []
    for table, content in tables.items():
        if table not in TABLES:
            raise ConfigError(unknown("table", table, TABLES, f"{name}:{table}"))
        if not isinstance(content, dict):
            raise ConfigError(f"{name}:{table}: expected a table, [{table}], got {values.shown(content)}")
        settings += [Setting(f"{table}.{key}", value, f"{name}:{table}.{key}", text=False, level=0)
                     for key, value in content.items()]
    return settings


def parse_set(argument: str) -> Setting:
    """One ``--set table.key=value``; the value is read as TOML, or else taken as a string."""
    key, equals, value = (part.strip() for part in argument.partition("="))
    table, dot, name = key.partition(".")
    if not (equals and dot and table and name):
        raise ConfigError(f"--set {values.shown(argument)}: expected table.key=value, such as problem.l2=0.05")
    if table not in TABLES:
        raise ConfigError(unknown("table", table, TABLES, f"--set {key}"))
    return Setting(key, value, f"--set {key}", level=2)


def load(settings: Iterable[Setting], ranks: int = 1) -> Experiment:
    """The experiment that `settings`, in order of precedence, make of the default one on a number of ranks.

    Naming another component drops the parameters of a less important source which it does not know:
    ``file.toml --solver dgd`` leaves a ``solver.variant`` of the file behind.

    Raises
    ------
    ConfigError
        An unknown table, key or name, or a value that is not of the expected type.
    """
    said: dict[str, dict[str, Setting]] = {table: {} for table in TABLES}
    for setting in settings:
        table, _, key = setting.key.partition(".")
        said[table][key] = setting
    tables = {table: _own(table, said[table]) for table in TABLES}
    problem, run = tables["problem"], tables["run"]
    catalogue_of = {"problem": catalogue.problems(), "solver": catalogue.solvers(), "topology": catalogue.topologies()}
    for table, names in catalogue_of.items():
        default = _graph(tables) if table == "topology" else None
        name = tables[table].setdefault("name", default or TABLES[table]().name)
        if name not in names:
            raise ConfigError(unknown(table, name, names, _origin(said[table].get("name"))))
    name = problem["name"]
    data = catalogue.data(problem.setdefault("data", catalogue.default_data(name)))
    if data is None:
        origin = _origin(said["problem"].get("data"))
        raise ConfigError(unknown("data set", problem["data"], catalogue.data_sets(), origin) + ", or a file")
    takes = {"problem": {**parameters(data), **parameters(catalogue_of["problem"][name])}}
    takes |= {table: parameters(catalogue_of[table][tables[table]["name"]]) for table in ("solver", "topology")}
    for table, taken in takes.items():
        tables[table]["options"] = _options(table, tables[table]["name"], said[table], taken)
    takes["mixing"] = _mixing(tables["mixing"], said["mixing"])
    agents = run.setdefault("agents", ranks if ranks > 1 else AGENTS_ALONE)
    if name in RIDGE:
        problem["options"].setdefault("l2", RIDGE[name] / agents)
    if problem.get("partition") == "dirichlet":
        problem.setdefault("alpha", 1.0)
    if "steps" not in run and "stop_error" not in run:
        run["stop_error"] = STOP_ERROR
    run.setdefault("steps", STEPS)
    for table in ("problem", "topology", "mixing"):
        if "seed" in takes[table]:
            tables[table]["options"].setdefault("seed", run.get("seed", 0))
    experiment = Experiment(**{table: TABLES[table](**content) for table, content in tables.items()})
    if _is_default(experiment, agents):
        tables["solver"]["options"]["step_size"] = TUNED * agents
    return experiment


def _graph(tables: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The default topology, if the solver or the mixing needs another one than the usual."""
    return GRAPH.get(tables["solver"]["name"]) or ("symmetric_exponential" if "accelerate" in tables["mixing"] else None)


def _mixing(table: dict[str, Any], said: Mapping[str, Setting]) -> dict[str, inspect.Parameter]:
    """Check the table ``[mixing]``, put the codec's parameters into it, and return those that there are."""
    codecs = catalogue.codecs()
    codec = table.get("codec")
    if codec is not None and codec not in codecs:
        raise ConfigError(unknown("codec", codec, codecs, _origin(said["codec"])))
    for key, other in NEEDS.items():
        if key in table and other not in table:
            raise ConfigError(f"{said[key].origin}: of no use without mixing.{other}: give --set mixing.{other}=..., too")
    taken = parameters(codecs[codec]) if codec is not None else {}
    table["options"] = _options("mixing", codec or "mixing without a codec", said, taken)
    return taken


def _is_default(experiment: Experiment, agents: int) -> bool:
    """Whether it is the default experiment, but for the table ``[run]``."""
    partition = experiment.problem.partition or "sorted"
    default = Problem(data="breast_cancer", partition=partition, options={"l2": RIDGE["logistic"] / agents})
    return (replace(experiment.problem, partition=partition) == default and partition == "sorted"
            and experiment.solver == Solver() and experiment.topology == Topology() and experiment.mixing == Mixing())


def parameters(component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that an experiment can set: those of the signature which have a type that TOML can say."""
    try:
        hints = typing.get_type_hints(component.__init__ if inspect.isclass(component) else component)
    except NameError:
        hints = {}
    result = {}
    for name, parameter in inspect.signature(component).parameters.items():
        hint = hints.get(name, parameter.annotation)
        if name != "n" and not name.startswith("_") and values.settable(hint):
            result[name] = parameter.replace(annotation=hint)
    return result


def _own(table: str, said: Mapping[str, Setting]) -> dict[str, Any]:
    """The values of the keys that belong to the table itself, not to the component it names."""
    hints = typing.get_type_hints(TABLES[table])
    if table == "run":
        for key in said.keys() - hints.keys():
            raise ConfigError(unknown("key of [run]", key, hints, said[key].origin))
    return {key: _value(said[key], hints[key]) for key in said if key in hints and key != "options"}


def _options(table: str, name: str, said: Mapping[str, Setting],
             taken: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The values of the component's parameters, every one known to it."""
    own = [f.name for f in fields(TABLES[table]) if f.name != "options"]
    level = max((said[key].level for key in ("name", "data", "codec") if key in said), default=-1)
    options = {}
    for key, setting in said.items():
        if key in own:
            continue
        if key in taken:
            options[key] = _value(setting, taken[key].annotation)
        elif setting.level >= level:
            raise ConfigError(unknown(f"parameter of {name}", key, [*taken, *own], setting.origin))
    for key, parameter in taken.items():
        if parameter.default is inspect.Parameter.empty and key not in options and key != "step_size":
            raise ConfigError(f"{table} {name} needs {key}, {_expected(parameter.annotation)}: "
                              f"give --set {table}.{key}=...")
    return {key: options[key] for key in sorted(options)}


def _value(setting: Setting, hint: Any) -> Any:
    """The setting's value as the type that is expected; a text is read as TOML, or else taken as the string it is."""
    for candidate in (_parsed(setting.value), setting.value) if setting.text else (setting.value,):
        try:
            value = values.converted(candidate, hint)
        except (TypeError, ValueError):
            continue
        if isinstance(value, str) or value is None or isinstance(value, tuple) or _in_range(setting.key, value):
            return value
    raise ConfigError(f"{setting.origin}: expected {_expected(hint, setting.key)}, got {values.shown(setting.value)}")


def _in_range(key: str, value: float) -> bool:
    if isinstance(value, int) and abs(value) > (LARGEST_SEED if key.endswith(".seed") else LARGEST):
        return False
    return value > 0 if key in POSITIVE else value >= 0 if key in NOT_NEGATIVE else True


def _parsed(text: str) -> Any:
    try:
        content = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return content["value"] if len(content) == 1 else text


def _expected(hint: Any, key: str = "") -> str:
    """What a value of type `hint` is called in a message."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in values.UNIONS:
        return " or ".join(_expected(choice, key) for choice in arguments if values.settable(choice))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin in values.LISTS:
        return f"a list, each {_expected(arguments[0])}"
    sign = "positive " if key in POSITIVE else "non-negative " if key in NOT_NEGATIVE else ""
    words = {int: f"a {sign}integer" if sign else "an integer", float: f"a {sign or 'finite '}number",
             bool: "true or false"}
    return words.get(hint, "a string")


def _origin(setting: Setting | None) -> str:
    return setting.origin if setting else "default"


def unknown(what: str, name: str, known: Iterable[str], origin: str) -> str:
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"
    return f"{origin}: unknown {what} {values.shown(name)}: {remedy}"
