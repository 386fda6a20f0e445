"""Values of settings: lossless conversion to the expected type, their description, and output as TOML."""

from __future__ import annotations

import json
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, Union

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Value: TypeAlias = "str | bool | int | float | tuple[Value, ...] | None"
UNIONS, LISTS = (Union, types.UnionType), (tuple, list, Sequence)


def coerce(value: object, hint: object) -> Value:
    """Return `value` converted without loss to the type `hint`; ValueError if that is impossible.

    Examples
    --------
    >>> coerce(3, float), coerce("none", int | None), coerce([1, 2], tuple[int, ...])
    (3.0, None, (1, 2))
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    number = (
        value
        if isinstance(value, (int, float)) and value is not True and value is not False
        else math.nan
    )
    if origin in UNIONS:
        if type(None) in arguments and (
            value is None or (value == "none" and str not in arguments)
        ):
            return None
        for choice in filter(is_toml_type, arguments):
            try:
                return coerce(value, choice)
            except ValueError:
                continue
    elif origin is Literal:
        if any(type(choice) is type(value) and choice == value for choice in arguments):
            return typing.cast(Value, value)
    elif origin in LISTS and isinstance(value, (list, tuple)):
        fixed = origin is tuple and Ellipsis not in arguments
        if not fixed or len(value) == len(arguments):
            return tuple(coerce(item, arguments[0]) for item in value)
    elif hint is bool and isinstance(value, bool):
        return value
    elif hint is int and (isinstance(number, int) or number.is_integer()):
        return int(number)
    elif hint is float and abs(number) <= sys.float_info.max:
        return float(number)
    elif hint is str and isinstance(value, str) and value.isprintable() and value:
        return value
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
        return all(
            is_toml_type(choice)
            for choice in arguments
            if choice is not type(None) and typing.get_origin(choice) is not Callable
        )
    if origin in LISTS:
        return bool(arguments) and is_toml_type(arguments[0])
    return origin is Literal or hint in (int, float, str, bool)


def describe(hint: object, range: str = "") -> str:
    """Return the description of values of the type `hint` for a message; `range` is that of numbers.

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
    """Return a value as TOML text, or tables of values, ``{table: {key: value}}``, without those that are None.

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
