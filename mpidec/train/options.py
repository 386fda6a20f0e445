"""Options of the model, the algorithm, the topology and the optimizer: what they may be, and errors that name them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..experiment.settings import ConfigError
from ..experiment.values import shown
from ..plugins import nearest, short


class Kind(NamedTuple):
    """Values that an option can have."""

    expected: str
    fits: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_BOOL = Kind("true or false", lambda value: isinstance(value, bool))
_ADAM = {
    "betas": Kind(
        "two numbers in [0, 1), such as [0.9, 0.99]",
        lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == 2
            and all(_number(beta) and 0 <= beta < 1 for beta in value)
        ),
    ),
    "eps": Kind("a number > 0", lambda value: _number(value) and 0 < value < 1e300),
    "amsgrad": _BOOL,
}
_ALL = {"maximize": _BOOL, "foreach": _BOOL, "fused": _BOOL}
OPTIMIZER_OPTIONS: dict[str, dict[str, Kind]] = {
    "sgd": {
        "dampening": Kind("a number >= 0", lambda value: _number(value) and 0 <= value < 1e300),
        **_ALL,
    },
    "adam": {**_ADAM, **_ALL},
    "adamw": {**_ADAM, **_ALL},
}


def check_optimizer(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of an optimizer.

    Raises
    ------
    ConfigError
    """
    kinds = OPTIMIZER_OPTIONS[name]
    check_names("optimizer", name, options, kinds)
    for key, value in options.items():
        if not kinds[key].fits(value):
            raise ConfigError(
                f"optimizer.{key}: expected {kinds[key].expected}, got {shown(value)}"
            )


def check_topology(name: str, make: Any, options: Mapping[str, Any]) -> None:
    """Check the names of the options of a topology, which `make` takes after the number of agents.

    Raises
    ------
    ConfigError
    """
    parameters = inspect.signature(make).parameters if callable(make) else {}
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_names("topology", name, options, [*parameters][1:])


def check_names(table: str, name: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Check the names of options.

    Raises
    ------
    ConfigError
    """
    for key, value in options.items():
        if key not in known:
            remedy = nearest(key, known) if known else "expected no options"
            raise ConfigError(
                f"{table}.{key} = {shown(value)}: {short(name)} has no option {key}: {remedy}"
            )


@contextmanager
def named(table: str, options: Mapping[str, Any]) -> Iterator[None]:
    """A context in which errors of what takes the options begin with the options, as ``[table]`` has them."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
    ) as error:
        if not options:
            raise
        told = ", ".join(f"{table}.{key} = {shown(value)}" for key, value in options.items())
        raise ValueError(
            f"{told}: {' '.join(str(error).split()) or type(error).__name__}"
        ) from error
