"""Schemas of settings: each key is declared once, for files, flags, ``--set``, keyword arguments,
checks, and TOML.

A schema is a dataclass whose fields are declared by `setting`; `entries` returns their declarations
by ``table.key``.  Every source is a list of settings ``table.key = value``, which `Entry.convert`
checks; an error states the origin of the setting.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, Union

from .. import plugins
from ..cli import Flag
from ..exceptions import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Value: TypeAlias = "str | bool | int | float | tuple[Value, ...] | None"
UNIONS, LISTS = (Union, types.UnionType), (tuple, list, Sequence)
LARGEST, LARGEST_SEED, HUGE = 2**63 - 1, 2**32 - 1, 1e300
RANGES: dict[str, Callable[[float], bool]] = {
    "": lambda x: True,
    "> 0": lambda x: 0 < x < HUGE,
    ">= 0": lambda x: 0 <= x < HUGE,
    "in (0, 1)": lambda x: 0 < x < 1,
    "in (0, 1]": lambda x: 0 < x <= 1,
    "in [0, 1)": lambda x: 0 <= x < 1,
    "in [0, 1]": lambda x: 0 <= x <= 1,
}


class Setting(NamedTuple):
    """Setting ``table.key = value`` with its origin; if `text`, the value is converted from a
    command line string.

    A relative file is looked up in `folder` first, if there is one, and texts in the working
    folder.
    """

    key: str
    value: object
    origin: str
    text: bool = True
    level: int = 1
    folder: str | None = None


class SchemaEntry(NamedTuple):
    """Declaration of a key ``table.key``.

    Parameters
    ----------
    key : str
    hint : type
    range : str
        Of numbers, and of those in a list: a key of RANGES.
    name : str
        Of the field.
    flag, metavar, help : str
        On the command line; without help there is no flag, and without metavar the flag takes no
        value.
    repeat : bool
        Whether the flag can be given several times.
    expected : str
        Description of the values; by default that of type and range.
    locate : callable, optional
        ``locate(name, folder)`` returns a name with the path of its file.
    requires : str
        Key of the table without which this one has no effect.
    aliases : tuple of str
        Other spellings of the flag.
    argument : str
        Name of the argument that functions of the package take for it; by default that of the
        field.
    """

    key: str = ""
    hint: object = str
    range: str = ""
    name: str = ""
    flag: str = ""
    metavar: str = ""
    help: str = ""
    repeat: bool = False
    expected: str = ""
    locate: Callable[[str, str], str] | None = None
    requires: str = ""
    aliases: tuple[str, ...] = ()
    argument: str = ""

    @property
    def table(self) -> str:
        """The first part of the key."""
        return self.key.partition(".")[0]

    def fits(self, value: Value) -> bool:
        """Return whether a value of the right type is in the range."""
        if isinstance(value, tuple):
            return all(map(self.fits, value))
        if value is None or isinstance(value, (str, bool)):
            return True
        largest = LARGEST_SEED if self.key.endswith(".seed") else LARGEST
        return RANGES[self.range](value) and (isinstance(value, float) or abs(value) <= largest)

    def convert(self, setting: Setting) -> Value:
        """Return the value of a setting, checked; text is parsed as TOML, or else taken as a string
        or a list.

        Raises
        ------
        ConfigError
            The value is not of the expected type, or out of range.
        """
        text = str(setting.value)
        several = [parse(f"[{text}]")] if "," in text else []
        if re.fullmatch(r"[-+]?(\.\d+|\d+\.)(e[-+]?\d+)?", text, re.IGNORECASE):  # not in TOML
            several.append(float(text))
        for candidate in [parse(text), text, *several] if setting.text else [setting.value]:
            try:
                value = coerce(candidate, self.hint)
            except ValueError:
                continue
            if isinstance(value, str) and self.locate and (setting.text or setting.folder):
                value = self.locate(value, setting.folder or os.curdir)
            if self.fits(value):
                return value
        raise self.refusal(setting)

    def refusal(self, setting: Setting) -> ConfigError:
        """Return the error for a setting whose value is not an expected one."""
        return ConfigError(
            f"{setting.origin}: expected {self.expected or describe(self.hint, self.range)}, got "
            f"{abbreviate(setting.value)}"
        )


def setting(default: T, range: str = "", **declared: Any) -> T:
    """Return a field of a schema; see `SchemaEntry`. By default its key is the name of the field, and
    its flag, too.
    """
    return field(default=default, metadata={"entry": SchemaEntry(range=range, **declared)})


def entries(schema: type, table: str = "") -> dict[str, SchemaEntry]:
    """Return the declarations of a schema by ``table.key``; fields without a plain default have
    none.

    Parameters
    ----------
    schema : dataclass
    table : str
        That of fields without a key.
    """
    hints, found = typing.get_type_hints(schema), {}
    for each in fields(schema):
        if each.default is MISSING:
            continue
        entry = each.metadata.get("entry", SchemaEntry())
        key = entry.key or f"{table}.{each.name}"
        flag = f"--{(entry.flag or each.name).replace('_', '-')}" if entry.help else ""
        found[key] = entry._replace(key=key, name=each.name, hint=hints[each.name], flag=flag)
    return found


def flags(schema: Iterable[SchemaEntry], help: Mapping[str, str] | None = None) -> list[Flag]:
    """Return the flags of a schema, and --set, with `help` of its own for some of them, by flag."""
    made = []
    for entry in schema:
        if entry.flag:
            how = {"action": "store_const", "const": "true"}
            if entry.metavar:
                how = {"action": "append" if entry.repeat else "store", "metavar": entry.metavar}
            names = ["-o"] * (entry.flag == "--out") + [entry.flag, *entry.aliases]
            made.append(Flag(*names, help=(help or {}).get(entry.flag, entry.help), **how))
    what = "set any key of an experiment file"
    key = "table.key=value"
    return [*made, Flag("--set", metavar=key, action="append", default=[], help=what)]


def flag_settings(args: argparse.Namespace, schema: Iterable[SchemaEntry]) -> list[Setting]:
    """Return the settings that the flags give."""
    found = []
    for entry in schema:
        value = getattr(args, entry.flag[2:].replace("-", "_"), None) if entry.flag else None
        if value is not None:
            text = ",".join(value) if isinstance(value, list) else value
            found.append(Setting(entry.key, text, entry.flag))
    return found


KEYWORD = re.compile(
    r"""(?P<call>[\w.]+\([^()]*\))"""  # is shown as it is
    r"""|`?(?<![\w.'"])(?P<name>[a-z_]+) ?= ?(?P<value>"[^"]*"|'[^']*'|[\w./:+-]*)`?"""
)
GRAPH = re.compile(r"\btopology\.(?P<name>[a-z_]+)\((?:n|\d+)(?:, [^()]*)?\)")
UNAVAILABLE = re.compile(r" \((?P<name>[a-z_]+)=[^()]*\)")


def in_flags(text: str, schema: Iterable[SchemaEntry], keys: Mapping[str, str]) -> str:
    """Return a message about keyword arguments, in the flags of a command.

    Parameters
    ----------
    text : str
    schema : iterable of SchemaEntry
        Settings that the command passes on as arguments.
    keys : mapping
        Keys of `--set`, by the name of the argument.

    Examples
    --------
    >>> lose = SchemaEntry("mixing.lose", name="lose", flag="--lose", metavar="P", argument="mixing")
    >>> in_flags("`mixing=` would have no effect (check=False goes on)", [lose], {})
    '--lose would have no effect'
    >>> in_flags('use weights="metropolis"', [lose], {"weights": "topology.weights"})
    'use --set topology.weights=metropolis'
    """
    flags = [entry for entry in schema if entry.flag]
    entries = {name: entry for entry in flags for name in (entry.name, entry.argument)}

    def flag(match: re.Match[str]) -> str:
        name, value = match["name"], (match["value"] or "").strip("\"'")
        if name in keys:
            return f"--set {keys[name]}={value}"
        if name not in entries:
            return match[0]
        value = {"True": "true", "False": "false"}.get(value, value)
        return f"{entries[name].flag} {value if entries[name].metavar else ''}".rstrip()

    known = {*entries, *keys}
    text = UNAVAILABLE.sub(lambda match: match[0] if match["name"] in known else "", text)
    return KEYWORD.sub(flag, GRAPH.sub(r"--topology \g<name>", text))


# Keys that have had another name.
RENAMED = {"mixing.loss": "mixing.lose"}


def _renamed(key: str, origin: str) -> None:
    """Raise ConfigError for a key of an earlier version."""
    if key in RENAMED:
        raise ConfigError(f"{origin}: {key} is called {RENAMED[key]}")


def read_toml(
    path: str = "",
    tables: Iterable[str] = (),
    keys: Mapping[str, SchemaEntry] | None = None,
    *,
    text: str | None = None,
) -> list[Setting]:
    """Return the settings of a file, or of its text, which may have these `tables`; errors name one
    of the `keys` where it is meant.

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
        raise ConfigError(
            f"{name}: cannot read the experiment: {error.strerror}{_similar(name)}"
        ) from None
    except UnicodeDecodeError as error:
        if os.path.splitext(name)[1] in (".h5", ".hdf5"):
            raise ConfigError(
                f"{name} is the file of a run, expected an experiment in TOML: the command that wrote "
                f"it continues the run with --resume {name}"
            ) from None
        raise ConfigError(f"{name}: not a TOML file: byte {error.start} is not UTF-8") from None
    except (RecursionError, ValueError) as error:
        data = f": data are given by --data {name}" * name.endswith((".csv", ".tsv"))
        raise ConfigError(f"{name}: not valid TOML: {error}{data}") from None
    settings = []
    for table, content in content_of.items():
        check_name("table", table, tables, f"{name}:{table}", keys)
        if not isinstance(content, dict):
            named = isinstance(content, str) and f"{table}.name" in (keys or {})
            remedy = f": did you mean {table}.name = {to_toml(content)}?" if named else ""
            raise ConfigError(
                f"{name}:{table}: expected a table, [{table}], got {abbreviate(content)}{remedy}"
            )
        for key, value in content.items():
            origin, folder = f"{name}:{table}.{key}", os.path.dirname(path) or os.curdir
            key = f"{table}.{key}"
            if path:
                _renamed(key, origin)
            settings.append(Setting(RENAMED.get(key, key), value, origin, False, 0, folder))
    return settings


def _similar(path: str) -> str:
    """Return which experiments beside a file that cannot be read have similar names."""
    folder, file = os.path.split(path)
    beside = glob.glob("*.toml", root_dir=folder or os.curdir)
    similar = plugins.did_you_mean(file, beside)
    return f": {similar}" if similar else ""


def parse_set(argument: str, tables: Iterable[str], example: str) -> Setting:
    """Return the setting of an option ``--set table.key=value``; a value that is not TOML is a
    string.
    """
    key, equals, value = (part.strip() for part in argument.partition("="))
    table, dot, name = key.partition(".")
    if not (equals and dot and table and name):
        raise ConfigError(
            f"--set {abbreviate(argument)}: expected table.key=value, such as {example}"
        )
    check_name("table", table, tables, f"--set {key}")
    _renamed(key, f"--set {key}")
    return Setting(key, value, f"--set {key}", level=2)


def check_name(
    what: str,
    name: str,
    known: Iterable[str],
    origin: str,
    keys: Mapping[str, SchemaEntry] | None = None,
) -> None:
    """Raise ConfigError for an unknown name, with those of the `keys` of any table that are called
    so, or else the closest known ones.
    """
    if name not in known:
        meant = [
            k for k, entry in (keys or {}).items() if name in (k.partition(".")[2], entry.name)
        ]
        similar = f"did you mean {' or '.join(meant)}?" if meant else plugins.nearest(name, known)
        raise ConfigError(f"{origin}: unknown {what} {abbreviate(name)}: {similar}")


def coerce(value: object, hint: object) -> Value:
    """Return `value` converted without loss to the type `hint`; ValueError if that is impossible.

    Examples
    --------
    >>> coerce(3, float), coerce("none", int | None), coerce([1, 2], tuple[int, ...])
    (3.0, None, (1, 2))
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        return _coerce_to_one(value, arguments)
    if origin is Literal and any(type(each) is type(value) and each == value for each in arguments):
        return typing.cast(Value, value)
    if origin in LISTS and isinstance(value, (list, tuple)):
        fixed = origin is tuple and Ellipsis not in arguments
        if not fixed or len(value) == len(arguments):
            return tuple(coerce(item, arguments[0]) for item in value)
    return _coerce_scalar(value, hint)


def _coerce_scalar(value: object, hint: object) -> Value:
    """Return a truth value, a text or a number as one of the type `hint`."""
    if isinstance(value, bool):
        if hint is bool:
            return value
    elif isinstance(value, str):
        if hint is str and value.isprintable() and value:
            return value
    elif isinstance(value, (int, float)):
        if hint is int and (isinstance(value, int) or value.is_integer()):
            return int(value)
        if hint is float and abs(value) <= sys.float_info.max:
            return float(value)
    raise ValueError


def _coerce_to_one(value: object, hints: tuple[object, ...]) -> Value:
    """Return `value` converted to the first of the types that it fits."""
    if type(None) in hints and (value is None or (value == "none" and str not in hints)):
        return None
    for hint in filter(is_toml_type, hints):
        try:
            return coerce(value, hint)
        except ValueError:
            continue
    raise ValueError


def is_toml_type(hint: object) -> bool:
    """Return whether values of the type `hint` can be written in TOML.

    Examples
    --------
    >>> is_toml_type(float | None), is_toml_type(dict)
    (True, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        written = [choice for choice in arguments if not _only_in_python(choice)]
        return bool(written) and all(map(is_toml_type, written))
    if origin in LISTS:
        return bool(arguments) and is_toml_type(arguments[0])
    return origin is Literal or hint in (int, float, str, bool)


def _only_in_python(hint: object) -> bool:
    """Return whether a form of a parameter is one of several that only programs use: a function, or
    an object of the package.
    """
    own = getattr(hint, "__module__", "").startswith("mpidec.")
    return hint is type(None) or typing.get_origin(hint) is Callable or own


def describe(hint: object, range: str = "") -> str:
    """Return the description of values of the type `hint` for a message; `range` is that of
    numbers.

    Examples
    --------
    >>> describe(int | None, "> 0"), describe(float), describe(float | Literal["iid"])
    ('an integer > 0', 'a finite number', 'a finite number or iid')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        return " or ".join(describe(choice, range) for choice in filter(is_toml_type, arguments))
    if origin is Literal:
        several = f"one of {', '.join(map(str, arguments))}"
        return several if len(arguments) > 2 else " or ".join(map(str, arguments))
    if origin in LISTS:
        return f"a list, each {describe(arguments[0], range)}"
    if hint in (int, float):
        number = "an integer" if hint is int else "a number" if range else "a finite number"
        return f"{number} {range}".rstrip()
    return "true or false" if hint is bool else "a string"


def abbreviate(value: object) -> str:
    """Return the representation of a value for a message, at most 60 characters long.

    Examples
    --------
    >>> abbreviate("atc")
    "'atc'"
    """
    result = repr(value)
    return result if len(result) <= 60 else result[:57] + "..."


def parse(text: str) -> object:
    """Return the value that `text` is in TOML; the text itself if it is none.

    Examples
    --------
    >>> parse("0.1"), parse("[1, 2]"), parse("ring")
    (0.1, [1, 2], 'ring')
    """
    try:
        content = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return content["value"] if len(content) == 1 else text


def to_toml(value: object) -> str:
    """Return a value as TOML text, or tables of values, ``{table: {key: value}}``, without those
    that are None.

    Examples
    --------
    >>> to_toml([1, 2.5]), to_toml(True), to_toml({"solver": {"name": "atc", "step_size": None}})
    ('[1, 2.5]', 'true', '[solver]\\nname = "atc"\\n')
    """
    if isinstance(value, Mapping):
        lines: list[str] = []
        for table, content in value.items():
            given = [f"{key} = {to_toml(one)}" for key, one in content.items() if one is not None]
            lines += [f"[{table}]", *given, ""] if given else []
        return "\n".join(lines)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
