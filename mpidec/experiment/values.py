"""Values of settings: lossless conversion to the expected type, and output as TOML."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union

UNIONS, LISTS = (Union, types.UnionType), (tuple, list, Sequence)


def converted(value: Any, hint: Any) -> Any:
    """Return `value` converted without loss to the type `hint`; TypeError or ValueError if that is impossible.

    Examples
    --------
    >>> converted(3, float), converted("none", int | None), converted([1, 2], tuple[int, ...])
    (3.0, None, (1, 2))
    """
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
        return tuple(
            converted(item, arguments[0]) for item in _checked(value, isinstance(value, list))
        )
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
    """Return whether values of the type `hint` can be written in TOML.

    Examples
    --------
    >>> settable(float | None), settable(dict)
    (True, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        return all(
            settable(choice)
            for choice in arguments
            if choice is not type(None) and typing.get_origin(choice) is not Callable
        )
    if origin in LISTS:
        return bool(arguments) and settable(arguments[0])
    return origin is Literal or hint in (int, float, str, bool)


def shown(value: Any) -> str:
    """Return the representation of a value for a message, at most 60 characters long.

    Examples
    --------
    >>> shown("atc")
    "'atc'"
    """
    result = repr(value)
    return result if len(result) <= 60 else result[:57] + "..."


def text(value: Any) -> str:
    """Return the value as TOML text.

    Examples
    --------
    >>> text([1, 2.5]), text(True), text("atc")
    ('[1, 2.5]', 'true', '"atc"')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(text(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
