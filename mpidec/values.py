"""Values of settings: converted to the type that is expected without loss, and written as TOML."""
from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, Union

UNIONS, LISTS = (Union, types.UnionType), (tuple, list, Sequence)


def converted(value: Any, hint: Any) -> Any:
    """`value` as a `hint`, without loss; TypeError or ValueError where it is not one."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        if value == "none" and type(None) in arguments and str not in arguments:
            return None
        for choice in filter(settable, arguments):
            try:
                return converted(value, choice)
            except (TypeError, ValueError):
                continue
        good = False
    elif origin is Literal:
        good = any(type(choice) is type(value) and choice == value for choice in arguments)
    elif origin in LISTS:
        return tuple(converted(item, arguments[0]) for item in _checked(value, isinstance(value, list)))
    elif hint is bool:
        good = isinstance(value, bool)
    elif hint is int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return int(_checked(value, whole and not isinstance(value, bool)))
    elif hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(_checked(value, number and math.isfinite(value)))
    else:
        good = isinstance(value, str) and value.isprintable() and value != ""
    return _checked(value, good)


def _checked(value: Any, good: bool) -> Any:
    if not good:
        raise ValueError
    return value


def settable(hint: Any) -> bool:
    """Whether TOML can say a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        return all(settable(choice) for choice in arguments if choice is not type(None))
    if origin in LISTS:
        return bool(arguments) and settable(arguments[0])
    return origin is Literal or hint in (int, float, str, bool)


def shown(value: Any) -> str:
    """The value in a message, not too long."""
    said = repr(value)
    return said if len(said) <= 60 else said[:57] + "..."


def text(value: Any) -> str:
    """The value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(text(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
