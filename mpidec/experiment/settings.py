"""Experiment configuration from a TOML file, flags and ``--set``; checked, and written back as TOML.

Every source is a list of settings ``table.key = value``; later sources take precedence: defaults < file < flags <
``--set``.  Values are checked against the signatures of the components that receive them, so a new problem, data set,
solver or topology needs no change here.  Equal settings give an equal `Experiment` and TOML text, whatever their source.

Components of the user's own are named ``FILE.py:NAME`` or ``MODULE:NAME``.  A relative file is looked up in the folder of the
experiment file, then in the working folder; the experiment holds its absolute path, so that it can be run again and resumed.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from .. import plugins
from .. import registry as catalogue
from ..datasets.datasets import unknown as unknown_data
from ..exceptions import ConfigError as ConfigError
from ..problems import registry
from ..solvers import CATALOGUE as SOLVERS
from ..solvers.step_schedules import SCHEDULES, WORDS
from ..solvers.step_schedules import parsed as schedule
from . import values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "ConfigError",
    "Experiment",
    "Mixing",
    "Problem",
    "Run",
    "Setting",
    "Solver",
    "Topology",
    "is_auto",
    "load",
    "parameters",
    "parse_set",
    "parsed",
    "read_toml",
    "unknown",
]

STEPS, STOP_ERROR = 5000, 1e-8
AGENTS_ALONE = 16


@dataclass(frozen=True)
class Problem:
    """Table ``[problem]``: the loss, the data set, and its partition over the agents."""

    name: str = "logistic"
    data: str | None = "breast_cancer"
    label: int | str | None = None
    partition: Literal["iid", "sorted", "dirichlet", "blocks"] | None = None
    alpha: float | None = None
    standardize: bool = False
    intercept: bool | None = None
    scale: Literal["sum", "mean"] | None = None
    l2_total: float | None = None
    l1: float | None = None
    l1_total: float | None = None
    lower: float | None = None
    upper: float | None = None
    simplex: float | None = None
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
    """Table ``[topology]``: the graph or schedule of graphs, and its parameters."""

    name: str = "exponential"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mixing:
    """Table ``[mixing]``: the codec of the rows (by default none), and the acceleration of the solver's mixings."""

    codec: str | None = None
    feedback: bool | None = None
    gamma: float | None = None
    accelerate: int | None = None
    method: Literal["chebyshev", "fastmix"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Table ``[run]``: the number of agents and steps, the output, and what delays and stops asynchronous agents."""

    agents: int = AGENTS_ALONE
    steps: int = STEPS
    seed: int = 0
    every: int = 10
    out: str = "run.h5"
    stop_error: float | None = None
    trajectory: bool = True
    checkpoint: float = 30.0
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    delay: float | tuple[float, ...] | None = None
    drop: float | None = None
    straggler: str | None = None
    simulate: bool | None = None

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
                    f"expected AGENT:SECONDS, such as 0:0.5, or several with commas, got {values.shown(part)}"
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
        """The names of data and components of the user's own, by setting: files, ``FILE.py:NAME`` and ``MODULE:NAME``.

        Examples
        --------
        >>> load([Setting("problem.data", "mine.csv", "--data")]).sources()
        {'problem.data': 'mine.csv'}
        """
        names = {
            "problem.data": self.problem.data,
            "problem.name": self.problem.name,
            "solver.name": self.solver.name,
            "topology.name": self.topology.name,
            "mixing.codec": self.mixing.codec,
        }
        return {
            key: name
            for key, name in names.items()
            if name
            and (
                plugins.is_plugin(name)
                or (key == "problem.data" and not registry.is_known_data(name))
            )
        }

    def to_toml(self) -> str:
        """Return the complete experiment as TOML text."""
        lines = []
        for table in fields(self):
            part = getattr(self, table.name)
            own = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "options"}
            settings = {**own, **dict(sorted(getattr(part, "options", {}).items()))}
            given = {key: value for key, value in settings.items() if value is not None}
            if not given:
                continue
            lines += [
                f"[{table.name}]",
                *(f"{key} = {values.text(value)}" for key, value in given.items()),
                "",
            ]
        return "\n".join(lines)


class Setting(NamedTuple):
    """Setting ``table.key = value`` with its origin; if `text`, the value is converted from a command line string."""

    key: str
    value: Any
    origin: str
    text: bool = True
    level: int = 1


TABLES: dict[str, type] = {
    "problem": Problem,
    "solver": Solver,
    "topology": Topology,
    "mixing": Mixing,
    "run": Run,
}
REQUIRES = {"feedback": "codec", "gamma": "codec", "method": "accelerate"}
TOTAL_L2 = {
    name: entry.l2_total for name, entry in registry.PROBLEMS.items() if entry.l2_total
}  # summed over all agents
NAMES = (
    "problem.name",
    "problem.data",
    "solver.name",
    "topology.name",
    "mixing.codec",
)  # of components, or files
STEP_SIZE = "solver.step_size"
POSITIVE = {
    "run.agents",
    "run.steps",
    "run.every",
    "run.stop_error",
    "run.checkpoint",
    "problem.alpha",
    "problem.batch_size",
    "mixing.accelerate",
    "mixing.gamma",
    "problem.simplex",
    STEP_SIZE,
}
OWN_PACE = ("delay", "drop", "straggler", "simulate")  # keys of [run] for asynchronous solvers
NOT_NEGATIVE = {
    "run.seed",
    "run.delay",
    "run.drop",
    "problem.noise",
    "problem.l2_total",
    "problem.l1",
    "problem.l1_total",
}
OWN = " (one of your own: FILE.py:NAME)"
LARGEST, LARGEST_SEED = 2**63 - 1, 2**32 - 1


def read_toml(
    path: str = "", *, text: str | None = None, tables: Iterable[str] = TABLES
) -> list[Setting]:
    """Return the settings of an experiment file, or of its text, which may have these `tables`.

    Raises
    ------
    ConfigError
        The file cannot be read, is not TOML, or holds anything other than known tables.
    """
    name = path or "config"
    try:
        if text is None:
            with open(path, "rb") as file:
                text = file.read().decode()
        content_of = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{name}: cannot read the experiment: {error.strerror}") from None
    except UnicodeDecodeError as error:
        if os.path.splitext(name)[1] in (".h5", ".hdf5"):
            raise ConfigError(
                f"{name} is the file of a run, expected an experiment in TOML: continue the run with --resume "
                f"{name}"
            ) from None
        raise ConfigError(f"{name}: not a TOML file: byte {error.start} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    settings = []
    for table, content in content_of.items():
        if table not in tables:
            raise ConfigError(unknown("table", table, tables, f"{name}:{table}"))
        if not isinstance(content, dict):
            raise ConfigError(
                f"{name}:{table}: expected a table, [{table}], got {values.shown(content)}"
            )
        settings += [
            Setting(
                f"{table}.{key}",
                _found(f"{table}.{key}", value, os.path.dirname(path)),
                f"{name}:{table}.{key}",
                text=False,
                level=0,
            )
            for key, value in content.items()
        ]
    return settings


def _found(key: str, value: Any, folder: str) -> Any:
    """Return the name of a component with the absolute path of its file, or a data file that lies beside the experiment."""
    if key not in NAMES or not isinstance(value, str):
        return value
    beside = os.path.join(folder, value if not os.path.isabs(value) else os.path.basename(value))
    if (
        key == "problem.data"
        and os.path.splitext(value)[1]
        and not os.path.exists(value)
        and os.path.isfile(beside)
    ):
        return beside
    return plugins.located(value, folder)


def parse_set(
    argument: str, tables: Iterable[str] = TABLES, example: str = "problem.l2=0.05"
) -> Setting:
    """Return the setting of an option ``--set table.key=value``; a value that is not TOML is a string."""
    key, equals, value = (part.strip() for part in argument.partition("="))
    table, dot, name = key.partition(".")
    if not (equals and dot and table and name):
        raise ConfigError(
            f"--set {values.shown(argument)}: expected table.key=value, such as {example}"
        )
    if table not in tables:
        raise ConfigError(unknown("table", table, tables, f"--set {key}"))
    return Setting(key, value, f"--set {key}", level=2)


def load(settings: Iterable[Setting], ranks: int = 1) -> Experiment:
    """Return the experiment given by `settings`, in increasing order of precedence, and the defaults for `ranks` ranks.

    Selecting another component drops parameters from sources of lower precedence that it does not have:
    ``file.toml --solver dgd`` ignores a ``solver.variant`` in the file.

    Raises
    ------
    ConfigError
        A table, key or name is unknown, or a value is not of the expected type.
    """
    given: dict[str, dict[str, Setting]] = {table: {} for table in TABLES}
    for setting in settings:
        table, _, key = setting.key.partition(".")
        given[table][key] = (
            setting._replace(value=_found(setting.key, setting.value, os.curdir))
            if setting.text
            else setting
        )
    tables = {table: _table_values(table, given[table]) for table in TABLES}
    problem, run = tables["problem"], tables["run"]
    catalogue_of = {
        "problem": catalogue.problems(),
        "solver": catalogue.solvers(),
        "topology": catalogue.topologies(),
    }
    made: dict[str, Any] = {}
    for table, names in catalogue_of.items():
        default = _default_graph(made["solver"], tables) if table == "topology" else None
        name = tables[table].setdefault("name", default or TABLES[table]().name)
        if name not in names:
            raise ConfigError(unknown(table, name, names, _origin(given[table].get("name"))) + OWN)
        made[table] = _component(names, name, given[table].get("name"))
    name = problem["name"]
    accepted = {table: parameters(component) for table, component in made.items()}
    accepted["problem"] = {
        **_data(name, problem, given["problem"]),
        **{
            key: value for key, value in accepted["problem"].items() if key not in registry.RESERVED
        },
    }
    for table, known in accepted.items():
        tables[table]["options"] = _options(table, tables[table]["name"], given[table], known)
    accepted["mixing"] = _mixing(tables["mixing"], given["mixing"])
    agents = run.setdefault("agents", ranks if ranks > 1 else AGENTS_ALONE)
    if _check_pace(made["solver"], tables, given):
        accepted["mixing"] = {}
    if name in TOTAL_L2 and problem.get("scale") != "mean" and "l2_total" not in problem:
        problem["options"].setdefault("l2", TOTAL_L2[name] / agents)
    if problem.get("partition") == "dirichlet":
        problem.setdefault("alpha", 1.0)
    if "steps" not in run and "stop_error" not in run:
        run["stop_error"] = STOP_ERROR
    run.setdefault("steps", STEPS)
    for table in ("problem", "topology", "mixing"):
        if "seed" in accepted[table]:
            tables[table]["options"].setdefault("seed", run.get("seed", 0))
    return Experiment(**{table: TABLES[table](**content) for table, content in tables.items()})


def _component(names: plugins.Table, name: str, setting: Setting | None) -> Any:
    """Return the component with this name; the error for a plug-in names the setting."""
    try:
        return names[name]
    except ValueError as error:
        raise ConfigError(f"{_origin(setting)}: {error}") from error


def _data(
    name: str, problem: dict[str, Any], given: Mapping[str, Setting]
) -> dict[str, inspect.Parameter]:
    """Complete and check ``problem.data``, and return the parameters of the data set."""
    if not registry.takes_data(name):
        for key in ("data", "label", "partition", "standardize", "intercept", "scale"):
            if key in given:
                raise ConfigError(
                    f"{given[key].origin}: {plugins.short(name)} is made from the numbers of the agents and takes no "
                    f"data: omit {key}"
                )
        problem["data"] = None
        return {}
    source = problem.setdefault("data", catalogue.default_data(name))
    if source is None:
        raise ConfigError(
            f"problem {plugins.short(name)} requires data: add --data NAME, or --data FILE"
        )
    try:
        data = catalogue.data(source)
    except ValueError as error:
        raise ConfigError(f"{_origin(given.get('data'))}: {error}") from error
    if data is None:
        raise ConfigError(
            f"{_origin(given.get('data'))}: {unknown_data(source, catalogue.data_sets())}"
        )
    return parameters(data)


def _check_pace(
    solver: Any, tables: Mapping[str, dict[str, Any]], given: Mapping[str, Mapping[str, Setting]]
) -> bool:
    """Check the settings of asynchronous solvers, and return whether this is one.

    Settings for the other kind are refused, or dropped if a source of higher precedence has chosen the solver.
    """
    name, run = plugins.short(tables["solver"]["name"]), tables["run"]
    level = given["solver"]["name"].level if "name" in given["solver"] else -1
    own_pace = bool(getattr(solver, "asynchronous", False))
    table, keys = (
        ("mixing", [*given["mixing"]])
        if own_pace
        else ("run", [key for key in OWN_PACE if key in run])
    )
    for key in keys:
        setting = given[table][key]
        if setting.level >= level and run.get(key) is not False:
            raise ConfigError(
                f"{setting.origin}: {name} "
                + (
                    "has no mixings that this could change: omit it"
                    if own_pace
                    else f"takes common steps: omit it, or use an asynchronous solver: {', '.join(_asynchronous())}"
                )
            )
        tables[table].pop(key, None)
        tables[table].get("options", {}).pop(key, None)
    if run.get("drop") is not None and run["drop"] >= 1:
        raise ConfigError(
            f"{given['run']['drop'].origin}: expected a probability >= 0 and < 1, got {run['drop']:g}"
        )
    if isinstance(run.get("delay"), tuple) and not (
        len(run["delay"]) == 2 and 0 <= run["delay"][0] <= run["delay"][1]
    ):
        raise ConfigError(
            f"{given['run']['delay'].origin}: expected LOW,HIGH with 0 <= LOW <= HIGH, got "
            f"{','.join(f'{value:g}' for value in run['delay'])}"
        )
    try:
        Run(agents=run["agents"], straggler=run.get("straggler")).pauses()
    except ValueError as error:
        raise ConfigError(f"{given['run']['straggler'].origin}: {error}") from None
    return own_pace


def _asynchronous() -> list[str]:
    """The names of the asynchronous solvers of the package."""
    return [name for name, solver in SOLVERS.items() if getattr(solver, "asynchronous", False)]


def _default_graph(solver: Any, tables: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the default topology of the solver, or a symmetric one if the mixing is accelerated."""
    graph = getattr(solver, "graph", None)
    return (
        "symmetric_exponential"
        if graph == "exponential" and "accelerate" in tables["mixing"]
        else graph
    )


def _mixing(table: dict[str, Any], given: Mapping[str, Setting]) -> dict[str, inspect.Parameter]:
    """Check the table ``[mixing]``, add the codec's options to it, and return the parameters of the codec."""
    codecs = catalogue.codecs()
    codec = table.get("codec")
    if codec is not None and codec not in codecs:
        raise ConfigError(unknown("codec", codec, codecs, _origin(given["codec"])) + OWN)
    for key, other in REQUIRES.items():
        if key in table and other not in table:
            raise ConfigError(
                f"{given[key].origin}: has no effect without mixing.{other}: add --set mixing.{other}=..."
            )
    known = parameters(_component(codecs, codec, given["codec"])) if codec is not None else {}
    table["options"] = _options("mixing", codec or "mixing without a codec", given, known)
    return known


def parameters(component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a component that an experiment can set: those whose type can be written in TOML."""
    if not callable(component):  # a graph or a data set itself, of a plug-in
        return {}
    try:
        hints = typing.get_type_hints(
            component.__init__ if inspect.isclass(component) else component
        )
    except NameError:
        hints = {}
    result = {}
    for name, parameter in inspect.signature(component).parameters.items():
        hint = hints.get(name, parameter.annotation)
        if hint is inspect.Parameter.empty and isinstance(
            parameter.default, (bool, int, float, str)
        ):
            hint = type(parameter.default)  # of a plug-in without annotations
        if name != "step_size" and hint is Any and isinstance(parameter.default, float):
            hint = float  # the plain one of several forms, such as the rate of averagings
        if name == "step_size" and hint is Any:
            hint = float | str
        if name != "n" and not name.startswith("_") and values.settable(hint):
            result[name] = parameter.replace(annotation=hint)
    return result


def _table_values(table: str, given: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the values of the keys of the table itself, without those of the component that it names."""
    hints = typing.get_type_hints(TABLES[table])
    if table == "run":
        for key in given.keys() - hints.keys():
            raise ConfigError(unknown("key of [run]", key, hints, given[key].origin))
    return {
        key: _value(given[key], hints[key]) for key in given if key in hints and key != "options"
    }


def _options(
    table: str, name: str, given: Mapping[str, Setting], known: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return the values of the component's parameters; unknown and missing ones are errors."""
    own = [f.name for f in fields(TABLES[table]) if f.name != "options"]
    level = max((given[key].level for key in ("name", "data", "codec") if key in given), default=-1)
    options = {}
    for key, setting in given.items():
        if key in own:
            continue
        if key in known:
            options[key] = _value(setting, known[key].annotation)
        elif setting.level >= level and setting.key == STEP_SIZE:
            raise ConfigError(f"{setting.origin}: {name} has no step size: omit it")
        elif setting.level >= level:
            raise ConfigError(unknown(f"parameter of {name}", key, [*known, *own], setting.origin))
    for key, parameter in known.items():
        if (
            parameter.default is inspect.Parameter.empty
            and key not in options
            and key != "step_size"
        ):
            raise ConfigError(
                f"{table} {name} requires {key}, {_expected(parameter.annotation)}: "
                f"add --set {table}.{key}=..."
            )
    return {key: options[key] for key in sorted(options)}


def _value(setting: Setting, hint: Any) -> Any:
    """Return the setting's value converted to the type `hint`; text is parsed as TOML, or else taken as a string."""
    if setting.key == "run.delay" and setting.text and "," in setting.value:
        setting = setting._replace(value=f"[{setting.value.strip('[] ')}]")
    for candidate in (parsed(setting.value), setting.value) if setting.text else (setting.value,):
        try:
            value = values.converted(candidate, hint)
        except (TypeError, ValueError):
            continue
        if setting.key == STEP_SIZE and isinstance(value, str) and _complaint(value):
            continue
        if (
            isinstance(value, str)
            or value is None
            or isinstance(value, tuple)
            or _in_range(setting.key, value)
        ):
            return value
    reason = (
        _complaint(setting.value)
        if setting.key == STEP_SIZE and isinstance(setting.value, str)
        else ""
    )
    like_schedule = difflib.get_close_matches(re.split(r"\W", str(setting.value))[0], SCHEDULES)
    raise ConfigError(
        f"{setting.origin}: {reason}"
        if reason and like_schedule
        else f"{setting.origin}: expected {_expected(hint, setting.key)}, got {values.shown(setting.value)}"
    )


def is_auto(text: str) -> bool:
    """Return whether `text` is the step size "auto", or a schedule that starts there; True for text that is no step size.

    Examples
    --------
    >>> is_auto("auto"), is_auto("inverse(auto)"), is_auto("inverse(0.1)"), is_auto("0.1")
    (True, True, False, False)
    """
    value = parsed(text)
    if not isinstance(value, str):
        return False
    return value != "safe" and (
        value in WORDS or bool(_complaint(value)) or schedule(value).start == "auto"
    )


def _complaint(text: str) -> str:
    """Return why `text` is neither a word nor a schedule that a solver takes as its step size, or ""."""
    try:
        return "" if text in WORDS or schedule(text) else text
    except ValueError as error:
        return str(error)


def _in_range(key: str, value: float) -> bool:
    if isinstance(value, int) and abs(value) > (LARGEST_SEED if key.endswith(".seed") else LARGEST):
        return False
    return value > 0 if key in POSITIVE else value >= 0 if key in NOT_NEGATIVE else True


def parsed(text: str) -> Any:
    """Return the value that `text` is in TOML; the text itself if it is none."""
    try:
        content = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return content["value"] if len(content) == 1 else text


def _expected(hint: Any, key: str = "") -> str:
    """Return the description of values of type `hint` for a message."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if key == "run.delay":
        return "a number >= 0, or two: LOW,HIGH"
    if key == "run.drop":
        return "a probability >= 0 and < 1"
    if key == STEP_SIZE:
        return (
            'a positive number, "auto", "safe", or a schedule, such as "inverse(0.1)" or "cosine(auto, steps=2000)" '
            f"({', '.join(SCHEDULES)})"
        )
    if origin in values.UNIONS:
        return " or ".join(
            _expected(choice, key) for choice in arguments if values.settable(choice)
        )
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin in values.LISTS:
        return f"a list, each {_expected(arguments[0])}"
    sign = "positive " if key in POSITIVE else "non-negative " if key in NOT_NEGATIVE else ""
    words = {
        int: f"a {sign}integer" if sign else "an integer",
        float: f"a {sign or 'finite '}number",
        bool: "true or false",
    }
    return words.get(hint, "a string")


def _origin(setting: Setting | None) -> str:
    return setting.origin if setting else "default"


def unknown(what: str, name: str, known: Iterable[str], origin: str) -> str:
    """Return the message for an unknown name, with the closest known ones."""
    return f"{origin}: unknown {what} {values.shown(name)}: {plugins.nearest(name, known)}"
