"""Models by name, those of the user's own included: functions or modules FILE.py:NAME."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..datasets.user_data import raised
from ..nn import Stacked, models
from ..plugins import Table, is_plugin, short
from .options import check_names


def _model(thing: object) -> str | None:
    """What is wrong with `thing` as a model, or None."""
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
    """The names of the parameters that are given by their places."""
    return [
        name
        for name, parameter in inspect.signature(thing).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


TABLE = Table("model", "mpidec.models", models.MODELS, _model)


def model(
    name: str, shape: tuple[int, ...], classes: int, seed: int, options: Mapping[str, Any]
) -> torch.nn.Module:
    """A model by its name, with options.

    Raises
    ------
    ValueError
        In one line, whatever a model of the user's own has raised.
    """
    if not is_plugin(name):
        return models.start(name, shape, classes, seed, options)
    make = TABLE.find(name)
    parameters = inspect.signature(make).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_names("model", name, options, [*parameters][2:])
    try:
        return models.start(make, shape, classes, seed, options)
    except (Exception, SystemExit) as error:
        given = "".join(f", {key} = {value!r}" for key, value in options.items())
        raise ValueError(
            f"model {short(name)} for samples of the shape {shape}, {classes} classes{given}: "
            f"{raised(error, make)}"
        ) from error


def stacked(model: torch.nn.Module, m: int, x: torch.Tensor) -> Stacked:
    """m workers of a user's model, evaluated one after the other if they cannot be batched: tried with the samples `x`."""
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            Stacked(model, m)(x.expand(m, *x.shape)).sum().backward()
    except (RuntimeError, ValueError):
        return Stacked(model, m, loop=True)
    return Stacked(model, m)
