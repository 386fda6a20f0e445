"""Options of the model, the algorithm, the topology and the optimizer: what they may be, and errors that name them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..exceptions import ConfigError
from ..experiment.schema import Entry, Setting
from ..experiment.values import abbreviate
from ..plugins import nearest, short

ADAM = {
    "betas": Entry(
        hint=tuple[float, float],
        range="in [0, 1)",
        expected="two numbers in [0, 1), such as [0.9, 0.99]",
    ),
    "eps": Entry(hint=float, range="> 0"),
    "amsgrad": Entry(hint=bool),
}
COMMON = dict.fromkeys(("maximize", "foreach", "fused"), Entry(hint=bool))
OPTIMIZER_OPTIONS: dict[str, dict[str, Entry]] = {
    "sgd": {"dampening": Entry(hint=float, range=">= 0"), **COMMON},
    "adam": {**ADAM, **COMMON},
    "adamw": {**ADAM, **COMMON},
}


def check_optimizer(name: str, options: Mapping[str, Any]) -> None:
    """Check the options of an optimizer.

    Raises
    ------
    ConfigError
    """
    known = OPTIMIZER_OPTIONS[name]
    check_names("optimizer", name, options, known)
    for key, value in options.items():
        known[key].convert(Setting(key, value, f"optimizer.{key}", text=False))


def check_topology(name: str, make: object, options: Mapping[str, Any]) -> None:
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
                f"{table}.{key} = {abbreviate(value)}: {short(name)} has no option {key}: {remedy}"
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
        given = ", ".join(f"{table}.{key} = {abbreviate(value)}" for key, value in options.items())
        raise ValueError(
            f"{given}: {' '.join(str(error).split()) or type(error).__name__}"
        ) from error
