"""Options of the model, the algorithm, the topology and the optimizer, errors that name them,
and user-defined models.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..datasets import raised
from ..exceptions import ConfigError
from ..experiment import abbreviate
from ..nn import Stacked, models
from ..plugins import Components, is_plugin, nearest, short


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
    """Context in which errors begin with the options at fault, as ``[table]`` has them."""
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


def _model(thing: object) -> str | None:
    """Return what is wrong with `thing` as a model, or None."""
    expected = (
        "expected a function (shape, classes) that returns a torch.nn.Module, or such a class"
    )
    if not callable(thing) or isinstance(thing, torch.nn.Module):
        return f"of type {type(thing).__name__}, {expected}"
    try:
        inspect.signature(thing).bind((), 1)
    except TypeError as error:
        if "missing" not in str(error) or len(_positional(thing)) < 2:
            return f"{getattr(thing, '__name__', thing)}{inspect.signature(thing)}, {expected}"
    return None


def _positional(thing: Callable[..., object]) -> list[str]:
    """Return the names of the parameters that are given by their places."""
    return [
        name
        for name, parameter in inspect.signature(thing).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


TABLE = Components("model", "mpidec.models", models.MODELS, _model)


def model(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    options: Mapping[str, Any],
    classes: bool = True,
) -> torch.nn.Module:
    """Return a model by its name, with options; one of the user's own may have outputs of any shape
    unless they are those of `classes`.

    Raises
    ------
    ValueError
        In one line, whatever a model of the user's own has raised.
    """
    if not is_plugin(name):
        return models.start(name, shape, outputs, seed, options)
    make = TABLE.find(name)
    parameters = inspect.signature(make).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_names("model", name, options, [*parameters][2:])
    try:
        return models.start(make, shape, outputs, seed, options, classes)
    except (Exception, SystemExit) as error:
        given = "".join(f", {key} = {value!r}" for key, value in options.items())
        raise ValueError(
            f"model {short(name)} for samples of the shape {shape}, {outputs} "
            f"{'classes' if classes else 'outputs'}{given}: "
            f"{raised(error, make)}"
        ) from error


def stacked(model: torch.nn.Module, m: int, x: torch.Tensor) -> Stacked:
    """m workers of a user's model, evaluated one after the other if they cannot be batched:
    tried with the samples `x`.
    """
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            Stacked(model, m)(x.expand(m, *x.shape)).sum().backward()
    except (RuntimeError, ValueError):
        return Stacked(model, m, loop=True)
    return Stacked(model, m)
